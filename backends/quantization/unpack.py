"""Codes in and out of the strings of bits that they are packed in."""

from __future__ import annotations

import torch
from torch import Tensor


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

    Raises:
        ValueError: a code that does not fit into `bits`.
    """
    if codes.numel() and (int(codes.max()) >> bits or int(codes.min()) < 0):
        raise ValueError(f"codes between {int(codes.min())} and {int(codes.max())} do not fit into {bits} bits")
    rows, count = codes.shape
    words = torch.zeros(rows, packed_words(count, bits) + 1, dtype=torch.int64, device=codes.device)
    starts = torch.arange(count, device=codes.device) * bits
    word, shift = starts // 32, starts % 32
    placed = codes.to(torch.int64) << shift
    words.index_add_(1, word, placed & 0xFFFFFFFF)
    words.index_add_(1, word + 1, placed >> 32)
    return words[:, :-1].to(torch.int32)
