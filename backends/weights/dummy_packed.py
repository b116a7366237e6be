"""Random packed weights: the memory and the arithmetic of a quantized model without its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from backends.model.architecture import Architecture
from backends.model.parameters import Experts, Linear, Parameters
from backends.ops.base import Dense
from backends.quantization.base import Activation, QuantizedBank, QuantizedLinear, QuantizedWeight
from backends.quantization.unpack import packed_words
from sim.quantization.weights import WeightMode
from workloads.errors import InputError, Place

GROUPED = ("gptq-int3", "gptq-int4", "gptq-int8", "awq-int4")
RUNNABLE = (
    "int8-w8a16", "int8-w8a8", *GROUPED, "squeezellm-3bit", "squeezellm-4bit", "fp8", "fp8-dynamic", "fp8-channel",
    "fp8-block", "nvfp4", "mxfp4",
)  # fmt: skip
"""Modes of the registry that the engine runs."""


def pack_randomly(
    architecture: Architecture, parameters: Parameters, mode: WeightMode, seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> Parameters:  # fmt: skip
    """Weights whose linear layers, of the kinds that the mode covers, are random in it; everything else is as it was.

    Args:
        parameters: with linear layers of the right shapes, on any device (`meta` will do, and takes no memory).

    Raises:
        InputError: a mode that cannot be run, or a shape that it cannot have.
    """
    if mode.name not in RUNNABLE:
        raise InputError(
            f"weights in {mode.name} can only be simulated", place=Place(key="engine.quantization"),
            hint=f"these run: {', '.join(RUNNABLE)}",
        )  # fmt: skip
    device = parameters.embedding.device
    generator = torch.Generator(device).manual_seed(seed)

    def packed(layer: Linear | Tensor, kind: str) -> Linear | Tensor | QuantizedBank | tuple[Linear, ...]:
        if not mode.covers(kind):
            return _real(layer, device, generator)
        if isinstance(layer, Tensor):  # experts
            outputs, inputs = layer.shape[1:]
            step = 128 if mode.group < -1 else 1  # blocks that end within an expert cannot be shared
            if outputs % step:
                each = range(len(layer))
                return tuple(
                    QuantizedLinear((random_weight(mode, outputs, inputs, generator),), None, mode.name) for _ in each
                )
            return QuantizedBank(random_weight(mode, len(layer) * outputs, inputs, generator), len(layer), mode.name)
        bias = None if layer.bias is None else _real(layer.bias, device, generator)
        return QuantizedLinear((random_weight(mode, *layer.weight.shape, generator),), bias, mode.name)

    layers = []
    for number, layer in enumerate(parameters.layers):
        mlp, kind = layer.mlp, "expert" if isinstance(layer.mlp, Experts) else "mlp"
        mlp = replace(mlp, gate_up=packed(mlp.gate_up, kind), down=packed(mlp.down, kind))
        layers.append(replace(layer, qkv=packed(layer.qkv, "attention"), out=packed(layer.out, "attention"), mlp=mlp))
        if progress is not None:
            progress(number + 1, len(parameters.layers))
    return replace(parameters, layers=tuple(layers))


def _real(layer: Linear | Tensor, device: torch.device, generator: torch.Generator) -> Linear | Tensor:
    """What was only a shape, with numbers."""
    if isinstance(layer, Dense):
        bias = None if layer.bias is None else _real(layer.bias, device, generator)
        return Dense(_real(layer.weight, device, generator), bias)
    if not layer.is_meta:
        return layer
    spread = 1 / math.sqrt(layer.shape[-1]) if layer.ndim > 1 else 0.1
    return torch.empty(layer.shape, dtype=layer.dtype, device=device).normal_(0.0, spread, generator=generator)


def random_weight(mode: WeightMode, outputs: int, inputs: int, generator: torch.Generator) -> QuantizedWeight:
    """A random weight [outputs, inputs] in a mode, its values of about variance 1 / inputs."""
    device, spread = generator.device, 1 / math.sqrt(inputs)

    def numbers(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.randint(low, high, shape, dtype=dtype, device=device, generator=generator)

    def scales(*shape: int, size: float, dtype: torch.dtype) -> Tensor:
        spread_out = torch.empty(shape, device=device).uniform_(0.8, 1.2, generator=generator)
        return (spread_out * size).to(dtype)

    words = (outputs, packed_words(inputs, mode.bits))
    if mode.name.startswith("squeezellm"):
        table = torch.empty(outputs, 1 << mode.bits, device=device).normal_(0.0, spread, generator=generator)
        codes = numbers(-(1 << 31), 1 << 31, *words)
        return QuantizedWeight("table", mode.bits, outputs, inputs, codes, table=table.sort(1).values.half())
    if mode.name in ("nvfp4", "mxfp4"):
        group, nv = (16, True) if mode.name == "nvfp4" else (32, False)
        codes, groups = numbers(-(1 << 31), 1 << 31, *words), -(-inputs // group)
        if nv:
            steps = scales(outputs, groups, size=64.0, dtype=torch.float8_e4m3fn)
            outer = torch.full((outputs,), spread / 64 / 3, device=device)
            how = Activation("fp4", 16, torch.full((1,), 0.01, device=device))
            return QuantizedWeight(
                "fp4", 4, outputs, inputs, codes, scales=steps, group=16, outer=outer, activation=how
            )
        exponent = int(math.log2(spread / 3)) + 127
        steps = numbers(exponent, exponent + 2, outputs, groups, dtype=torch.uint8).view(torch.float8_e8m0fnu)
        return QuantizedWeight("fp4", 4, outputs, inputs, codes, scales=steps, group=32)
    if mode.name.startswith("fp8"):
        return _fp8(mode, outputs, inputs, generator, scales)
    group = mode.group if mode.group > 0 else inputs
    size, dtype = (
        spread / (2.0 ** (mode.bits - 1) / math.sqrt(3)),
        torch.float16 if mode.scale_bits == 16 else torch.float32,
    )
    steps = scales(outputs, -(-inputs // group), size=size, dtype=dtype)
    if mode.bits == 8:
        codes = numbers(-127, 128, outputs, inputs, dtype=torch.int8)
        how = Activation("int8") if mode.activation == "int8" else None
        return QuantizedWeight("int", 8, outputs, inputs, codes, scales=steps, group=group, activation=how)
    zeros = numbers(6, 11, *steps.shape, dtype=torch.int16) if mode.name == "awq-int4" else None
    codes, zero = numbers(-(1 << 31), 1 << 31, *words), 1 << (mode.bits - 1)
    return QuantizedWeight("int", mode.bits, outputs, inputs, codes, scales=steps, group=group, zero=zero, zeros=zeros)


def _fp8(
    mode: WeightMode, outputs: int, inputs: int, generator: torch.Generator, scales: Callable[..., Tensor]
) -> QuantizedWeight:
    device, size = generator.device, 1 / math.sqrt(inputs) / 32
    codes = torch.empty(outputs, inputs, dtype=torch.float8_e4m3fn, device=device)
    for part in codes.split(4096):  # drawn in float32, a few rows at a time
        part.copy_(torch.empty(part.shape, device=device).normal_(0.0, 32.0, generator=generator).clamp(-448, 448))
    static = torch.full((1,), 0.02, device=device) if mode.name == "fp8" else None
    if mode.name == "fp8-block":
        steps = scales(-(-outputs // 128), -(-inputs // 128), size=size, dtype=torch.float32)
        how = Activation("fp8", 128)
        return QuantizedWeight("fp8", 8, outputs, inputs, codes, scales=steps, rows=128, group=128, activation=how)
    rows = 1 if mode.name == "fp8-channel" else outputs
    steps = scales(-(-outputs // rows), 1, size=size, dtype=torch.float32)
    how = Activation("fp8", -1 if static is not None else 0, static)
    return QuantizedWeight("fp8", 8, outputs, inputs, codes, scales=steps, rows=rows, group=inputs, activation=how)
