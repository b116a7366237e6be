"""Durations and sizes with units."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.units import (
    BYTES,
    SECONDS,
    parse_bytes,
    parse_duration,
    parse_gibibytes,
    parse_milliseconds,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10min", 600.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("0s", 0.0),
        ("1h30min", 5400.0),
        ("2 d", 172800.0),
        ("250us", 250e-6),
        ("250µs", 250e-6),
        (".5s", 0.5),
        ("1e3s", 1000.0),
        (" 3 min 20 s ", 200.0),
        ("1_000ms", 1.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("40GB", 40 * 10**9),
        ("40GiB", 40 * 2**30),
        ("512B", 512),
        ("1.5kB", 1500),
        ("1KB", 1000),
        ("2 MiB", 2 << 20),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (5, "bare number 5; write 5s"),
        (1.5, "bare number"),
        ("10m", "min for minutes, ms for milliseconds"),
        ("10", "expected a unit after 10"),
        ("10 minutes", "write min"),
        ("", "such as 10min"),
        ("-1s", "such as 10min"),
        ("ten", "such as 10min"),
        ("5 parsecs", "expected one of ns, us"),
        (True, "got True"),
        (None, "got None"),
        (["1s"], "such as 10min"),
        ("1e999s", "finite"),
        ("1s;", "such as 10min"),
    ],
)
def test_bad_durations_say_what_to_write(value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_duration(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (40, "write 40GB or 40GiB"),
        ("40", "expected a unit"),
        ("40gb", "write GB"),
        ("40Gb", "means bits"),
        ("40G", "GB or GiB"),
        ("40Gi", "write GiB"),
        ("-1GB", "such as 40GB"),
        ("x", "such as 40GB"),
        (False, "got False"),
    ],
)
def test_bad_sizes_say_what_to_write(value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_bytes(value)


def test_a_key_that_carries_the_unit_takes_a_number_or_a_unit() -> None:
    assert parse_milliseconds(500) == parse_milliseconds("500ms") == parse_milliseconds("0.5s") == 500.0
    assert parse_gibibytes(4) == parse_gibibytes("4GiB") == 4.0
    assert parse_gibibytes("4GB") == pytest.approx(4e9 / 2**30)
    for wrong in (True, "500", -1, math.inf, math.nan, [1]):
        with pytest.raises(ValueError):
            parse_milliseconds(wrong)


@given(st.floats(0, 1e9, allow_subnormal=False), st.sampled_from(sorted(SECONDS)))
def test_any_amount_and_unit_gives_their_product(amount: float, unit: str) -> None:
    assert parse_duration(f"{amount!r}{unit}") == pytest.approx(amount * SECONDS[unit], rel=1e-12)


@given(st.integers(0, 10**6), st.sampled_from(sorted(BYTES)))
def test_any_whole_size_is_exact(amount: int, unit: str) -> None:
    assert parse_bytes(f"{amount}{unit}") == amount * BYTES[unit]


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(sorted(SECONDS))), min_size=1, max_size=4))
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    text = " ".join(f"{amount}{unit}" for amount, unit in parts)
    assert parse_duration(text) == pytest.approx(sum(amount * SECONDS[unit] for amount, unit in parts), rel=1e-12)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert parse_duration(text) >= 0
    except ValueError as error:
        assert str(error)
