"""Warnings on cells: where a prediction should not be leaned on, told from what is simulated, never from its error.

The limits of the rules on TTFT were chosen on the public part of the aiconfigurator sample (dense models on H100 and H200),
where they warn of 16 % of the cells and of three quarters of those off by more than a factor of 3.
"""

from __future__ import annotations

from collections.abc import Iterable

from experiments.validation.cells import Cell
from experiments.validation.load import CLOSED, NONE, OPEN, STATIC
from sim.quantization.kv import kv_mode_for

QUEUE_MS, QUEUE_SHARE = 500.0, 0.6
"""A predicted TTFT is mostly waiting where the queue takes so long, and so much of it."""

STREAMED = 6000.0
"""Output tokens a second through one HTTP front end from which on its capacity, partly an estimate, may decide."""

FULL = 1.5
"""KV tokens of the pool over those in flight: below it, a little less memory than predicted makes requests queue."""

LITTLE = 0.15
"""Share of a GPU's memory that is left for KV: below it, a few GB of an engine's own buffers decide how much runs at once."""


def doubt(cells: Iterable[Cell]) -> None:
    """Add to the warnings of cells."""
    for cell in cells:
        if cell.implausible:
            cell.warnings.append(f"the measurement is not plausible: {cell.implausible}")
        if cell.predicted is not None and cell.deployment is not None:
            cell.warnings += _gpu(cell)
            if cell.metric.quantity not in ("tpot_ms", "itl_ms"):
                cell.warnings += _memory(cell)
            if cell.metric.quantity == "ttft_ms" and cell.point.kind in (CLOSED, OPEN):
                cell.warnings += _first_token(cell)


def _gpu(cell: Cell) -> list[str]:
    gpu = cell.deployment.gpu
    if gpu.vendor == "nvidia":
        return []
    return [
        f"no kernels were measured on {gpu.name}: H100's, scaled by what was reported of AMD cards; older engines by served runs"
    ]


def _memory(cell: Cell) -> list[str]:
    """Whether so little memory is left for KV that its size is mostly guesswork."""
    d = cell.deployment
    mode = kv_mode_for(d.mapped.kv or "auto", d.model.dtype)
    per_token = d.model.kv_bytes_per_token(mode, d.layout.tensor, d.layout.pipeline)
    share = cell.result.facts.get("kv_tokens", 0.0) * per_token / d.gpu.memory_bytes
    if not 0 < share < LITTLE or cell.point.kind in (NONE, STATIC):
        return []
    return [
        f"KV has {share:.0%} of the GPU's memory: what the engine keeps for itself, here estimated, decides the batch"
    ]


def _first_token(cell: Cell) -> list[str]:
    """Reasons why a TTFT may be far off."""
    result, found = cell.result, []
    queue = result.facts.get("queue_ms", 0.0)
    if queue > QUEUE_MS and queue > QUEUE_SHARE * result.figures["ttft_ms_mean"]:
        found.append(
            "TTFT is mostly waiting in the queue: it hangs on how the load was ramped up and how much KV memory there is"
        )
    if cell.point.front_end and result.figures["output_tokens_per_s"] / cell.deployment.layout.replicas > STREAMED:
        found.append(
            "so many tokens a second may be more than one HTTP front end streams: how many it can is partly an estimate"
        )
    loop = cell.point.workload["load"]
    flight = loop.get("concurrency", 0) * sum(each.mean for each in _lengths(cell))
    if flight and result.facts["kv_tokens"] < FULL * flight:
        found.append("KV memory is nearly or wholly used up: a little less of it than predicted makes requests wait")
    return found


def _lengths(cell: Cell) -> tuple:
    from experiments.validation.load import parse_load

    load = parse_load(cell.row)
    return tuple(each for each in (load.inputs, load.outputs) if each is not None)
