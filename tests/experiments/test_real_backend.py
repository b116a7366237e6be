"""Workloads on a real model: the same run folder, the same counts as in simulation, and every mistake told."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from simulate import run, workload
from typer.testing import CliRunner

from backends import extra
from experiments import runner
from experiments.cli import app
from experiments.clock import WallClock
from reports.metrics import summarize
from reports.run_data import FINISHED, REFUSED, UNFINISHED
from reports.run_folder import read_run, write_run
from workloads.errors import InputError

TINY = {
    "name": "tiny",
    "model": "tiny",
    "backend": {"name": "torch"},
    "engine": {"preset": "vllm", "scheduler": {"max_num_seqs": 6, "max_num_batched_tokens": 96}, "max_model_len": 400},
    "traffic": {
        "max_tokens": "exact",
        "synthetic": {
            "requests": 12,
            "arrivals": {"process": "poisson", "rate": 200},
            "input_tokens": {"distribution": "uniform", "low": 5, "high": 60},
            "output_tokens": {"distribution": "uniform", "low": 1, "high": 12},
            "prefix": {"kind": "system-prompts", "count": 2, "tokens": 40},
        },
    },
    "load": {"mode": "closed", "concurrency": 3},
}
SESSIONS = {
    "requests": 12, "arrivals": {"process": "constant", "rate": 100},
    "input_tokens": {"distribution": "uniform", "low": 10, "high": 40},
    "output_tokens": {"distribution": "uniform", "low": 2, "high": 20}, "sessions": {"turns": 3, "think": "1ms"},
}  # fmt: skip
SIMULATED = {"backend": {"name": "sim", "gpu": "h100-sxm"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    pytest.importorskip("torch", minversion="2.0")
    pytest.importorskip("transformers")
    from backends.weights.tiny import make_tiny

    return str(make_tiny("tiny-llama", tmp_path_factory.mktemp("models") / "tiny"))


def real(model: str, changes: dict | None = None, **options):
    return run({"model": model, **(changes or {})}, TINY, **options)


def refused(changes: dict, *said: str) -> None:
    """The workload is refused in words that contain all of `said`."""
    with pytest.raises(InputError) as caught:
        runner.resolve(workload(changes, TINY))
    for words in said:
        assert words in str(caught.value)


# --- what a run leaves


def test_a_real_run_leaves_what_a_simulated_one_does(model: str, tmp_path: Path) -> None:
    data = real(model)
    requests = data.requests
    assert (requests.status == FINISHED).all()
    np.testing.assert_array_equal(requests.output_tokens, requests.target_tokens)
    assert (requests.sent <= requests.admitted).all() and (requests.admitted < requests.first_token).all()
    assert (requests.first_token <= requests.finish).all() and requests.finish.max() <= data.info["end"]
    summary = summarize(data)
    assert summary["completed"] == 12 and summary["prefix_hit_rate"] > 0.2
    assert summary["mean_front_end_ms"] == 0
    assert data.info["backend"] == "torch" and data.host["device"] and not data.provenance
    folder = write_run(data, tmp_path / "run")
    again = read_run(folder)
    np.testing.assert_array_equal(again.requests.finish, requests.finish)
    assert (folder / "report.html").is_file()


def test_device_and_host_time_are_told_apart_and_unknown_in_simulation(model: str, tmp_path: Path) -> None:
    data = real(model)
    line = data.timeline
    spent = np.array([line.device_seconds.sum(), line.host_seconds.sum()])
    assert (spent > 0).all() and spent.sum() <= data.info["end"] * 1.001
    again = read_run(write_run(data, tmp_path / "run"))
    np.testing.assert_array_equal(again.timeline.device_seconds, line.device_seconds)
    assert "Mean step" in (tmp_path / "run" / "report.html").read_text("utf-8")
    simulated = run({"model": model, **SIMULATED}, TINY)
    assert np.isnan(simulated.timeline.device_seconds).all() and np.isnan(simulated.timeline.host_seconds).all()
    folder = write_run(simulated, tmp_path / "simulated")
    assert np.isnan(read_run(folder).timeline.host_seconds).all()
    assert "Mean step" not in (folder / "report.html").read_text("utf-8")


@pytest.mark.parametrize("preset", ["vllm", "sglang", "tensorrt-llm", "static", "orca", "vllm-v0", "lightllm"])
def test_every_preset_serves(model: str, preset: str) -> None:
    changes = {"engine.preset": preset, "traffic.synthetic.n": {"1": 4, "2": 1}, "engine.scheduler": {}}
    if preset in ("static", "orca"):
        changes["engine.kv.capacity_tokens"] = 4000
    data = real(model, changes)
    assert (data.requests.status == FINISHED).all()


@pytest.mark.parametrize("preset", ["vllm", "sglang"])
@pytest.mark.parametrize("pool", [0, 160])
def test_hits_and_blocks_are_those_of_the_simulation(model: str, preset: str, pool: int) -> None:
    """One after another in a closed loop, so that no time decides who meets whom."""
    changes = {
        "engine": {"preset": preset, "max_model_len": 150, "kv": {"capacity_tokens": pool or 4000}},
        "traffic.synthetic": SESSIONS, "load": {"mode": "closed", "concurrency": 1},
    }  # fmt: skip
    ours = real(model, changes)
    theirs = run({"model": model, **changes, **SIMULATED}, TINY)
    assert ours.info["kv_pool_tokens"] == theirs.info["kv_pool_tokens"]
    for column in ("status", "cached_tokens", "output_tokens", "preemptions", "recomputed_tokens"):
        np.testing.assert_array_equal(getattr(ours.requests, column), getattr(theirs.requests, column), column)
    assert ours.requests.cached_tokens.sum() > 100
    for column in ("steps", "prefill_tokens", "decode_tokens"):
        assert getattr(ours.timeline, column).sum() == getattr(theirs.timeline, column).sum(), column
    assert memory_after({"model": model, **changes}) == memory_after({"model": model, **changes, **SIMULATED})


@pytest.mark.parametrize(("dtype", "head_bytes"), [("fp8", 1), ("int8", 1), ("bf16", 2)])
def test_keys_and_values_in_other_types(model: str, dtype: str, head_bytes: int) -> None:
    data = real(model, {"engine.kv.dtype": dtype, "traffic.synthetic.requests": 5})
    assert (data.requests.status == FINISHED).all() and data.requests.cached_tokens.sum() >= 32
    assert data.config["engine"]["kv"]["dtype"]["value"] == dtype
    shape = json.loads((Path(model) / "config.json").read_text("utf-8"))
    heads = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"]
    scale = 2 if dtype == "int8" else 0
    width = shape["hidden_size"] // shape["num_attention_heads"]
    assert data.info["kv_bytes_per_token"] == heads * (width * head_bytes + scale)


def memory_after(changes: dict):
    """What is where in the pool when all is served."""
    resolved = runner.resolve(workload(changes, TINY))
    traffic = resolved.traffic if resolved.real is None else resolved.real.own(resolved.traffic)
    replica = runner.Replica(resolved, traffic, True, None)
    replica.serve()
    return replica.engine.state.allocator.use(0)


def test_a_request_that_cannot_fit_is_recorded(model: str) -> None:
    data = real(model, {"traffic.synthetic.input_tokens": {"distribution": "uniform", "low": 5, "high": 600}})
    assert set(data.requests.status) == {FINISHED, REFUSED}
    assert "400" in data.requests.reason[data.requests.status == REFUSED][0]


def test_ctrl_c_keeps_what_is_done(model: str) -> None:
    resolved = runner.resolve(workload({"model": model, "traffic.synthetic.requests": 2000}, TINY))
    plans = []

    def press(done: float, total: float, detail: str) -> None:
        plans.append(done)
        if len(plans) == 12:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    data = runner.run(resolved, progress=press)
    assert signal.getsignal(signal.SIGINT) is before
    assert len(plans) == 12 and not data.info["complete"]
    assert FINISHED in data.requests.status and UNFINISHED in data.requests.status
    assert len(data.requests) < 30


def test_the_clock_sleeps_until_it_is_told_to_stop() -> None:
    with WallClock() as clock:
        assert clock.wait(clock.now() + 0.02) >= 0.02 and not clock.stopped
        threading.Timer(0.05, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()
        began = time.perf_counter()
        clock.wait(clock.now() + 60)
        assert clock.stopped and time.perf_counter() - began < 30


# --- how answers end


def test_answers_end_by_themselves_where_lengths_are_not_forced(model: str) -> None:
    free = {"sampling": {"ignore_eos": False, "temperature": 1.5}, "traffic.max_tokens": {"fixed": 30}}
    data = real(model, free)
    assert (data.requests.output_tokens <= 30).all() and (data.requests.status == FINISHED).all()
    forced = real(model, {"traffic.max_tokens": {"fixed": 30}})
    assert (forced.requests.output_tokens == np.minimum(30, forced.requests.target_tokens)).all()
    stops = {"sampling": {"ignore_eos": False, "temperature": 1.5, "stop_token_ids": list(range(3, 400))}}
    stopped = real(model, {**free, **stops})
    assert stopped.requests.output_tokens.mean() < 0.5 * data.requests.output_tokens.mean()


# --- mistakes


def test_mistakes_in_models_are_told(model: str, tmp_path: Path) -> None:
    refused({"model": "./nowhere"}, "model", "no model folder at ./nowhere")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    shutil.copy(Path(model) / "config.json", pickled)
    (pickled / "pytorch_model.bin").write_bytes(b"anything")
    refused({"model": str(pickled)}, "pickle only (pytorch_model.bin)", "safetensors")
    config = json.loads((pickled / "config.json").read_text("utf-8"))
    (pickled / "config.json").write_text(json.dumps(config | {"model_type": "mamba9"}), "utf-8")
    refused({"model": str(pickled)}, "models of family 'mamba9' cannot be run")
    refused({"model": "deepseek-v3", "backend.load": "dummy"}, "cannot be run, only simulated")
    refused({"model": "llama-3.1-405b", "backend.load": "dummy"}, "model", "does not fit", "GiB are free")


def test_a_hub_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", minversion="2.0")
    hub = pytest.importorskip("huggingface_hub")

    def offline(*arguments, **options):
        raise ConnectionError("no route")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    refused(
        {"model": "some/model"},
        "model",
        "some/model is not here, and the hub cannot be reached: no route",
        "--load dummy",
    )


def test_settings_that_a_real_engine_cannot_have_are_told(model: str) -> None:
    for key, value, said in (
        ("engine.quantization", "fp8", "is not quantized"),
        ("engine.kv.dtype", "fp9", "unknown KV dtype 'fp9'"),
        ("engine.parallel.tensor", 2, "one device"),
        ("backend.name", "triton", "backend torch runs on the CPU"),
        ("sampling", {"stop": "x"}, "ignore_eos: false"),
        ("engine.kv.capacity_tokens", 10**12, "GiB of memory are free"),
        ("engine.max_model_len", 10**9, "one request of 1,000,000,000 tokens needs"),
    ):
        if value == "triton" and _gpu():
            continue
        refused({"model": model, key: value}, key if key != "sampling" else "sampling.stop", said)
    with pytest.raises(InputError, match=r"sampling.ignore_eos: true"):
        runner.resolve(
            workload(
                {"model": model, "sampling": {"ignore_eos": False}, "engine.scheduler.policy": "shortest-job"}, TINY
            )
        )


def test_a_kv_type_of_ones_own_is_only_simulated(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_kv.py").write_text("from sim.quantization import KVMode\nTWO = KVMode('int2', 2)\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    refused({"model": model, "engine.kv.dtype": "own_kv:TWO"}, "engine.kv.dtype", "KV in int2 can only be simulated")


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def test_without_torch_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    for name in extra.NEEDED:
        monkeypatch.setitem(sys.modules, name, None)
    refused(
        {"model": "smollm2-135m"},
        "backend.name",
        "needs torch, safetensors, transformers",
        "pip install 'twinserve[engine]'",
    )


def test_settings_of_the_other_world_are_told_not_refused(model: str) -> None:
    both = {
        "model": model,
        "backend": {"name": "sim", "gpu": "h100-sxm", "load": "dummy", "dtype": "bf16", "device": "cpu"},
    }
    data = run({**both, "sampling": {"temperature": 0.5}}, TINY)
    assert (
        "backend.load and backend.dtype and backend.device and sampling have no effect in simulation" in data.warnings
    )
    data = real(model, {"backend.gpu": "h100-sxm", "engine.host": "vllm"})
    assert any("backend.gpu" in warning for warning in data.warnings)
    assert any("engine.host" in warning for warning in data.warnings)


# --- the command


def test_an_architecture_runs_without_its_weights(tmp_path: Path, model: str) -> None:
    """From the command line, with random weights in the shape of a config.json."""
    config = tmp_path / "config.json"
    shutil.copy(Path(model) / "config.json", config)
    text = json.dumps({**TINY, "model": "config.json"})
    (tmp_path / "w.yaml").write_text(text, "utf-8")
    wrong = CliRunner().invoke(app, ["run", str(tmp_path / "w.yaml"), "--out", str(tmp_path / "run")])
    assert wrong.exit_code == 2
    done = CliRunner().invoke(
        app, ["run", str(tmp_path / "w.yaml"), "--load", "dummy", "--json", "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["summary"]["completed"] == 12
    assert told["config"]["backend"]["load"]["value"] == "dummy"


def test_commands_that_are_about_prices_say_so(tmp_path: Path, model: str) -> None:
    (tmp_path / "w.yaml").write_text(json.dumps({**TINY, "model": model}), "utf-8")
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "w.yaml")])
    assert done.exit_code == 2 and "have no price" in done.output


def test_tiny_models_from_the_command_line(tmp_path: Path, model: str) -> None:
    done = CliRunner().invoke(app, ["model", "make", "tiny-qwen3-moe", "--out", str(tmp_path / "moe")])
    assert done.exit_code == 0 and (tmp_path / "moe" / "tokenizer.json").is_file()
    again = CliRunner().invoke(app, ["model", "make", "tiny-qwen3-moe", "--out", str(tmp_path / "moe")])
    assert again.exit_code == 2 and "--overwrite" in again.output
    data = real(model, {"model": str(tmp_path / "moe")})
    assert (data.requests.status == FINISHED).all()


# --- prompts with words


def talk(tmp_path: Path, rows: list[dict]) -> dict:
    """A workload whose trace has these rows."""
    base = {"arrival": 0.0, "input_tokens": 9, "output_tokens": 6, "max_tokens": 6}
    lines = [json.dumps(({} if row.get("turn") else base) | base | row) for row in rows]
    (tmp_path / "talk.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return {
        "traffic": {"trace": {"format": "twinserve", "path": str(tmp_path / "talk.jsonl")}},
        "engine.kv.block_size": 4,
    }


def say(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def test_words_go_through_the_tokenizer_and_later_turns_continue_what_was_said(model: str, tmp_path: Path) -> None:
    rows = [
        {"session": "a", "turn": 0, "messages": say("hello there")},
        {"session": "a", "turn": 1, "messages": say("and on?")},
        {"text": "only text"},
        {},
    ]
    changes = talk(tmp_path, rows)
    for sampling in ({}, {"ignore_eos": False}):
        data = real(model, {**changes, "sampling": sampling, "load": {"mode": "closed", "concurrency": 1}})
        requests = data.requests
        assert (requests.status == FINISHED).all()
        order = {int(row): at for at, row in enumerate(requests.request)}
        first, second = order[0], order[1]
        assert requests.input_tokens[first] == len("user: hello there") + 1 + len("assistant: ")
        said = int(requests.output_tokens[first])
        ended = said < 6
        after = 1 + len("user: and on?") + 1 + len("assistant: ")
        assert requests.input_tokens[second] == requests.input_tokens[first] + said - ended + after
        assert requests.cached_tokens[second] >= (requests.input_tokens[first] + said - 1) // 4 * 4
        assert requests.input_tokens[order[2]] == len("only text") and requests.input_tokens[order[3]] == 9
        assert [each["prompt"] for each in data.host["answers"]] == ["hello there", "and on?", "only text"]


def test_words_without_a_tokenizer(model: str, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(Path(model) / name)
    changes = {**talk(tmp_path, [{"messages": say("hello")}]), "model": str(bare)}
    refused(changes, "bare: has no tokenizer, which prompts of text need", "tokenizer.json")
    (bare / "tokenizer.json").write_text("{}", "utf-8")
    refused(changes, "its tokenizer cannot be read")
    shutil.copy(Path(model) / "tokenizer.json", bare)
    refused(changes, "no chat template", "`text`")
    data = real(model, {**changes, "backend.load": "dummy"})
    assert any("made-up tokens" in warning for warning in data.warnings) and data.requests.input_tokens[0] == 9
    stops = {"sampling": {"ignore_eos": False, "stop": "x"}, "backend.load": "dummy"}
    refused({"model": str(Path(model) / "config.json"), **stops}, "sampling.stop", "an architecture alone has none")


def test_memory_kept_for_what_never_came_is_wasted_not_reserved(model: str) -> None:
    """A slab is as long as an answer may be; that it ended early is known only then, and told of all the time before."""
    changes = {
        "engine": {
            "preset": "orca", "max_model_len": 200, "kv": {"capacity_tokens": 1000},
            "scheduler": {"max_num_seqs": 3},
        },
        "traffic.max_tokens": {"fixed": 100}, "load": {"mode": "closed", "concurrency": 3},
        "sampling": {"ignore_eos": False, "temperature": 1.5, "stop_token_ids": list(range(3, 120))},
    }  # fmt: skip
    resolved = runner.resolve(workload({"model": model, **changes}, TINY))
    replica = runner.Replica(resolved, resolved.real.own(resolved.traffic), True, None)
    replica.serve()
    told = replica.engine.recorder.segments.array()
    longest = int(told["ticks"].max())
    samples = replica.engine.recorder.samples
    assert longest < 60 and len(samples) > 5
    assert max(sample.kv_reserved for sample in samples) <= 3 * longest
    assert max(sample.kv_internal for sample in samples) > 300
    for sample in samples:
        parts = (sample.kv_used, sample.kv_reserved, sample.kv_internal, sample.kv_external, sample.kv_free)
        assert sum(parts) == 1000 and min(parts) >= 0
