"""Values of a swept key read differently where they differ, however long they are."""

from __future__ import annotations

from reports.html.sweep_series import Sweep
from reports.wording import naming

APART = [
    {"replicas": 4, "router": "least-requests"},
    {"prefill": {"replicas": 3, "router": "least-requests"}, "decode": {"replicas": 1}},
    {"prefill": {"replicas": 2, "router": "least-requests"}, "decode": {"replicas": 1, "engine": {"tensor": 4}}},
]


def test_sections_are_told_by_what_differs() -> None:
    say = naming([{"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 5, "d": 3}}], 40)
    assert say({"a": 1, "b": {"c": 2, "d": 3}}) == "b.c 2" and say({"a": 1, "b": {"c": 5, "d": 3}}) == "b.c 5"


def test_plain_values_are_as_written() -> None:
    say = naming([1, 2.5, True, None, "fcfs", [1, 2]], 40)
    assert [say(each) for each in (1, 2.5, True, None, "fcfs", [1, 2])] == ["1", "2.5", "true", "none", "fcfs", "[1, 2]"]
    one = naming([{"a": 1}, {"a": 1}], 40)
    assert one({"a": 1}) == "{a: 1}"


def test_what_is_too_long_is_numbered() -> None:
    alike = ["x" * 50 + end for end in "ab"]
    say = naming(alike, 24)
    assert [say(each) for each in alike] == ["x" * 16 + "... (1)", "x" * 16 + "... (2)"]


def test_points_of_a_sweep_over_sections_stay_apart() -> None:
    def points(key: str, **more: object) -> list[dict]:
        return [{"settings": {key: value, **more}, "summary": {"output_throughput": 1.0}} for value in APART]

    sweep = Sweep(points("cluster"), ["cluster"])
    assert [x for x, _ in sweep.series["all"]] == [0.0, 1.0, 2.0] and len({text for _, text in sweep.ticks}) == 3
    assert len({sweep.title("all", point) for point in sweep.points}) == 3
    series = Sweep(points("cluster", **{"load.rate": 4}), ["load.rate", "cluster"])
    assert len(series.series) == 3
