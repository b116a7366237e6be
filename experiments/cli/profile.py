"""`bench profile`: time a model's operators on this machine, for the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli import options
from experiments.cli.progress import Progress


def profile(
    model: Annotated[str, typer.Option(metavar="DIR", show_default=False, help="Folder, hub id or config.json.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", show_default=False, help="Folder to write.")],
    backend: Annotated[str, typer.Option(metavar="NAME", help="torch or triton.")] = "torch",
    load: Annotated[str, typer.Option(metavar="auto|dummy", help="dummy makes weights up.")] = "auto",
    dtype: Annotated[str, typer.Option(metavar="NAME", help="bf16, fp16, fp32 or auto.")] = "auto",
    quantization: Annotated[
        str, typer.Option(metavar="NAME", help="Of weights that are made up; else the checkpoint's.")
    ] = "auto",
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", metavar="NAME", help="Of keys and values: auto, fp8-e4m3, fp8-e5m2, int8.")
    ] = "auto",
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda or auto.")] = "auto",
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Most tokens of a step.")] = 512,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Most sequences that decode together.")] = 16,
    length: Annotated[int, typer.Option(min=16, metavar="N", help="Longest sequence.")] = 1024,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time every operator of a model here, and whole steps.

    The folder holds a table of kernel times, this machine as a device, and the host time of a step: with them the
    simulator predicts what the real engine does here. The lines to put into a workload are printed.

    \b
    Examples:
      bench profile --model models/smollm2 -o table
      bench profile --model config.json --load dummy --tokens 2048 --batch 64 -o table
      bench profile --model config.json --load dummy --quantization awq-int4 -o table-w4
      bench profile --model config.json --load dummy --quantization fp8 --kv-dtype fp8 -o table-fp8
    """
    from backends.extra import need_torch
    from workloads.folders import check_replaceable

    need_torch("bench profile")
    kv = _kv(kv_dtype)
    from experiments.profile import KERNELS

    check_replaceable(out, KERNELS, overwrite=overwrite)
    from backends.torch.operators import make_operators
    from backends.torch.profile import Grid, time_operators, time_steps
    from backends.weights.device import pick_device
    from backends.weights.load import load_model
    from backends.weights.source import find_source
    from experiments.profile import fit, write_profile

    where = pick_device(device)
    operators = make_operators(backend, where)
    loaded = load_model(
        find_source(model, load), device=where, dtype=dtype, load=load, operators=operators, quantization=quantization
    )
    length = min(length, loaded.architecture.spec.max_position)
    grid = Grid.up_to(tokens, batch, length)
    with Progress("timing operators", enabled=not (json or quiet)) as progress:
        timings = time_operators(loaded, grid, kv, lambda done, total: progress(done, total, "kinds and shapes"))
    prompts = tuple(sorted({16, min(64, length), min(256, length, max(tokens // 2, 16))}))
    steps = time_steps(loaded, tuple(size for size in grid.batches if size <= 16), prompts, kv=kv)
    found = fit(loaded, timings, steps, kv)
    write_profile(found, loaded, out, overwrite=overwrite)
    told = {
        "folder": str(out), "device": found.gpu.name, "timings": len(timings), "steps": len(steps),
        "median_step_error": found.error, "flops_per_s": found.gpu.bf16, "bytes_per_s": found.gpu.bandwidth,
        "host_ms_per_step": found.constants.host.exposed_ms["1"],
    }  # fmt: skip
    if json:
        from experiments.cli.run import print_json

        print_json(told)
    elif not quiet:
        typer.echo(
            f"{out}: {len(timings)} timings of operators and {len(steps)} of steps on {found.gpu.name}; "
            f"{found.gpu.bf16 / 1e9:,.1f} GFLOP/s and {found.gpu.bandwidth / 1e9:,.1f} GB/s at best, "
            f"{told['host_ms_per_step']:.2f} ms a step beside the operators (median error of steps {found.error:.1%})"
        )
        typer.echo(f"backend: {{name: sim, gpu: {out}/gpu.toml}}")
        typer.echo(f"cost: {{tables: [{out}/kernels.csv], calibration: {out}/calibration.toml}}")


def _kv(name: str) -> str:
    """A KV dtype that the engine runs, by its own name.

    Raises:
        InputError: there is none, or it can only be simulated.
    """
    from backends.torch.pool import STORED
    from sim.quantization.kv import load_kv_mode
    from workloads.errors import InputError, Place

    if name.lower() == "auto":
        return "auto"
    mode = load_kv_mode(name)
    if mode.name not in STORED:
        raise InputError(
            f"KV in {mode.name} can only be simulated", place=Place(key="--kv-dtype"),
            hint=f"these run: auto, {', '.join(STORED)}",
        )  # fmt: skip
    return mode.name
