"""Settings that cannot work together, and settings that would do nothing.

Only what the user wrote can be wrong: then it is an error that names the key. What a preset brought along and no longer
fits is changed or dropped with a notice, so that every scheduler × allocator that makes sense runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from sim.config import EngineConfig, KVConfig, ParallelConfig, SchedulerConfig, SpeculationConfig
from sim.engine.state import RESERVING
from sim.presets import Preset
from workloads.errors import InputError

NO_BUDGET = 1 << 24
"""Token budget of a scheduler that has none, as the presets write it."""

SECTIONS = {
    "scheduler": SchedulerConfig, "kv": KVConfig, "parallel": ParallelConfig, "speculation": SpeculationConfig,
}  # fmt: skip
_OF_DRAFTS = ("num_speculative_tokens", "acceptance", "draft_model", "disable_by_batch_size")

USER, PRESET, DERIVED, DEFAULT = "user", "preset", "derived", "default"
"""Who said a value: the workload file, the preset, what follows from other values, nobody."""


@dataclass(frozen=True, slots=True)
class OwnAllocator:
    """A KV allocator of the user's own: tokens a block, and whether it shares prefixes."""

    block_size: int
    shares: bool


@dataclass
class Draft:
    """An engine configuration in the making: dotted key (without `engine.`) → value, and who said so.

    Attributes:
        error: makes an `InputError` at a key of the workload file.
        notices: what was changed or dropped, for the user.
        idle: settings that do nothing in this configuration → why.
        own_allocator: what a KV allocator of the user's own is like; None with the built-in ones.
    """

    values: dict[str, Any]
    sources: dict[str, str]
    error: Callable[[str, str, str | None], InputError]
    notices: list[str] = field(default_factory=list)
    idle: dict[str, str] = field(default_factory=dict)
    own_allocator: OwnAllocator | None = None

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def config(self) -> EngineConfig:
        """The configuration as it is now."""
        parts = {
            name: kind(**{each.name: self.values[f"{name}.{each.name}"] for each in fields(kind)})
            for name, kind in SECTIONS.items()
        }
        own = {each.name: self.values[each.name] for each in fields(EngineConfig) if each.name not in SECTIONS}
        return EngineConfig(**own, **parts)

    def user(self, key: str) -> bool:
        """Whether the user wrote this key."""
        return self.sources[key] == USER

    def refuse(self, key: str, message: str, hint: str | None = None) -> None:
        """Stop: what the user wrote at this key cannot be."""
        raise self.error(f"engine.{key}", message, hint)

    def give_way(self, key: str, value: Any, why: str) -> None:
        """Set another value: an error if the user wrote the present one, else a notice."""
        if self.values[key] == value:
            return
        if self.user(key):
            self.refuse(key, f"{shown(self.values[key])} cannot be: {why}", f"remove it, or write {shown(value)}")
        self.notices.append(f"engine.{key}: {shown(self.values[key])} of the preset became {shown(value)}: {why}")
        self.values[key] = value
        self.sources[key] = DERIVED


def shown(value: Any) -> str:
    """A value as it would stand in the file."""
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def settle(draft: Draft, preset: Preset) -> None:
    """Make a draft consistent.

    Raises:
        InputError: two things the user wrote exclude each other, or one of them does nothing here.
    """
    for key, values in preset.refuses.items():
        if draft.user(key) and draft[key] in values:
            draft.refuse(key, values[draft[key]], f"choose another preset than {draft['preset']}, or remove it")
    _allocator(draft)
    _scheduler(draft)
    _memory_policy(draft)
    _speculation(draft)
    for key, why in _idle(draft):
        if draft.user(key):
            draft.refuse(key, f"has no effect: {why}", "remove it")
        draft.idle.setdefault(key, why)
    draft.idle |= {key: why for key, why in _moot(draft) if not draft.user(key)}


def _allocator(draft: Draft) -> None:
    allocator = draft["kv.allocator"]
    if allocator == "contiguous":
        draft.give_way("kv.prefix_caching", False, "contiguous slabs share no prefixes")
        draft.give_way("scheduler.gate", "optimistic", "a contiguous slab is the reservation")
        draft.give_way("scheduler.preemption", "recompute", "slabs are not swapped")
        if draft["scheduler.name"] != "static":
            draft.give_way("scheduler.victim", "none", "a slab never runs out, so nobody is preempted")
    if allocator == "radix":
        draft.give_way("kv.block_size", 1, "the radix tree keeps single tokens")
    if allocator == "paged" and draft["kv.block_size"] == 1 and not draft.user("kv.block_size"):
        draft.give_way("kv.block_size", 16, "pages of one token are the radix allocator's")
    if draft.own_allocator is not None:
        own = draft.own_allocator
        draft.give_way("kv.block_size", own.block_size, f"{allocator} has blocks of {own.block_size}")
        if not own.shares:
            draft.give_way("kv.prefix_caching", False, f"{allocator} shares no prefixes")
    if not draft["kv.prefix_caching"] and draft["scheduler.policy"] == "lpm":
        draft.give_way("scheduler.policy", "fcfs", "without prefix caching no prefix is ever longest")


def _scheduler(draft: Draft) -> None:
    name = draft["scheduler.name"]
    if name == "static":
        draft.give_way("kv.prefix_caching", False, "a static batch shares no prefixes")
        draft.give_way("depth", 1, "a static batch runs one step at a time")
        draft.give_way("scheduler.victim", "none", "a static batch is never preempted")
        draft.give_way("scheduler.preemption", "recompute", "a static batch is never preempted")
        seats_of_another = draft.user("scheduler.name") and not draft.user("scheduler.max_num_seqs")
        if seats_of_another and draft["scheduler.max_num_seqs"] > 32:
            draft.give_way("scheduler.max_num_seqs", 32, "a static batch is formed of at most this many")
        if not draft.user("scheduler.max_num_batched_tokens"):
            draft.values["scheduler.max_num_batched_tokens"] = NO_BUDGET
    mixed = draft["scheduler.prefill"] == "mixed" and name == "chunked-prefill"
    if mixed and draft["scheduler.max_num_batched_tokens"] < draft["scheduler.max_num_seqs"]:
        _fit_budget(draft)


def _fit_budget(draft: Draft) -> None:
    budget, seats = draft["scheduler.max_num_batched_tokens"], draft["scheduler.max_num_seqs"]
    why = f"every decoding sequence takes a token of the budget of {budget:,} (max_num_batched_tokens)"
    if draft.user("scheduler.max_num_seqs"):
        draft.refuse("scheduler.max_num_seqs", f"{seats:,} is too many: {why}", f"at most {budget}")
    draft.give_way("scheduler.max_num_seqs", budget, why)


def _memory_policy(draft: Draft) -> None:
    """Somebody must give way when memory runs out: a gate that reserves, a slab, or a victim."""
    gate, victim = draft["scheduler.gate"], draft["scheduler.victim"]
    ranked = draft["scheduler.policy"] == "priority"
    reserves = gate in RESERVING or draft["kv.allocator"] == "contiguous"
    if victim == "none" and not reserves:
        why = "nobody may be preempted, so whole answers must be reserved"
        if not draft.user("scheduler.gate"):
            draft.give_way("scheduler.gate", "max-length", why)
        elif not draft.user("scheduler.victim") and draft["scheduler.name"] != "static":
            fitting = "lowest-priority" if ranked else "last-admitted"
            draft.give_way("scheduler.victim", fitting, f"gate {gate} may be too hopeful")
        else:
            hint = "write reserve-output, max-length, or another victim"
            draft.refuse("scheduler.gate", f"{gate} cannot be: {why}", hint)
    if ranked and draft["scheduler.victim"] != "none" and not draft.user("scheduler.victim"):
        draft.give_way("scheduler.victim", "lowest-priority", "policy priority lets the least urgent give way")
    if draft["scheduler.gate"] == "max-length" and draft["kv.prefix_caching"] and draft.user("scheduler.gate"):
        draft.notices.append("engine.scheduler.gate: max-length counts shared prefixes once for each sequence")


def _speculation(draft: Draft) -> None:
    method, tokens = draft["speculation.method"], draft["speculation.num_speculative_tokens"]
    if method == "none":
        if draft.user("speculation.method"):  # switched off, as a point of a sweep may be: the rest stays as it is
            draft.idle |= {f"speculation.{key}": "nothing is guessed (speculation.method: none)" for key in _OF_DRAFTS}
        return
    place = "speculation.method"
    for key, what, example in (
        ("num_speculative_tokens", "how many tokens are guessed", "num_speculative_tokens: 3"),
        ("acceptance", "how likely a guess holds", "acceptance: 0.7, or [0.8, 0.7, 0.6]: one rate for each draft"),
        ("draft_model", "who guesses", "draft_model: and a model's name or folder"),
    ):
        needed = key != "draft_model" or method == "draft-model"
        unsaid = draft[f"speculation.{key}"] in ((None,) if key == "acceptance" else (0, ""))
        if needed and unsaid:
            draft.refuse(
                place, f"speculation by {method} needs to know {what} (engine.speculation.{key})", f"write {example}"
            )
    rates = draft["speculation.acceptance"]
    if isinstance(rates, tuple) and len(rates) != tokens:
        message = f"{len(rates)} rates for {tokens} drafts (num_speculative_tokens)"
        draft.refuse("speculation.acceptance", message, "write one rate for each draft, or a single one")
    if draft["scheduler.name"] == "static":
        draft.refuse(place, "a static batch does not speculate", "use another scheduler, or method: none")
    if draft["parallel.pipeline"] > 1:
        draft.refuse(place, "speculation over pipeline stages is not simulated", "write pipeline: 1, or method: none")
    seats, budget = draft["scheduler.max_num_seqs"], draft["scheduler.max_num_batched_tokens"]
    most = draft["speculation.disable_by_batch_size"]
    if most >= seats:
        message = f"has no effect: no more than {seats:,} sequences ever run (max_num_seqs)"
        draft.refuse("speculation.disable_by_batch_size", message, "remove it, or write a smaller number")
    if (most or seats) * (1 + tokens) > budget:
        draft.notices.append(
            f"engine.speculation: {most or seats:,} sequences with {tokens} drafts each are more than max_num_batched_tokens "
            f"{budget:,}: some go without drafts then"
        )


def _idle(draft: Draft) -> Iterator[tuple[str, str]]:
    """Settings that nothing reads in this configuration, and why."""
    yield from _idle_kv(draft)
    yield from _idle_packing(draft)
    yield from _idle_policy(draft)
    if draft["depth"] == 1:
        yield "stops_ahead", "it matters with several plans in flight (depth 2)"
    if draft["speculation.method"] == "none":
        for key in () if draft.user("speculation.method") else _OF_DRAFTS:
            yield f"speculation.{key}", "nothing is guessed (no speculation.method)"
    elif draft["speculation.method"] != "draft-model":
        yield "speculation.draft_model", f"method {draft['speculation.method']} has no model of its own"
    if draft["host"] == "none":
        why = "it is about the host's time, which is switched off (host: none)"
        yield "cuda_graphs", why
        yield "cuda_graph_padding", why
    elif not draft["cuda_graphs"]:
        yield "cuda_graph_padding", "no graphs are captured (cuda_graphs: false)"
    elif draft["host"] == "vllm":
        yield "cuda_graph_padding", "vLLM always fills a batch up to the next captured size"


def _moot(draft: Draft) -> Iterator[tuple[str, str]]:
    """Settings of which only one value is possible here. Writing that value is no mistake, but it decides nothing."""
    if draft["kv.allocator"] == "contiguous":
        yield "scheduler.gate", "a contiguous slab is the reservation"
    if draft["scheduler.victim"] == "none":
        yield "scheduler.preemption", "nobody is ever preempted (victim: none)"
    if draft["speculation.method"] == "none":
        yield "speculation.method", "nothing is guessed"
    elif not draft["speculation.disable_by_batch_size"]:
        yield "speculation.disable_by_batch_size", "every step has drafts"
    if draft["scheduler.name"] == "static":
        yield "scheduler.victim", "a static batch is never preempted"


def _idle_kv(draft: Draft) -> Iterator[tuple[str, str]]:
    allocator = draft["kv.allocator"]
    if allocator == "contiguous":
        yield "kv.block_size", "contiguous slabs have no blocks"
    else:
        yield "kv.slab", f"slabs belong to the contiguous allocator, not to {allocator}"
    if not draft["kv.prefix_caching"]:
        yield "kv.register", "prefix caching is off"
    if draft["scheduler.preemption"] != "swap":
        yield "kv.swap_gib", "nothing is swapped (preemption: recompute)"
    if draft["kv.capacity_tokens"]:
        yield "kv.memory_utilization", "kv.capacity_tokens sets the pool"
        yield "kv.memory_rule", "kv.capacity_tokens sets the pool"


def _idle_packing(draft: Draft) -> Iterator[tuple[str, str]]:
    name = draft["scheduler.name"]
    if ":" in name:
        return  # a scheduler of the user's own reads what it likes
    if name == "static":
        for key in ("prefill", "max_num_batched_tokens", "prefill_wait_steps"):
            yield f"scheduler.{key}", "a static batch takes all its prompts at once"
    else:
        for key in ("batch_wait", "streaming", "pad"):
            yield f"scheduler.{key}", "it belongs to the static scheduler"
    if name != "chunked-prefill":
        for key in ("long_prefill_token_threshold", "chunk_unit", "max_partial_prefills"):
            yield f"scheduler.{key}", f"scheduler {name} does not cut prompts"
    if draft["scheduler.prefill"] == "mixed":
        yield "scheduler.prefill_wait_steps", "it belongs to prefill: first"
    else:
        yield "scheduler.admit_after_preemption", "with prefill: first a step that preempted never admits"


def _idle_policy(draft: Draft) -> Iterator[tuple[str, str]]:
    gate = draft["scheduler.gate"]
    if gate not in ("watermark", "full-prompt"):
        yield "scheduler.watermark", f"gate {gate} leaves no watermark"
    if gate != "ratio":
        yield "scheduler.conservativeness", "it belongs to gate ratio"
    if draft["kv.allocator"] != "paged" or not draft["kv.prefix_caching"]:
        yield "scheduler.hold_shared", "only the paged allocator with prefix caching names blocks to wait for"
    if draft["scheduler.victim"] == "none":
        for key in ("requeue", "admit_after_preemption"):
            yield f"scheduler.{key}", "nobody is ever preempted (victim: none)"
        if draft["scheduler.preemption"] == "swap":
            yield "scheduler.preemption", "nobody is ever preempted (victim: none)"
    if draft["scheduler.policy"] in ("priority", "shortest-job"):
        yield "scheduler.requeue", f"policy {draft['scheduler.policy']} ranks preempted sequences itself"
