"""`bench list`: the names that a workload file may use."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from experiments.cli import options
from workloads.errors import unknown_name

Row = dict[str, Any]
GIB = 1 << 30
MIB = 1 << 20


KINDS = (
    "schedulers", "allocators", "gates", "policies", "victims", "quantizations", "models", "gpus", "links", "presets",
    "traces", "backends", "routers", "autoscalers",
)  # fmt: skip


def list_names(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False, help=", ".join(KINDS))],
    json: options.Json = False,
) -> None:
    """The names that a workload file may use.

    Schedulers, allocators, routers, quantizations and trace formats of installed packages are listed too; your own are named as
    module:Class wherever a name is expected.

    \b
    Examples:
      bench list presets
      bench list gpus --json | jq -r '.[].name'
    """
    found = LISTS.get(kind.lower()) or LISTS.get(f"{kind.lower()}s")
    if found is None:
        raise unknown_name("kind", kind, LISTS)
    rows = found()
    if json:
        from experiments.cli.run import print_json

        print_json(rows)
        return
    from rich.table import Table
    from rich.text import Text

    from experiments.cli.console import stdout
    from reports.wording import clean

    table = Table(pad_edge=False, box=None)
    for column in rows[0] if rows else ():
        numbers = all(isinstance(row[column], int | float) for row in rows)
        whole = column == "name"  # it is there to be copied
        table.add_column(column, justify="right" if numbers else "left", overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*(Text(clean(f"{v:,g}" if isinstance(v, float) else str(v))) for v in row.values()))
    stdout().print(table)


def _plugged(group: str) -> list[Row]:
    from workloads.registry import installed_names

    return [
        {"name": name, "about": f"installed: {point.value}"} for name, point in sorted(installed_names(group).items())
    ]


def _classes(known: dict[str, Any], group: str) -> list[Row]:
    """Objects of a registry with the first line of their docstrings."""
    rows = [{"name": name, "about": _first_line(known[name])} for name in known]
    return [*rows, *(_plugged(group) if group else [])]


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0] if not isinstance(thing, str) else thing


def _schedulers() -> list[Row]:
    from sim.schedulers import SCHEDULERS

    return _classes(SCHEDULERS, "twinserve.schedulers")


def _allocators() -> list[Row]:
    from sim.kv import ALLOCATORS

    words = {
        "contiguous": "one slab a sequence, reserved at admission, as before PagedAttention",
        "paged": "blocks of tokens, shared where their prefixes hash alike (vLLM, TensorRT-LLM)",
        "radix": "single tokens, in a radix tree of every cached prefix (SGLang, LightLLM)",
    }
    return _classes({name: words.get(name, kind) for name, kind in ALLOCATORS.items()}, "twinserve.allocators")


def _gates() -> list[Row]:
    from sim.schedulers import GATES

    return _classes(GATES, "")


def _policies() -> list[Row]:
    from sim.schedulers import POLICIES

    return _classes(POLICIES, "")


def _victims() -> list[Row]:
    from sim.schedulers import VICTIMS

    return _classes(VICTIMS, "")


def _quantizations() -> list[Row]:
    from sim.quantization import list_kv_modes, list_weight_modes

    weights = [{"name": m.name, "of": "weights", "bits": m.bits, "about": m.about} for m in list_weight_modes()]
    cache = [{"name": m.name, "of": "KV cache", "bits": m.bits, "about": m.about} for m in list_kv_modes()]
    plugged = [
        {"name": r["name"], "of": "plug-in", "bits": "", "about": r["about"]}
        for r in _plugged("twinserve.quantizations")
    ]
    return [*weights, *cache, *plugged]


def _models() -> list[Row]:
    from sim.models import list_models

    return [
        {
            "name": m.name,
            "Hugging Face id": m.hf_id,
            "parameters 1e9": round(m.params_total / 1e9, 2),
            "attention": m.attention,
            "context": m.max_position,
            "KV bytes a token": m.kv_bytes_per_token(),
            "state MiB a sequence": round(m.state.layers * m.state.layer_bytes(1, "", m.dtype) / MIB, 1)
            if m.state
            else "",
        }
        for m in list_models()
    ]


def _links() -> list[Row]:
    from sim.hardware.links import NETWORKS, list_links

    return [
        {"name": link.name, "joins": "nodes" if link.name in NETWORKS else "GPUs", "GB/s each way": link.bandwidth / 1e9,
         "latency us": link.latency * 1e6, "about": link.about}
        for link in list_links()
    ]  # fmt: skip


def _gpus() -> list[Row]:
    from sim.hardware import list_gpus

    return [
        {
            "name": g.name,
            "aliases": " ".join(g.aliases),
            "memory GiB": round(g.memory_bytes / GIB, 1),
            "bandwidth GB/s": round(g.bandwidth / 1e9),
            "16-bit TFLOP/s": round(g.bf16 / 1e12, 1),
            "FP8 TFLOP/s": round(g.fp8 / 1e12, 1),
            "link": g.link or "PCIe",
        }
        for g in list_gpus()
    ]


def _presets() -> list[Row]:
    from sim.presets import NEWEST, PRESETS, SINCE

    newest = [
        {
            "name": name,
            "about": f"the newest: {full}" + ("; any version may be named: " + name + "@X.Y" if name in SINCE else ""),
        }
        for name, full in NEWEST.items()
    ]
    return [*newest, *({"name": name, "about": preset.summary} for name, preset in PRESETS.items())]


def _traces() -> list[Row]:
    from experiments.trace_path import bundled_traces
    from workloads.readers import FORMATS, GROUP, READS, options_of

    formats = [
        {
            "name": name,
            "is": "format",
            "about": _first_line(reader),
            "reads": READS[name],
            "options": " ".join(o for o in options_of(reader) if o not in ("seed", "start", "duration")),
        }
        for name, reader in FORMATS.items()
    ]
    plugged = [
        {"name": row["name"], "is": "format", "about": row["about"], "reads": "", "options": ""}
        for row in _plugged(GROUP)
    ]
    bundled = [
        {"name": p.name, "is": "bundled trace", "about": f"{p.stat().st_size:,} bytes", "reads": "", "options": ""}
        for p in bundled_traces()
    ]
    return [*formats, *plugged, *bundled]


def _backends() -> list[Row]:
    from experiments.registries import BACKENDS, NEEDS

    return [{"name": name, "about": about, "needs": NEEDS[name]} for name, about in BACKENDS.items()]


def _routers() -> list[Row]:
    from sim.cluster import GROUP, ROUTERS

    return _classes(ROUTERS, GROUP)


def _autoscalers() -> list[Row]:
    from sim.cluster import AUTOSCALERS, SCALERS

    return _classes(AUTOSCALERS, SCALERS)


LISTS: dict[str, Callable[[], list[Row]]] = {
    "schedulers": _schedulers,
    "allocators": _allocators,
    "gates": _gates,
    "policies": _policies,
    "victims": _victims,
    "quantizations": _quantizations,
    "models": _models,
    "gpus": _gpus,
    "links": _links,
    "presets": _presets,
    "traces": _traces,
    "backends": _backends,
    "routers": _routers,
    "autoscalers": _autoscalers,
}
