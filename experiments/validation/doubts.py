"""Warnings on cells: where a prediction should not be leaned on, told from what is simulated, never from its error.

The limits of the rules on TTFT were chosen on the public part of the aiconfigurator sample (dense models on H100 and H200),
where they warn of 13 % of the cells and of 14 of the 15 that are off by more than a factor of 3.
"""

from __future__ import annotations

from collections.abc import Iterable

from experiments.front_end_limits import STREAMED
from experiments.validation.cells import Cell
from experiments.validation.load import CLOSED, NONE, OPEN, STATIC
from sim.quantization.kv import kv_mode_for

QUEUE_MS, QUEUE_SHARE, ALL_ALONG = 200.0, 0.7, 0.85
"""A predicted TTFT is mostly waiting where the queue takes so long, and so much of it; and does so all along, rather than when
the load starts, where the median is at least such a part of the mean."""

FULL = 0.9
"""KV tokens of the pool over those in flight: below it, requests queue for memory, of which a little less means many more."""

AMPLE, LONG_QUEUE_MS, LONG_QUEUE_SHARE = 2.5, 400.0, 0.6
"""The same where an engine admits without reserving: what runs when a load starts, and waits, then hangs on memory too."""

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
            if cell.metric.quantity in ("ttft_ms", "e2e_latency_ms"):
                cell.warnings += _cold(cell)
            if cell.metric.quantity == "ttft_ms" and cell.point.kind in (CLOSED, OPEN):
                cell.warnings += _first_token(cell)


def _gpu(cell: Cell) -> list[str]:
    gpu = cell.deployment.gpu
    if gpu.vendor == "nvidia":
        return []
    return [
        f"no kernels were measured on {gpu.name}: H100's, scaled by what was reported of AMD cards; older engines by served runs"
    ]


def _cold(cell: Cell) -> list[str]:
    """Whether kernels of experts, which engines compile when they are first called, may have held up the first requests."""
    if not cell.deployment.mapped.cold or not cell.deployment.model.experts:
        return []
    return ["no warm-up went before: the first requests may have waited for kernels to be compiled"]


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
    if cell.deployment.mapped.prompts:
        found.append("the same prompts come again and again: what of them is cached by then decides the first token")
    queue = result.facts.get("queue_ms", 0.0)
    mean = result.figures["ttft_ms_mean"]
    if queue > QUEUE_MS and queue > QUEUE_SHARE * mean and result.figures["ttft_ms_p50"] > ALL_ALONG * mean:
        found.append(
            "TTFT is mostly waiting in the queue, all along: it hangs on which requests happen to run together"
        )
    if cell.point.front_end and result.figures["output_tokens_per_s"] / cell.deployment.layout.replicas > STREAMED:
        found.append(
            "so many tokens a second may be more than one HTTP front end streams: how many it can is partly an estimate"
        )
    loop = cell.point.workload["load"]
    flight = loop.get("concurrency", 0) * sum(each.mean for each in _lengths(cell))
    if flight and result.facts["kv_tokens"] < FULL * flight:
        found.append(
            "KV memory does not hold all that is in flight: how many requests wait for it hangs on a little more or less"
        )
    elif (
        _admits_freely(cell)
        and flight
        and result.facts["kv_tokens"] < AMPLE * flight
        and queue > LONG_QUEUE_MS
        and queue > LONG_QUEUE_SHARE * mean
    ):
        found.append(
            "requests wait, and the engine admits them without reserving KV memory, of which there is not plenty"
        )
    return found


def _admits_freely(cell: Cell) -> bool:
    gate = cell.result.config.get("engine.scheduler.gate", "")
    return gate not in ("reserve-output", "max-length")


def _lengths(cell: Cell) -> tuple:
    from experiments.validation.load import parse_load

    load = parse_load(cell.row)
    return tuple(each for each in (load.inputs, load.outputs) if each is not None)
