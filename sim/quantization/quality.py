"""What weight modes cost in quality, as far as it was measured: one small model, by `bench quality`.

The figures say how modes compare on SmolLM2-135M-Instruct, whose weights come from a file of 16 levels per 32 weights: what is
below 8 bits may look better or worse there than on models that were never quantised. They are a hint for others, no promise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

FILE = "quality.json"


@dataclass(frozen=True, slots=True)
class MeasuredQuality:
    """Quality of a weight mode against the model in its own precision.

    Attributes:
        mode: name in the registry. model, text: what was measured, and on what.
        perplexity_ratio: to the unquantised model's on the same tokens.
        divergence, divergence_low, divergence_high: mean KL divergence of the next token's distribution, nats, and its interval.
        divergence_p99: of tokens. agreement: share of tokens on which both find the same most likely.
    """

    mode: str
    model: str
    text: str
    perplexity_ratio: float
    divergence: float
    divergence_low: float
    divergence_high: float
    divergence_p99: float
    agreement: float


def measured_file() -> Path:
    """The measurements, as `bench quality` writes them."""
    return Path(str(files("sim") / "data" / FILE))


@cache
def measured_quality() -> dict[str, MeasuredQuality]:
    """Weight modes by name, of those that were measured; keys and values in the model's own dtype."""
    found = json.loads(measured_file().read_text("utf-8"))
    reference, *rows = found["rows"]
    modes: dict[str, MeasuredQuality] = {}
    for row in rows:
        if row["kv"] != reference["kv"] or row["weights"] == reference["weights"] or row["mode"].startswith("rtn"):
            continue
        kl = row["divergence"]
        modes.setdefault(row["weights"], MeasuredQuality(
            row["weights"], found["model"], found["text"]["name"], row["ratio"]["value"], kl["value"], kl["low"], kl["high"],
            row["divergence_p99"]["value"], row["agreement"]["value"],
        ))  # fmt: skip
    return modes
