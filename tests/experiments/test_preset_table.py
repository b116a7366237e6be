"""The page of presets in the documentation says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.preset_table import page
from sim.presets import PRESETS

PAGE = Path(__file__).parents[2] / "docs" / "presets.md"


def test_the_page_is_what_the_code_gives() -> None:
    told = "renew it: python -m experiments.preset_table > docs/presets.md"
    assert PAGE.read_text("utf-8") == page(), told


@pytest.mark.parametrize("name", PRESETS)
def test_every_value_of_a_preset_has_a_source(name: str) -> None:
    preset = PRESETS[name]
    stated = [*preset.engine, *(f"scheduler.{key}" for key in preset.scheduler), *(f"kv.{key}" for key in preset.kv)]
    assert all(preset.sources.get(key) or preset.sources.get("*") for key in stated)
    assert set(preset.sources) - {"*"} <= {*stated, "scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"}


def test_every_stated_value_is_on_the_page_or_does_nothing() -> None:
    text = page()
    for name, preset in PRESETS.items():
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert f"| `scheduler.name` | {preset.scheduler['name']} |" in section
        assert f"| `kv.allocator` | {preset.kv['allocator']} |" in section
        assert " |  |" not in section
