"""Pages of the names that a workload may use: models, GPUs, quantization modes, schedulers …"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.handbook.markdown import table

_ABOUT = {
    "models": "Models whose shapes are known. Any Hugging Face folder or config.json of a supported architecture works too.",
    "gpus": "Devices. A file that describes another one works too (`bench profile` writes it).",
    "quantizations": "Modes of weights and of the KV cache.",
    "schedulers": "Schedulers; `module:Class` of your own works too.",
    "gates": "Rules of admission.",
    "policies": "Orders of the waiting queue.",
    "victims": "Who gives memory back when it runs out.",
    "allocators": "KV allocators.",
    "presets": "Engines; what each sets, with sources, is in [Presets](../presets.md).",
    "traces": "Trace formats and bundled traces.",
    "backends": "Who runs the steps.",
    "routers": "Who gets which request, with several replicas; `module:Class` of your own works too.",
    "autoscalers": "How many replicas there are, where they come and go; `module:Class` of your own works too.",
}


def page() -> Iterator[str]:
    """The page as lines of Markdown."""
    from experiments.cli.lists import LISTS

    yield "# Names"
    yield ""
    yield "What may be named in a workload file; `bench list KIND` prints the same."
    for kind, rows_of in LISTS.items():
        rows = rows_of()
        yield ""
        yield f"## {kind}"
        yield ""
        yield _ABOUT.get(kind, "")
        yield ""
        if rows:
            yield from table(tuple(rows[0]), [tuple(_shown(value) for value in row.values()) for row in rows])


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
