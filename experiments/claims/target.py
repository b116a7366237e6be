"""Experiments on a model that really runs: what changes in their workloads, and which of them cannot.

An experiment says what it runs as workloads of the source's model and GPU. On a real engine the same traffic, load and
policies run on the user's model, with as many tokens of KV as the source's GPU had room for, so that memory binds where it
bound there. Times are those of the machine at hand; so a verdict is on this machine and model, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.claims.base import Result
from experiments.registries import REMOTE
from workloads.errors import InputError, Place

if TYPE_CHECKING:
    from experiments.claims.registry import Experiment
    from experiments.claims.simulate import Run
    from experiments.resolve import Resolved
    from experiments.schema import Workload
    from experiments.workload_file import Override
    from reports.run_data import RunData

MODELLED = {
    "beam-search": "it replays beams recorded on the real engine (python -m experiments.claims.record_beams records yours)",
    "quantization": "it asks for the kernels of an H100 in eight modes (bench profile and bench quality measure yours)",
    "sizing": "it is arithmetic on memory and runs next to nothing (bench size does it for your model)",
    "parallelism": "it takes several GPUs and links of two kinds, and a real model runs on one device here",
    "memory-limits": "it is arithmetic on memory and runs nothing",
    "scaling-signals": "its load rises to what one L40S can just not serve, which says nothing on another device",
    "speculation": "drafts are priced, and the real engine makes none",
}  # fmt: skip
"""Experiments that stay in simulation, and why."""

ASKED = ("lengths", "operating-point")
"""Experiments that change traffic and load alone, so that any server can be asked."""
_SECTIONS = ("trace", "synthetic")
_TARGET: ContextVar[Target | None] = ContextVar("target", default=None)


@dataclass(slots=True)
class Target:
    """Where the workloads of an experiment run instead of the simulator.

    Attributes:
        backend: of `experiments.registries.WALL`.   model: a folder, or None for the experiment's own; what the server calls it.
        base_url: where the server is (`http`).
        load: `auto` or `dummy`; None leaves it.   requests: at most so many of each run; None leaves them.
        settings: over those of every workload, where it has their section.   tell: called with a sentence before each run.
        ran: what ran, each once.   unserved: requests that were refused, of how many.
    """

    backend: str
    model: str | None = None
    load: str | None = None
    requests: int | None = None
    settings: Sequence[Override] = ()
    tell: Callable[[str], None] = lambda what: None
    ran: dict[str, None] = field(default_factory=dict)
    unserved: tuple[int, int] = (0, 0)
    runs: int = 0
    base_url: str | None = None

    def workload(self, workload: Workload) -> Workload:
        """A workload of the simulator as one of this target.

        Raises:
            InputError: it does not hold together there.
        """
        from experiments.resolve import resolve
        from experiments.workload_file import Override, build_workload
        from sim.models import load_model

        if self.backend == REMOTE:
            overrides = [
                Override(("backend",), {}, Place(file="--backend")),
                Override(("backend", "name"), self.backend, Place(file="--backend")),
                Override(("backend", "base_url"), self.base_url, Place(file="--base-url")),
                *([Override(("backend", "model"), self.model, Place(file="--model"))] if self.model else []),
                Override(("engine",), {}, Place(file="--backend")),
                *(each for each in self.settings if self._has(workload, each.path)),
            ]
            return build_workload(replace(workload.source, overrides=(*workload.source.overrides, *overrides)))
        budget = resolve(workload).budget
        model = str(Path(self.model).expanduser().resolve()) if self.model is not None else workload.model
        longest = min(budget.max_model_len, load_model(model).max_position)
        named = {"name": ("--backend", self.backend)} | ({"load": ("--load", self.load)} if self.load else {})
        overrides = [
            Override(("backend",), {}, Place(file="--backend")),
            *(Override(("backend", key), value, Place(file=option)) for key, (option, value) in named.items()),
            Override(("model",), model, Place(file="--model")),
            Override(("engine", "max_model_len"), longest, Place(file="--model")),
            Override(("engine", "kv", "capacity_tokens"), budget.kv_tokens, Place(file="--model")),
        ]
        overrides += [each for each in self.settings if self._has(workload, each.path)]
        return build_workload(replace(workload.source, overrides=(*workload.source.overrides, *overrides)))

    @staticmethod
    def _has(workload: Workload, path: Sequence[Any]) -> bool:
        """Whether a setting is for a workload: one of a trace is not for made-up traffic, nor the other way round."""
        section = path[1] if len(path) > 2 and path[0] == "traffic" else None
        return section not in _SECTIONS or getattr(workload.traffic, section) is not None

    def run(self, workload: Workload) -> RunData:
        """Run a workload of the simulator here.

        Raises:
            InputError: it does not hold together, or nothing of it fits the model.
        """
        from experiments import runner
        from reports.run_data import FINISHED
        from workloads.transform import limit

        resolved = runner.resolve(self.workload(workload))
        if self.requests is not None:
            resolved = replace(resolved, _traffic=limit(resolved.traffic, self.requests))
        self.runs += 1
        self.tell(f"run {self.runs}: {len(resolved.traffic):,} requests")
        data = runner.run(resolved)
        left = int((data.requests.status != FINISHED).sum())
        if left == len(data.requests) and data.info["complete"]:
            why = next((reason for reason in data.requests.reason if reason), "nothing finished")
            raise InputError(f"no request of the experiment was served: {why}", place=Place(key="--model"))
        self.unserved = (self.unserved[0] + left, self.unserved[1] + len(data.requests))
        self.ran[self._name(resolved, data)] = None
        return data

    def _name(self, resolved: Resolved, data: RunData) -> str:
        if resolved.remote is not None:
            return f"{resolved.remote.form.model} at {self.base_url} (backend {self.backend})"
        threads = f", {data.host['threads']} threads" if data.host.get("threads") else ""
        return f"{resolved.model.name} on {data.host.get('device', '?')}{threads} (backend {self.backend})"

    def told(self) -> str:
        """What ran, for the reader of a result."""
        said = f"ran on {'a server' if self.backend == REMOTE else 'the real engine'}: {'; '.join(self.ran)}"
        if self.requests is not None:
            said += f"; at most {self.requests:,} requests a run"
        if self.unserved[0]:
            said += f"; {self.unserved[0]:,} of {self.unserved[1]:,} requests were not served"
        return f"{said}. Models and GPUs that headings and reasons name are the source's, not these"


def run_on(target: Target, experiment: Experiment, small: bool) -> Result:
    """An experiment on a real engine.

    Raises:
        InputError: it cannot run there, with the reason.
    """
    check_target(target, experiment)
    with _running_on(target):
        return replace(experiment.run(small), ran_on=target.told())


def check_target(target: Target, experiment: Experiment) -> None:
    """Whether an experiment can run on a real engine.

    Raises:
        InputError: it cannot, with the reason.
    """
    if experiment.NAME in MODELLED:
        raise InputError(
            f"{experiment.NAME} cannot run on backend {target.backend}: {MODELLED[experiment.NAME]}",
            place=Place(key="--backend"), hint="leave --backend out",
        )  # fmt: skip
    if target.backend == REMOTE and experiment.NAME not in ASKED:
        raise InputError(
            f"{experiment.NAME} cannot run on a server: it changes settings of the engine, which only who runs the server can",
            place=Place(key="--backend"), hint=f"these can: {', '.join(ASKED)}",
        )  # fmt: skip


def current() -> Target | None:
    """The target of the experiment that is running; None in simulation."""
    return _TARGET.get()


@contextmanager
def _running_on(target: Target) -> Iterator[None]:
    token = _TARGET.set(target)
    try:
        yield
    finally:
        _TARGET.reset(token)


def enough(run: Run, key: str, value: Any) -> Any:
    """A figure of a run that an experiment needs.

    Raises:
        InputError: it is a percentile that so few requests do not tell.
    """
    from reports.percentiles import needed

    stat = key.split("_", 1)[0]
    if value is None and key.endswith("_ms"):
        percentile = {"median": 50.0, "mean": 0.0}.get(stat) if not stat.startswith("p") else float(stat[1:])
        fewest = needed(percentile) if percentile else 2
        raise InputError(
            f"{key} takes {fewest} finished requests, and a run had {run.summary.get('completed') or 0}",
            place=Place(key="--requests"), hint="more of them",
        )  # fmt: skip
    return value
