"""The reference of the Python API: the names of `twinserve`, with their signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

WIDTH = 96


def page() -> Iterator[str]:
    """The page as lines of Markdown. Names of the real engine are left to its own import where torch is missing."""
    twinserve = import_module("twinserve")  # by name: it stands above every floor, and is only read here

    yield "# Python API"
    yield ""
    yield "What users import: `from twinserve import run, Scheduler`. Everything else may change without notice."
    for name in twinserve.__all__:
        yield ""
        yield f"## {name}"
        yield ""
        yield from _entry(name, getattr(twinserve, name))


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield "```python"
    yield _signature(name, thing)
    yield "```"
    yield ""
    yield from _doc(thing)
    if not inspect.isclass(thing):
        return
    for method, function in vars(thing).items():
        if method.startswith("_") or not (inspect.isfunction(function) or isinstance(function, property)):
            continue
        target = function.fget if isinstance(function, property) else function
        if not inspect.getdoc(target):
            continue
        yield ""
        yield f"### {name}.{method}"
        yield ""
        if not isinstance(function, property):
            yield "```python"
            yield _signature(f"{name}.{method}", function)
            yield "```"
        yield ""
        yield from _doc(target)


def _signature(name: str, thing: Any) -> str:
    """A signature as it is written: annotations without the quotes that they are kept in."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parts, star = [], False
    for each in signature.parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        star = star or each.kind is each.VAR_POSITIONAL
        mark = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        text = mark + each.name + ("" if each.annotation is each.empty else f": {_annotation(each.annotation)}")
        parts.append(text if each.default is each.empty else f"{text} = {each.default!r}")
    back = signature.return_annotation
    shown = "" if back in (signature.empty, None, "None") else f" -> {_annotation(back)}"
    line = f"{name}({', '.join(parts)}){shown}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){shown}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _doc(thing: Any) -> Iterator[str]:
    """A docstring as Markdown: its sections (`Args:` …) become lists."""
    inside = False
    for line in (inspect.getdoc(thing) or "").splitlines():
        text = line.strip().replace("<", "&lt;").replace(">", "&gt;").replace("**", r"\*\*")
        if line and not line.startswith(" ") and text.endswith(":") and " " not in text:
            inside = True
            yield ""
            yield f"*{text[:-1]}*"
            yield ""
        elif inside and line.startswith("    ") and not line.startswith("     "):
            yield f"* {text}"
        elif inside and line.startswith("     "):
            yield f"  {text}"
        else:
            inside = inside and bool(line.startswith(" "))
            yield text
