"""The real engine against `transformers`: logits within 1e-4 and equal greedy tokens, through schedulers and allocators."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")

from real_engine import Served, busy, check_all, engine_config, traffic_of  # noqa: E402

from backends.torch.kv import TokenRadixAllocator  # noqa: E402
from backends.torch.places import Places  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny("tiny-llama", tmp_path_factory.mktemp("llama"), seed=3)


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


def test_static_batches(model, folder) -> None:
    config = engine_config(name="static", victim="none", max_num_seqs=4, allocator="contiguous", prefix_caching=False)
    served = Served(model, traffic_of(busy(3, 9, samples=False)), config, capacity=4 * 200, max_len=200)
    check_all(served, folder)


@pytest.mark.parametrize(("allocator", "depth"), list(product(["paged", "radix"], [1, 2])))
def test_swapped_sequences_come_back_with_all_their_keys_and_values(model, folder, allocator, depth) -> None:
    """Pages freed by a swap are given to others in the same step, so a late copy would take theirs."""
    config = engine_config(depth=depth, allocator=allocator, preemption="swap", max_num_seqs=12, name="continuous")
    rows = [{"prompt": 20 + i, "output": 40} for i in range(10)]
    served = Served(model, traffic_of(rows), config, capacity=320)
    check_all(served, folder)
    assert served.swaps > 2 and served.swaps == served.preemptions


@pytest.mark.parametrize(("allocator", "depth"), [("paged", 1), ("paged", 2), ("radix", 2)])
def test_one_step_may_swap_out_and_in_through_the_same_pages(model, folder, allocator, depth) -> None:
    config = engine_config(
        name="rotating:Rotating", preemption="swap", max_num_seqs=6, allocator=allocator, depth=depth,
        prefix_caching=False, block_size=4,
    )  # fmt: skip
    rows = [{"prompt": 9 + i, "output": 30} for i in range(6)]
    served = Served(model, traffic_of(rows), config, capacity=240)
    check_all(served, folder)
    assert served.exchanges > 5 and served.swaps > 10


def test_without_host_memory_swaps_become_recomputation(model, folder) -> None:
    config = engine_config(preemption="swap", max_num_seqs=12)
    rows = [{"prompt": 20 + i, "output": 40} for i in range(10)]
    served = Served(model, traffic_of(rows), config, capacity=320, host_tokens=60)
    check_all(served, folder)
    assert 0 < served.swaps < served.preemptions


@pytest.mark.parametrize("depth", [1, 2])
def test_parallel_samples_copy_their_half_full_block_before_writing(model, folder, depth) -> None:
    """Greedy samples of one prompt say the same; a shared last block would be written by both at once."""
    how = {row: (None, None) for row in range(3)}
    rows = [{"prompt": length, "output": 30, "n": 3} for length in (37, 48, 5)]
    served = Served(model, traffic_of(rows), engine_config(depth=depth, max_num_seqs=9), given=how)
    check_all(served, folder)
    assert served.copies == 2 * 2, "one copy a sample, none for the prompt that ends with a block"
    for row in range(3):
        assert served.tokens[row, 0] == served.tokens[row, 1] == served.tokens[row, 2]


@pytest.mark.parametrize("depth", [1, 2])
def test_samples_without_memory_at_the_fork_wait_and_say_every_token_once(model, folder, depth) -> None:
    config = engine_config(depth=depth, max_num_seqs=8, prefix_caching=False)
    for output in (25, 2, 1):
        rows = [{"prompt": 30, "output": output, "n": 4}, {"prompt": 20, "output": output}]
        served = Served(model, traffic_of(rows), config, capacity=80, max_len=80)
        check_all(served, folder)
        assert served.chunks > 2, "every fork found memory, so nothing was tested"
        assert sorted(served.finished) == [0, 1]


def test_a_prompt_of_one_token_and_an_answer_of_one(model, folder) -> None:
    rows = [
        {"prompt": 1, "output": 1},
        {"prompt": 1, "output": 20},
        {"prompt": 16, "output": 1, "n": 2},
        {"prompt": 17, "output": 2},
    ]
    for depth, allocator in product((1, 2), ("paged", "radix")):
        served = Served(model, traffic_of(rows), engine_config(depth=depth, allocator=allocator))
        check_all(served, folder)
        assert sorted(served.finished) == [0, 1, 2, 3]


def test_what_cannot_fit_is_refused_and_the_rest_is_served(model, folder) -> None:
    rows = [{"prompt": 90, "output": 60}, {"prompt": 30, "output": 10}, {"prompt": 300, "output": 10}]
    served = Served(model, traffic_of(rows), engine_config(), capacity=112, max_len=256)
    assert sorted(served.refused) == [0, 2] and "KV" in served.refused[0] and "max_model_len" in served.refused[2]
    check_all(served, folder)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("caching", [True, False])
def test_slots_of_a_batch_are_given_together(model, folder, monkeypatch, depth, caching) -> None:
    """Not table by table, but where somebody joins: samples that split off, prompts between, one that is computed again."""
    together, alone = [], []
    next_slots, lay = TokenRadixAllocator.next_slots, Places.lay

    def watched(self, members, known):
        slots = next_slots(self, members, known)
        together.append(0 if slots is None else len(slots))
        return slots

    monkeypatch.setattr(TokenRadixAllocator, "next_slots", watched)
    monkeypatch.setattr(Places, "lay", lambda self, place, *rest: (alone.append(place), lay(self, place, *rest))[1])
    rows = [{"prompt": 10 + i, "output": 40, "n": 1 + (i == 2), "at": 5 * i} for i in range(5)]
    config = engine_config(
        depth=depth, allocator="radix", block_size=1, prefix_caching=caching, max_num_seqs=8, max_num_batched_tokens=16,
    )  # fmt: skip
    served = Served(model, traffic_of(rows), config, capacity=220)
    check_all(served, folder)
    assert sum(together) > 150 and served.preemptions
    assert len(alone) < 0.5 * sum(together)
