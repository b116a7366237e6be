"""One linear layer's tensors, in the layout of the mode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.quantization.activations import E4M3_MOST
from backends.quantization.base import QuantizedWeight
from backends.quantization.formats.awq import Awq
from backends.quantization.formats.compressed import Bytes, PackedInts
from backends.quantization.formats.fp4 import MxFp4, NvFp4
from backends.quantization.formats.fp8 import Fp8
from backends.quantization.formats.gptq import Gptq
from backends.quantization.formats.raw import LayerFormat, Raw
from backends.quantization.formats.squeezellm import SqueezeLLM
from backends.quantization.make import awq, grids
from backends.quantization.make.gptq import objective, solve
from backends.quantization.make.recipes import Recipe
from backends.quantization.make.squeezellm import dense_and_sparse, nearest, weighted_error


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a layer beside its weight.

    Attributes:
        hessian: [K, K] second moments of its inputs; None: no token entered. most: largest magnitude of its inputs.
        sensitivity: [N, K] squared gradients. largest: largest weight of all layers of the same input.
        columns, rows: what AWQ has multiplied its columns with, and divided its rows by; None: nothing.
        clip: whether AWQ may cut off its largest weights.
    """

    hessian: Tensor | None = None
    most: float = 0.0
    sensitivity: Tensor | None = None
    largest: float = 0.0
    columns: Tensor | None = None
    rows: Tensor | None = None
    clip: bool = True


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """Tensors by suffix, how they are read, and the method's objective with them and with round-to-nearest (0: it has none)."""

    tensors: dict[str, Tensor]
    format: LayerFormat
    error: float = 0.0
    nearest: float = 0.0

    def read(self, outputs: int, inputs: int) -> QuantizedWeight:
        """The layer as the engine will have it."""
        return self.format.load(Raw("layer", "", self.tensors), outputs, inputs)


def pack_layer(recipe: Recipe, weight: Tensor, known: Known) -> PackedLayer:
    """Quantise a weight [N, K] float32."""
    mode = recipe.mode
    if mode.startswith("gptq"):
        return _gptq(recipe, weight, known.hessian)
    if mode == "awq-int4":
        return _awq(recipe, weight, known)
    if mode.startswith("squeezellm"):
        return _squeezellm(recipe, weight, known.sensitivity)
    if mode.startswith("int8") or mode == "rtn-int4":
        return _ints(recipe, weight)
    if mode.startswith("fp8"):
        return _fp8(recipe, weight, known.most)
    return _fp4(recipe, weight, known)


def _gptq(recipe: Recipe, weight: Tensor, hessian: Tensor | None) -> PackedLayer:
    """By the Hessian; where there is none, rounded to nearest."""
    bits, group = recipe.bits, recipe.group
    form = Gptq(bits, group, False, recipe.mode)
    if hessian is None:
        scales, zeros = grids.int_grid(weight, bits, group, recipe.symmetric)
        return PackedLayer(form.save(grids.int_codes(weight, scales, zeros, bits, group), scales, zeros), form)
    found = solve(weight, hessian, bits=bits, group=group, symmetric=recipe.symmetric, act_order=recipe.act_order)
    values = (found.codes.float() - found.zeros[:, found.index]) * found.scales[:, found.index]
    scales, zeros = grids.int_grid(weight, bits, group, recipe.symmetric)
    plain = grids.int_values(grids.int_codes(weight, scales, zeros, bits, group), scales, zeros, group)
    return PackedLayer(
        form.save(found.codes, found.scales, found.zeros, found.index), form, objective(weight, values, hessian),
        objective(weight, plain, hessian),
    )  # fmt: skip


def _awq(recipe: Recipe, weight: Tensor, known: Known) -> PackedLayer:
    """Its objective is told in the units of the layer before rows and columns had factors."""
    form, group, hessian = Awq(recipe.group), recipe.group, known.hessian
    columns = torch.ones(weight.shape[1]) if known.columns is None else known.columns
    rows = torch.ones(len(weight), 1) if known.rows is None else known.rows[:, None]
    scaled = None if hessian is None else hessian / columns / columns[:, None]
    clip = known.clip and scaled is not None
    grid = awq.clipped_grid(weight, scaled, group=group) if clip else grids.int_grid(weight, 4, group)
    packed = PackedLayer(form.save(grids.int_codes(weight, *grid, 4, group), *grid), form)
    if scaled is None:
        return packed
    first = weight * rows / columns
    error = objective(weight * rows, awq.on_grid(weight, grid, 4, group) * rows, scaled)
    return PackedLayer(packed.tensors, form, error, objective(first, awq.rounded(first, 4, group), hessian))


def _squeezellm(recipe: Recipe, weight: Tensor, sensitivity: Tensor) -> PackedLayer:
    form, sensitivity = SqueezeLLM(recipe.bits, recipe.mode), sensitivity.float()
    codes, table, sparse = dense_and_sparse(weight, sensitivity, recipe.bits, recipe.sparse)
    packed = PackedLayer(form.save(codes, table.half(), sparse), form)
    if sparse is not None:
        return packed
    steps = torch.linspace(0, 1, 1 << recipe.bits)
    low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    even = low + (high - low) * steps
    plain = float(weighted_error(weight, sensitivity, nearest(weight, even), even).sum())
    error = float(weighted_error(weight, sensitivity, codes, table).sum())
    return PackedLayer(packed.tensors, form, error, plain)


def _ints(recipe: Recipe, weight: Tensor) -> PackedLayer:
    if recipe.mode == "rtn-int4":
        form = PackedInts(4, recipe.group, recipe.symmetric)
        scales, zeros = grids.int_grid(weight, 4, recipe.group, recipe.symmetric)
        codes = grids.int_codes(weight, scales, zeros, 4, recipe.group)
        return PackedLayer(form.save(codes, scales.half(), zeros), form)
    codes, scales = grids.int8_rows(weight)
    if recipe.mode == "int8":
        form = Bytes("int", "int8-w8a8", activation="int8")
        return PackedLayer({"weight": codes, "weight_scale": scales}, form)
    packed = PackedInts(8, -1, True, "int8-w8a16")
    shifted = (codes.to(torch.int16) + 128).to(torch.uint8)
    return PackedLayer(packed.save(shifted, scales, torch.zeros_like(scales)), packed)


def _fp8(recipe: Recipe, weight: Tensor, most: float) -> PackedLayer:
    mode = recipe.mode
    shape = {"fp8-channel": "channel", "fp8-block": "block"}.get(mode, "tensor")
    codes, scales = grids.fp8_codes(weight, shape)
    if mode == "fp8-block":
        form: LayerFormat = Fp8(mode, (128, 128), activation=128, scale="weight_scale_inv")
        return PackedLayer({"weight": codes, "weight_scale_inv": scales}, form)
    form = Bytes("fp8", mode, activation="fp8", static=mode == "fp8")
    tensors = {"weight": codes, "weight_scale": scales}
    if mode == "fp8":
        tensors["input_scale"] = torch.tensor([max(most, 1e-12) / E4M3_MOST])
    return PackedLayer(tensors, form)


def _fp4(recipe: Recipe, weight: Tensor, known: Known) -> PackedLayer:
    if recipe.mode == "mxfp4":
        form: LayerFormat = MxFp4()
        codes, scales = grids.mxfp4_codes(weight)
        return PackedLayer(
            {"weight_packed": (codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous(), "weight_scale": scales}, form
        )
    nvfp4 = NvFp4(inputs=recipe.mode == "nvfp4")
    divisor = grids.nvfp4_divisor(known.largest or float(weight.abs().amax()))
    tensors = nvfp4.save(*grids.nvfp4_codes(weight, divisor), divisor)
    if recipe.mode == "nvfp4":
        tensors["input_global_scale"] = grids.nvfp4_divisor(known.most)
    return PackedLayer(tensors, nvfp4)
