"""4-bit floats (E2M1): NVFP4 as compressed-tensors and ModelOpt write it, MXFP4 as compressed-tensors does.

Two codes a byte, the even column in the low nibble. NVFP4 has an E4M3 scale for every 16 columns and one float32 scale a tensor:
compressed-tensors' `weight_global_scale` divides, ModelOpt's `weight_scale_2` multiplies. MXFP4 has a power of two for every 32
(E8M0, a byte: exponent + 127). The layouts are those of compressed-tensors (`compressors/nvfp4`) and of ModelOpt's exporter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.quantization.base import Activation, QuantizedWeight
from backends.quantization.formats.raw import Raw, check_scales, own


@dataclass(frozen=True, slots=True)
class NvFp4:
    """NVFP4.

    Attributes:
        modelopt: ModelOpt's names and multiplying scales; else compressed-tensors' names and dividing ones.
        inputs: activations are quantized too, under the checkpoint's own second-level scale.
    """

    modelopt: bool = False
    inputs: bool = True
    mode: str = "nvfp4"
    group: int = 16

    @property
    def packed(self) -> str:
        """See `LayerFormat`."""
        return "weight" if self.modelopt else "weight_packed"

    def load(self, raw: Raw, outputs: int, inputs: int) -> QuantizedWeight:
        """See `LayerFormat.load`."""
        codes = nibbles(raw, self.packed, outputs, inputs)
        scales = raw.take("weight_scale", torch.float8_e4m3fn, shape=(outputs, -(-inputs // self.group)))
        outer = raw.scale("weight_scale_2" if self.modelopt else "weight_global_scale")
        raw.ignore("k_scale", "v_scale", "input_scale", "input_global_scale")
        return QuantizedWeight(
            "fp4", 4, outputs, inputs, codes, scales=own(check_scales(raw, "weight_scale", scales)), group=self.group,
            outer=outer.expand(outputs).clone(), outer_divides=not self.modelopt, activation=self._activation(raw),
        )  # fmt: skip

    def _activation(self, raw: Raw) -> Activation | None:
        if not self.inputs:
            return None
        scale = raw.scale("input_scale") if self.modelopt else 1 / raw.scale("input_global_scale")
        return Activation("fp4", self.group, scale)

    def save(self, codes: Tensor, scales: Tensor, divisor: Tensor) -> dict[str, Tensor]:
        """compressed-tensors' tensors of a layer from codes [N, K], E4M3 scales [N, groups] and the global divisor."""
        return {
            "weight_packed": (codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous(),
            "weight_scale": scales.contiguous(), "weight_global_scale": divisor.reshape(1).float(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class MxFp4:
    """MXFP4 of compressed-tensors, weight-only."""

    mode: str = "mxfp4"
    group: int = 32
    packed: str = "weight_packed"

    def load(self, raw: Raw, outputs: int, inputs: int) -> QuantizedWeight:
        """See `LayerFormat.load`."""
        codes = nibbles(raw, "weight_packed", outputs, inputs)
        scales = own(raw.take("weight_scale", torch.uint8, shape=(outputs, -(-inputs // self.group))))
        if bool((scales == 255).any()):
            raise raw.error("weight_scale", "has the code for NaN among its exponents")
        return QuantizedWeight(
            "fp4", 4, outputs, inputs, codes, scales=scales.view(torch.float8_e8m0fnu), group=self.group
        )


def nibbles(raw: Raw, suffix: str, outputs: int, inputs: int) -> Tensor:
    """Bytes [N, K / 2] of two codes as the engine's words [N, ceil(K / 8)]."""
    if inputs % 2:
        raise raw.error(suffix, f"packs two columns a byte, which {inputs} inputs do not fill")
    found = raw.take(suffix, torch.uint8, shape=(outputs, inputs // 2))
    return own(torch.nn.functional.pad(found, (0, -found.shape[1] % 4))).view(torch.int32)
