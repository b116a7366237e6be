"""Names of blocks: equal exactly where all tokens up to there are equal, however a prompt is cut."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.sequence import Sequence
from sim.kv.base import NO_HIT
from sim.kv.keys import key_runs, sequence_keys
from sim.kv.paged import PagedAllocator
from workloads.traffic import Span, answer_content, private_content

SPANS = st.tuples(st.sampled_from([-1, -2, -3, 0, 1]), st.sampled_from([0, 8, 16]), st.integers(1, 40)).map(
    lambda s: Span(*s)
)


def names(prompt, block: int, blocks: int) -> list[tuple]:
    """A name for every block: its run's key and its place in the run."""
    runs = key_runs(prompt, 999, block)
    return [(run.key, index - run.first) for run in runs for index in range(run.first, min(run.end, blocks))][:blocks]


def tokens(prompt) -> list[tuple[int, int]]:
    return [(span.content, span.offset + k) for span in prompt for k in range(span.length)]


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(st.lists(SPANS, min_size=1, max_size=4), st.lists(SPANS, min_size=1, max_size=4), st.sampled_from([1, 4, 16]))
def test_names_agree_exactly_as_far_as_tokens_do(one, other, block):
    a, b = tokens(one), tokens(other)
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    most = min(len(a), len(b)) // block
    ours, theirs = names(one, block, most), names(other, block, most)
    for index in range(most):
        assert (ours[index] == theirs[index]) == ((index + 1) * block <= common), index


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.lists(SPANS, min_size=1, max_size=3), st.lists(st.integers(1, 100), max_size=5), st.sampled_from([1, 4, 16]))
def test_how_a_prompt_is_cut_into_spans_does_not_matter(prompt, cuts, block):
    pieces = []
    for content, offset, length in prompt:
        edges = sorted({0, length, *(cut % length for cut in cuts)})
        pieces += [Span(content, offset + low, high - low) for low, high in itertools.pairwise(edges)]
    assert key_runs(pieces, 5, block) == key_runs(prompt, 5, block)


@pytest.mark.parametrize("block", [1, 4, 16, 32])
def test_a_prompt_in_two_spans_of_100_has_the_keys_of_the_whole(block: int) -> None:
    whole = [Span(-1, 0, 200)]
    assert key_runs([Span(-1, 0, 100), Span(-1, 100, 100)], 3, block) == key_runs(whole, 3, block)


@pytest.mark.parametrize("pieces", [(200,), (100, 100), (100, 57, 43), (16,) * 12 + (8,), (1,) * 200])
def test_a_prompt_computed_in_chunks_is_hit_like_the_whole(pieces) -> None:
    """Keys are of the whole prefix, not of the chunk in which a block was computed."""
    pool = PagedAllocator(1024, 16)
    first = Sequence(0, (Span(-1, 0, 200),), 200, 10)
    assert pool.admit(first, NO_HIT, pieces[0])
    done = 0
    for piece in pieces:
        assert pool.grow(first, done + piece)
        done = first._computed = done + piece
        pool.computed(first, done)
    again = Sequence(1, (Span(-1, 0, 100), Span(-1, 100, 100)), 200, 10)
    assert pool.lookup(again).tokens == 192, "12 whole blocks of 16; the last, partly filled one has no name"
    longer = Sequence(2, (Span(-1, 0, 200), Span(private_content(2), 0, 50)), 250, 10)
    assert pool.lookup(longer).tokens == 192
    pool.release(first)
    assert pool.lookup(again).tokens == 192


def test_the_first_two_shared_prompts_are_not_taken_for_each_other() -> None:
    """Python hashes -1 and -2 alike."""
    assert hash((7, -1, 0)) == hash((7, -2, 0))
    keys = {content: key_runs([Span(content, 0, 64)], 1, 16)[0].key for content in range(-40, 40)}
    assert len(set(keys.values())) == 80
    straddling = {content: key_runs([Span(9, 0, 5), Span(content, 0, 64)], 1, 16)[0].key for content in range(-40, 40)}
    assert len(set(straddling.values())) == 80


def test_the_next_turn_of_a_session_finds_prompt_and_answer() -> None:
    """What is named as the answer of row 0 is what row 1 has in its prompt."""
    first = sequence_keys(0, 0, (Span(private_content(0), 0, 20),), 16)
    prompt = (Span(private_content(0), 0, 20), Span(answer_content(0), 0, 60), Span(private_content(1), 0, 9))
    second = sequence_keys(1, 0, prompt, 16)
    assert [run.key for run in first[:3]] == [run.key for run in second[:3]]


def test_samples_of_one_request_share_the_prompt_and_nothing_of_their_answers() -> None:
    prompt = (Span(private_content(0), 0, 64),)
    keys = [sequence_keys(0, sample, prompt, 16) for sample in range(4)]
    assert len({run[0].key for run in keys}) == 1
    assert len({run[1].key for run in keys}) == 4


def test_a_block_that_straddles_is_named_by_all_its_pieces() -> None:
    base = [Span(1, 0, 10), Span(2, 0, 3), Span(3, 0, 40)]
    other = [Span(1, 0, 10), Span(2, 0, 2), Span(3, 0, 41)]
    assert key_runs(base, 7, 16)[0].key != key_runs(other, 7, 16)[0].key
    assert key_runs(base, 7, 16)[0][:2] == (0, 1)


def test_keys_do_not_depend_on_the_process() -> None:
    root = Path(__file__).parents[3]
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\nfrom sim.kv.keys import key_runs\nfrom workloads.traffic import Span\n"
        "print(key_runs([Span(-1, 0, 100), Span(4, 2, 50)], 3, 16))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}
    )
    assert told.stdout.strip() == str(key_runs([Span(-1, 0, 100), Span(4, 2, 50)], 3, 16))
