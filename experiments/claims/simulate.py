"""Running the workloads of an experiment: YAML text, with keys changed from run to run.

They run in the simulator, or on the real engine that `experiments.claims.target` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.claims.target import current, enough
from experiments.workload_file import Override, Source, build_workload, split_key
from workloads.errors import Place

if TYPE_CHECKING:
    from experiments.resolve import Resolved
    from experiments.schema import Workload
    from reports.run_data import RunData

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Run:
    """A run and its figures: `run["p95_ttft_ms"]` is one of `reports.metrics.summarize`."""

    data: RunData
    summary: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return enough(self, key, self.summary[key])


def workload_of(text: str, changes: Mapping[str, Any] | None = None) -> Workload:
    """The workload of a YAML text with keys changed, as `--set` would.

    Raises:
        InputError: it does not hold together.
    """
    overrides = [
        Override(split_key(key), value, Place(file="experiment", key=key)) for key, value in (changes or {}).items()
    ]
    return build_workload(Source(text, str(HERE / "experiment.yaml"), tuple(overrides)))


def resolved(text: str, changes: Mapping[str, Any] | None = None) -> Resolved:
    """What a workload comes to, without running it: memory, cost model, settings."""
    from experiments.resolve import resolve

    return resolve(workload_of(text, changes))


def simulate(text: str, changes: Mapping[str, Any] | None = None) -> Run:
    """Run a workload, in virtual time unless the experiment runs on a real engine.

    Raises:
        InputError: it does not hold together, or not there.
        KeyboardInterrupt: it was interrupted; half a run is no result.
    """
    from experiments import runner
    from reports.metrics import summarize

    target = current()
    data = runner.run(resolved(text, changes)) if target is None else target.run(workload_of(text, changes))
    if not data.info["complete"]:
        raise KeyboardInterrupt
    return Run(data, summarize(data, with_intervals=False))
