"""From a configuration to a running engine."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

from sim.config import EngineConfig, KVConfig
from sim.engine.engine import Engine
from sim.engine.plan import Executor
from sim.engine.recorder import Recorder
from sim.engine.sequence import Sequence
from sim.kv import ALLOCATORS, SLABS
from sim.kv.base import KVAllocator
from sim.kv.contiguous import Buddy, ContiguousAllocator, FirstFit
from sim.kv.paged import PagedAllocator
from sim.kv.radix import RadixAllocator
from sim.schedulers import GATES, POLICIES, SCHEDULERS, VICTIMS, make_gate, make_queue
from workloads.errors import InputError, unknown_name
from workloads.registry import resolve as find


def make_allocator(
    kv: KVConfig, capacity: int, max_len: int, oracle: Callable[[Sequence], int] | None, state_tokens: int = 0,
    kept_states: int = 0, drafts: int = 0,
) -> KVAllocator:  # fmt: skip
    """The allocator that `kv` names, over `capacity` tokens.

    Args:
        max_len: longest sequence; the size of a `max-length` slab.
        oracle: true answer lengths, for `exact` slabs.
        state_tokens: what every sequence takes of a paged pool for its recurrent states, in tokens: whole blocks.
        kept_states: recurrent states that a radix tree may keep; 0 for models without.
        drafts: tokens beyond what it knows for which a sequence may need memory.

    Raises:
        InputError: no such allocator or slab, or one that needs an oracle where there is none.
    """
    if kv.allocator == "paged":
        return PagedAllocator(capacity, kv.block_size, kv.prefix_caching, state_tokens // kv.block_size)
    if kv.allocator == "radix":
        return RadixAllocator(capacity, kv.prefix_caching, kept_states)
    if kv.allocator == "contiguous":
        return _contiguous(kv, capacity, max_len, oracle, drafts)
    make = find("allocator", kv.allocator, ALLOCATORS, "twinserve.allocators")
    known = {
        "capacity": capacity,
        "block_size": kv.block_size,
        "prefix_caching": kv.prefix_caching,
        "config": kv,
        "state_blocks": state_tokens // max(kv.block_size, 1),
        "kept_states": kept_states,
    }
    accepted = signature(make).parameters
    return make(**{name: value for name, value in known.items() if name in accepted})


def _contiguous(
    kv: KVConfig, capacity: int, max_len: int, oracle: Callable[[Sequence], int] | None, drafts: int
) -> KVAllocator:
    match kv.slab:
        case "max-length":
            return ContiguousAllocator(capacity, FirstFit(capacity), lambda seq: max_len)
        case "power-of-two":
            return ContiguousAllocator(capacity, Buddy(capacity), lambda seq: seq.limit)
        case "exact":
            if oracle is None:
                raise InputError(
                    "kv.slab `exact` needs to know answers beforehand", hint="it exists in simulation only"
                )

            def length(seq: Sequence) -> int:
                return seq.prompt_tokens + min(oracle(seq) + drafts, max(seq.max_tokens, oracle(seq)))

            return ContiguousAllocator(capacity, FirstFit(capacity), length)
    raise unknown_name("slab", kv.slab, SLABS)


def make_engine(
    config: EngineConfig, executor: Executor, *, capacity: int, max_len: int, host_tokens: int = 0,
    stretch: bool = True, state_tokens: int = 0, kept_states: int = 0, engine: type[Engine] = Engine,
) -> Engine:  # fmt: skip
    """An engine of the parts that `config` names.

    Args:
        capacity: tokens of KV on the device.
        max_len: longest sequence in tokens.
        host_tokens: tokens of KV that fit in host memory.
        stretch: take equal decode steps at once.
        state_tokens, kept_states: as `make_allocator` takes them.
        engine: what is made, such as `sim.engine.handover.PrefillEngine`.

    Raises:
        InputError: an unknown name, or parts that cannot work together.
    """
    _check_depth(config.depth, getattr(executor, "depth", config.depth))
    scheduler_config = config.scheduler
    for kind, name, known in (
        ("gate", scheduler_config.gate, GATES), ("policy", scheduler_config.policy, POLICIES),
        ("victim rule", scheduler_config.victim, VICTIMS),
    ):  # fmt: skip
        if name not in known:
            raise unknown_name(kind, name, known)
    oracle = executor.length if executor.knows_lengths else None
    if scheduler_config.policy == "shortest-job" and oracle is None:
        raise InputError("policy `shortest-job` needs to know answers beforehand", hint="it exists in simulation only")
    ahead = config.speculation.num_speculative_tokens * config.depth
    allocator = make_allocator(config.kv, capacity, max_len, oracle, state_tokens, kept_states, ahead)
    make_scheduler = find("scheduler", scheduler_config.name, SCHEDULERS, "twinserve.schedulers")
    if config.speculation.active:
        if scheduler_config.name == "static":
            raise InputError(
                "a static batch does not speculate", hint="use another scheduler, or no engine.speculation"
            )
        from sim.engine.drafting import DraftingEngine as engine
    return engine(
        config,
        scheduler=make_scheduler(scheduler_config),
        gate=make_gate(scheduler_config),
        victims=VICTIMS[scheduler_config.victim](),
        queue=make_queue(scheduler_config.policy, allocator, oracle),
        allocator=allocator,
        executor=executor,
        recorder=Recorder(slabs=config.kv.allocator == "contiguous"),
        max_len=max_len,
        host_tokens=host_tokens,
        stretch=stretch,
    )


def _check_depth(depth: int, of_executor: int) -> None:
    if depth not in (1, 2):
        raise InputError(
            f"depth {depth} cannot be: one plan may be in flight, or two where host and device overlap",
            hint="use depth 1 or 2",
        )
    if of_executor != depth:
        raise InputError(
            f"the executor is made for depth {of_executor}, the engine for depth {depth}",
            hint="give both the same depth",
        )
