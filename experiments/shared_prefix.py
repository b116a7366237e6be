"""A warning where every prompt begins alike, and the engine reads that beginning once for all sequences of a step.

vLLM's first versions of v1 do so (cascade attention: `use_cascade_attention` in vllm/v1/attention/backends/flash_attn.py) where
at least 8 requests run and share at least 256 tokens of whole blocks; since vllm-project/vllm#36318 (March 2026) it is off by
default. SGLang and TensorRT-LLM have nothing of the kind by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.load_response import mean_shape
from sim.versions import family_of, version_of

if TYPE_CHECKING:
    from experiments.resolve import Resolved
    from reports.run_data import RunData
    from workloads.traffic import Traffic

SINCE, UNTIL = (0, 8), (0, 18)
REQUESTS, TOKENS = 8, 256
TOLD = 0.05
"""Share of a decode step from which on it is told."""


def common_prefix(traffic: Traffic) -> int:
    """Tokens with which every prompt begins; 0 where prompts carry no identity."""
    spans = traffic.spans
    if spans is None or not len(traffic.arrival) or (np.diff(spans.start) < 1).any():
        return 0
    shared = 0
    for place in range(int(np.diff(spans.start).min())):
        at = spans.start[:-1] + place
        content, offset, length = spans.content[at], spans.offset[at], spans.length[at]
        if (content != content[0]).any() or (offset != offset[0]).any():
            break
        shared += int(length.min())
        if (length != length[0]).any():
            break
    return shared


def shared_prefix(resolved: Resolved, traffic: Traffic, data: RunData) -> list[str]:
    """What to tell the user of a simulated run."""
    config, model = resolved.engine, resolved.model
    if not (family_of(config) == "vllm" and SINCE <= version_of(config) < UNTIL and config.kv.prefix_caching):
        return []
    if model.mla is not None or model.window_layers or resolved.gpu.vendor != "nvidia":
        return []
    shared = common_prefix(traffic) // config.kv.block_size * config.kv.block_size
    mean = mean_shape(data)
    if shared < TOKENS or mean is None or mean[0].decode_rows < REQUESTS:
        return []
    step = mean[0]._replace(chunks=(), sampled=mean[0].decode_rows)
    once = step._replace(decode_context=max(step.decode_context - (step.decode_rows - 1) * shared, step.decode_rows))
    sooner = 1.0 - resolved.cost.step_seconds(once) / resolved.cost.step_seconds(step)
    if sooner < TOLD:
        return []
    return [
        f"all prompts begin with the same {shared:,} tokens, which vLLM 0.8 to 0.17 reads once for all sequences of a step where "
        f"that is quicker (cascade attention): not simulated, so that decode steps may be up to {sooner:.0%} shorter than here"
    ]
