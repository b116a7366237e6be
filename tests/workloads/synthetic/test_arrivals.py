import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.errors import InputError
from workloads.streams import Streams
from workloads.synthetic import PROCESSES, parse_arrivals
from workloads.synthetic.arrivals import times_until
from workloads.synthetic.fields import Section

N = 40_000
EVERY = {
    "constant": {"rate": 5},
    "poisson": {"rate": 5},
    "gamma": {"rate": 5, "burstiness": 0.25},
    "on-off": {"rate": 5, "on": "4s", "off": "8s"},
    "diurnal": {"rate": 5, "period": "10min", "amplitude": 0.8},
    "at-once": {},
}


def process(name, **figures):
    return parse_arrivals(Section({"process": name} | (figures or EVERY[name]), "arrivals"))


def cv(times):
    gaps = np.diff(times)
    return gaps.std() / gaps.mean()


def test_all_processes_are_tried():
    assert set(EVERY) == set(PROCESSES)


@pytest.mark.parametrize("seed", range(4))
def test_poisson_is_poisson(seed):
    """Gaps of CV 1 within four standard errors (1/sqrt(n) for mean and CV), and exponential throughout."""
    times = process("poisson").times(Streams(seed), N)
    assert cv(times) == pytest.approx(1, abs=4 / np.sqrt(N))
    assert N / times[-1] == pytest.approx(5, rel=4 / np.sqrt(N))
    share = (np.diff(times) > 0.4).mean()  # exp(-2) of them
    assert share == pytest.approx(np.exp(-2), abs=4 * np.sqrt(np.exp(-2) / N))
    counts = np.bincount(times.astype(int))  # and counts a second have the variance of their mean
    assert counts[:-1].var() / counts[:-1].mean() == pytest.approx(1, abs=0.08)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_has_vllms_burstiness(burstiness):
    times = process("gamma", rate=5, burstiness=burstiness).times(Streams(1), N)
    assert cv(times) == pytest.approx(1 / np.sqrt(burstiness), rel=0.04)
    assert N / times[-1] == pytest.approx(5, rel=0.05)


def test_constant_is_even_and_starts_at_once():
    np.testing.assert_array_equal(process("constant", rate=4).times(Streams(0), 5), [0, 0.25, 0.5, 0.75, 1])


def test_on_off_keeps_its_mean_rate_and_is_silent_when_off():
    times = process("on-off").times(Streams(2), N)
    assert N / times[-1] == pytest.approx(5, rel=0.1)
    assert cv(times) > 4
    busy = np.median(np.diff(times))
    assert busy == pytest.approx(np.log(2) / 15, rel=0.05)  # on for a third of the time, at three times the rate


def test_on_off_quiet_is_a_share_of_the_busy_rate():
    times = process("on-off", rate=5, on="100s", off="100s", quiet=0.25).times(Streams(3), N)
    counts = np.bincount((times / 10).astype(int))
    assert N / times[-1] == pytest.approx(5, rel=0.15)
    assert np.quantile(counts, 0.1) == pytest.approx(20, abs=8)  # 2 a second
    assert np.quantile(counts, 0.9) == pytest.approx(80, abs=16)  # 8 a second


def test_diurnal_swings_as_it_says():
    times = process("diurnal").times(Streams(4), N)
    phase = (times[times < 13 * 600] / 600) % 1  # whole periods
    counts, _ = np.histogram(phase, 20, (0, 1))
    middle = (np.arange(20) + 0.5) / 20
    expected = 1 + 0.8 * np.sin(2 * np.pi * middle)
    np.testing.assert_allclose(counts / counts.mean(), expected, atol=0.12)


@pytest.mark.parametrize("name", ["constant", "poisson", "gamma"])
def test_normalize_puts_the_last_at_n_over_rate(name):
    times = process(name, rate=5, normalize=True).times(Streams(0), 137)
    assert times[-1] == 137 / 5
    assert times[0] > 0


@pytest.mark.parametrize("name", EVERY)
@settings(deadline=None)
@given(seed=st.integers(-3, 10**9), few=st.integers(0, 50), more=st.integers(0, 300))
def test_times_are_sorted_finite_and_only_grow_with_the_count(name, seed, few, more):
    made = process(name)
    short, long = made.times(Streams(seed), few), made.times(Streams(seed), few + more)
    np.testing.assert_array_equal(short, long[:few])
    assert len(long) == few + more
    assert np.all(np.isfinite(long)) and np.all(np.diff(long) >= 0) and (not len(long) or long[0] >= 0)


@pytest.mark.parametrize("name", [n for n in EVERY if n != "at-once"])
def test_until_a_time(name):
    made = process(name)
    times = times_until(made, Streams(5), 100.0)
    assert times[-1] < 100 <= made.times(Streams(5), len(times) + 1)[-1]


def test_until_is_bounded():
    with pytest.raises(InputError, match=r"more than 50,000,000 requests"):
        times_until(process("poisson", rate=1e9), Streams(0), 60)


def test_an_infinite_rate_is_all_at_once():
    for rate in (float("inf"), "inf"):
        made = process("poisson", rate=rate)
        assert made.times(Streams(0), 3).tolist() == [0, 0, 0]
        assert str(made) == "all at once"


def test_times_are_rounded_to_a_clock():
    times = process("poisson", rate=5, resolution="1us").times(Streams(0), 100)
    assert all(len(repr(t).partition(".")[2]) <= 6 for t in times.tolist())
    binned = process("poisson", rate=5, resolution="3s").times(Streams(0), 100)
    assert set(np.diff(np.unique(binned)).tolist()) == {3.0}


@pytest.mark.parametrize("name", EVERY)
def test_the_process_says_what_it_is(name):
    told = str(process(name))
    assert {"poisson": "Poisson", "at-once": "at once"}.get(name, name) in told
    assert name == "at-once" or "5 a second" in told


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"process": "poison"}, r"arrivals.process: unknown process 'poison' \(did you mean poisson\?"),
        ({"rate": 5}, r"arrivals.process: is missing"),
        ({"process": "poisson"}, r"arrivals.rate: is missing"),
        ({"process": "poisson", "rate": 0}, r"arrivals.rate: must be positive, not 0"),
        ({"process": "poisson", "rate": -3}, r"arrivals.rate: must be positive, not -3"),
        ({"process": "poisson", "rate": float("nan")}, r"arrivals.rate: must be finite"),
        ({"process": "poisson", "rate": "fast"}, r"arrivals.rate: expected a number, not 'fast'"),
        ({"process": "poisson", "rate": True}, r"arrivals.rate: expected a number, not True"),
        ({"process": "poisson", "rate": 5, "burstiness": 2}, r"arrivals.burstiness: unknown key"),
        ({"process": "gamma", "rate": 5, "burstines": 2}, r"arrivals.burstines: .*did you mean burstiness"),
        ({"process": "on-off", "rate": 5, "on": 5}, r"arrivals.off: is missing"),
        ({"process": "on-off", "rate": 5, "on": 5, "off": "2 lightyears"}, r"arrivals.off: .*span of time"),
        ({"process": "diurnal", "rate": 5, "amplitude": 2}, r"arrivals.amplitude: must be at most 1, not 2"),
        ({"process": "constant", "rate": 5, "normalize": 1}, r"arrivals.normalize: expected true or false"),
        ({"process": "on-off", "rate": 5, "on": 5, "off": 5, "normalize": True}, r"normalize: unknown key"),
    ],
)
def test_errors_name_the_key(section, said):
    with pytest.raises(InputError, match=said):
        parse_arrivals(Section(section, "arrivals"))
