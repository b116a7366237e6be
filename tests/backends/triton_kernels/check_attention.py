"""Both attention kernels against the float32 reference, on shapes at which such kernels go wrong."""

from __future__ import annotations

import interpreter  # noqa: F401 (first)
import pytest
import torch
from compare import DTYPES, assert_attention_close, normal
from paged import make_batch, make_int8_pages, make_pages

from backends.ops.reference import FP8, ReferenceOperators
from backends.triton.launch import Launcher, Target
from backends.triton.operators import TritonOperators
from workloads.errors import InputError

PLAIN = ReferenceOperators()
DECODES = [(1, 1), (1, 40), (1, 16), (1, 17), (1, 130)]
FEW = [(3, 20), (2, 2), (5, 18)]
PIECES = [(13, 33), (9, 9), (45, 77)]


def ours() -> TritonOperators:
    return TritonOperators(launch=Launcher(Target(processors=2, interpreted=True)))


def compare(
    rows, heads, kv_heads, dim, dtype=torch.float32, page=16, ops=None, pages_dtype=None, seed=0, **options
) -> torch.Tensor:
    """Ours and the reference on the same numbers, the reference in float32; what is near enough goes by `dtype`."""
    batch, count = make_batch(rows, page, seed)
    stored = torch.float32 if pages_dtype == torch.int8 else pages_dtype or dtype
    cache = make_pages(batch, count, page, kv_heads, dim, stored, seed)
    qkv = normal(int(batch.query_starts[-1]), heads + 2, dim, seed=seed + 50, dtype=dtype)
    q = qkv[:, :heads]  # a part of a wider row, as it comes from the model
    options.setdefault("scale", dim**-0.5)
    if pages_dtype == torch.int8:
        cache, options["kv_scales"] = make_int8_pages(cache)
    got = (ops or ours()).attention(q, cache[0], cache[1], batch, **options)
    wide = cache if pages_dtype else cache.float()
    want = PLAIN.attention(q.float(), wide[0], wide[1], batch, **options)
    assert_attention_close(got, want, dtype)
    return got


SINGLE, HALF, BRAIN = DTYPES


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "page", "dtype"),
    [
        (2, 2, 64, 16, BRAIN), (6, 2, 96, 1, SINGLE), (4, 1, 128, 16, HALF), (6, 1, 80, 16, BRAIN), (7, 1, 64, 1, SINGLE),
        (8, 1, 128, 16, BRAIN), (3, 1, 80, 1, HALF), (8, 1, 64, 16, SINGLE), (4, 1, 96, 16, BRAIN), (7, 1, 128, 16, HALF),
        (1, 1, 40, 32, SINGLE), (16, 1, 256, 16, BRAIN),
    ],
)  # fmt: skip
def test_a_mixed_batch(heads, kv_heads, dim, page, dtype) -> None:
    compare([*DECODES, *FEW, *PIECES], heads, kv_heads, dim, dtype, page)


@pytest.mark.parametrize("page", [1, 16])
def test_splits_most_of_which_are_not_theirs(page) -> None:
    """A sequence of one token is launched with as many splits as its long neighbour has."""
    compare([(1, 600), (1, 1), (1, 64), (1, 65), (4, 300), (2, 2)], 3, 1, 64, page=page)


def test_a_sequence_of_more_than_all_splits_at_their_shortest() -> None:
    compare([(1, 64 * 64 + 1), (1, 64 * 64), (1, 100)], 1, 1, 16)


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("window", [1, 5, 16, 64, 100])
def test_sliding_windows(window, page) -> None:
    compare([(1, 1), (1, 150), (3, 90), (20, 100), (30, 30)], 2, 1, 64, page=page, window=window)


@pytest.mark.parametrize("options", [{"softcap": 3.0}, {"softcap": 2.0, "window": 9}, {"scale": 0.4}, {"scale": 1e-4}])
def test_softcap_and_scale(options) -> None:
    compare([(1, 70), (3, 20), (12, 50)], 2, 2, 64, **options)


@pytest.mark.parametrize("page", [1, 16])
def test_every_length_around_a_page_and_a_block(page) -> None:
    lengths = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65)
    compare([(1, n) for n in lengths], 2, 1, 64, page=page)
    compare([(min(n, 11), n) for n in lengths if n > 8], 2, 1, 64, page=page)


@pytest.mark.parametrize("longest", [60, 200])
def test_padding_rows_give_zeros_and_change_nothing(longest) -> None:
    rows = [(1, longest), (1, 0), (3, 9), (2, 0), (12, 40), (10, 0)]
    got = compare(rows, 2, 1, 64)
    parts = got.split([count for count, _ in rows])
    assert not parts[1].any() and not parts[3].any() and not parts[5].any()


def test_a_sequence_gets_the_same_alone_and_in_company() -> None:
    """Bit for bit, however long the others are."""
    rows, ops = [(1, 50), (9, 30), (1, 333), (1, 700), (1, 64)], ours()
    batch, count = make_batch(rows, 16)
    cache = make_pages(batch, count, 16, 1, 64, torch.float32)
    q = normal(13, 2, 64)
    together = ops.attention(q, *cache, batch, scale=0.125)
    for index, (mine, (queries, length)) in enumerate(zip(together.split([1, 9, 1, 1, 1]), rows, strict=True)):
        alone, _ = make_batch([(queries, length)], 16)
        alone.block_tables[0] = batch.block_tables[index, : alone.block_tables.shape[1]]
        start = int(batch.query_starts[index])
        got = ops.attention(q[start : start + queries], *cache, alone, scale=0.125)
        assert torch.equal(got, mine)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fp8", FP8)
def test_fp8_pages_with_scales(fp8, dtype) -> None:
    rows = [(1, 100), (1, 5), (3, 20), (14, 40)]
    compare(rows, 4, 1, 80, dtype, pages_dtype=fp8, kv_scales=(0.5, 0.25))


@pytest.mark.parametrize("options", [{}, {"window": 40}, {"softcap": 3.0}])
@pytest.mark.parametrize(("dtype", "page"), [(torch.float32, 16), (torch.bfloat16, 1), (torch.float16, 16)])
def test_int8_pages_with_scales_of_every_head(dtype, page, options) -> None:
    rows = [(1, 100), (1, 5), (1, 0), (3, 20), (14, 40), (9, 75)]
    compare(rows, 6, 2, 80, dtype, page, pages_dtype=torch.int8, **options)


@pytest.mark.parametrize("pages_dtype", [None, torch.int8])
def test_pages_behind_the_window_are_never_read(pages_dtype) -> None:
    """Their numbers are far out of range, and what the first page within holds of keys behind the window is NaN."""
    rows, window, page = [(1, 90), (3, 100), (20, 150), (70, 71), (40, 500)], 33, 4
    batch, count = make_batch(rows, page)
    cache = make_pages(batch, count, page, 1, 64, torch.float32)
    q = normal(int(batch.query_starts[-1]), 2, 64)
    want = PLAIN.attention(q, *cache, batch, scale=0.1, window=window)
    if pages_dtype == torch.int8:
        cache, scales = make_int8_pages(cache)
        want = PLAIN.attention(q, *cache, batch, scale=0.1, window=window, kv_scales=scales)
    poisoned = cache[0] if pages_dtype is None else scales[0], cache[1] if pages_dtype is None else scales[1]
    for index, (queries, length) in enumerate(rows):
        low = max(0, length - queries + 1 - window)
        table = batch.block_tables[index]
        for side in poisoned:
            side[table[low // page], : low % page] = float("nan")
        table[: low // page] = 1 << 40
    options = {"scale": 0.1, "window": window} | ({"kv_scales": scales} if pages_dtype is not None else {})
    for ops in (ours(), PLAIN):
        assert_attention_close(ops.attention(q, *cache, batch, **options), want)


def test_e4m3_pages_are_refused_where_the_compiler_does_not_know_them() -> None:
    batch, count = make_batch([(1, 4)], 16)
    pages = make_pages(batch, count, 16, 1, 64, torch.float8_e4m3fn)
    ops = TritonOperators(launch=Launcher(Target("sm_80", 108)))
    with pytest.raises(InputError, match="e4m3 cannot be read by Triton on sm_80"):
        ops.attention(normal(1, 1, 64), *pages, batch, scale=1.0)


def test_scales_of_pages_that_are_not_fp8_do_nothing() -> None:
    compare([(1, 20), (9, 20)], 2, 1, 64, kv_scales=(0.5, 0.25))


def test_pages_far_beyond_two_to_the_thirty_first_element() -> None:
    """Address space for 2^31 and some elements is reserved; of it only two pages are ever touched."""
    far, heads, dim, page = 1 << 31, 2, 64, 16
    memory = torch.empty(far + 4 * page * dim, dtype=torch.float8_e5m2)
    near = 2 * page * dim
    k, v = (memory.as_strided((2, page, 1, dim), (far, dim, dim, 1), start) for start in (0, near))
    values = normal(2, page, 1, dim).to(torch.float8_e5m2)
    for side, mine in zip((k, v), values, strict=True):
        side[1].view(torch.uint8).copy_(mine.view(torch.uint8))
    rows = [(1, 12), (9, 16)]
    batch, _ = make_batch(rows, page)
    batch.block_tables[:] = 1
    q = normal(10, heads, dim)
    got = ours().attention(q, k, v, batch, scale=0.125)
    batch.block_tables[:] = 0
    assert_attention_close(got, PLAIN.attention(q, values[:1], values[1:], batch, scale=0.125))
