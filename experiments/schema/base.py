"""What every section of a workload file shares: strictness, units, and names that live in a registry."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

from experiments import registries, units
from workloads.errors import InputError, Place


class Wrong(ValueError):
    """A value that cannot be used, with its remedy.

    Args:
        message: what is wrong and what was expected.
        hint: how to mend it.
        key: the key inside the section that is at fault, where a check looks at several; dotted where it lies deeper.
    """

    def __init__(self, message: str, hint: str | None = None, key: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path: tuple[str | int, ...] = tuple(
            int(part[1:-1]) if part.startswith("[") else part for part in re.findall(r"\[\d+\]|[^.\[\]]+", key)
        )


def wrong_from(error: InputError, section: str) -> Wrong:
    """An error of a lower floor about `section.some.key` as one about `some.key` of the section being read."""
    key = (error.place.key or "").removeprefix(section).lstrip(".")
    file = str(Place(error.place.file, error.place.line, error.place.column))
    return Wrong(f"{file}: {error.message}" if file else error.message, error.hint, key)


class Section(BaseModel):
    """A mapping in the file. Unknown keys, implicit conversions and non-finite numbers are errors; null is unset."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _empty_means_unset(cls, values: Any) -> Any:
        """`engine:` with nothing after it (all its keys commented out) is the same as no `engine:`."""
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None or key not in cls.model_fields}

    def written(self) -> frozenset[str]:
        """Dotted keys, relative to this section, of every value that the user set."""
        keys: set[str] = set()
        for name in self.model_fields_set:
            value = getattr(self, name)
            if isinstance(value, Section):
                keys |= {f"{name}.{key}" for key in value.written()}
            elif value is not None:
                keys.add(name)
        return frozenset(keys)

    def plain(self) -> dict[str, Any]:
        """What the user set, as nested plain values (units already converted)."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


def registered(kind: str) -> AfterValidator:
    """Accepts the names of a registry and `module:Class` paths."""

    def check(name: str) -> str:
        try:
            registries.check(kind, name)
        except InputError as error:
            raise Wrong(error.message, error.hint) from None
        return name

    return AfterValidator(check)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise Wrong("expected some text, got an empty one")
    return text


Text = Annotated[str, AfterValidator(_not_blank)]
Seconds = Annotated[float, BeforeValidator(units.parse_duration)]
Milliseconds = Annotated[float, BeforeValidator(units.parse_milliseconds)]
Bandwidth = Annotated[float, BeforeValidator(units.parse_bandwidth)]
Gibibytes = Annotated[float, BeforeValidator(units.parse_gibibytes)]
