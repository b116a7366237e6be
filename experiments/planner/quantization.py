"""Which weights suit which batch: a guide from the cost model, with what is known of each mode's quality.

For every mode of weights: what it takes of a GPU's memory, how many tokens of KV are left, and how fast a steady batch of the
plan's traffic runs, against what the model ships in. Weight-only modes read fewer bytes and so win where a step reads
weights; they are multiplied in 16 bit, and so lose to FP8 where a step computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.planner.bounds import steady_step
from experiments.planner.candidates import Candidate
from experiments.planner.quality import Known
from experiments.planner.question import Question
from experiments.planner.search import resolved
from sim.hardware import load_gpu
from sim.quantization import load_weight_mode
from workloads.errors import InputError

BATCHES = (1, 4, 16, 64, 256)
MODES = ("auto", "int8-w8a16", "int8-w8a8", "awq-int4", "fp8", "nvfp4")
_SAME = 1.02  # faster by less than this is as fast


@dataclass(frozen=True, slots=True)
class Choice:
    """One mode of weights on one kind of GPU.

    Attributes:
        name: of the mode.   weight_bytes: of a GPU.   kv_tokens: that fit beside them in a replica.
        speed: batch → tokens a second over those of the model's own weights; batches that do not fit are missing.
        problem: why it cannot be; "" where it can.   quality: what is known of it; "" where nothing is.
    """

    name: str
    weight_bytes: int
    kv_tokens: int
    speed: dict[int, float]
    problem: str = ""
    quality: str = ""


@dataclass(frozen=True, slots=True)
class Guide:
    """All modes on a kind of GPU.

    Attributes:
        gpu, tensor: of a replica.   choices: the modes.   advice: sentences that follow from them.
    """

    gpu: str
    tensor: int
    choices: tuple[Choice, ...]
    advice: tuple[str, ...]


def make_guide(question: Question, candidate: Candidate, longest: int, known: Known | None = None) -> Guide:
    """The guide for the GPUs of a candidate.

    Args:
        known: what was measured of the modes' quality.
    """
    quality = known.modes if known else {}
    gpu = load_gpu(candidate.gpu)
    base = _seconds(question, _with(candidate, "auto"), longest)
    choices: list[Choice] = []
    for name in MODES:
        each = _with(candidate, name)
        mode = load_weight_mode(name) if name != "auto" else None
        if mode is not None and mode.compute in ("fp8", "fp4", "int8") and gpu.flops(mode.compute) <= 0:
            continue
        try:
            engine = resolved(question, each, longest)
        except InputError as error:
            choices.append(Choice(name, 0, 0, {}, error.message, quality.get(name, "")))
            continue
        own = _seconds(question, each, longest)
        speed = {batch: base[batch] / own[batch] for batch in BATCHES if batch in base and batch in own}
        shown = engine.budget.weights
        room = engine.budget
        choices.append(Choice(shown, room.weight_bytes, room.kv_tokens, speed, "", quality.get(shown, "")))
    advice = _advice(choices)
    if known:
        advice.append(
            f"quality was measured on {known.model}" + (f" ({known.text})" if known.text else "") + ": others differ"
        )
    return Guide(candidate.gpu, candidate.tensor, tuple(choices), tuple(advice))


def _with(candidate: Candidate, name: str) -> Candidate:
    return replace(candidate, quantization=name, kv_dtype="auto", knobs=())


def _seconds(question: Question, candidate: Candidate, longest: int) -> dict[int, float]:
    """Batch → seconds of its steady step; batches that fit into memory only."""
    try:
        engine = resolved(question, candidate, longest)
    except InputError:
        return {}
    demand = question.demand()
    context = demand.inputs + demand.outputs / 2
    return {batch: steady_step(engine, batch, demand) for batch in BATCHES if batch <= engine.budget.batch(context)}


def _advice(choices: Sequence[Choice]) -> list[str]:
    """Which mode is fastest at which batch, and which leaves most room."""
    able = [choice for choice in choices if not choice.problem]
    if not able:
        return ["no mode fits into this GPU's memory; more GPUs, or larger ones"]
    told, ranges = [], []
    for batch in BATCHES:
        there = [choice for choice in able if batch in choice.speed]
        if not there:
            continue
        best = max(there, key=lambda choice: choice.speed[batch])
        plain = next((choice for choice in there if choice is able[0]), None)
        name = plain.name if plain and best.speed[batch] < _SAME * plain.speed[batch] else best.name
        if ranges and ranges[-1][0] == name:
            ranges[-1][2] = batch
        else:
            ranges.append([name, batch, batch])
    for name, low, high in ranges:
        where = f"batch {low}" if low == high else f"batches {low} to {high}"
        told.append(f"{where}: {name} is fastest")
    small = min(able, key=lambda choice: choice.weight_bytes)
    rest = choices[0]
    if rest.problem:
        told.append(f"tight memory: {rest.name} does not fit; {small.name} leaves {small.kv_tokens:,} tokens of KV")
    elif small.kv_tokens > 1.05 * rest.kv_tokens:
        told.append(f"tight memory: {small.name} leaves {small.kv_tokens / rest.kv_tokens:.2g} times the tokens of KV")
    if small.quality:
        told.append(f"quality of {small.name}: {small.quality}")
    elif small.name != rest.name:
        told.append(
            f"quality of {small.name} is not measured here: `bench quality` on your model, before you deploy it"
        )
    return told
