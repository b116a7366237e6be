"""`bench calibrate`: constants from a few timings, host and front-end time from a served run."""

import json
import random
from math import log
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.calibrate import Load, calibrate_serving, read_loads
from experiments.cli import app
from sim.cost.constants import load_constants
from sim.cost.forms import predict
from sim.cost.timings import SHAPES, Timing
from sim.hardware import load_gpu
from workloads.errors import InputError, Place

WORKLOAD = """name: deployment
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm}
traffic: {synthetic: {requests: 40, input_tokens: 300, output_tokens: 60}}
load: {mode: closed, concurrency: 4}
"""


def gemm_csv(path: Path, factor: float, count: int = 20, noise: float = 0.03) -> Path:
    """Timings of an L4 whose memory is slower than H100's and A100's shares say, by a factor; one column for the shape."""
    gpu, rng = load_gpu("l4"), random.Random(0)
    lines = ["operator,dtype,shape,ms"]
    for _ in range(count):
        m, n, k = rng.choice([1, 8, 64, 512, 4096]), rng.choice([2048, 4096, 8192]), rng.choice([2048, 4096, 8192])
        timing = Timing("gemm", "bf16", "", {"m": m, "n": n, "k": k}, 1.0, "", "", "", "", Place())
        us = factor * predict(timing, load_constants(gpu, "vllm").gemm["bf16"], gpu) * rng.uniform(1 - noise, 1 + noise)
        lines.append(f"gemm,bf16,{m}x{n}x{k},{us / 1e3:.6f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def bench(*arguments: object):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_slower_card_is_learnt_and_the_file_is_usable(tmp_path):
    timings = gemm_csv(tmp_path / "t.csv", 1.5)
    done = bench("calibrate", timings, "--gpu", "l4", "--engine", "vllm", "-o", tmp_path / "mine.toml", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["operators"][0]
    assert found["taken"] and found["carried"]["median"] > 0.35 and found["left_out"]["median"] < 0.12
    gpu = load_gpu("l4")
    mine, before = load_constants(gpu, "vllm", tmp_path / "mine.toml"), load_constants(gpu, "vllm")
    assert "calibrated on 20 timings" in mine.gemm["bf16"].source
    big = Timing("gemm", "bf16", "", {"m": 1, "n": 14336, "k": 4096}, 1.0, "", "", "", "", Place())
    ratio = predict(big, mine.gemm["bf16"], gpu) / predict(big, before.gemm["bf16"], gpu)
    assert ratio == pytest.approx(1.5, rel=0.12)  # a shape that was not measured
    assert mine.decode == before.decode


def test_noise_around_what_is_known_changes_nothing(tmp_path):
    timings = gemm_csv(tmp_path / "t.csv", 1.0, count=6, noise=0.3)
    done = bench("calibrate", timings, "--gpu", "l4", "-o", tmp_path / "mine.toml", "--json")
    found = json.loads(done.stdout)["operators"][0]
    if found["taken"]:
        assert found["left_out"]["mean"] < found["carried"]["mean"]
    else:
        assert "gemm" not in (tmp_path / "mine.toml").read_text()


def served(tmp_path: Path, host_ms: float, request_ms: float) -> list[Load]:
    """What a deployment with so much more host and front-end time would measure."""
    from experiments.calibrate import _means, _resolved

    (tmp_path / "w.yaml").write_text(WORKLOAD)
    loads = [Load(c, 0.0, 1.0, 1.0) for c in (1, 4, 16, 32)]
    return [
        Load(x.concurrency, 0.0, *_means(_resolved(tmp_path / "w.yaml", x.overrides), host_ms, request_ms))
        for x in loads
    ]


def test_a_deployments_times_are_recovered(tmp_path):
    loads = served(tmp_path, 1.5, 40.0)
    found = calibrate_serving(tmp_path / "w.yaml", loads)
    assert found.host_ms == pytest.approx(1.5, abs=0.1) and found.request_ms == pytest.approx(40, abs=4)
    assert found.held_out == 2 and found.after[0].median < 0.02 < found.before[0].median
    assert found.after[1].median < 0.1 < found.before[1].median


def test_the_command_writes_both_and_a_workload_uses_them(tmp_path):
    loads = served(tmp_path, 2.0, 20.0)
    rows = "".join(f"{x.concurrency},{x.ttft_ms},{x.tpot_ms}\n" for x in loads)
    (tmp_path / "loads.csv").write_text("concurrency,ttft_ms,tpot_ms\n" + rows)
    done = bench(
        "calibrate", "--run", tmp_path / "loads.csv", "--workload", tmp_path / "w.yaml", "-o", tmp_path / "c.toml"
    )
    assert done.exit_code == 0, done.output
    assert "2 loads held out" in done.stdout and "ms a step" in done.stdout
    (tmp_path / "v.yaml").write_text(WORKLOAD + "cost: {calibration: c.toml}\n")
    from experiments.calibrate import _means, _resolved

    _, tpot = _means(_resolved(tmp_path / "v.yaml", ["load.concurrency=16"]), 0.0, 0.0)
    assert tpot == pytest.approx(loads[2].tpot_ms, rel=0.02)
    again = bench(
        "calibrate", "--run", tmp_path / "loads.csv", "--workload", tmp_path / "w.yaml", "-o", tmp_path / "c.toml"
    )
    assert again.exit_code == 2 and "--overwrite" in again.stderr


def test_results_of_serving_benchmarks_are_read(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps({"max_concurrency": 8, "mean_ttft_ms": 50.5, "mean_tpot_ms": 9.1}))
    assert read_loads(tmp_path / "r.json") == [Load(8, 0.0, 50.5, 9.1)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "operator,shape,ms\ngemm,1x2,3\n", ["t.csv:2", "column shape", "m x n x k"]),
        ("t.csv", "operator,shape,ms\ngemm,m=1 n=2,3\n", ["t.csv:2", "lacks k"]),
        ("t.csv", "operator,shape,ms\ngemm,1x2x3,fast\n", ["t.csv:2", "column ms", "fast"]),
        ("t.csv", "operator,shape,ms\ngem,1x2x3,1\n", ["t.csv:2", "gemm"]),
        ("t.csv", "operator,shape,ms,ms\ngemm,1x2x3,1,2\n", ["t.csv:1", "'ms' is there twice"]),
        ("t.csv", "operator,dtype,shape,ms\ngemm,bf16,1x4096x4096,1\n", ["too few"]),
        ("t.csv", "gpu,operator,dtype,shape,ms\na100,gemm,bf16,1x4096x4096,1\n", ["a100-sxm"]),
    ],
)
def test_wrong_timings_are_told(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    done = bench("calibrate", tmp_path / name, "--gpu", "l4", "-o", tmp_path / "c.toml")
    assert done.exit_code == 2 and all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "c.toml").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("concurrency,tpot\n4,5\n", ["l.csv:2", "tpot"]),
        ("concurrency,tpot_ms\n4,-5\n", ["l.csv:2", "above 0"]),
        ("", ["no rows"]),
        ("concurrency,tpot_ms,tpot_ms\n4,5,6\n", ["l.csv:1", "'tpot_ms' is there twice"]),
    ],
)
def test_wrong_loads_are_told(tmp_path, text, words):
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        read_loads(tmp_path / "l.csv")
    assert all(word in str(caught.value) for word in words)


def test_what_belongs_together(tmp_path):
    assert bench("calibrate").exit_code == 2
    assert "--workload" in bench("calibrate", "--run", tmp_path / "l.csv").stderr
    assert "--gpu" in bench("calibrate", gemm_csv(tmp_path / "t.csv", 1.0)).stderr


def serving_file(tmp_path: Path) -> Path:
    path = tmp_path / "chat.yaml"
    path.write_text(WORKLOAD.replace("h100-sxm", "l4").replace("Meta-Llama-3-8B", "Llama-3.2-1B"))
    return path


def test_a_served_run_is_fitted_on_top_of_the_operators_just_refitted(tmp_path):
    """The deployment's operators are slower and its host is not: with timings the host's time stays, without it must grow."""
    timings, chat = gemm_csv(tmp_path / "t.csv", 1.5), serving_file(tmp_path)
    assert bench("calibrate", timings, "--gpu", "l4", "-o", tmp_path / "l4.toml").exit_code == 0
    loads = tmp_path / "loads.csv"
    lines = ["concurrency,ttft_ms,tpot_ms"]
    for clients in (2, 4):
        told = bench("run", chat, "--set", f"cost.calibration={tmp_path / 'l4.toml'}", "--set", f"load.concurrency={clients}",
                     "-o", tmp_path / str(clients), "--json")  # fmt: skip
        summary = json.loads(told.stdout)["summary"]
        lines.append(f"{clients},{summary['mean_ttft_ms']},{summary['mean_tpot_ms']}")
    loads.write_text("\n".join(lines) + "\n")

    def host(*given: object) -> float:
        done = bench(
            "calibrate", *given, "--run", loads, "--workload", chat, "-o", tmp_path / "o.toml", "--json", "--overwrite"
        )
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["serving"]["host_ms"]

    assert abs(host(timings)) < 0.05 < 0.3 < host()


def test_what_the_workload_s_file_says_already_is_kept(tmp_path):
    timings, chat = gemm_csv(tmp_path / "t.csv", 1.5), serving_file(tmp_path)
    assert bench("calibrate", timings, "--gpu", "l4", "-o", tmp_path / "l4.toml").exit_code == 0
    chat.write_text(chat.read_text() + "cost: {calibration: l4.toml}\n")
    (tmp_path / "loads.csv").write_text("concurrency,tpot_ms\n2,20\n4,21\n")
    done = bench("calibrate", "--run", tmp_path / "loads.csv", "--workload", chat, "-o", tmp_path / "both.toml")
    assert done.exit_code == 0, done.output
    before, after = (load_constants(load_gpu("l4"), "vllm", tmp_path / name) for name in ("l4.toml", "both.toml"))
    assert after.gemm["bf16"] == before.gemm["bf16"]
    assert after.host.error > 0
    assert after.host != before.host


def test_calibrating_narrows_the_interval_and_ends_the_warning(tmp_path):
    gpu, lines, rng = load_gpu("l40s"), ["op,dtype,kv_dtype,shape,us"], random.Random(1)
    constants = load_constants(gpu, "vllm")
    for op, section, shapes in (
        ("gemm", constants.gemm["bf16"], [(m, n, 4096) for m in (1, 16, 256, 2048) for n in (4096, 14336)]),
        ("attn_decode", constants.decode["bf16"], [(b, s, 32, 8, 128) for b in (1, 8, 64) for s in (512, 4096)]),
        ("attn_prefill", constants.prefill["bf16"], [(b, s, 32, 8, 128) for b in (1, 4) for s in (512, 1024, 4096)]),
    ):
        for shape in shapes:
            kv = "" if op == "gemm" else "bf16"
            timing = Timing(op, "bf16", kv, dict(zip(SHAPES[op], shape, strict=True)), 1.0, "", "", "", "", Place())
            us = 1.4 * predict(timing, section, gpu) * rng.uniform(0.98, 1.02)
            lines.append(f"{op},bf16,{kv},{'x'.join(map(str, shape))},{us}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    chat = tmp_path / "chat.yaml"
    chat.write_text(WORKLOAD.replace("h100-sxm", "l40s"))

    def ran(folder: str) -> dict:
        done = bench("run", chat, "-o", tmp_path / folder, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    before = ran("before")
    done = bench("calibrate", tmp_path / "t.csv", "--gpu", "l40s", "-o", tmp_path / "l40s.toml")
    assert done.exit_code == 0, done.output
    chat.write_text(chat.read_text() + "cost: {calibration: l40s.toml}\n")
    after = ran("after")
    widths = [
        log(high / low) for low, high in (r["summary"]["interval"]["figures"]["mean_tpot_ms"] for r in (before, after))
    ]
    assert widths[1] < 0.8 * widths[0]  # what deployments of one engine differ by stays
    assert [any("kernels of l40s" in w for w in r["warnings"]) for r in (before, after)] == [True, False]
