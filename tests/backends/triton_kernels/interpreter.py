"""Turns on Triton's interpreter for this process, and mends how it rounds. To be imported before anything that imports Triton.

The interpreter of Triton 3.6 to 3.9 cuts bfloat16 off where hardware rounds to nearest even, and loses carries in fp8 (31.9
becomes 16). Its conversion of floats is replaced by torch's; `check_interpreter.py` would notice if that ceased to work. Kernels
widen bfloat16 and fp8 before they calculate, so nothing else of that kind needs mending. Triton 3.6 also takes an array of one
element for a number, which NumPy 2.4 refuses.
"""

from __future__ import annotations

import os
import sys

if "triton" in sys.modules:
    raise RuntimeError(
        "Triton was imported before its interpreter was turned on; run these files with pytest on their own"
    )
os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

torch.set_num_threads(1)
_TORCH = {
    tl.float32: torch.float32, tl.float16: torch.float16, tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2,
}  # fmt: skip
_BITS = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}
_unmended = triton_interpreter._convert_float
_patch_tensor = triton_interpreter._patch_lang_tensor


def _convert_float(values, source, target, rounding_mode):
    """numpy bits of `source` → numpy bits of `target`, as torch rounds; fp8 saturates, as NVIDIA's conversion does."""
    if source not in _TORCH or target not in _TORCH:
        return _unmended(values, source, target, rounding_mode)
    bits = torch.from_numpy(np.ascontiguousarray(values).view(f"u{source.primitive_bitwidth // 8}").copy())
    wide = bits.view(_TORCH[source]).float()
    if target.primitive_bitwidth == 8:
        most = torch.finfo(_TORCH[target]).max
        wide = torch.where(wide.isnan(), wide, wide.clamp(-most, most))
    return wide.to(_TORCH[target]).view(_BITS[target.primitive_bitwidth]).numpy().reshape(np.shape(values))


triton_interpreter._convert_float = _convert_float


def _patch_lang_tensor(tensor, scope):
    """As before, but an array of one element is a number."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))


triton_interpreter._patch_lang_tensor = _patch_lang_tensor
