"""The `sweep:` section: dotted keys with the values each takes; the grid is their product.

sweep:
  load.concurrency: 1..256 log2                           # 1, 2, 4, … 256
  engine.scheduler.max_num_seqs: 32..256 step 32          # or {range: [32, 256, 32]}
  traffic.synthetic.arrivals.rate: {from: 1, to: 64, points: 7, scale: log}     # or {log: [1, 64, 7]}
  engine.preset: [vllm, sglang]                           # or the text `vllm, sglang`
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from experiments.schema.base import Wrong

MAX_VALUES = 10_000
FORMS = "a list of values, `1..256 log2`, `1..64 step 8` or {from: 1, to: 64, points: 7, scale: log}"
_NUMBER = r"[-+]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SPAN = re.compile(
    rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*(?:(?:step\s+({_NUMBER}))|(?:log\s*({_NUMBER})))?\s*", re.IGNORECASE
)


def expand(spec: Any) -> tuple[Any, ...]:
    """The values of one axis.

    Args:
        spec: a list; `{log: [from, to, n]}`, `{range: [from, to, step]}`, `{from:, to:, points:, scale: log | linear}` or
            `{from:, to:, step:}`; or a text: `a..b` (whole steps), `a..b step s`, `a..b log2` (each twice the one before, and
            the end), or values with commas between.

    Values of a range or log axis are whole numbers where all its bounds are.

    Raises:
        Wrong: none of these, no value, one twice, or too many.
    """
    values = _values(spec)
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


def _values(spec: Any) -> list[Any]:
    if isinstance(spec, list | tuple):
        return list(spec)
    if isinstance(spec, str):
        return _from_text(spec)
    if isinstance(spec, dict) and len(spec) == 1 and next(iter(spec)) in _SPACINGS:
        name, bounds = next(iter(spec.items()))
        return _SPACINGS[name](_three_numbers(name, bounds))
    if isinstance(spec, dict) and {"from", "to"} <= set(spec):
        return _from_keys(spec)
    raise Wrong(f"expected {FORMS}")


def _from_text(text: str) -> list[Any]:
    """`1..256 log2`, `0..10 step 2`, `1..8`, or values with commas between."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        start, end = _plain(span[1]), _plain(span[2])
        if not (math.isfinite(start) and math.isfinite(end)):
            raise Wrong(f"expected finite numbers, got {text!r}")
        if span[4] is not None:
            return _powers(start, end, _plain(span[4]))
        step = 1 if start <= end else -1
        return _range([start, end, step if span[3] is None else _plain(span[3])])
    if ".." in text:
        raise Wrong(f"expected {FORMS}, got {text!r}", "such as 1..256 log2")
    if "," not in text:
        raise Wrong(f"expected {FORMS}, got {text!r}", f"a single value is a list too: [{text}]")
    return [_scalar(part.strip()) for part in text.split(",")]


def _scalar(text: str) -> Any:
    """A value between commas, read as in YAML: a number, true or false, or a word."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(_NUMBER, text):
        return _plain(text)
    return text or None


def _plain(text: str) -> float:
    return int(text) if re.fullmatch(r"[-+]?\d+(?:_\d+)*", text) else float(text)


def _powers(start: float, end: float, factor: float) -> list[float]:
    """From `start` on each `factor` times the one before, and `end` itself."""
    if not (start > 0 and end > 0):
        raise Wrong(f"log needs bounds above 0, got {start} and {end}")
    if not factor > 1:
        raise Wrong(f"log needs a factor above 1, got {factor}", "such as log2 or log10")
    if end < start:
        return _powers(end, start, factor)[::-1]
    count = math.floor(math.log(end / start) / math.log(factor) * (1 + 1e-12))
    if count > MAX_VALUES:
        raise Wrong(f"{count} values are too many; the most is {MAX_VALUES}")
    values = [start * factor**i for i in range(count + 1)]
    if all(isinstance(bound, int) for bound in (start, end)):
        values = list(dict.fromkeys(round(value) for value in values))
    return values if math.isclose(values[-1], end, rel_tol=1e-9) else [*values, end]


def _from_keys(spec: dict[str, Any]) -> list[float]:
    """`{from:, to:, points:, scale:}` or `{from:, to:, step:}`."""
    known = ("from", "to", "points", "scale", "step")
    for key in spec:
        if key not in known:
            raise Wrong(f"unknown key {key!r} in an axis", f"expected {', '.join(known)}", str(key))
    start, end = _three_numbers("from and to", [spec["from"], spec["to"], 0])[:2]
    scale = spec.get("scale", "linear")
    if scale not in ("linear", "log"):
        raise Wrong(f"expected linear or log, got {scale!r}", key="scale")
    if ("step" in spec) == ("points" in spec):
        raise Wrong("expected either points or step beside from and to", "such as {from: 1, to: 64, points: 7}")
    if "step" in spec:
        if scale == "log":
            raise Wrong("a log axis has points, not a step", "such as {from: 1, to: 64, points: 7, scale: log}", "step")
        return _range(_three_numbers("step", [start, end, spec["step"]]))
    points = spec["points"]
    if not isinstance(points, int) or isinstance(points, bool) or not 2 <= points <= MAX_VALUES:
        raise Wrong(f"expected how many values (2 to {MAX_VALUES}), got {points!r}", key="points")
    return _log([start, end, points]) if scale == "log" else _linear(start, end, points)


def _linear(start: float, end: float, count: int) -> list[float]:
    values = [start + (end - start) * i / (count - 1) for i in range(count)]
    if isinstance(start, int) and isinstance(end, int) and all(float(value).is_integer() for value in values):
        return list(dict.fromkeys(int(value) for value in values))
    return values


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
