import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.errors import InputError
from workloads.sharing import prefix_sharing
from workloads.synthetic import SyntheticSpec, synthesize
from workloads.traffic import Span, answer_content, private_content

BASE = {
    "requests": 2000,
    "arrivals": {"process": "poisson", "rate": 10},
    "input_tokens": {"distribution": "uniform", "low": 10, "high": 100},
    "output_tokens": {"distribution": "uniform", "low": 1, "high": 50},
}
SESSIONS = {
    "turns": {"distribution": "uniform", "low": 1, "high": 6},
    "think": {"distribution": "exponential", "mean": "5s"},
    "follow_up_tokens": 7,
    "max_context": 400,
}
PREFIX = {"kind": "tree", "levels": [{"branches": 3, "tokens": 30}, {"branches": 2, "tokens": 20}], "zipf": 1}


def test_plain_requests_are_columns_without_spans():
    traffic = synthesize(BASE, 1)
    traffic.validate()
    assert len(traffic) == 2000 and traffic.spans is None
    assert np.all(traffic.max_tokens == 0) and np.all(traffic.parent == -1)
    assert "arrivals: Poisson, 10 a second" in traffic.notes


def test_equal_seeds_give_equal_traffic_and_others_do_not(same):
    same(synthesize(BASE, 7), synthesize(BASE, 7))
    a, b = synthesize(BASE, 7), synthesize(BASE, 8)
    for name in ("arrival", "input_tokens", "output_tokens"):
        assert not np.array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize(
    ("changed", "columns"),
    [
        ({"output_tokens": 9}, ("arrival", "input_tokens")),
        ({"input_tokens": 9}, ("arrival", "output_tokens")),
        ({"arrivals": {"process": "constant", "rate": 1}}, ("input_tokens", "output_tokens")),
        ({"priority": {0: 1, 5: 1}}, ("arrival", "input_tokens", "output_tokens")),
        ({"prefix": PREFIX}, ("arrival", "output_tokens")),
    ],
)
def test_one_law_changes_nothing_else(changed, columns):
    before, after = synthesize(BASE), synthesize(BASE | changed)
    for name in columns:
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))


def test_more_requests_keep_the_first(same):
    few, many = synthesize(BASE | {"requests": 100}), synthesize(BASE)
    for name in ("arrival", "input_tokens", "output_tokens"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:100])


def test_a_duration_instead_of_a_count():
    traffic = synthesize({k: v for k, v in BASE.items() if k != "requests"} | {"duration": "2min"})
    assert traffic.arrival[-1] < 120 and len(traffic) == pytest.approx(1200, abs=140)
    both = synthesize(BASE | {"duration": "2min", "requests": 50})
    np.testing.assert_array_equal(both.arrival, traffic.arrival[:50])


def test_mixes_may_be_written_as_json_writes_them():
    plain = {"priority": {-1: 0.9, 3: 0.1}, "n": {1: 1, 4: 1}}
    quoted = json.loads(json.dumps(plain))
    assert list(quoted["priority"]) == ["-1", "3"]
    first, second = synthesize(BASE | plain), synthesize(BASE | quoted)
    assert first.priority.tolist() == second.priority.tolist() and set(first.priority.tolist()) == {-1, 3}
    assert first.n.tolist() == second.n.tolist()


def test_mixes_and_declared_limits():
    traffic = synthesize(BASE | {"priority": {0: 0.9, 3: 0.1}, "n": {1: 1, 4: 1}, "max_tokens": 20})
    assert set(traffic.priority.tolist()) == {0, 3}
    assert (traffic.priority == 3).mean() == pytest.approx(0.1, abs=0.03)
    assert (traffic.n == 4).mean() == pytest.approx(0.5, abs=0.05)
    assert set(traffic.max_tokens.tolist()) == {20} and traffic.output_tokens.max() == 20
    assert set(synthesize(BASE | {"n": 2, "priority": -1}).n.tolist()) == {2}


def test_prefixes_come_in_front_and_are_shared():
    plain, traffic = synthesize(BASE), synthesize(BASE | {"prefix": PREFIX})
    np.testing.assert_array_equal(traffic.input_tokens, plain.input_tokens + 50)
    paths = {traffic.request(i).prompt[:2] for i in range(2000)}
    assert len(paths) == 6
    assert all(a.content < 0 and b.content < 0 and (a.length, b.length) == (30, 20) for a, b in paths)
    assert len({b.content: a.content for a, b in paths}) == 6  # a second example belongs to one first
    assert traffic.request(9).prompt[2] == Span(private_content(9), 0, int(plain.input_tokens[9]))
    counts = np.unique([traffic.request(i).prompt[0].content for i in range(2000)], return_counts=True)[1]
    np.testing.assert_allclose(np.sort(counts)[::-1] / 2000, np.array([6, 3, 2]) / 11, atol=0.05)  # Zipf
    traffic.validate()


def test_a_share_of_requests_has_a_prefix():
    prefix = {"kind": "system-prompts", "count": 2, "tokens": 64, "weights": [9, 1], "share": 0.5}
    traffic = synthesize(BASE | {"prefix": prefix})
    first = [traffic.request(i).prompt[0].content for i in range(2000)]
    assert np.mean(np.array(first) < 0) == pytest.approx(0.5, abs=0.05)
    assert first.count(-1) / (first.count(-1) + first.count(-2)) == pytest.approx(0.9, abs=0.04)
    assert prefix_sharing(traffic, 64).request_share == pytest.approx(0.5, abs=0.05)


def test_later_turns_say_all_that_was_said():
    traffic = synthesize(BASE | {"sessions": SESSIONS, "prefix": PREFIX}, 3)
    traffic.validate()
    assert len(traffic) == 2000
    children = np.flatnonzero(traffic.parent >= 0)
    assert 1000 < len(children) < 1600
    for row in children.tolist():
        parent = int(traffic.parent[row])
        before = traffic.request(parent)
        said = (*before.prompt, Span(answer_content(parent), 0, before.output_tokens))
        assert traffic.request(row).prompt == (*said, Span(private_content(row), 0, 7))
        assert traffic.arrival[row] == traffic.arrival[parent]
    assert traffic.think[children].mean() == pytest.approx(5, rel=0.15)
    assert np.all(traffic.think[traffic.parent < 0] == 0)
    assert np.all(traffic.input_tokens + traffic.output_tokens <= 400)


def test_a_context_too_small_for_most_turns():
    tight = SESSIONS | {"max_context": 60}
    traffic = synthesize(BASE | {"sessions": tight, "requests": 500})
    assert len(traffic) == 500
    assert np.all(traffic.input_tokens + traffic.output_tokens <= 60)
    with pytest.raises(InputError, match=r"max_context: 51 leaves no room behind a prefix of 50"):
        synthesize(BASE | {"prefix": PREFIX, "sessions": SESSIONS | {"max_context": 51}})


def test_pairs_of_a_trace(file):
    path = file("t.csv", "input_tokens,output_tokens\n10,1\n20,2\n")
    spec = {"requests": 50, "lengths": {"trace": "t.csv"}}
    traffic = synthesize(spec, base=path.parent)
    np.testing.assert_array_equal(traffic.input_tokens, 10 * traffic.output_tokens)
    assert np.all(traffic.arrival == 0)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**40),
    requests=st.integers(1, 60),
    turns=st.integers(1, 5),
    prefix=st.sampled_from([None, PREFIX, PREFIX | {"share": 0.5}]),
    context=st.integers(60, 900),
)
def test_whatever_is_asked_is_valid(seed, requests, turns, prefix, context):
    sessions = {"turns": {"distribution": "uniform", "low": 1, "high": turns}, "max_context": context}
    spec = BASE | {"requests": requests, "sessions": sessions} | ({"prefix": prefix} if prefix else {})
    traffic = synthesize(spec, seed)
    traffic.validate()
    assert len(traffic) == requests
    assert np.all(traffic.input_tokens + traffic.output_tokens <= context)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"requests": 0}, r"^synthetic.requests: must be at least 1, not 0"),
        ({"requests": 1.5}, r"^synthetic.requests: expected a whole number"),
        ({"requests": None}, r"^synthetic.requests: is missing"),
        ({"duration": 0}, r"^synthetic.duration: must be positive"),
        ({"input_tokens": None}, r"^synthetic.input_tokens: is missing"),
        (
            {"arrivals": {"process": "poisson", "rate": -1}},
            r"^synthetic.arrivals.rate: must be positive, not -1",
        ),
        ({"arrivals": "poisson"}, r"^synthetic.arrivals: expected a mapping"),
        ({"output_token": 5}, r"^synthetic.output_token: unknown key .*did you mean .*output_tokens"),
        ({"lengths": {"trace": "x"}}, r"^synthetic.lengths: gives input and output together"),
        ({"n": 0}, r"^synthetic.n: must be at least 1"),
        ({"n": {0: 1}}, r"^synthetic.n: keys must be whole numbers of at least 1"),
        ({"priority": {"1.5": 1}}, r"^synthetic.priority: keys must be whole numbers, not '1.5'"),
        ({"priority": {1: 1, "1": 1}}, r"^synthetic.priority: 1 stands there twice"),
        ({"priority": {"0": -1}}, r"^synthetic.priority.0: must not be negative"),
        ({"priority": {0: 0}}, r"^synthetic.priority: weights must add up"),
        ({"priority": {0: -1}}, r"^synthetic.priority.0: must not be negative"),
        ({"prefix": {"kind": "tree"}}, r"^synthetic.prefix.levels: is missing"),
        (
            {"prefix": {"kind": "tree", "levels": [{"branches": 2}]}},
            r"^synthetic.prefix.levels\[0\].tokens: is missing",
        ),
        (
            {"prefix": {"kind": "system-prompts", "count": 2, "tokens": 3, "weights": [1]}},
            r"^synthetic.prefix.weights: expected 2 numbers",
        ),
        (
            {"prefix": {"kind": "system-prompts", "count": 2, "token": 3}},
            r"^synthetic.prefix.tokens: is missing \(there is 'token' instead\)",
        ),
        ({"sessions": {"turns": 0}}, r"^synthetic.sessions.turns: must be at least 1"),
        ({"sessions": {"turns": 2, "think": -1}}, r"^synthetic.sessions.think: must not be negative"),
        ({"sessions": {"turns": 2, "tink": 1}}, r"^synthetic.sessions.tink: .*did you mean think"),
        (
            {
                "requests": None,
                "duration": 5,
                "arrivals": {"process": "poisson", "rate": 5, "normalize": True},
            },
            r"^synthetic.arrivals.normalize: needs requests",
        ),
    ],
)
def test_errors_name_the_key(changed, said):
    with pytest.raises(InputError, match=said):
        SyntheticSpec.from_dict(BASE | changed)


def test_nothing_arrives():
    spec = {k: v for k, v in BASE.items() if k != "requests"} | {"duration": "1ms"}
    with pytest.raises(InputError, match=r"nothing arrives in 0.001 s"):
        synthesize(spec)


def test_a_million_requests():
    import time

    start = time.perf_counter()
    traffic = synthesize(BASE | {"requests": 1_000_000})
    assert time.perf_counter() - start < 3  # 0.2 s on an idle core
    assert len(traffic) == 1_000_000 and traffic.spans is None
