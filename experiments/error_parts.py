"""Which operator classes the error of a run's figures is made of, and by what each was priced.

Two runs that are held against each other share a class where both price the same operators by the same constants: what is
wrong there is wrong in both, and largely cancels in a ratio. `reports.compare.constants` needs that of both runs, so each
keeps it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from experiments.load_response import mean_shape
from experiments.propagation import DEPLOYMENT, FRONT, Mix
from sim.cost.base import StepShape
from sim.cost.coverage import FIXED, class_of

if TYPE_CHECKING:
    from reports.run_data import RunData

_USUAL = StepShape(8, 8192, ((4096, 0),), 9)
"""A step beyond all captured graphs: what it costs depends on model, GPU, modes and constants, not on how batches are made."""


def error_parts(mix: Mix, data: RunData, summary: dict, deployment: str = "") -> dict[str, Any]:
    """What a run keeps of its classes.

    Args:
        deployment: what tells machine and engine from others.

    Returns:
        {"priced": class → digest of what prices it, "shares": latency → class → its part of the error}. Squares of the parts
        of a latency sum to 1. `steps` is what the mean step is made of; it goes for TPOT, ITL and throughput.
    """
    mean = mean_shape(data)
    if mean is None:
        return {}
    shape, often = mean
    mixed, plain = mix.of(shape), mix.of(shape._replace(chunks=()))
    often = min(often, 1.0)
    weights = often * mix.cost.step_seconds(shape), (1 - often) * mix.cost.step_seconds(shape._replace(chunks=()))
    steps = {k: sum(w * s.get(k, 0.0) for w, s in zip(weights, (mixed, plain), strict=True)) for k in mixed | plain}
    front = mix.cost.front_end.request_seconds(shape.chunks[0][0]) + mix.cost.front_end.token_seconds
    shares = {
        "steps": steps,
        "ttft": _behind(front, summary.get("mean_ttft_ms"), mixed),
        "e2el": _behind(front, summary.get("mean_e2el_ms"), steps),
    }
    return {
        "priced": _priced(mix.cost) | {DEPLOYMENT: deployment},
        "shares": {name: _parts(mix, found) for name, found in shares.items()},
    }


def _behind(front: float, latency: float | None, steps: dict[str, float]) -> dict[str, float]:
    """Shares in a latency of which the front end takes so many seconds, and steps the rest."""
    share = min(front * 1e3 / latency, 1.0) if latency else 0.0
    total = sum(steps.values()) or 1.0
    return {kind: value / total * (1 - share) for kind, value in steps.items()} | {FRONT: share}


def _parts(mix: Mix, shares: dict[str, float]) -> dict[str, float]:
    errors = mix.parts(shares)
    whole = sum(error**2 for error in errors.values()) ** 0.5
    return {kind: round(error / whole, 6) for kind, error in errors.items() if error > 1e-3 * whole} if whole else {}


def _priced(cost: Any) -> dict[str, str]:
    """A digest for each class: of the prices of a usual step's operators; of what is an estimate, which is wrong for all shapes
    alike, of where it is from."""
    said: dict[str, set[str]] = {FRONT: {str(cost.front_end)}}
    for operator in cost.explain(_USUAL):
        kind = class_of(operator.name)
        price = "" if kind in FIXED else f" {operator.name} {operator.seconds:.9g}"
        said.setdefault(kind, set()).add(f"{operator.source}{price}")
    return {kind: hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:12] for kind, texts in said.items()}
