"""Reading `workload.yaml`: text, overrides and a sweep's points into `Workload` values.

Everything that is wrong is found before anything runs, and told at once: file, line, dotted key, what was expected, the
nearest valid name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from experiments.schema import Workload
from experiments.schema.base import Section, Wrong
from experiments.schema.messages import to_input_error
from experiments.schema.sweep import expand
from experiments.yaml_tree import Path_, Tree, dotted, parse_tree, parse_value, read_text
from workloads.errors import InputError, Place
from workloads.registry import plugins_from

MOST_SHOWN = 10
MAX_POINTS = 10_000


class WorkloadErrors(InputError):
    """Several things wrong with one file, in the order of its lines.

    Attributes:
        errors: each of them.
    """

    def __init__(self, errors: Sequence[InputError]) -> None:
        self.errors = tuple(errors)
        lines = [str(error) for error in self.errors[:MOST_SHOWN]]
        more = len(self.errors) - len(lines)
        lines += [f"… and {more} more"] if more else []
        super().__init__("\n".join(lines))

    def at(self, place: Place) -> WorkloadErrors:
        """The same errors, each placed where the caller knows better."""
        return WorkloadErrors([error.at(place) for error in self.errors])


@dataclass(frozen=True, slots=True)
class Override:
    """A value set from outside the file.

    Attributes:
        path: the key, as parts.
        value: plain value.
        place: where it was given, for messages (`--set`, or a line of the sweep).
    """

    path: Path_
    value: Any
    place: Place


@dataclass(frozen=True, slots=True)
class Source:
    """What a `Workload` was made from; enough to make it again, in another process too."""

    text: str
    file: str
    overrides: tuple[Override, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of the file; relative paths in it start here."""
        return Path(self.file).parent

    def tree(self) -> Tree:
        """The parsed text with the overrides on it."""
        tree = parse_tree(self.text, self.file)
        for override in self.overrides:
            _apply(tree, override)
        return tree

    def place(self, key: str) -> Place:
        """Where a dotted key was written."""
        return self.tree().place(split_key(key))


def load_workload(path: str | Path, overrides: Iterable[str | Override] = ()) -> Workload:
    """Read a workload file, YAML or JSON.

    Args:
        path: the file.
        overrides: `key=value` texts (values are YAML) or `Override`s, later ones winning.

    Raises:
        InputError: (or `WorkloadErrors`) everything that is wrong, with its place.
    """
    given = tuple(parse_override(o) if isinstance(o, str) else o for o in overrides)
    path = Path(path)
    return build_workload(Source(read_text(path), str(path), given))


def build_workload(source: Source) -> Workload:
    """The workload of a source, checked whole: the file, the overrides and every value of the sweep.

    Raises:
        InputError: (or `WorkloadErrors`) everything that is wrong, with its place.
    """
    with plugins_from(source.folder):
        return _build(source)


def _build(source: Source) -> Workload:
    tree = source.tree()
    tree.data.setdefault("name", Path(source.file).stem or "workload")
    axes = _axes(tree)
    for key, values in axes.items():
        _apply(tree, _sweep_override(tree, key, values, 0))
    workload, found = _validate(tree)
    errors = [*tree.errors, *found]
    if not found:
        errors += _sweep_errors(tree, axes)
    if errors:
        raise _combined(errors)
    assert workload is not None
    workload._source = source
    return workload


def point_workload(workload: Workload, values: Mapping[str, Any]) -> Workload:
    """One point of the workload's sweep: the same file without its sweep, with these values set.

    Raises:
        InputError: this combination is impossible.
    """
    source = workload.source
    drop = Override(("sweep",), None, source.place("sweep"))
    settings = [Override(split_key(key), value, source.place(f"sweep.{key}")) for key, value in values.items()]
    return build_workload(replace(source, overrides=(*source.overrides, drop, *settings)))


def parse_override(text: str) -> Override:
    """`engine.scheduler.max_num_seqs=64` as an `Override`; the value is YAML, so lists and mappings work too."""
    key, equals, value = text.partition("=")
    place = Place(file="--set", key=key.strip() or None)
    if not equals or not key.strip() or not all(part.strip() for part in key.split(".")):
        raise InputError(
            f"expected key=value, got {text!r}", place=Place(file="--set"), hint="such as load.concurrency=64"
        )
    path = split_key(key.strip())
    found = parse_value(value, place)
    if not value.strip() and _is_section(path):
        raise InputError(
            "expected keys and values, got nothing",
            place=place,
            hint=f"such as {key.strip()}='{{key: value}}', or {key.strip()}=null to leave the section out",
        )
    return Override(path, found, place)


def _is_section(path: Path_) -> bool:
    """Whether a key is one of the file's sections rather than a value."""
    kind: Any = Workload
    for part in path:
        field = getattr(kind, "model_fields", {}).get(part)
        if field is None:
            return False
        options = get_args(field.annotation) or (field.annotation,)
        kind = next((each for each in options if isinstance(each, type) and issubclass(each, Section)), None)
    return kind is not None or path == ("sweep",)


def split_key(key: str) -> Path_:
    """A dotted key as its parts; what follows `sweep.` is one key, dots and all."""
    if key.startswith("sweep."):
        return ("sweep", key.removeprefix("sweep."))
    return tuple(key.split("."))


def _apply(tree: Tree, override: Override) -> None:
    """Set a value in the tree, making the sections on the way and remembering where it came from."""
    node = tree.data
    for depth, part in enumerate(override.path[:-1]):
        child = node.get(part)
        if child is None:
            child = node[part] = {}
        if not isinstance(child, dict):
            section = dotted(override.path[: depth + 1])
            tree.errors.append(InputError(f"{section} has no keys; it is a value", place=override.place))
            return
        node = child
    node[override.path[-1]] = copy.deepcopy(override.value)
    tree.given[override.path] = override.place


def _axes(tree: Tree) -> dict[str, tuple[Any, ...]]:
    """The sweep's axes that make sense; the others are reported by validation."""
    section = tree.data.get("sweep")
    axes: dict[str, tuple[Any, ...]] = {}
    if not isinstance(section, dict):
        return axes
    for key, spec in section.items():
        if key.split(".")[0] in ("sweep", "name", ""):
            message = f"{key} cannot be swept"
            tree.errors.append(
                InputError(message, place=tree.place(("sweep", key)), hint="sweep a key that changes the run")
            )
            continue
        above = next((other for other in section if key.startswith(f"{other}.")), None)
        if above is not None:
            message = f"{key} lies inside {above}, which is swept too"
            tree.errors.append(InputError(message, place=tree.place(("sweep", key)), hint="sweep one of the two"))
            continue
        try:
            axes[key] = expand(spec)
        except Wrong:
            continue
    return axes


def _sweep_override(tree: Tree, key: str, values: Sequence[Any], index: int) -> Override:
    listed = isinstance(tree.data["sweep"][key], list)
    place = tree.place(("sweep", key, index) if listed else ("sweep", key))
    return Override(split_key(key), values[index], place)


def _validate(tree: Tree) -> tuple[Workload | None, list[InputError]]:
    try:
        return Workload.model_validate(tree.data, context={"folder": Path(tree.file).parent}), []
    except ValidationError as error:
        findings = error.errors(include_url=False)
        return None, [to_input_error(finding, tree, Workload) for finding in findings]


def _sweep_errors(tree: Tree, axes: dict[str, tuple[Any, ...]]) -> list[InputError]:
    """Every value of every axis must make a valid workload while the others are at their first."""
    points = 1
    for values in axes.values():
        points *= len(values)
    if points > MAX_POINTS:
        message = f"the sweep has {points} points; the most is {MAX_POINTS}"
        return [InputError(message, place=tree.place(("sweep",)), hint="use fewer values")]
    errors: list[InputError] = []
    for key, values in axes.items():
        for index in range(1, len(values)):
            trial = Tree(tree.file, copy.deepcopy(tree.data), tree.lines, [], dict(tree.given))
            _apply(trial, _sweep_override(tree, key, values, index))
            errors += [*trial.errors, *_validate(trial)[1]]
            if len(errors) > MOST_SHOWN:
                return errors
    return errors


def _combined(errors: list[InputError]) -> InputError:
    unique = list({str(error): error for error in errors}.values())
    unique.sort(key=lambda error: (error.place.line is None, error.place.line or 0))
    return unique[0] if len(unique) == 1 else WorkloadErrors(unique)
