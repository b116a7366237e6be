"""`bench profile`: a machine measured, and the same workload in both worlds: counts equal, times told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from simulate import run
from typer.testing import CliRunner

from experiments.cli import app
from experiments.profile import _two
from reports.metrics import summarize
from sim.cost.base import StepShape
from sim.cost.timings import read_timings
from sim.hardware import load_gpu
from workloads.errors import InputError

WORKLOAD = {
    "name": "both worlds",
    "engine": {
        "preset": "vllm",
        "max_model_len": 200,
        "kv": {"capacity_tokens": 1600},
        "scheduler": {"max_num_seqs": 4},
    },
    "traffic": {
        "max_tokens": "exact",
        "synthetic": {
            "requests": 16,
            "arrivals": {"process": "constant", "rate": 100},
            "input_tokens": {"distribution": "uniform", "low": 10, "high": 40},
            "output_tokens": {"distribution": "uniform", "low": 4, "high": 12},
            "sessions": {"turns": 3, "think": "1ms"},
        },
    },
    "load": {"mode": "closed", "concurrency": 1},
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[Path, Path, dict]:
    """A tiny model, its profile, and what the command said."""
    pytest.importorskip("torch", minversion="2.0")
    pytest.importorskip("transformers")
    from backends.weights.tiny import make_tiny

    home = tmp_path_factory.mktemp("profile")
    model = make_tiny("tiny-qwen3", home / "tiny")
    command = ["profile", "--model", str(model), "-o", str(home / "table"), "--json"]
    sizes = ["--tokens", "64", "--batch", "4", "--length", "128", "--device", "cpu"]
    done = CliRunner().invoke(app, [*command, *sizes])
    assert done.exit_code == 0, done.output
    again = CliRunner().invoke(app, [*command, *sizes])
    assert again.exit_code == 2 and "--overwrite" in again.output
    return model, home / "table", json.loads(done.stdout)


def in_simulation(model: Path, table: Path) -> dict:
    cost = {"tables": [str(table / "kernels.csv")], "calibration": str(table / "calibration.toml")}
    return {"model": str(model), "backend": {"name": "sim", "gpu": str(table / "gpu.toml")}, "cost": cost}


def test_the_table_has_every_shape_of_the_model(measured) -> None:
    _, table, told = measured
    timings = read_timings(table / "kernels.csv")
    assert len(timings) == told["timings"]
    linears = {(t.shape["n"], t.shape["k"]) for t in timings if t.op == "gemm"}
    assert linears == {(384, 64), (64, 256), (320, 64), (64, 160), (512, 64)}
    assert {t.shape["m"] for t in timings if t.op == "gemm"} == {1, 2, 4, 8, 16, 32, 64}
    assert {t.op for t in timings} == {"gemm", "attn_decode", "attn_prefill"}
    assert "fp32" in (table / "kernels.csv").read_text("utf-8")
    device = load_gpu(str(table / "gpu.toml"))
    assert device.bf16 == told["flops_per_s"] > 0 and device.arch == "cpu"


def test_the_same_workload_in_both_worlds(measured, capsys: pytest.CaptureFixture[str]) -> None:
    model, table, _ = measured
    real = run({"model": str(model), "backend": {"name": "torch", "device": "cpu"}}, WORKLOAD)
    simulated = run(in_simulation(model, table), WORKLOAD)
    for column in ("cached_tokens", "output_tokens", "preemptions", "recomputed_tokens"):
        np.testing.assert_array_equal(getattr(real.requests, column), getattr(simulated.requests, column), column)
    ours, theirs = summarize(real), summarize(simulated)
    assert ours["engine_steps"] == theirs["engine_steps"] and ours["prefix_hit_rate"] == theirs["prefix_hit_rate"] > 0
    with capsys.disabled():
        for name in ("mean_ttft_ms", "mean_tpot_ms"):
            print(f"\n{name}: predicted {theirs[name]:.2f}, measured {ours[name]:.2f}", end="")
            assert 0.1 < theirs[name] / ours[name] < 10, "not even the order of magnitude"


def test_prices_follow_the_table(measured) -> None:
    """A step of the model costs its operators, and what is between them; the source says where from."""
    from simulate import workload

    from experiments import runner

    model, table, told = measured
    cost = runner.resolve(workload(in_simulation(model, table), WORKLOAD)).cost
    shape = StepShape(2, 100, (), 2)
    parts = {each.name: each for each in cost.explain(shape)}
    assert parts["host"].seconds == pytest.approx(told["host_ms_per_step"] * 1e-3, rel=1e-3)
    assert "kernels.csv" in parts["qkv_proj"].source and "bench profile" in parts["host"].source
    timings = {(t.op, *t.size): t.us for t in read_timings(table / "kernels.csv")}
    layers = 2
    assert parts["qkv_proj"].seconds == pytest.approx(layers * timings["gemm", 2, 384, 64] * 1e-6, rel=1e-3)


KINDS = {
    "int8-w8a16": "w8a16", "gptq-int3": "w4a16", "gptq-int4": "w4a16", "gptq-int8": "w8a16", "awq-int4": "w4a16",
    "squeezellm-3bit": "w4a16", "squeezellm-4bit": "w4a16", "int8-w8a8": "int8", "fp8": "fp8", "fp8-dynamic": "fp8",
    "fp8-channel": "fp8", "fp8-block": "fp8-block", "nvfp4": "fp4",
}  # fmt: skip
"""Every mode of dense layers that the engine runs, and what its products are called in a table."""


def test_every_mode_that_runs_is_profiled() -> None:
    pytest.importorskip("torch", minversion="2.0")
    from backends.weights.dummy_packed import RUNNABLE

    assert {*KINDS, "mxfp4"} == set(RUNNABLE)


@pytest.mark.parametrize(("mode", "kind"), KINDS.items())
def test_quantized_layers_are_timed_as_what_they_multiply(measured, tmp_path: Path, mode: str, kind: str) -> None:
    """And priced so: the simulator finds them under the mode's own name."""
    from simulate import workload

    from experiments import runner

    model = measured[0]
    command = [
        "profile",
        "--model",
        str(model),
        "--load",
        "dummy",
        "--quantization",
        mode,
        "-o",
        str(tmp_path / "table"),
    ]
    sizes = ["--tokens", "4", "--batch", "2", "--length", "16", "--device", "cpu", "--json"]
    done = CliRunner().invoke(app, [*command, *sizes])
    assert done.exit_code == 0, done.output
    gemms = [each for each in read_timings(tmp_path / "table" / "kernels.csv") if each.op == "gemm"]
    assert {(each.dtype, each.shape["n"]) for each in gemms} == {(kind, 384), (kind, 64), (kind, 320), ("bf16", 512)}
    device = load_gpu(str(tmp_path / "table" / "gpu.toml"))
    assert (device.int8 > 0) == (kind == "int8") and (device.fp8 > 0) == kind.startswith("fp8") and device.bf16 > 0
    assert (device.fp4 > 0) == (kind == "fp4")
    changes = in_simulation(model, tmp_path / "table") | {"engine.quantization": mode}
    parts = {
        each.name: each for each in runner.resolve(workload(changes, WORKLOAD)).cost.explain(StepShape(2, 20, (), 2))
    }
    timings = {(each.dtype, *each.size): each.us for each in gemms}
    assert "kernels.csv" in parts["qkv_proj"].source
    spent = parts["qkv_proj"].seconds + (parts["qkv_proj_quantize"].seconds if "qkv_proj_quantize" in parts else 0.0)
    close = 0.05 if mode == "fp8" else 1e-3  # static scales cost less than the found ones that rows are taken to hold
    assert spent == pytest.approx(2 * timings[kind, 2, 384, 64] * 1e-6, rel=close), (
        "inputs are quantized within the time"
    )


@pytest.mark.parametrize("mode", ["auto", "gptq-int4", "int8-w8a8", "mxfp4"])
def test_experts_are_priced_by_the_table(tmp_path: Path, mode: str) -> None:
    """Without their router, which is a linear layer in either world."""
    pytest.importorskip("torch", minversion="2.0")
    pytest.importorskip("transformers")
    from simulate import workload

    from backends.weights.tiny import make_tiny
    from experiments import runner

    model, table = make_tiny("tiny-mixtral", tmp_path / "moe"), tmp_path / "table"
    command = ["profile", "--model", str(model), "--load", "dummy", "--quantization", mode, "-o", str(table), "--json"]
    done = CliRunner().invoke(app, [*command, "--tokens", "4", "--batch", "2", "--length", "16", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    kind = {"auto": "bf16", "gptq-int4": "w4a16", "int8-w8a8": "int8", "mxfp4": "w4a16"}[mode]
    timings = {t.size[0]: t for t in read_timings(table / "kernels.csv") if t.op == "moe"}
    assert set(timings) == {1, 2, 4} and {t.dtype for t in timings.values()} == {kind}
    changes = in_simulation(model, table) | ({} if mode == "auto" else {"engine.quantization": mode})
    parts = {
        each.name: each for each in runner.resolve(workload(changes, WORKLOAD)).cost.explain(StepShape(2, 20, (), 2))
    }
    assert "kernels.csv" in parts["experts"].source and "router" in parts
    assert parts["experts"].seconds == pytest.approx(2 * timings[2].us * 1e-6, rel=1e-3)


@pytest.mark.parametrize("kv", ["fp8", "int8"])
def test_narrow_keys_and_values_are_timed_and_priced(measured, tmp_path: Path, kv: str) -> None:
    from simulate import workload

    from experiments import runner

    model, table = measured[0], tmp_path / "table"
    command = ["profile", "--model", str(model), "--kv-dtype", kv, "-o", str(table), "--json"]
    done = CliRunner().invoke(app, [*command, "--tokens", "4", "--batch", "2", "--length", "32", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    found = [t for t in read_timings(table / "kernels.csv") if t.op == "attn_decode"]
    assert {t.kv_dtype for t in found} == {kv}
    changes = in_simulation(model, table) | {"engine.kv.dtype": kv}
    parts = {
        each.name: each for each in runner.resolve(workload(changes, WORKLOAD)).cost.explain(StepShape(2, 64, (), 2))
    }
    us = [t.us for t in found if t.size[0] == 2]  # a step is priced between two contexts, so between two noisy times
    assert "kernels.csv" in parts["attention_decode"].source
    assert 0.8 * min(us) <= parts["attention_decode"].seconds / 2 * 1e6 <= 1.25 * max(us)
    wrong = CliRunner().invoke(app, [*command[:4], "int9", *command[5:]])
    assert wrong.exit_code == 2 and "int9" in wrong.output and "Traceback" not in wrong.output


def test_a_device_of_ones_own_is_checked(tmp_path: Path, measured) -> None:
    good = (measured[1] / "gpu.toml").read_text("utf-8")
    for text, words in (
        ("bandwidth = ", "is not a description of a device"),
        (good.replace("sms = 1", 'sms = "x"'), "sms: expected int, found 'x'"),
        (good.replace("sms = 1\n", ""), "sms: expected int, found None"),
        (good + "smms = 3\n", "unknown key 'smms'"),
        (good.replace("fp8 = 0.0", "fp8 = -1.0"), "fp8: expected float, found -1.0"),
        (good.replace("gpus_per_node = 1", "gpus_per_node = 0"), "gpus_per_node: must be above 0"),
    ):
        (tmp_path / "gpu.toml").write_text(text, "utf-8")
        with pytest.raises(InputError) as caught:
            load_gpu(str(tmp_path / "gpu.toml"))
        assert words in str(caught.value) and "gpu.toml" in str(caught.value)
    with pytest.raises(InputError, match=r"nowhere\.toml"):
        load_gpu(str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize(("a", "b"), [(0.003, 2.0), (0.0, 1.5), (0.002, 0.0)])
def test_two_constants_are_found_again(a: float, b: float) -> None:
    moved = np.linspace(0.001, 0.02, 9)
    rest = a + b * moved
    assert _two(rest, moved, rest + 0.01) == pytest.approx((a, b), abs=1e-9)
    assert min(_two(rest - 0.1, moved, rest + 0.01)) >= 0
