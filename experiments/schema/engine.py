"""The `engine:` section. The fields are those of `sim.config`, all optional: unset means the preset decides."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from experiments.schema.base import Gibibytes, Seconds, Section, Text, Wrong, registered

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


class SchedulerSection(Section):
    """`engine.scheduler`: how batches are chosen. See `sim.config.SchedulerConfig` for the meaning of each key."""

    name: Annotated[str, registered("scheduler")] | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    policy: Annotated[str, registered("policy")] | None = None
    gate: Annotated[str, registered("gate")] | None = None
    watermark: Annotated[float, Field(ge=0, lt=1)] | None = None
    victim: Annotated[str, registered("victim")] | None = None
    preemption: Literal["recompute", "swap"] | None = None
    requeue: Literal["head", "tail", "arrival"] | None = None
    prefill: Literal["mixed", "first"] | None = None
    long_prefill_token_threshold: Natural | None = None
    chunk_unit: Count | None = None
    max_partial_prefills: Count | None = None
    admit_after_preemption: bool | None = None
    hold_shared: bool | None = None
    conservativeness: Annotated[float, Field(gt=0)] | None = None
    batch_wait: Seconds | None = None
    prefill_wait_steps: Natural | None = None
    poll_interval: Count | None = None
    streaming: bool | None = None
    pad: bool | None = None


with warnings.catch_warnings():
    # `register` is also a method that every abstract class has; nothing calls it on a section.
    warnings.filterwarnings("ignore", message='Field name "register"')

    class KVSection(Section):
        """`engine.kv`: where keys and values live. See `sim.config.KVConfig`."""

        allocator: Annotated[str, registered("allocator")] | None = None
        block_size: Count | None = None
        prefix_caching: bool | None = None
        register: Literal["scheduled", "computed"] | None = None
        slab: Literal["max-length", "power-of-two", "exact"] | None = None
        dtype: Annotated[str, registered("kv_dtype")] | None = None
        memory_utilization: Annotated[float, Field(ge=0, le=1)] | None = None
        memory_rule: Literal["total", "static", "free"] | None = None
        capacity_tokens: Natural | None = None
        swap_gib: Gibibytes | None = None


class ParallelSection(Section):
    """`engine.parallel`: `tensor × pipeline × data` GPUs serve one model."""

    tensor: Count | None = None
    pipeline: Count | None = None
    expert: Count | None = None
    data: Count | None = None


MOST_DRAFTS = 32
"""Drafts of a step that vLLM's rejection sampler takes (`v1/sample/rejection_sampler.py`, MAX_SPEC_LEN)."""


def _rates(value: Any) -> float | tuple[float, ...]:
    """One rate, or a list of them."""
    listed = isinstance(value, list | tuple)
    rates = list(value) if listed else [value]
    for place, rate in enumerate(rates):
        key = f"[{place}]" if listed else ""
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise Wrong(
                f"expected a number from 0 to 1, got {rate!r}", "0.7, or one rate for each draft: [0.8, 0.7, 0.6]", key
            )
        if not 0 <= rate <= 1:
            hint = f"write {rate / 100:g}" if 1 < rate <= 100 else None
            raise Wrong(f"expected a number from 0 to 1, got {rate:g}", hint, key)
    if not rates:
        raise Wrong("expected a rate, got an empty list", "one rate for each draft: [0.8, 0.7, 0.6]")
    return tuple(map(float, rates)) if listed else float(value)


class SpeculationSection(Section):
    """`engine.speculation`: tokens are guessed, and verified together. See `sim.config.SpeculationConfig`."""

    method: Literal["none", "ngram", "draft-model", "eagle", "eagle3", "mtp", "medusa"] | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MOST_DRAFTS)] | None = None
    acceptance: Annotated[float | tuple[float, ...], BeforeValidator(_rates)] | None = None
    draft_model: Text | None = None
    disable_by_batch_size: Count | None = None


class EngineSection(Section):
    """`engine`: a preset and what is changed on it."""

    preset: Annotated[str, registered("preset")] | None = None
    scheduler: SchedulerSection = SchedulerSection()
    kv: KVSection = KVSection()
    parallel: ParallelSection = ParallelSection()
    speculation: SpeculationSection = SpeculationSection()
    quantization: Annotated[str, registered("quantization")] | None = None
    max_model_len: Natural | None = None
    depth: Annotated[int, Field(ge=1, le=2)] | None = None
    stops_ahead: bool | None = None
    cuda_graphs: bool | None = None
    cuda_graph_padding: bool | None = None
    host: Literal["vllm", "sglang", "tensorrt-llm", "none"] | None = None
