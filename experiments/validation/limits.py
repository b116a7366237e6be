"""Batch and token limits that a benchmark tool works out by itself."""

from __future__ import annotations

import math
import re
from typing import Any

from sim.hardware import GPUSpec
from sim.models import ModelSpec
from sim.quantization.kv import kv_mode_for
from sim.quantization.weights import weight_mode_for


def trtllm_bench(
    model: ModelSpec,
    gpu: GPUSpec,
    *,
    tensor: int,
    pipeline: int,
    weights: str,
    kv: str,
    inputs: float,
    outputs: float,
    data: int = 1,
    number: int = 0,
) -> dict[str, int]:
    """What TensorRT-LLM's `trtllm-bench` sets for given mean lengths (`tensorrt_llm/bench/build/tuning.py`).

    It estimates how many requests fit (memory less the weights at their nominal bytes, times 0.95, over the KV of input
    and output), caps that at 4,096, and rounds the batch up to 32, 128 or 256 and the tokens to 256, 512 or 1,024. Ranks of
    attention data parallelism are GPUs of one tensor-parallel group to it; each then has all of these limits to itself.

    Returns:
        `max_num_seqs` and `max_num_batched_tokens`.
    """
    mode, kv_mode = weight_mode_for(weights, model), kv_mode_for(kv, model.dtype)
    tensor *= data
    ways = tensor * pipeline
    bytes_per_token = 2 * model.layers * max(tensor, model.kv_heads) * model.head_dim * kv_mode.bits / 8
    if model.mla is not None:
        bytes_per_token = model.layers * model.mla.cached * kv_mode.bits / 8 * tensor
    free = gpu.memory_bytes * ways - model.params_total * mode.bits / 8
    fitting = max(free * 0.95, 0.0) / (bytes_per_token * (inputs + outputs))
    batch = max(min(fitting, 4096.0) / pipeline, 1.0)
    tokens = min(batch * (1 + inputs / outputs), 32768.0)
    if batch < 256:
        seqs = max(64, _up(batch, 32))
    else:
        seqs = _up(batch, 128 if batch < 1024 else 256)
    if tokens < 4096:
        budget = max(2048, _up(tokens, 256))
    else:
        budget = _up(tokens, 512 if tokens < 8192 else 1024)
    return {"max_num_seqs": seqs, "max_num_batched_tokens": budget}


def trtllm_bench_whole(
    model: ModelSpec, gpu: GPUSpec, *, inputs: float, outputs: float, **known: Any
) -> dict[str, int]:
    """The same where prompts are not cut: a budget that holds the longest beside a whole batch.

    So in `bench/benchmark/utils/general.py`.
    """
    found = trtllm_bench(model, gpu, inputs=inputs, outputs=outputs, **known)
    room = math.ceil(inputs) + found["max_num_seqs"]
    return found | {"max_num_batched_tokens": max(found["max_num_batched_tokens"], room)}


_LISTED = (
    ("gpt-j-6b", 1, 0, 128, 2048),
    ("gpt-j-6b", 1, 256, 2048, 2048),
    ("llama-2-7b", 1, 0, 4096, 8192),
    ("mistral-7b", 1, 0, 4098, 8192),
    ("llama-3(.1)?-8b", 1, 0, 2048, 8192),
    ("llama-2-70b", 2, 0, 2048, 2048),
    ("llama-2-70b", 4, 0, 4096, 8192),
    ("llama-2-70b", 4, 4224, 256, 8192),
    ("llama-2-70b", 8, 0, 8192, 16384),
    ("llama-2-70b", 8, 2176, 1024, 16384),
    ("llama-3(.1)?-70b", 1, 0, 2048, 2048),
    ("llama-3(.1)?-70b", 2, 0, 256, 1024),
    ("llama-3(.1)?-70b", 2, 4096, 2048, 1024),
    ("llama-3(.1)?-70b", 4, 0, 2048, 1024),
    ("llama-3(.1)?-70b", 8, 0, 8192, 16384),
    ("mixtral-8x7b", 2, 0, 2048, 3072),
    ("mixtral-8x7b", 4, 0, 8192, 8192),
    ("falcon-180b", 4, 0, 4096, 8192),
    ("falcon-180b", 8, 0, 2048, 8192),
)
"""Model, tensor degree, length of request that it holds for (0: any other), batch, tokens: `tensorrt_llm/bench/build/
benchmark_config.yml`, as `trtllm-bench build` took it before it estimated. Llama 3.1 has the architecture of Llama 3."""


def trtllm_bench_listed(
    model: ModelSpec, gpu: GPUSpec, *, tensor: int, pipeline: int, inputs: float, outputs: float, **_: object
) -> dict[str, int]:
    """What `trtllm-bench` built engines for until 0.16: a list by model and degree, else the builder's own 2,048 and 8,192.

    It stopped at degrees that it did not list and asked for limits; those of the next smaller degree are taken then. Where the
    list has more rows than tokens, no more than the tokens can run.
    """
    rows, tokens = 2048, 8192
    for name, degree, length, seqs, budget in _LISTED:  # by rising degree
        listed = re.fullmatch(name, model.name.lower()) and degree <= tensor and pipeline == 1
        if listed and length in (0, round(inputs + outputs)):
            rows, tokens = seqs, budget
    return {"max_num_seqs": min(rows, tokens), "max_num_batched_tokens": tokens}


def one_prompt(model: ModelSpec, gpu: GPUSpec, *, inputs: float, number: int, **_: object) -> dict[str, int]:
    """A token budget that holds one whole prompt beside a full batch: what a server that cannot split prompts needs.

    The InferenceX scripts for TensorRT-LLM set it so: concurrency plus input length, rounded up to 64.
    """
    return {"max_num_batched_tokens": _up(inputs + number + 64, 64)}


def one_prompt_or_8192(model: ModelSpec, gpu: GPUSpec, *, inputs: float, number: int, **_: object) -> dict[str, int]:
    """The same, but never less than 8,192 tokens."""
    budget = one_prompt(model, gpu, inputs=inputs, number=number)["max_num_batched_tokens"]
    return {"max_num_batched_tokens": max(budget, 8192)}


def prompt_and_1500(model: ModelSpec, gpu: GPUSpec, *, inputs: float, number: int, **_: object) -> dict[str, int]:
    """Prompt length, batch and 1,500 tokens more.

    What aiconfigurator's generator of deployments sets (`generator/rule_plugin/vllm.rule`, `sglang.rule`, `trtllm.rule`).
    """
    return {"max_num_batched_tokens": round(inputs) + number + 1500}


def prompt_and_1500_for_so_many(
    model: ModelSpec, gpu: GPUSpec, *, inputs: float, number: int, **_: object
) -> dict[str, int]:
    """The same, with no more running than the load has: what that generator sets for SGLang."""
    return {**prompt_and_1500(model, gpu, inputs=inputs, number=number), "max_num_seqs": number}


def _up(value: float, unit: int) -> int:
    return math.ceil(value / unit) * unit


LIMITS = {
    "trtllm-bench": trtllm_bench,
    "trtllm-bench-whole": trtllm_bench_whole,
    "trtllm-bench-listed": trtllm_bench_listed,
    "one-prompt": one_prompt,
    "one-prompt-or-8192": one_prompt_or_8192,
    "prompt-and-1500": prompt_and_1500,
    "prompt-and-1500-for-so-many": prompt_and_1500_for_so_many,
}
