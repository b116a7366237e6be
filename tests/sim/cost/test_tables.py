"""Measured tables: interpolation, fallback, and what a wrong file gets told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.config import EngineConfig
from sim.cost import StepShape, build_cost
from sim.cost.constants import load_constants
from sim.cost.forms import predict
from sim.cost.tables import Curve, MeasuredTable, Surface
from sim.cost.timings import Timing
from sim.hardware import load_gpu
from sim.models import load_model
from workloads.errors import InputError, Place

HEADER = "op,dtype,m,n,k,batch,seq,heads,kv_heads,head_dim,ways,bytes,us\n"
ROWS = (
    "gemm,bfloat16,1,6144,4096,,,,,,,,20\ngemm,bfloat16,64,6144,4096,,,,,,,,40\n"
    "attn_decode,bf16,,,,1,1000,32,8,128,,,10\nattn_decode,bf16,,,,1,4000,32,8,128,,,40\n"
    "attn_decode,bf16,,,,16,1000,32,8,128,,,80\nattn_decode,bf16,,,,16,4000,32,8,128,,,320\n"
    "attn_prefill,bf16,,,,1,512,32,8,128,,,50\nattn_prefill,bf16,,,,1,1024,32,8,128,,,150\n"
)


def write(path, text):
    path.write_text(text)
    return path


def model_cost(table=None):
    return build_cost(load_model("Llama-3-8B"), load_gpu("h100"), EngineConfig(depth=2), table=table)


def operator(cost, shape, name):
    return next(op for op in cost.explain(shape) if op.name == name)


@given(st.floats(1, 1000), st.floats(0.5, 2))
def test_power_laws_are_interpolated_exactly(size, exponent):
    curve = Curve({x: 3.0 * x**exponent for x in (1, 8, 30, 1000)})
    assert curve.at(size) == pytest.approx(3 * size**exponent, rel=1e-9)
    assert curve.at(0.5) is None and curve.at(1001) is None


@given(st.floats(1, 64), st.floats(10, 1000))
def test_surfaces_too(batch, length):
    surface = Surface({(b, x): b * x**0.5 for b in (1, 4, 64) for x in (10, 100, 1000)})
    assert surface.at(batch, length) == pytest.approx(batch * length**0.5, rel=1e-9)
    assert surface.at(65, 100) is None and surface.at(4, 9) is None


def test_a_table_replaces_what_it_measured_and_nothing_else(tmp_path):
    plain, measured = model_cost(), model_cost(write(tmp_path / "mine.csv", HEADER + ROWS))
    shape = StepShape(8, 8 * 2000, sampled=8)
    # the ratio to the form is log-linear between the rows (1, 20 us) and (64, 40 us): 8 is half way
    form = {m: operator(plain, StepShape(m, m * 2000, sampled=m), "qkv_proj").seconds / 32 for m in (1, 8, 64)}
    expected = form[8] * (20e-6 / form[1] * 40e-6 / form[64]) ** 0.5
    assert operator(measured, shape, "qkv_proj").seconds == pytest.approx(32 * expected)
    exact = StepShape(1, 1000, sampled=1)
    assert operator(measured, exact, "qkv_proj").seconds == pytest.approx(32 * 20e-6)
    inside = StepShape(1, 2000, sampled=1)  # the form says 13 us
    assert operator(measured, inside, "attention_decode").seconds == pytest.approx(32 * 20e-6, rel=0.1)
    assert "mine.csv" in operator(measured, shape, "qkv_proj").source
    assert operator(measured, shape, "norm") == operator(plain, shape, "norm")
    fresh = StepShape(chunks=((512, 0),), sampled=1)
    assert operator(measured, fresh, "attention_prefill").seconds == pytest.approx(32 * 50e-6)


def test_a_past_that_no_row_has_is_left_to_the_form(tmp_path):
    plain, measured = model_cost(), model_cost(write(tmp_path / "mine.csv", HEADER + ROWS))
    shape = StepShape(chunks=((512, 512),), sampled=1)
    assert operator(measured, shape, "attention_prefill").seconds == operator(plain, shape, "attention_prefill").seconds


def test_the_form_is_corrected_near_measured_shapes_and_alone_far_from_them(tmp_path):
    """All rows say twice what the form says: nearby shapes are dearer, and the further off the less."""
    plain = model_cost()
    rows = ""
    for m in (1, 4, 16, 64, 256):
        fitted = Timing("gemm", "bf16", "", {"m": m, "n": 6000, "k": 4096}, 1.0, "", "", "", "", Place())
        gpu = load_gpu("h100")
        us = 2 * predict(fitted, load_constants(gpu, "vllm").gemm["bf16"], gpu)
        rows += f"gemm,bf16,{m},6000,4096,,,,,,,,{us}\n"
    measured = model_cost(write(tmp_path / "mine.csv", HEADER + rows))
    shape = StepShape(16, 16 * 500, sampled=16)
    ratios = {
        name: operator(measured, shape, name).seconds / operator(plain, shape, name).seconds
        for name in ("qkv_proj", "o_proj", "gate_up_proj", "lm_head")
    }
    assert ratios["qkv_proj"] == pytest.approx(2, rel=0.01)
    assert ratios["qkv_proj"] >= ratios["o_proj"] > ratios["gate_up_proj"] > ratios["lm_head"] > 1
    assert ratios["lm_head"] < 1.15
    far = StepShape(chunks=((4, 0),), sampled=1)
    assert operator(measured, far, "attention_prefill").seconds == operator(plain, far, "attention_prefill").seconds


def test_quantised_layers_are_measured_with_their_quantisation(tmp_path):
    """An FP8 row is the product and the quantisation with computed scales: the two priced apart add up to it."""
    path = write(tmp_path / "mine.csv", HEADER + "gemm,fp8,8,6144,4096,,,,,,,,30\ngemm,fp8,16,6144,4096,,,,,,,,30\n")
    config = EngineConfig(quantization="fp8-dynamic", depth=2)
    cost = build_cost(load_model("Llama-3-8B"), load_gpu("h100"), config, table=path)
    shape = StepShape(8, 8000, sampled=8)
    both = operator(cost, shape, "qkv_proj").seconds + operator(cost, shape, "qkv_proj_quantize").seconds
    assert both == pytest.approx(32 * 30e-6)
    assert "mine.csv" in operator(cost, shape, "qkv_proj").source


def experts_cost(tmp_path, rows: str, skew: float = 0.0):
    header = "op,dtype,tokens,hidden,ffn,topk,experts,tp,ep,distribution,us\n"
    table = write(tmp_path / "experts.csv", header + rows)
    return build_cost(load_model("Mixtral-8x7B"), load_gpu("h100"), EngineConfig(depth=2), table=table, skew=skew)


def test_experts_are_measured_where_the_table_has_them_as_unevenly_routed(tmp_path):
    shape = StepShape(16, 16 * 100, sampled=16)

    def seconds(cost) -> float:
        return operator(cost, shape, "experts").seconds / 32

    even = "moe,bf16,16,4096,14336,2,8,1,1,balanced,900\nmoe,bf16,64,4096,14336,2,8,1,1,balanced,1000\n"
    skewed = even.replace("balanced", "power_law_1.2").replace("900", "700")
    assert seconds(experts_cost(tmp_path, even + skewed)) == pytest.approx(900e-6)
    assert seconds(experts_cost(tmp_path, even + skewed, 1.2)) == pytest.approx(700e-6)
    unsaid = even.replace("balanced", "").replace("900", "800")
    assert seconds(experts_cost(tmp_path, unsaid, 1.2)) == pytest.approx(800e-6), "rows that do not say stand for any"
    analytic = seconds(build_cost(load_model("Mixtral-8x7B"), load_gpu("h100"), EngineConfig(depth=2), skew=0.0))
    for other in ("4096,14336,2,16,1", "4096,14336,2,8,2", "2048,14336,2,8,1"):
        assert seconds(experts_cost(tmp_path, even.replace("4096,14336,2,8,1", other))) == pytest.approx(analytic)


def test_int8_keys_and_values_have_rows_of_their_own_or_those_of_fp8(tmp_path):
    from sim.config import KVConfig

    header = "op,dtype,kv_dtype,batch,seq,heads,kv_heads,head_dim,us\n"
    fp8 = "attn_decode,bf16,fp8,1,1000,32,8,128,30\nattn_decode,bf16,fp8,1,4000,32,8,128,60\n"
    int8 = fp8.replace("fp8", "int8").replace(",30", ",40")

    def seconds(rows: str, kv: str) -> float:
        table = write(tmp_path / "kv.csv", header + rows)
        config = EngineConfig(depth=2, kv=KVConfig(dtype=kv))
        cost = build_cost(load_model("Llama-3-8B"), load_gpu("h100"), config, table=table)
        return operator(cost, StepShape(1, 1000, sampled=1), "attention_decode").seconds / 32

    assert seconds(fp8 + int8, "fp8") == pytest.approx(30e-6, rel=0.1)
    assert seconds(fp8 + int8, "int8") == pytest.approx(40e-6, rel=0.1)
    assert seconds(fp8, "int8") == pytest.approx(30e-6, rel=0.15)


def test_rows_of_other_devices_and_impossible_ones_are_left_out(tmp_path):
    head = "op,dtype,m,n,k,gpu,launch,us\n"
    good = "gemm,bf16,1,6144,4096,h100,,20\ngemm,bf16,8,6144,4096,h100,,20\n"
    path = write(tmp_path / "a.csv", head + good + "gemm,bf16,2,6144,4096,a100,,1\ngemm,bf16,8192,8192,8192,h100,,5\n")
    table = MeasuredTable.read(path, load_gpu("h100"))
    assert table.used == 2 and len(table.notes) == 2
    assert any("a100-sxm" in note for note in table.notes) and any("faster" in note for note in table.notes)
    with pytest.raises(InputError, match="a100-sxm"):
        MeasuredTable.read(write(tmp_path / "b.csv", head + "gemm,bf16,2,6144,4096,a100,,1\n"), load_gpu("h100"))


def test_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    path = write(tmp_path / "mine.csv", HEADER + ROWS)
    pq.write_table(pa_csv.read_csv(pa.BufferReader(path.read_bytes())), tmp_path / "mine.parquet")
    shape = StepShape(8, 16000, sampled=8)
    assert model_cost(tmp_path / "mine.parquet").step_seconds(shape) == model_cost(path).step_seconds(shape)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("gem,bf16,1,6144,4096,,,,,,,,20", "op"),
        ("gemm,bf16,,6144,4096,,,,,,,,20", "m"),
        ("gemm,bf16,1,6144,4096,,,,,,,,fast", "us"),
        ("gemm,bf16,1,6144,4096,,,,,,,,-1", "us"),
        ("gemm,,1,6144,4096,,,,,,,,1", "dtype"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, row, column):
    path = write(tmp_path / "mine.csv", HEADER + row + "\n")
    with pytest.raises(InputError) as caught:
        MeasuredTable.read(path)
    place = caught.value.place
    assert (place.file, place.line, place.column) == (str(path), 2, column)


def test_files_that_are_no_table(tmp_path):
    for path in (
        write(tmp_path / "empty.csv", HEADER),
        tmp_path / "none.csv",
        write(tmp_path / "x.parquet", "no"),
    ):
        with pytest.raises(InputError):
            MeasuredTable.read(path)
