"""`bench calibrate` without a terminal: constants of a GPU from a few timings, of a deployment from a measured run.

From kernel timings come the constants of operators (`sim.cost.calibrate`). From a served run come two numbers of the
deployment: milliseconds of the host that every step shows, and of the front end for every request. They are fitted to
every other load; the loads between them tell the error.
"""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.errors import InputError, Place
from workloads.readers.files import distinct_columns

if TYPE_CHECKING:
    from experiments.resolve import Resolved
    from sim.cost.calibrate import Refit
    from sim.cost.fit import Errors

_ROUNDS = 3
_COLUMNS = {
    "concurrency": ("concurrency", "max_concurrency"), "rate": ("rate", "request_rate"),
    "ttft_ms": ("ttft_ms", "mean_ttft_ms", "ttft_mean_ms"), "tpot_ms": ("tpot_ms", "mean_tpot_ms", "tpot_mean_ms"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """A measured load: mean TTFT and TPOT in milliseconds at a concurrency (closed loop) or rate (open loop, Poisson);
    with neither, at the load of the workload file. A figure that was not measured is 0."""

    concurrency: int
    rate: float
    ttft_ms: float
    tpot_ms: float

    @property
    def overrides(self) -> list[str]:
        """What makes a workload file this load."""
        if self.concurrency:
            return ["load.mode=closed", f"load.concurrency={self.concurrency}"]
        if self.rate:
            return [f"traffic.synthetic.arrivals={{process: poisson, rate: {self.rate}}}"]
        return []


@dataclass(frozen=True, slots=True)
class ServingFit:
    """What a served run says about its deployment.

    Attributes:
        host_ms, request_ms: to be added to the host time of a step and the front-end time of a request.
        before, after: (TPOT, TTFT) errors on the loads held out, or on all where there is but one.
        held_out: how many those are; 0 where the only load was fitted.
        sections: host and front end with the figures added, as sections of a constants file.
    """

    host_ms: float
    request_ms: float
    before: tuple[Errors, Errors]
    after: tuple[Errors, Errors]
    held_out: int
    sections: dict[str, Any]


def read_loads(path: Path) -> list[Load]:
    """Measured loads of a CSV file, a run folder (or its run.json), or a result file of vLLM's serving benchmark.

    Raises:
        InputError: unreadable, without the columns, or a wrong number, with its place.
    """
    if path.is_dir():
        path = path / "run.json"
    if path.suffix == ".json":
        return [_load(_result(path), str(path), None)]
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            distinct_columns(reader.fieldnames, str(path))
            rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot read it: {error}", place=Place(file=str(path))) from None
    if not rows:
        raise InputError("has no rows", place=Place(file=str(path)))
    return [_load(row, str(path), line) for line, row in enumerate(rows, start=2)]


def _result(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read it: {error}", place=Place(file=str(path))) from None
    if not isinstance(found, dict):
        raise InputError("expected one result", place=Place(file=str(path)))
    return found.get("summary", found)


def _load(row: dict[str, Any], file: str, line: int | None) -> Load:
    values = {}
    for name, spellings in _COLUMNS.items():
        column = next((c for c in spellings if row.get(c) not in (None, "")), None)
        values[name] = _number(row[column], Place(file, line, column)) if column else 0.0
    if not values["ttft_ms"] and not values["tpot_ms"]:
        near = difflib.get_close_matches("tpot_ms", [str(c) for c in row], n=1, cutoff=0.4)
        raise InputError(
            "has neither ttft_ms nor tpot_ms", place=Place(file, line),
            hint=f"is {near[0]} one of them? columns: concurrency or rate, ttft_ms, tpot_ms" if near
            else "columns: concurrency or rate, ttft_ms, tpot_ms",
        )  # fmt: skip
    rate = values["rate"] if values["rate"] != float("inf") else 0.0
    return Load(int(values["concurrency"]), rate, values["ttft_ms"], values["tpot_ms"])


def _number(text: Any, place: Place) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise InputError(f"expected a number, found {text!r}", place=place) from None
    if not value > 0:
        raise InputError(f"must be above 0, found {text}", place=place)
    return value


def calibrate_serving(
    workload: Path, loads: Sequence[Load], settings: Sequence[str] = (), tell: Callable[[str], None] = lambda _: None
) -> ServingFit:
    """Fits the host and front-end time of a deployment.

    Args:
        workload: the file that describes it. settings: overrides of its keys. tell: called as each load is simulated.

    Raises:
        InputError: the workload cannot be used.
    """
    from sim.cost.fit import Errors

    fitted, held = list(loads[0::2]), list(loads[1::2])
    judged = held or fitted

    def errors(host_ms: float, request_ms: float) -> tuple[Errors, Errors]:
        pairs = [(load, simulate(load, host_ms, request_ms)) for load in judged]
        tpot = [log(s[1] / load.tpot_ms) for load, s in pairs if load.tpot_ms and s[1]]
        ttft = [log(s[0] / load.ttft_ms) for load, s in pairs if load.ttft_ms and s[0]]
        return Errors.of(tpot), Errors.of(ttft)

    resolved = [_resolved(workload, [*settings, *load.overrides]) for load in loads]
    costs = {id(load): each for load, each in zip(loads, resolved, strict=True)}

    def simulate(load: Load, host_ms: float, request_ms: float) -> tuple[float, float]:
        tell(f"concurrency {load.concurrency}" if load.concurrency else f"rate {load.rate:g}")
        return _means(costs[id(load)], host_ms, request_ms)

    host, front = resolved[0].cost.host, resolved[0].cost.front_end
    host_ms = request_ms = 0.0
    before = errors(0.0, 0.0)
    for _ in range(_ROUNDS):
        seen = [(load, simulate(load, host_ms, request_ms)) for load in fitted]
        host_ms += _median([load.tpot_ms - s[1] for load, s in seen if load.tpot_ms])
        host_ms = max(host_ms, -1e3 * host.exposed)
        seen = [(load, simulate(load, host_ms, request_ms)) for load in fitted]
        request_ms += _median([load.ttft_ms - s[0] for load, s in seen if load.ttft_ms])
        request_ms = max(request_ms, -1e3 * front.base)
    after = errors(host_ms, request_ms)
    left = (after[0].median, after[1].median) if held else (0.0, 0.0)
    sections = _sections(resolved[0], host_ms, request_ms, len(loads), left)
    return ServingFit(round(host_ms, 4), round(request_ms, 4), before, after, len(held), sections)


def _median(values: Sequence[float]) -> float:
    from statistics import median

    return median(values) if values else 0.0


def _resolved(workload: Path, overrides: Sequence[str]) -> Resolved:
    from experiments import runner
    from experiments.workload_file import load_workload

    return runner.resolve(load_workload(workload, overrides))


def _means(resolved: Resolved, host_ms: float, request_ms: float) -> tuple[float, float]:
    """Simulated mean TTFT and TPOT, ms, with so much more host and front-end time."""
    from experiments import runner
    from reports.metrics import summarize

    cost = resolved.cost
    host, front = cost.host, cost.front_end
    shifted = cost.with_times(
        replace(host, exposed=max(host.exposed + host_ms * 1e-3, 0.0)),
        replace(front, base=max(front.base + request_ms * 1e-3, 0.0)),
    )
    data = runner.run(replace(resolved, cost=shifted))
    summary = summarize(data, with_intervals=False)
    return float(summary.get("mean_ttft_ms") or 0.0), float(summary.get("mean_tpot_ms") or 0.0)


def _sections(
    resolved: Resolved, host_ms: float, request_ms: float, loads: int, left: tuple[float, float]
) -> dict[str, Any]:
    """Host and front end with what was added; `left`: errors of TPOT and TTFT on loads held out, 0 where there were none."""
    from sim.cost.build import check_engine, front_end_section, host_section
    from sim.cost.constants import load_constants

    own = resolved.workload.cost.build_arguments(resolved.workload.folder).get("constants")
    engine = check_engine(resolved.engine)
    constants = load_constants(resolved.gpu, engine, own)
    section = host_section(resolved.engine, engine, constants)
    outside = front_end_section(resolved.engine, engine, constants)
    host, front = getattr(constants, section), getattr(constants, outside)
    exposed = {tp: round(max(ms + host_ms, 0.0), 4) for tp, ms in host.exposed_ms.items()}
    note = f"calibrated on {loads} loads of a served run of {resolved.model.name} ({resolved.gpu.name})"
    return {
        section: replace(
            host, exposed_ms=exposed, error=round(left[0], 4),
            source=f"{note}: {host_ms:+.3g} ms a step; from {host.source}",
        ),
        outside: replace(
            front, request_ms=round(max(front.request_ms + request_ms, 0.0), 4), error=round(left[1], 4),
            source=f"{note}: {request_ms:+.3g} ms a request; from {front.source}",
        ),
    }  # fmt: skip


def calibration_text(
    gpu: str, engine: str, refits: Sequence[Refit], serving: ServingFit | None, before: Path | None = None
) -> str:
    """The file that `cost: {calibration: …}` names.

    Args:
        before: the file that the workload names already; what was not fitted anew is taken from it.
    """
    from sim.cost.calibrate import sections_of
    from sim.cost.constants import read_sections
    from sim.cost.write import constants_text

    sections = read_sections(before) if before is not None else {}
    for name, body in sections_of([refit for refit in refits if refit.taken]).items():
        kinds = sections.get(name)
        sections[name] = kinds | body if isinstance(kinds, dict) and isinstance(body, dict) else body
    if serving is not None:
        sections |= serving.sections
    head = (
        f"# Calibration of {gpu} running {engine}, written by bench calibrate. Name it in a workload file:\n"
        "#   cost: {calibration: THIS FILE}\n# Sections that are not here come from the bundled constants.\n"
    )
    return constants_text("", "", sections, head)
