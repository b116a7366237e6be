"""The keys of a Hugging Face `config.json`, checked one by one as they are asked for."""

from __future__ import annotations

from typing import Any

from workloads.errors import InputError, Place

_MOST = 10**12
"""No size of a model comes near it, and products of a few such numbers are still floats."""


class Config:
    """A parsed `config.json` that checks what is asked of it and names file and key where it is wrong."""

    def __init__(self, values: dict[str, Any], file: str) -> None:
        self.values = values
        self.file = file

    def error(self, key: str, message: str, hint: str | None = None) -> InputError:
        """An `InputError` placed at `key` of this file."""
        return InputError(message, place=Place(file=self.file, key=key), hint=hint)

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of `keys` that is there, as a whole number of at least `least`."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.error(key, f"expected a whole number, found {_shown(value)}")
            if value < least:
                raise self.error(key, f"must be at least {least}, found {_shown(value)}")
            if value > _MOST:
                raise self.error(key, f"must be at most {_MOST:,}")
            return value
        if default is None:
            raise self.error(keys[0], "is missing", hint="this key is needed for the shape of the model")
        return default

    def flag(self, key: str, default: bool) -> bool:
        """A yes or no."""
        value = self.values.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, found {_shown(value)}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value = self.values.get(key) or default
        if not isinstance(value, str):
            raise self.error(key, f"expected a string, found {_shown(value)}")
        return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
