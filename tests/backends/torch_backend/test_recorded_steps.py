"""Recorded decode steps: the same tokens as without, and what is recorded when. A GPU's graphs are stood in for by running the
recorded work again, which sees nothing but the buffers that a graph would see."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")

from real_engine import Served, check_all, engine_config, traffic_of  # noqa: E402

from backends.torch.graphs import DecodeGraphs, row_sizes  # noqa: E402
from backends.torch.places import Places  # noqa: E402
from backends.torch.pool import KVPool  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402
from workloads.traffic import Span  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny("tiny-llama", tmp_path_factory.mktemp("llama"), seed=3)


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


class Recording:
    """Notes how often work is recorded; the second run of it gives the answer, so that it must not matter how often it runs."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, work):
        self.recorded += 1
        work()

        def replay():
            return work()

        return replay


@pytest.mark.parametrize("allocator", ["paged", "radix", "contiguous"])
@pytest.mark.parametrize("depth", [1, 2])
def test_tokens_are_the_same_as_without(model, folder, allocator, depth) -> None:
    """Batches of one to eleven, prompts between, samples that split off, sequences that are swapped or computed again."""
    rows = [{"prompt": 9 + 7 * i, "output": 30 - 2 * i, "at": 2 * i, "n": 1 + (i == 4)} for i in range(9)]
    rows += [{"prompt": [Span(-1, 0, 40)], "output": 8, "at": 9}, {"prompt": [Span(-1, 0, 40)], "output": 8, "at": 30}]
    slabs = allocator == "contiguous"
    config = engine_config(
        depth=depth, allocator=allocator, max_num_seqs=12, max_num_batched_tokens=64, prefix_caching=not slabs,
        preemption="swap" if depth == 1 else "recompute",
    )  # fmt: skip
    recording = Recording()
    served = Served(
        model, traffic_of(rows), config, capacity=12 * 120 if slabs else 240, max_len=120, capture=recording
    )
    check_all(served, folder)
    graphs = served.executor.graphs
    assert recording.recorded == graphs.recorded and graphs.replayed > 3 * graphs.recorded > 3
    assert slabs or served.preemptions


def test_dead_rows_of_a_static_batch_are_part_of_the_record(model, folder) -> None:
    config = engine_config(name="static", victim="none", max_num_seqs=4, allocator="contiguous", prefix_caching=False)
    rows = [{"prompt": 5 + i, "output": 3 + 4 * i} for i in range(7)]
    served = Served(model, traffic_of(rows), config, capacity=4 * 60, max_len=60, capture=Recording())
    check_all(served, folder)
    graphs = served.executor.graphs
    assert graphs.recorded == 1 and graphs.replayed > 20, "four rows, then three of a batch and one that is filled up"


def test_one_record_for_each_size_and_reach(model) -> None:
    """Three sequences, the longest passing 1,024 tokens on the way: records of four rows, and shorter when some have left."""
    rows = [{"prompt": 1015, "output": 25}, {"prompt": 10, "output": 40}, {"prompt": 10, "output": 40}]
    config = engine_config(max_num_seqs=4, max_num_batched_tokens=2048)
    served = Served(model, traffic_of(rows), config, max_len=1100, capture=Recording(), check=False)
    graphs = served.executor.graphs
    assert sorted(graphs._graphs) == [(2, 64), (4, 64), (4, 69)]
    assert graphs.recorded == 3 and graphs.replayed == 39


def test_all_sizes_may_be_recorded_before_serving(model, folder) -> None:
    """Nothing is recorded while requests are served, and what was recorded without any sequences serves them."""
    rows = [{"prompt": 9 + 7 * i, "output": 20, "at": 2 * i} for i in range(5)]
    served = Served(
        model, traffic_of(rows), engine_config(max_num_seqs=5), max_len=90, capture=Recording(),
        before=lambda served: served.executor.graphs.record_all(90),
    )  # fmt: skip
    check_all(served, folder)
    graphs = served.executor.graphs
    assert graphs.recorded == len(row_sizes(5)) == 4 and graphs.replayed > 20


def test_records_are_made_anew_when_buffers_have_moved(model, folder) -> None:
    rows = [{"prompt": 10, "output": 30}, {"prompt": 10, "output": 30}]

    def move(served: Served, plans: int) -> None:
        if plans == 12:
            served.executor.places.widen(500)

    served = Served(model, traffic_of(rows), engine_config(max_num_seqs=4), max_len=64, capture=Recording(), after=move)
    check_all(served, folder)
    assert served.executor.graphs.recorded == 2


def test_steps_too_large_to_be_recorded_run_as_they_are(model, folder) -> None:
    """A batch of the engine's own can be no larger than its largest record; one that somebody else attached can."""
    served = Served(model, traffic_of([{"prompt": 5, "output": 9}]), engine_config(), capture=Recording())
    graphs = served.executor.graphs
    largest = graphs.rows(1) and max(row_sizes(served.engine.config.scheduler.max_num_seqs))
    assert graphs.rows(largest) == largest and graphs.rows(largest + 1) == 0


@pytest.mark.parametrize(("rows", "longest", "count"), [(8, 64, 4), (4, 4000, 6), (1, 64, 1)])
def test_memory_of_records_is_estimated_from_the_first_two(model, rows, longest, count) -> None:
    """The first brings what all share, each of the others as much as the second; what shrinks meanwhile counts as nothing."""

    def estimated(*marks: int) -> int:
        pool, places = (
            KVPool(model.architecture.spec, 1, 16, model.dtype, model.device),
            Places(model.device, 0, rows + 1, 256),
        )
        graphs, told = DecodeGraphs(model, pool, places, rows, Recording()), iter(marks)
        found = graphs.estimate(longest, lambda: next(told))
        assert graphs.recorded == min(count, 2)
        return found

    assert estimated(100, 600, 650) == 500 + 50 * (count - 1)
    assert estimated(100, 600, 600) == estimated(100, 600, 580) == 500


def test_logits_of_all_records_share_their_memory(model) -> None:
    """They are read before the next step is replayed, and would be gigabytes for a wide vocabulary."""
    seen = set()

    def look(served: Served, plans: int) -> None:
        seen.update(graph.replay().data_ptr() for graph in served.executor.graphs._graphs.values())

    rows = [{"prompt": 9, "output": 20, "at": 2 * i} for i in range(5)]
    served = Served(model, traffic_of(rows), engine_config(max_num_seqs=5), max_len=64, capture=Recording(), after=look)
    assert served.executor.graphs.recorded > 2 and len(seen) == 1


def test_nothing_is_recorded_on_a_cpu_unless_asked_for(model) -> None:
    served = Served(model, traffic_of([{"prompt": 5, "output": 9}]), engine_config())
    assert served.executor.graphs is None


@pytest.mark.parametrize("most", [1, 2, 7, 8, 9, 100, 256, 1000])
def test_sizes(most) -> None:
    sizes = row_sizes(most)
    assert sizes[0] == 1 and sizes[-1] >= most and (len(sizes) == 1 or sizes[-2] < most)
    assert all(a < b <= 2 * a for a, b in pairwise(sizes))
