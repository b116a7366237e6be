"""One thing that is compared or gated: a run of ours, or what another tool measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from reports.fingerprint import settings
from reports.run_data import RunData
from reports.traffic import Traffic
from workloads.errors import InputError, Place

OURS = "twinserve"


@dataclass(frozen=True, slots=True)
class Subject:
    """What gate and compare need of a run.

    Attributes:
        name: what people call it.   source: the file or folder it is from.
        tool: "twinserve", or the tool that measured it.
        summary: figures by the keys of `metrics.summarize`; a key that is missing is not known.
        traffic: what was asked.   config: settings by dotted key.
        complete: False when it was cut short.
        data: the run itself, with every request; None where a file holds only a summary.
        timed: whether requests have their times of sending; else only their latencies are true.
        notes: sentences that a reader should know (unknown fields, definitions that differ).
    """

    name: str
    source: str
    tool: str
    summary: dict[str, Any]
    traffic: Traffic
    config: dict[str, Any] = field(default_factory=dict)
    complete: bool = True
    data: RunData | None = None
    timed: bool = True
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: RunData | dict | Subject, source: str = "", summary: dict | None = None) -> Subject:
        """From a run, or from the contents of its `run.json`; a subject is given back.

        Raises:
            InputError: the dict lacks a key.
        """
        if isinstance(run, Subject):
            return run
        if isinstance(run, RunData):
            if summary is None:
                from reports.metrics import summarize

                summary = summarize(run, with_intervals=False)
            info, config = run.info, settings(run.config)
            name, complete = str(info.get("name", "run")), bool(info.get("complete", True))
            return cls(
                name, source, OURS, summary, Traffic.of(run), config, complete, run, bool(info.get("sent_seen", True))
            )
        for key in ("summary", "fingerprint", "info", "config"):
            if key not in run:
                raise InputError("the run lacks this key", place=Place(file="run.json", key=key))
        info, figures = run["info"], run["summary"]
        load = info.get("load") or {}
        traffic = Traffic(
            run["fingerprint"], figures.get("requests"), mode=load.get("mode"), rate=load.get("rate"),
            concurrency=load.get("concurrency") if load.get("mode") == "closed" else None,
        )  # fmt: skip
        name, complete = str(info.get("name", "run")), bool(info.get("complete", True))
        return cls(name, source, OURS, figures, traffic, settings(run["config"]), complete)

    def with_figures(self, **figures: float | None) -> Subject:
        """The same with more figures."""
        return replace(self, summary={**self.summary, **figures})

    def named(self, name: str) -> Subject:
        """The same by another name."""
        return replace(self, name=name)
