"""Codes in and out of the strings of bits that they are packed in."""

from __future__ import annotations

import torch
from torch import Tensor

_AT_ONCE = 1 << 20
"""Codes that are packed at a time."""


def packed_words(count: int, bits: int) -> int:
    """32-bit words that `count` codes take."""
    return -(-count * bits // 32)


def unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """Codes [N, count] uint8 of rows of 32-bit words [N, W], least significant bits first.

    Codes may cross from one word into the next (3 bits: 32 in 3 words); bits must be 1 to 8.
    """
    if 32 % bits == 0:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
        codes = (words[..., None] >> shifts) & ((1 << bits) - 1)  # an arithmetic shift: what it lets in is masked away
        return codes.flatten(-2)[..., :count].to(torch.uint8)
    wide = words.to(torch.int64) & 0xFFFFFFFF
    wide = torch.cat((wide, torch.zeros_like(wide[..., :1])), dim=-1)
    starts = torch.arange(count, device=words.device) * bits
    word, shift = starts // 32, starts % 32
    pair = wide[..., word] | (wide[..., word + 1] << 32)
    return ((pair >> shift) & ((1 << bits) - 1)).to(torch.uint8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Rows of codes [N, K] as int32 words [N, ceil(K × bits / 32)], least significant bits first; the rest is zeros.

    Works through a few rows at a time, as the codes take many times the memory of the words meanwhile.

    Raises:
        ValueError: a code that does not fit into `bits`.
    """
    if codes.numel() and (int(codes.max()) >> bits or int(codes.min()) < 0):
        raise ValueError(f"codes between {int(codes.min())} and {int(codes.max())} do not fit into {bits} bits")
    rows, count = codes.shape
    words = torch.empty(rows, packed_words(count, bits), dtype=torch.int32, device=codes.device)
    step = max(1, _AT_ONCE // max(count, 1))
    for first in range(0, rows, step):
        words[first : first + step] = _pack(codes[first : first + step], bits)
    return words


def _pack(codes: Tensor, bits: int) -> Tensor:
    count = codes.shape[1]
    if 32 % bits == 0:
        share = 32 // bits
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=codes.device)
        filled = torch.nn.functional.pad(codes, (0, -count % share)).to(torch.int32).unflatten(1, (-1, share))
        return (filled << shifts).sum(-1, dtype=torch.int32)
    words = torch.zeros(len(codes), packed_words(count, bits) + 1, dtype=torch.int64, device=codes.device)
    starts = torch.arange(count, device=codes.device) * bits
    placed = codes.to(torch.int64) << (starts % 32)
    words.index_add_(1, starts // 32, placed & 0xFFFFFFFF)
    words.index_add_(1, starts // 32 + 1, placed >> 32)
    return words[:, :-1].to(torch.int32)
