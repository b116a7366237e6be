"""Operator forms: limits, monotony, and what they count."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.constants import AllReduceConstants, GemmConstants, MoEConstants, PrefillConstants, load_constants
from sim.cost.experts import GroupedGemm, Routing
from sim.cost.operators import AllReduce, DecodeAttention, Gemm, PrefillAttention
from sim.hardware import Link, load_gpu

H100 = load_gpu("h100")
VLLM = load_constants(H100, "vllm")
IDEAL = GemmConstants(1.0, 1.0, 0.0, 0.0, 20.0, 0.0, "ideal")


def gemm(constants=IDEAL, n=4096, k=4096, weight=2.0, activation=2.0):
    return Gemm(constants, H100, "bf16", n, k, weight * n * k, activation)


def test_an_ideal_matmul_meets_both_roofs():
    few, many = gemm().seconds(1), gemm().seconds(16384)
    assert few == pytest.approx((2 * 4096 * 4096 + 4 * 4096) / 3350e9, rel=0.01)
    assert many == pytest.approx(2 * 16384 * 4096 * 4096 / 989.4e12, rel=0.01)
    assert (gemm().work(1).bound, gemm().work(16384).bound) == ("memory", "compute")


def test_work_is_counted_exactly():
    work = gemm().work(10)
    assert work.flops == 2 * 10 * 4096 * 4096
    assert work.bytes == 2 * (4096 * 4096 + 10 * 4096 + 10 * 4096)


@given(st.integers(1, 20000), st.integers(1, 20000), st.sampled_from(["vllm", "sglang", "tensorrt-llm"]))
def test_one_matmul_over_all_tokens_beats_two(a, b, engine):
    """But for a wave of tiles that one token too many may begin, worth up to a tenth, or a pair of tiles of a rigid kernel."""
    for kind in ("bf16", "fp8", "weight-only"):
        constants = load_constants(H100, engine).gemm[kind]
        operator = gemm(constants)
        together = operator.seconds(a + b)
        assert (
            max(operator.seconds(a), operator.seconds(b))
            <= together
            <= (1.2 if constants.large_rows else 1.1) * (operator.seconds(a) + operator.seconds(b))
        )


def test_unpacking_costs_a_weight_the_same_whatever_its_width():
    """So few rows of INT4 lose a larger part of the bandwidth than INT8, and many rows a part of the arithmetic."""
    constants = load_constants(H100, "vllm").gemm["weight-only"]

    def share(bytes_a_weight: float, tokens: int) -> float:
        size = bytes_a_weight * 4096 * 4096
        plain = Gemm(replace(constants, unpack_ns=0.0), H100, "bf16", 4096, 4096, size, 2.0)
        return plain.seconds(tokens) / Gemm(constants, H100, "bf16", 4096, 4096, size, 2.0).seconds(tokens)

    assert share(0.53, 1) < share(1.0, 1) < 1
    assert share(0.53, 8192) == pytest.approx(share(1.0, 8192), rel=0.01)
    alone = [Gemm(constants, H100, "bf16", 4096, 4096, size * 4096 * 4096, 2.0).seconds(1) for size in (0.53, 1.0)]
    bare = [
        Gemm(replace(constants, unpack_ns=0.0), H100, "bf16", 4096, 4096, size * 4096 * 4096, 2.0).seconds(1)
        for size in (0.53, 1.0)
    ]
    assert alone[0] - bare[0] == pytest.approx(alone[1] - bare[1])
    assert alone[0] - bare[0] == pytest.approx(constants.unpack_ns * 1e-12 * 4096 * 4096 / H100.sms)


def test_experts_touched_in_expectation():
    constants = MoEConstants(0.5, 0.9, 10.0, 2.0, 0.0, 0.5, "test")
    experts = GroupedGemm(
        constants, H100, "bf16", experts=8, local=8, chosen=2, hidden=64, up=128, down=64,
        expert_bytes=1e6, activation_bytes=2,
    )  # fmt: skip
    assert experts.touched(1) == pytest.approx(2)
    assert experts.touched(4) == pytest.approx(8 * (1 - 0.75**4))
    assert experts.touched(1000) == pytest.approx(8)
    assert experts.work(1).flops == 2 * 2 * 64 * (128 + 64)


@given(st.integers(1, 1024), st.integers(0, 10**7), st.integers(1, 10**6))
def test_decode_attention_grows_with_rows_and_context(rows, context, more):
    for constants in VLLM.decode.values():
        operator = DecodeAttention(constants, H100, 32, 8, 256.0, 128)
        assert operator.seconds(rows, context) <= operator.seconds(rows, context + more)
        longer = context * (rows + 1) / rows  # the same context spread over more rows is read by more blocks at once
        assert operator.seconds(rows, context) <= operator.seconds(rows + 1, longer)


def test_few_heads_are_read_by_few_blocks():
    """A kernel that does not split reads one long sequence at a block's pace, whatever the device could do."""
    whole = VLLM.decode["bf16"]
    alone = replace(whole, unit=0.01, splits=1.0)
    one, many = (DecodeAttention(alone, H100, 8, 1, 256.0, 128).seconds(rows, 131072) for rows in (1, 64))
    assert one == pytest.approx(131072 * 512 / (0.01 * 3350e9), rel=0.05) and many < one / 5
    split = replace(alone, splits=32.0)
    assert DecodeAttention(split, H100, 8, 1, 256.0, 128).seconds(1, 131072) == pytest.approx(one / 32, rel=0.5)


def test_few_tiles_leave_the_device_idle():
    """The smallest tile, of 64 × 64, wastes least where larger ones are no better."""
    constants = replace(IDEAL, wave=1.0)
    tiles = Gemm(constants, H100, "bf16", 512, 16384, 0.0, 0.0)
    assert tiles.seconds(64) == pytest.approx(2 * 64 * 64 * 16384 / (989.4e12 / 132), rel=0.01)  # 8 tiles, 132 SMs
    assert tiles.seconds(65) == pytest.approx(tiles.seconds(64), rel=1e-6)
    full = Gemm(constants, H100, "bf16", 132 * 64, 16384, 1.0, 2)
    assert full.seconds(65) == pytest.approx(2 * full.seconds(64), rel=0.01)  # a second wave begins


def test_large_tiles_are_worth_their_waste_where_edges_count():
    """132 tiles of 256 × 128 are one wave; two waves of 128 × 128 take 4/3 of that where edges are 128 wide."""
    edges = replace(IDEAL, wave=1.0, edge=128.0)
    wide = Gemm(edges, H100, "bf16", 128 * 132, 16384, 1.0, 0.0)
    assert wide.seconds(256) == pytest.approx(2 * 256 * 128 * 16384 / (989.4e12 / 132), rel=0.01)
    few = Gemm(edges, H100, "bf16", 64, 16384, 1.0, 0.0)
    alone = Gemm(replace(IDEAL, wave=1.0), H100, "bf16", 64, 16384, 1.0, 0.0)
    assert few.seconds(64) == pytest.approx(192 * 192 * (256 * 128) / (384 * 256) / 64**2 * alone.seconds(64), rel=0.01)


def test_slow_tensor_cores_slow_down_full_tiles_alone():
    """What a tile takes besides its results is no arithmetic: a quarter of the rate leaves it as long as it was."""
    edges = replace(IDEAL, wave=1.0, edge=128.0)
    slow = replace(edges, compute=0.25, faster=0.25)
    fast, late = (Gemm(c, H100, "bf16", 128 * 132, 16384, 0.0, 0.0) for c in (edges, slow))
    assert late.seconds(256) == pytest.approx(4 * fast.seconds(256), rel=0.01)
    one, same = (Gemm(c, H100, "bf16", 64, 16384, 0.0, 0.0).seconds(1) for c in (edges, slow))
    results, tile = 16 * 64, (16 + 128) * (64 + 128) * 256 * 128 / (384 * 256)
    assert same / one == pytest.approx((tile + 3 * results) / tile, rel=0.01)


def test_kernels_that_do_not_choose_fill_up_large_tiles():
    """One token more than 128 costs as much as 256, where a kernel takes pairs of 128 rows from there on."""
    pairs = replace(IDEAL, wave=1.0, large_rows=128.0)
    rigid, free = (Gemm(c, H100, "bf16", 65536, 16384, 1.0, 0.0) for c in (pairs, replace(IDEAL, wave=1.0)))
    assert rigid.seconds(128) == free.seconds(128)
    assert rigid.seconds(129) == pytest.approx(rigid.seconds(256), rel=1e-3)
    assert rigid.seconds(129) > 1.2 * free.seconds(129)
    assert rigid.seconds(257) == pytest.approx(rigid.seconds(512), rel=1e-3)


def test_few_columns_do_not_use_the_whole_memory():
    """Weights of one column of tiles come at a share of the bandwidth, however long it is; many columns share it all."""
    constants = replace(IDEAL, unit=0.1)
    assert gemm(constants, n=64).seconds(1) == pytest.approx(2 * 64 * 4096 / (0.1 * 3350e9), rel=0.01)
    assert gemm(constants, n=65536).seconds(1) == pytest.approx(gemm(n=65536).seconds(1), rel=0.01)


def test_the_longest_tile_shows():
    """One prompt of 128 × S tokens on S multiprocessors: the last tile takes twice as long as the mean of them."""
    base = PrefillConstants(1.0, 1.0, 0.0, 20.0, 0.0, "ideal")
    n = 128 * 132
    sizes = (n, n * n, n, 132)
    even = PrefillAttention(base, H100, "bf16", 1, 128, 512.0).seconds(*sizes)
    path = PrefillAttention(replace(base, path=1.0), H100, "bf16", 1, 128, 512.0).seconds(*sizes)
    assert path == pytest.approx(2 * even, rel=0.01)


def test_heads_of_a_group_share_tiles():
    """Sixteen queries of eight heads fill a tile of 128, where each head would take one of its own."""
    base = PrefillConstants(1.0, 1.0, 0.0, 20.0, 1000.0, "ideal")
    alone, packed = (
        PrefillAttention(replace(base, packed=each), H100, "bf16", 32, 128, 2048.0, 4) for each in (0.0, 1.0)
    )
    assert (alone.least, packed.least) == (128, 16)

    def seconds(operator: PrefillAttention, chunks: int) -> float:
        return operator.seconds(16 * chunks, 256 * chunks, 16 * chunks, chunks * max(16, operator.least) / 128)

    assert seconds(packed, 1000) == pytest.approx(seconds(alone, 1000) / 8, rel=0.1)
    assert PrefillAttention(replace(base, packed=1.0), H100, "bf16", 32, 128, 2048.0).least == 128  # as many KV heads


def test_writing_the_cache_takes_time_a_token():
    base = PrefillConstants(1.0, 1.0, 0.0, 20.0, 0.0, "ideal")
    writes = replace(base, cache_ns=2.0, cache_most_ns=6.0)
    sizes = (1000, 1000 * 1000, 1000, 1000 / 128)
    for kv_heads, nanoseconds in ((2, 4.0), (8, 6.0)):
        plain, more = (
            PrefillAttention(c, H100, "bf16", 8, 128, 4096.0, kv_heads).seconds(*sizes) for c in (base, writes)
        )
        assert more - plain == pytest.approx(1000 * nanoseconds * 1e-9)


def test_what_a_key_costs_besides_its_bytes_weighs_on_narrow_heads():
    constants = replace(VLLM.decode["bf16"], launch_us=0.0, extra_us=0.0, unit=0.0, extra_bytes=64.0, bandwidth=1.0)
    narrow, wide = (DecodeAttention(constants, H100, 8, 8, 2.0 * dim, dim) for dim in (64, 128))
    assert narrow.seconds(8, 10**7) == pytest.approx(192 / 128 * narrow.work(8, 10**7).bytes / 3350e9, rel=0.01)
    assert wide.seconds(8, 10**7) == pytest.approx(320 / 256 * wide.work(8, 10**7).bytes / 3350e9, rel=0.01)


def test_wide_heads_take_longer_to_launch():
    constants = replace(
        VLLM.decode["bf16"], launch_us=10.0, wide_us=2.0, head_us=0.0, head_dim_us=0.0, query_us=0.0, row_us=0.0
    )
    least = [DecodeAttention(constants, H100, 8, 8, 2.0 * dim, dim).seconds(1, 0) * 1e6 for dim in (32, 64, 128, 256)]
    assert [each - least[0] for each in least] == pytest.approx([0.0, 0.0, 2.0, 6.0])


def test_narrow_heads_may_take_longer_to_launch():
    """TensorRT-LLM has other kernels for heads of 64 over an 8-bit cache."""
    constants = replace(
        VLLM.decode["bf16"], launch_us=6.0, narrow_us=2.0, wide_us=0.0, head_us=0.0, head_dim_us=0.0, row_us=0.0
    )
    constants = replace(constants, query_us=0.0)
    least = [DecodeAttention(constants, H100, 8, 8, 2.0 * dim, dim).seconds(1, 0) * 1e6 for dim in (64, 96, 128, 256)]
    assert least == pytest.approx([least[2] + 2.0, least[2] + 1.0, least[2], least[2]])


def test_heads_cost_a_sequence_by_their_width():
    """Beside its bytes: with one key each, 1,024 sequences of 132 multiprocessors' KV heads."""
    constants = replace(
        VLLM.decode["bf16"], launch_us=0.0, extra_us=0.0, knee_us=0.0, wide_us=0.0, unit=0.0, head_us=1.0, head_dim_us=0.5,
        query_us=0.0, row_us=0.0, norm=12.0,
    )  # fmt: skip
    times = [
        DecodeAttention(constants, H100, 132, 132, 2.0 * dim, dim).seconds(1024, 0) * 1e6 for dim in (64, 128, 256)
    ]
    assert times == pytest.approx([1280.0, 1536.0, 2048.0])


def test_a_sequence_costs_the_same_however_few_heads_read_it():
    constants = replace(VLLM.decode["bf16"], launch_us=0.0, head_us=0.0, head_dim_us=0.0, query_us=0.0, row_us=13.2)
    assert DecodeAttention(constants, H100, 8, 1, 256.0, 128).seconds(1000, 1) == pytest.approx(100e-6, rel=0.2)


def test_a_short_chunk_over_a_long_past_takes_as_long_as_one_tile():
    """One head on 132 multiprocessors: 16 tokens and 128 fill one tile, and so does twice the heads."""
    ideal = PrefillConstants(1.0, 1.0, 0.0, 20.0, 0.0, "ideal", path=1.0)

    def seconds(new: int, heads: int = 1) -> float:
        sizes = (new, new * (new + 2 * 100_000), new + 100_000, max(new, 128) / 128)
        return PrefillAttention(ideal, H100, "bf16", heads, 128, 0.0).seconds(*sizes)

    assert seconds(128) == pytest.approx(seconds(16), rel=0.02) == pytest.approx(seconds(128, heads=2), rel=0.02)
    assert seconds(128) == pytest.approx(4 * 128 * 128 * 100_064 * 132 / 989.4e12, rel=0.02)
    assert seconds(1280, heads=32) > 2 * seconds(128)


@given(st.integers(1, 100_000))
def test_skewed_routing_touches_fewer_and_fills_more(tokens):
    even, skewed = Routing(256, 256, 8), Routing(256, 256, 8, 1.2)
    assert skewed.touched(tokens) <= even.touched(tokens) + 1e-9 <= 256 + 1e-6
    assert even.share == skewed.share == 8  # all experts here: nothing can be fuller
    assert Routing(256, 8, 8, 1.2).share > 1.4 * Routing(256, 8, 8).share == 1.4 * 8 * 8 / 256


def test_long_decode_attention_approaches_the_bandwidth():
    operator = DecodeAttention(VLLM.decode["bf16"], H100, 32, 8, 256.0, 128)
    work = operator.work(128, 128 * 32768)
    assert work.bytes == 2 * 8 * 256 * 128 * 32768
    assert 0.85 < work.bytes / 3350e9 / operator.seconds(128, 128 * 32768) <= 1.0


@given(st.integers(1, 8192), st.integers(0, 100_000), st.integers(1, 4096))
def test_prefill_attention_grows_with_chunk_and_past(new, past, more):
    for engine in ("vllm", "tensorrt-llm"):
        operator = PrefillAttention(load_constants(H100, engine).prefill["bf16"], H100, "bf16", 32, 128, 4096.0)

        def seconds(n, m, operator=operator):
            return operator.seconds(n, n * (n + 2 * m), n + m, max(n, 128) / 128)

        assert seconds(new, past) <= seconds(new + more, past) * (1 + 1e-12)
        assert seconds(new, past) <= seconds(new, past + more) * (1 + 1e-12)


@given(st.integers(2, 4096), st.integers(2, 64))
def test_chunks_of_a_prompt_do_the_work_of_the_prompt(size, pieces):
    """Σ n(n+2m) over the chunks of a prompt is the square of its length, however it is cut."""
    cuts = [size * i // pieces for i in range(pieces + 1)]
    assert sum((b - a) * (b - a + 2 * a) for a, b in pairwise(cuts)) == size**2


def test_a_narrow_product_is_cut_along_its_inner_dimension():
    """256 columns are four tiles for 132 multiprocessors: 32 pieces of 512 take a thirty-second of the time, and their sum."""
    ideal = replace(IDEAL, compute=1.0, norm=20.0, wave=1.0)
    whole = Gemm(ideal, H100, "bf16", 256, 16384, 2.0 * 256 * 16384, 2.0)
    cut = Gemm(replace(ideal, split_us=2.0), H100, "bf16", 256, 16384, 2.0 * 256 * 16384, 2.0)
    assert cut.seconds(64) < whole.seconds(64) / 3
    assert cut._tiled(64)[2] ** (1 / 20) == pytest.approx(whole._arithmetic(64) / 32, rel=0.01)
    assert cut.seconds(16384) == whole.seconds(16384)  # tiles enough for all


def test_all_reduce_takes_the_cheaper_algorithm():
    constants = AllReduceConstants(5.0, 0.5, 50.0, 0.8, "test")
    link = Link("test", 450e9, 0.0)
    operator = AllReduce(constants, link, 4, 8192.0)
    small, large = operator.seconds(1), operator.seconds(100_000)
    assert small == pytest.approx(5e-6 + 3 * 8192 / (0.5 * 450e9))
    assert large == pytest.approx(50e-6 + 1.5 * 8192e5 / (0.8 * 450e9))
    assert (operator.work(1).bound, operator.work(100_000).bound) == ("latency", "link")


def test_long_messages_are_left_to_the_library():
    constants = AllReduceConstants(5.0, 0.5, 50.0, 0.8, "test", ring_mb=8.0, ring_us=40.0, ring=0.7)
    operator = AllReduce(constants, Link("test", 450e9, 0.0), 4, 8000.0)
    assert operator.seconds(1000) == pytest.approx(50e-6 + 1.5 * 8e6 / (0.8 * 450e9))
    assert operator.seconds(1001) == pytest.approx(40e-6 + 1.5 * 1001 * 8000 / (0.7 * 450e9))


def test_one_shot_ends_where_the_engine_ends_it():
    """vLLM sends 8 MiB and more between two GPUs through symmetric memory, though one shot would be faster."""
    constants = AllReduceConstants(5.0, 0.6, 9.0, 0.5, "test", one_shot_kb=8.0)
    operator = AllReduce(constants, Link("test", 450e9, 0.0), 2, 1024.0)
    assert operator.seconds(7) == pytest.approx(5e-6 + 7 * 1024 / 270e9)
    assert operator.seconds(8) == pytest.approx(9e-6 + 8 * 1024 / 225e9)


def test_a_switch_that_adds_up_saves_bytes():
    """Each of eight GPUs sends its message once and receives an eighth as a sum, instead of 14 eighths; behind no switch,
    and between two, nothing changes."""
    plain = AllReduceConstants(5.0, 0.6, 9.0, 0.5, "test", one_shot_kb=1.0)
    summed = replace(plain, switch=1.0)
    switch, mesh = Link("nvswitch", 450e9, 2e-6), Link("mesh", 450e9, 2e-6)

    def sent(constants, link, ways):
        operator = AllReduce(constants, link, ways, 1e6)
        return (operator.seconds(100) - 9e-6) * 0.5 * 450e9 / 1e8

    assert sent(plain, switch, 8) == sent(summed, mesh, 8) == pytest.approx(14 / 8)
    assert sent(summed, switch, 8) == pytest.approx(9 / 8)
    assert sent(summed, switch, 2) == pytest.approx(1.0)


def test_a_ring_works_on_pieces():
    """The time of a piece and of its bytes: (√a + √b)² with the best number of pieces."""
    constants = AllReduceConstants(5.0, 0.6, 9.0, 0.5, "test", ring_mb=1.0, ring_us=10.0, ring=0.8, ring_chunk_us=4.0)
    operator = AllReduce(constants, Link("test", 450e9, 0.0), 2, 1e6)
    for messages in (4, 100):
        bytes_us = messages * 1e6 / (0.8 * 450e9) * 1e6
        assert operator.seconds(messages) * 1e6 == pytest.approx(10 - 4 + (4**0.5 + bytes_us**0.5) ** 2)


@pytest.mark.parametrize(
    ("gpu", "engine"), [("h100", "vllm"), ("b200", "vllm"), ("b200", "tensorrt-llm"), ("h200", "sglang")]
)
def test_longer_messages_never_take_much_less(gpu, engine):
    """Where engines change algorithms the next may be a little faster, as in tables; nowhere by more than a fifth."""
    spec = load_gpu(gpu)
    for ways in (2, 4, 8):
        operator = AllReduce(load_constants(spec, engine).all_reduce[str(ways)], spec.ring_link(ways), ways, 1.0)
        times = [operator.seconds(256 * 2 ** (step / 4)) for step in range(90)]
        assert all(later > 0.8 * earlier for earlier, later in pairwise(times)), ways


def test_a_slow_link_costs_latency_on_every_hop():
    constants = VLLM.all_reduce["4"]
    fast = AllReduce(constants, H100.group_link(4), 4, 8192.0).seconds(1)
    slow = AllReduce(constants, load_gpu("l40s").group_link(4), 4, 8192.0).seconds(1)
    assert fast < slow < inf
