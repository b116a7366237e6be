"""Timing a model's operators on this machine, over a grid of sizes, and whole steps of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from backends.model.model import Model
from backends.model.parameters import Experts, Linear
from backends.ops.base import Dense, PackedBatch
from backends.quantization.experts import quantized_experts
from backends.torch.build import make_torch_engine
from backends.torch.executor import TorchExecutor
from backends.torch.pack import bare_batch
from backends.torch.pool import KVPool, stored_dtype
from sim.config import EngineConfig, KVConfig, SchedulerConfig
from sim.quantization import load_weight_mode
from sim.quantization.kv import load_kv_mode
from workloads.traffic import Request, Span, private_content

_BUDGET, _LEAST, _MOST = 0.05, 3, 200  # seconds for one timing, and repetitions of it
_LONGEST_CALL = 1.0  # seconds; larger sizes of an operator are left out once one call takes longer
_PAGE = 16
_NEVER = float("inf")

Tell = Callable[[int, int], None]


class OperatorTiming(NamedTuple):
    """One call of an operator: its name and shape as `sim.cost.timings` has them, and the median of its seconds.

    `kind`: what is multiplied, by the cost model's names; `bf16` stands for the model's own type. `kv`: what keys and values
    are kept in, likewise; "": it has none.
    """

    op: str
    shape: dict[str, int]
    seconds: float
    kind: str = "bf16"
    kv: str = ""


class StepTiming(NamedTuple):
    """A step of the engine: decoding rows, their context, chunks (new, past), sampled rows, and seconds from plan to commit."""

    rows: int
    context: int
    chunks: tuple[tuple[int, int], ...]
    sampled: int
    seconds: float


class Grid(NamedTuple):
    """Sizes to time: tokens of linear layers, sequences and lengths of attention."""

    tokens: tuple[int, ...]
    batches: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def up_to(cls, tokens: int, batch: int, length: int) -> Grid:
        """Powers of two up to each of these, and each itself."""
        return cls(*(_powers(least, most) for least, most in ((1, tokens), (1, batch), (16, length))))


def _powers(least: int, most: int) -> tuple[int, ...]:
    sizes, size = [], least
    while size < most:
        sizes.append(size)
        size *= 2
    return (*sizes, most)


def time_operators(model: Model, grid: Grid, kv: str = "auto", tell: Tell | None = None) -> list[OperatorTiming]:
    """Every operator that the cost model prices by shape, at every size of the grid that does not take too long.

    Args:
        kv: as in `kv.dtype`.
    """
    found: list[OperatorTiming] = []
    cache = kv_kind(kv)
    series = [*_linears(model, grid), *_attention(model, grid, kv)]
    for number, (op, kind, calls) in enumerate(series):
        for shape, call in calls:
            seconds = _median(call, model.device)
            found.append(OperatorTiming(op, shape, seconds, kind, cache if op.startswith("attn") else ""))
            if seconds > _LONGEST_CALL:
                break
        if tell is not None:
            tell(number + 1, len(series))
    return _without_routers(found)


def kv_kind(name: str) -> str:
    """What keys and values are kept in, by the cost model's names."""
    return "bf16" if name == "auto" or load_kv_mode(name).bits == 16 else load_kv_mode(name).name.partition("-")[0]


def _without_routers(found: list[OperatorTiming]) -> list[OperatorTiming]:
    """Experts are timed with their router, which the cost model prices as the linear layer that it is: its time is taken off."""
    products = {
        (t.shape["m"], t.shape["n"], t.shape["k"]): t.seconds for t in found if t.op == "gemm" and t.kind == "bf16"
    }

    def alone(timing: OperatorTiming) -> OperatorTiming:
        if timing.op != "moe":
            return timing
        shape = timing.shape
        router = products.get((shape["tokens"], shape["experts"], shape["hidden"]), 0.0)
        return timing._replace(seconds=max(timing.seconds - router, timing.seconds / 10))

    return [alone(timing) for timing in found]


def _median(call: Callable[[], object], device: torch.device) -> float:
    """Median seconds of a call, the device waited for; the first is not counted."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times: list[float] = []
    with torch.inference_mode():
        call()
        wait()
        while len(times) < _LEAST or (sum(times) < _BUDGET and len(times) < _MOST):
            began = time.perf_counter()
            call()
            wait()
            times.append(time.perf_counter() - began)
            if times[-1] > _LONGEST_CALL:
                break
    return median(times)


Calls = Iterator[tuple[dict[str, int], Callable[[], object]]]


def kind_of(layer: Linear) -> str:
    """What a linear layer multiplies, by the cost model's names: of mixed ones, what most of it is in."""
    if isinstance(layer, Dense):
        return "bf16"
    mode = load_weight_mode(layer.mode)
    if mode.weight_only:
        return "w8a16" if mode.bits == 8 else "w4a16"
    return "fp8-block" if mode.compute == "fp8" and mode.group < -1 else mode.compute


def _linears(model: Model, grid: Grid) -> Iterator[tuple[str, str, Calls]]:
    """Linear layers by kind and shape. Calls go round all layers of a shape, as a step does, so that no cache holds their
    weights."""
    weights = model.parameters
    dense: dict[tuple, list[Linear]] = {}
    experts = [layer.mlp for layer in weights.layers if isinstance(layer.mlp, Experts)]
    for layer in weights.layers:
        mlp = [layer.mlp.router] if isinstance(layer.mlp, Experts) else [layer.mlp.gate_up, layer.mlp.down]
        for each in (layer.qkv, layer.out, *mlp):
            dense.setdefault((kind_of(each), *_shape(each)), []).append(each)
    for (kind, *_), each in dense.items():
        yield "gemm", kind, _dense_calls(model, each, grid, model.operators.linear)
    if ("bf16", *_shape(weights.head)) not in dense:
        yield "gemm", "bf16", _dense_calls(model, [weights.head], grid, model.operators.logits)
    if experts:
        down = experts[0].down
        yield "moe", "bf16" if isinstance(down, torch.Tensor) else kind_of(down[0]), _expert_calls(model, experts, grid)


def _shape(layer: Linear) -> tuple[int, int]:
    return tuple(layer.weight.shape) if isinstance(layer, Dense) else (layer.outputs, layer.inputs)


def _dense_calls(model: Model, layers: list[Linear], grid: Grid, run: Callable) -> Calls:
    n, k = _shape(layers[0])
    for m in grid.tokens:
        x = torch.randn(m, k, dtype=model.dtype, device=model.device)
        turn = cycle(layers)
        yield {"m": m, "n": n, "k": k}, lambda x=x, turn=turn: run(x, next(turn))


def _expert_calls(model: Model, layers: list[Experts], grid: Grid) -> Calls:
    spec, ops = model.architecture.spec, model.operators
    top_k, renormalise = spec.experts_per_token, model.architecture.renormalise
    for tokens in grid.tokens:
        x = torch.randn(tokens, spec.hidden, dtype=model.dtype, device=model.device)
        shape = {
            "tokens": tokens, "hidden": spec.hidden, "ffn": spec.expert_ffn, "topk": top_k, "experts": spec.experts, "tp": 1,
            "ep": 1,
        }  # fmt: skip

        def call(x=x, turn=cycle(layers)) -> object:
            mlp = next(turn)
            if mlp.apart:
                return quantized_experts(ops, x, mlp.router, mlp.gate_up, mlp.down, top_k, renormalise)
            return ops.experts(x, mlp.router, mlp.gate_up, mlp.down, top_k, renormalise)

        yield shape, call


def _attention(model: Model, grid: Grid, kv: str) -> Iterator[tuple[str, str, Calls]]:
    for batch in grid.batches:
        yield "attn_decode", "bf16", _attention_calls(model, batch, [n for n in grid.lengths if n > 1], kv, decode=True)
    for batch in [b for b in grid.batches if b <= 8]:
        lengths = [n for n in grid.lengths if n * batch <= 2 * grid.tokens[-1]]
        if lengths:
            yield "attn_prefill", "bf16", _attention_calls(model, batch, lengths, kv, decode=False)


def _attention_calls(model: Model, batch: int, lengths: list[int], kv: str, decode: bool) -> Calls:
    spec, ops = model.architecture.spec, model.operators
    window = model.architecture.windows[0]
    for length in lengths:
        pages = -(-length // _PAGE)
        pool = KVPool(spec, batch * pages, _PAGE, stored_dtype(kv, model.dtype), model.device)
        pool.fill()
        how = {} if pool.scales is None else {"kv_scales": tuple(pool.scales[0])}
        packed = _packed(model, batch, length, pages, decode)
        q = torch.randn(len(packed.ids), spec.heads, spec.head_dim, dtype=model.dtype, device=model.device)
        shape = {
            "batch": batch,
            "seq": length,
            "heads": spec.heads,
            "kv_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
        }

        def call(q=q, turn=cycle(pool.cache), packed=packed, how=how) -> object:
            keys, values = next(turn)
            return ops.attention(q, keys, values, packed, scale=spec.head_dim**-0.5, window=window, **how)

        yield shape, call


def _packed(model: Model, batch: int, length: int, pages: int, decode: bool) -> PackedBatch:
    past, count = (length - 1, 1) if decode else (0, length)
    tables = np.arange(batch * pages).reshape(batch, pages)
    return bare_batch([past] * batch, [count] * batch, tables, _PAGE, model.device)


def time_steps(
    model: Model, batches: tuple[int, ...], prompts: tuple[int, ...], steps: int = 12, kv: str = "auto"
) -> list[StepTiming]:
    """Whole steps of the engine: the prompts of a batch, then `steps` decode steps, for every size."""
    found: list[StepTiming] = []
    for batch in batches:
        for prompt in prompts:
            found += _served(model, batch, prompt, steps, kv)
    return found


def _served(model: Model, batch: int, prompt: int, steps: int, kv: str) -> list[StepTiming]:
    longest = prompt + steps + 1
    tokens = batch * -(-longest // _PAGE) * _PAGE
    config = EngineConfig(
        scheduler=SchedulerConfig(max_num_seqs=batch, max_num_batched_tokens=max(batch * prompt, batch)),
        kv=KVConfig(block_size=_PAGE, prefix_caching=False, dtype=kv), depth=1,
    )  # fmt: skip
    executor = TorchExecutor(model, forced_lengths=True)
    engine = make_torch_engine(config, executor, capacity=tokens, max_len=longest)
    for row in range(batch):
        span = (Span(private_content(row), 0, prompt),)
        engine.submit(Request(row, 0.0, prompt, steps + 1, steps + 1, span), 0.0)
    seen: list[tuple] = []
    submit = executor.submit

    def watched(plan, now, until):
        chunks = tuple((chunk.tokens, chunk.past) for chunk in plan.chunks)
        sampled = plan.rows + sum(chunk.samples for chunk in plan.chunks)
        seen.append((plan.rows, plan.context, chunks, sampled))
        return submit(plan, now, until)

    executor.submit = watched  # type: ignore[method-assign]
    timings: list[StepTiming] = []
    while not engine.idle:
        began = time.perf_counter()
        engine.launch(executor.clock(), _NEVER)
        engine.land(engine.collect())
        timings.append(StepTiming(*seen[-1], time.perf_counter() - began))
    return _steady(timings)


def _steady(timings: list[StepTiming]) -> list[StepTiming]:
    """The prompts' steps, and of the decode steps the one of median time: single ones are disturbed by others on the machine."""
    prompts = [each for each in timings if each.chunks]
    decodes = sorted((each for each in timings if not each.chunks), key=lambda each: each.seconds)
    return [*prompts, *decodes[len(decodes) // 2 : len(decodes) // 2 + 1]]
