import pytest

from workloads.errors import InputError, Place
from workloads.units import seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (3, 3.0),
        (0.5, 0.5),
        ("10min", 600),
        ("500ms", 0.5),
        ("1.5 h", 5400),
        ("2d", 172_800),
        ("7", 7),
        ("1e3us", 1e-3),
    ],
)
def test_spans_of_time(text, value):
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "ten minutes", "10 parsecs", "min", True, None, float("nan"), float("inf"), [1]])
def test_nothing_is_guessed(text):
    with pytest.raises(InputError, match=r"^think: "):
        seconds(text, place=Place(key="think"))
