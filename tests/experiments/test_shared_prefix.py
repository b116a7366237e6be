"""Prompts that all begin alike, on engines that read such a beginning once."""

import re

import pytest
from simulate import run

from experiments.shared_prefix import common_prefix
from workloads.traffic import Span, SpanTable, Traffic

SHARED = {
    "traffic.synthetic": {
        "requests": 64,
        "arrivals": {"process": "at-once"},
        "input_tokens": {"distribution": "fixed", "value": 16},
        "output_tokens": {"distribution": "fixed", "value": 64},
        "prefix": {"kind": "system-prompts", "count": 1, "tokens": 4000},
    },
    "engine.max_model_len": 8192,
    "load": {"mode": "closed", "concurrency": 32},
}


def traffic(prompts: list[list[Span]]) -> Traffic:
    sizes = [sum(span.length for span in prompt) for prompt in prompts]
    return Traffic([0.0] * len(prompts), sizes, [4] * len(prompts), spans=SpanTable.build(prompts))


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [
        ([[Span(1, 0, 100), Span(2, 0, 5)], [Span(1, 0, 100), Span(3, 0, 7)]], 100),
        ([[Span(1, 0, 100)], [Span(1, 0, 60), Span(3, 0, 7)]], 60),
        ([[Span(1, 0, 10), Span(4, 0, 5), Span(2, 0, 9)], [Span(1, 0, 10), Span(4, 0, 5), Span(3, 0, 9)]], 15),
        ([[Span(1, 0, 10), Span(4, 0, 5)], [Span(1, 0, 8), Span(4, 0, 5)]], 8),
        ([[Span(1, 0, 10)], [Span(2, 0, 10)]], 0),
        ([[Span(1, 0, 10)], [Span(1, 5, 10)]], 0),
    ],
)
def test_the_beginning_that_all_share(prompts: list[list[Span]], shared: int) -> None:
    assert common_prefix(traffic(prompts)) == shared


def test_private_prompts_share_nothing() -> None:
    assert common_prefix(Traffic([0.0, 0.0], [500, 500], [4, 4])) == 0


def told(changes: dict) -> list[str]:
    return [text for text in run(SHARED | changes).warnings if "cascade" in text]


@pytest.mark.parametrize("preset", ["vllm@0.8", "vllm@0.12", "vllm@0.17"])
def test_versions_that_read_it_once_say_by_how_much_they_are_too_slow(preset: str) -> None:
    """32 sequences of some 4,050 tokens read 17 GB of keys and values beside 15 GB of weights; once, half a GB."""
    (text,) = told({"engine.preset": preset})
    assert "4,000 tokens" in text
    assert 30 < int(re.search(r"(\d+)% shorter", text)[1]) < 60


@pytest.mark.parametrize(
    "changes",
    [
        {"engine.preset": "vllm@0.18"},
        {"engine.preset": "vllm"},
        {"engine.preset": "vllm@0.7"},
        {"engine.preset": "sglang"},
        {"engine.preset": "vllm@0.12", "engine.kv": {"prefix_caching": False}},
        {"engine.preset": "vllm@0.12", "load": {"mode": "closed", "concurrency": 4}},
        {"engine.preset": "vllm@0.12", "backend.gpu": "mi300x"},
    ],
    ids=lambda changes: ",".join(map(str, changes.values())),
)
def test_others_say_nothing(changes: dict) -> None:
    assert not told(changes)
