"""One round of quantized linear layers on a device, against plain torch in float32 there; beside `backends.ops.selfcheck`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from backends.ops.base import Dense, Operators
from backends.ops.reference import ReferenceOperators
from backends.ops.selfcheck import Check
from backends.quantization.base import QuantizedBank, QuantizedLinear, Sparse
from backends.weights.dummy_packed import RUNNABLE, random_weight
from sim.quantization import load_weight_mode
from workloads.errors import InputError

_SHAPES = ((1, 300, 512), (20, 128, 320), (130, 136, 384), (1100, 136, 384))
"""(tokens, outputs, inputs): of a kernel for few tokens, for some, for many, and for so many that weights are expanded before."""
_ALLOWED = {torch.float32: 2e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Mean error over mean value. Inputs are quantized after they were rounded to their type, in float32 too: one of them on an edge
goes either way."""


def check_packed(
    ops: Operators, device: torch.device, dtype: torch.dtype, modes: Sequence[str] = RUNNABLE
) -> Iterator[Check]:
    """Every mode, at four sizes, the third of tables with outliers. Modes that the device cannot have are left out."""
    plain = ReferenceOperators()
    for mode in modes:
        generator = torch.Generator(device).manual_seed(0)
        for tokens, outputs, inputs in _SHAPES:
            weight = random_weight(load_weight_mode(mode), outputs, inputs, generator)
            if weight.form == "table" and tokens == 130:
                weight = replace(weight, sparse=_outliers(outputs, inputs, device))
            x = torch.randn(tokens, inputs, generator=generator, device=device).to(dtype)
            layer = QuantizedLinear((weight,), torch.randn(outputs, generator=generator, device=device).to(dtype))
            with suppress(InputError):
                got, want = ops.linear(x, layer).double(), plain.linear(x.float(), layer).double()
                error = float((got - want).abs().mean() / want.abs().mean()) / _ALLOWED[dtype]
                yield Check(
                    "linear", f"{str(dtype)[6:]}, {mode}, {tokens} tokens", error if error == error else float("inf")
                )


_BETWEEN = 0.04
"""The same where what is between two products is quantized too: what was rounded otherwise in 16 bits falls on another code."""
EXPERTS = ("gptq-int4", "awq-int4", "int8-w8a8", "fp8-channel", "fp8-block", "nvfp4", "mxfp4")
"""Modes in which a mixture of experts is checked."""


def check_packed_experts(
    ops: Operators, device: torch.device, dtype: torch.dtype, modes: Sequence[str] = EXPERTS
) -> Iterator[Check]:
    """A mixture of experts in one kernel, for few tokens and for many."""
    plain, experts, width, inner = ReferenceOperators(), 8, 256, 128
    for mode in modes:
        generator, kind = torch.Generator(device).manual_seed(0), load_weight_mode(mode)
        wide, narrow = (
            QuantizedBank(random_weight(kind, experts * rows, columns, generator), experts, mode)
            for rows, columns in ((2 * inner, width), (width, inner))
        )
        allowed = 2 * _ALLOWED[dtype] if kind.activation == "model" else _BETWEEN
        router = Dense((torch.randn(experts, width, generator=generator, device=device) / 16).to(dtype))
        for tokens in (4, 600):
            x = torch.randn(tokens, width, generator=generator, device=device).to(dtype)
            with suppress(InputError):
                got = ops.experts(x, router, wide, narrow, 2, True).double()
                want = plain.experts(
                    x, router, wide, narrow, 2, True
                ).double()  # in this dtype: routing must be the same
                error = float((got - want).abs().mean() / want.abs().mean()) / allowed
                yield Check(
                    "experts", f"{str(dtype)[6:]}, {mode}, {tokens} tokens", error if error == error else float("inf")
                )


def _outliers(outputs: int, inputs: int, device: torch.device) -> Sparse:
    """Three an output, but none for the first."""
    starts = torch.arange(outputs + 1, device=device) * 3 - 3
    columns = torch.arange(3 * (outputs - 1), device=device) * 7919 % inputs
    values = torch.linspace(-1, 1, len(columns), device=device)
    return Sparse(starts.clamp(min=0).to(torch.int32), columns.to(torch.int32), values)
