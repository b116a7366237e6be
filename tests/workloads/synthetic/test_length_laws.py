import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.errors import InputError
from workloads.synthetic import LAWS
from workloads.synthetic.fields import Section
from workloads.synthetic.lengths import Reading, parse_law, parse_pairs

N = 50_000


def draw(section, size=N, seed=0, **reading):
    law = parse_law(section, "input_tokens", Reading(**reading))
    return law.tokens(np.random.default_rng(seed), size)


def test_fixed_and_its_short_form():
    for section in (512, {"distribution": "fixed", "value": 512}):
        assert set(draw(section).tolist()) == {512}


def test_uniform_takes_both_ends():
    values = draw({"distribution": "uniform", "low": 3, "high": 5})
    counts = np.bincount(values)[3:]
    assert len(counts) == 3
    np.testing.assert_allclose(counts / N, 1 / 3, atol=0.01)


def test_normal():
    values = draw({"distribution": "normal", "mean": 800, "std": 50})
    assert values.mean() == pytest.approx(800, abs=2) and values.std() == pytest.approx(50, rel=0.02)


def test_lognormal_by_mean_and_by_median():
    by_mean = draw({"distribution": "lognormal", "mean": 1000, "std": 800})
    assert by_mean.mean() == pytest.approx(1000, rel=0.02) and by_mean.std() == pytest.approx(800, rel=0.05)
    by_median = draw({"distribution": "lognormal", "median": 1000, "sigma": 0.5})
    assert np.median(by_median) == pytest.approx(1000, rel=0.02)
    assert np.log(by_median).std() == pytest.approx(0.5, rel=0.02)


def test_exponential():
    values = draw({"distribution": "exponential", "mean": 400})
    assert values.mean() == pytest.approx(400, rel=0.02) and values.std() == pytest.approx(400, rel=0.03)


def test_zipf():
    counts = np.bincount(draw({"distribution": "zipf", "exponent": 1.5, "low": 2, "high": 50}))
    assert counts[:2].sum() == 0 and len(counts) == 51
    assert counts[2] / counts[8] == pytest.approx(4**1.5, rel=0.1)


def test_quantiles_are_met():
    wanted = {0: 2, 0.25: 396, 0.5: 1020, 0.95: 4083, 1: 14050}
    values = draw({"distribution": "quantiles", "values": wanted})
    for p, value in list(wanted.items())[1:-1]:
        assert np.quantile(values, p) == pytest.approx(value, rel=0.03)
    assert values.min() >= 2 and values.max() <= 14050


def test_mixture():
    parts = [
        {"weight": 3, "distribution": "fixed", "value": 90},
        {"weight": 1, "distribution": "fixed", "value": 7},
    ]
    assert (draw({"distribution": "mixture", "parts": parts}) == 90).mean() == pytest.approx(0.75, abs=0.01)


def test_bounds_hold_for_every_law():
    for name, figures in {
        "normal": {"mean": 100, "std": 90},
        "lognormal": {"mean": 100, "std": 90},
        "exponential": {"mean": 100},
    }.items():
        values = draw({"distribution": name, "low": 20, "high": 150} | figures)
        assert (values.min(), values.max()) == (20, 150)


def test_empirical(file):
    file("t.csv", "input_tokens,output_tokens\n10,1\n20,2\n20,3\n")
    base = file("x", "").parent
    section = {"distribution": "empirical", "trace": "t.csv"}
    values = draw(section, base=base, column="input")
    assert (values == 20).mean() == pytest.approx(2 / 3, abs=0.01)
    assert set(draw(section, base=base, column="output").tolist()) == {1, 2, 3}
    assert set(draw(section | {"column": "output"}, base=base).tolist()) == {1, 2, 3}
    inputs, outputs = parse_pairs(Section(section, "lengths"), base).draw(np.random.default_rng(0), 500)
    assert set(zip(inputs.tolist(), outputs.tolist(), strict=True)) == {(10, 1), (20, 2), (20, 3)}


def test_spans_of_time():
    law = parse_law({"distribution": "uniform", "low": "500ms", "high": 2}, "think", Reading(time=True))
    values = law.sample(np.random.default_rng(0), N)
    assert 0.5 <= values.min() < 0.51 and 1.99 < values.max() <= 2
    assert parse_law("3s", "think", Reading(time=True)).sample(np.random.default_rng(0), 1) == 3.0
    assert parse_law(0, "think", Reading(time=True)).sample(np.random.default_rng(0), 1) == 0.0


@settings(deadline=None)
@given(
    section=st.one_of(
        st.builds(lambda v: v, st.integers(1, 10**6)),
        st.builds(lambda a, b: {"distribution": "uniform", "low": a, "high": a + b}, *[st.integers(1, 10**5)] * 2),
        st.builds(lambda a, b: {"distribution": "normal", "mean": a, "std": b}, *[st.floats(0.1, 1e5)] * 2),
        st.builds(lambda a, b: {"distribution": "lognormal", "mean": a, "std": b}, *[st.floats(0.1, 1e4)] * 2),
        st.builds(lambda a: {"distribution": "exponential", "mean": a}, st.floats(0.01, 1e5)),
        st.builds(
            lambda e, b: {"distribution": "zipf", "exponent": e, "low": 1, "high": b},
            st.floats(0, 5),
            st.integers(1, 5000),
        ),
    ),
    seed=st.integers(0, 2**32),
)
def test_tokens_are_whole_and_at_least_one(section, seed):
    values = draw(section, 100, seed)
    assert values.dtype == np.int64 and len(values) == 100 and values.min() >= 1


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (0, r"^input_tokens: must be at least 1, not 0"),
        (-5, r"^input_tokens: must be at least 1"),
        ("many", r"^input_tokens: expected a number, not 'many'"),
        (
            {"distribution": "unifrom", "low": 1, "high": 2},
            r"input_tokens.distribution: .*did you mean uniform",
        ),
        ({"low": 1, "high": 2}, r"input_tokens.distribution: is missing"),
        ({"distribution": "uniform", "low": 5, "high": 2}, r"input_tokens.high: must not be less than low"),
        ({"distribution": "uniform", "low": 5}, r"input_tokens.high: is missing"),
        ({"distribution": "uniform", "low": 0.5, "high": 3}, r"input_tokens.low: must be at least 1"),
        ({"distribution": "uniform", "low": 1.5, "high": 3}, r"input_tokens.low: expected a whole number"),
        ({"distribution": "normal", "mean": 5, "std": 0}, r"input_tokens.std: must be positive, not 0"),
        ({"distribution": "normal", "mean": 5, "sd": 1}, r"input_tokens.std: is missing"),
        (
            {"distribution": "normal", "mean": 5, "std": 1, "hihg": 3},
            r"input_tokens.hihg: .*did you mean high",
        ),
        ({"distribution": "lognormal", "mean": 5, "sigma": 1}, r"either mean and std, or median and sigma"),
        ({"distribution": "lognormal"}, r"either mean and std, or median and sigma"),
        ({"distribution": "quantiles", "values": {0: 1, 0.5: 2}}, r"the first 0 and the last 1"),
        ({"distribution": "quantiles", "values": {0: 3, 1: 2}}, r"must not decrease"),
        ({"distribution": "quantiles", "values": {"a": 3, 1: 2}}, r"must be probabilities"),
        ({"distribution": "quantiles", "values": [1]}, r"input_tokens.values: expected a mapping"),
        ({"distribution": "mixture", "parts": []}, r"input_tokens.parts: expected a list"),
        (
            {"distribution": "mixture", "parts": [{"weight": 0}]},
            r"input_tokens.parts\[0\].weight: must be positive",
        ),
        ({"distribution": "empirical", "trace": "nowhere.csv"}, r"nowhere.csv: no such file"),
        ({"distribution": "empirical", "trace": 3}, r"input_tokens.trace: expected the path"),
        ({"distribution": "zipf", "low": 1, "high": 10**9}, r"wider than 10,000,000"),
    ],
)
def test_errors_name_the_key(section, said):
    with pytest.raises(InputError, match=said):
        parse_law(section, "input_tokens", Reading())


def test_all_laws_are_tried():
    assert set(LAWS) == {
        "fixed", "uniform", "normal", "lognormal", "exponential", "zipf", "quantiles", "empirical", "mixture"
    }  # fmt: skip
