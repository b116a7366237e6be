"""How many tokens of KV fit on this device: measured, not estimated, where the device is a GPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from backends.model.model import Model
from backends.torch.graphs import CudaCapture, DecodeGraphs
from backends.torch.pack import bare_batch
from backends.torch.places import Places
from backends.torch.pool import KVPool, stored_dtype, token_bytes
from backends.weights.device import GIB, Memory, device_name, memory
from sim.config import EngineConfig
from sim.memory import activation_bytes, context_limit, static_fraction
from sim.models.spec import ModelSpec
from workloads.errors import InputError, Place

_CPU_POOL = 4 * GIB
"""Most that a pool on the CPU takes unasked, as in vLLM's CPU backend (`VLLM_CPU_KVCACHE_SPACE` when unset)."""
_WARM_TOKENS = 64
"""Tokens of the dummy step on a CPU: enough to touch all code, few enough not to be waited for."""


class Room(NamedTuple):
    """The memory of a device, in bytes; `tokens` of KV are shared out, in whole blocks.

    `activations`: with recorded decode steps. `others` is what neither of these nor weights nor KV take. `fixed`: the user said
    how many tokens.
    """

    total: int
    weights: int
    activations: int
    others: int
    kv: int
    per_token: int
    block: int
    tokens: int
    fraction: float
    fixed: bool


class Device(NamedTuple):
    """What presets want to know of a GPU."""

    name: str
    memory_bytes: int


def describe(device: torch.device) -> Device:
    """The device by name, with its memory; a CPU counts as a small GPU, for which presets have small steps."""
    name = device_name(device)
    return Device(name, memory(device).total if device.type == "cuda" else min(memory(device).total, 16 * GIB))


def measure_room(model: Model, config: EngineConfig) -> Room:
    """Size the KV pool: what `kv.capacity_tokens` says, or what a dummy run of the largest step leaves.

    The preset's rule is followed on measured figures: `total` and `static` are a share of the device for everything,
    `free` a share of what weights and activations leave. On a CPU activations are estimated, and the pool is no larger than
    all seats at full length, and than 4 GiB or what the longest sequence needs.

    Raises:
        InputError: what was asked for does not fit, or not even one sequence of the longest allowed length does.
    """
    spec = model.architecture.spec
    weights = sum(each.nbytes for each in _tensors(model))
    per_token = token_bytes(spec, stored_dtype(config.kv.dtype, model.dtype))
    block = 1 if config.kv.allocator == "contiguous" else max(config.kv.block_size, 1)
    activations, others = _measure(model, config, block)
    now = memory(model.device)
    if config.kv.capacity_tokens:
        return _fixed(config, now, weights, activations, others, per_token, block)
    fraction, pool = _pool(model, config, now, weights, activations, others)
    longest = context_limit(spec, config)
    if model.device.type == "cpu":
        seats = config.scheduler.max_num_seqs * longest * per_token
        pool = min(pool, seats, max(_CPU_POOL, (longest + block) * per_token))
    tokens = max(pool, 0) // (per_token * block) * block
    room = Room(now.total, weights, activations, others, max(pool, 0), per_token, block, tokens, fraction, False)
    if tokens < longest:
        raise _too_long(room, longest)
    return room


def check_room(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device, config: EngineConfig, weights: int | None = None
) -> None:
    """Refuse before weights are read what could not be served after that, by the simulator's estimate of activations.

    Args:
        weights: their bytes; None: all of them in `dtype`.

    Raises:
        InputError: not even one sequence of the longest allowed length would fit.
    """
    if config.kv.capacity_tokens:
        return
    now, longest = memory(device), context_limit(spec, config)
    per_token = token_bytes(spec, stored_dtype(config.kv.dtype, dtype))
    weights = spec.params_total * dtype.itemsize if weights is None else weights
    activations = activation_bytes(spec, config) * dtype.itemsize // 2
    pool = max(now.free - weights - activations, 0)
    if pool < longest * per_token:
        tokens = pool // per_token
        raise _too_long(Room(now.total, weights, activations, 0, pool, per_token, 1, tokens, 1.0, False), longest)


def _fixed(
    config: EngineConfig, now: Memory, weights: int, activations: int, others: int, per_token: int, block: int
) -> Room:
    """The pool that the user asked for."""
    tokens = config.kv.capacity_tokens // block * block
    place = Place(key="engine.kv.capacity_tokens")
    if tokens < block or not tokens:
        raise InputError(f"{config.kv.capacity_tokens} is less than one block of {block}", place=place)
    kv = tokens * per_token
    if kv + activations > now.free:
        most = max(now.free - activations, 0) // per_token
        raise InputError(
            f"{tokens:,} tokens of KV take {kv / GIB:.1f} GiB, but {now.free / GIB:.1f} GiB of memory are free beside the "
            f"weights ({weights / GIB:.1f} GiB), of which a step may need {activations / GIB:.1f} GiB",
            place=place, hint=f"at most {most:,}",
        )  # fmt: skip
    return Room(
        now.total, weights, activations, others, kv, per_token, block, tokens, config.kv.memory_utilization, True
    )


def _pool(
    model: Model, config: EngineConfig, now: Memory, weights: int, activations: int, others: int
) -> tuple[float, int]:
    """The share in effect, and bytes of the pool; they may be negative."""
    fraction = config.kv.memory_utilization
    if model.device.type == "cpu":
        fraction = fraction or 0.9
        return fraction, int(fraction * now.free) - activations
    left = now.total - weights - activations - others
    if config.kv.memory_rule == "free":
        return fraction, int(fraction * left)
    if config.kv.memory_rule == "static" and not fraction:
        fraction = static_fraction(describe(model.device), config)  # type: ignore[arg-type]  (name and memory are enough)
    budget = int(fraction * now.total) - weights - others
    return fraction, min(budget if config.kv.memory_rule == "static" else budget - activations, left)


def _measure(model: Model, config: EngineConfig, block: int) -> tuple[int, int]:
    """Run a dummy step and record decode steps: bytes that activations take at their peak with what records take, and bytes
    that others have on the device."""
    spec = model.architecture.spec
    seats, longest = config.scheduler.max_num_seqs, context_limit(spec, config)
    stored = stored_dtype(config.kv.dtype, model.dtype)
    if model.device.type == "cpu":
        dummy_step(model, min(_WARM_TOKENS, longest), 1, block, stored)
        return activation_bytes(spec, config) * model.dtype.itemsize // 2, 0
    tokens = min(config.scheduler.max_num_batched_tokens, seats * longest)
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    dummy_step(model, tokens, min(seats, tokens), block, stored)
    torch.cuda.synchronize(model.device)
    peak = torch.cuda.max_memory_allocated(model.device) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(model.device)
    others = max(total - free - torch.cuda.memory_reserved(model.device), 0)
    if model.recordable:
        peak += _recorded_bytes(model, seats, longest, block, stored)
    return peak, others


def _recorded_bytes(model: Model, rows: int, longest: int, block: int, stored: torch.dtype) -> int:
    """Bytes that recorded decode steps of up to `rows` rows take, beside what steps that are not recorded need."""

    def taken() -> int:
        torch.cuda.synchronize(model.device)
        free, total = torch.cuda.mem_get_info(model.device)
        return total - free

    pool = KVPool(model.architecture.spec, 1, block, stored, model.device)
    pool.clear(0)
    places = Places(model.device, 0, rows + 1, -(-longest // block))
    found = DecodeGraphs(model, pool, places, rows, CudaCapture()).estimate(longest, taken)
    torch.cuda.empty_cache()
    return found


def dummy_step(model: Model, tokens: int, rows: int, block: int, stored: torch.dtype | None = None) -> None:
    """Compute prompts of `tokens` tokens together, and sample a token for each of `rows`; keys and values in `stored`."""
    sizes = np.full(rows, tokens // rows)
    sizes[: tokens % rows] += 1
    longest = int(sizes.max())
    pool = KVPool(model.architecture.spec, -(-longest // block), block, stored or model.dtype, model.device)
    tables = np.tile(np.arange(-(-longest // block)), (rows, 1))
    batch = bare_batch([0] * rows, sizes.tolist(), tables, block, model.device, live=False)
    model.forward(batch, pool.cache, pool.scales).argmax(-1)


def _tensors(model: Model) -> list[torch.Tensor]:
    from backends.weights.names import places

    return list(places(model.architecture, model.parameters).values())


def _too_long(room: Room, longest: int) -> InputError:
    beside = f"{room.weights / GIB:.1f} GiB of weights and {room.activations / GIB:.1f} GiB of activations"
    hint = f"set max_model_len: {room.tokens}" if room.tokens else "take a smaller model, dtype or step"
    return InputError(
        f"one request of {longest:,} tokens needs {longest * room.per_token / GIB:.2f} GiB of KV, but {room.kv / GIB:.2f} GiB "
        f"({room.tokens:,} tokens) are left of {room.total / GIB:.1f} GiB beside {beside}",
        place=Place(key="engine.max_model_len"), hint=hint,
    )  # fmt: skip
