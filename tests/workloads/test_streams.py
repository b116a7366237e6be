import numpy as np

from workloads.streams import Streams


def test_streams_are_told_apart_by_seed_purpose_and_number():
    draws = {
        tuple(Streams(seed).get(purpose, *numbers).random(3).tolist())
        for seed in (0, 1, -1, 2**63, 2**64 + 1)
        for purpose in ("arrivals", "turns")
        for numbers in ((), (0,), (1,), (0, 1))
    }
    assert len(draws) == 5 * 2 * 4


def test_a_stream_starts_over_each_time():
    streams = Streams(3)
    np.testing.assert_array_equal(streams.get("a").random(5), streams.get("a").random(5))


def test_streams_are_the_same_everywhere_and_always():
    assert Streams(0).get("arrivals").integers(0, 10**9, 3).tolist() == [200852263, 183345117, 456776215]
