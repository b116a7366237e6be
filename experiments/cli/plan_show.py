"""How a plan looks on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.planner.demand import Demand
from experiments.planner.deployment import deployment_of
from experiments.planner.evaluate import Evaluation
from experiments.planner.plan import Plan, holds_surely
from experiments.planner.prices import dollars
from experiments.planner.quantization import BATCHES, Guide
from experiments.planner.question import Question
from experiments.planner.report import usd_per_million
from experiments.planner.search import ALONE, BOUND, BUDGET, FAULT, MEMORY, SIMULATED, Found
from experiments.planner.slo import told
from reports.wording import clean, number, seconds

MOST_ROWS = 12
_WHY = {
    MEMORY: "do not fit into memory", ALONE: "too slow even for a lone request", BOUND: "need too much by arithmetic",
    BUDGET: "dearer by simulation", SIMULATED: "miss the SLO in simulation", FAULT: "impossible",
}  # fmt: skip


def print_plan(plan: Plan, guide: Guide | None, *, all: bool = False, to_stderr: bool = False) -> None:
    """The answer, the search, the guide to quantization."""
    console = _console(to_stderr)
    question, demand = plan.question, plan.question.demand()
    load = _load(demand)
    for label, text in (
        ("model", _model(question)),
        ("traffic", f"{load}, {demand.inputs:,.0f} tokens in and {demand.outputs:,.0f} out in the mean, "
                    f"at most {demand.longest:,}"),
        ("slo", told(question.limits)),
        ("within", f"{question.max_gpus} GPUs of {', '.join(gpu.name for gpu in question.gpus)}"),
    ):  # fmt: skip
        console.print(Text(f"{label:<9}", "dim") + Text(clean(text, 400)), soft_wrap=True)
    console.print()
    for line in _answer(plan):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(_candidates(plan, all))
    for text in _refusals(plan, all):
        console.print(Text(text, "dim"), soft_wrap=True)
    if guide is not None:
        console.print()
        for piece in _guide(guide):
            console.print(piece, soft_wrap=isinstance(piece, Text))
    for note in (*question.notes, *demand.notes):
        console.print(Text(f"note: {clean(note, 500)}", "dim"), soft_wrap=True)


def _model(question: Question) -> str:
    """The model, and what was asked for where that is a fine-tune of it."""
    name, asked = question.model.name, question.workload.model
    same = asked.lower() in (name.lower(), question.model.hf_id.lower())
    return name if same or Path(asked).exists() else f"{asked} (the shape of {name})"


def _load(demand: Demand) -> str:
    """`30 requests/s (3,641 requests in 121.3 s; 6.07/s before --rate)`: what the rate was counted from."""
    if not demand.rate:
        return f"{demand.concurrency} clients"
    arrival = demand.traffic.arrival[demand.traffic.parent < 0]
    span = f"{len(demand.traffic):,} requests in {seconds(float(np.ptp(arrival)))}"
    before = f"; {number(demand.own)}/s before --rate" if abs(demand.own / demand.rate - 1) > 1e-9 else ""
    return f"{number(demand.rate)} requests/s ({span}{before})"


def _console(to_stderr: bool) -> Console:
    if not to_stderr:
        from experiments.cli.console import stdout

        return stdout()
    import sys

    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 120)


def _answer(plan: Plan) -> Iterator[Text]:
    """What was found, in a few lines; or what came closest."""
    best = plan.best
    if best is None:
        yield Text("Nothing meets the SLO.", "bold red")
        if plan.closest is not None:
            yield Text(f"closest: {_name(plan.closest)}" + (f": {plan.closest.reason}" if plan.closest.reason else ""))
        for sentence in plan.advice:
            yield Text(f"  {sentence}")
        return
    yield Text(f"{best.replicas} x {_name(best)}", "bold green") + Text(f"  =  {_bill(plan, best)}")
    for line in _figures(plan, best):
        yield Text(f"  {line}")
    yield Text(f"  binds: {plan.binds}" + (_why_not_fewer(best.below) if best.below else ""))
    yield from _surety(plan, best)
    if weights := deployment_of(plan, best).about_weights():
        yield Text(f"  {weights}")
    if plan.roomier:
        yield Text(
            f"  for the same: {plan.roomier.replicas} x {_name(plan.roomier)} leaves {1 - plan.roomier.at.worst:.0%}"
        )
    if plan.plain:
        yield Text(f"  without quantization: {plan.plain.replicas} x {_name(plan.plain)}  =  {_bill(plan, plan.plain)}")
    for each in plan.unpriced:
        yield Text(f"  no price known: {each.replicas} x {_name(each)}  =  {each.gpus} GPU{'s' * (each.gpus > 1)}")


def _surety(plan: Plan, best: Found) -> Iterator[Text]:
    """Whether the margin is beyond the model's own error."""
    if not best.ranges:
        yield Text("  the cost model states no error here: how sure this is cannot be told", "yellow")
    elif holds_surely(best, plan.question):
        yield Text("  the whole 80 % range of every figure is within the SLO", "green")
    elif plan.sure:
        yield Text("  the margin is within the cost model's error: the 80 % range reaches beyond the SLO", "yellow")
        yield Text(f"  to be sure: {plan.sure.replicas} x {_name(plan.sure)}  =  {_bill(plan, plan.sure)}", "yellow")
    else:
        yield Text(
            "  the margin is within the cost model's error, and no number of replicas allowed takes it out: measure "
            "(bench calibrate) before you buy", "yellow",
        )  # fmt: skip


def _figures(plan: Plan, found: Found) -> Iterator[str]:
    """Every limit: the figure, its range, what is allowed."""
    for limit, ratio in zip(plan.question.limits, found.at.ratios, strict=True):
        ends = found.ranges.get(limit.key)
        within = f" (80 %: {number(ends[0])} - {number(ends[1])})" if ends else ""
        value = number(found.at.figures[limit.key], "ms")
        yield f"{limit.name}: {value}{within} of {number(limit.seconds * 1e3, 'ms')} allowed, {1 - ratio:.0%} left"


def _why_not_fewer(below: Evaluation) -> str:
    return f"; with {below.replicas} replica{'s' * (below.replicas > 1)}: {below.reason}"


def _name(found: Found) -> str:
    return clean(found.candidate.describe(found.weights), 200)


def _bill(plan: Plan, found: Found) -> str:
    """`5 GPUs, $12.50/h, $0.31 a million output tokens`."""
    parts = [f"{found.gpus} GPU{'s' * (found.gpus != 1)}"]
    if found.usd_per_hour:
        parts.append(f"{dollars(found.usd_per_hour)}/h")
    each = usd_per_million(plan, found)
    if each:
        parts.append(f"${each['output']:.3g} a million output tokens (${each['total']:.3g} with prompts)")
    return ", ".join(parts)


def _candidates(plan: Plan, all: bool) -> Table:
    """The search: those that meet the SLO first, then those that came far."""
    title = Text(f"{len(plan.found)} candidates, {plan.simulations} simulations", "bold")
    table = Table(title=title, title_justify="left")
    for head in ("a replica", "replicas", "GPUs", "$/h", "SLO left", "verdict"):
        table.add_column(head, justify="left" if head in ("a replica", "verdict") else "right", overflow="fold")
    found = sorted(plan.found, key=lambda each: _place(plan, each))
    for each in found if all else [each for each in found if each.meets or not each.candidate.knobs][:MOST_ROWS]:
        left = f"{1 - each.at.worst:.0%}" if each.at and each.at.worst < 10 else ""
        verdict = (
            Text("meets", "green") + Text(", verified" * each.verified) if each.meets else Text(clean(each.reason, 300))
        )
        price = dollars(each.usd_per_hour)[1:] if each.usd_per_hour else ""
        counts = (str(each.replicas), str(each.gpus)) if each.meets else ("", "")
        table.add_row(Text(_name(each)), *counts, price, left, verdict)
    return table


def _place(plan: Plan, found: Found) -> tuple:
    """Those that meet the SLO first, those with a price before those without; then those that came far."""
    if found.meets:
        return (0, bool(plan.question.prices) and found.usd_per_hour is None, found.cost)
    order = (SIMULATED, BUDGET, BOUND, ALONE, MEMORY, FAULT)
    return (1 + order.index(found.stage), False, (found.at.worst if found.at else 0.0,))


def _refusals(plan: Plan, all: bool) -> Iterator[str]:
    """How many were refused, and why, in a line."""
    counts = Counter(found.stage for found in plan.found if not found.meets)
    if counts:
        yield "refused: " + ", ".join(f"{count} {_WHY[stage]}" for stage, count in counts.most_common())
    if not all and len(plan.found) > MOST_ROWS:
        yield f"{len(plan.found) - MOST_ROWS} more rows with --all"


def _guide(guide: Guide) -> Iterator[Text | Table]:
    split = f" TP{guide.tensor}" if guide.tensor > 1 else ""
    title = Text(f"Weights on {guide.gpu}{split}: tokens/s of a steady batch, against the model's own", "bold")
    table = Table(title=title, title_justify="left")
    table.add_column("weights")
    table.add_column("GiB a GPU", justify="right")
    table.add_column("KV tokens", justify="right")
    for batch in BATCHES:
        table.add_column(f"batch {batch}", justify="right")
    known = any(choice.quality for choice in guide.choices)
    if known:
        table.add_column("quality")
    for choice in guide.choices:
        speeds = [f"{choice.speed[b]:.2f}x" if b in choice.speed else "" for b in BATCHES]
        room = (
            ("does not fit", "") if choice.problem else (f"{choice.weight_bytes / 2**30:.1f}", f"{choice.kv_tokens:,}")
        )
        table.add_row(choice.name, *room, *speeds, *([choice.quality] if known else []))
    yield table
    for sentence in guide.advice:
        yield Text(sentence)
