"""Measured figures that no such hardware can give: told, not fitted.

Bounds are of the data sheet at its peak, so that a figure beyond one is wrong as labelled whatever the engine: decoding
reads the weights once a step; tokens a second times the operations of a token cannot exceed the tensor cores' rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from experiments.validation.cells import Cell
from experiments.validation.load import CLOSED, STATIC, parse_load
from sim.quantization.weights import weight_mode_for

_MARGIN = 1.02  # of rounding in tables


def mark_implausible(cells: Iterable[Cell]) -> None:
    """Fill `implausible` of cells whose measured value lies beyond a bound."""
    loops: dict[tuple, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        if cell.deployment is None:
            continue
        cell.implausible = _alone(cell)
        load = parse_load(cell.row)
        if load is not None and load.kind == CLOSED and cell.metric.statistic == "mean":
            row = cell.row
            key = (cell.group, row.table_id, row.isl, row.osl, row.load, row.notes, row.source_date)
            loops[key][cell.metric.quantity] = cell
    for pair in loops.values():
        _closed_loop(pair)


def _rates(cell: Cell) -> tuple[float, float, float]:
    """Bytes of weights a step must read on one GPU, its bandwidth, and the GPUs' operations a second in all."""
    d = cell.deployment
    mode = weight_mode_for(d.mapped.weights or "auto", d.model)
    layout, model = d.layout, d.model
    weights = model.weight_bytes(mode, layout.tensor, layout.pipeline, layout.expert)
    if cell.row.weight_dtype.lower() in ("fp32", "float32"):  # no mode of ours, but its bytes are plain
        weights *= 2
    if model.experts:  # a single sequence touches only the experts it is sent to
        weights *= model.params_active / model.params_total
    weights -= model.embedding_params * 2 / layout.tensor
    compute = mode.compute if d.gpu.flops(mode.compute) else "bf16"
    return weights * layout.pipeline, d.gpu.bandwidth, d.gpu.flops(compute) * layout.gpus


def _alone(cell: Cell) -> str:
    """A reason to doubt a figure taken by itself; "" where there is none."""
    metric, row = cell.metric, cell.row
    load = parse_load(row)
    weights, bandwidth, flops = _rates(cell)
    if metric.quantity in ("tpot_ms", "itl_ms"):
        least = weights / bandwidth * 1e3
        return _less(f"{row.value:.3g} ms a token", row.value, least, "reading the weights once takes") if load else ""
    if metric.quantity == "e2e_latency_ms":  # an answer that stopped early, where its nominal length is stated
        if load is None or load.outputs is None or load.outputs.law != "fixed":
            return ""
        least = load.outputs.mean * weights / bandwidth * 1e3
        return _less(f"{row.value:,.0f} ms", row.value, least, "reading the weights once for every token takes")
    if metric.quantity not in ("output_tokens_per_s", "total_tokens_per_s"):
        return ""
    if not metric.per_gpu and not row.n_gpu:
        return ""  # of how many GPUs it is the throughput is not told
    value = row.value * (cell.deployment.layout.gpus if metric.per_gpu else 1)
    most = flops / (2 * (cell.deployment.model.params_active - cell.deployment.model.embedding_params))
    if value > most * _MARGIN:
        return f"{value:,.0f} tokens/s, but the tensor cores' peak allows {most:,.0f}"
    if load is not None and load.kind == STATIC and load.number and load.inputs and load.outputs:
        output = value
        if metric.quantity == "total_tokens_per_s":
            output = value * load.outputs.mean / (load.inputs.mean + load.outputs.mean)
        most = load.number * bandwidth / weights
        if output > most * _MARGIN:
            return f"{output:,.0f} tokens/s, but reading the weights once a step allows {most:,.0f}"
    return ""


def _less(what: str, value: float, least: float, why: str) -> str:
    return f"{what}, but {why} {least:,.4g}" if value * _MARGIN < least else ""


def _closed_loop(pair: dict[str, Cell]) -> None:
    """TTFT and TPOT of a closed loop tell its throughput; that may be more than the GPUs can multiply."""
    if "ttft_ms" not in pair or "tpot_ms" not in pair:
        return
    first, per_token = pair["ttft_ms"], pair["tpot_ms"]
    load = parse_load(first.row)
    if load is None or load.inputs is None or load.outputs is None or not load.number:
        return
    low = 0.9 if first.deployment.mapped.lengths else 1.0
    inputs, outputs = load.inputs.mean * low, load.outputs.mean * low
    seconds = (first.row.value + per_token.row.value * (outputs - 1)) * 1e-3
    tokens = load.number * (inputs + outputs) / seconds
    d = first.deployment
    _, _, flops = _rates(first)
    most = flops / (2 * (d.model.params_active - d.model.embedding_params))
    if tokens > most * _MARGIN:
        why = f"{load.number} in flight at these times are {tokens:,.0f} tokens/s; the tensor cores' peak allows {most:,.0f}"
        for cell in pair.values():
            cell.implausible = cell.implausible or why
