"""The reference of `workload.yaml`, from the pydantic sections and the docstrings behind them."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from experiments.handbook.attributes import attributes_of
from experiments.handbook.markdown import cell, table
from experiments.schema import EngineSection, Workload
from experiments.schema.base import Section

_NAMES = {
    "engine.preset": "bench list presets", "engine.scheduler.name": "bench list schedulers",
    "engine.scheduler.policy": "bench list policies", "engine.scheduler.gate": "bench list gates",
    "engine.scheduler.victim": "bench list victims", "engine.kv.allocator": "bench list allocators",
    "engine.kv.dtype": "bench list quantizations", "engine.quantization": "bench list quantizations",
    "backend.name": "bench list backends", "backend.gpu": "bench list gpus", "model": "bench list models",
    "traffic.trace.format": "bench list traces", "cluster.router": "bench list routers",
    "cluster.prefill.router": "bench list routers", "cluster.decode.router": "bench list routers",
    "cluster.autoscale.policy": "bench list autoscalers",
}  # fmt: skip
_TOP = {
    "name": "of the run, in reports",
    "seed": "of everything that is drawn: traffic, sampling, routing",
    "model": "a name, a Hugging Face folder, or a config.json",
    "sweep": "dotted keys with the values each takes: `[a, b]`, `{log: [from, to, n]}`, `{range: [from, to, step]}`, …",
}
_UNITS = {
    "parse_duration": "duration, such as `500ms`, `10s`, `5min`",
    "parse_milliseconds": "duration in ms, or with a unit",
    "parse_gibibytes": "size in GiB, or with a unit",
    "parse_bandwidth": "bandwidth, such as `40GB/s`, `400Gbit/s`",
}
_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "mapping", list: "list"}


class Key(typing.NamedTuple):
    """A key of the file: dotted name, what may stand there, its default, what it does."""

    name: str
    value: str
    default: str
    about: str


def entries() -> list[Key]:
    """Every key, section by section, in the file's order."""
    return list(_walk(Workload, ()))


def _walk(section: type[Section], path: tuple[str, ...]) -> Iterator[Key]:
    meanings = _meanings(section, ".".join(path))
    for name, info in section.model_fields.items():
        here = (*path, name)
        inner, dotted = section_of(info.annotation), ".".join(here)
        if inner is EngineSection and path:  # told once, where all engines have it
            yield Key(dotted, "what may stand in `engine`", "", meanings.get(name, ""))
            continue
        if inner is not None:
            yield from _walk(inner, here)
            continue
        bounds = [item for item in info.metadata if not callable(item)]
        value = (
            f"a name (`{_NAMES[dotted]}`)" if dotted in _NAMES else _value(info.annotation, [*bounds, *info.metadata])
        )
        default = "the file's name" if dotted == "name" else _default(info)
        yield Key(dotted, value, default, meanings.get(name, ""))


def section_of(annotation: Any) -> type[Section] | None:
    """The section that an annotation stands for, if it does."""
    for option in get_args(annotation) or (annotation,):
        if isinstance(option, type) and issubclass(option, Section):
            return option
    return None


def _meanings(section: type[Section], path: str) -> dict[str, str]:
    """What each key does: by the section's own docstring, or that of the value which the lower floor reads."""
    from backends.torch.sampling import SamplingParams
    from sim.config import EngineConfig, KVConfig, ParallelConfig, SchedulerConfig, SpeculationConfig

    behind = {
        "engine": EngineConfig, "engine.scheduler": SchedulerConfig, "engine.kv": KVConfig, "engine.parallel": ParallelConfig,
        "engine.speculation": SpeculationConfig, "sampling": SamplingParams,
    }  # fmt: skip
    found = dict(_TOP) if not path else {}
    if path == "engine.parallel":
        found = {
            "tensor": "GPUs that a layer is split over", "pipeline": "stages that the layers are split over",
            "expert": "GPUs that experts are spread over", "data": "groups of GPUs with attention of their own",
        }  # fmt: skip
    if path == "slo":
        limit = "a request meets the SLO if it is at or below this (and every other limit)"
        found = {"ttft_ms": f"time to first token: {limit}", "tpot_ms": f"time per output token: {limit}",
                 "e2e_ms": f"from sending to the last token: {limit}"}  # fmt: skip
    for source in (behind.get(path), section):
        if source is not None:
            found |= {name: text for name, text in attributes_of(source).items() if text}
    return found


def _default(info: Any) -> str:
    from pydantic_core import PydanticUndefined

    if info.default is PydanticUndefined:
        return "" if info.default_factory else "required"
    return "" if info.default is None else f"`{info.default}`"


def _value(annotation: Any, metadata: list[Any]) -> str:
    """What may stand at a key, in words."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        inner, *more = get_args(annotation)
        return _value(inner, [*more, *metadata])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_value(each, metadata) for each in get_args(annotation) if each is not type(None))
    if origin is typing.Literal:
        return ", ".join(f"`{each}`" for each in get_args(annotation))
    for item in _flat(metadata):
        unit = getattr(getattr(item, "func", None), "__name__", "")
        if unit in _UNITS:
            return _UNITS[unit]
    words = _PLAIN.get(origin or annotation, "see below")
    return f"{words} {_bounds(metadata)}".strip()


def _flat(metadata: list[Any]) -> Iterator[Any]:
    for item in metadata:
        yield item
        yield from getattr(item, "metadata", ())


def _bounds(metadata: list[Any]) -> str:
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    found: dict[str, None] = {}
    for item in _flat(metadata):
        for name, sign in signs:
            bound = getattr(item, name, None)
            if bound is not None and abs(bound) < 2**62:
                found[f"{sign} {bound:g}"] = None
    return ", ".join(found)


def page() -> Iterator[str]:
    """The page as lines of Markdown."""
    yield "# workload.yaml"
    yield ""
    yield (
        "Every key that a workload file may have. What you write wins over the preset, which wins over defaults; a key that "
        "could have no effect is an error. `bench init` writes a commented file, `bench explain FILE` shows what one comes to."
    )
    found = entries()
    sections = list(dict.fromkeys(key.name.rpartition(".")[0] for key in found))
    for section in sections:
        yield ""
        yield f"## {section or 'The top'}"
        yield ""
        rows = [
            (f"`{key.name.rpartition('.')[2]}`", key.value, key.default, key.about)
            for key in found
            if key.name.rpartition(".")[0] == section
        ]
        yield from table(("key", "value", "default", "meaning"), rows)
    yield from _synthetic()


def _synthetic() -> Iterator[str]:
    """The section that the generator reads itself."""
    from workloads.synthetic import arrivals, lengths, prefixes, sessions
    from workloads.synthetic.generate import SyntheticSpec

    yield ""
    yield "## traffic.synthetic in detail"
    yield ""
    rows = [
        (f"`traffic.synthetic.{name}`", about)
        for name, about in attributes_of(SyntheticSpec).items()
        if name != "pairs"
    ]
    rows.append(("`traffic.synthetic.lengths`", "both lengths together, from a trace: in place of the two laws"))
    yield from table(("key", "meaning"), rows)
    yield ""
    yield "Arrival processes: " + ", ".join(f"`{name}`" for name in arrivals.PROCESSES) + "."
    for title, module in (("Lengths", lengths), ("Shared prefixes", prefixes), ("Sessions", sessions)):
        yield ""
        yield f"### {title}"
        yield from prose(module.__doc__ or "")


def prose(text: str) -> Iterator[str]:
    """A module's docstring as Markdown: indented blocks are YAML."""
    for block in text.strip().split("\n\n"):
        yield ""
        if block.startswith("    "):
            yield "```yaml"
            yield from (line[4:] for line in block.splitlines())
            yield "```"
        else:
            yield " ".join(cell(line) for line in block.splitlines())
