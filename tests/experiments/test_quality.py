"""`bench quantize` and `bench quality` from the command line, and the texts they take."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.quality_text import BUILT_IN, read_text, windows
from workloads.errors import InputError

QUICK = ["--samples", "4", "--length", "64"]
SMALL = ["--window", "64", "--stride", "32", "--tokens", "256", *QUICK]


def bench(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    pytest.importorskip("torch", minversion="2.0")
    pytest.importorskip("transformers")
    from backends.weights.tiny import make_tiny

    return str(make_tiny("tiny-qwen2", tmp_path_factory.mktemp("models") / "tiny", seed=1))


def test_the_built_in_text_has_two_halves_that_do_not_meet() -> None:
    halves = [read_text(BUILT_IN, purpose) for purpose in ("calibration", "evaluation")]
    assert all(len(half.content) > 100_000 for half in halves)
    assert halves[0].sha256 != halves[1].sha256 and halves[0].sha256 == read_text(BUILT_IN, "calibration").sha256
    assert "Python 3" in halves[1].about and "evaluation half" in halves[1].about


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b" \n ", "is empty"), (b"\xff\xfe\x00", "is not text in UTF-8"), (None, "no such file")],
)
def test_texts_that_are_none_are_told(content, words, tmp_path) -> None:
    file = tmp_path / "<script>.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_text(str(file), "evaluation")
    assert caught.value.place.file == str(file)
    with pytest.raises(InputError, match="is a folder"):
        read_text(str(tmp_path), "evaluation")
    with pytest.raises(InputError):
        read_text("\0", "evaluation")
    with pytest.raises(InputError):
        read_text("x" * 5000, "evaluation")


def test_windows_score_each_token_once_and_with_context() -> None:
    ids = list(range(100))
    found = windows(ids, 20, 8, 40)
    scored = [token for window in found for token in window.ids[window.first :]]
    assert scored == list(range(12, 12 + len(scored))) and len(scored) == 40
    assert all(len(window.ids) == 20 and window.first == 12 for window in found)
    for length, stride in ((20, 20), (20, 0), (200, 100), (95, 90)):
        with pytest.raises(InputError):
            windows(ids, length, stride, 40)


def test_quantize_writes_what_bench_run_takes(tiny, tmp_path) -> None:
    out = tmp_path / "q"
    done = bench("quantize", tiny, "--mode", "gptq-int4", "-o", str(out), *QUICK)
    assert done.exit_code == 0, done.output
    assert "groups of 32, 14 layers" in done.stdout and "of that of rounding to nearest" in done.stdout
    told = json.loads(bench("quantize", tiny, "--mode", "gptq", "-o", str(out), "--overwrite", "--json", *QUICK).stdout)
    assert told["group"] == 32 and told["bytes"] < told["bytes_before"] and 0 < told["objective_vs_nearest"] < 1
    file = tmp_path / "w.yaml"
    file.write_text(
        f"model: {out}\nbackend: {{name: torch, device: cpu}}\nengine: {{max_model_len: 128, quantization: gptq-int4}}\n"
        "traffic: {synthetic: {requests: 3, arrivals: {process: constant, rate: 100}, input_tokens: {distribution: fixed, "
        "value: 16}, output_tokens: {distribution: fixed, value: 4}}}\n"
    )
    done = bench("run", str(file), "--out", str(tmp_path / "run"), "--json")
    assert done.exit_code == 0, done.output
    written = (tmp_path / "run" / "run.json").read_text()
    assert '"gptq-int4"' in written
    done = bench(
        "run", str(file), "--out", str(tmp_path / "run"), "--overwrite", "--set", "engine.quantization=awq-int4"
    )
    assert done.exit_code == 2 and "the checkpoint is in gptq-int4, and awq-int4 is asked for" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mode", "gptq-int5"], "unknown mode to quantize to 'gptq-int5' (did you mean"),
        (["--mode", "int8", "--act-order"], "--act-order: has no effect on int8"),
        (["--mode", "int8", "--sparse", "1"], "--sparse: has no effect on int8"),
        (["--mode", "awq", "--asymmetric"], "--asymmetric: has no effect on awq-int4"),
        (["--mode", "gptq", "--group", "48"], "--group: 48 does not divide layers of 96, 160 inputs"),
        (["--mode", "gptq", "--group", "-7"], "Invalid value"),
        (["--mode", "gptq", "--calibration", "nowhere.txt"], "nowhere.txt: there is no such file"),
        (["--mode", "gptq", "--length", "99999999"], "too few for one sequence"),
        (["--mode", "gptq", "--length", "2048"], "--length: sequences of 2048 tokens are longer than the model's 1024"),
        (["--mode", "nvfp4", "--calibration", ""], "error"),
    ],
)
def test_quantize_tells_what_is_wrong(tiny, tmp_path, arguments, words) -> None:
    done = bench("quantize", tiny, "-o", str(tmp_path / "q"), *arguments)
    assert done.exit_code == 2 and words in done.output and "Traceback" not in done.output
    assert not (tmp_path / "q").exists()


def test_quantize_refuses_models_that_cannot_be_and_folders_that_are_taken(tiny, tmp_path) -> None:
    out = tmp_path / "q"
    assert bench("quantize", tiny, "--mode", "int8", "-o", str(out)).exit_code == 0
    again = bench("quantize", str(out), "--mode", "fp8-channel", "-o", str(tmp_path / "again"))
    assert again.exit_code == 2 and "is quantized already (compressed-tensors)" in again.output
    taken = bench("quantize", tiny, "--mode", "int8", "-o", str(out))
    assert taken.exit_code == 2 and "--overwrite replaces it" in taken.output
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    kept = bench("quantize", tiny, "--mode", "int8", "-o", str(tmp_path / "other"), "--overwrite")
    assert kept.exit_code == 2 and (tmp_path / "other" / "thesis.txt").read_text() == "mine"
    none = bench("quantize", str(tmp_path / "nothing"), "--mode", "int8", "-o", str(tmp_path / "x"))
    assert none.exit_code == 2 and "no model folder" in none.output
    assert not (tmp_path / "x").exists()


def test_quantize_says_how_many_experts_saw_no_token(tmp_path) -> None:
    pytest.importorskip("safetensors")
    from safetensors.torch import load_file, save_file

    from backends.weights.tiny import make_tiny

    experts = make_tiny("tiny-qwen3-moe", tmp_path / "moe")
    tensors = load_file(experts / "model.safetensors")
    for layer in range(2):  # two scores above 0 and two below: the last two experts are never among the best two
        router = tensors[f"model.layers.{layer}.mlp.gate.weight"]
        router[2:4], router[4:] = -router[:2], 0.0
    save_file(tensors, experts / "model.safetensors")
    arguments = ("quantize", str(experts), "--mode", "awq", "--group", "16", "--samples", "1", "--length", "64")
    done = bench(*arguments, "-o", str(tmp_path / "few"))
    assert done.exit_code == 0, done.output
    assert "4 of 12 experts saw no token of the text and were rounded to the nearest values" in done.output
    told = bench(*arguments, "-o", str(tmp_path / "again"), "--json")
    assert json.loads(told.stdout)["notes"] == [done.output.partition("note: ")[2].strip()]


def test_ctrl_c_leaves_nothing_half_written(tiny, tmp_path) -> None:
    out = tmp_path / "q"
    command = [sys.executable, "-c", "from experiments.cli import main; main()", "quantize", tiny, "--mode", "squeezellm-3bit",
               "-o", str(out), "--samples", "100", "--length", "512"]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not any(tmp_path.iterdir()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, process.stdout.read()
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "interrupted" in said and "Traceback" not in said
    assert not any(tmp_path.iterdir())


def test_quality_measures_modes_against_the_model(tiny, tmp_path) -> None:
    out = tmp_path / "quality"
    done = bench("quality", tiny, "--modes", "int8-w8a16,rtn-int4,kv-int8", "--modes", "fp8-channel+kv-fp8-e4m3", "--out",
                 str(out), *SMALL)  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads((out / "quality.json").read_text())
    rows = {row["mode"]: row for row in found["rows"]}
    assert list(rows) == ["reference", "int8-w8a16", "rtn-int4", "kv-int8", "fp8-channel+kv-fp8-e4m3"]
    assert all(name in done.stdout for name in rows) and found["tokens"] == 256
    assert rows["reference"]["divergence"]["value"] == 0 and rows["reference"]["agreement"]["value"] == 1
    assert rows["rtn-int4"]["divergence"]["value"] > 10 * rows["int8-w8a16"]["divergence"]["value"] > 0
    assert rows["kv-int8"]["weights"] == "fp32" and rows["kv-int8"]["kv"] == "int8"
    assert rows["kv-int8"]["kv_bytes_per_token"] < 0.35 * rows["reference"]["kv_bytes_per_token"]
    assert rows["fp8-channel+kv-fp8-e4m3"]["kv"] == "fp8-e4m3"
    for row in rows.values():
        assert math.isfinite(row["perplexity"]["value"]) and row["decode_tokens_per_s"] > 0
        for name in ("perplexity", "ratio", "divergence", "divergence_p99", "agreement"):
            assert row[name]["low"] <= row[name]["value"] <= row[name]["high"] or name == "divergence_p99", (row, name)
        assert row["divergence_p99"]["value"] >= row["divergence"]["value"]
    assert (out / "quality.svg").read_text().lstrip().startswith("<?xml") and "| rtn-int4 |" in (
        out / "quality.md"
    ).read_text()
    again = json.loads(bench("quality", tiny, "--modes", "rtn-int4", "--json", *SMALL).stdout)
    assert again["rows"][1]["divergence"] == rows["rtn-int4"]["divergence"]


def test_quality_takes_a_checkpoint_that_is_there_and_keeps_what_it_makes(tiny, tmp_path) -> None:
    keep = tmp_path / "kept"
    first = json.loads(bench("quality", tiny, "--modes", "awq-int4", "--keep", str(keep), "--json", *SMALL).stdout)
    second = json.loads(bench("quality", tiny, "--modes", str(keep / "awq-int4"), "--json", *SMALL).stdout)
    assert first["rows"][1]["divergence"] == second["rows"][1]["divergence"]
    assert first["rows"][1]["group"] == 32 and first["calibration"]["sequences"] == 4 and second["calibration"] is None


def test_quality_says_when_a_text_is_both_learnt_from_and_measured(tiny, tmp_path) -> None:
    text = tmp_path / "both.txt"
    text.write_text("All work and no play makes Jack a dull boy. " * 40, "utf-8")
    done = bench("quality", tiny, "--modes", "awq-int4", "--data", str(text), "--calibration", str(text), *SMALL)
    assert done.exit_code == 0 and "calibrated on the text that is measured" in done.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--modes", "int9"], "unknown mode to quantize to 'int9'"),
        (["--modes", "kv-int3"], "unknown KV dtype 'int3'"),
        (["--modes", ","], "--modes: names no mode"),
        (["--modes", "int8,int8"], "--modes: names int8 twice"),
        (["--modes", "int8", "--data", "nowhere.txt"], "nowhere.txt: there is no such file"),
        (["--modes", "int8", "--stride", "600"], "--stride 600 must be at least 1 and below --window 512"),
        (["--modes", "int8", "--window", "4096"], "--window 4096 is longer than the model's 1024"),
        (["--modes", "int8", "--backend", "cuda"], "unknown backend 'cuda'"),
        (["--modes", "int8", "--device", "tpu"], "unknown device 'tpu'"),
        (["--modes", "int8", "--dtype", "fp12"], "unknown dtype 'fp12'"),
        (["--modes", "int8", "--tokens", "0"], "Invalid value"),
    ],
)
def test_quality_tells_what_is_wrong(tiny, arguments, words) -> None:
    done = bench("quality", tiny, *arguments)
    assert done.exit_code == 2 and words in done.output and "Traceback" not in done.output


@pytest.mark.parametrize("command", ["quantize", "quality"])
def test_help_teaches_by_example(command) -> None:
    done = bench(command, "--help")
    assert done.exit_code == 0 and f"bench {command} models/" in done.stdout
    assert all(len(line) <= 120 for line in done.stdout.splitlines())


def test_nothing_is_written_over_what_is_read(tiny, tmp_path) -> None:
    parent, text = Path(tiny).parent, tmp_path / "out" / "text.txt"
    text.parent.mkdir()
    text.write_text("words " * 500)
    (tmp_path / "out" / "config.json").write_text("{}")
    before = (Path(tiny) / "config.json").read_bytes()
    quantize = ("quantize", tiny, "--mode", "int8-w8a16", "--overwrite")
    quality = ("quality", tiny, "--modes", "int8-w8a16")
    for arguments, said in (
        ((*quantize, "-o", tiny), "is the model"),
        ((*quantize, "-o", str(parent)), "holds the model"),
        ((*quantize, "-o", f"{tiny}/q"), "lies in the model"),
        ((*quantize, "-o", str(tmp_path / "out"), "--calibration", str(text)), "holds the text to read"),
        ((*quality, "--out", f"{tiny}/q"), "lies in the model"),
        ((*quality, "--keep", tiny), "is the model"),
        (
            (*quality, "--out", str(tmp_path / "q"), "--keep", str(tmp_path / "q" / "kept")),
            "holds the folder of --keep",
        ),
    ):
        done = bench(*arguments)
        assert done.exit_code == 2 and said in done.output, done.output
    assert (Path(tiny) / "config.json").read_bytes() == before and text.is_file()
