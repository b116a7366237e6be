"""The `sweep:` section: dotted keys with the values each takes; the grid is their product.

sweep:
  load.concurrency: [1, 2, 4, 8]
  traffic.synthetic.arrivals.rate: {log: [1, 64, 7]}      # 7 values, evenly spaced on a log scale
  engine.scheduler.max_num_seqs: {range: [32, 256, 32]}   # from, to (included), step
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

from pydantic import BeforeValidator

from experiments.schema.base import Wrong

MAX_VALUES = 10_000


def expand(spec: Any) -> tuple[Any, ...]:
    """The values of one axis, from a list or `{log: [from, to, n]}` or `{range: [from, to, step]}`.

    Values of a range or log axis are whole numbers where all its bounds are.
    """
    if isinstance(spec, list | tuple):
        values = list(spec)
    elif isinstance(spec, dict) and len(spec) == 1 and next(iter(spec)) in _SPACINGS:
        name, bounds = next(iter(spec.items()))
        values = _SPACINGS[name](_three_numbers(name, bounds))
    else:
        raise Wrong("expected a list of values, {log: [from, to, n]} or {range: [from, to, step]}")
    if not values:
        raise Wrong("expected at least one value, got an empty list")
    if len(values) > MAX_VALUES:
        raise Wrong(f"{len(values)} values are too many; the most is {MAX_VALUES}")
    if any(value is None for value in values):
        raise Wrong("expected a value, got nothing", "write every value of the list")
    seen: set[str] = set()
    for value in values:
        text = json.dumps(value, sort_keys=True, default=str)
        if text in seen:
            raise Wrong(f"the value {text} is given twice", "remove one")
        seen.add(text)
    return tuple(values)


def _log(bounds: list[float]) -> list[float]:
    start, end, count = bounds
    if not (start > 0 and end > 0):
        raise Wrong(f"log needs bounds above 0, got {start} and {end}")
    if not isinstance(count, int) or not 2 <= count <= MAX_VALUES:
        raise Wrong(f"log needs how many values as its third number (2 to {MAX_VALUES}), got {count}")
    step = math.log(end / start) / (count - 1)
    values = [start, *(start * math.exp(step * i) for i in range(1, count - 1)), end]
    if isinstance(start, int) and isinstance(end, int):
        return list(dict.fromkeys(round(value) for value in values))
    return values


def _range(bounds: list[float]) -> list[float]:
    start, end, step = bounds
    if step == 0 or (end - start) * step < 0:
        raise Wrong(f"range cannot get from {start} to {end} in steps of {step}")
    count = math.floor((end - start) / step * (1 + 1e-12)) + 1
    if count > MAX_VALUES:
        raise Wrong(f"{count} values are too many; the most is {MAX_VALUES}")
    return [start + i * step for i in range(count)]


_SPACINGS = {"log": _log, "range": _range}


def _three_numbers(name: str, bounds: Any) -> list[float]:
    meaning = "[from, to, n]" if name == "log" else "[from, to, step]"
    good = isinstance(bounds, list) and len(bounds) == 3
    if not good or not all(isinstance(b, int | float) and not isinstance(b, bool) for b in bounds):
        raise Wrong(f"{name} expects three numbers {meaning}")
    if not all(math.isfinite(b) for b in bounds):
        raise Wrong(f"{name} expects finite numbers {meaning}")
    return bounds


Axis = Annotated[tuple[Any, ...], BeforeValidator(expand)]
