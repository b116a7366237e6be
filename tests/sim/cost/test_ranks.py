"""Attention ranks in lockstep: a step takes as long as its fullest rank, and the experts see the tokens of all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.config import EngineConfig, ParallelConfig
from sim.cost import StepShape, build_cost
from sim.cost.ranks import RankGroup, expected_most
from sim.hardware import load_gpu
from sim.models import load_model

RANKS, BUDGET = 8, 8192
CONFIG = EngineConfig(preset="tensorrt-llm@1.2", host="tensorrt-llm", depth=2, quantization="nvfp4")


def rank_of(ranks: int):
    config = EngineConfig(
        preset=CONFIG.preset, host=CONFIG.host, depth=2, quantization="nvfp4",
        parallel=ParallelConfig(tensor=1, data=ranks, expert=ranks),
    )  # fmt: skip
    return build_cost(load_model("DeepSeek-R1"), load_gpu("b200-sxm"), config)


ALONE = rank_of(1)
RANK = rank_of(RANKS)
GROUP = RankGroup(RANK, RANKS, BUDGET)
PROMPT = (4000, 0)


def decode(rows: int, context: int, *chunks: tuple[int, int]) -> StepShape:
    """`rows` sequences of `context` tokens each, and prompts that end."""
    return StepShape(rows, rows * context, chunks, rows + len(chunks))


@given(st.integers(1, 400), st.integers(1, 4000), st.lists(st.tuples(st.integers(1, 4000), st.just(0)), max_size=3))
def test_a_group_of_one_is_a_rank(rows, context, chunks):
    shape = decode(rows, context, *chunks)
    group = RankGroup(ALONE, 1, 1 << 20)
    assert group.step_seconds(shape) == pytest.approx(ALONE.step_seconds(shape), rel=1e-9)
    assert group.decode_line(rows, rows * context) == ALONE.decode_line(rows, rows * context)


def test_all_wait_for_the_rank_with_a_prompt():
    """A prompt costs the group what it costs one rank, less the experts, which have an eighth of it on average."""
    with_prompt, without = (GROUP.step_seconds(decode(64, 1000, *chunks)) for chunks in ((PROMPT,), ()))
    one = RANK.step_seconds(decode(8, 1000, PROMPT))
    assert without < with_prompt < one
    experts = next(placed for placed in RANK.operators.token if placed.name == "experts")
    saved = experts.count * (experts.operator.seconds(4008) - experts.operator.seconds(4064 / 8))
    assert one - with_prompt >= 0.99 * saved > 0


def test_rows_are_shared_out_evenly():
    assert GROUP.step_seconds(decode(64, 1000)) == pytest.approx(RANK.step_seconds(decode(8, 1000)), rel=1e-9)
    assert GROUP.step_seconds(decode(65, 1000)) == pytest.approx(RANK.step_seconds(decode(9, 1000)), rel=0.001)


def test_prompts_fall_to_ranks_at_random():
    """Of eight prompts the fullest of eight ranks has 2 or 3 (2.6 on average), of one prompt one."""
    assert [expected_most(prompts, 8) for prompts in (0, 1, 8)] == [0, 1, 3]
    assert expected_most(5, 1) == 5
    assert all(expected_most(n, 8) <= expected_most(n + 1, 8) for n in range(200))
    one, _ = GROUP.fullest(decode(0, 0, *[(500, 0)] * 8))
    assert one.chunks == ((500, 0),) * 3 and one.sampled == 3


def test_a_rank_takes_no_more_than_its_budget():
    one, mean = GROUP.fullest(decode(16, 100, *[(5000, 0)] * 8))
    assert one.chunks == ((5000, 0),) and one.decode_rows == 2 and mean == (16 + 40_000) / 8


@given(st.integers(1, 400), st.integers(1, 3_000_000))
def test_lines_hold_where_they_say(rows, context):
    line = GROUP.decode_line(rows, context)
    assert line.low <= context < line.high
    after = GROUP.decode_line(rows, line.high)
    assert after.low == line.high
    ends = [each.intercept + each.slope * line.high for each in (line, after)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)


@pytest.mark.parametrize("chunks", [(), (PROMPT,), ((900, 0),) * 20], ids=["decode", "prompt", "prompts"])
def test_a_step_is_explained_to_the_last_operator(chunks):
    shape = decode(96, 1000, *chunks)
    assert sum(each.seconds for each in GROUP.explain(shape)) == pytest.approx(GROUP.step_seconds(shape), rel=1e-3)


def test_ranks_meet_twice_a_layer():
    """Tokens go out and come back; NCCL's small messages among eight take 10.5 us, and ranks miss each other by 6."""
    found = {each.name: each for each in GROUP.explain(decode(8, 1000))}
    layers = load_model("DeepSeek-R1").moe_layers
    assert found["dispatch"].count == found["combine"].count == layers and found["exchange_wait"].count == 2 * layers
    assert found["combine"].seconds / layers == pytest.approx(10.5e-6, rel=0.05)
    assert found["exchange_wait"].seconds / layers == pytest.approx(12e-6)
