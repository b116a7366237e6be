"""`bench serve`: a server that speaks OpenAI's API, in front of the engine of a workload file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options

if TYPE_CHECKING:
    from experiments.resolve import Resolved
    from experiments.serving import Plan

Host = Annotated[str, typer.Option(metavar="NAME", help="Address to listen on; 0.0.0.0 is every one of this machine.")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on; 0 takes a free one.")]
Speed = Annotated[
    float, typer.Option(min=0.001, max=1000.0, metavar="X", help="Simulated seconds a second of the wall clock.")
]
Name = Annotated[
    str | None,
    typer.Option("--served-model-name", metavar="NAME", show_default=False, help="For clients [default: the file's]."),
]
Waiting = Annotated[
    int, typer.Option(min=0, metavar="N", help="Most requests that may wait; further ones get 429. 0: any number.")
]
Drain = Annotated[
    float, typer.Option(min=0.0, metavar="S", help="Seconds that requests under way are given when it is stopped.")
]


def serve(
    file: options.File,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    backend: options.Backend = None,
    gpu: options.Gpu = None,
    load: options.Load = None,
    seed: options.Seed = None,
    speed: Speed = 1.0,
    served_model_name: Name = None,
    max_waiting: Waiting = 0,
    drain: Drain = 30.0,
    settings: options.Set = None,
    quiet: options.Quiet = False,
) -> None:
    """Serve OpenAI's API with the engine of a workload.

    On backend sim it is a stand-in: answers are filler words, and come when the simulated GPU would have them.
    On torch and triton a real model answers. Traffic and load of the file have no effect: clients bring them.

    Paths: /v1/completions, /v1/chat/completions, /v1/models, /tokenize, /detokenize, /metrics, /health, /version.
    Ctrl-C lets what runs end, a second one does not.

    \b
    Examples:
      bench serve workload.yaml
      bench serve workload.yaml --port 8001 --set engine.scheduler.max_num_seqs=64
      bench serve workload.yaml --backend torch --set model=./my-model
      curl localhost:8000/v1/completions -d '{"prompt": "The sea is", "max_tokens": 8}'
    """
    from backends.server.extra import need_server
    from experiments import runner
    from experiments.cli.progress import Progress
    from experiments.registries import REAL
    from experiments.serving import check_backend, make_served, plan_of

    need_server("bench serve")
    plan = plan_of(file, options.overrides(settings, backend=backend, gpu=gpu, seed=seed, weights=load))
    name = plan.workload.backend.name
    check_backend(plan.workload, speed)
    from backends.server.run import Server, listen

    sock = listen(host, port)
    try:
        with Progress("loading the model", enabled=not quiet and name in REAL) as progress:
            resolved = runner.resolve(plan.workload, progress) if name in REAL else runner.resolve(plan.workload)
        served = make_served(plan, resolved, speed=speed, name=served_model_name, max_waiting=max_waiting)
        if not quiet:
            served.behind = _behind
            _show(plan, resolved, served, sock.getsockname(), speed)
        Server(served, drain=drain, on_signal=None if quiet else _stopping(drain)).until_stopped(sock)
    finally:
        sock.close()


def _show(plan: Plan, resolved: Resolved, served: Any, address: tuple, speed: float) -> None:
    """The plan, what has no effect, and where the server is."""
    from experiments.cli.console import stdout
    from reports.plan import print_plan

    console = stdout()
    shown = {key: value for key, value in resolved.config.items() if key not in ("traffic", "load", "slo", "seed")}
    print_plan(resolved.info, shown, console, without=("traffic", "load", "slo"))
    words = f"answers are filler words; {served.words.rule}" if served.simulated else served.words.rule
    console.print(f"tokens     {words}", highlight=False)
    if speed != 1.0:
        console.print(f"speed      {speed:g} simulated seconds a second", highlight=False)
    for notice in (*plan.notices, *resolved.warnings):
        console.print(f"note: {notice}", highlight=False, markup=False)
    host, port = address[:2]
    host = f"[{host}]" if ":" in host else host
    console.print(f"serving {served.model} at http://{host}:{port}/v1 (Ctrl-C stops)", highlight=False, markup=False)
    import sys

    sys.stdout.flush()


def _behind(seconds: float) -> None:
    text = f"this machine is too slow for the load: steps end {seconds:.2f} s late, and latencies are no longer the model's"
    typer.echo(text, err=True)


def _stopping(drain: float) -> Any:
    """What is said when somebody stops the server."""

    def say(again: bool) -> None:
        text = "stopping at once" if again else f"stopping; requests under way have {drain:g} s (again: at once)"
        typer.echo(text, err=True)

    return say
