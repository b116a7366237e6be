"""What recurrent layers of a model (Mamba, linear attention) change in an engine's configuration, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sim.state_memory import blocks, recurrent_dtype, state_bytes, state_rule

if TYPE_CHECKING:
    from experiments.conflicts import Draft
    from sim.config import EngineConfig
    from sim.memory import MemoryBudget
    from sim.models import ModelSpec

MIB = 1 << 20


def settle_states(draft: Draft, model: ModelSpec) -> None:
    """Make a draft fit a model with recurrent layers; nothing happens for others.

    Raises:
        InputError: what the user wrote cannot be with such layers.
    """
    if model.state is None:
        return
    why = f"{model.state.layers} of {model.name}'s layers keep a state"
    draft.give_way("scheduler.preemption", "recompute", f"{why}, which is not simulated to be swapped")
    rule = state_rule(draft.config())
    if rule == "blocks":
        if not draft.user("kv.prefix_caching"):
            draft.give_way(
                "kv.prefix_caching", False, f"{why}, and vLLM then shares prefixes only where it is asked to"
            )
        tokens = blocks(model, draft.config()).tokens
        draft.give_way("kv.block_size", tokens, f"{why}, and a block of an attention layer is made as large as a state")
    elif rule == "reserved":
        draft.give_way("kv.prefix_caching", False, f"{why}, and a prefix is of no use without the state after it")


def bound_by_states(draft: Draft, engine: EngineConfig, budget: MemoryBudget) -> EngineConfig:
    """The engine with no more sequences than there is room for states, which it says."""
    slots = budget.state_slots
    if not slots or engine.scheduler.max_num_seqs <= slots:
        return engine
    key = "scheduler.max_num_seqs"
    said = f"engine.{key}: {draft[key]:,} became {slots:,}: so many have room for their recurrent states"
    draft.notices.append(said)
    draft.values[key], draft.sources[key] = slots, "derived"
    return replace(engine, scheduler=replace(engine.scheduler, max_num_seqs=slots))


def state_notices(model: ModelSpec, engine: EngineConfig, budget: MemoryBudget) -> list[str]:
    """How much memory states take, and how far prefix hits are to be believed."""
    if model.state is None:
        return []
    size, dtype = state_bytes(model, engine) / MIB, recurrent_dtype(model, engine.preset)
    if budget.state_tokens:
        place = f"{budget.state_tokens:,} tokens of the KV pool (blocks of {budget.block_size:,})"
    else:
        place = f"beside the KV pool, {budget.state_slots:,} at most"
    found = [f"recurrent states take {size:,.1f} MiB a sequence and GPU ({dtype}): {place}"]
    if budget.kept_states and engine.kv.allocator == "radix":
        found.append(
            f"prefixes are hit as far as a state is kept: at ends of chunks and answers and where prompts part, "
            f"{budget.kept_states:,} states at most"
        )
    elif engine.kv.prefix_caching:
        found.append(
            "prefix hits are counted at every block; engines keep the state of recurrent layers only at the ends of chunks and "
            "prompts, so real hits may be shorter"
        )
    return found
