"""What quantised pages lose, and what the repetition penalty does, in the reference operators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.0")

from backends.ops.base import PackedBatch, SamplingBatch  # noqa: E402
from backends.ops.choose import penalised  # noqa: E402
from backends.ops.reference import FP8, ReferenceOperators, quantised, route  # noqa: E402

OPS = ReferenceOperators()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("fp8", FP8)
def test_fp8_rounds_to_nearest_and_saturates(fp8) -> None:
    most = torch.finfo(fp8).max
    x = torch.tensor([0.0, 1.0, -1.0, 3.1, 1e9, -1e9])
    scale = 0.25
    got = quantised(x, scale, fp8).float() * scale
    assert got[:3].tolist() == [0.0, 1.0, -1.0]
    assert got[3] in (3.0, 3.25)
    assert got[4] == most * scale == -got[5]


@pytest.mark.parametrize("fp8", FP8)
def test_written_keys_and_values_are_read_back_with_their_scales(fp8) -> None:
    tokens, heads, dim, page = 6, 2, 32, 4
    q, k, v = normal(tokens, heads, dim), normal(tokens, 1, dim, seed=1) * 30, normal(tokens, 1, dim, seed=2) * 1e-5
    turned = torch.ones(tokens, dim // 2), torch.zeros(tokens, dim // 2)
    slots = torch.tensor([8, 9, 10, 11, 0, 1])
    none, count = torch.zeros(0, dtype=torch.int64), np.array([tokens])
    starts, table = torch.tensor([0, tokens]), torch.tensor([[2, 0]])
    batch = PackedBatch(none, none, none, starts, torch.tensor([tokens]), table, none, count, count)
    scales = (0.5, 1e-6)
    found = []
    for dtype, options in ((torch.float32, {}), (fp8, {"kv_scales": scales}), (fp8, {"kv_scales": (0.5, 1.0)})):
        pages = torch.zeros(2, 3, page, 1, dim).to(dtype)
        OPS.rope_and_cache(q, k, v, turned, *pages, slots, **options)
        found.append(OPS.attention(q, *pages, batch, scale=1e-3, **options))
    exact, scaled, badly_scaled = found
    error, bad = ((each - exact).abs().mean() / exact.abs().mean() for each in (scaled, badly_scaled))
    assert error < (0.03 if fp8 == torch.float8_e4m3fn else 0.06)
    assert bad > 2 * error, "a scale of values makes no difference"


def test_pages_in_full_precision_have_no_scale() -> None:
    k, slots, turned = normal(1, 1, 4), torch.tensor([0]), (torch.ones(1, 2), torch.zeros(1, 2))
    pages = torch.zeros(2, 1, 1, 1, 4)
    OPS.rope_and_cache(k, k, k, turned, *pages, slots, kv_scales=(0.1, 0.1))
    assert torch.equal(pages[0, 0], k) and torch.equal(pages[1, 0], k)


def test_a_penalty_divides_what_is_positive_and_multiplies_what_is_not_once() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0], [2.0, -2.0, 1.0, 0.0]])
    rows, ids = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 0, 2])
    got = penalised(logits, torch.tensor([2.0, 4.0]), rows, ids)
    assert got.tolist() == [[1.0, -4.0, 1.0, 0.0], [2.0, -2.0, 0.25, 0.0]]
    assert logits[0, 0] == 2.0


def test_a_penalty_changes_greedy_choices_and_only_those_of_its_row() -> None:
    logits = torch.tensor([[2.0, 1.9, 0.0], [2.0, 1.9, 0.0]])
    ones, whole = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    how = SamplingBatch(torch.zeros(2), whole, ones, torch.zeros(2), whole, whole, whole, whole, True, False)
    assert OPS.sample(logits, how).tolist() == [0, 0]
    seen = {"seen_rows": torch.tensor([0, 1]), "seen_ids": torch.tensor([0, 0])}
    how = replace(how, penalty=torch.tensor([1.5, 1.0]), **seen)
    assert OPS.sample(logits, how).tolist() == [1, 0]


def test_equal_seeds_draw_equal_tokens_and_others_do_not() -> None:
    logits = normal(1, 200).expand(64, -1)
    ones, places = torch.ones(64), torch.arange(64)
    zeros = torch.zeros(64, dtype=torch.int64)

    def drawn(seed: int) -> list[int]:
        how = SamplingBatch(ones, zeros, ones, torch.zeros(64), zeros + seed, zeros, zeros, places, False, False)
        return OPS.sample(logits, how).tolist()

    assert drawn(5) == drawn(5) != drawn(6)


@pytest.mark.parametrize("renormalise", [True, False])
def test_routing(renormalise: bool) -> None:
    weights, chosen = route(torch.tensor([[0.0, 2.0, 1.0, -1.0]]), 2, renormalise)
    assert chosen.tolist() == [[1, 2]]
    chances = torch.softmax(torch.tensor([0.0, 2.0, 1.0, -1.0]), 0)[[1, 2]]
    torch.testing.assert_close(weights[0], chances / chances.sum() if renormalise else chances)
