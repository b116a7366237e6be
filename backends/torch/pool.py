"""Keys and values on the device: one tensor of pages for all layers, and one of scales where they need it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from sim.models.spec import ModelSpec
from sim.quantization.kv import KVMode, load_kv_mode
from workloads.errors import InputError, Place

STORED = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp8-e4m3": torch.float8_e4m3fn, "fp8-e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}  # fmt: skip
"""KV modes that run, by their names in `kv.dtype`."""

SCALE = torch.float16
"""Type of the scales of int8 pages, one for every head of every token."""


def stored_dtype(name: str | KVMode, model: torch.dtype) -> torch.dtype:
    """In what an engine with this `kv.dtype` keeps keys and values; `auto` is the model's own type.

    Raises:
        InputError: a mode that can only be simulated.
    """
    if isinstance(name, str) and name.lower() in ("auto", ""):
        return model
    mode = load_kv_mode(name) if isinstance(name, str) else name
    if mode.name not in STORED:
        raise InputError(
            f"KV in {mode.name} can only be simulated", place=Place(key="engine.kv.dtype"),
            hint=f"these run: auto, {', '.join(STORED)}",
        )  # fmt: skip
    return STORED[mode.name]


def stored_name(dtype: torch.dtype) -> str:
    """The name in `kv.dtype` of what keys and values are kept in."""
    return next((name for name, known in STORED.items() if known == dtype), "fp32")


def token_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes of KV a token, scales included."""
    head = spec.head_dim * dtype.itemsize + (SCALE.itemsize if dtype == torch.int8 else 0)
    return 2 * spec.layers * spec.kv_heads * head


class KVPool:
    """`pages` pages of `page_size` slots.

    Attributes:
        cache: [layers, 2, pages, page size, KV heads, head dim]; keys, then values.
        scales: [layers, 2, pages, page size, KV heads] float16, of int8 pages; else None.
    """

    def __init__(self, spec: ModelSpec, pages: int, page_size: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (spec.layers, 2, pages, page_size, spec.kv_heads, spec.head_dim)
        self.cache = torch.empty(shape, dtype=dtype, device=device)
        self.scales = torch.empty(shape[:-1], dtype=SCALE, device=device) if dtype == torch.int8 else None
        parts = [self.cache] if self.scales is None else [self.cache, self.scales]
        # one byte as a byte: torch has no indexing of fp8 tensors on every device
        self._parts = [part.view(torch.uint8) if part.element_size() == 1 else part for part in parts]

    @property
    def page_size(self) -> int:
        """Slots a page."""
        return self.cache.shape[3]

    def fill(self) -> None:
        """Numbers of ordinary size in every page, for timing."""
        if self.cache.element_size() > 1:
            self.cache.normal_()
        elif self.scales is None:
            self.cache.view(torch.uint8).random_(0, 64)  # fp8, from 0 to a few
        else:
            self.cache.random_(-127, 128)
            self.scales.fill_(1 / 64)

    def clear(self, page: int) -> None:
        """Fill a page with zeros."""
        for part in self._parts:
            part[:, :, page] = 0

    def copy(self, pairs: Seq[tuple[int, int]]) -> None:
        """Copy pages: (source, destination). No destination is also a source."""
        source, destination = map(self._index, zip(*pairs, strict=True))
        for part in self._parts:
            part[:, :, destination] = part[:, :, source]

    def take_out(self, pages: Seq[int]) -> list[Tensor]:
        """A copy of these pages on the host."""
        index = self._index(pages)
        return [_to_host(part[:, :, index]) for part in self._parts]

    def put_back(self, pages: Seq[int], held: list[Tensor]) -> None:
        """Fill these pages with what was taken out."""
        index = self._index(pages)
        for part, mine in zip(self._parts, held, strict=True):
            part[:, :, index] = mine.to(part.device, non_blocking=True)

    def _index(self, pages: Seq[int]) -> Tensor:
        return torch.tensor(list(pages), dtype=torch.int64).to(self.cache.device)


def _to_host(taken: Tensor) -> Tensor:
    if taken.is_cuda:
        host = torch.empty(taken.shape, dtype=taken.dtype, pin_memory=True)
        return host.copy_(taken, non_blocking=True)
    return taken
