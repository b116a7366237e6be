"""The `cluster:` section: several replicas of the engine, and the router in front of them."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import Field, model_validator

from experiments import registries
from experiments.schema.base import Section, Wrong, registered

_KINDS = {bool: (bool, "true or false"), int: (int, "a whole number"), float: (int | float, "a number")}
DEFAULT_ROUTER = "round-robin"


class ClusterSection(Section):
    """`cluster`: several replicas of the engine behind a router; simulation only.

    Attributes:
        replicas: how many engines there are, each on GPUs of its own, as many as `engine.parallel` says.
        router: who gets which request (`bench list routers`), or `module:Class` of your own; `round-robin` if nothing is said.
        options: settings of the router, such as `{cache_threshold: 0.5}` of `prefix`.
    """

    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    router: Annotated[str, registered("router")] | None = None
    options: dict[str, Any] | None = None

    @property
    def router_name(self) -> str:
        """The router, also where none is written."""
        return self.router or DEFAULT_ROUTER

    @property
    def router_options(self) -> dict[str, Any]:
        """What the router is told; an option with nothing after it is unset."""
        return {key: value for key, value in (self.options or {}).items() if value is not None}

    @model_validator(mode="after")
    def _options_of_router(self) -> ClusterSection:
        if self.options:
            from sim.cluster import options_of

            known = options_of(registries.CHECKS["router"](self.router_name))
            for key, value in self.options.items():
                _check_option(key, value, known, self.router_name)
        return self


def _check_option(key: str, value: Any, known: dict[str, Any], router: str) -> None:
    """An option must be one of the router's, and of its default's type.

    Raises:
        Wrong: at the option, with the nearest name.
    """
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        expected = f"expected one of {', '.join(known)}" if known else "remove it"
        hint = f"did you mean {close[0]}?" if close else expected
        what = "has no such option" if known else "has no options"
        raise Wrong(f"unknown key {key!r} in cluster.options: router {router} {what}", hint, f"options.{key}")
    expected = type(known[key])
    if expected in _KINDS and value is not None:
        kind, words = _KINDS[expected]
        number = not isinstance(value, bool) and isinstance(value, int | float)
        if not isinstance(value, kind) or (isinstance(value, bool) and expected is not bool):
            raise Wrong(f"expected {words}, got {value!r}", key=f"options.{key}")
        if number and not value >= 0:
            raise Wrong(f"expected {words} of at least 0, got {value!r}", key=f"options.{key}")
