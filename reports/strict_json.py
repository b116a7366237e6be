"""JSON without NaN or Infinity, the same bytes for the same values.

Numbers that are not finite become null; numpy values become plain ones; floats are written by their shortest repr.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """`value` made of dicts, lists, str, int, finite float, bool and None.

    Raises:
        TypeError: for something that is not data.
    """
    if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not data that JSON can hold")


def dumps(value: Any, *, indent: int | None = 2) -> str:
    """Strict JSON text of `plain(value)`; non-ASCII characters are kept, lone surrogates are escaped."""
    text = json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(plain(value), indent=indent, allow_nan=False)
    return text


_MOST_DIGITS = 300
"""Of a whole number; with more it is no float any longer."""
_MOST_LEVELS = 100


def loads(text: str) -> Any:
    """Parse strict JSON.

    Raises:
        ValueError: for malformed text, NaN and Infinity in it, numbers that no float can hold, and text nested too deeply.
    """

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

    def whole(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            raise ValueError(f"a number of {len(digits)} digits is too large")
        return int(digits)

    def real(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"{digits[:40]} is too large a number")
        return value

    try:
        value = json.loads(text, parse_constant=refuse, parse_int=whole, parse_float=real)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Refuse what can be parsed, but not walked through by functions that call themselves."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MOST_LEVELS):
        inner = (item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer))
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError("it is nested too deeply")
