"""`bench explain`: what a workload resolves to, and what a step of it costs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from sim.cost.base import OperatorCost, StepShape

GIB = 1 << 30


def explain(
    file: options.File,
    decode: Annotated[int, typer.Option(min=0, metavar="N", help="Sequences that decode in the step.")] = 32,
    context: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens each of them attends to.")] = 1024,
    prefill: Annotated[int, typer.Option(min=0, metavar="N", help="Prompt tokens computed in the step.")] = 0,
    backend: options.Backend = None,
    gpu: options.Gpu = None,
    settings: options.Set = None,
    json: options.Json = False,
) -> None:
    """Show settings, memory and a step's cost.

    Every setting with where its value is from, where the memory of a GPU goes, and one step operator by operator.
    Nothing is run.

    \b
    Examples:
      bench explain workload.yaml
      bench explain workload.yaml --decode 256 --context 2000
      bench explain workload.yaml --prefill 8192 --decode 0 --set engine.quantization=fp8
    """
    from experiments import runner
    from sim.cost.base import StepShape
    from workloads.errors import InputError

    if not decode and not prefill:
        raise InputError("a step needs --decode or --prefill")
    resolved = runner.resolve(options.load(file, settings, backend=backend, gpu=gpu))
    chunks = ((prefill, 0),) if prefill else ()
    shape = StepShape(decode, decode * context, chunks, sampled=decode + len(chunks))
    costs = resolved.cost.explain(shape)
    if json:
        from experiments.cli.run import print_json

        print_json(
            {
                "config": resolved.config,
                "memory": asdict(resolved.budget) if resolved.budget else None,
                "step": {"shape": shape._asdict(), "seconds": resolved.cost.step_seconds(shape)},
                "operators": [asdict(cost) for cost in costs],
                "warnings": resolved.warnings,
            }
        )
        return
    from experiments.cli.console import stdout

    console = stdout()
    _settings(console, resolved.config)
    _memory(console, resolved.budget)
    _step(console, shape, resolved.cost.step_seconds(shape), costs)
    for warning in resolved.warnings:
        typer.echo(f"warning: {warning}")


def _settings(console: Console, config: dict) -> None:
    from rich.table import Table
    from rich.text import Text

    from reports.fingerprint import leaves
    from reports.wording import setting

    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for key, value, source in leaves(config):
        if value is not None:
            table.add_row(Text(key), Text(setting(value, 60)), Text(source, "bold" if source == "user" else "dim"))
    console.print(table)


def _memory(console: Console, budget: Any) -> None:
    if budget is None:
        return
    from rich.table import Table

    table = Table("memory of one GPU", "GiB", box=None, pad_edge=False)
    for title, size in (
        ("weights", budget.weight_bytes),
        ("activations", budget.activation_bytes),
        ("runtime", budget.overhead_bytes),
        (f"KV pool, {budget.kv_tokens:,} tokens", budget.kv_bytes),
        ("left over", budget.unused_bytes),
        ("total", budget.total_bytes),
    ):
        table.add_row(title, f"{size / GIB:.2f}")
    console.print("")
    console.print(table)


def _step(console: Console, shape: StepShape, seconds: float, costs: list[OperatorCost]) -> None:
    from rich.table import Table
    from rich.text import Text

    parts = [f"{shape.decode_rows} sequences decode over {shape.decode_context:,} tokens"] if shape.decode_rows else []
    parts += [f"{new:,} prompt tokens are computed" for new, _ in shape.chunks]
    console.print(f"\na step in which {' and '.join(parts)}: {seconds * 1e3:.3f} ms")
    table = Table(box=None, pad_edge=False)
    for title in ("operator", "ms", "share", "times", "GFLOP", "MB", "bound by", "source"):
        table.add_column(title, justify="left" if title in ("operator", "bound by") else "right")
    sources: dict[str, int] = {}
    for cost in sorted(costs, key=lambda cost: -cost.seconds):
        table.add_row(
            cost.name,
            f"{cost.seconds * 1e3:.4f}",
            f"{cost.seconds / seconds:.1%}" if seconds else "",
            str(cost.count),
            f"{cost.flops / 1e9:,.1f}",
            f"{cost.bytes / 1e6:,.1f}",
            cost.bound,
            Text(f"[{sources.setdefault(cost.source, len(sources) + 1)}]"),
            style="" if cost.seconds else "dim",
        )
    console.print(table)
    console.print("\nwhere the figures are from")
    for source, number in sources.items():
        console.print(Text(f"[{number}] {source}"), soft_wrap=not console.is_terminal)
