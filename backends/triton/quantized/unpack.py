"""Tiles of packed weights as numbers: the layout of `backends.quantization.base`, read by words and spread out in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def code_tile(codes_ptr, row, live, start, inputs, code_row, BITS: tl.constexpr, BLOCK_N: tl.constexpr,
              BLOCK_K: tl.constexpr):  # fmt: skip
    """Codes [N, K] of outputs `row` [N] (int64; `live`: there are such), columns from `start` on; 0 beyond the last.

    Every word is loaded once. At 3 bits 32 codes lie in three words, and some cross from one into the next.
    """
    if BITS == 8:
        k = start + tl.arange(0, BLOCK_K)
        place = codes_ptr + row[:, None] * code_row + k[None, :]
        mask = live[:, None] & (k < inputs)[None, :]
        if codes_ptr.dtype.element_ty.is_floating():
            codes = tl.load(place, mask=mask, other=0.0)
        else:
            codes = tl.load(place, mask=mask, other=0)
    elif BITS == 4:
        word = start // 8 + tl.arange(0, BLOCK_K // 8)
        place = codes_ptr + row[:, None] * code_row + word[None, :]
        words = tl.load(place, mask=live[:, None] & (word < code_row)[None, :], other=0)
        spread = (words[:, :, None] >> (tl.arange(0, 8) * 4)[None, None, :]) & 15
        codes = tl.reshape(spread, [BLOCK_N, BLOCK_K])
    else:
        tl.static_assert(BITS == 3)
        first = start // 32 * 3 + tl.arange(0, BLOCK_K // 32) * 3
        place = codes_ptr + row[:, None] * code_row + first[None, :]
        there = live[:, None] & (first < code_row)[None, :]
        low = tl.load(place, mask=there, other=0).to(tl.int64) & 0xFFFFFFFF
        there = live[:, None] & (first + 1 < code_row)[None, :]
        middle = tl.load(place + 1, mask=there, other=0).to(tl.int64) & 0xFFFFFFFF
        there = live[:, None] & (first + 2 < code_row)[None, :]
        high = tl.load(place + 2, mask=there, other=0).to(tl.int64)
        bit = (tl.arange(0, 32) * 3)[None, None, :]
        front = (low | (middle << 32))[:, :, None] >> tl.minimum(bit, 60)
        back = (middle | (high << 32))[:, :, None] >> tl.maximum(bit - 32, 0)
        codes = tl.reshape((tl.where(bit <= 60, front, back) & 7).to(tl.int32), [BLOCK_N, BLOCK_K])
    return codes


@triton.jit
def e2m1(code):
    """float32 of 4-bit floats: sign, two bits of exponent, one of mantissa."""
    size = code & 7
    normal = (((size >> 1) + 126) << 23 | (size & 1) << 22).to(tl.float32, bitcast=True)
    value = tl.where(size < 2, size.to(tl.float32) * 0.5, normal)
    return tl.where((code & 8) != 0, -value, value)


@triton.jit
def widened_scale(raw, KIND: tl.constexpr):
    """float32 of a scale. `KIND`: `float` of any width, or the bits of `e4m3` or `e8m0`, which compilers do not all know."""
    if KIND == "e4m3":
        bits = raw.to(tl.int32) & 0x7F
        exponent, rest = bits >> 3, (bits & 7).to(tl.float32)
        power = ((exponent + 117) << 23).to(
            tl.float32, bitcast=True
        )  # 2^(exponent − 10): the eighths are whole numbers
        value = tl.where(exponent == 0, rest * 0.001953125, (rest + 8.0) * power)
        value = tl.where(raw.to(tl.int32) > 127, -value, value)
    elif KIND == "e8m0":
        bits = raw.to(tl.int32)
        value = tl.where(bits == 0, 0x00400000, bits << 23).to(tl.float32, bitcast=True)
    else:
        value = raw.to(tl.float32)
    return value


@triton.jit
def grouped_tile(ptr, row, live, start, inputs, groups, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 KIND: tl.constexpr):  # fmt: skip
    """What lies by groups of columns at ptr [rows, groups], in float32, for a tile of columns from `start` on.

    `row` [N] is int64. One value a row where a tile lies within a group; else they are spread out.

    Returns:
        [N, 1] or [N, K].
    """
    base = ptr + row * groups
    if GROUP % BLOCK_K == 0:
        value = widened_scale(tl.load(base + start // GROUP, mask=live, other=0), KIND)[:, None]
    elif BLOCK_K % GROUP == 0:
        group = start // GROUP + tl.arange(0, BLOCK_K // GROUP)
        mask = live[:, None] & (group < groups)[None, :]
        narrow = widened_scale(tl.load(base[:, None] + group[None, :], mask=mask, other=0), KIND)
        spread = tl.broadcast_to(narrow[:, :, None], [BLOCK_N, BLOCK_K // GROUP, GROUP])
        value = tl.reshape(spread, [BLOCK_N, BLOCK_K])
    else:
        k = start + tl.arange(0, BLOCK_K)  # a group that does not go into a tile, nor a tile into it
        mask = live[:, None] & (k < inputs)[None, :]
        value = widened_scale(tl.load(base[:, None] + (k // GROUP)[None, :], mask=mask, other=0), KIND)
    return value


@triton.jit
def value_tile(
    codes_ptr, zeros_ptr, table, row_zero, row, live, start, inputs, groups, code_row,
    FORM: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Decoded codes [N, K] in float32, zeros taken off, without scales.

    `table` [N, entries] is looked up by codes of form `table`; `row_zero` [N] is taken off where zeros have no groups.
    """
    codes = code_tile(codes_ptr, row, live, start, inputs, code_row, BITS, BLOCK_N, BLOCK_K)
    if FORM == "table":
        value = tl.gather(table, codes, 1)
    elif FORM == "fp4":
        value = e2m1(codes)
    else:
        value = codes.to(tl.float32)
    if FORM == "int":
        if ZEROS and GROUP > 0:
            value = value - grouped_tile(
                zeros_ptr, row, live, start, inputs, groups, GROUP, BLOCK_N, BLOCK_K, "float"
            )  # fmt: skip
        else:
            value = value - row_zero[:, None]
    return value


@triton.jit
def outer_scaled(scale, outer, OUTER: tl.constexpr):
    """`scale` times its second level (`OUTER` 1), over it (−1), or itself."""
    if OUTER == 1:
        scale = scale * outer
    if OUTER == -1:
        scale = tl.div_rn(scale, tl.zeros(scale.shape, tl.float32) + outer)
    return scale


@triton.jit
def row_table(table_ptr, row, live, FORM: tl.constexpr, BITS: tl.constexpr):
    """The look-up tables [N, entries] of outputs `row`; something small for other forms."""
    if FORM == "table":
        entry = tl.arange(0, 1 << BITS)
        place = table_ptr + row[:, None] * (1 << BITS) + entry[None, :]
        table = tl.load(place, mask=live[:, None], other=0.0).to(tl.float32)
    else:
        table = tl.zeros([1, 1], tl.float32)
    return table


@triton.jit
def row_zeros(zeros_ptr, row, live, zero, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr):
    """What is taken off the codes of a whole row, [N]."""
    found = tl.zeros([BLOCK_N], tl.float32) + zero
    if ZEROS and GROUP == 0:
        found = tl.load(zeros_ptr + row, mask=live, other=0).to(tl.float32)
    return found
