"""`bench explain`: what a workload resolves to, and what a step of it costs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.resolve import Resolved
    from sim.cost.base import OperatorCost, StepShape

GIB = 1 << 30
_PROMPT, _ROWS = 2048, 32  # tokens of the prefill step, sequences of the decode step, where none are asked for


def explain(
    file: options.File,
    decode: Annotated[int | None, typer.Option(min=0, metavar="N", help="Sequences that decode in the step.")] = None,
    context: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens each of them attends to.")] = 1024,
    prefill: Annotated[int | None, typer.Option(min=0, metavar="N", help="Prompt tokens computed in it.")] = None,
    backend: options.Backend = None,
    gpu: options.Gpu = None,
    settings: options.Set = None,
    json: options.Json = False,
) -> None:
    """Show settings, memory and what steps cost.

    Every setting with where its value is from, where the memory of a GPU goes, and one prefill step and one decode
    step operator by operator; or the one step that --decode and --prefill describe. Nothing is run.

    \b
    Examples:
      bench explain workload.yaml
      bench explain workload.yaml --decode 256 --context 2000
      bench explain workload.yaml --prefill 8192 --decode 0 --set engine.quantization=fp8
    """
    from experiments import runner
    from experiments.registries import WALL

    shapes = _shapes(decode, context, prefill)  # before anything is read: what is wrong with them is told at once
    workload = options.load(file, settings, backend=backend, gpu=gpu)
    if workload.backend.name in WALL:
        raise workload.error(
            "backend.name", f"steps on backend {workload.backend.name} have no price", "add --backend sim --gpu NAME"
        )
    resolved = runner.resolve(workload)
    if resolved.engine.speculation.active:
        shapes = [_drafting(shape, resolved.engine.speculation.num_speculative_tokens) for shape in shapes]
    parts = _parts(resolved, shapes, decode is None and prefill is None)
    if json:
        from experiments.cli.run import print_json

        print_json(
            {
                "config": resolved.config,
                **(_plain(*parts[0][1:]) if len(parts) == 1 else {name: _plain(*each) for name, *each in parts}),
                **({"transfer": asdict(resolved.pools.path)} if resolved.pools else {}),
                "uncertainty": getattr(resolved.cost, "uncertainty", {}),
                "provenance": list(getattr(resolved.cost, "provenance", ())),
                "warnings": resolved.warnings,
            }
        )
        return
    from rich.text import Text

    from experiments.cli.console import stdout

    console = stdout()
    _settings(console, resolved.config)
    sources: dict[str, int] = {}
    for name, part, steps in parts:
        if name:
            console.print(f"\n[bold]an engine for {name}[/]")
        _memory(console, part.budget)
        for shape in steps:
            cost = part.cost
            _step(console, shape, cost.step_seconds(shape), cost.explain(shape), sources, _uncertainty(cost, shape))
    if resolved.pools:
        _transfer(console, resolved.pools.path)
    _front_end(console, resolved.cost, sources)
    _device(console, resolved.gpu, sources)
    console.print("\nwhere the figures are from")
    for source, number in sources.items():
        console.print(Text(f"[{number}] {source}"), soft_wrap=not console.is_terminal)
    for warning in resolved.warnings:
        typer.echo(f"warning: {warning}")


def _shapes(decode: int | None, context: int, prefill: int | None) -> list[StepShape]:
    """The step that was asked for, or a prefill step and a decode step."""
    from sim.cost.base import StepShape
    from workloads.errors import InputError

    if decode is None and prefill is None:
        return [StepShape(chunks=((_PROMPT, 0),), sampled=1), StepShape(_ROWS, _ROWS * context, sampled=_ROWS)]
    rows, tokens = decode or 0, prefill or 0
    if not rows and not tokens:
        raise InputError("a step needs --decode or --prefill")
    chunks = ((tokens, 0),) if tokens else ()
    return [StepShape(rows, rows * context, chunks, sampled=rows + len(chunks))]


def _parts(resolved: Resolved, shapes: list[StepShape], usual: bool) -> list[tuple[str, Resolved, list[StepShape]]]:
    """(name, engine, steps to show) of every kind of engine; of two kinds each has its `usual` step, or those asked for."""
    pools = resolved.pools
    if pools is None:
        return [("", resolved, shapes)]
    own = {"prefill": shapes[:1], "decode": shapes[1:]} if usual else dict.fromkeys(("prefill", "decode"), shapes)
    return [(name, getattr(pools, name), steps) for name, steps in own.items()]


def _plain(part: Resolved, shapes: list[StepShape]) -> dict[str, Any]:
    """Memory of an engine and what its steps cost, for machines."""
    cost = part.cost
    steps = [
        {
            "shape": shape._asdict(),
            "seconds": cost.step_seconds(shape),
            "uncertainty": _uncertainty(cost, shape),
            "operators": [asdict(each) for each in cost.explain(shape)],
        }
        for shape in shapes
    ]
    return {"memory": asdict(part.budget) if part.budget else None, "steps": steps}


def _transfer(console: Console, path: Any) -> None:
    """How long KV takes from one engine to another."""
    size = _PROMPT * path.bytes_per_token
    console.print(
        f"\nKV of {_PROMPT:,} tokens from prefill to decode: {size / 1e6:,.1f} MB, {path.seconds(_PROMPT) * 1e3:.3f} ms at "
        f"{path.rate / 1e9:,.1f} GB/s, on links that nobody else uses"
    )


def _drafting(shape: StepShape, drafts: int) -> StepShape:
    """The same step with so many drafts of every sequence that decodes."""
    verified = shape.decode_rows * drafts
    return shape._replace(
        decode_context=shape.decode_context + verified, sampled=shape.sampled + verified, drafts=verified, passes=drafts
    )


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
        ("weights", budget.weight_bytes - budget.draft_bytes),
        *((("weights of the drafter", budget.draft_bytes),) if budget.draft_bytes else ()),
        ("activations", budget.activation_bytes),
        ("runtime", budget.overhead_bytes),
        (f"KV pool, {budget.kv_tokens:,} tokens", budget.kv_bytes),
        *(
            [(f"recurrent states, of {budget.state_slots:,} sequences", budget.state_bytes)]
            if budget.state_bytes
            else []
        ),
        ("left over", budget.unused_bytes),
        ("total", budget.total_bytes),
    ):
        table.add_row(title, f"{size / GIB:.2f}")
    console.print("")
    console.print(table)


def _uncertainty(cost: Any, shape: StepShape) -> float:
    """Relative standard deviation of a step's time; 0 where the cost model states none."""
    return cost.step_uncertainty(shape) if hasattr(cost, "step_uncertainty") else 0.0


def _front_end(console: Console, cost: Any, sources: dict[str, int]) -> None:
    """Time outside the steps."""
    front = getattr(cost, "front_end", None)
    if front is None:
        return
    number = sources.setdefault(front.source, len(sources) + 1)
    console.print(
        f"\noutside the steps: {(front.base + front.request_work) * 1e3:g} ms a request and {front.input_token * 1e6:g} us a "
        f"prompt token before the engine, {front.token_seconds * 1e3:g} ms from a step to the client \\[{number}]"
    )
    if front.output_work:
        console.print(f"the front end hands out at most {1 / front.output_work:,.0f} tokens/s")


def _device(console: Console, gpu: Any, sources: dict[str, int]) -> None:
    """The data sheet that shares and bytes are of."""
    peaks = ((mode, gpu.flops(mode)) for mode in ("bf16", "fp8", "int8", "fp4"))
    rates = ", ".join(f"{flops / 1e12:,.0f} TFLOP/s {mode}" for mode, flops in peaks if flops)
    number = sources.setdefault(gpu.source, len(sources) + 1)
    link = f", {gpu.link_bandwidth / 1e9:,.0f} GB/s {gpu.link} each way" if gpu.link_bandwidth else ""
    console.print(f"of {gpu.name}: {gpu.bandwidth / 1e9:,.0f} GB/s memory, {rates}{link} \\[{number}]")


def _step(
    console: Console, shape: StepShape, seconds: float, costs: list[OperatorCost], sources: dict[str, int],
    uncertainty: float,
) -> None:  # fmt: skip
    from rich.table import Table
    from rich.text import Text

    parts = [f"{shape.decode_rows} sequences decode over {shape.decode_context:,} tokens"] if shape.decode_rows else []
    if shape.drafts:
        parts.append(f"verify {shape.drafts // shape.decode_rows} drafts each")
    parts += [f"{new:,} prompt tokens are computed" for new, _ in shape.chunks]
    console.print(
        f"\na step in which {' and '.join(parts)}: {seconds * 1e3:.3f} ms"
        + (f", ± {uncertainty:.0%} (standard deviation) by the errors of its operators" if uncertainty else "")
    )
    table = Table(box=None, pad_edge=False)
    for title in ("operator", "ms", "share", "times", "GFLOP", "MB", "bound by", "source"):
        table.add_column(title, justify="left" if title in ("operator", "bound by") else "right")
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
