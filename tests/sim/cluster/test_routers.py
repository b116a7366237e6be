"""Routers by themselves: where each sends what, by rules that can be counted by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster import ROUTERS, Incoming, Load, Router, make_router, options_of
from sim.cluster.prefix import SentPrompts
from workloads.errors import InputError
from workloads.traffic import Request, Span


def incoming(number: int, prompt: list[tuple[int, int, int]] | None = None, **known: Any) -> Incoming:
    """A request; its prompt is its own where none is given."""
    spans = tuple(Span(*span) for span in prompt or [(2 * number, 0, 100)])
    values = {"time": 0.0, "session": number, "max_tokens": 10, "priority": 0} | known
    return Incoming(number=number, input_tokens=sum(s.length for s in spans), prompt=spans, **values)


def loads(*requests: int, tokens: tuple[int, ...] = (), queues: tuple[tuple[int, int], ...] = ()) -> list[Load]:
    """What a router knows of replicas: requests unanswered, tokens of these, (waiting, running)."""
    found = []
    for place, count in enumerate(requests):
        load = Load()
        load.requests = count
        load.tokens = tokens[place] if tokens else 0
        load.waiting, load.running = queues[place] if queues else (0, 0)
        found.append(load)
    return found


def test_a_router_is_told_nothing_of_true_lengths() -> None:
    assert "output_tokens" in Request._fields and "output_tokens" not in Incoming._fields
    assert not any("output" in name for name in Load.__slots__)


def test_round_robin_takes_turns() -> None:
    router = make_router("round-robin", 3, 0)
    assert [router.route(incoming(i), loads(9, 0, 0)) for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_random_is_even_and_depends_on_seed_and_request_only() -> None:
    sent = [make_router("random", 4, 1).route(incoming(i), []) for i in range(4000)]
    assert all(abs(count - 1000) < 120 for count in Counter(sent).values()), "four standard deviations"
    backwards = make_router("random", 4, 1)
    assert [backwards.route(incoming(i), []) for i in reversed(range(4000))][::-1] == sent
    assert [make_router("random", 4, 2).route(incoming(i), []) for i in range(4000)] != sent


def test_the_least_loaded_is_taken_and_equals_take_turns() -> None:
    router = make_router("least-requests", 3, 0)
    assert router.route(incoming(0), loads(3, 1, 2)) == 1
    assert [router.route(incoming(i), loads(0, 0, 0)) for i in range(4)] == [2, 0, 1, 2]
    assert router.route(incoming(9), loads(0, 0, 5)) == 0


def test_tokens_count_where_requests_are_equal() -> None:
    assert make_router("least-tokens", 3, 0).route(incoming(0), loads(1, 9, 1, tokens=(900, 300, 500))) == 1


def test_the_shortest_queue_is_that_of_the_waiting_then_of_the_running() -> None:
    router = make_router("shortest-queue", 3, 0)
    assert router.asks
    assert router.route(incoming(0), loads(0, 9, 9, queues=((2, 0), (0, 8), (0, 7)))) == 2


def test_power_of_two_never_takes_the_worst_of_all() -> None:
    router = make_router("power-of-two", 3, 5)
    taken = Counter(router.route(incoming(i), loads(5, 1, 3)) for i in range(3000))
    assert taken[0] == 0, "the fullest loses against any other"
    assert taken[1] == pytest.approx(2000, rel=0.06) and taken[2] == pytest.approx(1000, rel=0.1)
    assert make_router("power-of-two", 1, 5).route(incoming(0), loads(3)) == 0


def test_a_session_stays_where_it_is() -> None:
    router = make_router("session", 4, 0)
    first = [router.route(incoming(i), []) for i in range(100)]
    assert [router.route(incoming(200 + i, session=i), []) for i in range(100)] == first
    assert len(set(first)) == 4


SYSTEM, OTHER = (-1, 0, 300), (-2, 0, 300)


def test_prefix_follows_the_longest_known_prefix() -> None:
    router = make_router("prefix", 3, 0)
    even = loads(0, 0, 0)
    places = [router.route(incoming(i, [head, (2 * i, 0, 50)]), even) for i, head in enumerate((SYSTEM, OTHER))]
    assert places == [0, 1], "what nobody has goes to the least loaded, equals taking turns"
    assert router.route(incoming(2, [OTHER, (4, 0, 50)]), even) == 1
    assert router.route(incoming(3, [SYSTEM, (6, 0, 50)]), loads(9, 0, 0)) == 0, "a little more load is borne"


def test_prefix_gives_way_to_load() -> None:
    router = make_router("prefix", 2, 0, {"balance_abs": 4, "balance_rel": 1.5})
    assert router.route(incoming(0, [SYSTEM]), loads(0, 0)) == 0
    assert router.route(incoming(1, [SYSTEM]), loads(4, 0)) == 0, "4 is not more than 4"
    assert router.route(incoming(2, [SYSTEM]), loads(20, 15)) == 0, "20 is not more than 1.5 times 15"
    assert router.route(incoming(3, [SYSTEM]), loads(5, 0)) == 1
    assert router.route(incoming(4, [SYSTEM]), loads(3, 2)) == 1, "now both know it: the less loaded"


def test_a_prefix_below_the_threshold_counts_for_nothing() -> None:
    router = make_router("prefix", 2, 0, {"cache_threshold": 0.5})
    assert router.route(incoming(0, [SYSTEM]), loads(0, 0)) == 0
    assert router.route(incoming(1, [SYSTEM, (2, 0, 300)]), loads(0, 0)) == 1, "just half is not more than half"
    assert router.route(incoming(2, [SYSTEM, (4, 0, 299)]), loads(1, 2)) == 0


WORDS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def spans_of(words: list[int], cuts: list[int]) -> list[Span]:
    """A prompt of blocks: equal beginnings of words are equal contents, cut into spans at will."""
    spans = []
    for depth in range(len(words)):
        content = -1 - int("1" + "".join(map(str, words[: depth + 1])), 3)  # a name for all words up to here
        cut = cuts[depth % len(cuts)] if cuts else 4
        parts = [(0, cut), (cut, 4 - cut)] if 0 < cut < 4 else [(0, 4)]
        spans += [Span(content, offset, length) for offset, length in parts]
    return spans


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8), WORDS, st.lists(st.integers(0, 4), max_size=4))
def test_the_known_prefix_is_the_longest_common_one(known: list[list[int]], asked: list[int], cuts: list[int]) -> None:
    tree = SentPrompts(1 << 20)
    for words in known:
        tree.add(spans_of(words, []))
    common = max(next((i for i, (a, b) in enumerate(zip(w, asked, strict=False)) if a != b), min(len(w), len(asked)))
                 for w in known)  # fmt: skip
    assert tree.matched(spans_of(asked, cuts)) == 4 * common
    distinct = {tuple(words[: i + 1]) for words in known for i in range(len(words))}
    assert tree.tokens == 4 * len(distinct)


def test_memory_of_prompts_is_bounded_and_keeps_what_is_used() -> None:
    tree = SentPrompts(1000)
    for number in range(60):
        tree.add([Span(-1, 0, 100), Span(2 * number, 0, 50)])
        assert tree.tokens <= 1000
    assert tree.matched([Span(-1, 0, 100), Span(2 * 59, 0, 50)]) == 150
    assert tree.matched([Span(-1, 0, 100), Span(0, 0, 50)]) == 100, "the oldest tail is gone, the head in use is not"


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(ROUTERS)), st.integers(1, 7), st.integers(0, 99),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9), st.integers(0, 5), st.integers(1, 500)), max_size=40),
)  # fmt: skip
def test_every_router_names_a_replica_that_exists_and_the_same_again(name, replicas, seed, asked) -> None:
    def routed() -> list[int]:
        router, found = make_router(name, replicas, seed), []
        for number, (load, waiting, session, length) in enumerate(asked):
            known = loads(
                *((load * (i + 1)) % 201 for i in range(replicas)),
                tokens=tuple((load * length * (i + 2)) % 1999 for i in range(replicas)),
                queues=tuple(((waiting + i) % 5, (load + i) % 7) for i in range(replicas)),
            )
            prompt = [(-1 - session, 0, length)]
            found.append(router.route(incoming(number, prompt, session=min(session, number)), known))
        return found

    places = routed()
    assert all(type(place) is int and 0 <= place < replicas for place in places)
    assert places == routed()


def test_routers_say_what_they_look_at() -> None:
    for name, kind in ROUTERS.items():
        if not kind.looks:
            router = make_router(name, 3, 0)
            assert router.route(incoming(0), []) in range(3), f"{name} needs no loads"
    assert set(options_of(ROUTERS["prefix"])) == {"cache_threshold", "balance_abs", "balance_rel", "tree_tokens"}


def test_names() -> None:
    assert make_router("sim.cluster.routers:RoundRobin", 2, 0).replicas == 2
    with pytest.raises(InputError, match=r"unknown router 'least-request'.*did you mean least-requests"):
        make_router("least-request", 2, 0)
    with pytest.raises(NotImplementedError):
        Router(2, 0).route(incoming(0), [])
