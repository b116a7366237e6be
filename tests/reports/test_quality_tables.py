"""Intervals of quality, its table, its JSON and its figure."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from reports.quality import COLUMNS, Measured, Quality, QualityRow, as_json, cells, markdown, summarise, write_quality
from reports.quality_figure import draw
from workloads.errors import OutputError


def row(mode: str = "int8", kl: float = 1e-3, bits: float = 8.1) -> QualityRow:
    one, many = Measured(1.0, 0.9, 1.1), Measured(kl, kl / 2, kl * 2)
    return QualityRow(
        mode, "int8-w8a8", "fp16", bits, 1_000_000, 512, Measured(12.5, 11, 14), one, many, many, one, 10.0, 200.0
    )


def quality(*rows: QualityRow) -> Quality:
    return Quality(
        "m", {"name": "t"}, None, 64, 32, 100, {"device": "d"}, rows or (row("reference", 0.0, 16), row()), ()
    )


def windows(seed: int, count: int = 40, tokens: int = 16) -> list[np.ndarray]:
    noise = np.random.default_rng(seed)
    return [noise.gamma(2.0, 1.0, tokens).astype(np.float32) + noise.normal() ** 2 for _ in range(count)]


def test_values_are_those_of_all_tokens_together() -> None:
    losses, kl = windows(1), windows(2)
    kl.append(np.full(100, 3.0, np.float32))  # windows need not be of one size
    losses.append(np.full(100, 2.0, np.float32))
    agree = [np.ones(len(each), np.float32) for each in kl]
    found = summarise(losses, losses, kl, agree)
    everything = np.concatenate(kl)
    assert found["divergence"].value == pytest.approx(everything.mean(), rel=1e-6)
    assert found["divergence_p99"].value == pytest.approx(np.quantile(everything, 0.99))
    assert found["perplexity"].value == pytest.approx(math.exp(np.concatenate(losses).mean()), rel=1e-5)
    assert found["ratio"] == Measured(1.0, 1.0, 1.0) and found["agreement"] == Measured(1.0, 1.0, 1.0)


def test_intervals_of_95_percent_hold_the_truth_about_that_often() -> None:
    """Windows drawn from a known law, again and again; tokens of a window hang together, which intervals must not overlook."""
    truth, inside = 2.0 + 1.0, 0
    for seed in range(120):
        kl = windows(seed + 1000)
        found = summarise(kl, kl, kl, kl, seed)["divergence"]
        inside += found.low <= truth <= found.high
    assert inside >= 104  # 0.95 × 120 = 114; less than 104 has a chance of 0.0004


def test_a_ratio_is_narrower_than_what_it_is_of() -> None:
    reference = windows(3)
    losses = [each + 0.01 for each in reference]
    found = summarise(reference, losses, losses, losses)
    assert found["ratio"].value == pytest.approx(math.exp(0.01), rel=1e-5)
    assert found["ratio"].high - found["ratio"].low < 1e-4 < found["perplexity"].high - found["perplexity"].low


def test_the_table_has_every_row_and_survives_hostile_names() -> None:
    hostile = "<script>|ü" + "x" * 300
    text = markdown(quality(row("reference", 0.0), row(hostile)))
    lines = text.splitlines()
    assert len(lines) == 4 and len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert cells(row())[1] == "8.10" and "[0.5, 2]" in cells(row())[6]


def test_the_table_has_speed_and_memory_beside_quality() -> None:
    names = markdown(quality(row())).splitlines()[0]
    for column in ("bits/weight", "weights MB", "KV bytes/token", "KL mean", "decode tok/s", "prefill tok/s"):
        assert column in names
    assert len(cells(row())) == len(COLUMNS) and f"{row().kv_bytes_per_token:,}" in cells(row())


def test_json_and_figure_are_written(tmp_path: Path) -> None:
    write_quality(quality(row("reference", 0.0), row(), row("$x$ <b>", 2.0, 4.2)), tmp_path)
    told = json.loads((tmp_path / "quality.json").read_text())
    assert told["schema"] == 1 and told["rows"][1]["divergence"] == {"value": 1e-3, "low": 5e-4, "high": 2e-3}
    assert as_json(quality())["rows"][1]["mode"] == "int8"
    for ending in ("svg", "png", "pdf"):
        draw(quality(row("reference", 0.0), row(), row("$x$ <b>", 2.0, 4.2)), tmp_path / f"q.{ending}")
        assert (tmp_path / f"q.{ending}").stat().st_size > 1000
    draw(quality(row("reference", 0.0)), tmp_path / "empty.svg")  # nothing to show is no fault
    with pytest.raises(OutputError, match="cannot write"):
        write_quality(quality(), tmp_path / "nowhere")
    with pytest.raises(OutputError, match="cannot write"):
        draw(quality(), tmp_path / "nowhere" / "q.svg")
