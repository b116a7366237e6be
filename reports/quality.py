"""What quantization costs in quality: values with intervals, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reports.strict_json import dumps
from workloads.errors import OutputError

SCHEMA = 1
FILE = "quality.json"
RESAMPLES, LEVEL = 1000, 0.95


@dataclass(frozen=True, slots=True)
class Measured:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class QualityRow:
    """One mode of a model.

    Attributes:
        mode: as asked for. weights, kv: modes in effect.
        bits_per_weight: of the linear layers inside transformer layers, scales and tables included.
        weight_bytes: of all weights in memory; kv_bytes_per_token.
        perplexity; ratio: of perplexities, to the reference's on the same tokens.
        divergence, divergence_p99: KL(reference ‖ mode) of the next token's distribution, mean and 99th percentile, nats.
        agreement: share of tokens on which both find the same most likely.
        decode_tokens_per_s: one sequence. prefill_tokens_per_s: of the windows.
        gain: the method's own objective relative to round-to-nearest's, where it has one.
        group: columns a scale, where it has groups.
    """

    mode: str
    weights: str
    kv: str
    bits_per_weight: float
    weight_bytes: int
    kv_bytes_per_token: int
    perplexity: Measured
    ratio: Measured
    divergence: Measured
    divergence_p99: Measured
    agreement: Measured
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    gain: float | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """A model's modes on a text; the first row is the reference itself."""

    model: str
    text: dict[str, Any]
    calibration: dict[str, Any] | None
    window: int
    stride: int
    tokens: int
    machine: dict[str, Any]
    rows: Sequence[QualityRow]
    notices: Sequence[str] = field(default_factory=tuple)


def summarise(
    reference: Sequence[np.ndarray], losses: Sequence[np.ndarray], divergences: Sequence[np.ndarray],
    agreements: Sequence[np.ndarray], seed: int = 0,
) -> dict[str, Measured]:  # fmt: skip
    """Values with intervals from arrays by window.

    Whole windows are drawn again (a block bootstrap): tokens of one window hang together. The ratio of perplexities is of the
    same windows for both, so that what makes a text hard for either does not widen it.
    """
    count = len(losses)
    draws = np.random.default_rng([seed, 7]).integers(0, count, (RESAMPLES, count))
    sizes = np.array([len(each) for each in losses], float)

    def mean(parts: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        sums = np.array([float(each.sum(dtype=np.float64)) for each in parts])
        return sums.sum() / sizes.sum(), sums[draws].sum(1) / sizes[draws].sum(1)

    loss, losses_drawn = mean(losses)
    plain, plain_drawn = mean(reference)
    divergence, divergences_drawn = mean(divergences)
    agreement, agreements_drawn = mean(agreements)
    p99 = float(np.quantile(np.concatenate(divergences), 0.99))
    return {
        "perplexity": _measured(math.exp(loss), np.exp(losses_drawn)),
        "ratio": _measured(math.exp(loss - plain), np.exp(losses_drawn - plain_drawn)),
        "divergence": _measured(divergence, divergences_drawn),
        "divergence_p99": _measured(p99, _p99s(divergences, draws)),
        "agreement": _measured(agreement, agreements_drawn),
    }


def _p99s(parts: Sequence[np.ndarray], draws: np.ndarray) -> np.ndarray:
    """The 99th percentile of every draw of windows: weights of sorted values are how often their window was drawn."""
    values = np.concatenate(parts)
    window = np.repeat(np.arange(len(parts)), [len(each) for each in parts])
    order = np.argsort(values)
    values, window = values[order], window[order]
    found = []
    for draw in draws[:200]:
        times = np.bincount(draw, minlength=len(parts))[window]
        total = np.cumsum(times)
        found.append(values[np.searchsorted(total, 0.99 * total[-1])])
    return np.array(found)


def _measured(value: float, drawn: np.ndarray) -> Measured:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Measured(float(value), float(low), float(high))


COLUMNS = (
    "mode", "bits/weight", "weights MB", "KV bytes/token", "perplexity", "vs reference", "KL mean ×10⁻³", "KL p99 ×10⁻³",
    "same top-1", "decode tok/s", "prefill tok/s",
)  # fmt: skip


def cells(row: QualityRow) -> tuple[str, ...]:
    """A row of the table as text."""
    ratio, agree = row.ratio, row.agreement
    return (
        row.mode, f"{row.bits_per_weight:.2f}", f"{row.weight_bytes / 1e6:,.1f}",
        f"{row.kv_bytes_per_token:,}", f"{row.perplexity.value:.3f} [{row.perplexity.low:.2f}, {row.perplexity.high:.2f}]",
        f"{ratio.value - 1:+.2%} [{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}]", _milli(row.divergence),
        _milli(row.divergence_p99), f"{agree.value:.2%} [{agree.low:.2%}, {agree.high:.2%}]",
        f"{row.decode_tokens_per_s:,.1f}", f"{row.prefill_tokens_per_s:,.0f}",
    )  # fmt: skip


SHORT_COLUMNS = (
    "mode", "bits", "MB", "perplexity", "% vs ref.", "KL ×10⁻³", "p99", "top-1 %", "tok/s", "prefill",
)  # fmt: skip


def short_cells(row: QualityRow) -> tuple[str, ...]:
    """A row for a console: intervals of the ratio and the mean divergence alone."""
    ratio, kl = row.ratio, row.divergence
    return (
        row.mode if len(row.mode) <= 26 else "…" + row.mode[-25:], f"{row.bits_per_weight:.2f}",
        f"{row.weight_bytes / 1e6:,.1f}", f"{row.perplexity.value:.3f}",
        f"{100 * (ratio.value - 1):+.2f} [{100 * (ratio.low - 1):+.1f}, {100 * (ratio.high - 1):+.1f}]",
        _milli(kl) if kl.value else "0", f"{row.divergence_p99.value * 1e3:.3g}", f"{100 * row.agreement.value:.1f}",
        f"{row.decode_tokens_per_s:,.1f}", f"{row.prefill_tokens_per_s:,.0f}",
    )  # fmt: skip


def _milli(measured: Measured) -> str:
    return f"{measured.value * 1e3:.3g} [{measured.low * 1e3:.3g}, {measured.high * 1e3:.3g}]"


def markdown(quality: Quality) -> str:
    """The table in Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" + " ---: |" * (len(COLUMNS) - 1)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells(row)) + " |" for row in quality.rows]
    return "\n".join(lines) + "\n"


def as_json(quality: Quality) -> dict[str, Any]:
    """Everything, for machines."""
    return {"schema": SCHEMA, **asdict(quality)}


def write_quality(quality: Quality, folder: Path) -> None:
    """Write `quality.json` and `quality.md` into a folder that is there.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        (folder / FILE).write_text(dumps(as_json(quality)) + "\n", "utf-8")
        (folder / "quality.md").write_text(markdown(quality), "utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from None
