"""Choosing tokens in plain torch: repetition penalty, temperature, min-p, top-k, top-p, and a draw without a synchronisation.

A token is drawn as `argmax(p / e)`, in logarithms, with standard exponential noise `e`, which picks token v with probability
p_v. The order of the filters is vLLM's (`vllm/v1/sample/sampler.py`); for top-k before top-p, Hugging Face agrees.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backends.ops.base import SamplingBatch
from backends.ops.noise import exponential


def choose(logits: Tensor, how: SamplingBatch) -> Tensor:
    """See `backends.ops.base.Operators.sample`. Of equal logits a greedy row takes the lowest id."""
    if how.penalty is not None:
        logits = penalised(logits, how.penalty, how.seen_rows, how.seen_ids)
    best = logits.argmax(dim=-1)
    if how.greedy:
        return best
    drawn = torch.where(how.temperature > 0, how.temperature, 1.0)
    scaled = logits.float() / drawn[:, None]
    scaled = scaled - scaled.amax(dim=-1, keepdim=True)  # small numbers keep their digits beside the noise
    if how.filtered:
        scaled = filtered(scaled, how.top_k, how.top_p, how.min_p)
    noise = exponential(how.seed, how.request, how.sample, how.position, logits.shape[-1])
    picked = (scaled - torch.log(noise)).argmax(dim=-1)
    return torch.where(how.temperature > 0, picked, best)


def penalised(logits: Tensor, penalty: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """A copy of `logits` [R, vocabulary] in float32 in which those at (rows, ids) [N] are less likely by `penalty` [R].

    A pair that comes twice counts once.
    """
    before = logits[rows, ids].float()
    factor = penalty[rows]
    result = logits.to(torch.float32, copy=True)
    result[rows, ids] = torch.where(before > 0, before / factor, before * factor)
    return result


def filtered(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`logits` [R, vocabulary] with −∞ for what the filters [R] leave out; at least the most likely token stays.

    Of equal logits at the edge of top-k or top-p, those with lower ids stay.
    """
    width = logits.shape[-1]
    logits = logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + torch.log(min_p)[:, None], float("-inf"))
    ordered, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    rank = torch.arange(width, device=logits.device)[None, :]
    most = torch.where(top_k > 0, top_k, width)[:, None]
    ordered = ordered.masked_fill(rank >= most, float("-inf"))
    chances = torch.softmax(ordered, dim=-1)
    before = chances.cumsum(dim=-1) - chances
    past = (before >= top_p[:, None]) & (top_p[:, None] < 1) & (rank > 0)  # rounded sums may reach 1 before the end
    ordered = ordered.masked_fill(past, float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ordered)
