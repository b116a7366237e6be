"""Where nothing meets the SLO: what came closest, and what would have to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil

from experiments.planner.question import Question
from experiments.planner.search import ALONE, BOUND, MEMORY, Found, Task, search

BEYOND = 8
"""How many times the GPUs that are allowed are looked at, to say how many would do."""
ROOM = 1.05
"""Limits are said to need this much more than what was found."""


def advise(
    question: Question,
    found: Sequence[Found],
    longest: int,
    run: Callable[[Callable[[Task], Found], Sequence[Task]], Iterator[Found]],
) -> tuple[Found | None, list[str]]:
    """The closest candidate and sentences of advice.

    Args:
        run: runs tasks, as the search does.
    """
    simulated = [each for each in found if each.at is not None]
    if simulated:
        closest = min(simulated, key=lambda each: (each.at.overloaded, each.at.worst, each.candidate.gpus))
        return closest, [
            *_more(question, closest, longest, run),
            *_looser(question, closest),
            *other_advice(question, found),
        ]
    beyond = [each for each in found if each.stage == BOUND]
    if beyond:
        closest = min(beyond, key=lambda each: each.bounds.least * each.candidate.gpus)
        told = _more(question, closest, longest, run)
        most = question.max_gpus // closest.candidate.gpus
        if most:
            (closest,) = run(search, [Task(question, closest.candidate, longest, most, _allowed(question))])
            told += _looser(question, closest)
        return closest, [*told, *other_advice(question, found)]
    alone = [each for each in found if each.stage == ALONE]
    if alone:
        closest = min(alone, key=lambda each: each.bounds.excess)
        told = [
            f"no number of GPUs will do: {closest.reason}",
            f"that limit would have to be more than {closest.bounds.excess:.3g} times what it is, or the prompts or the model "
            "smaller",
        ]
        return closest, [*told, *other_advice(question, found)]
    smallest = [each for each in found if each.stage == MEMORY]
    told = [f"nothing fits into memory: {smallest[0].reason}"] if smallest else []
    return (smallest[0] if smallest else None), [*told, "larger GPUs, more of them (--max-gpus), or smaller weights"]


def _allowed(question: Question) -> str:
    return f"all that {question.max_gpus} GPUs allow"


def _more(question: Question, closest: Found, longest: int, run: Callable) -> list[str]:
    """How many GPUs would do, if more were allowed."""
    most = BEYOND * question.max_gpus // closest.candidate.gpus
    (after,) = run(search, [Task(question, closest.candidate, longest, most, "")])
    if after.meets:
        gpus = after.replicas * closest.candidate.gpus
        return [
            f"with --max-gpus {gpus} it would do: {after.replicas} replicas of {closest.candidate.describe(closest.weights)}"
        ]
    return [f"more GPUs alone do not help: even {most * closest.candidate.gpus} of them miss it ({after.at.reason})"]


def _looser(question: Question, closest: Found) -> list[str]:
    """Limits as they would have to be for the closest."""
    if closest.at.overloaded:
        return [f"it binds at {closest.at.binds}"]
    loose = []
    for limit, ratio in zip(question.limits, closest.at.ratios, strict=True):
        if 1 < ratio < float("inf"):
            loose.append(f"{limit.metric}_{limit.stat}={ceil(limit.seconds * 1e3 * ratio * ROOM):g}ms")
    return [f"or a looser SLO: {', '.join(loose)} (it binds at {closest.at.binds})"] if loose else []


def other_advice(question: Question, found: Sequence[Found]) -> list[str]:
    """What was not looked at."""
    told = []
    fixed, native = question.workload.engine.quantization, question.model.native_quantization
    if fixed is not None:
        told.append(f"other weights were not looked at: engine.quantization is fixed as {fixed}")
    elif native and question.quantizations == ("auto",):
        told.append(f"other weights than the model's own {native} were not looked at: --quantization names some")
    elif not native and all(each.candidate.quantization == "auto" for each in found):
        told.append("quantized weights were not looked at: --quantization auto")
    kinds = {each.candidate.gpu for each in found}
    from experiments.planner.question import DEFAULT_GPUS

    left = [name for name in DEFAULT_GPUS if name not in kinds]
    if left:
        told.append(f"other GPUs were not looked at: --gpus {','.join(sorted(kinds))},{','.join(left)}")
    return told
