"""`bench plan`: the cheapest deployment that serves some traffic within an SLO."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options
from experiments.cli.progress import Progress

if TYPE_CHECKING:
    from experiments.planner.plan import Plan
    from experiments.planner.quality import Known
    from experiments.planner.search import Found

NOTHING = 1

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False, help="A name (`bench list models`), folder or config.json."),
]
Traffic = Annotated[str, typer.Option(metavar="FILE", show_default=False, help="A workload file, or a trace.")]
Slo = Annotated[
    str | None,
    typer.Option(metavar="LIMITS", help="Such as ttft_p95=500ms,tpot_p95=50ms [default: the workload's slo, at p95]."),
]
Gpus = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES", help="Kinds to look at, or all [default: l40s, a100-sxm, h100-sxm, h200-sxm, b200-sxm]."
    ),
]
MaxGpus = Annotated[int, typer.Option(metavar="N", help="GPUs at most, all replicas together.")]
Prices = Annotated[
    list[str] | None, typer.Option(metavar="GPU=DOLLARS", help="Of an hour, such as h100=2.5/h [default: list prices].")
]
Quantization = Annotated[
    list[str] | None,
    typer.Option(metavar="auto|NAMES", help="Of the weights; none is what the model ships in [default: auto]."),
]
KVDtype = Annotated[list[str] | None, typer.Option(metavar="auto|NAMES", help="Of the KV cache [default: auto].")]
Quality = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="What `bench quality` measured, to stand beside each mode of the weights."),
]
Engines = Annotated[list[str] | None, typer.Option(metavar="NAMES", help="vllm, sglang, tensorrt-llm [default: vllm].")]
Rate = Annotated[float | None, typer.Option(metavar="X", help="Requests a second to scale the traffic to.")]
Requests = Annotated[int, typer.Option(min=100, max=1_000_000, metavar="N", help="Simulated of a replica, at least.")]
Emit = Annotated[
    str | None,
    typer.Option(metavar="TARGET", help="Print what starts it: vllm, sglang, tensorrt-llm or kubernetes."),
]
OutFile = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write what --emit makes to a file.")]
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Simulations at once [default: all cores].")]
All = Annotated[bool, typer.Option("--all", help="Show every candidate and why it was refused.")]


def plan(
    model: Model,
    traffic: Traffic,
    slo: Slo = None,
    gpus: Gpus = None,
    max_gpus: MaxGpus = 16,
    price: Prices = None,
    quantization: Quantization = None,
    kv_dtype: KVDtype = None,
    quality: Quality = None,
    engine: Engines = None,
    rate: Rate = None,
    settings: options.Set = None,
    seed: options.Seed = None,
    requests: Requests = 1000,
    emit: Emit = None,
    out: OutFile = None,
    workers: Workers = None,
    all: All = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the cheapest deployment that meets an SLO.

    Kinds and numbers of GPUs, tensor and pipeline parallelism, weights and KV, token budgets. What cannot be is ruled out by
    arithmetic, the rest is simulated. The answer says what it costs, how much of the SLO is left, what binds, and whether the
    cost model is good enough to tell. Ends with 1 where nothing meets the SLO.

    \b
    Examples:
      bench plan llama-3-8b --traffic workload.yaml --slo ttft_p95=500ms,tpot_p95=50ms
      bench plan llama-3-70b --traffic AzureLLMInferenceTrace_conv.csv --slo ttft_p99=2s,tpot_p95=80ms --gpus h100,h200
      bench plan llama-3-8b --traffic chat.jsonl --rate 200 --slo ttft=1s --price h100=2.5/h --price l40s=0.9/h
      bench plan llama-3-8b --traffic workload.yaml --emit kubernetes --out deploy.yaml
    """
    from experiments.cli.paths import check_distinct
    from experiments.cli.sweep import default_workers
    from experiments.planner.emit import TARGETS
    from experiments.planner.plan import check_question, make_plan
    from experiments.planner.quality import read_known
    from experiments.planner.question import ask
    from sim.quantization.quality import measured_file
    from workloads.errors import InputError, Place, unknown_name

    if emit is not None and emit not in TARGETS:
        raise unknown_name("target", emit[:60], TARGETS, place=Place(key="--emit"))
    if out is not None and emit is None:
        raise InputError("--out is for what --emit makes", place=Place(key="--out"), hint=f"add --emit {TARGETS[0]}")
    for key, given in (
        ("--gpus", gpus), ("--price", price), ("--quantization", quantization), ("--kv-dtype", kv_dtype), ("--engine", engine)
    ):  # fmt: skip
        if given and any(not name.strip() for each in given for name in each.split(",")):
            raise InputError("has an empty name", place=Place(key=key), hint="leave the option out for its default")
    if out is not None:
        _check(out)
        inputs = (("the model", Path(model)), ("--traffic", Path(traffic)), ("--quality", quality))
        for what, path in inputs:
            check_distinct([(what, path), ("--out", out)])
    chosen = list(engine or [])
    if emit not in (None, "kubernetes") and chosen not in ([], [emit]):
        raise InputError(
            f"--emit {emit} needs a plan for {emit} alone", place=Place(key="--engine"), hint=f"--engine {emit}"
        )
    if emit not in (None, "kubernetes"):
        chosen = [emit]
    question = ask(
        model, traffic, slo=slo, gpus=gpus or (), max_gpus=max_gpus, prices=price or (), presets=chosen,
        quantizations=quantization or (), kv_dtypes=kv_dtype or (), rate=rate, settings=settings or (), seed=seed,
        requests=requests,
    )  # fmt: skip
    known = read_known(quality if quality is not None else measured_file())
    check_question(question)
    show = not (json or quiet)
    with Progress(f"plan for {question.model.name}", enabled=show) as progress:
        found = make_plan(question, workers=workers or default_workers(question.workload), tell=progress)
    _show(found, emit, out, known, all=all, json=json, quiet=quiet)
    if found.best is None:
        raise typer.Exit(NOTHING)


def _show(
    plan: Plan, emit: str | None, out: Path | None, known: Known | None, *, all: bool, json: bool, quiet: bool
) -> None:
    from experiments.planner.quantization import make_guide

    asked = plan.question.quantizations == ("auto",)
    about = plan.best or plan.closest
    guide = make_guide(plan.question, about.candidate, plan.longest, known) if asked and about else None
    text = emitted(plan, plan.best, emit) if emit and plan.best else ""
    if out is not None and text:
        _write(out, text)
    if json:
        from experiments.cli.run import print_json
        from experiments.planner.report import plan_json

        print_json(plan_json(plan, guide, {emit: text} if text else None))
        return
    if not quiet:
        from experiments.cli.plan_show import print_plan

        print_plan(plan, guide, all=all, to_stderr=bool(text) and out is None)
        if out is not None and text:
            typer.echo(f"Written: {out}")
    if text and out is None:
        typer.echo(text, nl=False)


def emitted(plan: Plan, found: Found, target: str) -> str:
    """What starts a candidate.

    Raises:
        InputError: the target cannot do what the plan asks for.
    """
    from experiments.planner.deployment import deployment_of
    from experiments.planner.emit import emit

    return emit(deployment_of(plan, found), target)


def _check(out: Path) -> None:
    from experiments.cli.output import check_folder
    from workloads.errors import OutputError

    if out.is_dir():
        raise OutputError(f"cannot write {out}: it is a folder")
    check_folder(out)


def _write(out: Path, text: str) -> None:
    from reports.write_file import replace_text
    from workloads.errors import OutputError

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_text(out, text)
    except OSError as error:
        raise OutputError(f"cannot write {out}: {error.strerror or error}") from error
