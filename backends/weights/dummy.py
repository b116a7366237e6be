"""Random weights: for benchmarks of a model without its checkpoint, and for small models in tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from backends.model.architecture import Architecture
from backends.model.parameters import Parameters
from backends.weights.names import places


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
    done = 0
    for name, tensor in wanted.items():
        if name.endswith("norm.weight"):
            tensor.normal_(1.0, 0.1, generator=generator)
        elif name.endswith("bias"):
            tensor.normal_(0.0, 0.1, generator=generator)
        else:
            inputs = 1 if name.endswith("embed_tokens.weight") and not architecture.spec.tied else tensor.shape[-1]
            tensor.normal_(0.0, 1 / math.sqrt(inputs), generator=generator)
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)
