"""`bench calibrate`: constants of a GPU or a deployment from a few measurements of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options

if TYPE_CHECKING:
    from experiments.calibrate import Load, ServingFit
    from sim.cost.calibrate import Refit


def calibrate(
    timings: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TIMINGS…", show_default=False, help="Files of kernel times (CSV, Parquet)."),
    ] = None,
    gpu: options.Gpu = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help="vllm, sglang or tensorrt-llm.")] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A served run: CSV of loads with ttft_ms, tpot_ms; result file; run folder."),
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The workload file that describes the served run.")
    ] = None,
    settings: options.Set = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")] = Path("calibration.toml"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    json: options.Json = False,
) -> None:
    """Fit the cost model to a GPU or deployment of yours.

    Two dozen kernel times a kind of operator are enough: three constants of it are refitted, drawn towards what the data
    sheet says. A served run, measured at one or more loads, gives the host time of a step and the front-end time of a
    request. What is printed is the error on measurements that were left out of the fit; the file goes into a workload as
    `cost: {calibration: FILE}`.

    Kernel times are rows of `op`, a shape and `us` or `ms`: gemm m n k; attn_decode and attn_prefill batch seq heads
    kv_heads head_dim (heads per GPU); all_reduce ways bytes; with `dtype` and `kv_dtype`. A column `shape` may hold it
    all: 16x4096x4096.

    \b
    Examples:
      bench calibrate timings.csv --gpu h200-sxm --engine vllm
      bench calibrate --run loads.csv --workload chat.yaml
      bench calibrate timings.csv --run loads.csv --workload chat.yaml -o mine.toml
    """
    from experiments.calibrate import calibration_text, read_loads
    from reports.write_file import replace_text
    from sim.cost.build import check_engine
    from workloads.errors import InputError, OutputError, Place

    if not timings and run is None:
        raise InputError("nothing to calibrate from", hint="give files of kernel times, or --run and --workload")
    if (run is None) != (workload is None):
        raise InputError("--run and --workload belong together: the loads, and the file that describes the deployment")
    if out.exists() and not overwrite:
        raise InputError("is already there", place=Place(file=str(out)), hint="--overwrite replaces it")
    before = None
    if workload is not None:
        from experiments import runner

        resolved = runner.resolve(options.load(workload, settings, gpu=gpu))
        if resolved.gpu is None:
            raise InputError("a real backend has no cost model", place=Place(file=str(workload), key="backend.name"))
        gpu, engine = gpu or resolved.gpu.name, engine or check_engine(resolved.engine)
        before = resolved.workload.cost.build_arguments(resolved.workload.folder).get("constants")
    if gpu is None:
        raise InputError("which GPU?", hint="--gpu NAME, see `bench list gpus`")
    engine = engine or "vllm"
    refits, notes = _operators(timings or [], gpu, engine)
    serving = None
    if run is not None and workload is not None:
        given = [*(settings or ()), f"backend.gpu={gpu}"]
        serving = _served(workload, read_loads(run), given, calibration_text(gpu, engine, refits, None, before))
    text = calibration_text(gpu, engine, refits, serving, before)
    try:
        replace_text(out, text)
    except OSError as error:
        raise OutputError(f"cannot write {out}: {error.strerror}") from None
    if json:
        from experiments.cli.run import print_json

        print_json(
            {"file": str(out), "operators": [_plain(r) for r in refits], "serving": _serving(serving), "notes": notes}
        )
        return
    _show(refits, serving, notes, out)


def _served(workload: Path, loads: list[Load], settings: list[str], text: str) -> ServingFit:
    """Fits the deployment's times on top of the constants in `text`, those of the operators that were just refitted."""
    from tempfile import TemporaryDirectory

    from experiments.calibrate import calibrate_serving

    with TemporaryDirectory() as folder:
        constants = Path(folder) / "calibration.toml"
        constants.write_text(text, encoding="utf-8")
        return calibrate_serving(workload, loads, [*settings, f"cost.calibration={constants}"])


def _operators(timings: list[Path], gpu: str, engine: str) -> tuple[list[Refit], list[str]]:
    from sim.cost.calibrate import calibrate as refit
    from sim.cost.timings import read_timings
    from sim.hardware import load_gpu

    if not timings:
        return [], []
    device = load_gpu(gpu)
    return refit([t for path in timings for t in read_timings(path)], device, engine)


def _plain(refit: Refit) -> dict[str, Any]:
    return {
        "section": refit.section, "kind": refit.kind, "timings": refit.count, "carried": asdict(refit.carried),
        "left_out": asdict(refit.left_out), "taken": refit.taken, "constants": asdict(refit.constants),
    }  # fmt: skip


def _serving(found: ServingFit | None) -> dict[str, Any] | None:
    if found is None:
        return None
    both = {"before": found.before, "after": found.after}
    errors = {when: {"tpot": asdict(tpot), "ttft": asdict(ttft)} for when, (tpot, ttft) in both.items()}
    return {"host_ms": found.host_ms, "request_ms": found.request_ms, "held_out": found.held_out, **errors}


def _show(refits: list[Refit], serving: ServingFit | None, notes: list[str], out: Path) -> None:
    from rich.table import Table

    from experiments.cli.console import stdout

    console = stdout()
    if refits:
        table = Table("operator", "timings", "error before", "left out", "p95", "", box=None, pad_edge=False)
        for r in refits:
            table.add_row(
                f"{r.section} {r.kind}".strip(), str(r.count), f"{r.carried.median:.1%}", f"{r.left_out.median:.1%}",
                f"{r.left_out.p95:.0%}", "refitted" if r.taken else "kept: no better",
            )  # fmt: skip
        console.print(table)
        console.print("errors are medians of |log(predicted / measured)|; left out: on timings the fit had not seen")
    if serving is not None:
        where = f"{serving.held_out} loads held out" if serving.held_out else "the load that was fitted (no other)"
        console.print(f"host {serving.host_ms:+.3g} ms a step, front end {serving.request_ms:+.3g} ms a request")
        for name, before, after in zip(("TPOT", "TTFT"), serving.before, serving.after, strict=True):
            console.print(f"{name} error on {where}: {before.median:.1%} before, {after.median:.1%} after")
    for note in notes:
        typer.echo(f"note: {note}")
    console.print(f"written to {out}; use it as cost: {{calibration: {out.name}}}")
