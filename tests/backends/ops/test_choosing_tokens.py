"""Sampling: exact frequencies, filters by their definitions, and noise that depends on nothing but the token's coordinates."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.0")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from backends.ops.base import SamplingBatch  # noqa: E402
from backends.ops.choose import choose, filtered  # noqa: E402
from backends.ops.noise import exponential, philox, uniform  # noqa: E402


def how(
    rows: int, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7, request=0, sample=0, position=None
) -> SamplingBatch:
    def column(value, dtype):
        return torch.as_tensor(np.broadcast_to(value, rows).copy(), dtype=dtype)

    reals = [column(temperature, torch.float32), column(top_k, torch.int64)]
    reals += [column(top_p, torch.float32), column(min_p, torch.float32)]
    place = np.arange(rows) if position is None else position
    whole = [column(value, torch.int64) for value in (seed, request, sample, place)]
    greedy = bool((reals[0] == 0).all())
    return SamplingBatch(
        *reals, *whole, greedy, bool((reals[1] > 0).any() or (reals[2] < 1).any() or (reals[3] > 0).any())
    )


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)  # fmt: skip
def test_philox_gives_the_known_answers(counter, key, words) -> None:
    """The vectors of Random123's own test suite (tests/kat_vectors)."""
    got = philox(tuple(torch.tensor([w]) for w in counter), tuple(torch.tensor([w]) for w in key))
    assert tuple(int(word) for word in got) == words


def test_uniform_stays_strictly_inside_the_unit_interval() -> None:
    ends = uniform(torch.tensor([0, 0xFFFFFFFF]))
    assert 0 < ends[0] < ends[1] < 1


def test_noise_is_a_function_of_its_coordinates() -> None:
    seed = torch.tensor([1, 1 << 40, 1, 1, 1, -3])
    place = [torch.tensor(column) for column in ([0, 0, 5, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 9, 0])]
    together = exponential(seed, *place, 1001)
    for row in range(6):
        alone = exponential(seed[row : row + 1], *(column[row : row + 1] for column in place), 1001)
        assert torch.equal(together[row], alone[0])
    assert len({tuple(row.tolist()) for row in together}) == 6, "different coordinates share noise"
    assert torch.equal(exponential(seed, *place, 500), together[:, :500]), "the vocabulary's size changes the noise"


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_frequencies_are_those_of_the_distribution(options) -> None:
    """Chi-square over 50,000 draws at the 0.1 % level."""
    draws, width = 50_000, 23
    logits = torch.randn(1, width, generator=torch.Generator().manual_seed(3)) * 1.5
    batch = how(draws, **options)
    tokens = choose(logits.expand(draws, -1), batch)
    scaled = (logits / options.get("temperature", 1.0)).double()
    kept = filtered(scaled, *(column[:1] for column in (batch.top_k, batch.top_p, batch.min_p)))
    chances = torch.softmax(kept[0], 0).numpy()
    counts = np.bincount(tokens.numpy(), minlength=width)
    assert not counts[chances == 0].any(), "a token was drawn that the filters leave out"
    seen, want = counts[chances > 0], chances[chances > 0] * draws
    common = want >= 5
    seen = np.append(seen[common], seen[~common].sum()) if (~common).any() else seen
    want = np.append(want[common], want[~common].sum()) if (~common).any() else want
    statistic, freedom = ((seen - want) ** 2 / want).sum(), len(want) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3  # Wilson and Hilferty
    assert statistic < limit, (statistic, freedom)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(0, 12),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
    st.integers(2, 40),
    st.booleans(),
)
def test_filters_by_their_definitions(seed, top_k, top_p, min_p, width, ties) -> None:
    row = torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    row = row.round() if ties else row
    got = filtered(row[None], torch.tensor([top_k]), torch.tensor([top_p]).double(), torch.tensor([min_p]).double())[0]
    chances = torch.softmax(row, 0)
    keep = [v for v in range(width) if chances[v] >= min_p * chances.max() * (1 - 1e-12)]
    keep.sort(key=lambda v: (-float(row[v]), v))
    keep = keep[:top_k] if top_k else keep
    weights, total, nucleus = torch.softmax(row[keep], 0).tolist(), 0.0, []
    for v, weight in zip(keep, weights, strict=True):
        if nucleus and total >= top_p - 1e-9 and top_p < 1:
            break
        nucleus.append(v)
        total += weight
    stays = torch.isfinite(got).nonzero().flatten().tolist()
    edge = any(abs(reached - top_p) < 1e-6 for reached in accumulate(weights))  # there, one more or less is as right
    assert stays == sorted(nucleus) or (edge and abs(len(stays) - len(nucleus)) == 1)
    assert torch.equal(got[stays], row[stays])


def test_greedy_rows_and_drawing_rows_share_a_batch() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    mixed = how(6, temperature=[0, 1, 0, 2, 0, 0.5], top_k=[0, 3, 0, 0, 1, 0])
    tokens = choose(logits, mixed)
    best = logits.argmax(-1)
    assert torch.equal(tokens[[0, 2, 4]], best[[0, 2, 4]])
    assert tokens[1] in logits[1].topk(3).indices
    alone = how(1, temperature=2.0, position=[3])
    assert choose(logits[3:4], alone) == tokens[3], "a row's token depends on its neighbours"


def test_a_cold_temperature_is_nearly_greedy_and_loses_no_digits() -> None:
    logits = torch.tensor([[100.0, 99.0, -50.0]])
    assert choose(logits, how(1, temperature=1e-3)) == 0
