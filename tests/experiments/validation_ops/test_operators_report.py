"""`bench validate --operators`: which rows count, how they are halved, and the three errors of every group."""

import json
import random
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.validation_ops.report import validate_operators
from experiments.validation_ops.rows import halves, load
from sim.cost.constants import load_constants
from sim.cost.forms import predict
from sim.cost.timings import Timing, read_timings
from sim.hardware import load_gpu
from workloads.errors import InputError, Place

H100 = load_gpu("h100")
GEMM = load_constants(H100, "vllm").gemm["bf16"]


def table(path, factor=1.0, count=60, noise=0.02, **changed):
    """Rows like aiconfigurator's, made from known constants."""
    rng = random.Random(0)
    lines = ["framework,version,gemm_dtype,m,n,k,latency"]
    section = replace(GEMM, **changed)
    for _ in range(count):
        m, n, k = (
            rng.choice([1, 4, 32, 256, 2048]),
            rng.choice([1024, 2048, 4096, 8192]),
            rng.choice([2048, 4096, 8192]),
        )
        timing = Timing("gemm", "bf16", "", {"m": m, "n": n, "k": k}, 1.0, "", "", "", "", Place())
        us = factor * predict(timing, section, H100) * rng.uniform(1 - noise, 1 + noise)
        lines.append(f"VLLM,0.24.0,bfloat16,{m},{n},{k},{us / 1e3}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_that_the_constants_describe_have_small_errors(tmp_path):
    _, found = validate_operators([table(tmp_path / "h100_sxm.csv")], refit=False)
    (each,) = found
    assert each.group[:4] == ("gemm", "vllm", "h100-sxm", "bf16") and each.rows == 60
    assert each.shipped.median < 0.02 and each.refitted is None and each.table.median < 0.03


def test_other_constants_are_found_by_the_refit_and_by_the_table(tmp_path):
    path = table(tmp_path / "h100_sxm.csv", bandwidth=0.5, launch_us=9.0, count=120)
    _, (each,) = validate_operators([path])
    assert each.shipped.median > 0.3 and each.refitted.median < 0.03
    assert each.table.median < each.shipped.median / 2


def test_halves_are_the_same_whatever_the_order(tmp_path):
    timings = read_timings(table(tmp_path / "h100_sxm.csv"))
    first, second = halves(timings)
    again, _ = halves(timings[::-1])
    assert {t.size for t in first} == {t.size for t in again} and not {t.size for t in first} & {t.size for t in second}
    assert 0.25 < len(first) / len(timings) < 0.75


def test_rows_left_out_are_counted_by_reason(tmp_path):
    (tmp_path / "a100_sxm.csv").write_text(
        "op,dtype,m,n,k,us\ngemm,fp8,1,4096,4096,20\ngemm,bf16,1,256,4096,20\ngemm,bf16,8192,8192,8192,9\n"
        "gemm,bf16,1,4096,4096,30\ngemm,bf16,2,4096,4096,30\n"
    )
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    rows = load([tmp_path])
    assert sum(map(len, rows.groups.values())) == 2
    assert {"no fp8 tensor cores on a100-sxm", "matrix narrower than 512", "faster than the device allows"} <= set(
        rows.skipped
    )
    assert any("notes.csv" in reason for reason in rows.skipped) and "a100_sxm.csv:4" in rows.impossible[0]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("h100.csv", "gemm_dtype,m,n,k,latency\nbfloat16,1,2048,2048,x\n", ["h100.csv:2", "latency"]),
        ("t.csv", "a,b\n1,2\n", ["no kernel times"]),
    ],
)
def test_wrong_files_are_told(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        load([tmp_path / name])
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(InputError, match="not there"):
        load([tmp_path / "none"])


def test_the_command(tmp_path):
    path = table(tmp_path / "h100_sxm.csv")
    done = CliRunner().invoke(
        app, ["validate", "--operators", str(path), "--out", str(tmp_path / "o"), "--json", "--no-refit"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["groups"][0]["shipped_median"] < 0.03
    assert (tmp_path / "o" / "operators.csv").read_text().startswith("op,engine,gpu,kind,source,rows,shipped_median")
    done = CliRunner().invoke(app, ["validate", "--operators", str(path), "--out", str(tmp_path / "o"), "--no-refit"])
    assert "as shipped" in done.stdout and "held out" not in done.stderr
