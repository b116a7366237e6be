"""A quantized linear layer: each of its parts by the kernel that its layout and the quantization of its inputs ask for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from backends.ops.base import Dense
from backends.quantization.base import QuantizedLinear, QuantizedWeight, shape_of
from backends.triton.launch import Launcher, Target, rows_last
from backends.triton.quantized.expand import expanded_product
from backends.triton.quantized.inputs import emulated_fp4, plain_codes, quantised_inputs
from backends.triton.quantized.scaled import fits, scaled_product
from backends.triton.quantized.whole import whole_product
from backends.triton.tiles import whole_from
from workloads.errors import InputError, Place


def packed_linear(launch: Launcher, x: Tensor, layer: QuantizedLinear) -> Tensor:
    """`x` [T, inputs] times the layer's weight, plus its bias: [T, outputs] in the dtype of `x`.

    Raises:
        InputError: codes in fp8 where the compiler does not know the type.
    """
    x = rows_last(x)
    out = torch.empty(len(x), layer.outputs, dtype=x.dtype, device=x.device)
    first = 0
    known: dict[int, tuple[Tensor, Tensor | None]] = {}  # parts that read the same quantized inputs share them
    for part in layer.parts:
        last = first + shape_of(part)[0]
        mine, bias = out[:, first:last], None if layer.bias is None else layer.bias[first:last]
        if isinstance(part, Dense):
            mine.copy_(F.linear(x, part.weight, part.bias))
            if bias is not None:
                mine += bias
        else:
            check_part(part, launch.target)
            _multiply(launch, x, part, bias, mine, known)
        first = last
    return out


def check_part(part: QuantizedWeight, target: Target) -> None:
    """See that the compiler knows the types that a part is kept in.

    Raises:
        InputError: fp8 before compute capability 8.9.
    """
    fp8 = part.form == "fp8" or (part.activation is not None and part.activation.form == "fp8")
    if fp8 and not target.e4m3 and not target.interpreted:
        raise InputError(
            f"weights in fp8 cannot be multiplied by Triton on {target.arch}", place=Place(key="engine.quantization"),
            hint="they need compute capability 8.9 (Ada) or later; take int8 or 4-bit weights, or backend torch",
        )  # fmt: skip


def _multiply(
    launch: Launcher, x: Tensor, part: QuantizedWeight, bias: Tensor | None, out: Tensor,
    known: dict[int, tuple[Tensor, Tensor | None]],
) -> None:  # fmt: skip
    how = part.activation
    if how is None:
        many = len(x) >= whole_from(launch.target) and part.sparse is None
        (whole_product if many else expanded_product)(launch, x, part, bias, out)
        return
    if how.form == "fp4":
        widened, factor = known.get(id(how)) or known.setdefault(id(how), emulated_fp4(launch, x, how))
        expanded_product(launch, widened, part, bias, out, factor)
        return
    codes, scales = known.get(id(how)) or known.setdefault(id(how), quantised_inputs(launch, x, how))
    row_group = how.group if scales.shape[1] > 1 else 0
    if how.form == ("int8" if part.form == "int" else part.form) and fits(part, row_group):
        scaled_product(launch, codes, scales, row_group, part, bias, out)
    else:
        plain, factor = plain_codes(codes, scales, how, x.dtype)
        expanded_product(launch, plain, part, bias, out, factor)
