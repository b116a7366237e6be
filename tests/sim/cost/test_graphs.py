"""Captured batch sizes of the engines."""

from dataclasses import replace

import pytest

from sim.config import EngineConfig, ParallelConfig, SchedulerConfig
from sim.cost.build import build_cost
from sim.cost.graphs import graph_sizes, largest_graph, padded
from sim.hardware import load_gpu
from sim.models import load_model

H100, L4 = load_gpu("h100"), load_gpu("l4")


def config(seqs=256, tokens=8192, tensor=1):
    return EngineConfig(
        scheduler=SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=tokens),
        parallel=ParallelConfig(tensor=tensor),
    )


def test_vllm():
    sizes = graph_sizes("vllm", H100, config())
    assert sizes[:5] == [1, 2, 4, 8, 16] and sizes[-1] == 512
    assert graph_sizes("vllm", H100, config(seqs=16))[-1] == 32
    assert [padded(sizes, rows) for rows in (1, 3, 9, 257, 513)] == [1, 4, 16, 272, 513]


@pytest.mark.parametrize(("gpu", "tensor", "largest"), [(H100, 1, 256), (H100, 8, 512), (L4, 1, 24)])
def test_sglang(gpu, tensor, largest):
    assert (
        graph_sizes("sglang", gpu, config(tensor=tensor))[-1]
        == largest
        == largest_graph("sglang", gpu, config(tensor=tensor))
    )


def test_tensorrt_llm_captures_up_to_its_batch_limit():
    sizes = graph_sizes("tensorrt-llm", H100, config(seqs=2048))
    assert sizes[:4] == [1, 2, 4, 8] and sizes[-1] == 2048


def test_without_padding_only_some_sizes_are_captured():
    """As `llm_args.py` lists them where padding is off: every size to 32, powers of two, the largest."""
    exact = replace(config(seqs=300), cuda_graph_padding=False)
    assert graph_sizes("tensorrt-llm", H100, exact) == [*range(1, 33), 64, 128, 256, 300]
    assert graph_sizes("sglang", H100, exact) == list(range(1, 257))
    assert graph_sizes("vllm", H100, exact) == graph_sizes("vllm", H100, config(seqs=300))
    ranks = replace(exact, parallel=ParallelConfig(data=2))  # which seldom have the same batch
    assert graph_sizes("tensorrt-llm", H100, ranks) == []
    assert len(graph_sizes("tensorrt-llm", H100, replace(ranks, cuda_graph_padding=True))) > 10


def test_a_size_that_is_not_captured_waits_for_launches():
    model = load_model("Llama-3-8B")
    padding, exact = (
        build_cost(model, H100, EngineConfig("tensorrt-llm@1.2", host="tensorrt-llm", depth=2, cuda_graph_padding=on))
        for on in (True, False)
    )
    seconds = [[cost.decode_line(rows, 1000).intercept for rows in (64, 65, 128)] for cost in (padding, exact)]
    assert seconds[0][::2] == seconds[1][::2]
    assert seconds[1][1] > 0.9 * exact.operators.launches * exact.host.launch > 1.5 * seconds[0][1]


def test_others_capture_nothing():
    assert graph_sizes("none", H100, config()) == []
    assert padded([], 7) == 7
