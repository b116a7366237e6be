"""Measured tables: interpolation, fallback, and what a wrong file gets told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.config import EngineConfig
from sim.cost import StepShape, build_cost
from sim.cost.tables import Curve, MeasuredTable, Surface
from sim.hardware import load_gpu
from sim.models import load_model
from workloads.errors import InputError

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
    # log-linear between (1, 20 us) and (64, 40 us): 8 is half way
    assert operator(measured, shape, "qkv_proj").seconds == pytest.approx(32 * 20e-6 * 2**0.5)
    assert operator(measured, shape, "attention_decode").seconds == pytest.approx(32 * 20e-6 * 8**0.75, rel=0.01)
    assert "mine.csv" in operator(measured, shape, "qkv_proj").source
    assert operator(measured, shape, "down_proj") == operator(plain, shape, "down_proj")
    fresh = StepShape(chunks=((512, 0),), sampled=1)
    assert operator(measured, fresh, "attention_prefill").seconds == pytest.approx(32 * 50e-6)


def test_outside_the_grid_the_form_answers(tmp_path):
    plain, measured = model_cost(), model_cost(write(tmp_path / "mine.csv", HEADER + ROWS))
    for shape, name in (
        (StepShape(128, 128 * 9000, sampled=128), "qkv_proj"),
        (StepShape(128, 128 * 9000, sampled=128), "attention_decode"),
        (StepShape(chunks=((512, 512),), sampled=1), "attention_prefill"),
    ):
        assert operator(measured, shape, name).seconds == operator(plain, shape, name).seconds


def test_quantised_layers_keep_their_form(tmp_path):
    path = write(tmp_path / "mine.csv", HEADER + ROWS)
    config = EngineConfig(quantization="fp8")
    cost = build_cost(load_model("Llama-3-8B"), load_gpu("h100"), config, table=path)
    assert "mine.csv" not in operator(cost, StepShape(8, 8000, sampled=8), "qkv_proj").source


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
