"""Why a request cannot be served, in words that say what to change."""

from __future__ import annotations

from sim.engine.sequence import Sequence
from sim.engine.state import EngineState
from workloads.errors import TwinserveError


class StalledError(TwinserveError):
    """The engine goes in circles: sequences are preempted and admitted again, and none of them gets a token."""


def no_room(tokens: int, max_len: int) -> str:
    """The prompt fills the context."""
    return f"prompt of {tokens:,} tokens leaves no room for an answer in {max_len:,} (max_model_len)"


def prompt_too_long(tokens: int, budget: int) -> str:
    """The prompt is longer than a step, and the scheduler does not cut prompts."""
    return f"prompt of {tokens:,} tokens exceeds max_num_batched_tokens {budget:,}, and this scheduler does not cut prompts"


def several_samples(count: int) -> str:
    """Samples are split off where the prompt was computed, and that is elsewhere."""
    return f"asks for {count} samples of its answer; with prefill apart from decode one is simulated (n: 1)"


def too_much(seq: Sequence, samples: int, state: EngineState, reserves: bool) -> str | None:
    """More samples than seats, or more KV than can ever be reserved for it; None if neither."""
    config, allocator = state.config, state.allocator
    if samples > config.max_num_seqs:
        return f"asks for {samples} samples; max_num_seqs is {config.max_num_seqs}"
    need = samples * allocator.footprint(seq.limit)
    if (reserves or config.victim == "none") and need > allocator.capacity:
        whose = f"its {samples} samples" if samples > 1 else "its answer"
        return f"{need:,} tokens of KV are to be reserved for {whose}; the pool has {allocator.capacity:,}"
    return None


def never_admitted(seq: Sequence, state: EngineState) -> str:
    """Nothing runs, and still the scheduler leaves it waiting."""
    config, allocator = state.config, state.allocator
    return (
        f"never admitted although nothing runs: scheduler {config.name!r} with gate {config.gate!r} left it waiting with "
        f"{allocator.available:,} tokens of KV free; it needs {allocator.footprint(seq.known):,} now and "
        f"{allocator.footprint(seq.limit):,} at its limit"
    )


def no_work(seq: Sequence, state: EngineState) -> str:
    """It holds memory, nothing is in flight, and the scheduler plans nothing."""
    what = "its next token" if seq.cohort is not None else "its prompt"
    return (
        f"given no work: scheduler {state.config.name!r} neither decodes nor goes on with prompts, and {what} was due"
    )


def in_circles(steps: int, state: EngineState) -> StalledError:
    """No token for a long time although steps are run."""
    return StalledError(
        f"no token in {steps:,} steps: {len(state.prefilling)} prompts are part-way, {len(state.waiting)} wait, "
        f"{state.allocator.available:,} of {state.allocator.capacity:,} tokens of KV are free. Partly computed prompts keep "
        "taking each other's memory; use gate `full-prompt`, a larger pool, or a smaller max_num_seqs"
    )
