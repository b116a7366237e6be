"""Keys and values in int8 with a scale for every head of every token, in plain torch.

The scale is a head's largest absolute value over 127, rounded to float16 before it divides, so that what is read back is what
was rounded. It is kept between 2^-14 and 65504, the normal numbers of float16: a head of zeros has a scale, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 127.0
LEAST_SCALE, LARGEST_SCALE = 2.0**-14, 65504.0


def quantised_heads(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` [..., heads, dim] as int8 and its scales [..., heads] in float16; rounded to nearest, ties to even."""
    wide = x.float()
    scale = (wide.abs().amax(dim=-1) / MOST).clamp(LEAST_SCALE, LARGEST_SCALE).to(torch.float16)
    values = torch.round(wide / scale.float()[..., None]).clamp(-MOST, MOST)
    return values.to(torch.int8), scale


def dequantised_heads(values: Tensor, scale: Tensor) -> Tensor:
    """What int8 `values` [..., heads, dim] with scales [..., heads] stand for, in float32."""
    return values.float() * scale.float()[..., None]
