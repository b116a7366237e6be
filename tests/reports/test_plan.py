"""The plan before a run: what it says of a configuration, in windows of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from synthetic_runs import example_config

from reports.plan import print_plan

INFO = {"name": "a run", "seed": 3, "gpus": 2, "kv_pool_tokens": 60_000, "kv_bytes_per_token": 131_072}


def plan(config: dict, info: dict | None = None, width: int = 100, **options) -> list[str]:
    file = io.StringIO()
    print_plan(INFO if info is None else info, config, Console(file=file, width=width, **options))
    return file.getvalue().splitlines()


def line(lines: list[str], label: str) -> str:
    """A line and what it was wrapped into."""
    start = next(i for i, text in enumerate(lines) if text.startswith(label))
    more = [text.strip() for text in lines[start + 1 :]]
    end = next((i for i, text in enumerate(lines[start + 1 :]) if not text.startswith(" ")), len(more))
    return " ".join([lines[start], *more[:end]]).removeprefix(label).strip()


def test_ten_subjects_with_what_the_user_wrote_first():
    lines = plan(example_config())
    labels = [text.split("  ")[0] for text in lines if not text.startswith(" ")]
    assert labels == [
        "run", "model", "backend", "engine", "scheduler", "kv cache", "parallel", "traffic", "load", "slo",
    ]  # fmt: skip
    assert line(lines, "scheduler").split(", ")[:2] == ["chunked-prefill", "max_num_seqs 128"]
    assert line(lines, "kv cache").split(", ")[:2] == ["paged", "memory_utilization 0.9"]
    assert line(lines, "kv cache").endswith("60,000 tokens (7.86 GB)")
    assert line(lines, "backend") == "sim, h100-sxm"
    assert line(lines, "slo") == "TTFT 500 ms, TPOT 50 ms"
    assert line(lines, "parallel") == "tensor 1, pipeline 1, 2 GPUs"


def test_what_nobody_touched_is_left_out_but_for_what_decides():
    config = example_config()
    config["engine"]["kv"] |= {
        "slab": {"value": "exact", "source": "default"}, "memory_rule": {"value": "total", "source": "default"},
    }  # fmt: skip
    text = line(plan(config), "kv cache")
    assert "slab exact" in text and "memory_rule" not in text


def test_sections_inside_the_traffic_stay_together():
    def leaf(value):
        return {"value": value, "source": "user"}

    config = example_config()
    config["traffic"]["synthetic"]["input_tokens"] = {"distribution": leaf("normal"), "mean": leaf(90), "std": leaf(9)}
    text = line(plan(config), "traffic")
    assert "arrivals poisson (rate 8)" in text
    assert "input_tokens normal (mean 90, std 9)" in text
    config["traffic"] = {
        "max_tokens": {"fixed": leaf(64)},
        "trace": {"path": leaf("t.csv"), "start": leaf(0.0), "duration": leaf(600.0)},
    }
    assert line(plan(config), "traffic") == "t.csv, max_tokens fixed 64, start 0 s, duration 10 min"


def test_the_users_words_are_bold_on_a_terminal():
    text = "\n".join(plan(example_config(), force_terminal=True, color_system="standard", no_color=False))
    assert "\x1b[1mmax_num_seqs 128" in text
    assert "\x1b[1mgate" not in text


@pytest.mark.parametrize("width", [12, 20, 40, 80, 200])
def test_nothing_is_wider_than_the_window_and_nothing_is_lost(width):
    config = example_config()
    lines = plan(config, width=width)
    assert all(len(text) <= max(width, 19) for text in lines)
    if width >= 40:
        assert "max_num_batched_tokens 2048" in line(lines, "scheduler")


def test_an_empty_configuration():
    lines = plan({}, {})
    assert len(lines) == 10
    assert line(lines, "parallel") == "one GPU" and line(lines, "slo") == "none"
