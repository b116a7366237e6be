"""The commands of `bench`, put together.

Typer reads the signature of every command that it is given, which takes longer than starting most of them: a command line
that names its command gets that one alone (`application`). Help, and a name that does not exist, see them all (`app`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

import typer

from experiments.cli.bench import bench_app

__all__ = ["COMMANDS", "application"]

# Name → module and function or group. The order here is the order in the help.
COMMANDS = {
    "run": "experiments.cli.run:run",
    "sweep": "experiments.cli.sweep:sweep",
    "plan": "experiments.cli.plan:plan",
    "serve": "experiments.cli.serve:serve",
    "compare": "experiments.cli.compare:compare",
    "gate": "experiments.cli.gate:gate",
    "report": "experiments.cli.report:report",
    "validate": "experiments.cli.validate:validate",
    "calibrate": "experiments.cli.calibrate:calibrate",
    "profile": "experiments.cli.profile:profile",
    "quantize": "experiments.cli.quantize:quantize",
    "quality": "experiments.cli.quality:quality",
    "explain": "experiments.cli.explain:explain",
    "size": "experiments.cli.size:size",
    "list": "experiments.cli.lists:list_names",
    "init": "experiments.cli.init:init",
    "doctor": "experiments.cli.doctor:doctor",
    "experiment": "experiments.cli.experiment:experiment_app",
    "model": "experiments.cli.model:model_app",
    "trace": "experiments.cli.trace:trace_app",
}


def application(arguments: Sequence[str]) -> typer.Typer:
    """The application for one command line, without what that line cannot ask for."""
    first = next((word for word in arguments if word in ("-h", "--help") or not word.startswith("-")), None)
    return _with([first] if first in COMMANDS else COMMANDS)


def _with(names: Iterable[str]) -> typer.Typer:
    built = bench_app()
    for name in names:
        module, attribute = COMMANDS[name].split(":")
        command = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            built.add_typer(command, name=name)
        else:
            built.command(name)(command)
    return built


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = built = _with(COMMANDS)
    return built
