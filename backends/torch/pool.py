"""Keys and values on the device: one tensor of pages for all layers."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from sim.models.spec import ModelSpec


class KVPool:
    """`pages` pages of `page_size` slots.

    Attributes:
        cache: [layers, 2, pages, page size, KV heads, head dim]; keys, then values.
    """

    def __init__(self, spec: ModelSpec, pages: int, page_size: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (spec.layers, 2, pages, page_size, spec.kv_heads, spec.head_dim)
        self.cache = torch.empty(shape, dtype=dtype, device=device)

    @property
    def page_size(self) -> int:
        """Slots a page."""
        return self.cache.shape[3]

    def copy(self, pairs: Seq[tuple[int, int]]) -> None:
        """Copy pages: (source, destination). No destination is also a source."""
        source, destination = map(self._index, zip(*pairs, strict=True))
        self.cache[:, :, destination] = self.cache[:, :, source]

    def take_out(self, pages: Seq[int]) -> Tensor:
        """A copy of these pages on the host."""
        taken = self.cache[:, :, self._index(pages)]
        if self.cache.is_cuda:
            host = torch.empty(taken.shape, dtype=taken.dtype, pin_memory=True)
            return host.copy_(taken, non_blocking=True)
        return taken

    def put_back(self, pages: Seq[int], held: Tensor) -> None:
        """Fill these pages with what was taken out."""
        self.cache[:, :, self._index(pages)] = held.to(self.cache.device, non_blocking=True)

    def _index(self, pages: Seq[int]) -> Tensor:
        return torch.tensor(list(pages), dtype=torch.int64).to(self.cache.device)
