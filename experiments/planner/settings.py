"""Flags of the settings that few write: what a plan was simulated with is said to the engine, or refused."""

from __future__ import annotations

from typing import Any

from experiments.planner.deployment import PLACE, TITLES, Deployment
from experiments.planner.speculation import speculation_flags
from workloads.errors import InputError

_ALWAYS = {
    "preset", "quantization", "max_model_len", "parallel.tensor", "parallel.pipeline", "kv.dtype", "kv.block_size",
    "kv.prefix_caching", "kv.memory_utilization", "scheduler.max_num_seqs", "scheduler.max_num_batched_tokens",
}  # fmt: skip
"""Settings that every command has a flag for already."""

# Key → value → the words; None as a value stands for any. Names as in the engines' documentation of their arguments.
_FLAGS: dict[str, dict[str, dict[Any, tuple[str, ...]]]] = {
    "vllm": {
        "scheduler.policy": {"fcfs": (), "priority": ("--scheduling-policy", "priority")},
        "scheduler.long_prefill_token_threshold": {None: ("--long-prefill-token-threshold", "{}")},
        "scheduler.max_partial_prefills": {None: ("--max-num-partial-prefills", "{}")},
        "cuda_graphs": {True: (), False: ("--enforce-eager",)},
        "depth": {1: ("--no-async-scheduling",), 2: ("--async-scheduling",)},
        "parallel.expert": {1: (), None: ("--enable-expert-parallel",)},
    },
    "sglang": {
        "scheduler.policy": {
            "fcfs": ("--schedule-policy", "fcfs"), "lpm": ("--schedule-policy", "lpm"),
            "priority": ("--enable-priority-scheduling",),
        },
        "scheduler.conservativeness": {None: ("--schedule-conservativeness", "{}")},
        "scheduler.poll_interval": {None: ("--scheduler-recv-interval", "{}")},
        "cuda_graphs": {True: (), False: ("--disable-cuda-graph",)},
        "cuda_graph_padding": {True: (), False: ("--disable-cuda-graph-padding",)},
        "depth": {1: ("--disable-overlap-schedule",), 2: ()},
        "parallel.expert": {1: (), None: ("--ep-size", "{}")},
        "kv.capacity_tokens": {None: ("--max-total-tokens", "{}")},
    },
    "tensorrt-llm": {"parallel.expert": {1: (), None: ("--ep_size", "{}")}},
}  # fmt: skip
_NO_BF16 = ("volta", "turing")


def further_flags(d: Deployment) -> list[str]:
    """Words for everything that the user set beside what every command says.

    Raises:
        InputError: the engine has no flag for a setting with which the plan was simulated.
    """
    workload, words = d.resolved.workload, []
    words += speculation_flags(d)
    for key in sorted(workload.engine.written() - _ALWAYS):
        if key.startswith("speculation."):
            continue
        value = workload.engine
        for part in key.split("."):
            value = getattr(value, part)
        if key == "kv.capacity_tokens" and d.engine == "vllm":
            words += ["--num-gpu-blocks-override", str(value // d.resolved.budget.block_size)]
            continue
        known = _FLAGS[d.engine].get(key, {})
        if not any(_same(each, value) for each in known) and None not in known:
            if _preset_has(d, key, value):
                continue
            raise InputError(
                f"{TITLES[d.engine]} has no flag for engine.{key} = {value}, with which the plan was made", place=PLACE,
                hint=f"leave engine.{key} out, or start the engine by hand",
            )  # fmt: skip
        found = next((words for each, words in known.items() if _same(each, value)), known.get(None, ()))
        words += [word.replace("{}", f"{value:g}" if isinstance(value, float) else str(value)) for word in found]
    if d.resolved.gpu.arch in _NO_BF16 and d.engine != "tensorrt-llm" and d.resolved.model.dtype == "bf16":
        words += ["--dtype", "float16"]  # these cards have no bf16, and the engines refuse it there
    return words


def _same(known: Any, value: Any) -> bool:
    return known is not None and type(known) is type(value) and known == value


def _preset_has(d: Deployment, key: str, value: Any) -> bool:
    """Whether the engine does that by itself."""
    from sim.presets import preset_config

    found: Any = preset_config(
        d.resolved.engine.preset, device_memory=d.resolved.gpu.memory_bytes, is_a100="a100" in d.resolved.gpu.name,
        max_model_len=d.resolved.budget.max_model_len,
    )  # fmt: skip
    for part in key.split("."):
        found = getattr(found, part)
    return found == value
