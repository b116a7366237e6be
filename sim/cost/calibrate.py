"""Refitting the few constants that matter from a handful of timings of a GPU.

Of each operator only three constants move (efficiency of arithmetic, of memory, fixed time); the shape of the form stays.
They are drawn towards what the data sheet carries over from the nearest measured GPU, the more so the nearer it is, and a
refit that does not predict left-out timings better than the carry-over is not taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sim.cost.constants import Constants, load_constants, nearest_measured
from sim.cost.fit import Errors, fit_section, log_errors
from sim.cost.forms import kind_of, section_of, supports
from sim.cost.plausible import impossible
from sim.cost.timings import Timing
from sim.hardware.gpu import GPUSpec, load_gpu
from workloads.errors import InputError

MOVING = {
    "gemm": ("compute", "bandwidth", "launch_us"), "decode": ("bandwidth", "launch_us", "head_us"),
    "prefill": ("compute", "bandwidth", "launch_us"), "moe": ("compute", "bandwidth", "launch_us"),
    "mla": ("compute", "bandwidth", "launch_us"), "all_reduce": ("one_shot_us", "one_shot", "two_shot"),
}  # fmt: skip
"""The constants that a calibration refits."""
FEWEST = 4
_FOLDS = 6
_SPREAD_OWN, _SPREAD_NEAR, _SPREAD_FAR = 0.1, 0.15, 0.5


@dataclass(frozen=True, slots=True)
class Refit:
    """What became of one kind of operator.

    Attributes:
        section, kind: which constants. count: timings.
        carried: errors of the constants that were in force before.
        left_out: errors of the refit on timings that it had not seen (cross-validation).
        taken: whether the refit is better, and so used.
        constants: what is to be used.
    """

    section: str
    kind: str
    count: int
    carried: Errors
    left_out: Errors
    taken: bool
    constants: Any


def prior_spread(gpu: GPUSpec, constants: Any) -> float:
    """Log spread to expect of another GPU's constants: small within an architecture, wide across."""
    if "taken from" not in constants.source:
        return _SPREAD_OWN
    near = load_gpu(nearest_measured(gpu))
    return _SPREAD_NEAR if near.arch == gpu.arch else _SPREAD_FAR


def calibrate(
    timings: Sequence[Timing], gpu: GPUSpec, engine: str, base: Constants | None = None
) -> tuple[list[Refit], list[str]]:
    """Refits what the timings are about.

    Args:
        timings: of this GPU; eager launches and rows faster than the device allows are left out and told.
        base: constants to start from; those in force by default.

    Returns:
        A refit for every kind of operator, and sentences about what was left out.

    Raises:
        InputError: no kind of operator has enough timings.
    """
    constants = base or load_constants(gpu, engine)
    groups: dict[tuple[str, str], list[Timing]] = defaultdict(list)
    notes: list[str] = []
    for timing in timings:
        if timing.gpu and timing.gpu != gpu.name:
            notes.append(f"{timing.place}: taken on {timing.gpu}, left out")
        elif timing.launch in ("eager", "across nodes"):
            notes.append(f"{timing.place}: launched {timing.launch}, left out")
        elif timing.op != "all_reduce" and not supports(timing, gpu):
            notes.append(f"{timing.place}: {gpu.name} has no {timing.dtype} tensor cores, left out")
        elif why := impossible(timing, gpu):
            notes.append(f"{timing.place}: {why}, left out")
        else:
            groups[kind_of(timing)].append(timing)
    refits = []
    for (section, kind), members in sorted(groups.items()):
        if section_of(constants, section, kind) is None:
            notes.append(f"{section} {kind}: there is no form to fit")
        elif len(members) < FEWEST:
            notes.append(f"{section} {kind}: {len(members)} timings are too few, at least {FEWEST} are needed")
        else:
            refits.append(_refit(members, section, kind, gpu, constants))
    if not refits:
        raise InputError("nothing to calibrate: " + ("; ".join(notes[:5]) or "no timings"))
    return refits, notes


def _refit(members: list[Timing], section: str, kind: str, gpu: GPUSpec, constants: Constants) -> Refit:
    start = section_of(constants, section, kind)
    names = MOVING[section]
    if section == "all_reduce" and start.ring_mb:
        names += ("ring",)
    prior = dict.fromkeys(names, prior_spread(gpu, start))

    def fitted(rows: Sequence[Timing]) -> Any:
        return fit_section(rows, start, gpu, names=names, quantize=constants.quantize, prior=prior, rounds=40)

    carried = Errors.of(log_errors(members, start, gpu, constants.quantize))
    folds = min(_FOLDS, len(members))
    ordered = sorted(members, key=lambda t: t.size)
    logs: list[float] = []
    for fold in range(folds):
        train = [t for i, t in enumerate(ordered) if i % folds != fold]
        logs += log_errors(ordered[fold::folds], fitted(train), gpu, constants.quantize)
    left_out = Errors.of(logs)
    taken = left_out.mean < carried.mean
    chosen = fitted(ordered) if taken else start
    if taken:
        source = f"calibrated on {len(members)} timings of {gpu.name}: left-out error {left_out.median:.1%} median"
        source = (
            source.replace("%", " %")
            + f" ({carried.median:.1%} before)".replace("%", " %")
            + f"; drawn towards {start.source.replace('taken from', 'carried over from')}"
        )
        chosen = replace(chosen, source=source)
    chosen = replace(chosen, error=round(left_out.median if taken else carried.median, 4))
    return Refit(section, kind, len(members), carried, left_out, taken, chosen)


def sections_of(refits: Sequence[Refit]) -> dict[str, Any]:
    """The refits as sections of a constants file."""
    sections: dict[str, Any] = {}
    for refit in refits:
        if refit.kind:
            sections.setdefault(refit.section, {})[refit.kind] = refit.constants
        else:
            sections[refit.section] = refit.constants
    return sections
