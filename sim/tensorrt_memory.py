"""What TensorRT-LLM places on a GPU beside weights, activations and collectives, before it sizes its KV pool.

Its C++ runtime (engines built ahead, up to 0.19 by default) allocates for the largest batch that the engine was
built for, whatever is served later: `max_batch_size` rows of logits, and as many again for sampling. Its PyTorch runtime
takes what a trial run peaks at, and what it captured in CUDA graphs.
"""

from __future__ import annotations

from sim.config import EngineConfig
from sim.hardware.gpu import GIB
from sim.models.spec import ModelSpec

# C++, bytes a value of the logits (max_batch_size × vocabulary) and of the token ids (max_batch_size × longest request): 2.66 GiB
# of runtime buffers and 5.76 GiB of the decoder for 2,048 × 151,936 and 32,768 (NVIDIA/TensorRT-LLM#1188, November 2024). In the
# decoder's sources: logits after penalties, counts of tokens for these, and a workspace of the sampling with the highest
# probabilities (`layers/penaltyLayer.cpp`, `topPSamplingLayer.cu`), and nine arrays of ids as wide as the longest request.
_BUILT_LOGITS, _BUILT_IDS = 21, 40
# PyTorch: 16 bit out of the product and 32 bit after, in the CUDA graph of the largest batch. With them and the context below,
# what its own tests allow trtllm-bench to peak at (Llama-3.1-8B in 16, 8 and 4 bit: 19.4, 12.0 and 10.2 GiB,
# tests/integration/defs/test_e2e.py) comes within 1.3 GiB.
_GRAPH_LOGITS = 6
# CUDA context, libraries and kernels. C++: what is missing between total and available beside the parts that
# docs/source/reference/memory.md prints (79.10 and 70.48 GiB). PyTorch: what the tests above take for usual.
_CONTEXT_BYTES = {"c++": 3 * GIB // 4, "pytorch": GIB}
REPACKING = 0.2
"""Of MXFP4 experts on Hopper, the share that stays allocated besides: their layout is changed layer by layer while loading
(`fused_moe_triton.py`). The scales of before are still referenced (1/17), and blocks of PyTorch's allocator that hold only a
part of what they held before cannot be given back: 9.6 to 11.1 GB of the 61 GB of gpt-oss-120b, as an emulation of the allocator
over that sequence of tensors gives; the same was found and measured in vLLM (vllm-project/vllm#41268: 260 MiB a layer at
TP 2). Builds of August 2025, which also held all tensors of the first layout until the end, come to 19 to 36 GB."""


def applies(config: EngineConfig) -> bool:
    """Whether the engine is TensorRT-LLM."""
    return config.preset.startswith("tensorrt-llm")


def _runtime(config: EngineConfig) -> str:
    return "c++" if config.built_ahead else "pytorch"


def buffer_bytes(model: ModelSpec, config: EngineConfig, longest: int) -> int:
    """Logits and what sampling needs, bytes per GPU: every rank has those of the whole vocabulary.

    Args:
        longest: tokens of the longest request.
    """
    rows = config.scheduler.max_num_seqs
    if _runtime(config) == "c++":
        return rows * (_BUILT_LOGITS * model.vocab + _BUILT_IDS * longest)
    return rows * _GRAPH_LOGITS * model.vocab


def context_bytes(config: EngineConfig) -> int:
    """CUDA context and libraries, bytes."""
    return _CONTEXT_BYTES[_runtime(config)]
