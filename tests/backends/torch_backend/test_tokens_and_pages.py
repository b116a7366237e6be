"""Made-up vocabulary, names of content, pages on the device, and packing."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.0")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from backends.torch.kv import BlockKeys  # noqa: E402
from backends.torch.pack import Draw, Rows, pack, to_device  # noqa: E402
from backends.torch.places import NOBODY, Places  # noqa: E402
from backends.torch.pool import KVPool  # noqa: E402
from backends.torch.sampling import SamplingParams  # noqa: E402
from backends.torch.tokens import TokenBook, Tokens, Vocabulary  # noqa: E402
from sim.engine.sequence import Sequence  # noqa: E402
from sim.models import load_model as load_spec  # noqa: E402
from workloads.traffic import Span, answer_content  # noqa: E402


def tokens(ids: list[int], prompt: int | None = None, **fields) -> Tokens:
    return Tokens(array("i", ids), len(ids) if prompt is None else prompt, 100, frozenset(), SamplingParams(), **fields)


# --- vocabulary


@settings(max_examples=50, deadline=None)
@given(
    st.integers(-(2**31), 2**40), st.integers(0, 5000), st.integers(1, 60), st.integers(0, 59), st.integers(0, 2**70)
)
def test_a_piece_of_content_is_the_same_however_it_is_cut(content, offset, length, at, seed) -> None:
    words = Vocabulary(1000, seed, reserved=(0, 1, 999))
    whole = words.tokens(content, offset, length)
    cut = min(at, length)
    parts = [words.tokens(content, offset, cut), words.tokens(content, offset + cut, length - cut)]
    assert whole.tolist() == np.concatenate(parts).tolist()
    assert whole.min() >= 2 and whole.max() < 999


def test_other_contents_offsets_and_seeds_say_something_else() -> None:
    words, others = Vocabulary(50_000), Vocabulary(50_000, seed=1)
    said = {tuple(words.tokens(content, 0, 20)) for content in range(-50, 50)}
    said |= {tuple(words.tokens(7, offset, 20)) for offset in range(1, 50)} | {tuple(others.tokens(7, 0, 20))}
    assert len(said) == 150


def test_every_token_occurs_about_equally_often_but_reserved_ones_never() -> None:
    counts = np.bincount(Vocabulary(16, reserved=(3, 0, 15)).tokens(5, 0, 130_000), minlength=16)
    assert not counts[[0, 3, 15]].any()
    rest = np.delete(counts, [0, 3, 15])
    assert ((rest - 10_000) ** 2 / 10_000).sum() < 34.5  # chi-square of 12 degrees of freedom at 0.06 %


def test_spans_of_answers_are_what_was_said_and_made_up_beyond() -> None:
    book = TokenBook(Vocabulary(100, reserved=(0,)))
    first = Sequence(3, (), 2, 5)
    book[first] = tokens([8, 9, 50, 51, 52], prompt=2)
    book.bind(first)
    other = Sequence(3, (), 2, 5, sample=1)
    book[other] = tokens([8, 9, 60], prompt=2)
    book.bind(other)  # later turns continue sample 0
    content = answer_content(3)
    assert book.spell((Span(content, 0, 3), Span(content, 1, 1))).tolist() == [50, 51, 52, 51]
    longer = book.spell((Span(content, 2, 4),)).tolist()
    assert longer[0] == 52 and longer[1:] == Vocabulary(100, reserved=(0,)).tokens(content, 3, 3).tolist()


def test_the_book_forgets_with_the_sequence() -> None:
    book = TokenBook(Vocabulary(100))
    seq = Sequence(0, (), 1, 1)
    book[seq] = tokens([1])
    assert len(book._entries) == 1
    del seq
    assert not book._entries


# --- names of content


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40), st.integers(1, 5))
def test_keys_are_equal_exactly_as_far_as_the_tokens_are(a, b, block) -> None:
    ours, theirs = (list(BlockKeys(tokens(ids), block)) for ids in (a, b))
    assert [(run.first, run.end) for run in ours] == [(i, i + 1) for i in range(len(a) // block)]
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        reach = (index + 1) * block
        assert (mine.key == other.key) == (a[:reach] == b[:reach])


def test_keys_grow_with_what_is_known() -> None:
    said = tokens([5, 6, 7], prompt=3)
    keys = BlockKeys(said, 2)
    before = list(keys)
    said.add(8)
    assert list(keys)[:1] == before and len(list(keys)) == 2
    assert BlockKeys(tokens([1]), 2)[0].end == 0, "no block is full"


# --- pages


def small_pool() -> KVPool:
    spec = load_spec("meta-llama/Meta-Llama-3-8B")
    pool = KVPool(spec, 6, 2, torch.float16, torch.device("cpu"))
    pool.cache.copy_(torch.arange(6)[None, None, :, None, None, None].expand_as(pool.cache))
    return pool


def held(pool: KVPool) -> list[float]:
    side = pool.cache.float().amax(dim=(3, 4, 5))
    assert bool((side == side[:1, :1]).all()), "layers disagree"
    return side[0, 0].tolist()


def test_copies_swaps_and_returns() -> None:
    pool = small_pool()
    pool.copy([(1, 4), (0, 5)])
    assert held(pool) == [0, 1, 2, 3, 1, 0]
    out = pool.take_out(np.array([3, 2]))
    pool.cache[:, :, [2, 3]] = 9
    pool.put_back(np.array([0, 1]), out)
    assert held(pool) == [3, 2, 9, 9, 1, 0]


# --- packing


def placed(places: Places, pages: list[int], how: SamplingParams | None = None, row: int = 4) -> int:
    place = places.take(Sequence(row, (), 3, 9), how or SamplingParams(), 1 << 63)
    places.lay(place, 0, np.array(pages))
    return place


def test_a_packed_step() -> None:
    """A piece of a prompt, a decoding sequence, a dead row, and a last piece whose last token only the device knows."""
    places = Places(torch.device("cpu"), nobodys=6)
    how = SamplingParams(temperature=0.5, top_k=3, top_p=0.75, min_p=0.125, seed=-2)
    first, second = placed(places, [7, 3, 9]), placed(places, [1, 5], how)
    third = placed(places, [0, 2, 4], SamplingParams(repetition_penalty=2.0))
    places.latest[[first, second, third]] = torch.tensor([70, 71, 72])
    seq = Sequence(4, (), 3, 9)
    rows = Rows(
        np.array([first, second, NOBODY, third]), np.array([1, 2, 2, 1]), np.array([4, 1, 1, 2]),
        np.array([True, True, False, True]),
        {0: tokens([10, 11, 12, 13, 14, 15]), 3: tokens([30, 31], prompt=2, place=third)},
        [Draw(seq, tokens([20, 21, 22], place=second)), Draw(seq, tokens([30, 31], place=third))],
        np.array([1, 3]), np.array([3, 3]),
    )  # fmt: skip
    packed = pack(rows, places, 2)
    batch = packed.batch(places)
    assert batch.ids.tolist() == [11, 12, 13, 14, 71, 0, 31, 72]
    assert batch.positions.tolist() == [1, 2, 3, 4, 2, 2, 1, 2]
    assert batch.slots.tolist() == [15, 6, 7, 18, 10, -1, 1, 4]
    assert batch.query_starts.tolist() == [0, 4, 5, 6, 8]
    assert batch.kv_lengths.tolist() == [5, 3, 3, 3] == batch.lengths.tolist()
    assert batch.block_tables.tolist() == [[7, 3, 9], [1, 5, 6], [6, 6, 6], [0, 2, 4]]
    assert batch.sample_rows.tolist() == [4, 7] and packed.spots.tolist() == [second, third]
    drawn = packed.sampling
    assert drawn.temperature.tolist() == [0.5, 0] and drawn.top_k.tolist() == [3, 0]
    assert drawn.top_p.tolist() == [0.75, 1] and drawn.min_p.tolist() == [0.125, 0]
    assert drawn.seed.tolist() == [-2, -(1 << 63)] and drawn.request.tolist() == [0, 5]
    assert drawn.position.tolist() == [3, 3] and not drawn.greedy and drawn.filtered
    assert drawn.penalty.tolist() == [1, 2]
    assert sorted(zip(drawn.seen_rows.tolist(), drawn.seen_ids.tolist(), strict=True)) == [(1, 30), (1, 31), (1, 72)]


def test_a_step_filled_up_with_dead_rows_has_the_same_rows_and_draws() -> None:
    places = Places(torch.device("cpu"), nobodys=6)
    mine = placed(places, [1, 5])
    rows = Rows(np.array([mine]), np.array([2]), np.array([1]), np.array([True]))
    rows.draws, rows.owners, rows.positions = [Draw(None, tokens([1], place=mine))], np.array([0]), np.array([3])
    packed = pack(rows.padded(4), places, 2, every_row=True)
    batch = packed.batch(places)
    assert batch.slots.tolist() == [10, -1, -1, -1] and batch.kv_lengths.tolist() == [3, 1, 1, 1]
    assert batch.sample_rows.tolist() == [0, 1, 2, 3] and packed.spots.tolist() == [mine]
    assert batch.block_tables.tolist() == [[1, 5], [6, 6], [6, 6], [6, 6]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 12)), max_size=40))
def test_tables_on_the_device_are_what_was_laid_and_only_changes_are_sent(steps) -> None:
    """Sequences come, get pages at the end or anew, and go; places and widths grow on the way."""
    places = Places(torch.device("cpu"), nobodys=99, count=2)
    want: dict[int, list[int]] = {}
    held: dict[int, int] = {}
    for who, kept, more in steps:
        if who in held and not more:
            places.give_back(held.pop(who))
            del want[who]
            continue
        if who not in held:
            held[who], want[who] = places.take(Sequence(who, (), 1, 1), SamplingParams(), 0), []
        kept = min(kept, len(want[who]))
        pages = np.arange(more) * 7 + who
        places.lay(held[who], kept, pages)
        want[who][kept:] = pages.tolist()
        index, values = places.news()
        assert len(index) <= more
        places.tables.view(-1)[torch.from_numpy(index)] = torch.from_numpy(values)
        assert np.array_equal(places.tables.numpy(), places.host)
        for each, place in held.items():
            assert places.tables[place, : len(want[each])].tolist() == want[each]
            assert places.laid[place] == len(want[each])
            places.lay(place, 0, np.array(want[each], np.int64))
            assert not len(places.news()[0]), "what is there is not sent again"
    assert len(set(held.values())) == len(held) and NOBODY not in held.values()
    assert places.tables[NOBODY].tolist() == [99] * places.tables.shape[1]


def test_pages_appended_together_are_what_is_laid_one_by_one() -> None:
    both = [Places(torch.device("cpu"), nobodys=99, count=2) for _ in range(2)]
    for places in both:
        mine = np.array([placed(places, [1, 2, 3]), placed(places, [4]), placed(places, [5, 6, 7])])
        places.news()
        for step in range(6):  # widths grow on the way
            pages = 10 * step + np.arange(3)
            if places is both[0]:
                places.append(mine, pages)
            else:
                for place, page in zip(mine.tolist(), pages, strict=True):
                    places.lay(place, int(places.laid[place]), np.array([page]))
            index, values = places.news()
            places.tables.view(-1)[torch.from_numpy(index)] = torch.from_numpy(values)
            assert np.array_equal(places.tables.numpy(), places.host)
    assert np.array_equal(both[0].host, both[1].host) and both[0].laid.tolist() == both[1].laid.tolist()


def test_one_copy_carries_all_arrays() -> None:
    sent = to_device([np.array([[1, -2], [3, 4]]), np.zeros(0), np.array([0.5, -1.5])], torch.device("cpu"))
    assert sent[0].tolist() == [[1, -2], [3, 4]] and sent[1].shape == (0,)
    assert sent[2].tolist() == [0.5, -1.5] and sent[2].dtype == torch.float32
    assert sent[0].data_ptr() + 32 == sent[1].data_ptr() or sent[1].numel() == 0
