"""How well a model predicts a text, and how close two models' predictions are: on the engine's own forward pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch
from torch import Tensor

from backends.model.model import Model
from backends.torch.pack import bare_batch
from backends.torch.pool import KVPool, stored_dtype

_PAGE = 16
_WARM, _LEAST, _MOST, _BUDGET = 2, 5, 50, 3.0  # decode steps: not counted, at least, at most, and seconds for them


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the scored tokens of one window, all [tokens] float32.

    Attributes:
        loss: −log probability of the token that came. divergence: KL(reference ‖ model) of the whole distribution.
        agrees: 1 where both find the same token most likely.
    """

    loss: np.ndarray
    divergence: np.ndarray
    agrees: np.ndarray


class Scorer:
    """A model with pages for one window.

    Args:
        kv: as in `kv.dtype`: keys and values are stored in it and read back, those of the same window too.
        longest: tokens of a window.
    """

    def __init__(self, model: Model, kv: str, longest: int) -> None:
        self.model = model
        pages = -(-(longest + 1) // _PAGE)
        dtype = stored_dtype(kv, model.dtype)
        self._pool = KVPool(model.architecture.spec, pages, _PAGE, dtype, model.device)
        self._tables = np.arange(pages).reshape(1, pages)

    def logits(self, ids: Sequence[int], first: int) -> Tensor:
        """Logits [len(ids) − first, vocabulary] float32 of the window's tokens from number `first` on."""
        device = self.model.device
        batch = bare_batch([0], [len(ids)], self._tables, _PAGE, device)
        rows = torch.arange(first, len(ids), dtype=torch.int64, device=device)
        batch = replace(batch, ids=torch.tensor(ids, dtype=torch.int64, device=device), sample_rows=rows)
        return self.model.forward(batch, self._pool.cache, self._pool.scales)

    def decode_seconds(self, past: int) -> float:
        """Median seconds of a decode step of one sequence with `past` tokens before it."""
        device, times = self.model.device, []
        batch = bare_batch([past], [1], self._tables, _PAGE, device)
        self._pool.cache.zero_() if self._pool.cache.element_size() > 1 else self._pool.cache.view(torch.uint8).zero_()
        if self._pool.scales is not None:
            self._pool.scales.fill_(1.0)
        for number in range(_WARM + _MOST):
            began = time.perf_counter()
            self.model.forward(batch, self._pool.cache, self._pool.scales).argmax(-1).tolist()  # waits for the device
            if number >= _WARM:
                times.append(time.perf_counter() - began)
            if len(times) >= _LEAST and sum(times) > _BUDGET:
                break
        return median(times)


@torch.inference_mode()
def score(reference: Tensor, logits: Tensor, targets: Sequence[int]) -> Scores:
    """Compare predictions [tokens, vocabulary] for the tokens that came."""
    right = torch.tensor(targets, dtype=torch.int64, device=logits.device)[:, None]
    ours = logits.float().log_softmax(-1)
    theirs = reference.to(logits.device).float().log_softmax(-1)
    divergence = (theirs.exp() * (theirs - ours)).sum(-1)
    found = (-ours.gather(1, right)[:, 0], divergence, (ours.argmax(-1) == theirs.argmax(-1)).float())
    return Scores(*(each.cpu().numpy() for each in found))


def weights_in_memory(model: Model) -> tuple[int, int, int]:
    """Bytes of all weights; bytes, and number, of those of linear layers inside transformer layers."""
    from backends.quantization.base import QuantizedBank, QuantizedLinear
    from backends.weights.names import places

    everything = sum(each.nbytes for each in places(model.architecture, model.parameters).values())
    packed = 0
    for layer in model.parameters.layers:
        mlp = layer.mlp
        for each in (layer.qkv, layer.out, mlp.gate_up, mlp.down):
            for one in each if isinstance(each, tuple) else (each,):
                if isinstance(one, QuantizedLinear):
                    packed += one.nbytes - (one.bias.nbytes if one.bias is not None else 0)
                elif isinstance(one, QuantizedBank):
                    packed += one.nbytes
                else:
                    packed += one.nbytes if isinstance(one, Tensor) else one.weight.nbytes
    kinds = ("attention", "mlp", "expert")
    count = sum(
        each.layers * each.copies * each.n * each.k for each in model.architecture.spec.linears() if each.kind in kinds
    )
    return everything, packed, count
