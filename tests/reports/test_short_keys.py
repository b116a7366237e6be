"""Dotted keys in short."""

from __future__ import annotations

import pytest

from reports.wording import settings_told, short_keys


@pytest.mark.parametrize(
    ("keys", "short"),
    [
        (["load.concurrency", "engine.preset"], ["concurrency", "preset"]),
        (["engine.scheduler.name", "backend.name"], ["scheduler.name", "backend.name"]),
        (["engine.kv.dtype"], ["kv.dtype"]),
        (["seed", "name"], ["seed", "name"]),
        (["a.x.policy", "b.x.policy", "c.y.policy"], ["a.x.policy", "b.x.policy", "y.policy"]),
        (["policy", "x.policy"], ["policy", "x.policy"]),
        ([], []),
    ],
)
def test_keys_are_cut_to_what_tells_them_apart(keys: list[str], short: list[str]) -> None:
    assert list(short_keys(keys).values()) == short
    assert list(short_keys(keys)) == keys


def test_settings_are_told_in_short() -> None:
    told = settings_told({"engine.scheduler.name": "static", "backend.name": "sim", "load.concurrency": 8})
    assert told == "scheduler.name static, backend.name sim, concurrency 8"
