"""Reading a section of a user's specification: types, bounds and names checked, errors placed at the key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from workloads import units
from workloads.errors import InputError, Place, unknown_name

REQUIRED: Any = object()


class Section:
    """A mapping whose keys are taken one by one; `done` then rejects whatever nobody asked for.

    Args:
        data: the mapping.
        key: its path, such as `synthetic.arrivals`.
    """

    def __init__(self, data: object, key: str) -> None:
        if not isinstance(data, Mapping):
            raise InputError(f"expected a mapping of keys, not {data!r}", place=Place(key=key))
        self.data: Mapping[str, Any] = data
        self.key = key
        self._asked: list[str] = []

    def __contains__(self, name: str) -> bool:
        return self.data.get(name) is not None

    def path(self, name: str) -> str:
        """The key path of `name`."""
        return f"{self.key}.{name}"

    def error(self, name: str, message: str, hint: str | None = None) -> InputError:
        """An error placed at key `name`."""
        return InputError(message, place=Place(key=self.path(name)), hint=hint)

    def value(self, name: str, default: Any = REQUIRED) -> Any:
        """The raw value of `name`."""
        self._asked.append(name)
        if name in self:
            return self.data[name]
        if default is REQUIRED:
            slips = difflib.get_close_matches(name, [str(k) for k in self.data if k not in self._asked], n=1)
            raise self.error(name, "is missing", f"there is {slips[0]!r} instead" if slips else None)
        return default

    def number(
        self, name: str, default: Any = REQUIRED, *, above: float | None = None, least: float | None = None,
        most: float | None = None, infinite: bool = False,
    ) -> float:  # fmt: skip
        """A finite number (or infinity where allowed), within bounds."""
        value = self.value(name, default)
        if value is default:
            return value
        if value in ("inf", "infinity") and infinite:
            value = math.inf
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, f"expected a number, not {value!r}")
        self._bounds(name, value, above, least, most, infinite)
        return float(value)

    def whole(self, name: str, default: Any = REQUIRED, *, least: int | None = None, most: int | None = None) -> int:
        """A whole number within bounds."""
        value = self.value(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"expected a whole number, not {value!r}")
        self._bounds(name, value, None, least, most, False)
        return value

    def seconds(
        self, name: str, default: Any = REQUIRED, *, above: float | None = None, least: float | None = None,
        most: float | None = None,
    ) -> float:  # fmt: skip
        """A span of time in seconds, from a number or `10min`."""
        value = self.value(name, default)
        if value is default:
            return value
        value = units.seconds(value, place=Place(key=self.path(name)))
        self._bounds(name, value, above, least, most, False)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"expected true or false, not {value!r}")
        return value

    def word(self, name: str, choices: Iterable[str], default: Any = REQUIRED) -> str:
        """One of `choices`."""
        value = self.value(name, default)
        choices = list(choices)
        if value not in choices:
            raise unknown_name(name, str(value), choices, place=Place(key=self.path(name)))
        return value

    def section(self, name: str) -> Section | None:
        """A nested mapping, or None where there is none."""
        value = self.value(name, None)
        return None if value is None else Section(value, self.path(name))

    def done(self) -> None:
        """Reject keys that were never asked for.

        Raises:
            InputError: naming the key and the nearest valid ones.
        """
        for name in self.data:
            if name not in self._asked:
                raise unknown_name("key", str(name), self._asked, place=Place(key=self.path(str(name))))

    def _bounds(
        self, name: str, value: float, above: float | None, least: float | None, most: float | None, infinite:
            bool
    ) -> None:  # fmt: skip
        if math.isnan(value) or (math.isinf(value) and not infinite):
            raise self.error(name, f"must be finite, not {value}")
        if above is not None and not value > above:
            rule = "must be positive" if above == 0 else f"must be above {above:g}"
            raise self.error(name, f"{rule}, not {value:g}")
        if least is not None and value < least:
            rule = "must not be negative" if least == 0 else f"must be at least {least:g}"
            raise self.error(name, f"{rule}, not {value:g}")
        if most is not None and value > most and not math.isinf(value):
            raise self.error(name, f"must be at most {most:g}, not {value:g}")
