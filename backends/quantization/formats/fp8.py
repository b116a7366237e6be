"""8-bit floats: `fp8` (static or dynamic, per tensor, or in blocks as DeepSeek-V3 and Qwen 3 have them), fbgemm's, ModelOpt's.

weight float8_e4m3fn [N, K] with

* weight_scale, one value or [N, 1], and with static activations input_scale, one value;
* or weight_scale_inv float32 [ceil(N / 128), ceil(K / 128)], which multiplies in spite of its name;
* fbgemm: weight_scale float32 [N, 1]; activations per token, the largest magnitude cut off at `activation_scale_ub`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.quantization.base import Activation, QuantizedWeight
from backends.quantization.formats.raw import FLOATS, Raw, check_scales, own

KV_SCALES = ("k_scale", "v_scale", "output_scale", "kv_scale")
"""Scales of keys and values that checkpoints keep beside projections; the engine does without."""


@dataclass(frozen=True, slots=True)
class Fp8:
    """Weights in E4M3.

    Attributes:
        block: rows and columns of a scale's block; None: one scale a tensor or a row, whichever the checkpoint has.
        static: `input_scale` is in the checkpoint.
        activation: columns along K that share an activation's scale, see `Activation.group`; for dynamic ones.
        bound: fbgemm's `activation_scale_ub`.
        scale: suffix of the scales.
    """

    mode: str
    block: tuple[int, int] | None = None
    static: bool = False
    activation: int = 0
    bound: float = 0.0
    scale: str = "weight_scale"
    packed: str = "weight"

    def load(self, raw: Raw, outputs: int, inputs: int) -> QuantizedWeight:
        """See `LayerFormat.load`."""
        codes = raw.take("weight", torch.float8_e4m3fn, shape=(outputs, inputs))
        raw.ignore(*KV_SCALES)
        static = raw.scale("input_scale") if self.static else None
        if not self.static:
            raw.ignore("input_scale_ub")
        how = Activation("fp8", -1 if self.static else self.activation, static, self.bound)
        scales, rows, group = self._scales(raw, outputs, inputs)
        return QuantizedWeight(
            "fp8", 8, outputs, inputs, own(codes), scales=scales, rows=rows, group=group, activation=how
        )

    def _scales(self, raw: Raw, outputs: int, inputs: int) -> tuple[Tensor, int, int]:
        scales = check_scales(raw, self.scale, raw.take(self.scale, *FLOATS))
        if self.block is not None:
            rows, columns = self.block
            shape = (-(-outputs // rows), -(-inputs // columns))
            return own(raw.take(self.scale, *FLOATS, shape=shape)).float(), rows, columns
        if scales.numel() == 1:
            return own(scales.reshape(1, 1)).float(), outputs, inputs
        if scales.numel() != outputs:
            raise raw.error(
                self.scale, f"has shape {list(scales.shape)}, expected one value or one for each of {outputs} rows"
            )
        return own(scales.reshape(outputs, 1)).float(), 1, inputs
