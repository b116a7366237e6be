"""Random weights: for benchmarks of a model without its checkpoint, and for small models in tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from backends.model.architecture import Architecture
from backends.model.parameters import Parameters
from backends.weights.names import places

_LARGE = 1 << 24
_BLOCK = 4_194_301
"""Values that large matrices repeat, as drawing billions takes minutes; a prime, so that no two rows are alike."""


def fill_randomly(
    architecture: Architecture, parameters: Parameters, seed: int, progress: Callable[[int, int], None] | None = None
) -> None:
    """Fill all weights with numbers that keep activations of ordinary size; equal seeds give equal weights on a device.

    Matrices are normal with variance 1 / inputs, norms lie around 1, biases around 0; none is constant or zero, since
    arithmetic on zeros draws less power than a real model and runs at higher clocks.
    """
    wanted = places(architecture, parameters)
    total = sum(tensor.nbytes for tensor in wanted.values())
    generator = torch.Generator(parameters.embedding.device).manual_seed(seed)
    block: torch.Tensor | None = None
    done = 0
    for name, tensor in wanted.items():
        if name.endswith("norm.weight"):
            tensor.normal_(1.0, 0.1, generator=generator)
        elif name.endswith("bias"):
            tensor.normal_(0.0, 0.1, generator=generator)
        else:
            inputs = 1 if name.endswith("embed_tokens.weight") and not architecture.spec.tied else tensor.shape[-1]
            if tensor.numel() < _LARGE:
                tensor.normal_(0.0, 1 / math.sqrt(inputs), generator=generator)
            else:
                if block is None:
                    block = torch.empty(_BLOCK, dtype=tensor.dtype, device=tensor.device).normal_(generator=generator)
                _tile(tensor, block, 1 / math.sqrt(inputs))
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)


def _tile(tensor: torch.Tensor, block: torch.Tensor, scale: float) -> None:
    """Fill a contiguous tensor with `scale` times the block, again and again."""
    flat, scaled = tensor.reshape(-1), block * scale
    if flat.data_ptr() != tensor.data_ptr():
        raise ValueError("the tensor is not contiguous")
    whole = flat.numel() // len(block) * len(block)
    flat[:whole].view(-1, len(block)).copy_(scaled.expand(whole // len(block), -1))
    flat[whole:].copy_(scaled[: flat.numel() - whole])
