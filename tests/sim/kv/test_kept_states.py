"""Prefixes of models with recurrent layers: hit as far as a state is kept."""

from __future__ import annotations

from configurations import bounded
from harness import config, random_traffic, run
from hypothesis import given
from hypothesis import strategies as st
from invariants import check_moment, check_run

from sim.engine.sequence import Sequence
from sim.kv.radix import RadixAllocator
from workloads.traffic import Span, private_content

SYSTEM = Span(private_content(1000), 0, 100)


def asking(row: int, own: int, *before: Span) -> Sequence:
    """A prompt that begins like others and ends with `own` tokens of its own."""
    spans = (*before, Span(private_content(row), 0, own))
    return Sequence(row, spans, sum(span.length for span in spans), 500)


def serve(pool: RadixAllocator, seq: Sequence, *chunks: int) -> int:
    """Compute a prompt in chunks that end there, and leave; the hit."""
    hit = pool.lookup(seq)
    assert pool.admit(seq, hit, seq.known)
    for end in (*chunks, seq.known):
        seq._computed = end
        pool.computed(seq, end)
    pool.check([seq])
    pool.release(seq)
    return hit.tokens


def test_a_shared_beginning_is_hit_from_the_third_request_on() -> None:
    """The first leaves a state at the end of its prompt alone; the second passes where they part, and leaves one there."""
    pool = RadixAllocator(10_000, True, kept_states=10)
    assert [serve(pool, asking(row, 50, SYSTEM)) for row in range(4)] == [0, 0, 100, 100]
    plain = RadixAllocator(10_000, True)
    assert [serve(plain, asking(row, 50, SYSTEM)) for row in range(4)] == [0, 100, 100, 100]


def test_a_conversation_goes_on_from_its_own_end() -> None:
    pool = RadixAllocator(10_000, True, kept_states=10)
    first = asking(1, 80)
    assert serve(pool, first) == 0
    assert serve(pool, asking(2, 30, *first.prompt)) == 80


def test_ends_of_chunks_are_states_too() -> None:
    pool = RadixAllocator(10_000, True, kept_states=10)
    long = Span(private_content(7), 0, 600)
    assert serve(pool, asking(1, 50, long), 256, 512) == 0
    assert serve(pool, asking(2, 50, Span(long.content, 0, 550))) == 512


def test_states_used_longest_ago_go_first() -> None:
    pool = RadixAllocator(10_000, True, kept_states=2)
    first, second, third = (asking(row, 60) for row in (1, 2, 3))
    for seq in (first, second, third):
        serve(pool, seq)
    assert serve(pool, asking(11, 10, *first.prompt)) == 0, "its keys and values are there, its state is not"
    assert serve(pool, asking(13, 10, *third.prompt)) == 60


@bounded(12)
@given(st.integers(0, 10_000), st.integers(1, 12), st.booleans())
def test_nothing_is_lost(seed: int, kept: int, samples: bool) -> None:
    made = config("sglang", max_num_seqs=6, max_num_batched_tokens=64)
    traffic = random_traffic(seed, count=14, gap=0.004, outputs=40, samples=samples)
    done = run(traffic, made, capacity=1400, max_len=220, kept_states=kept, watch=check_moment)
    check_run(done)
