"""Choosing tokens without sorting: the filters' edge is found by bisection over the bits of float32, then a token is drawn.

Logits less their row's maximum are never above 0, and the bits of a non-negative float order as it does. So the k-th largest of
a row, or the value down to which a share of the probability reaches, takes at most 31 counts over the row, which stays in cache.
The noise is that of `backends.ops.noise`, so that equal logits give equal tokens in plain torch and here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backends.ops.base import SamplingBatch
from backends.triton.launch import Launcher, rows_last

_BLOCK = 4096
_MOST_PARTS = 64


@triton.jit
def penalty_kernel(logits_ptr, out_ptr, penalty_ptr, rows_ptr, ids_ptr, pairs, stride, width, BLOCK: tl.constexpr):
    """Make what was seen less likely, in a copy; reading from the original, a pair that comes twice counts once."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < pairs
    row = tl.load(rows_ptr + place, mask=mask, other=0).to(tl.int64)
    token = tl.load(ids_ptr + place, mask=mask, other=0).to(tl.int64)
    factor = tl.load(penalty_ptr + row, mask=mask, other=1.0)
    before = tl.load(logits_ptr + row * stride + token, mask=mask, other=0.0).to(tl.float32)
    after = tl.where(before > 0, tl.div_rn(before, factor), before * factor)
    tl.store(out_ptr + row * width + token, after, mask=mask)


@triton.jit
def best_kernel(logits_ptr, values_ptr, ids_ptr, stride, width, share, BLOCK: tl.constexpr):
    """The largest value of a part of a row, and its lowest id."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best, chosen = -float("inf"), part * share
    for start in range(part * share, tl.minimum(width, (part + 1) * share), BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * stride + token, mask=token < width, other=-float("inf")).to(tl.float32)
        value = tl.max(x, axis=0)
        first = tl.min(tl.where(x == value, token, 2147483647), axis=0)
        chosen = tl.where(value > best, first, chosen)
        best = tl.maximum(best, value)
    place = row * tl.num_programs(1) + part
    tl.store(values_ptr + place, best)
    tl.store(ids_ptr + place, chosen)


@triton.jit
def scale_kernel(
    logits_ptr, values_ptr, temperature_ptr, out_ptr, stride, width, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Logits divided by the temperature, less their maximum; as they are, less the maximum, for greedy rows."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    temperature = tl.load(temperature_ptr + row)
    temperature = tl.where(temperature > 0, temperature, 1.0)
    top = tl.div_rn(tl.max(tl.load(values_ptr + row * PARTS + tl.arange(0, PARTS)), axis=0), temperature)
    x = tl.load(logits_ptr + row * stride + token, mask=token < width, other=0.0).to(tl.float32)
    x = tl.div_rn(x, tl.zeros([BLOCK], tl.float32) + temperature) - top
    tl.store(out_ptr + row * width + token, x, mask=token < width)


@triton.jit
def count_to(x_ptr, width, limit, BLOCK: tl.constexpr):
    """How many values x of a row have a size of at most `limit`; a size is the bits of −x, larger for smaller x ≤ 0."""
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, width, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + token, mask=token < width, other=-float("inf"))
        size = x.to(tl.int32, bitcast=True) & 2147483647
        count += ((size <= limit) & (token < width)).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def mass_below(x_ptr, width, limit, BLOCK: tl.constexpr):
    """Sum of exp(x) over the values of a row whose size is below `limit`."""
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + token, mask=token < width, other=-float("inf"))
        mass += tl.where((x.to(tl.int32, bitcast=True) & 2147483647) < limit, tl.exp(x), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def filter_kernel(
    x_ptr, top_k_ptr, top_p_ptr, cutoff_ptr, edge_ptr, last_ptr, width, BLOCK: tl.constexpr
):  # fmt: skip
    """What of a row the filters leave: values above `edge`, and those equal to it up to token id `last`.

    Args:
        x_ptr: [R, width], ≤ 0 with a maximum of 0. cutoff_ptr: [R], logarithm of min-p.
    """
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * width
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    cutoff = tl.load(cutoff_ptr + row)
    most = cutoff.to(tl.int32, bitcast=True) & 2147483647
    edge = tl.full((), 0, tl.int32)  # the largest size that is left
    for start in range(0, width, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + token, mask=token < width, other=0.0)
        size = x.to(tl.int32, bitcast=True) & 2147483647
        edge = tl.maximum(edge, tl.max(tl.where(size <= most, size, 0), axis=0))
    ties = tl.full((), 2147483647, tl.int32)  # how many of those at the edge are left
    if (top_k > 0) & (top_k < width):
        wanted = top_k.to(tl.int32)
        if count_to(x_ptr, width, edge, BLOCK) > wanted:
            low = tl.full((), 0, tl.int32)
            while low < edge:
                middle = low + (edge - low) // 2
                if count_to(x_ptr, width, middle, BLOCK) >= wanted:
                    edge = middle
                else:
                    low = middle + 1
            ties = wanted - count_to(x_ptr, width, edge - 1, BLOCK)
    if top_p < 1:
        at_edge = count_to(x_ptr, width, edge, BLOCK) - count_to(x_ptr, width, edge - 1, BLOCK)
        ties = tl.minimum(ties, at_edge)
        total = mass_below(x_ptr, width, edge, BLOCK) + ties.to(tl.float32) * tl.exp(-edge.to(tl.float32, bitcast=True))
        wanted_mass = top_p * total
        before, low = edge, tl.full((), 0, tl.int32)
        while low < edge:
            middle = low + (edge - low + 1) // 2
            if mass_below(x_ptr, width, middle, BLOCK) < wanted_mass:
                low = middle
            else:
                edge = middle - 1
        rest = wanted_mass - mass_below(x_ptr, width, edge, BLOCK)
        needed = tl.maximum(tl.ceil(rest / tl.exp(-edge.to(tl.float32, bitcast=True))), 1.0)
        needed = tl.minimum(needed, 2147483520.0).to(tl.int32)
        ties = tl.where(edge == before, tl.minimum(ties, needed), needed)
    last = tl.full((), 2147483647, tl.int32)
    passed = tl.full((), 0, tl.int32)
    if ties < 2147483647:
        for start in range(0, width, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + token, mask=token < width, other=-float("inf"))
            equal = (((x.to(tl.int32, bitcast=True) & 2147483647) == edge) & (token < width)).to(tl.int32)
            number = passed + tl.cumsum(equal, axis=0)
            final = tl.where((equal > 0) & (number == ties), token, 2147483647)
            last = tl.minimum(last, tl.min(final, axis=0))
            passed += tl.sum(equal, axis=0)
    tl.store(edge_ptr + row, -edge.to(tl.float32, bitcast=True))
    tl.store(last_ptr + row, last)


@triton.jit
def score(x_ptr, token, word, width, temperature, top, edge, last, FILTERED: tl.constexpr):
    """Scores of tokens, −∞ where they are left out: x plus Gumbel noise from 32 random bits each."""
    x = tl.load(x_ptr + token, mask=token < width, other=-float("inf")).to(tl.float32)
    if FILTERED:
        x = tl.where((x > edge) | ((x == edge) & (token <= last)), x, -float("inf"))
    else:
        x = tl.div_rn(x, tl.zeros_like(x) + temperature) - top
    uniform = ((word >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return x - tl.log(-tl.log(uniform))


@triton.jit
def draw_kernel(
    x_ptr, values_ptr, temperature_ptr, edge_ptr, last_ptr, seed_ptr, request_ptr, sample_ptr, position_ptr,
    scores_ptr, ids_ptr, stride, width, share, PARTS: tl.constexpr, QUARTER: tl.constexpr, FILTERED: tl.constexpr,
):  # fmt: skip
    """The highest score of a part of a row, and its token id. Four tokens share a block of random numbers."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    temperature = tl.where(temperature > 0, temperature, 1.0)
    top, edge, last = 0.0, 0.0, 0
    if FILTERED:
        edge, last = tl.load(edge_ptr + row), tl.load(last_ptr + row)
    else:
        top = tl.div_rn(tl.max(tl.load(values_ptr + row * PARTS + tl.arange(0, PARTS)), axis=0), temperature)
    seed = tl.load(seed_ptr + row)
    position = tl.load(position_ptr + row).to(tl.uint32)
    request, sample = tl.load(request_ptr + row).to(tl.uint32), tl.load(sample_ptr + row).to(tl.uint32)
    best, chosen = -float("inf"), part * share
    row_ptr = x_ptr + row * stride
    for start in range(part * share, tl.minimum(width, (part + 1) * share), 4 * QUARTER):
        block = start // 4 + tl.arange(0, QUARTER)
        words = tl.philox(seed, block.to(tl.uint32), position, request, sample)
        for lane in tl.static_range(4):
            token = 4 * block + lane
            scores = score(row_ptr, token, words[lane], width, temperature, top, edge, last, FILTERED)
            value = tl.max(scores, axis=0)
            first = tl.min(tl.where(scores == value, token, 2147483647), axis=0)
            chosen = tl.where(value > best, first, chosen)
            best = tl.maximum(best, value)
    tl.store(scores_ptr + row * PARTS + part, best)
    tl.store(ids_ptr + row * PARTS + part, chosen)


@triton.jit
def pick_kernel(
    values_ptr, ids_ptr, scores_ptr, drawn_ptr, temperature_ptr, out_ptr, PARTS: tl.constexpr, DRAWN: tl.constexpr
):
    """The winner of a row's parts: by value for greedy rows, else by score."""
    row = tl.program_id(0).to(tl.int64)
    place = row * PARTS + tl.arange(0, PARTS)
    value = tl.load(values_ptr + place)
    token = tl.load(ids_ptr + place)
    chosen = tl.min(tl.where(value == tl.max(value, axis=0), token, 2147483647), axis=0)
    if DRAWN:
        scores = tl.load(scores_ptr + place)
        drawn = tl.load(drawn_ptr + place)
        winner = tl.min(tl.where(scores == tl.max(scores, axis=0), drawn, 2147483647), axis=0)
        chosen = tl.where(tl.load(temperature_ptr + row) > 0, winner, chosen)
    tl.store(out_ptr + row, chosen.to(tl.int64))


def sample(launch: Launcher, logits: Tensor, how: SamplingBatch) -> Tensor:
    """See `backends.ops.base.Operators.sample`; the same tokens as `backends.ops.choose.choose`."""
    logits = rows_last(logits)
    if how.penalty is not None:
        logits = _penalised(launch, logits, how)
    rows, width = logits.shape
    parts = _parts(launch.target.processors, rows, width)
    share = triton.cdiv(triton.cdiv(width, parts), _BLOCK) * _BLOCK
    values, scores = torch.empty(2, rows, parts, dtype=torch.float32, device=logits.device)
    best, drawn = torch.empty(2, rows, parts, dtype=torch.int32, device=logits.device)
    block = min(_BLOCK, triton.next_power_of_2(width))
    launch(
        best_kernel, (rows, parts), (logits, values, best, logits.stride(0), width, share), {"BLOCK": block}, warps=8
    )
    if not how.greedy:
        edge, last = values, best  # not read where nothing is filtered
        if how.filtered:
            logits, edge, last = _filtered(launch, logits, values, how, block)
        launch(
            draw_kernel,
            (rows, parts),
            (
                logits, values, how.temperature, edge, last, how.seed, how.request, how.sample, how.position,
                scores, drawn, logits.stride(0), width, share,
            ),
            {"PARTS": parts, "QUARTER": max(1, block // 4), "FILTERED": how.filtered},
            warps=8,
        )  # fmt: skip
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    constants = {"PARTS": parts, "DRAWN": not how.greedy}
    launch(pick_kernel, (rows,), (values, best, scores, drawn, how.temperature, out), constants, warps=1)
    return out


def _penalised(launch: Launcher, logits: Tensor, how: SamplingBatch) -> Tensor:
    out = logits.to(torch.float32, copy=True).contiguous()
    pairs = len(how.seen_ids)
    args = (logits, out, how.penalty, how.seen_rows, how.seen_ids, pairs, logits.stride(0), logits.shape[1])
    launch(penalty_kernel, (triton.cdiv(pairs, 1024),), args, {"BLOCK": 1024})
    return out


def _filtered(
    launch: Launcher, logits: Tensor, values: Tensor, how: SamplingBatch, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled logits [R, vocabulary], and each row's edge [R] and last id [R] at the edge."""
    rows, width = logits.shape
    scaled = torch.empty(rows, width, dtype=torch.float32, device=logits.device)
    grid = rows, triton.cdiv(width, block)
    args = logits, values, how.temperature, scaled, logits.stride(0), width
    launch(scale_kernel, grid, args, {"PARTS": values.shape[1], "BLOCK": block}, warps=8)
    edge = torch.empty(rows, dtype=torch.float32, device=logits.device)
    last = torch.empty(rows, dtype=torch.int32, device=logits.device)
    cutoff = torch.log(how.min_p)
    launch(
        filter_kernel, (rows,), (scaled, how.top_k, how.top_p, cutoff, edge, last, width), {"BLOCK": block}, warps=16
    )
    return scaled, edge, last


def _parts(processors: int, rows: int, width: int) -> int:
    """Parts of each row, a power of two: work for all processors, but a block or more each."""
    wanted = triton.next_power_of_2(max(1, 2 * processors // max(1, rows)))
    useful = max(1, width // _BLOCK)
    return min(wanted, 1 << (useful.bit_length() - 1), _MOST_PARTS)
