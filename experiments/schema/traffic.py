"""The `traffic:` section: a recorded trace, or synthetic requests, and what clients declare."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from experiments.schema.base import Seconds, Section, Text, Wrong, registered, wrong_from
from experiments.trace_path import find_trace
from workloads.errors import InputError


def _synthetic(section: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Checked by the generator itself, so that the section can say exactly what the generator can do."""
    from workloads.synthetic import SyntheticSpec

    try:
        SyntheticSpec.from_dict(section, base=(info.context or {}).get("folder", Path()))
    except InputError as error:
        raise wrong_from(error, "synthetic") from None
    return section


def _arrivals(section: dict[str, Any]) -> dict[str, Any]:
    from workloads.synthetic import parse_arrivals
    from workloads.synthetic.fields import Section as Fields

    try:
        parse_arrivals(Fields(section, "arrivals"))
    except InputError as error:
        raise wrong_from(error, "arrivals") from None
    return section


def _max_tokens(rule: Any) -> Any:
    words = ("context", "exact", "next_power_of_two")
    expected = f"expected {', '.join(words)}, {{fixed: n}} or {{multiple: x}}"
    if isinstance(rule, str):
        if rule not in words:
            raise Wrong(f"{expected}, got {rule!r}")
        return rule
    if not isinstance(rule, dict) or len(rule) != 1 or next(iter(rule)) not in ("fixed", "multiple"):
        raise Wrong(expected, "such as max_tokens: context")
    name, figure = next(iter(rule.items()))
    kind = int if name == "fixed" else int | float
    if isinstance(figure, bool) or not isinstance(figure, kind) or not 0 < figure < 1e9:
        raise Wrong(f"expected a {'whole ' if name == 'fixed' else ''}number above 0, got {figure!r}", key=name)
    return rule


def _sample(amount: Any) -> Any:
    good = isinstance(amount, int | float) and not isinstance(amount, bool) and amount > 0
    if not good or (isinstance(amount, float) and amount > 1):
        raise Wrong("expected a share such as 0.1, or a whole number of requests")
    return amount


class TraceSection(Section):
    """`traffic.trace`: recorded requests, from a window of a file.

    Options of the format's reader stand beside these keys (`bench list traces` names them).

    Attributes:
        path: the file, plain or gzipped, relative to the workload file; or a bundled trace.
        format: how it is read; unset = told from the content.
        start, duration: window of the trace, in its own time.
        rate_scale: arrivals this many times as fast.
        sample: a random share of the requests, or so many of them; sessions stay whole.
        limit: at most so many, the first ones.
        arrivals: arrival times from this process in place of the recorded ones.
        accept_implausible: take rates and lengths that look like swapped units.
    """

    model_config = ConfigDict(extra="allow")

    path: Text
    format: Annotated[str, registered("trace")] | None = None
    start: Seconds | None = None
    duration: Annotated[Seconds, Field(gt=0)] | None = None
    rate_scale: Annotated[float, Field(gt=0)] | None = None
    sample: Annotated[Any, BeforeValidator(_sample)] = None
    limit: Annotated[int, Field(ge=1)] | None = None
    arrivals: Annotated[dict[str, Any], AfterValidator(_arrivals)] | None = None
    accept_implausible: bool | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What the reader of the format is told."""
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}

    @model_validator(mode="after")
    def _file_and_options(self, info: ValidationInfo) -> TraceSection:
        from workloads.readers import find_reader, guess_format

        try:
            path = find_trace(self.path, (info.context or {}).get("folder", Path()))
            if self.model_extra:
                name = self.format or guess_format(path)
                _check_options(self.model_extra, find_reader(name), name)
        except InputError as error:
            raise Wrong(str(error), key="path") from None
        return self


def _check_options(options: dict[str, Any], reader: Callable, name: str) -> None:
    """Each option must be one of the reader's, and of its default's type.

    Raises:
        Wrong: at the option, with the nearest name.
    """
    known = {
        p.name: p.default
        for p in inspect.signature(reader).parameters.values()
        if p.kind == p.KEYWORD_ONLY and p.name not in OFFERED
    }
    open_ended = any(p.kind == p.VAR_KEYWORD for p in inspect.signature(reader).parameters.values())
    for key, value in options.items():
        if key not in known and not open_ended:
            names = [*TraceSection.model_fields, *known]
            close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(names)}"
            raise Wrong(f"unknown key {key!r} in traffic.trace for format {name}", hint, key)
        expected = type(known.get(key))
        if expected in _KINDS and value is not None:
            kind, words = _KINDS[expected]
            if not isinstance(value, kind) or (isinstance(value, bool) and expected is not bool):
                raise Wrong(f"expected {words}, got {value!r}", key=key)


OFFERED = ("seed", "start", "duration")
_KINDS = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "text"),
}


class TrafficSection(Section):
    """`traffic`: one of `trace` and `synthetic`.

    Attributes:
        max_tokens: what clients declared, where the source does not say: `context` (all that is left of it), `exact`
            (an oracle), `next_power_of_two`, `{fixed: n}` or `{multiple: x}` of the true length.
        trace: recorded requests.
        synthetic: the section that `workloads.synthetic.SyntheticSpec` reads, as written.
    """

    max_tokens: Annotated[Any, BeforeValidator(_max_tokens)] = "context"
    trace: TraceSection | None = None
    synthetic: Annotated[dict[str, Any], AfterValidator(_synthetic)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TrafficSection:
        if self.trace is not None and self.synthetic is not None:
            raise Wrong("both a trace and synthetic traffic are given", "remove one of the two", "synthetic")
        if self.trace is None and self.synthetic is None:
            raise Wrong("expected a trace or synthetic traffic", "such as synthetic: {requests: 100, …}")
        return self
