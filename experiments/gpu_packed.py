"""Packed weights on a GPU, for `experiments.gpu_check`: layers against the card's copy, whole models against unpacked ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from backends.model.model import Model
    from experiments.gpu_check import Plan
    from experiments.gpu_findings import Findings

Part = tuple[str, Callable[[], None]]
_ROUND = 256 << 20
"""Bytes of layers that are gone through in turn, so that no cache holds their weights."""


def time_packed_layers(found: Findings, plan: Plan, device: torch.device, bandwidth: float) -> Iterator[Part]:
    """A square layer in each mode, for a few tokens: bytes of weights by the time, as a share of the copy's."""
    import torch

    from backends.ops.base import Dense
    from backends.quantization.base import QuantizedLinear
    from backends.torch.operators import make_operators
    from backends.torch.speed import seconds_a_call
    from backends.weights.dummy_packed import random_weight
    from backends.weights.load import DTYPES
    from sim.quantization import load_weight_mode

    operators, dtype, size = make_operators(plan.backend, device), DTYPES[plan.dtype], plan.square

    def one(mode: str) -> None:
        def layer(seed: int) -> Dense | QuantizedLinear:
            generator = torch.Generator(device).manual_seed(seed)
            if not mode:
                return Dense(torch.randn(size, size, dtype=dtype, device=device, generator=generator) / size**0.5)
            return QuantizedLinear((random_weight(load_weight_mode(mode), size, size, generator),), None, mode)

        first = layer(0)
        held = first.weight.nbytes if isinstance(first, Dense) else first.nbytes
        layers = [
            first,
            *(layer(number) for number in range(1, max(2, -(-_ROUND // held) if device.type == "cuda" else 2))),
        ]
        for tokens in plan.rows:
            x, turn = torch.randn(tokens, size, dtype=dtype, device=device), cycle(layers)
            seconds = seconds_a_call(lambda x=x, turn=turn: operators.linear(x, next(turn)), device)
            found.add("Packed layers", {
                "weights": mode or plan.dtype, "size": size, "tokens": tokens, "µs": seconds * 1e6, "GB/s": held / seconds / 1e9,
                "of copy": held / seconds / bandwidth,
            })  # fmt: skip

    for mode in plan.modes:
        yield f"layer in {mode or plan.dtype}", lambda mode=mode: one(mode)


def compare_expanding(found: Findings, plan: Plan, device: torch.device) -> Iterator[Part]:
    """For many tokens: a weight that is expanded on the way against one that is expanded before."""
    import torch

    from backends.torch.speed import seconds_a_call
    from backends.weights.dummy_packed import random_weight
    from backends.weights.load import DTYPES
    from sim.quantization import load_weight_mode

    dtype, size = DTYPES[plan.dtype], plan.square

    def one(mode: str, tokens: int) -> None:
        from backends.triton.launch import Launcher, find_target
        from backends.triton.quantized.expand import expanded_product
        from backends.triton.quantized.whole import whole_product

        launch = Launcher(find_target(device, False))
        weight = random_weight(load_weight_mode(mode), size, size, torch.Generator(device).manual_seed(0))
        x = torch.randn(tokens, size, dtype=dtype, device=device)
        out = torch.empty(tokens, size, dtype=dtype, device=device)
        way, once = (
            seconds_a_call(lambda work=work: work(launch, x, weight, None, out), device)
            for work in (expanded_product, whole_product)
        )
        row = {"weights": mode, "size": size, "tokens": tokens, "on the way, µs": way * 1e6, "once, µs": once * 1e6}
        found.add("Weights expanded on the way, or once", row)

    for mode in ("gptq-int4", "int8-w8a16"):
        for tokens in plan.many:
            yield f"expanding {mode}, {tokens} tokens", lambda mode=mode, tokens=tokens: one(mode, tokens)


def time_packed_models(
    found: Findings, plan: Plan, load: Callable[[str], Model], free: Callable[[], None]
) -> Iterator[Part]:
    """Decode steps of whole models, against the unpacked one of the same step and against the simulator's price."""
    from backends.torch.speed import decode_bytes, decode_time
    from backends.weights.device import device_name

    plain: dict[tuple[int, int], float] = {}
    held: dict[str, Model] = {}

    def one(mode: str, kv: str, batch: int, context: int) -> None:
        if mode not in held:
            held.clear()
            free()
            held[mode] = load(mode)
        model = held[mode]
        took = decode_time(model, batch, context, kv)
        step = took.step if math.isnan(took.recorded) else took.recorded
        if mode == kv == "auto":
            plain[batch, context] = step
        weights, cached = decode_bytes(model, batch, context, kv)
        priced = predicted(model, device_name(model.device), mode, kv, batch, context)
        found.add("Decode steps of packed models", {
            "weights": plan.dtype if mode == "auto" else mode, "KV": plan.dtype if kv == "auto" else kv, "batch": batch,
            "context": context, "step, ms": step * 1e3, "tokens/s": batch / step, "GB/s": (weights + cached) / step / 1e9,
            "times unpacked": plain.get((batch, context), math.nan) / step, "simulated, ms": priced * 1e3,
        })  # fmt: skip
        free()

    for mode, kv, batch, context in plan.packed:
        title = f"decode of {batch} with weights in {mode}, KV in {kv}"
        yield title, lambda each=(mode, kv, batch, context): one(*each)


def predicted(model: Model, card: str, mode: str, kv: str, batch: int, context: int) -> float:
    """What the simulator says of such a step, without the host's share; NaN where it does not know the card."""
    from sim.config import EngineConfig, KVConfig
    from sim.cost.base import StepShape
    from sim.cost.build import build_cost
    from sim.hardware import load_gpu

    try:
        config = EngineConfig(quantization=mode, kv=KVConfig(dtype=kv))
        cost = build_cost(model.architecture.spec, load_gpu(card), config)
        parts = cost.explain(StepShape(batch, batch * context, (), batch))
    except Exception:  # a card that it does not know, or anything else: no price is worth a measurement
        return math.nan
    return sum(part.seconds for part in parts if part.name != "host")
