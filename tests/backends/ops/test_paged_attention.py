"""Attention over pages against torch's own attention over dense keys, with everything unwritten poisoned."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.0")

from backends.ops.base import PackedBatch  # noqa: E402
from backends.ops.reference import ReferenceOperators  # noqa: E402

OPS = ReferenceOperators()


def scattered(rows: list[tuple[int, int]], page: int, kv_heads: int, dim: int, heads: int, seed: int = 0):
    """(queries, length) a sequence → q, pages, the batch, and dense keys and values a sequence."""
    draw = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    needs = [-(-length // page) for _, length in rows]
    order = draw.permutation(sum(needs) + 3)
    pages = [torch.full((len(order), page, kv_heads, dim), float("nan")) for _ in range(2)]
    tables = np.full((len(rows), max(needs)), -1, np.int64)
    dense, used = [], 0
    for index, ((_, length), need) in enumerate(zip(rows, needs, strict=True)):
        tables[index, :need] = order[used : used + need]
        used += need
        mine = [torch.randn(length, kv_heads, dim, generator=generator) for _ in range(2)]
        for side, values in zip(pages, mine, strict=True):
            flat = side[tables[index, :need]].flatten(0, 1)
            flat[:length] = values
            side[tables[index, :need]] = (
                flat.unflatten(0, (need, page)) if need else flat.reshape(0, page, kv_heads, dim)
            )
        dense.append(mine)
    queries, lengths = (np.array(column) for column in zip(*rows, strict=True))
    starts = np.concatenate(([0], np.cumsum(queries)))
    none = torch.zeros(0, dtype=torch.int64)
    batch = PackedBatch(
        none,
        none,
        none,
        torch.as_tensor(starts),
        torch.as_tensor(lengths),
        torch.as_tensor(tables),
        none,
        queries,
        lengths,
    )
    return torch.randn(int(starts[-1]), heads, dim, generator=generator), *pages, batch, dense


def expected(
    q: torch.Tensor, rows: list[tuple[int, int]], dense: list, scale: float, window: int, softcap: float
) -> torch.Tensor:
    outs, start = [], 0
    for (count, length), (k, v) in zip(rows, dense, strict=True):
        mine = q[start : start + count].double()
        start += count
        group = q.shape[1] // k.shape[1]
        k, v = (side.double().repeat_interleave(group, dim=1) for side in (k, v))
        for i in range(count):
            last = length - count + i
            first = max(0, last - window + 1) if window else 0
            if length == 0:
                outs.append(torch.zeros(q.shape[1:], dtype=torch.double))
                continue
            scores = torch.einsum("hd,mhd->hm", mine[i], k[first : last + 1]) * scale
            scores = softcap * torch.tanh(scores / softcap) if softcap else scores
            outs.append(torch.einsum("hm,mhd->hd", scores.softmax(-1), v[first : last + 1]))
    return torch.stack(outs).float()


ROWS = [(1, 1), (1, 40), (7, 7), (5, 18), (1, 37), (16, 48), (1, 16), (1, 17), (13, 33)]


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 16), (6, 2, 64), (7, 1, 80), (8, 2, 96)])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (5, 0.0), (16, 0.0), (0, 3.0), (9, 3.0)])
def test_every_query_sees_exactly_its_keys(page, heads, kv_heads, dim, window, softcap) -> None:
    q, k, v, batch, dense = scattered(ROWS, page, kv_heads, dim, heads)
    got = OPS.attention(q, k, v, batch, scale=dim**-0.5, window=window, softcap=softcap)
    want = expected(q, ROWS, dense, dim**-0.5, window, softcap)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_many_decodes_of_very_different_lengths() -> None:
    rows = [(1, int(n)) for n in np.random.default_rng(0).integers(1, 200, 90)]
    q, k, v, batch, dense = scattered(rows, 16, 2, 32, 4)
    got = OPS.attention(q, k, v, batch, scale=0.2)
    torch.testing.assert_close(got, expected(q, rows, dense, 0.2, 0, 0.0), rtol=1e-5, atol=1e-5)


def test_a_padding_row_gives_zeros_and_touches_nothing() -> None:
    rows = [(1, 20), (1, 0), (3, 9), (2, 0)]
    q, k, v, batch, dense = scattered(rows, 4, 1, 16, 2)
    got = OPS.attention(q, k, v, batch, scale=0.25)
    assert not got[1].any() and not got[-2:].any()
    torch.testing.assert_close(got, expected(q, rows, dense, 0.25, 0, 0.0), rtol=1e-5, atol=1e-5)
