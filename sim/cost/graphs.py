"""CUDA graphs: which decode batch sizes each engine captures, and so to what a batch is padded.

Sources: vLLM `config/vllm.py` (sizes and cap), SGLang `server_args.py` and `cuda_graph_runner.py`, TensorRT-LLM
`llmapi/llm_args.py` (the list with padding enabled, as its benchmark tool and serving guides set it; without, as is its default,
every size up to 32 and powers of two).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.config import EngineConfig
    from sim.hardware.gpu import GPUSpec

_GIB = 1 << 30


def _vllm() -> list[int]:
    return [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]


def _sglang() -> list[int]:
    return [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16)]


def _tensorrt_llm(largest: int) -> list[int]:
    return [1, 2, 4, *range(8, 129, 8), *range(192, largest + 1, 64)]


def _unpadded(engine: str, largest: int) -> list[int]:
    if engine != "tensorrt-llm":
        return list(range(1, largest + 1))
    return sorted({*range(1, 33), *(1 << power for power in range(6, largest.bit_length())), largest})


def largest_graph(engine: str, gpu: GPUSpec, config: EngineConfig) -> int:
    """Largest decode batch that runs from a captured graph; larger ones are launched kernel by kernel."""
    seqs = config.scheduler.max_num_seqs
    if engine == "vllm":
        return min(2 * seqs, 512, config.scheduler.max_num_batched_tokens)
    if engine == "sglang":
        if gpu.memory_bytes < 35 * _GIB:
            return 24 if config.parallel.tensor < 4 else 80
        if gpu.memory_bytes < 60 * _GIB:
            return 32 if config.parallel.tensor < 4 else 160
        return 256 if config.parallel.tensor < 4 else 512
    if engine == "tensorrt-llm":
        return max(seqs, 1)
    return 0


def verify_sizes(engine: str, gpu: GPUSpec, config: EngineConfig) -> list[int]:
    """Tokens of the captured steps in which sequences verify drafts, in ascending order; see `sim.cost.drafting`."""
    tokens = 1 + config.speculation.num_speculative_tokens
    sizes = graph_sizes(engine, gpu, config)
    if engine != "vllm":
        return [size * tokens for size in sizes]
    largest = min(2 * tokens * config.scheduler.max_num_seqs, 512, config.scheduler.max_num_batched_tokens)
    rounded = {-(-size // tokens) * tokens for size in _vllm() if size <= largest} if sizes else set()
    return sorted(size for size in rounded if size <= largest)


def graph_sizes(engine: str, gpu: GPUSpec, config: EngineConfig) -> list[int]:
    """Captured batch sizes in ascending order; empty where an engine captures none, or can use none.

    TensorRT-LLM runs a graph only where all attention ranks have the same batch (`pyexecutor/cuda_graph_runner.py`): padding
    makes it so.
    """
    if gpu.arch == "cpu" or not config.cuda_graphs:
        return []
    largest = largest_graph(engine, gpu, config)
    if not config.cuda_graph_padding and engine == "tensorrt-llm" and config.parallel.data > 1:
        return []
    if not config.cuda_graph_padding and engine in ("sglang", "tensorrt-llm"):
        return [size for size in _unpadded(engine, largest) if size <= largest]
    lists = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": lambda: _tensorrt_llm(largest)}
    return [size for size in lists[engine]() if size <= largest] if engine in lists else []


def padded(sizes: list[int], rows: int) -> int:
    """The batch size at which `rows` rows run: the next captured one, or `rows` itself beyond them."""
    at = bisect_left(sizes, rows)
    return sizes[at] if at < len(sizes) else rows
