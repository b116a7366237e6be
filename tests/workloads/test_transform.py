import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.errors import InputError
from workloads.synthetic import synthesize
from workloads.traffic import SpanTable, Traffic, answer_content, private_content
from workloads.transform import declare, limit, roots_of, sample, scale_rate, take, window, with_arrivals


def plain(size=100) -> Traffic:
    return Traffic(np.arange(size, dtype=float), np.full(size, 10), np.arange(1, size + 1))


def chat(requests=60, seed=0, turns=4) -> Traffic:
    return synthesize(
        {
            "requests": requests,
            "arrivals": {"process": "poisson", "rate": 1},
            "input_tokens": {"distribution": "uniform", "low": 5, "high": 50},
            "output_tokens": {"distribution": "uniform", "low": 1, "high": 40},
            "prefix": {"kind": "system-prompts", "count": 2, "tokens": 16},
            "sessions": {"turns": {"distribution": "uniform", "low": 1, "high": turns}, "think": 2},
        },
        seed,
    )


def whose(traffic: Traffic) -> list:
    """Rows with contents named by what they are, not by row: for comparing across renumbering."""
    key = [(float(a), int(t)) for a, t in zip(traffic.arrival, depth(traffic), strict=True)]

    def named(content):
        return content if content < 0 else (*key[content >> 1], content & 1)

    return [
        (key[i], traffic.output_tokens[i], [(named(c), o, n) for c, o, n in traffic.request(i).prompt])
        for i in range(len(traffic))
    ]


def depth(traffic: Traffic) -> np.ndarray:
    found = np.zeros(len(traffic), int)
    for i in range(len(traffic)):
        if traffic.parent[i] >= 0:
            found[i] = found[traffic.parent[i]] + 1
    return found


def test_take_renumbers_parents_and_contents():
    traffic = chat()
    rows = np.flatnonzero(roots_of(traffic) % 2 == 0)
    part = take(traffic, rows)
    part.validate()
    everything = {tuple(map(str, row)) for row in whose(traffic)}
    assert {tuple(map(str, row)) for row in whose(part)} <= everything


def test_take_keeps_the_identity_of_contents_that_are_left_out():
    traffic = chat()
    children = np.flatnonzero(traffic.parent >= 0)
    part = take(traffic, children)
    assert np.all(part.parent[depth(traffic)[children] == 1] == -1)
    table = part.spans
    assert table is not None
    assert len(np.unique(table.content)) == len(np.unique(_contents(traffic, children)))


def _contents(traffic, rows):
    return np.concatenate([[s.content for s in traffic.request(int(r)).prompt] for r in rows])


def test_window_starts_at_zero_and_keeps_sessions_whole():
    traffic = chat()
    middle = window(traffic, 5.0, 10.0)
    middle.validate()
    roots = traffic.arrival[traffic.parent < 0]
    inside = (roots >= 5) & (roots < 15)
    np.testing.assert_allclose(middle.arrival[middle.parent < 0], roots[inside] - 5)
    sizes = np.bincount(roots_of(traffic), minlength=len(traffic))[traffic.parent < 0]
    assert len(middle) == sizes[inside].sum()
    assert any("window from 5 s for 10 s" in note for note in middle.notes)


def test_a_window_at_its_edges():
    assert window(plain(), 10, 5).arrival.tolist() == [0, 1, 2, 3, 4]
    for start, duration in ((-1, 5), (0, 0)):
        with pytest.raises(InputError, match=r"window start"):
            window(plain(), start, duration)


def test_scaling_the_rate_moves_times_only(same):
    fast = scale_rate(plain(), 4.0)
    np.testing.assert_array_equal(fast.arrival, np.arange(100) / 4)
    same(scale_rate(plain(), 1.0), plain())
    for factor in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"rate_scale must be positive"):
            scale_rate(plain(), factor)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999), amount=st.one_of(st.floats(0.01, 1.0), st.integers(1, 90)))
def test_samples_are_whole_sessions_in_order(seed, amount):
    traffic = chat(seed=seed % 5)
    part = sample(traffic, amount, seed)
    part.validate()
    everything = {str(row) for row in whose(traffic)}
    assert all(str(row) in everything for row in whose(part))
    sizes = {
        float(traffic.arrival[r]): n for r, n in zip(*np.unique(roots_of(traffic), return_counts=True), strict=True)
    }
    for root, size in zip(*np.unique(roots_of(part), return_counts=True), strict=True):
        assert sizes[float(part.arrival[root])] == size
    if isinstance(amount, int):
        assert len(part) <= max(amount, max(sizes.values()))
    else:
        assert (part.parent < 0).sum() == max(1, round(amount * len(sizes)))


def test_samples_depend_on_the_seed_alone(same):
    same(sample(plain(), 0.3, 5), sample(plain(), 0.3, 5))
    assert not np.array_equal(sample(plain(), 0.3, 5).arrival, sample(plain(), 0.3, 6).arrival)
    assert len(sample(plain(), 1.0)) == 100 and len(sample(plain(), 1)) == 1


@pytest.mark.parametrize("amount", [0, -3, 0.0, 1.5, True])
def test_impossible_samples(amount):
    with pytest.raises(InputError, match=r"sample"):
        sample(plain(), amount)


def test_limit():
    part = limit(chat(), 7)
    part.validate()
    assert len(part) == 7
    assert limit(plain(), 1000) is not None and len(limit(plain(), 1000)) == 100


def test_other_arrivals():
    traffic = with_arrivals(chat(), {"process": "constant", "rate": 2})
    traffic.validate()
    roots = traffic.parent < 0
    np.testing.assert_array_equal(traffic.arrival[roots], np.arange(roots.sum()) / 2)
    with pytest.raises(InputError, match=r"arrivals.rate: is missing"):
        with_arrivals(chat(), {"process": "constant"})


# --- declared limits


def lengths(inputs, outputs, declared=None) -> Traffic:
    return Traffic(np.zeros(len(inputs)), inputs, outputs, declared)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("context", [95, 80, 70]),
        ("exact", [1, 8, 9]),
        ("next_power_of_two", [1, 8, 16]),
        ({"fixed": 64}, [64, 64, 64]),
        ({"multiple": 1.5}, [2, 12, 14]),
        ({"multiple": 2}, [2, 16, 18]),
    ],
)
def test_rules(rule, expected):
    traffic = declare(lengths([5, 20, 30], [1, 8, 9]), rule, 100)
    assert traffic.max_tokens.tolist() == expected
    assert traffic.output_tokens.tolist() == [1, 8, 9]
    assert any("max_tokens: " in note and "for 3 requests" in note for note in traffic.notes)


def test_what_the_trace_says_is_kept():
    traffic = declare(lengths([5, 5], [9, 9], [0, 4]), {"fixed": 50})
    assert traffic.max_tokens.tolist() == [50, 4]
    assert traffic.output_tokens.tolist() == [9, 4]
    assert "1 answers cut at their max_tokens" in traffic.notes


def test_a_limit_below_the_truth_cuts_the_answer():
    traffic = declare(lengths([5, 5, 5], [9, 10, 11]), {"fixed": 10})
    assert traffic.output_tokens.tolist() == [9, 10, 10]
    assert "1 answers cut at their max_tokens" in traffic.notes


def test_a_prompt_that_fills_the_context_is_left_to_the_engine():
    traffic = declare(lengths([100, 150, 99], [9, 9, 9]), "context", 100)
    assert traffic.max_tokens.tolist() == [1, 1, 1]
    assert any("2 prompts fill the context of 100 tokens" in note for note in traffic.notes)


def test_cut_answers_are_quoted_as_they_were_given():
    """Row 0 gives 8 of 20 tokens; row 1 quotes these, which leaves its answer more room; 2 quotes both."""
    prompts = [
        [(private_content(0), 0, 10)],
        [(private_content(0), 0, 10), (answer_content(0), 0, 20), (private_content(1), 0, 5)],
        [(answer_content(0), 12, 8), (answer_content(1), 0, 9), (private_content(2), 0, 1)],
    ]
    traffic = Traffic(
        np.zeros(3), [10, 35, 18], [20, 9, 3], [8, 0, 0], spans=SpanTable.build(prompts), parent=[-1, 0, 1]
    )
    traffic.validate()
    cut = declare(traffic, "context", 30)
    cut.validate()
    assert cut.output_tokens.tolist() == [8, 7, 3]
    assert cut.input_tokens.tolist() == [10, 23, 8]
    assert cut.max_tokens.tolist() == [8, 7, 22]
    assert cut.request(1).prompt[1] == (answer_content(0), 0, 8)
    assert cut.request(2).prompt == ((answer_content(1), 0, 7), (private_content(2), 0, 1))
    assert traffic.input_tokens.tolist() == [10, 35, 18]  # the original is as it was


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 99),
    rule=st.sampled_from(["context", "exact", "next_power_of_two", {"fixed": 7}, {"multiple": 0.4}, {"multiple": 3}]),
    context=st.integers(30, 400),
)
def test_the_truth_never_exceeds_the_limit(seed, rule, context):
    before = chat(40, seed)
    traffic = declare(before, rule, context)
    traffic.validate()
    assert np.all(traffic.max_tokens >= 1)
    assert np.all(traffic.output_tokens <= traffic.max_tokens)
    assert np.all(traffic.output_tokens <= before.output_tokens)
    assert np.all(traffic.input_tokens <= before.input_tokens)
    for row in np.flatnonzero(traffic.parent >= 0).tolist():
        parent = traffic.request(int(traffic.parent[row]))
        assert traffic.request(row).input_tokens > parent.input_tokens + parent.output_tokens
        assert traffic.request(row).prompt[: len(parent.prompt)] == parent.prompt


@settings(deadline=None)
@given(st.integers(1, 2**52))
def test_powers_of_two(value):
    found = int(declare(lengths([1], [value]), "next_power_of_two").max_tokens[0])
    assert found == 1 << (value - 1).bit_length()


@pytest.mark.parametrize(
    "rule",
    [
        "contex",
        {"fixed": 0},
        {"fixed": 1.5},
        {"fixed": True},
        {"multiple": -1},
        {"multiple": "x"},
        {},
        {"a": 1},
        None,
        5,
    ],
)
def test_rules_that_are_none(rule):
    with pytest.raises(InputError, match=r"traffic.max_tokens: .*one of context, exact"):
        declare(plain(), rule, 100)


def test_the_context_must_be_known():
    with pytest.raises(InputError, match=r"rule context needs the model's context length"):
        declare(plain(), "context")
