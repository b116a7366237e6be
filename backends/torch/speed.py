"""How fast this device is, and how fast a model's steps are on it: for comparing the two."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle
from typing import NamedTuple

import numpy as np
import torch

from backends.model.model import Model
from backends.quantization.score import weights_in_memory
from backends.torch.graphs import CudaCapture, DecodeGraphs
from backends.torch.pack import Rows, bare_batch, pack
from backends.torch.places import Places
from backends.torch.pool import KVPool, stored_dtype, token_bytes

_PAGE = 16
_ROUNDS = 5


def seconds_a_call(call: Callable[[], object], device: torch.device, budget: float = 0.2) -> float:
    """Of calls that follow each other without waiting in between: the best of a few rounds, which take `budget` seconds."""

    def timed(count: int) -> float:
        _wait(device)
        began = time.perf_counter()
        for _ in range(count):
            call()
        _wait(device)
        return time.perf_counter() - began

    with torch.inference_mode():
        call()
        once = min(timed(1), timed(1))
        count = max(1, int(budget / _ROUNDS / max(once, 1e-7)))
        return min(timed(count) for _ in range(_ROUNDS)) / count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Bytes a second, read and written ones together, of copying `size` bytes."""
    source = torch.empty(size, dtype=torch.uint8, device=device).fill_(7)
    target = torch.empty_like(source)
    return 2 * size / seconds_a_call(lambda: target.copy_(source), device)


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Operations a second of a product of two square matrices of normal numbers."""
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / seconds_a_call(lambda: torch.mm(a, b, out=out), device)


class DecodeTime(NamedTuple):
    """Seconds of a decode step, of the same step recorded (NaN where it cannot be), and of one layer's attention in it."""

    step: float
    recorded: float
    attention: float


def decode_time(model: Model, batch: int, context: int, kv: str = "auto") -> DecodeTime:
    """A step in which `batch` sequences of `context` tokens each get one more; no sampling, nothing of the host's planning.

    Args:
        kv: as in `kv.dtype`.
    """
    device, spec = model.device, model.architecture.spec
    pages = -(-context // _PAGE)
    pool = KVPool(spec, batch * pages + 1, _PAGE, stored_dtype(kv, model.dtype), device)
    pool.fill()
    places = Places(device, batch * pages, batch + 1, pages)
    for row in range(batch):
        places.lay(row + 1, 0, np.arange(row * pages, (row + 1) * pages))
    full = np.ones(batch, np.int64)
    rows = Rows(np.arange(1, batch + 1), full * (context - 1), full, full.astype(bool))
    packed = pack(rows, places, _PAGE, every_row=True)
    step = seconds_a_call(lambda: model.forward(packed.batch(places), pool.cache, pool.scales), device)
    recorded = float("nan")
    if device.type == "cuda" and model.recordable:
        graphs = DecodeGraphs(model, pool, places, batch, CudaCapture())
        recorded = seconds_a_call(lambda: graphs.run(packed), device)
    there, turn = packed.batch(places), cycle(pool.cache)
    q = torch.randn(batch, spec.heads, spec.head_dim, dtype=model.dtype, device=device)

    how = {} if pool.scales is None else {"kv_scales": tuple(pool.scales[0])}

    def attend() -> object:
        keys, values = next(turn)
        return model.operators.attention(q, keys, values, there, scale=spec.head_dim**-0.5, **how)

    return DecodeTime(step, recorded, seconds_a_call(attend, device))


def decode_bytes(model: Model, batch: int, context: int, kv: str = "auto") -> tuple[int, int]:
    """Bytes that such a step must read: of weights (the embedding table aside) and of keys and values."""
    spec, everything = model.architecture.spec, weights_in_memory(model)[0]
    weights = everything - (0 if spec.tied else model.parameters.embedding.nbytes)
    return weights, token_bytes(spec, stored_dtype(kv, model.dtype)) * batch * context


class PrefillTime(NamedTuple):
    """Seconds of a prompt's forward pass, and of one layer's attention in it."""

    step: float
    attention: float


def prefill_time(model: Model, tokens: int) -> PrefillTime:
    """A prompt of so many tokens in one step."""
    device, spec = model.device, model.architecture.spec
    pages = -(-tokens // _PAGE)
    pool = KVPool(spec, pages, _PAGE, model.dtype, device)
    batch = bare_batch([0], [tokens], np.arange(pages)[None], _PAGE, device)
    step = seconds_a_call(lambda: model.forward(batch, pool.cache), device)
    q = torch.randn(tokens, spec.heads, spec.head_dim, dtype=model.dtype, device=device)
    keys, values = pool.cache[0]
    scale = spec.head_dim**-0.5
    return PrefillTime(
        step, seconds_a_call(lambda: model.operators.attention(q, keys, values, batch, scale=scale), device)
    )


def prefill_operations(model: Model, tokens: int) -> tuple[int, int]:
    """Operations of such a pass: of the layers' matrices, and of attention, of which a causal mask leaves a half."""
    spec = model.architecture.spec
    tables = spec.vocab * spec.hidden * (1 if spec.tied else 2)
    return 2 * (spec.params_active - tables) * tokens, 2 * spec.layers * spec.heads * spec.head_dim * tokens * tokens
