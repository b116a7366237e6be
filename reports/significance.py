"""Is one small sample worse than another? Student's two-sample test, without scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean


def student_cdf(t: float, dof: int) -> float:
    """P(T ≤ t) for whole degrees of freedom, by the finite sums of Abramowitz & Stegun 26.7.3 and 26.7.4."""
    theta = math.atan2(t, math.sqrt(dof))
    cos, sin = math.cos(theta), math.sin(theta)
    if dof % 2:
        term, total = cos, cos if dof > 1 else 0.0
        for k in range(3, dof - 1, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        inside = 2 / math.pi * (theta + sin * total)
    else:
        term = total = 1.0
        for k in range(2, dof, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        inside = sin * total
    return 0.5 + inside / 2


def p_value_of_increase(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Chance of a mean at least this much higher in `after` if nothing had changed (one-sided, pooled variance).

    None when both have a single value, so that the noise is unknown. Without any noise it is 0 or 1.
    """
    dof = len(before) + len(after) - 2
    if dof < 1:
        return None
    rise = fmean(after) - fmean(before)
    squares = sum((v - fmean(before)) ** 2 for v in before) + sum((v - fmean(after)) ** 2 for v in after)
    error = math.sqrt(squares / dof * (1 / len(before) + 1 / len(after)))
    if error <= 1e-12 * max(abs(fmean(before)), abs(fmean(after))):
        return 0.0 if rise > 0 else 1.0
    return 1 - student_cdf(rise / error, dof)
