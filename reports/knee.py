"""Where more load stops paying.

The rule, after Kneedle (Satopää et al. 2011), made to bear noise:

1. The throughput curve is made non-decreasing (isotonic fit), then concave (its upper hull), so that a noisy point
   cannot be a knee.
2. There must be something to find: throughput grows by at least `loss` (10 %) over the range, and at the highest load
   falls short of what the lowest loads promise (the hull's first slope, carried on) by at least as much.
3. It must be more than noise: from seven points on, two straight lines that meet at a measured load fit the points so much
   better than one that chance would do it in one of a hundred straight curves (an F test of relative residuals, times the
   number of loads at which they might meet). Fewer points cannot tell noise and are taken as they are; and where the engine was
   overloaded at the highest load, its queue says already that the bend is none.
4. The knee is the measured load at which the normalised hull stands highest above its diagonal, if the hull rises beyond
   it at most 0.6 times as steeply as before: a curve that merely leans has none.

5. An operating point must be borne: where the engine was overloaded at that load, the knee is the highest load below it at
   which it was not.

Where throughput loses nothing (every load was within capacity) but latency at the highest load is at least `rise`
(3) times that of the lowest, the knee is where the normalised latency curve, made non-decreasing and convex, hangs
lowest below its diagonal. Otherwise there is no knee in the measured range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST_TO_TEST, CHANCE, GENTLER = 7, 0.01, 0.6
LOAD_KEYS = (
    "load.concurrency",
    "traffic.synthetic.arrivals.rate",
    "traffic.trace.arrivals.rate",
    "traffic.trace.rate_scale",
)
"""Keys that say how hard the engine is driven, the first first: along these there may be a knee, along others not."""


@dataclass(frozen=True, slots=True)
class Knee:
    """A knee and why it is one.

    Attributes:
        index: its place in the caller's lists.
        load, throughput, latency: the measured values there (latency may be None).
        rule: "throughput" or "latency".   sentence: for people.
    """

    index: int
    load: float
    throughput: float
    latency: float | None
    rule: str
    sentence: str


def find_knee(
    load: Sequence[float],
    throughput: Sequence[float | None],
    latency: Sequence[float | None] | None = None,
    *,
    overloaded: Sequence[bool] | None = None,
    loss: float = 0.10,
    rise: float = 3.0,
) -> Knee | None:
    """The knee of a sweep over load, or None when there is none or fewer than four points.

    Args:
        load: offered load of each point (requests/s, concurrency …), any order.
        throughput: what was achieved, in any unit; points with None are left out.
        latency: of each point, in any unit; used when throughput does not bend.
        overloaded: whether the queue of each point grew for as long as requests came.
    """
    knee = _by_curves(load, throughput, latency, loss, rise, overloaded)
    if knee is None or overloaded is None or not overloaded[knee.index]:
        return knee
    borne = [i for i in _measured(load, throughput) if load[i] < knee.load and not overloaded[i]]
    if not borne:
        return None
    sentence = f"the engine keeps up with {load[borne[-1]]:g} and is overloaded at {knee.load:g}"
    return _knee(borne[-1], load, throughput, latency, knee.rule, sentence)


def _measured(load: Sequence[float], throughput: Sequence[float | None]) -> list[int]:
    """Places of the points that have both, by ascending load."""
    points = [i for i, y in enumerate(throughput) if y is not None and np.isfinite(y) and np.isfinite(load[i])]
    return sorted(points, key=lambda i: load[i])


def _by_curves(
    load: Sequence[float],
    throughput: Sequence[float | None],
    latency: Sequence[float | None] | None,
    loss: float,
    rise: float,
    overloaded: Sequence[bool] | None,
) -> Knee | None:
    """The knee by rules 1 to 4, or by latency."""
    points = _measured(load, throughput)
    x = np.array([load[i] for i in points], float)
    if len(np.unique(x)) < 4 or x[-1] <= 0:
        return None
    y = np.array([throughput[i] for i in points], float)
    found = _bend(x, y, loss)
    full = overloaded is not None and overloaded[points[-1]]
    if found is not None and (full or len(x) < FEWEST_TO_TEST or _p_of_one_line(x, y) < CHANCE):
        place = found
        sentence = (
            f"beyond {x[place]:g}, more load adds little: {x[-1] / x[place]:.3g} times the load gives "
            f"{y[-1] / y[place]:.3g} times the throughput"
        )
        return _knee(points[place], load, throughput, latency, "throughput", sentence)
    if latency is None:
        return None
    timed = [i for i in points if latency[i] is not None and np.isfinite(latency[i])]
    x = np.array([load[i] for i in timed], float)
    place = _take_off(x, np.array([latency[i] for i in timed], float), rise)
    if place is None:
        return None
    takes_off = f"latency takes off beyond {x[place]:g}"
    sentence = takes_off if full or found is not None else f"throughput keeps pace up to {x[-1]:g}, but {takes_off}"
    return _knee(timed[place], load, throughput, latency, "latency", sentence)


def _knee(i: int, load: Sequence, throughput: Sequence, latency: Sequence | None, rule: str, sentence: str) -> Knee:
    slow = latency[i] if latency is not None else None
    return Knee(i, float(load[i]), float(throughput[i]), None if slow is None else float(slow), rule, sentence)


def _bend(x: np.ndarray, y: np.ndarray, loss: float) -> int | None:
    """Place of the knee of a throughput curve."""
    hull = _upper_hull(x, isotonic(y))
    reach = x[-1] - x[0]
    # the first slope from the lowest third of the range, so that one noisy point does not set it
    early = max(1, int(np.searchsorted(x, x[0] + reach / 3, side="right")) - 1)
    slope = max((hull[early] - hull[0]) / (x[early] - x[0]), hull[0] / x[0] if x[0] > 0 else 0.0)
    promised = hull[0] + slope * reach
    if promised <= 0 or hull[-1] <= (1 + loss) * hull[0]:
        return None
    short = 1 - hull[-1] / promised
    if short < loss:
        return None
    distance = (hull - hull[0]) / (hull[-1] - hull[0]) - (x - x[0]) / reach
    place = int(np.argmax(distance))
    if not x[0] < x[place] < x[-1]:
        return None
    before = (hull[place] - hull[0]) / (x[place] - x[0])
    beyond = (hull[-1] - hull[place]) / (x[-1] - x[place])
    return place if beyond <= GENTLER * before else None


def _p_of_one_line(x: np.ndarray, y: np.ndarray) -> float:
    """How likely chance alone makes two lines that meet at one of the loads fit so much better than one line.

    With two more parameters and d degrees of freedom left, P(F > f) is (rest of two lines / rest of one) ** (d / 2).
    """
    weight = 1.0 / np.maximum(np.abs(isotonic(y)), 1e-12 * np.abs(y).max())  # residuals relative to the curve
    one = _rest(np.stack([np.ones_like(x), x], 1), y, weight)
    inner = np.unique(x)[1:-1]
    two = min(_rest(np.stack([np.ones_like(x), x, np.maximum(x - knot, 0.0)], 1), y, weight) for knot in inner)
    if one <= 1e-18 * len(x):
        return 1.0  # a straight line, exactly
    return min(len(inner) * float(two / one) ** ((len(x) - 4) / 2), 1.0)


def _rest(columns: np.ndarray, y: np.ndarray, weight: np.ndarray) -> float:
    """Sum of squares that the columns leave of `y`, relative to the curve."""
    design, target = columns * weight[:, None], y * weight
    fitted = design @ np.linalg.lstsq(design, target, rcond=None)[0]
    return float(((target - fitted) ** 2).sum())


def _take_off(x: np.ndarray, y: np.ndarray, rise: float) -> int | None:
    """Place of the knee of a latency curve."""
    if len(np.unique(x)) < 4 or y.min() <= 0:
        return None
    smooth = isotonic(y)
    if smooth[-1] < rise * smooth[0]:
        return None
    hull = -_upper_hull(x, -smooth)
    distance = (x - x[0]) / (x[-1] - x[0]) - (hull - hull[0]) / (hull[-1] - hull[0])
    return int(np.argmax(distance))


def isotonic(y: np.ndarray) -> np.ndarray:
    """The non-decreasing sequence nearest to `y` in least squares (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for value in y:
        blocks.append([float(value), 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, size = blocks.pop()
            blocks[-1] = [
                (blocks[-1][0] * blocks[-1][1] + mean * size) / (blocks[-1][1] + size),
                blocks[-1][1] + size,
            ]
    return np.repeat([mean for mean, _ in blocks], [int(size) for _, size in blocks])


def _upper_hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The least concave curve above the points, at their own x."""
    corners: list[int] = []
    for i in range(len(x)):
        while corners and x[corners[-1]] == x[i] and y[corners[-1]] <= y[i]:
            corners.pop()
        while len(corners) > 1 and _turns_left(x, y, corners[-2], corners[-1], i):
            corners.pop()
        if not corners or x[corners[-1]] < x[i]:
            corners.append(i)
    return np.interp(x, x[corners], y[corners])


def _turns_left(x: np.ndarray, y: np.ndarray, a: int, b: int, c: int) -> bool:
    return (y[b] - y[a]) * (x[c] - x[b]) <= (y[c] - y[b]) * (x[b] - x[a])
