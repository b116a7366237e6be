"""From cells to points: what has to be simulated, once for all the cells that share it.

How many requests a point has follows from its protocol:

* a static batch is that one batch; `offline` has as many as the source says (3,000 where it does not), of which at most six
  times what runs at once are simulated, but not fewer than 1,000: the rest follow at the steady rate;
* a closed loop has ten times its concurrency, as the InferenceX client does, at least 40 and at most 6,000 (but never
  fewer than twice the concurrency), its start included, as in the measurements. Where a client repeats its prompts, twice
  the concurrency goes before them and is not counted, so that what is cached then is;
* an open loop has what the source says, at most 4,000; 600 where it does not say. Arrivals are Poisson where nothing
  else is stated;
* a phase alone is one batch (decode), or eight prompts a rank one after another (prefill).
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from experiments.validation.apart import cluster_of
from experiments.validation.deployment import Deployment, engine_section
from experiments.validation.load import CLOSED, NONE, OFFLINE, OPEN, PHASE, STATIC, Lengths, Load
from experiments.validation.table import Row

MOST_CLOSED, MOST_OPEN, USUAL_OFFLINE, USUAL_OPEN = 6000, 4000, 3000, 600
_SPREAD = 0.8  # standard deviation over mean of a data set's lengths, where only the mean is stated


@dataclass(slots=True)
class Point:
    """One simulation.

    Attributes:
        workload: a workload file's content.
        kind: of the load (`load.STATIC`, …). share: replicas that share the load. gpus: of the whole deployment.
        front_end: whether requests pass an HTTP front end. stream: tokens that it hands out as one piece. phase: of a PHASE.
        requests: set by `simulate`: how many there are in all, where only a part of an offline run is simulated.
        skip: rows at the start that are sent but not counted (warm-up).
        host_ms, pace: milliseconds added to every step, and a factor on its time (`--fit-deployment`).
        notes: what was guessed, told with the cells.
    """

    workload: dict[str, Any]
    kind: str
    share: int
    gpus: int
    front_end: bool
    phase: str = ""
    requests: int = 0
    host_ms: float = 0.0
    pace: float = 1.0
    stream: int = 1
    skip: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def key(self) -> str:
        """Digest of everything that the result depends on: the point, the code, its constants and the trace."""
        plain = {
            "workload": self.workload, "kind": self.kind, "share": self.share, "front_end": self.front_end,
            "phase": self.phase, "host_ms": self.host_ms,
            "pace": self.pace, "stream": self.stream, "skip": self.skip,
        }  # fmt: skip
        digest = hashlib.sha256(code_digest().encode())
        digest.update(json.dumps(plain, sort_keys=True).encode())
        trace = self.workload["traffic"].get("trace")
        if trace:
            digest.update(Path(trace["path"]).read_bytes())
        return digest.hexdigest()[:24]


@cache
def code_digest() -> str:
    """Digest of the simulator's code and constants, and of what makes figures of its runs."""
    import sim

    home = Path(sim.__file__).resolve().parents[1]
    digest = hashlib.sha256()
    names = [
        home / "experiments" / f"{name}.py"
        for name in (
            "runner",
            "driver",
            "delivery",
            "records",
            "resolve",
            "conflicts",
            "propagation",
            "load_response",
            "cluster",
            "cluster_records",
            "apart",
            "apart_records",
            "pools",
        )
    ]
    names += [home / "experiments" / "validation" / name for name in ("simulate.py", "spread.py")]
    for folder in (home / "sim", home / "workloads", home / "backends" / "sim"):
        names += sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".toml", ".csv") and p.is_file())
    for path in names:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def point_of(row: Row, load: Load, deployment: Deployment) -> Point:
    """The point of a cell."""
    layout, mapped = deployment.layout, deployment.mapped
    if workload := row.extra.get("workload"):
        return Point(workload, OPEN, 1, layout.gpus, True)
    notes = [*deployment.notes]
    inputs, outputs = load.inputs, load.outputs
    if mapped.lengths and inputs and outputs:
        inputs, outputs = inputs.scaled(*mapped.lengths), outputs.scaled(*mapped.lengths)
    if any(each is not None and each.law == "mean" for each in (inputs, outputs)) and load.kind != PHASE:
        notes.append("only the mean of the lengths is known: drawn from a log-normal law")
    traffic, loop = _traffic(row, load, layout.replicas, inputs, outputs, notes)
    longest = _longest(row, inputs, outputs, deployment)
    workload = {
        "name": "validate", "seed": 0, "model": deployment.model_name,
        "backend": {"name": "sim", "gpu": deployment.gpu.name}, "engine": engine_section(deployment, load, longest),
        "traffic": traffic, "load": loop,
    }  # fmt: skip
    if deployment.apart:
        workload["cluster"] = cluster_of(deployment.apart, deployment.model, longest)
    inside = row.extra.get("load.front_end") is False or not mapped.front_end
    front_end = not inside and load.kind not in (STATIC, OFFLINE, PHASE, NONE)
    skip = _repeat(traffic["synthetic"], mapped.prompts, loop["concurrency"]) if mapped.prompts else 0
    return Point(
        workload, load.kind, layout.replicas, deployment.gpus, front_end, load.phase, stream=mapped.stream,
        skip=skip, notes=tuple(notes),
    )  # fmt: skip


def _repeat(synthetic: dict, prompts: int, concurrency: int) -> int:
    """Let a closed loop draw from so many prompts, and begin with a warm-up; how many rows that has.

    A prompt that is known whole is still read for its last token, which is what the one token of its own is.
    """
    length, skip = synthetic["input_tokens"], 2 * concurrency
    if not isinstance(length, int) or length < 2:
        return 0
    synthetic |= {
        "input_tokens": 1, "prefix": {"kind": "system-prompts", "count": prompts, "tokens": length - 1},
        "requests": synthetic["requests"] + skip,
    }  # fmt: skip
    return skip


def _longest(row: Row, inputs: Lengths | None, outputs: Lengths | None, deployment: Deployment) -> int:
    if inputs is None or outputs is None:
        return int(row.extra.get("traffic.longest", deployment.model.max_position))
    wide = 4 if "mean" in (inputs.law, outputs.law) else 1
    return math.ceil(inputs.high * wide) + math.ceil(outputs.high * wide) + int(row.extra.get("traffic.shared", 0))


def _traffic(
    row: Row, load: Load, share: int, inputs: Lengths | None, outputs: Lengths | None, notes: list[str]
) -> tuple[dict, dict]:
    """The `traffic:` and `load:` sections of one share of the load."""
    if trace := row.extra.get("traffic.trace"):
        return {"max_tokens": "exact", "trace": trace}, {"mode": "open"}
    if load.kind == NONE:
        synthetic: dict = {"requests": 1, "arrivals": {"process": "at-once"}, "input_tokens": 1, "output_tokens": 1}
        return {"max_tokens": "exact", "synthetic": synthetic}, {"mode": "open"}
    loop: dict = {"mode": "open"}
    arrivals: dict = {"process": "at-once"}
    simulated = 1
    if load.kind == STATIC:
        simulated = max(load.number // share, 1)
        if load.number % share:
            notes.append(f"a batch of {load.number} does not divide by {share}")
    elif load.kind == OFFLINE:
        simulated = max((load.requests or USUAL_OFFLINE) // share, 1)
    elif load.kind == CLOSED:
        number = max(round(load.number / share), 1)
        simulated = min(max(10 * number, 40), max(MOST_CLOSED, 2 * number))
        loop = {"mode": "closed", "concurrency": number}
    elif load.kind == OPEN:
        simulated = min(max((load.requests or USUAL_OPEN) // share, 1), MOST_OPEN)
        if math.isfinite(load.rate):
            arrivals = {"process": load.arrivals or "poisson", "rate": load.rate / share}
            if not load.arrivals:
                notes.append("the arrival process is not stated: Poisson")
    elif load.phase == "decode":
        simulated = load.number
    else:
        size = inputs.mean
        simulated = 8 * max(round(load.number / size), 1)
        loop = {"mode": "closed", "concurrency": max(round(load.number / size), 1)}
    synthetic = {
        "requests": simulated, "arrivals": arrivals, "input_tokens": _law(inputs),
        "output_tokens": 1 if load.phase == "prefill" else _law(outputs),
    }  # fmt: skip
    if load.kind == PHASE:
        synthetic["input_tokens"] = round(inputs.mean)
        synthetic["output_tokens"] = 1 if load.phase == "prefill" else round(outputs.mean)
    if prefix := row.extra.get("traffic.prefix"):
        synthetic["prefix"] = prefix
    return {"max_tokens": "exact", "synthetic": synthetic}, loop


def _law(lengths: Lengths) -> int | dict:
    if lengths.law == "fixed":
        return max(round(lengths.low), 1)
    if lengths.law == "uniform":
        return {"distribution": "uniform", "low": max(round(lengths.low), 1), "high": max(round(lengths.high), 1)}
    return {
        "distribution": "lognormal", "mean": lengths.mean, "std": _SPREAD * lengths.mean, "low": 1,
        "high": 4 * math.ceil(lengths.mean),
    }  # fmt: skip
