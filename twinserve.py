"""Twinserve's public names, for scripts, notebooks and plug-ins: `from twinserve import Scheduler, run`.

Everything is loaded on first use, so importing this module costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.torch.beams import BeamSearchParams
    from backends.torch.llm import LLM
    from backends.torch.sampling import SamplingParams
    from experiments.api import load_workload, run
    from experiments.schema import Workload
    from reports.metrics import summarize
    from reports.run_data import RunData
    from reports.run_folder import read_run
    from sim.cluster.autoscalers import Autoscaler, Demand
    from sim.cluster.base import Router
    from sim.engine.sequence import Sequence
    from sim.engine.state import EngineState
    from sim.engine.step import Step
    from sim.kv.base import NO_HIT, Hit, KVAllocator, KVUse, PrivateAllocator
    from sim.schedulers.base import Scheduler
    from workloads.errors import InputError, OutputError, TargetError, TwinserveError
    from workloads.traffic import Traffic

_HOMES = {
    "Autoscaler": "sim.cluster.autoscalers",
    "BeamSearchParams": "backends.torch.beams",
    "Demand": "sim.cluster.autoscalers",
    "EngineState": "sim.engine.state",
    "Hit": "sim.kv.base",
    "InputError": "workloads.errors",
    "KVAllocator": "sim.kv.base",
    "KVUse": "sim.kv.base",
    "LLM": "backends.torch.llm",
    "NO_HIT": "sim.kv.base",
    "OutputError": "workloads.errors",
    "PrivateAllocator": "sim.kv.base",
    "RunData": "reports.run_data",
    "Router": "sim.cluster.base",
    "SamplingParams": "backends.torch.sampling",
    "Scheduler": "sim.schedulers.base",
    "Sequence": "sim.engine.sequence",
    "Step": "sim.engine.step",
    "TargetError": "workloads.errors",
    "Traffic": "workloads.traffic",
    "TwinserveError": "workloads.errors",
    "Workload": "experiments.schema",
    "load_workload": "experiments.api",
    "read_run": "reports.run_folder",
    "run": "experiments.api",
    "summarize": "reports.metrics",
}

__all__ = [
    "LLM",
    "NO_HIT",
    "Autoscaler",
    "BeamSearchParams",
    "Demand",
    "EngineState",
    "Hit",
    "InputError",
    "KVAllocator",
    "KVUse",
    "OutputError",
    "PrivateAllocator",
    "Router",
    "RunData",
    "SamplingParams",
    "Scheduler",
    "Sequence",
    "Step",
    "TargetError",
    "Traffic",
    "TwinserveError",
    "Workload",
    "load_workload",
    "read_run",
    "run",
    "summarize",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("twinserve")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
