"""Waiting queues by hand, and what presets must be made of."""

from __future__ import annotations

from dataclasses import fields

import pytest
from test_sglang import state_with

from sim.config import EngineConfig, KVConfig, SchedulerConfig
from sim.engine.sequence import Sequence
from sim.kv import ALLOCATORS, SLABS
from sim.kv.base import NO_HIT
from sim.kv.contiguous import ContiguousAllocator, FirstFit
from sim.kv.radix import RadixAllocator
from sim.presets import NEWEST, PRESETS, SINCE, find_preset, preset_config
from sim.schedulers import GATES, POLICIES, SCHEDULERS, VICTIMS, make_queue
from sim.schedulers.victims import LastAdmitted, LowestPriority
from workloads.errors import InputError
from workloads.traffic import Span, private_content


def sequence(row: int, *spans: Span, priority: int = 0, arrival: float = 0.0) -> Sequence:
    spans = spans or (Span(private_content(row), 0, 100),)
    return Sequence(row, spans, sum(span.length for span in spans), 50, arrival, priority)


def order(queue) -> list[int]:
    """Rows in the order in which the queue gives them."""
    told = []
    while len(queue):
        head = queue.head()
        queue.remove(head)
        head.place = "device"  # admitted, nothing computed yet
        told.append(head.row)
    return told


@pytest.mark.parametrize("where, expected", [("head", [2, 3, 1, 4]), ("tail", [1, 4, 3, 2]), ("arrival", [1, 2, 3, 4])])
def test_where_victims_return(where: str, expected: list[int]) -> None:
    """1 and 4 wait; 3 is preempted, and then 2."""
    queue = make_queue("fcfs", RadixAllocator(10), None)
    one, two, three, four = (sequence(row, arrival=float(row)) for row in (1, 2, 3, 4))
    for seq in (one, four):
        queue.push(seq)
    for seq in (three, two):
        queue.put_back(seq, where)
    assert order(queue) == expected


def test_priority_ranks_by_value_then_arrival_and_victims_keep_their_rank() -> None:
    queue = make_queue("priority", RadixAllocator(10), None)
    for row, priority in ((1, 2), (2, 0), (3, 1), (4, 0)):
        queue.push(sequence(row, priority=priority, arrival=float(row)))
    queue.put_back(sequence(0, priority=1, arrival=0.0), "tail")
    assert order(queue) == [2, 4, 0, 3, 1]


def test_a_queue_gives_up_whoever_is_taken_from_its_middle() -> None:
    for policy in ("fcfs", "priority", "lpm", "shortest-job"):
        queue = make_queue(policy, RadixAllocator(10), lambda seq: 5)
        seqs = [sequence(row, arrival=float(row)) for row in range(5)]
        for seq in seqs:
            queue.push(seq)
        queue.remove(seqs[2])
        assert seqs[2] not in queue and len(queue) == 4
        assert [seq.row for seq in queue] == [0, 1, 3, 4]


def cached(*spans: Span) -> RadixAllocator:
    """A pool in which the given contents can be hit."""
    pool = RadixAllocator(10_000)
    for number, span in enumerate(spans):
        seq = sequence(900 + number, span)
        assert pool.admit(seq, NO_HIT, span.length)
        seq._computed = span.length
        pool.computed(seq, span.length)
    return pool


def test_the_longest_cached_prefix_comes_first() -> None:
    queue = make_queue("lpm", cached(Span(-1, 0, 50), Span(-2, 0, 90)), None)
    queue.push(sequence(0))
    queue.push(sequence(1, Span(-1, 0, 50), Span(2, 0, 9)))
    queue.push(sequence(2, Span(-2, 0, 90), Span(4, 0, 9)))
    queue.push(sequence(3, Span(-2, 0, 60), Span(6, 0, 9)))
    assert order(queue) == [2, 3, 1, 0]


def test_above_128_waiting_it_is_first_come_first_served() -> None:
    queue = make_queue("lpm", cached(Span(-1, 0, 50)), None)
    for row in range(128):
        queue.push(sequence(row))
    queue.push(sequence(128, Span(-1, 0, 50), Span(2, 0, 9)))
    assert queue.head().row == 0
    queue.remove(queue.head())
    assert queue.head().row == 128


def test_prompts_that_begin_alike_let_one_of_them_go_ahead() -> None:
    """Short hits only: 0 and 1 agree for 40 tokens, so 1 comes after everybody else; 2 agrees for 31, which is too little."""
    queue = make_queue("lpm", cached(), None)
    queue.push(sequence(0, Span(-1, 0, 40), Span(0, 0, 20)))
    queue.push(sequence(1, Span(-1, 0, 20), Span(-1, 20, 20), Span(2, 0, 30)))
    queue.push(sequence(2, Span(-1, 0, 31), Span(4, 0, 30)))
    queue.push(sequence(3))
    assert order(queue) == [0, 2, 3, 1]


def test_whoever_waited_for_it_comes_first_once_the_beginning_is_computed() -> None:
    pool = cached()
    queue = make_queue("lpm", pool, None)
    first, second, other = sequence(0, Span(-1, 0, 60)), sequence(1, Span(-1, 0, 60), Span(2, 0, 9)), sequence(2)
    for seq in (first, second, other):
        queue.push(seq)
    assert pool.admit(first, NO_HIT, 60)
    queue.remove(first)
    first.place = "device"
    assert queue.head() is other
    first._computed = 60
    pool.computed(first, 60)
    assert queue.head() is second


def test_a_short_first_piece_in_common_is_not_a_long_one() -> None:
    """Both begin with content -1, but row 0 has only ten tokens of it: they agree for ten."""
    queue = make_queue("lpm", cached(), None)
    for row, spans in enumerate([(Span(-1, 0, 10), Span(0, 0, 90)), (Span(-1, 0, 100),), (Span(5, 0, 50),)]):
        queue.push(sequence(row, *spans))
    assert order(queue) == [0, 1, 2]


def test_two_short_pieces_in_common_are_a_long_one() -> None:
    queue = make_queue("lpm", cached(), None)
    for row in (0, 1):
        queue.push(sequence(row, Span(-1, 0, 20), Span(-2, 0, 30), Span(private_content(row), 0, 5)))
    queue.push(sequence(2))
    assert order(queue) == [0, 2, 1]


@pytest.mark.parametrize(
    "pool", [RadixAllocator(1000, prefix_caching=False), ContiguousAllocator(1000, FirstFit(1000), lambda seq: 100)]
)
def test_without_a_cache_it_is_first_come_first_served(pool) -> None:
    queue = make_queue("lpm", pool, None)
    for row in range(4):
        queue.push(sequence(row, Span(-1, 0, 64)))
    queue.push(sequence(4))
    assert order(queue) == [0, 1, 2, 3, 4]


# --- victims


def test_victims_are_not_those_that_only_wait_for_their_last_plan() -> None:
    state, seqs = state_with((10, 1, 50), (10, 1, 50), (10, 1, 50))
    state.cohort.leave(seqs[2])
    state.draining[seqs[2]] = None
    for name, rule in VICTIMS.items():
        if name != "none":
            assert rule().choose(state) is not seqs[2], name
    assert LastAdmitted().choose(state) is seqs[1]
    seqs[0].priority = 4
    assert LowestPriority().choose(state) is seqs[0]


# --- presets


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_made_of_things_that_exist(name: str) -> None:
    made = preset_config(name, device_memory=85e9, max_model_len=8192)
    assert made.preset == name
    assert made.scheduler.name in SCHEDULERS and made.scheduler.gate in GATES
    assert made.scheduler.victim in VICTIMS and made.scheduler.policy in POLICIES
    assert made.kv.allocator in ALLOCATORS and made.kv.slab in SLABS
    assert made.scheduler.max_num_batched_tokens >= 1 and made.scheduler.max_num_seqs >= 1


@pytest.mark.parametrize("name", PRESETS)
def test_every_setting_and_source_of_a_preset_is_the_name_of_a_field(name: str) -> None:
    preset = PRESETS[name]
    known = {"engine": EngineConfig, "scheduler": SchedulerConfig, "kv": KVConfig}
    for section, kind in known.items():
        assert set(getattr(preset, section)) <= {field.name for field in fields(kind)}
    for key in {*preset.sources, *preset.refuses} - {"*"}:
        section, _, field_name = key.rpartition(".")
        assert field_name in {field.name for field in fields(known[section or "engine"])}, key


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("vllm@0.6.3.post1", "vllm-v0"), ("vllm@0.8.5", "vllm@0.8"), ("vllm@0.12.0", "vllm@0.8"), ("vllm@v0.14.1", "vllm@0.14"),
        ("vllm@0.20.0", "vllm@0.33"), ("vllm@1.2", "vllm@0.33"), ("sglang@0.5.6.post2", "sglang@0.5"),
        ("tensorrt-llm@0.14.0", "tensorrt-llm@0.5"), ("tensorrt-llm@1.0.0rc3", "tensorrt-llm@1.2"),
    ],
)  # fmt: skip
def test_any_version_of_an_engine_may_be_named(name: str, preset: str) -> None:
    assert find_preset(name)[0] == preset


def test_versions_that_are_not_simulated_or_none() -> None:
    with pytest.raises(InputError, match="older than what is simulated of sglang") as told:
        find_preset("sglang@0.3.2")
    assert "sglang@0.4 is the nearest" in told.value.hint and find_preset("sglang@0.4")
    for wrong in ("vllm@newest", "orca@1.0", "vllm@"):
        with pytest.raises(InputError, match="unknown preset"):
            find_preset(wrong)
    for steps in SINCE.values():
        assert all(preset in PRESETS for _, preset in steps)


def test_bare_names_are_the_newest() -> None:
    for bare, full in NEWEST.items():
        assert find_preset(bare)[0] == full
    with pytest.raises(InputError, match="did you mean"):
        find_preset("sglan")
