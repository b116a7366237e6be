"""Engine configurations that make sense, drawn at random: every scheduler over every kind of memory."""

from __future__ import annotations

from harness import config
from hypothesis import Phase, settings
from hypothesis import strategies as st
from random_scheduler import NAME as RANDOM

from sim.config import EngineConfig

SCHEDULERS = ("static", "continuous", "chunked-prefill", RANDOM)
MEMORIES = ("paged", "radix", "contiguous max-length", "contiguous power-of-two", "contiguous exact")
CELLS = [(scheduler, memory) for scheduler in SCHEDULERS for memory in MEMORIES]
HOPEFUL = ("optimistic", "watermark", "full-prompt", "ratio", "future-peak")
RESERVING = ("reserve-output", "max-length")

_PHASES = (Phase.explicit, Phase.generate, Phase.shrink)


def bounded(examples: int):
    """So many examples, the same ones in every run."""
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, phases=_PHASES)


LARGEST = 220  # max_len of the runs that these are for: with blocks of 16 it takes 224 tokens
POOLS = (270, 330, 700)


@st.composite
def configurations(
    draw, scheduler: str, memory: str, *, depths=(1, 2), policies=("fcfs", "priority", "lpm", "shortest-job")
):
    """A configuration of the given scheduler over the given memory."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    allocator, _, slab = memory.partition(" ")
    settings = {"name": scheduler, "allocator": allocator, "policy": pick(*policies), "max_num_seqs": pick(3, 6, 20)}
    if slab:
        settings |= {
            "slab": slab,
            "gate": "optimistic",
            "victim": "none",
            "prefix_caching": False,
            "register": "computed",
        }
    else:
        settings |= {
            "block_size": pick(1, 4, 16) if allocator == "paged" else 1,
            "register": pick("scheduled", "computed"),
        }
        settings["prefix_caching"] = pick(True, True, False)
    if scheduler == "static":
        settings |= {"victim": "none", "batch_wait": pick(0.0, 0.05), "pad": pick(True, False), "depth": 1}
        settings |= {"streaming": pick(True, False), "prefix_caching": False, "max_num_batched_tokens": 1 << 24}
        if not slab:
            settings["gate"] = pick(*RESERVING)
        return config(**settings)
    depth = pick(*depths)
    settings |= {
        "depth": depth, "stops_ahead": pick(True, False), "max_num_batched_tokens": pick(32, 64, 300),
        "prefill": pick("mixed", "first"), "chunk_unit": pick(1, 8), "long_prefill_token_threshold": pick(0, 24),
        "max_partial_prefills": pick(1, 2, 1000), "prefill_wait_steps": pick(0, 3), "requeue": pick("head", "tail", "arrival"),
    }  # fmt: skip
    if scheduler == "continuous":
        settings["max_num_batched_tokens"] = pick(LARGEST, 300)  # longer prompts would be refused
    if scheduler == RANDOM:
        settings["prefill_wait_steps"] = draw(st.integers(0, 999))  # its seed
    if not slab:
        settings |= _memory_policy(pick, settings)
    return config(**settings)


def _memory_policy(pick, settings: dict) -> dict:
    victim = pick("last-admitted", "lowest-priority", "fewest-outputs", "none")
    gate = pick(*RESERVING) if victim == "none" else pick(*HOPEFUL, *RESERVING)
    chosen = {"victim": victim, "gate": gate, "watermark": pick(0.0, 0.05), "conservativeness": pick(0.3, 1.0)}
    if victim != "none":
        chosen["preemption"] = pick("recompute", "swap")
        chosen["admit_after_preemption"] = pick(True, False)
    return chosen


def describe(made: EngineConfig) -> str:
    """One line for a failure."""
    return f"{made.scheduler} {made.kv} depth={made.depth} stops_ahead={made.stops_ahead}"
