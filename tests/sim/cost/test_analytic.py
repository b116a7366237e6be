"""The cost model as the engine sees it: additive, monotone, pure, and explained to the last operator."""

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.config import EngineConfig, KVConfig, ParallelConfig
from sim.cost import StepShape, build_cost
from sim.cost.analytic import KNOTS
from sim.hardware import load_gpu
from sim.models import load_model

ENGINES = ("vllm", "sglang", "tensorrt-llm", "none")


def cost_of(model="Llama-3-8B", gpu="h100", table=None, constants=None, **config):
    return build_cost(load_model(model), load_gpu(gpu), EngineConfig(**config), constants, table=table)


def decode(rows, context):
    """`rows` sequences of `context` tokens each."""
    return StepShape(decode_rows=rows, decode_context=rows * context, sampled=rows)


COSTS = [
    cost_of(host=engine, depth=depth, parallel=ParallelConfig(tensor=tp, pipeline=pp))
    for engine in ENGINES
    for depth in (1, 2)
    for tp, pp in ((1, 1), (2, 1), (2, 4))
] + [
    cost_of("Gemma-2-9B"),
    cost_of("Qwen3-30B-A3B"),
    cost_of("DeepSeek-V3", "h200"),
    cost_of("gpt-oss-20b", "a100"),
    cost_of("Qwen3-Next-80B-A3B", "h200"),
    cost_of("Gemma-4-31B", "h200"),
    cost_of("Jamba-1.5-Mini", "h200", parallel=ParallelConfig(pipeline=2)),
    cost_of("DeepSeek-V3.2", "h200"),
]
costs = st.sampled_from(COSTS)
chunks = st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 20_000)), min_size=1, max_size=4).map(tuple)
rows_and_context = st.tuples(st.integers(1, 600), st.integers(1, 8000))


# Peer faults


@given(costs, rows_and_context, chunks)
def test_a_mixed_step_is_one_pass(cost, batch, parts):
    """Dearer than either half, cheaper than both in turn, but for attention where one kernel takes both (see `among`)."""
    rows, context = batch
    alone = cost.step_seconds(StepShape(chunks=parts, sampled=len(parts)))
    decoding = cost.step_seconds(decode(rows, context))
    mixed = cost.step_seconds(StepShape(rows, rows * context, parts, rows + len(parts)))
    # Decode-only batches are padded to a captured size, which engines without piecewise graphs do not do when mixing,
    # and attention over a step's context is read off a line: both are worth up to 2 %.
    assert mixed >= 0.98 * max(alone, decoding)
    if cost.operators.among is not None:
        return
    assert mixed <= 1.03 * (alone + decoding)  # a wave of tiles may begin that neither needs alone


def test_mixing_saves_reading_the_weights_twice():
    cost = cost_of(depth=2)
    prefill, batch = StepShape(chunks=((512, 0),), sampled=1), decode(128, 500)
    mixed = StepShape(128, 128 * 500, ((512, 0),), 129)
    saved = cost.step_seconds(prefill) + cost.step_seconds(batch) - cost.step_seconds(mixed)
    assert saved > 0.3 * cost.step_seconds(batch)


def test_the_wall_clock_is_never_consulted(monkeypatch):
    shapes = [decode(8, 500), StepShape(8, 4000, ((300, 10),), 9), StepShape(swapped_tokens=5000)]
    before = [cost_of().step_seconds(shape) for shape in shapes]

    def forbidden(*_):
        raise AssertionError("the cost model looked at a clock")

    for name in (
        "time",
        "perf_counter",
        "monotonic",
        "process_time",
        "perf_counter_ns",
        "monotonic_ns",
        "sleep",
    ):
        monkeypatch.setattr(time, name, forbidden)
    assert [cost_of().step_seconds(shape) for shape in shapes] == before


# Properties


@settings(max_examples=50)
@given(costs, st.lists(st.tuples(rows_and_context, st.none() | chunks), min_size=2, max_size=5))
def test_prices_do_not_depend_on_what_was_asked_before(cost, steps):
    shapes = [StepShape(r, r * c, p or (), r) for (r, c), p in steps]
    fresh = type(cost)(
        cost.operators,
        cost.host,
        cost.front_end,
        cost.graphs,
        stages=cost._stages,
        piecewise=cost._piecewise,
    )
    assert [fresh.step_seconds(s) for s in reversed(shapes)] == [cost.step_seconds(s) for s in reversed(shapes)]


@given(costs, st.integers(1, 600), st.integers(1, 4_000_000))
def test_a_decode_step_is_exactly_its_line(cost, rows, context):
    line = cost.decode_line(rows, context)
    assert line.low <= context < line.high
    assert cost.step_seconds(StepShape(rows, context, sampled=rows)) == line.intercept + line.slope * context
    assert cost.decode_line(rows, line.high - 1) is line
    padded = StepShape(rows - 1, context - 1, sampled=rows - 1, padding_tokens=1, padding_context=1)
    assert cost.step_seconds(padded) == line.intercept + line.slope * context


@given(costs, st.none() | rows_and_context, chunks, st.integers(0, 50))
def test_the_usual_steps_written_out_are_priced_like_all_others(cost, batch, parts, dead):
    rows, context = batch or (0, 0)
    shape = StepShape(rows, rows * context, parts, rows + len(parts), dead, dead * 10)
    gpu, _ = cost.device_seconds(cost.mixed_sizes(shape))
    assert cost.step_seconds(shape) == gpu + cost.host.visible(gpu, rows + len(parts))


@given(costs, st.integers(1, 600), st.integers(10, 120))
def test_lines_are_continuous_and_rise(cost, rows, at):
    left, right = cost.decode_line(rows, KNOTS[at] - 1), cost.decode_line(rows, KNOTS[at])
    assert left.high == right.low == KNOTS[at]
    meet = left.intercept + left.slope * KNOTS[at]
    assert meet == pytest.approx(right.intercept + right.slope * KNOTS[at], rel=1e-9)
    assert left.slope >= 0


@given(costs, st.integers(1, 512), st.integers(1, 2_000_000))
def test_a_line_is_close_to_the_operators(cost, rows, context):
    """But for the corner where a step stops waiting for its launches, which a line cuts."""
    gpu, _ = cost.device_seconds(cost.decode_sizes(rows, context))
    direct = gpu + cost.host.visible(gpu, rows)
    assert cost.step_seconds(StepShape(rows, context, sampled=rows)) == pytest.approx(direct, rel=0.02)


@given(costs, rows_and_context, st.integers(1, 200), st.integers(0, 500))
def test_decoding_more_costs_more(cost, batch, more, longer):
    rows, context = batch
    base = cost.step_seconds(StepShape(rows, rows * context, sampled=rows))
    wider = StepShape(rows + more, (rows + more) * context, sampled=rows + more)
    assert cost.step_seconds(wider) >= base * (1 - 1e-3)  # each batch size has lines of its own
    assert cost.step_seconds(StepShape(rows, rows * context + longer, sampled=rows)) >= base * (1 - 1e-9)


@given(costs, rows_and_context, st.integers(1, 4000), st.integers(0, 20_000), st.integers(1, 500))
def test_prefilling_more_costs_more(cost, batch, new, past, more):
    rows, context = batch

    def seconds(n, m):
        return cost.step_seconds(StepShape(rows, rows * context, ((n, m),), rows + 1))

    base = seconds(new, past) * (1 - 1e-9)
    assert seconds(new + more, past) >= base
    assert seconds(new, past + more) >= base


@given(costs, st.none() | rows_and_context, st.just(()) | chunks, st.integers(0, 5000), st.integers(0, 50))
def test_an_explanation_adds_up(cost, batch, parts, swapped, dead):
    rows, context = batch or (0, 0)
    shape = StepShape(rows, rows * context, parts, rows + len(parts), dead, dead * 10, swapped)
    operators = cost.explain(shape)
    assert math.fsum(op.seconds for op in operators) == pytest.approx(cost.step_seconds(shape), rel=1e-9, abs=1e-15)
    for op in operators:
        assert op.source and op.bound in ("compute", "memory", "latency", "link", "host")
        assert op.seconds >= 0 and op.flops >= 0 and op.bytes >= 0 and op.count >= 1


# Quantisation


def weights_read(cost, rows=1):
    linear = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    return sum(op.bytes for op in cost.explain(decode(rows, 100)) if op.name in linear)


def test_fp8_halves_the_weight_traffic_of_decoding():
    full, half, quarter = (weights_read(cost_of(quantization=q)) for q in ("bf16", "fp8", "awq-int4"))
    assert half == pytest.approx(full / 2, rel=0.001)
    assert quarter == pytest.approx(full * 4.15625 / 16, rel=0.001)


def test_an_fp8_cache_halves_the_attention_traffic():
    def read(dtype):
        cost = cost_of(kv=KVConfig(dtype=dtype))
        return next(op.bytes for op in cost.explain(decode(64, 2000)) if op.name == "attention_decode")

    assert read("fp8") == pytest.approx(read("bf16") / 2)


def test_weights_and_cache_gain_separately():
    def seconds(weights, cache):
        return cost_of(quantization=weights, kv=KVConfig(dtype=cache), depth=2).step_seconds(decode(64, 4000))

    both = seconds("bf16", "bf16") - seconds("fp8", "fp8")
    apart = 2 * seconds("bf16", "bf16") - seconds("fp8", "bf16") - seconds("bf16", "fp8")
    assert both == pytest.approx(apart, rel=0.05)


def test_computed_scales_cost_time():
    for host in ("vllm", "tensorrt-llm"):
        static, dynamic = (cost_of(quantization=q, host=host) for q in ("fp8", "fp8-dynamic"))
        assert static.step_seconds(decode(8, 500)) < dynamic.step_seconds(decode(8, 500))
        assert any(op.name == "qkv_proj_quantize" for op in dynamic.explain(decode(8, 500)))


def _of(cost, shape, name):
    return sum(op.seconds / op.count for op in cost.explain(shape) if op.name == name)


def test_scales_of_groups_need_no_pass_over_the_whole_tensor():
    """TensorRT-LLM's computed scale of a tensor takes another kernel; scales inside a row do not, in FP8 blocks and in FP4."""
    shape = decode(4, 500)
    tensor, blocks = (
        _of(cost_of(quantization=q, host="tensorrt-llm", depth=2), shape, "qkv_proj_quantize")
        for q in ("fp8-dynamic", "fp8-block")
    )
    assert blocks < tensor / 3
    four = cost_of(gpu="b200", quantization="nvfp4", host="tensorrt-llm", depth=2)
    assert "scales of groups" in next(op.source for op in four.explain(shape) if op.name == "qkv_proj_quantize")


def test_the_first_projections_of_a_latent_attention_are_one_product():
    model = load_model("DeepSeek-V3")
    ops = {op.name: op for op in cost_of("DeepSeek-V3", "h200", host="sglang").explain(decode(1, 500))}
    assert "kv_a_proj" not in ops and "q_a_proj" not in ops
    width = model.mla.q_lora + model.mla.cached
    assert ops["qkv_a_proj"].flops == pytest.approx(2 * width * model.hidden * model.layers)


def test_ranks_without_graphs_wait_longer_for_each_other():
    """TensorRT-LLM's C++ runtime launches every kernel by itself."""
    waits = [
        _of(cost_of(host="tensorrt-llm", depth=d, parallel=ParallelConfig(tensor=4)), decode(4, 500), "all_reduce_wait")
        for d in (1, 2)
    ]
    assert waits[0] > waits[1] > 0


def test_weight_only_is_best_for_one_sequence_and_fp8_for_prefill():
    four, eight = cost_of(quantization="awq-int4"), cost_of(quantization="fp8")
    prefill = StepShape(chunks=((8192, 0),), sampled=1)
    assert four.step_seconds(decode(1, 500)) < eight.step_seconds(decode(1, 500))
    assert eight.step_seconds(prefill) < cost_of().step_seconds(prefill) < four.step_seconds(prefill)


def test_fp8_on_a_device_without_it_says_so():
    cost = cost_of(gpu="a100", quantization="fp8")
    assert "weight-only" in cost.notes[0]
    assert cost.step_seconds(decode(1, 500)) < cost_of(gpu="a100").step_seconds(decode(1, 500))
    assert not cost_of(quantization="fp8").notes


# Parallelism


def test_two_gpus_are_faster_than_one_and_talk():
    one, two = (cost_of("Llama-3.1-70B", parallel=ParallelConfig(tensor=tp)) for tp in (1, 2))
    for shape in (decode(1, 1000), decode(64, 1000), StepShape(chunks=((8192, 0),), sampled=1)):
        ratio = one.step_seconds(shape) / two.step_seconds(shape)
        assert 1.3 < ratio < 2
    names = {op.name: op for op in two.explain(decode(1, 1000))}
    assert names["all_reduce"].count == 2 * 80 + 1
    assert "all_reduce" not in {op.name for op in one.explain(decode(1, 1000))}


def test_a_slow_link_can_undo_tensor_parallelism():
    alone = cost_of("Llama-3-8B", "l40s").step_seconds(StepShape(chunks=((8192, 0),), sampled=1))
    eight = cost_of("Llama-3-8B", "l40s", parallel=ParallelConfig(tensor=8))
    assert alone / eight.step_seconds(StepShape(chunks=((8192, 0),), sampled=1)) < 3


def test_pipelines_do_not_shorten_a_single_sequence():
    one, four = (cost_of("Llama-3.1-70B", parallel=ParallelConfig(pipeline=pp)) for pp in (1, 4))
    assert four.step_seconds(decode(1, 1000)) > one.step_seconds(decode(1, 1000))
    many = StepShape(chunks=((2048, 0),) * 4, sampled=4)
    assert 3 < one.step_seconds(many) / four.step_seconds(many) < 4.2


def test_expert_parallelism_reads_fewer_experts_but_sends_tokens():
    """Experts over eight data-parallel replicas: an eighth of the weights each, and two exchanges a layer."""
    spread = cost_of("Qwen3-235B-A22B", "h200", parallel=ParallelConfig(tensor=1, data=8, expert=8))
    names = {op.name: op for op in spread.explain(decode(64, 1000))}
    assert names["dispatch"].count == names["combine"].count == 94 and "all_reduce" not in names
    whole = cost_of("Qwen3-235B-A22B", "h200")
    alone = next(op for op in whole.explain(decode(512, 1000)) if op.name == "experts")
    assert names["experts"].bytes < alone.bytes / 6
    inside = cost_of("Qwen3-235B-A22B", "h200", parallel=ParallelConfig(tensor=8, expert=8))
    assert "dispatch" not in {op.name for op in inside.explain(decode(64, 1000))}
    apart = cost_of("Qwen3-235B-A22B", "h200", parallel=ParallelConfig(tensor=1, data=16, expert=16))
    assert "all_to_all" in {op.name for op in apart.explain(decode(64, 1000))}  # between nodes


# Kinds of models


def test_few_tokens_touch_few_experts():
    cost = cost_of("Qwen3-30B-A3B")
    read = {rows: next(op.bytes for op in cost.explain(decode(rows, 100)) if op.name == "experts") for rows in (1, 256)}
    assert 10 < read[256] / read[1] < 17  # 8 of 128, and after 256 tokens all


def test_windows_bound_the_reads_of_their_layers():
    cost = cost_of("gpt-oss-20b")
    names = {op.name: op for op in cost.explain(decode(4, 50_000))}
    assert names["attention_decode"].count == names["attention_decode_windowed"].count == 12
    ratio = names["attention_decode"].bytes / names["attention_decode_windowed"].bytes
    assert ratio == pytest.approx(50_000 / 128, rel=0.01)
    short = {op.name: op for op in cost.explain(StepShape(chunks=((64, 0),), sampled=1))}
    assert short["attention_prefill"].flops == short["attention_prefill_windowed"].flops
    long = {op.name: op for op in cost.explain(StepShape(chunks=((4096, 0),), sampled=1))}
    exact = 2 * sum(min(i, 128) for i in range(1, 4097))
    expected = exact / (2 * sum(range(1, 4097)))
    ratio = long["attention_prefill_windowed"].flops / long["attention_prefill"].flops
    assert ratio == pytest.approx(expected, rel=0.02)


def test_latent_attention_reads_576_values_a_token():
    cost = cost_of("DeepSeek-V3", "h200", parallel=ParallelConfig(tensor=8))
    attention = next(op for op in cost.explain(decode(32, 4000)) if op.name == "attention_decode")
    assert attention.bytes == pytest.approx(61 * 576 * 2 * 32 * 4000, rel=1e-3)


def test_only_sampled_rows_reach_the_head():
    cost = cost_of()
    halfway, last = StepShape(chunks=((2048, 0),), sampled=0), StepShape(chunks=((2048, 0),), sampled=1)
    assert "lm_head" not in {op.name for op in cost.explain(halfway)}
    head = next(op for op in cost.explain(last) if op.name == "lm_head")
    assert head.flops == 2 * 128256 * 4096


def test_swapping_takes_the_host_link():
    cost = cost_of()
    still, moved = decode(4, 1000), StepShape(4, 4000, sampled=4, swapped_tokens=10_000)
    extra = cost.step_seconds(moved) - cost.step_seconds(still)
    assert extra == pytest.approx(10_000 * 128 * 1024 / 64e9, rel=0.01)


def test_experts_of_a_few_tokens_on_a100():
    """Qwen3-30B-A3B's, vLLM 0.14, power law of 1.01: 108 us a layer for two tokens (aiconfigurator-core 0.12.0)."""
    cost = build_cost(load_model("qwen3-30b-a3b"), load_gpu("a100"), EngineConfig(preset="vllm"), skew=1.01)
    experts = next(op for op in cost.explain(decode(2, 100)) if op.name == "experts")
    assert experts.seconds / experts.count == pytest.approx(108e-6, rel=0.55)


# Host


def test_overlap_hides_planning_and_its_absence_adds_it():
    apart, hidden = cost_of(depth=1), cost_of(depth=2)
    difference = apart.step_seconds(decode(256, 1000)) - hidden.step_seconds(decode(256, 1000))
    assert difference == pytest.approx(apart.host.schedule + 256 * apart.host.row, rel=1e-6)


def test_a_tiny_model_waits_for_the_host():
    usual = cost_of("SmolLM2-135M", host="sglang", depth=2)
    cost = usual.with_times(replace(usual.host, launch=2 * usual.host.launch), usual.front_end)  # a slow processor
    big = StepShape(chunks=((32, 0),), sampled=1)
    launch = next(op for op in cost.explain(big) if op.name == "kernel_launch")
    assert launch.seconds > 0 and launch.bound == "host"


def test_vllm_of_2024_plans_longer():
    """1.2 ms a step and 20 us a sequence more than V1 before it overlapped planning, left over in static batches on H100."""
    new, old = (cost_of(preset=preset, host="vllm", depth=1) for preset in ("vllm@0.8", "vllm-v0"))
    missing = [old.step_seconds(decode(rows, 500)) - new.step_seconds(decode(rows, 500)) for rows in (1, 64)]
    assert missing[0] == pytest.approx(1.2e-3 + 20e-6, rel=0.05)
    assert missing[1] - missing[0] == pytest.approx(63 * 20e-6, rel=0.05)


def test_sequences_take_vllms_host_longer_where_nothing_overlaps():
    """Qwen3-32B on vLLM 0.12, TP 8, 1,024 tokens in and out: 7.96 ms a token at 8 requests, 13.28 at 64 (H100)."""
    alone, hidden = (cost_of("Qwen3-32B", depth=d, parallel=ParallelConfig(tensor=8)) for d in (1, 2))
    grown = [cost.step_seconds(decode(64, 1536)) - cost.step_seconds(decode(8, 1536)) for cost in (alone, hidden)]
    assert grown[0] - grown[1] == pytest.approx(56 * 45e-6, rel=0.01)


def test_no_host_means_no_host():
    cost = cost_of(host="none", depth=1)
    assert cost.explain(decode(8, 100))[-1].seconds == 0
    assert cost.step_seconds(decode(8, 100)) < cost_of(depth=2).step_seconds(decode(8, 100))


def test_batches_are_padded_to_captured_sizes():
    cost = cost_of(depth=2)
    same = {cost.step_seconds(StepShape(rows, 9000, sampled=9)) for rows in (9, 16)}
    flops = {rows: cost.explain(StepShape(rows, 9000, sampled=rows))[1].flops for rows in (9, 16)}
    assert flops[9] == flops[16]
    assert len(same) == 2  # sampling and planning still know the real batch


def test_the_front_end_delays_by_length():
    front = cost_of().front_end
    assert front.request_seconds(0) > 0
    assert front.request_seconds(8000) - front.request_seconds(0) == pytest.approx(8000 * front.input_token)
    assert front.token_seconds > 0 and front.source


# Plausibility: figures that engines are known to reach


def test_llama_3_8b_on_an_h100():
    cost = cost_of(depth=2)
    assert 6e-3 < cost.step_seconds(decode(1, 1000)) < 7e-3
    assert 9e-3 < cost.step_seconds(decode(64, 1000)) < 10.5e-3
    assert 0.16 < cost.step_seconds(StepShape(chunks=((8192, 0),), sampled=1)) < 0.23


def test_faster_hardware_is_faster():
    def seconds(gpu):
        return cost_of(gpu=gpu, depth=2).step_seconds(decode(32, 2000))

    order = ["l4", "a10g", "l40s", "a100", "h100", "h200", "b200"]
    assert [seconds(gpu) for gpu in order] == sorted((seconds(gpu) for gpu in order), reverse=True)


def test_every_operator_has_provenance():
    for cost in COSTS:
        sources = {entry["what"]: entry["source"] for entry in cost.provenance}
        assert all(sources.values())
        shape = StepShape(4, 4000, ((100, 0),), 5, swapped_tokens=10)
        explained = {op.name.removesuffix("_windowed").removesuffix("_sparse") for op in cost.explain(shape)} - {
            "kernel_launch"
        }
        assert explained <= set(sources)


def test_operations_are_launched_one_by_one_outside_graphs():
    """Few tokens or many: a step with prompts takes as long as its operations take to launch, where they run quickly."""
    short, longer = (StepShape(0, 0, ((tokens, 0),), 1) for tokens in (600, 700))
    cost = cost_of(preset="tensorrt-llm", host="tensorrt-llm", depth=2, parallel=ParallelConfig(tensor=8))
    assert cost.step_seconds(short) == pytest.approx(cost.step_seconds(longer), rel=1e-9)
    operations = {op.name: op for op in cost.explain(short)}["kernel_launch"]
    assert operations.seconds > 0 and operations.count == cost.operators.launches
    compiled = cost_of(preset="vllm", host="vllm", depth=2, parallel=ParallelConfig(tensor=8))
    assert compiled.step_seconds(short) < cost.step_seconds(short)


def test_without_graphs_decoding_waits_for_launches():
    captured, eager = (cost_of(preset="vllm", host="vllm", depth=1, cuda_graphs=on) for on in (True, False))
    assert eager.step_seconds(decode(1, 500)) > captured.step_seconds(decode(1, 500))
    assert (
        eager.step_seconds(decode(3, 500)) <= captured.step_seconds(decode(8, 500)) + eager.operators.launches * 40e-6
    )


def test_collectives_without_a_link_go_through_the_host():
    config = ParallelConfig(tensor=2)
    slow, fast = (
        {op.name: op for op in cost_of(gpu=gpu, parallel=config).explain(decode(64, 500))}["all_reduce"].seconds
        for gpu in ("l40s", "h100-sxm")
    )
    assert slow > 5 * fast
