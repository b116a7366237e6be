"""Engines as presets: bundles of scheduler, gate, victim rule, allocator and sizing, dated where behaviour changed.

A preset holds only what it sets apart from the field defaults; `SOURCES` says where each value is from. A bare name is the
newest of its kind. Values that depend on the GPU (vLLM's and SGLang's token budgets) are worked out in `preset_config`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from sim.config import EngineConfig, KVConfig, SchedulerConfig
from workloads.errors import InputError, unknown_name

_GIB = 1 << 30
_UNLIMITED = 1 << 24
"""Token budget of engines that have none: more than any step holds."""
_LONG_CONTEXT = 32768
"""Longest sequence, in tokens, up to which vLLM v0 computes prompts whole by default."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One engine.

    Attributes:
        summary: one line for `bench list presets`.
        engine, scheduler, kv: field values that it sets.
        sources: dotted field → where the value is from; `*` is for fields without an entry of their own.
        refuses: what it does not do, as dotted field → values, with the reason; a user who asks for it gets an error.
    """

    summary: str
    engine: dict = field(default_factory=dict)
    scheduler: dict = field(default_factory=dict)
    kv: dict = field(default_factory=dict)
    sources: dict = field(default_factory=dict)
    refuses: dict = field(default_factory=dict)


_VLLM_ARGS = "vllm/engine/arg_utils.py"
_VLLM_SCHED = "vllm/v1/core/sched/scheduler.py"
_SGL_ARGS = "sglang/srt/server_args.py"
_SGL_POLICY = "sglang/srt/managers/schedule_policy.py"
_TRT_CAPACITY = "tensorrt_llm cpp/batch_manager/capacityScheduler.cpp"

_V1 = Preset(
    "vLLM 0.8 to 0.13: v1, running first, chunked prefill, hash-chain prefix cache, recompute",
    engine={"host": "vllm", "depth": 1},
    scheduler={
        "name": "chunked-prefill", "gate": "optimistic", "victim": "last-admitted", "requeue": "head", "prefill": "mixed",
        "policy": "fcfs", "preemption": "recompute",
    },
    kv={
        "allocator": "paged", "block_size": 16, "prefix_caching": True, "register": "scheduled", "memory_rule": "total",
        "memory_utilization": 0.9,
    },
    sources={
        "*": _VLLM_SCHED, "kv.allocator": "vllm/v1/core/kv_cache_manager.py",
        "kv.memory_rule": "vllm/v1/worker/gpu_worker.py (determine_available_memory)",
        "scheduler.name": _VLLM_SCHED, "scheduler.gate": "vllm/v1/core/kv_cache_manager.py", "scheduler.victim": _VLLM_SCHED,
        "scheduler.max_num_seqs": _VLLM_ARGS, "scheduler.max_num_batched_tokens": _VLLM_ARGS,
        "kv.block_size": "vllm/config/cache.py", "kv.prefix_caching": _VLLM_ARGS, "kv.register": "vllm/v1/core/block_pool.py",
        "kv.memory_utilization": "docs.vllm.ai, engine arguments",
    },
    refuses={"scheduler.preemption": {"swap": "vLLM v1 preempts by recompute only"}},
)  # fmt: skip

_SGLANG = Preset(
    "SGLang: prefill first, radix tree over tokens, learned reservation, retraction",
    engine={"host": "sglang", "depth": 2, "stops_ahead": False},
    scheduler={
        "name": "chunked-prefill", "gate": "ratio", "victim": "fewest-outputs", "requeue": "tail", "prefill": "first",
        "policy": "fcfs", "max_partial_prefills": 1, "max_num_seqs": 4096, "admit_after_preemption": True,
    },
    kv={
        "allocator": "radix", "block_size": 1, "prefix_caching": True, "register": "computed", "memory_rule": "static",
        "memory_utilization": 0.0,
    },
    sources={
        "*": "sglang/srt/managers/scheduler.py", "scheduler.max_partial_prefills": _SGL_POLICY,
        "scheduler.max_num_seqs": "sglang/srt/model_executor/model_runner.py (2,048 to 4,096, by memory)",
        "kv.allocator": "sglang/srt/mem_cache/radix_cache.py", "kv.block_size": f"{_SGL_ARGS} (page_size)",
        "kv.prefix_caching": f"{_SGL_ARGS} (disable_radix_cache)", "kv.memory_rule": f"{_SGL_ARGS} (mem_fraction_static)",
        "scheduler.gate": _SGL_POLICY, "scheduler.victim": "sglang/srt/managers/schedule_batch.py (retract_decode)",
        "scheduler.max_num_batched_tokens": f"{_SGL_ARGS} (chunked_prefill_size)", "scheduler.policy": _SGL_ARGS,
        "scheduler.requeue": "sglang/srt/managers/scheduler.py", "kv.memory_utilization": f"{_SGL_ARGS} (0: automatic)",
        "kv.register": "sglang/srt/mem_cache/radix_cache.py", "depth": "SGLang v0.4 release notes (overlap scheduler)",
    },
    refuses={"scheduler.preemption": {"swap": "SGLang retracts by recompute only"}},
)  # fmt: skip

_TRT = Preset(
    "TensorRT-LLM: in-flight batching, whole answers reserved (GUARANTEED_NO_EVICT), block reuse; prompts longer than "
    "max_num_tokens refused",
    engine={"host": "tensorrt-llm", "depth": 2, "stops_ahead": False},
    scheduler={
        "name": "continuous", "gate": "reserve-output", "victim": "none", "requeue": "arrival", "prefill": "mixed",
        "max_num_seqs": 2048, "max_num_batched_tokens": 8192, "chunk_unit": 32, "hold_shared": True,
    },
    kv={
        "allocator": "paged", "block_size": 32, "prefix_caching": True, "register": "computed", "memory_rule": "free",
        "memory_utilization": 0.9,
    },
    sources={
        "*": "TensorRT-LLM docs (in-flight batching, KV cache system)", "scheduler.victim": _TRT_CAPACITY,
        "scheduler.hold_shared": _TRT_CAPACITY, "scheduler.chunk_unit": "tensorrt_llm cpp/batch_manager/microBatchScheduler.cpp",
        "scheduler.gate": _TRT_CAPACITY, "scheduler.name": "tensorrt_llm cpp/batch_manager/microBatchScheduler.cpp",
        "scheduler.max_num_batched_tokens": "TensorRT-LLM docs (max_num_tokens); without chunked context longer prompts are "
        "refused (tensorrt_llm/llmapi/llm.py, _check_arguments)",
        "scheduler.max_num_seqs": "TensorRT-LLM docs (max_batch_size)", "kv.memory_utilization": "TensorRT-LLM docs "
        "(free_gpu_memory_fraction, of memory free after load)", "kv.block_size": "TensorRT-LLM docs (tokens_per_block)",
        "depth": "TensorRT-LLM docs (overlap scheduler, one extra decode step a request)",
    },
    refuses={"scheduler.preemption": {"swap": "TensorRT-LLM pauses by recompute only"}},
)  # fmt: skip


def _derived(base: Preset, summary: str, *, engine=None, scheduler=None, kv=None, sources=None, refuses=None) -> Preset:
    return Preset(
        summary, {**base.engine, **(engine or {})}, {**base.scheduler, **(scheduler or {})}, {**base.kv, **(kv or {})},
        {**base.sources, **(sources or {})}, base.refuses if refuses is None else refuses,
    )  # fmt: skip


_V1_ASYNC = _derived(
    _V1,
    "vLLM 0.14 to 0.19: v1 with asynchronous scheduling",
    engine={"depth": 2, "stops_ahead": True},
    sources={"depth": "vllm/config/scheduler.py (async_scheduling)"},
)

PRESETS: dict[str, Preset] = {
    "static": Preset(
        "static batching: one batch from start to end, prompts padded, slabs of the longest length",
        engine={"host": "vllm"},
        scheduler={
            "name": "static", "gate": "optimistic", "victim": "none", "max_num_seqs": 32,
            "max_num_batched_tokens": _UNLIMITED, "streaming": False,
        },
        kv={"allocator": "contiguous", "slab": "max-length", "prefix_caching": False, "register": "computed"},
        sources={
            "*": "NVIDIA/FasterTransformer docs/gpt_guide.md",
            "host": "vLLM's kernels, CUDA graphs and host time, so that presets differ in their policy alone",
            "scheduler.name": "NVIDIA/FasterTransformer docs/gpt_guide.md", "kv.slab": "FasterTransformer ParallelGpt.cc",
            "scheduler.max_num_seqs": "set by hand in such systems, 8 to 128",
        },
        refuses={
            "kv.prefix_caching": {True: "a static batch shares no prefixes"},
            "scheduler.preemption": {"swap": "a static batch is never preempted"},
        },
    ),
    "orca": Preset(
        "Orca (OSDI '22): iteration-level batching, declared lengths reserved in contiguous slabs",
        engine={"host": "vllm"},
        scheduler={
            "name": "continuous", "gate": "optimistic", "victim": "none", "prefill": "mixed", "max_num_seqs": 128,
            "max_num_batched_tokens": _UNLIMITED,
        },
        kv={"allocator": "contiguous", "slab": "max-length", "prefix_caching": False, "register": "computed"},
        sources={
            "*": "Yu et al., Orca, OSDI '22",
            "host": "vLLM's kernels, CUDA graphs and host time, so that presets differ in their policy alone",
            "scheduler.max_num_seqs": "microsoft/vidur orca_replica_scheduler.py",
            "kv.slab": "Orca (Max) in the PagedAttention paper, arXiv 2309.06180",
        },
        refuses={
            "kv.prefix_caching": {True: "Orca has no prefix cache"},
            "scheduler.preemption": {"swap": "Orca reserves memory and never preempts"},
        },
    ),
    "vllm-v0": Preset(
        "vLLM v0 (to 0.7): prefill first, whole prompts (cut and mixed where max_model_len is above 32K), 1 % watermark, "
        "recompute or swap",
        engine={"host": "vllm"},
        scheduler={
            "name": "continuous", "gate": "watermark", "watermark": 0.01, "victim": "last-admitted", "requeue": "head",
            "prefill": "first", "max_num_seqs": 256, "admit_after_preemption": False,
        },
        kv={"allocator": "paged", "block_size": 16, "prefix_caching": False, "register": "scheduled", "swap_gib": 4.0},
        sources={
            "*": "vllm/core/scheduler.py, 2024", "kv.allocator": "vllm/core/block_manager.py",
            "kv.block_size": "vllm/config.py, 2024", "kv.prefix_caching": "vllm/config.py, 2024",
            "kv.register": "vllm/core/block_manager.py", "scheduler.watermark": "vllm/core/block_manager.py",
            "scheduler.gate": "vllm/core/block_manager.py", "scheduler.max_num_seqs": "vllm/config.py, 2024",
            "scheduler.max_num_batched_tokens": "vllm/config.py, 2024: max(max_model_len, 2048), 2048 where prompts are cut",
            "kv.swap_gib": "vllm/config.py, 2024 (swap_space)",
        },
    ),
    "vllm@0.8": _V1,
    "vllm@0.14": _V1_ASYNC,
    "vllm@0.33": _derived(
        _V1_ASYNC,
        "vLLM 0.20 to 0.33: v1 with full-prompt admission and asynchronous scheduling",
        scheduler={"gate": "full-prompt"},
        kv={"memory_utilization": 0.92},
        sources={"scheduler.gate": "vllm/v1/core/kv_cache_manager.py (scheduler_reserve_full_isl)"},
    ),
    "sglang@0.5": _SGLANG,
    "sglang-mixed": _derived(
        _SGLANG, "SGLang with enable_mixed_chunk: prompt pieces beside decodes", scheduler={"prefill": "mixed"}
    ),
    "tensorrt-llm@0.5": _derived(
        _TRT,
        "TensorRT-LLM to 0.19: engines built ahead, C++ runtime, which plans a step when the last is done",
        engine={"depth": 1},
        sources={"depth": "tensorrt_llm cpp/batch_manager/trtGptModelInflightBatching.cpp"},
    ),
    "tensorrt-llm@1.2": _TRT,
    "tensorrt-llm-chunked": _derived(
        _TRT, "TensorRT-LLM with chunked context", scheduler={"name": "chunked-prefill"}
    ),
    "tensorrt-llm-max-utilization": _derived(
        _TRT,
        "TensorRT-LLM with MAX_UTILIZATION: admits what fits the next step, pauses the last started",
        scheduler={"gate": "optimistic", "victim": "last-admitted"},
    ),
    "tensorrt-llm-static": _derived(
        _TRT,
        "TensorRT-LLM with STATIC_BATCH: a new batch only when nothing is active",
        engine={"depth": 1},
        scheduler={"name": "static", "pad": False, "victim": "none", "max_num_batched_tokens": _UNLIMITED},
        kv={"prefix_caching": False},
    ),
    "lightllm": Preset(
        "LightLLM: token-level KV, admission by the future peak, a prefill every few decode steps",
        engine={"host": "sglang"},
        scheduler={
            "name": "chunked-prefill", "gate": "future-peak", "victim": "last-admitted", "requeue": "head", "prefill": "first",
            "max_num_seqs": 1000, "max_num_batched_tokens": 4096, "prefill_wait_steps": 6,
        },
        kv={
            "allocator": "radix", "block_size": 1, "prefix_caching": True, "register": "computed", "memory_rule": "free",
            "memory_utilization": 0.9,
        },
        sources={
            "*": "lightllm/server/router/manager.py", "scheduler.victim": "lightllm/server/router/pause_strategy.py",
            "scheduler.requeue": "lightllm/server/router/pause_strategy.py",
            "kv.allocator": "LightLLM docs (token attention, prompt cache)",
            "kv.block_size": "LightLLM docs (token attention)", "kv.prefix_caching": "LightLLM docs (prompt cache)",
            "kv.register": "LightLLM docs (prompt cache)", "kv.memory_rule": "lightllm/server/api_cli.py (mem_fraction)",
            "kv.memory_utilization": "lightllm/server/api_cli.py (mem_fraction)",
            "scheduler.gate": "lightllm/server/router/req_queue/chunked_prefill/impl.py",
            "scheduler.max_num_seqs": "lightllm/server/api_cli.py (running_max_req_size)",
            "scheduler.max_num_batched_tokens": "lightllm/server/api_cli.py (chunked_prefill_size)",
            "scheduler.prefill_wait_steps": "lightllm/server/api_cli.py (router_max_wait_tokens)",
        },
    ),
}  # fmt: skip

NEWEST = {
    "vllm": "vllm@0.33",
    "vllm-v1": "vllm@0.33",
    "sglang": "sglang@0.5",
    "tensorrt-llm": "tensorrt-llm@1.2",
}


SINCE: dict[str, list[tuple[str, str]]] = {
    "vllm": [("0.1", "vllm-v0"), ("0.8", "vllm@0.8"), ("0.14", "vllm@0.14"), ("0.20", "vllm@0.33")],
    "sglang": [("0.4", "sglang@0.5")],
    "tensorrt-llm": [("0.5", "tensorrt-llm@0.5"), ("0.20", "tensorrt-llm@1.2")],
}
"""Engine → (version, the preset that holds from it on), in order: so that any version may be named."""


def find_preset(name: str) -> tuple[str, Preset]:
    """The preset of that name; a bare name gives the newest, one with an engine's version the one that holds for it.

    Raises:
        InputError: no such preset.
    """
    full = NEWEST.get(name, name)
    if full not in PRESETS:
        full = _of_version(name)
    return full, PRESETS[full]


def _of_version(name: str) -> str:
    """The preset of an engine's version, as in `vllm@0.12.0`."""
    engine, _, version = name.partition("@")
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if engine not in SINCE or not numbers:
        raise unknown_name("preset", name, [*PRESETS, *NEWEST])
    asked = int(numbers[1]), int(numbers[2])
    held = [preset for since, preset in SINCE[engine] if tuple(map(int, since.split("."))) <= asked]
    if not held:
        oldest = SINCE[engine][0]
        raise InputError(
            f"{name!r} is older than what is simulated of {engine} ({oldest[0]} and later)",
            hint=f"{engine}@{oldest[0]} is the nearest: it is simulated as {oldest[1]}",
        )
    return held[-1]


def preset_config(name: str, *, device_memory: float, is_a100: bool = False, max_model_len: int = 0) -> EngineConfig:
    """A preset as a configuration, with what depends on the GPU and model filled in.

    Args:
        device_memory: bytes on one GPU.
        is_a100: vLLM treats the A100 as a smaller card.
        max_model_len: longest sequence, for vLLM v0's budget: beyond 32K tokens it cuts prompts, as it did by default from
            0.5.4 on (vllm-project/vllm#6666) with a budget of 512 and later 2,048 tokens.

    Raises:
        InputError: no such preset.
    """
    full, preset = find_preset(name)
    scheduler = replace(SchedulerConfig(), **preset.scheduler)
    family = full.split("@")[0]
    if family == "vllm":  # vllm/engine/arg_utils.py, API server defaults
        large = device_memory >= 70 * _GIB and not is_a100
        scheduler = replace(
            scheduler, max_num_batched_tokens=8192 if large else 2048, max_num_seqs=1024 if large else 256
        )
    elif family == "vllm-v0":
        scheduler = replace(scheduler, max_num_batched_tokens=max(max_model_len, 2048))
        if max_model_len > _LONG_CONTEXT:
            scheduler = replace(scheduler, name="chunked-prefill", prefill="mixed", max_num_batched_tokens=2048)
    elif family.startswith("sglang"):  # server_args.py, chunked_prefill_size by device memory
        gib = device_memory / _GIB
        size = 2048 if gib < 35 else 4096 if gib < 60 else 8192 if gib < 160 else 16384
        scheduler = replace(scheduler, max_num_batched_tokens=size)
    version = name.partition("@")[2] if NEWEST.get(name, name) != full else ""
    config = EngineConfig(preset=full, version=version, scheduler=scheduler, kv=replace(KVConfig(), **preset.kv))
    return replace(config, **preset.engine)
