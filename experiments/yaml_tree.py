"""YAML or JSON text as plain values, with the line of every key.

The document is walked as nodes rather than loaded, for three things a plain load cannot give: the line of each key and
value, every duplicate key (not just the first), and a bound on what aliases may expand to. Scalars follow YAML 1.2, so
`yes` and `on` are words; dates stay the text that was written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workloads.errors import InputError, Place

MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 50_000
MAX_DEPTH = 40

Path_ = tuple[str | int, ...]


def dotted(path: Path_) -> str:
    """`("sweep", "load.concurrency", 2)` as `sweep.load.concurrency[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@dataclass(slots=True)
class Tree:
    """A parsed document.

    Attributes:
        file: its name, for messages.
        data: nested dicts, lists and scalars.
        lines: line (from 1) of each key or list item, by its path from the root.
        errors: what is wrong with the text although it parsed: duplicate keys, tags, keys that are not text.
        given: where the values came from that were set from outside the text, by path.
    """

    file: str
    data: dict[str, Any]
    lines: dict[Path_, int] = field(default_factory=dict)
    errors: list[InputError] = field(default_factory=list)
    given: dict[Path_, Place] = field(default_factory=dict)

    def place(self, path: Path_) -> Place:
        """Where `path` is; the nearest written ancestor's line where the key itself was not written."""
        for depth in range(len(path), 0, -1):
            head = path[:depth]
            if head in self.given:
                place = self.given[head]
                return replace(place, key=dotted((place.key or dotted(head), *path[depth:])))
            if head in self.lines:
                return Place(file=self.file, line=self.lines[head], key=dotted(path))
        return Place(file=self.file, key=dotted(path) or None)


def read_text(path: Path) -> str:
    """The text of a workload file, UTF-8 whatever the locale.

    Raises:
        InputError: it does not exist (with the nearest name in its folder), is a folder, is too large or is not UTF-8.
    """
    place = Place(file=str(path))
    try:
        if path.is_dir():
            raise InputError("is a folder; expected a workload file", place=place, hint=_yaml_files(path))
        if path.exists() and path.stat().st_size > MAX_BYTES:
            raise InputError("is too large for a workload file (4 MiB)", place=place)
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError("no such file", place=place, hint=_nearest_file(path)) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place=place) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8 text", place=Place(file=str(path), line=line), hint="save it as UTF-8") from None


def parse_tree(text: str, file: str) -> Tree:
    """Parse a whole document, which must be a mapping.

    Raises:
        InputError: syntax errors, with their line; an empty document; a list or a scalar at the top.
    """
    if file.lower().endswith(".json"):
        text = _checked_json(text, file)
    node = _compose(text, file)
    if node is None:
        raise InputError("is empty", place=Place(file=file), hint="`bench init` writes an example")
    tree = Tree(file, {})
    data = _Walk(tree).value(node, ())
    if not isinstance(data, dict):
        hint = "such as `model: meta-llama/Meta-Llama-3-8B`"
        raise InputError("expected keys and values at the top", place=Place(file=file, line=1), hint=hint)
    tree.data = data
    return tree


def parse_value(text: str, place: Place) -> Any:
    """One value as YAML (a scalar, a list or a mapping in flow form), for the command line."""
    try:
        node = _compose(text, "")
    except InputError as error:
        raise InputError(error.message, place=place, hint=error.hint) from None
    if node is None:
        return None
    tree = Tree(place.file or "", {})
    value = _Walk(tree).value(node, ())
    if tree.errors:
        raise InputError(tree.errors[0].message, place=place, hint=tree.errors[0].hint)
    return value


def _compose(text: str, file: str):
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        return YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        where = f" {error.context}" if error.context else ""
        message = f"not valid YAML: {error.problem or 'syntax error'}{where}"
        raise InputError(message, place=Place(file=file, line=line, column=column), hint=_syntax_hint(error)) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        raise InputError("not valid YAML: a control character", place=Place(file=file, line=line)) from None
    except (YAMLError, ValueError) as error:
        raise InputError(f"not valid YAML: {error}", place=Place(file=file)) from None
    except RecursionError:
        raise InputError("is nested too deeply", place=Place(file=file)) from None


def _syntax_hint(error) -> str | None:
    problem = error.problem or ""
    if "'\\t'" in problem:
        return "YAML is indented with spaces, not tabs"
    if "mapping values are not allowed" in problem:
        return "put text that contains ': ' in quotes"
    if "another document" in problem:
        return "a workload file is one document; remove the second `---`"
    return None


def _checked_json(text: str, file: str) -> str:
    """JSON that YAML reads the same way: valid, and without tabs between its tokens."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        place = Place(file=file, line=error.lineno, column=error.colno)
        raise InputError(f"not valid JSON: {error.msg}", place=place) from None
    except RecursionError:
        raise InputError("is nested too deeply", place=Place(file=file)) from None
    return text.replace("\t", " ")


class _Walk:
    """Turns nodes into values, filling the tree's lines and errors."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.nodes = 0
        self.open: set[int] = set()

    def value(self, node, path: Path_) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH or id(node) in self.open:
            raise InputError(
                "is too large or nested too deeply",
                place=self._place(node, path),
                hint="check its anchors and aliases",
            )
        kind = type(node).__name__
        if kind == "ScalarNode":
            return self._scalar(node, path)
        self.open.add(id(node))
        try:
            if not str(node.tag).startswith("tag:yaml.org,2002:") or str(node.tag).endswith("omap"):
                self._error(f"the tag {node.tag} is not allowed here", node, path)
            return self._mapping(node, path) if kind == "MappingNode" else self._sequence(node, path)
        finally:
            self.open.discard(id(node))

    def _sequence(self, node, path: Path_) -> list:
        for index, item in enumerate(node.value):
            self.tree.lines[(*path, index)] = item.start_mark.line + 1
        return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node, path: Path_) -> dict:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged |= self._merged(value_node, path)
                continue
            key = self._key(key_node, path)
            here = (*path, str(key))
            if key in result:
                self._error(
                    f"is given twice (first on line {self.tree.lines[here]})",
                    key_node,
                    here,
                    hint="remove one",
                )
                continue
            self.tree.lines[here] = key_node.start_mark.line + 1
            result[key] = self.value(value_node, here)
        return {**merged, **result}

    def _merged(self, node, path: Path_) -> dict:
        """What `<<: *anchor` (or a list of anchors, the first winning) adds."""
        sources = node.value if type(node).__name__ == "SequenceNode" else [node]
        merged: dict[str, Any] = {}
        for source in reversed(sources):
            if type(source).__name__ != "MappingNode":
                self._error("`<<` takes a mapping or a list of mappings", source, path)
                continue
            kept = dict(self.tree.lines)
            merged |= self.value(source, path)
            self.tree.lines |= kept
        return merged

    def _key(self, node, path: Path_) -> str | int | float:
        """A key is text, or a number where a section has numbers as keys (quantiles, weights)."""
        key = self._scalar(node, path) if type(node).__name__ == "ScalarNode" else None
        if isinstance(key, str | int | float) and not isinstance(key, bool):
            return key
        shown = node.value if type(node).__name__ == "ScalarNode" else "a list or mapping"
        self._error(f"expected text as a key, got {shown}", node, path, hint="put it in quotes if it is meant")
        return str(shown)

    def _scalar(self, node, path: Path_) -> Any:
        tag = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if tag in ("str", "timestamp"):
            return _joined_surrogates(node.value)
        if tag == "null":
            return None
        try:
            if tag == "bool":
                return node.value.lower() == "true"
            if tag == "int":
                return _integer(node.value.replace("_", ""))
            if tag == "float":
                return float(node.value.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
        except (ValueError, OverflowError):
            self._error(f"is not a usable number: {node.value[:40]}", node, path)
            return None
        self._error(f"the tag {node.tag} is not allowed here", node, path)
        return None

    def _error(self, message: str, node, path: Path_, hint: str | None = None) -> None:
        self.tree.errors.append(InputError(message, place=self._place(node, path), hint=hint))

    def _place(self, node, path: Path_) -> Place:
        return Place(file=self.tree.file, line=node.start_mark.line + 1, key=dotted(path) or None)


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2].lower(), 10)
    return int(text, base)


def _joined_surrogates(text: str) -> str:
    r"""JSON writes an emoji as two `\u` escapes, which YAML reads as two halves; join them."""
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _nearest_file(path: Path) -> str | None:
    import difflib

    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"the folder {path.parent} does not exist" if str(path.parent) != "." else None
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"did you mean {path.parent / close[0]}?" if close else "`bench init` writes an example"


def _yaml_files(folder: Path) -> str | None:
    names = sorted(p.name for p in folder.iterdir() if p.suffix in (".yaml", ".yml", ".json"))[:5]
    return f"it holds {', '.join(names)}" if names else None
