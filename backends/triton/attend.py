"""What both attention kernels are made of: the queries of a sequence as the rows of a tile, and the step in which one block of
keys and values joins a running softmax in float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(a, b, acc, UP: tl.constexpr):
    """`a @ b + acc` in float32; float32 operands are not cut to TF32. `UP`: widen first, for the interpreter."""
    if UP:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def sequence_of(starts_ptr, lengths_ptr, sequence):
    """First token, number of queries, and cached tokens of a sequence."""
    start = tl.load(starts_ptr + sequence).to(tl.int64)
    queries = (tl.load(starts_ptr + sequence + 1) - start).to(tl.int32)
    return start, queries, tl.load(lengths_ptr + sequence).to(tl.int32)


@triton.jit
def query_rows(q_ptr, q_token, q_head, start, first, queries, head, GROUP: tl.constexpr, DIM: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Row r of a tile: query first + r // GROUP of the sequence, head r % GROUP of the KV head.

    Returns:
        Queries [M, D], their numbers in the sequence [M], their heads [M], and which values there are [M, D].
    """
    row, column = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    query, member = first + row // GROUP, head * GROUP + row % GROUP
    whole = row < BLOCK_M // GROUP * GROUP
    live = (whole & (query < queries))[:, None] & (column < DIM)[None, :]
    place = q_ptr + ((start + query) * q_token + member * q_head)[:, None] + column[None, :]
    return tl.load(place, mask=live, other=0.0), query, member, live


@triton.jit
def attend_block(
    q, best, total, acc, key, place, low, last, table_ptr, k_ptr, v_ptr, ks_ptr, vs_ptr, k_page, k_slot, v_page, v_slot,
    s_page, s_slot, scale, softcap, window,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, SCALED: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    """Let the rows of `q` [M, D] see the keys numbered `key` [N].

    Args:
        best, total, acc: highest score [M] so far (times log2 e), sum of weights [M], weighted sum of values [M, D].
        place: [M], positions of the rows; a row sees keys up to its own position.
        low, last: keys before one (with a window) and from the other on are neither seen nor loaded. Without `MASKED` every row
            sees every key, and none is beyond.
        table_ptr: pages of the sequence. k_ptr, v_ptr: pages, moved to this KV head; with `SCALED` of int8, whose scales lie at
            ks_ptr and vs_ptr, moved likewise.
        scale: on scores; times log2 e unless there is a softcap.

    Returns:
        best, total, acc.
    """
    column = tl.arange(0, BLOCK_D)
    inside = column < DIM
    if MASKED:
        valid = key < last
        if WINDOW:
            valid = valid & (key >= low)
        page = tl.load(table_ptr + key // PAGE, mask=valid, other=0).to(tl.int64)
    else:
        page = tl.load(table_ptr + key // PAGE).to(tl.int64)
    slot = (key % PAGE).to(tl.int64)
    k_place = k_ptr + (page * k_page + slot * k_slot)[None, :] + column[:, None]
    v_place = v_ptr + (page * v_page + slot * v_slot)[:, None] + column[None, :]
    if MASKED:
        k = tl.load(k_place, mask=valid[None, :] & inside[:, None], other=0.0)
        v = tl.load(v_place, mask=valid[:, None] & inside[None, :], other=0.0)
    elif DIM != BLOCK_D:
        k = tl.load(k_place, mask=inside[:, None], other=0.0)
        v = tl.load(v_place, mask=inside[None, :], other=0.0)
    else:
        k = tl.load(k_place)
        v = tl.load(v_place)
    if SCALED and UP:  # the interpreter knows no other way from int8 to bf16
        k, v = k.to(tl.float32), v.to(tl.float32)
    scores = product(q, k.to(q.dtype), tl.zeros([q.shape[0], key.shape[0]], tl.float32), UP) * scale
    if SCALED:
        s_place = page * s_page + slot * s_slot
        if MASKED:
            k_scale = tl.load(ks_ptr + s_place, mask=valid, other=0.0).to(tl.float32)
            v_scale = tl.load(vs_ptr + s_place, mask=valid, other=0.0).to(tl.float32)
        else:
            k_scale = tl.load(ks_ptr + s_place).to(tl.float32)
            v_scale = tl.load(vs_ptr + s_place).to(tl.float32)
        scores = scores * k_scale[None, :]
    if SOFTCAP:
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0) * 1.4426950408889634
    if MASKED:
        seen = (key[None, :] <= place[:, None]) & valid[None, :]
        if WINDOW:
            seen = seen & (key[None, :] > place[:, None] - window)
        scores = tl.where(seen, scores, -float("inf"))
    highest = tl.maximum(best, tl.max(scores, axis=1))
    finite = tl.where(highest == -float("inf"), 0.0, highest)  # a row that has seen nothing: weights 0, not NaN
    decay = tl.exp2(best - finite)
    weights = tl.exp2(scores - finite[:, None])
    total = total * decay + tl.sum(weights, axis=1)
    if SCALED:
        weights = weights * v_scale[None, :]
    acc = product(weights.to(q.dtype), v.to(q.dtype), acc * decay[:, None], UP)
    return highest, total, acc
