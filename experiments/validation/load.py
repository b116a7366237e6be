"""The load of a measured cell: lengths, arrivals and how many requests, as far as the row says.

A row's text becomes a `Load`; what cannot be told is None, and `exclusions` has the rules for what then happens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from experiments.validation.table import Row
from workloads.errors import InputError, Place

STATIC, OFFLINE, CLOSED, OPEN, PHASE = "static", "offline", "closed", "open", "phase"
NONE, SERVER = "none", "server"
KINDS = {
    "static_batch": STATIC, "offline_all_at_once": OFFLINE, "offline_dataset": OFFLINE,
    "closed_loop_concurrency": CLOSED, "open_loop_rate": OPEN, "open_loop_trace": OPEN, "phase_only": PHASE,
    "mlperf_offline": OFFLINE, "mlperf_server": SERVER, "mlperf_interactive": SERVER, "none": NONE,
}  # fmt: skip
MLPERF_PROMPTS = {r"llama-?2-?70b": 222.3}
"""Mean tokens of the prompts of MLPerf's data sets, by model: 24,576 prompts of OpenOrca have 5,463,976 tokens of Llama 2's,
48 to 1,021 each (FlashLab-MBZUAI/HBFSim, `h100-llama2-70b-calibration-protocol.json`). Those of other models were not found."""
MLPERF_OFFLINE = 294_912
"""Requests of an offline run, which lasts ten minutes at least: those of NVIDIA's eight H100 in round 5.0 (same source)."""
MOST_AT_ONCE, MOST_REQUESTS = 200_000, 20_000_000
"""Sequences of a batch or in flight, and requests in all, that a row may state: more is a slip, and fits into no memory."""
_NUMBER = r"(\d[\d,]*(?:\.\d+)?)"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a prompt or an answer.

    Attributes:
        law: `fixed`, `uniform` (low to high) or `mean` (a data set of which only the mean is known).
        low, high: tokens; equal for `fixed` and `mean`.
    """

    law: str
    low: float
    high: float

    @property
    def mean(self) -> float:
        """Mean tokens."""
        return (self.low + self.high) / 2

    def scaled(self, low: float, high: float) -> Lengths:
        """Drawn uniformly between these shares of a fixed length."""
        return Lengths("uniform", self.low * low, self.high * high) if self.law == "fixed" else self


@dataclass(frozen=True, slots=True)
class Load:
    """A load.

    Attributes:
        kind: STATIC, OFFLINE, CLOSED, OPEN, SERVER (a rate searched under an SLO), PHASE or NONE (no traffic at all).
        inputs, outputs: lengths, or None where the row does not tell.
        number: sequences of a static batch, requests in flight of a closed loop; 0 where it is not told.
        rate: requests a second of an open loop; infinity for all at once; 0 where it is not told.
        requests: how many in all; 0 where it is not told.
        arrivals: `constant`, `poisson` or `` (not told).
        phase: of PHASE: `prefill` or `decode`.
    """

    kind: str
    inputs: Lengths | None = None
    outputs: Lengths | None = None
    number: int = 0
    rate: float = 0.0
    requests: int = 0
    arrivals: str = ""
    phase: str = ""


def parse_lengths(text: str) -> Lengths | None:
    """`1024`, `~11`, `uniform 100-1024`, `ShareGPT, mean 857.5`; None where there is no figure."""
    text = text.strip().lower()
    if found := re.fullmatch(rf"[~≈]?\s*{_NUMBER}(?:\s*tokens)?", text):
        size = float(found.group(1).replace(",", ""))
        return Lengths("fixed", size, size) if size >= 1 else None
    if found := re.search(rf"{_NUMBER}\s*(?:-|–|to|\.\.)\s*{_NUMBER}", text):
        low, high = (float(part.replace(",", "")) for part in found.groups())
        return Lengths("uniform", low, high) if 1 <= low <= high else None
    if found := re.search(rf"(?:mean|average|avg|about)\s*(?:of|=)?\s*{_NUMBER}", text):
        size = float(found.group(1).replace(",", ""))
        return Lengths("mean", size, size) if size >= 1 else None
    return None


def _find(pattern: str, text: str) -> float:
    found = re.search(pattern, text, re.IGNORECASE)
    return float(found.group(1).replace(",", "")) if found else 0.0


def parse_load(row: Row) -> Load | None:
    """The load of a row; None for a load kind that is not known.

    Raises:
        InputError: more requests, or more of them at once, than anybody can have measured.
    """
    kind = KINDS.get(row.load_kind)
    if kind is None:
        return None
    text, notes = row.load, row.notes
    requests = int(_find(rf"{_NUMBER}\s*(?:requests|prompts)\b", text) or _find(rf"{_NUMBER}\s*(?:requests)\b", notes))
    if not requests and "offline" in row.load_kind:
        requests = int(_find(rf"(?:requests|num_prompts|n)\s*=\s*{_NUMBER}", text))
    number = int(
        _find(rf"(?:batch|concurrency|bs|batch_size|num_seqs|users)\s*[=: ]\s*{_NUMBER}", text)
        or _find(rf"^\s*{_NUMBER}\s*$", text)
    )
    for size, most, what in ((number, MOST_AT_ONCE, "at once"), (requests, MOST_REQUESTS, "requests")):
        if size > most:
            place = Place(row.file, row.line, "concurrency_or_rate")
            raise InputError(f"expected at most {most:,} {what}, found {size:,}", place=place)
    rate = _find(rf"(?:qps|rate|rps)\s*[=: ]\s*{_NUMBER}", text) or _find(
        rf"{_NUMBER}\s*(?:/\s*s\b|req(?:uests)?/s|rps|qps|per second)", text
    )
    if kind == OPEN and not rate:
        rate = float("inf") if re.search(r"\binf(inity)?\b", text, re.IGNORECASE) else float(number)
        number = 0
    said = f"{text} {notes}".lower()
    arrivals = "constant" if "constant" in said else "poisson" if "poisson" in said else ""
    phase = next((name for name in ("prefill", "decode") if name in text.lower()), "")
    inputs, outputs = parse_lengths(row.isl), parse_lengths(row.osl)
    if row.load_kind.startswith("mlperf") and not inputs:
        mean = next((m for name, m in MLPERF_PROMPTS.items() if re.search(name, row.model, re.IGNORECASE)), 0.0)
        inputs = Lengths("mean", mean, mean) if mean else None
        requests = requests or (MLPERF_OFFLINE if kind == OFFLINE else 0)
    if kind == PHASE:
        inputs = inputs or _noted(rf"(?:about\s*)?{_NUMBER}\s*(k?)\s*(?:token\s*)?prompts?", notes)
        outputs = outputs or _noted(rf"output\s*(?:of\s*)?(?:about\s*)?{_NUMBER}()", notes)
        number = number or int(
            _find(rf"batch\s*(?:of\s*)?{_NUMBER}\s*per gpu", notes)
            or _find(rf"{_NUMBER}\s*(?:prefill\s*)?tokens per gpu", notes)
        )
    if kind == STATIC and not outputs and row.metric.startswith("ttft"):
        outputs = Lengths("fixed", 1, 1)
    return Load(kind, inputs, outputs, number, rate, requests, arrivals, phase)


def _noted(pattern: str, notes: str) -> Lengths | None:
    found = re.search(pattern, notes, re.IGNORECASE)
    if not found:
        return None
    size = float(found.group(1).replace(",", "")) * (1024 if found.group(2) else 1)
    return Lengths("mean", size, size) if size >= 1 else None
