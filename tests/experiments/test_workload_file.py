"""Workload files: every mistake with its file, line, key and remedy."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.schema import EngineSection, KVSection, ParallelSection, SchedulerSection, SpeculationSection
from experiments.workload_file import WorkloadErrors, load_workload, parse_override, point_workload
from sim.config import EngineConfig, KVConfig, ParallelConfig, SchedulerConfig, SpeculationConfig
from workloads.errors import InputError
from workloads.examples import workload_paths

Write = Callable[..., Path]
MODEL = "model: meta-llama/Meta-Llama-3-8B\n"
HEAD = MODEL + "backend: {name: sim, gpu: h100-sxm}\n"
TRAFFIC = "traffic: {synthetic: {requests: 4, input_tokens: 8, output_tokens: 8}}\n"
GOOD = HEAD + TRAFFIC
SYNTHETIC = "traffic:\n  synthetic:\n    requests: 4\n"


def said(path: Path, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_workload(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "config"),
    [
        (SchedulerSection, SchedulerConfig),
        (KVSection, KVConfig),
        (ParallelSection, ParallelConfig),
        (SpeculationSection, SpeculationConfig),
        (EngineSection, EngineConfig),
    ],
)
def test_the_engine_section_has_the_fields_of_the_configuration(section: type, config: type) -> None:
    named = {"version"}  # a part of the preset's name
    assert set(section.model_fields) == {field.name for field in dataclasses.fields(config)} - named


def test_what_was_written_is_known_and_units_are_converted(write: Write) -> None:
    text = (
        GOOD
        + "engine: {scheduler: {batch_wait: 50ms}, kv: {swap_gib: 8GiB, register: computed}}\nslo: {ttft_ms: 0.5s}\n"
    )
    found = load_workload(write(text))
    assert found.engine.scheduler.batch_wait == 0.05
    assert found.engine.kv.swap_gib == 8.0
    assert found.engine.kv.register == "computed"
    assert found.slo.ttft_ms == 500.0
    assert found.engine.written() == {"scheduler.batch_wait", "kv.swap_gib", "kv.register"}
    assert found.engine.scheduler.max_num_seqs is None
    assert found.plain()["engine"] == {
        "scheduler": {"batch_wait": 0.05},
        "kv": {"swap_gib": 8.0, "register": "computed"},
    }
    assert found.name == "w" and found.seed == 0 and found.load.mode == "open"


def test_the_example_of_the_design(write: Write) -> None:
    write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,10,5\n", "conv.csv")
    path = write(
        """\
name: chat on one H100
seed: 0
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine:
  preset: vllm
  scheduler: {name: chunked-prefill, max_num_seqs: 256, max_num_batched_tokens: 2048, policy: fcfs}
  kv: {allocator: paged, block_size: 16, prefix_caching: true, dtype: fp8, memory_utilization: 0.9}
  quantization: fp8
  parallel: {tensor: 1, pipeline: 1}
traffic:
  max_tokens: context
  trace: {format: azure, path: conv.csv, start: 0s, duration: 10min, rate_scale: 1.0}
load: {mode: closed, concurrency: 64}
slo: {ttft_ms: 500, tpot_ms: 50}
sweep: {load.concurrency: [1, 2, 4, 8, 16, 32, 64, 128]}
"""
    )
    found = load_workload(path)
    assert found.traffic.trace is not None and found.traffic.trace.duration == 600.0
    assert found.sweep == {"load.concurrency": (1, 2, 4, 8, 16, 32, 64, 128)}
    assert found.load.concurrency == 1
    assert point_workload(found, {"load.concurrency": 128}).load.concurrency == 128


CASES = {
    "unknown key": (GOOD + "engin: {}\n", ["w.yaml:4: engin: unknown key 'engin' in the file (did you mean engine?)"]),
    "key of another section": (
        GOOD + "engine:\n  max_num_seqs: 3\n",
        [
            "w.yaml:5: engine.max_num_seqs: unknown key 'max_num_seqs' in engine",
            "(did you mean engine.scheduler.max_num_seqs?)",
        ],
    ),
    "key of another engine": (
        GOOD + "engine:\n  gpu_memory_utilization: 0.9\n",
        ["w.yaml:5: engine.gpu_memory_utilization:", "here it is engine.kv.memory_utilization"],
    ),
    "missing": (TRAFFIC, ["the key model is missing", "bench list models", "the key backend is missing"]),
    "missing in a section": (
        MODEL + "backend: {name: sim}\n" + TRAFFIC,
        ["w.yaml:2: backend: the simulator needs a GPU"],
    ),
    "wrong types": (
        GOOD + "seed: 1.0\nengine:\n  scheduler: {pad: yes, max_num_seqs: '64'}\n  kv: 3\n",
        [
            "w.yaml:4: seed: expected a whole number, got 1.0 (write 1)",
            "w.yaml:6: engine.scheduler.pad: expected true or false, got 'yes' (write true)",
            "w.yaml:6: engine.scheduler.max_num_seqs: expected a whole number, got '64' (remove the quotes)",
            "w.yaml:7: engine.kv: expected keys and values, got 3",
        ],
    ),
    "true is no number": (GOOD + "seed: true\n", ["w.yaml:4: seed: expected a whole number, got true"]),
    "a number is no name": (GOOD + "name: 8\n", ['w.yaml:4: name: expected text, got 8 (put it in quotes: "8")']),
    "not a choice": (
        GOOD + "engine: {scheduler: {requeue: tial}}\n",
        ["w.yaml:4: engine.scheduler.requeue: expected head or tail or arrival, got 'tial' (did you mean tail?)"],
    ),
    "out of bounds": (
        GOOD + "seed: -1\nengine: {kv: {memory_utilization: 1.5, block_size: 0}}\n",
        [
            "w.yaml:4: seed: expected a number at least 0, got -1",
            "w.yaml:5: engine.kv.memory_utilization:",
            "at most 1, got 1.5",
        ],
    ),
    "rates of drafts": (
        GOOD + "engine:\n  speculation:\n    acceptance: [0.7, 1.2]\n    num_speculative_tokens: 40\n",
        [
            "w.yaml:6: engine.speculation.acceptance[1]: expected a number from 0 to 1, got 1.2",
            "w.yaml:7: engine.speculation.num_speculative_tokens: expected a number at most 32, got 40",
        ],
    ),
    "per cent of drafts": (
        GOOD + "engine: {speculation: {acceptance: 70, method: eagel}}\n",
        ["expected a number from 0 to 1, got 70 (write 0.7)", "'eagel' (did you mean eagle?)"],
    ),
    "speculation as SGLang has it": (
        GOOD + "engine: {speculation: {speculative_num_steps: 3}}\n",
        ["here it is engine.speculation.num_speculative_tokens"],
    ),
    "not finite": (GOOD + "engine: {scheduler: {conservativeness: .inf}}\n", ["w.yaml:4:", "a finite number"]),
    "no unit": (
        GOOD + "engine: {scheduler: {batch_wait: 5}}\n",
        ["w.yaml:4: engine.scheduler.batch_wait:", "write 5s"],
    ),
    "ambiguous unit": (GOOD + "engine: {scheduler: {batch_wait: 5m}}\n", ["min for minutes, ms for milliseconds"]),
    "unknown scheduler": (
        GOOD + "engine: {scheduler: {name: chunked}}\n",
        ["w.yaml:4: engine.scheduler.name: unknown scheduler 'chunked' (did you mean chunked-prefill?)"],
    ),
    "unknown router": (
        GOOD + "cluster: {replicas: 2, router: round_robin}\n",
        ["w.yaml:4: cluster.router: unknown router 'round_robin' (did you mean round-robin"],
    ),
    "no replicas": (
        GOOD + "cluster: {replicas: 0}\n",
        ["w.yaml:4: cluster.replicas: expected a number at least 1, got 0"],
    ),
    "options of a router": (
        GOOD + "cluster:\n  router: prefix\n  options: {cache_treshold: 0.5}\n",
        ["w.yaml:6: cluster.options.cache_treshold: unknown key", "(did you mean cache_threshold?)"],
    ),
    "a wrong option of a router": (
        GOOD + "cluster:\n  router: prefix\n  options: {balance_abs: much}\n",
        ["w.yaml:6: cluster.options.balance_abs: expected a whole number, got 'much'"],
    ),
    "an option where there is none": (
        GOOD + "cluster: {options: {'cache_threshold:0.5': null}}\n",
        ["w.yaml:4: cluster.options.cache_threshold:0.5: unknown key", "router round-robin has no options (remove it)"],
    ),
    "a router that is not there": (
        GOOD + "cluster: {router: 'no_such_module:Mine'}\n",
        ["w.yaml:4: cluster.router: cannot load router"],
    ),
    "a router without its method": (
        GOOD + "cluster: {router: 'sim.cluster.base:Load'}\n",
        ["w.yaml:4: cluster.router: 'sim.cluster.base:Load' is not a router", "a method route(request, loads)"],
    ),
    "unknown names": (
        MODEL.replace("Meta-Llama-3-8B", "Meta-Llama-3-9B")
        + "backend: {name: sim, gpu: h100sxm}\n"
        + TRAFFIC
        + "engine: {preset: vlm, quantization: fp9, kv: {dtype: fp9, allocator: pagd},"
        + " scheduler: {gate: ratoi, policy: fifo}}\n",
        [
            "w.yaml:1: model: unknown model",
            "w.yaml:2: backend.gpu: unknown GPU 'h100sxm' (did you mean",
            "w.yaml:4: engine.preset: unknown preset 'vlm' (did you mean vllm",
            "engine.quantization: unknown",
            "engine.kv.dtype: unknown",
            "engine.kv.allocator: unknown allocator 'pagd' (did you mean paged?)",
            "engine.scheduler.gate: unknown gate 'ratoi' (did you mean ratio?)",
            "engine.scheduler.policy: unknown policy 'fifo'",
        ],
    ),
    "a class that is not there": (
        GOOD + "engine: {scheduler: {name: 'no_such_module:Mine'}}\n",
        ["w.yaml:4: engine.scheduler.name: cannot load scheduler"],
    ),
    "unknown backend": (
        MODEL + "backend: {name: simm, gpu: h100-sxm}\n" + TRAFFIC,
        ["w.yaml:2: backend.name: unknown backend"],
    ),
    "a backend that is not there": (
        MODEL + "backend: {name: htttp, base_urls: 'http://x'}\n" + TRAFFIC,
        ["w.yaml:2: backend.name: unknown backend", "w.yaml:2: backend.base_urls: unknown key"],
    ),
    "both kinds of traffic": (
        HEAD + "traffic:\n  trace: {path: chat.jsonl}\n  synthetic: {requests: 1, input_tokens: 1, output_tokens: 1}\n",
        ["w.yaml:5: traffic.synthetic: both a trace and synthetic traffic are given (remove one of the two)"],
    ),
    "no traffic": (
        HEAD + "traffic: {max_tokens: exact}\n",
        ["w.yaml:3: traffic: expected a trace or synthetic traffic"],
    ),
    "bad rules of max_tokens": (
        HEAD + "traffic: {max_tokens: contxt, synthetic: {requests: 1, input_tokens: 1, output_tokens: 1}}\n",
        ["w.yaml:3: traffic.max_tokens: expected context, exact, next_power_of_two, {fixed: n}"],
    ),
    "a bad figure of max_tokens": (
        HEAD + "traffic: {max_tokens: {fixed: 0}, synthetic: {requests: 1, input_tokens: 1, output_tokens: 1}}\n",
        ["w.yaml:3: traffic.max_tokens.fixed: expected a whole number above 0, got 0"],
    ),
    "deep in synthetic": (
        HEAD + SYNTHETIC + "    input_tokens: {distribution: uniform, low: 9, hihg: 3}\n    output_tokens: 8\n",
        ["w.yaml:6: traffic.synthetic.input_tokens.high: is missing"],
    ),
    "unknown in synthetic": (
        HEAD + SYNTHETIC + "    arrivals: {process: poison, rate: 1}\n    input_tokens: 1\n    output_tokens: 8\n",
        ["w.yaml:6: traffic.synthetic.arrivals.process: unknown process 'poison' (did you mean poisson?)"],
    ),
    "no such trace": (HEAD + "traffic: {trace: {path: nope.csv}}\n", ["w.yaml:3: traffic.trace.path: no trace at"]),
    "closed without concurrency": (
        GOOD + "load: {mode: closed}\n",
        ["w.yaml:4: load: a closed loop needs a concurrency"],
    ),
    "open with concurrency": (
        GOOD + "load:\n  concurrency: 4\n",
        ["w.yaml:5: load.concurrency: concurrency belongs to a closed loop"],
    ),
    "two keys alike": (GOOD + "seed: 1\nseed: 2\n", ["w.yaml:5: seed: is given twice (first on line 4) (remove one)"]),
    "blank name": (GOOD + "name: ' '\n", ["w.yaml:4: name: expected some text"]),
    "numbers as keys": (GOOD + "engine: {1: 2}\n", ["w.yaml:4: engine: expected text as a key, got 1"]),
    "swept key unknown": (
        GOOD + "sweep:\n  engine.kv.blok_size: [1, 2]\n",
        ["w.yaml:5: sweep.engine.kv.blok_size[0]: unknown key 'blok_size' in engine.kv (did you mean block_size?)"],
    ),
    "swept value impossible": (
        GOOD + "sweep:\n  engine.kv.block_size:\n  - 8\n  - 0\n  - x\n",
        [
            "w.yaml:7: sweep.engine.kv.block_size[1]: expected a number at least 1, got 0",
            "w.yaml:8: sweep.engine.kv.block_size[2]:",
        ],
    ),
    "swept spec": (GOOD + "sweep: {seed: {lgo: [1, 2, 3]}}\n", ["w.yaml:4: sweep.seed: expected a list of values"]),
    "swept twice": (GOOD + "sweep: {seed: [1, 1]}\n", ["w.yaml:4: sweep.seed: the value 1 is given twice"]),
    "swept name": (GOOD + "sweep: {name: [a, b]}\n", ["w.yaml:4: sweep.name: name cannot be swept"]),
    "swept inside each other": (
        GOOD + "sweep: {engine.kv: [{block_size: 8}], engine.kv.block_size: [8, 16]}\n",
        ["lies inside engine.kv, which is swept too"],
    ),
    "too many points": (
        GOOD + "sweep: {seed: {range: [1, 2000, 1]}, engine.kv.block_size: {range: [1, 6, 1]}}\n",
        ["w.yaml:4: sweep: the sweep has 12000 points; the most is 10000"],
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_mistakes_are_told_with_place_and_remedy(case: str, write: Write) -> None:
    text, expected = CASES[case]
    message = said(write(text))
    for part in expected:
        assert part in message
    assert "Traceback" not in message


def test_several_mistakes_are_told_at_once_in_the_order_of_lines(write: Write) -> None:
    text = GOOD + "seed: x\nslo: {ttft_ms: -1}\nload: {mod: open}\n" + "".join(f"extra{i}: 1\n" for i in range(12))
    with pytest.raises(WorkloadErrors) as caught:
        load_workload(write(text))
    assert len(caught.value.errors) == 15
    lines = str(caught.value).splitlines()
    assert len(lines) == 11 and lines[-1] == "… and 5 more"
    assert [line.split("w.yaml:")[1][0] for line in lines[:3]] == ["4", "5", "6"]
    assert caught.value.exit_code == 2


def test_sections_with_all_their_keys_commented_out_are_unset(write: Write) -> None:
    found = load_workload(write(GOOD + "engine:\n  # preset: vllm\nslo:\nsweep:\n"))
    assert found.engine.written() == frozenset() and found.sweep == {}


def test_overrides_win_and_are_checked_alike(workload: Path) -> None:
    found = load_workload(
        workload, ["engine.scheduler.max_num_seqs=64", "load={mode: closed, concurrency: 3}", "seed=5"]
    )
    assert found.engine.scheduler.max_num_seqs == 64 and found.load.concurrency == 3 and found.seed == 5
    assert str(found.place("seed")) == "--set: seed"
    assert said(workload, "engine.scheduler.max_num_seqs=x").startswith(
        "--set: engine.scheduler.max_num_seqs: expected a whole"
    )
    assert "--set: engine.scheduler.nam: unknown key" in said(workload, "engine.scheduler.nam=x")
    assert "--set: load.mod: unknown key 'mod' in load (did you mean mode?)" in said(workload, "load={mod: open}")
    assert "--set: seed.x: seed has no keys" in said(workload, "seed.x=1")


@pytest.mark.parametrize("text", ["seed", "=1", ".=1", "a..b=1", "engine.=1"])
def test_overrides_must_be_key_and_value(text: str) -> None:
    with pytest.raises(InputError, match=r"--set.*expected key=value"):
        parse_override(text)


def test_overrides_can_switch_the_traffic(workload: Path) -> None:
    found = load_workload(workload, ["traffic.synthetic=null", "traffic.trace={path: chat.jsonl}"])
    assert found.traffic.trace is not None and found.traffic.synthetic is None


def test_json_is_the_same(write: Write) -> None:
    text = '{"model": "meta-llama/Meta-Llama-3-8B", "backend": {"name": "sim", "gpu": "h100-sxm"},\n'
    text += '"traffic": {"synthetic": {"requests": 4, "input_tokens": 8, "output_tokens": 8}}'
    assert load_workload(write(text + "}", "w.json")).plain() == {
        **load_workload(write(GOOD)).plain(),
        "name": "w",
    }
    assert "w.json:3: seed: expected a whole number" in said(write(text + ',\n"seed": "1"}', "w.json"))
    mixes = text.replace('"requests": ', '"priority": {"0": 0.9, "2": 0.1}, "n": {"1": 1, "3": 1}, "requests": ') + "}"
    assert mixes.count("priority") == 1
    assert load_workload(write(mixes, "w.json")).traffic.synthetic["priority"] == {"0": 0.9, "2": 0.1}
    assert "traffic.synthetic.n: keys must be whole numbers" in said(write(mixes.replace('"3"', '"x"'), "w.json"))


def test_trace_options_are_those_of_the_reader(write: Write) -> None:
    rows = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    write(rows * 2, "m.jsonl")
    found = load_workload(write(HEAD + "traffic: {trace: {path: m.jsonl, format: mooncake, block_size: 512}}\n"))
    assert found.traffic.trace is not None and found.traffic.trace.options == {"block_size": 512}
    bad = write(HEAD + "traffic:\n  trace:\n    path: m.jsonl\n    blok_size: 512\n")
    assert "w.yaml:6: traffic.trace.blok_size: unknown key 'blok_size'" in said(bad)
    assert "did you mean block_size?" in said(bad)
    typed = write(HEAD + "traffic: {trace: {path: m.jsonl, format: mooncake, block_size: big}}\n")
    assert "traffic.trace.block_size: expected a whole number, got 'big'" in said(typed)


def test_paths_start_from_the_file_and_the_hint_says_so(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("arrival,input_tokens,output_tokens\n0,5,5\n", "here/t.csv")
    path = write(HEAD + "traffic: {trace: {path: t.csv, format: csv}}\n", "there/w.yaml")
    monkeypatch.chdir(tmp_path / "here")
    assert "paths start from the workload file's folder" in said(path)
    assert load_workload(write(HEAD + "traffic: {trace: {path: t.csv}}\n", "here/w.yaml")).traffic.trace is not None


@pytest.mark.parametrize("value", ['"a\\0b.csv"', "x" * 5000, "~nobody-here/x", '""', "/dev/null", "../../../../x"])
def test_hostile_trace_paths(value: str, write: Write) -> None:
    assert "w.yaml:3: traffic.trace.path" in said(write(HEAD + f"traffic: {{trace: {{path: {value}, limt: 3}}}}\n"))


@pytest.mark.parametrize("path", workload_paths(), ids=lambda path: path.name)
def test_the_bundled_workloads_are_valid(path: Path) -> None:
    assert load_workload(path).name


def test_a_model_folder_beside_the_file(write: Write) -> None:
    write(
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "num_key_value_heads": 2,'
        ' "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 512, "torch_dtype": "bfloat16"}',
        "mine/config.json",
    )
    found = load_workload(write(GOOD.replace("meta-llama/Meta-Llama-3-8B", "./mine")))
    assert Path(found.model_source).is_dir()


def test_a_scheduler_of_ones_own(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        "from sim.schedulers import ChunkedPrefill\nclass Mine(ChunkedPrefill):\n    pass\n",
        "my_scheduler_for_test.py",
    )
    monkeypatch.chdir(tmp_path)
    found = load_workload(write(GOOD + "engine: {scheduler: {name: 'my_scheduler_for_test:Mine'}}\n"))
    assert found.engine.scheduler.name == "my_scheduler_for_test:Mine"


def test_points_are_made_from_the_source_alone(write: Write) -> None:
    found = load_workload(write(GOOD + "sweep: {seed: [1, 2], engine.kv.block_size: {log: [1, 64, 4]}}\n"), ["name=x"])
    assert found.sweep["engine.kv.block_size"] == (1, 4, 16, 64)
    again = pickle.loads(pickle.dumps(found.source))
    assert again == found.source
    point = point_workload(found, {"seed": 2, "engine.kv.block_size": 64})
    assert (point.seed, point.engine.kv.block_size, point.name, point.sweep) == (2, 64, "x", {})
    with pytest.raises(InputError, match=r"w.yaml:4: sweep.seed: expected a whole number"):
        point_workload(found, {"seed": "no"})


def test_cjk_and_emoji_under_a_c_locale(write: Write) -> None:
    path = write(GOOD + "name: 聊天 🚀\nbad键: 1\n")
    code = "import sys; from experiments.workload_file import load_workload; load_workload(sys.argv[1])"
    env = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "utf-8",
    }
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, env=env, check=False)
    assert "w.yaml:5: bad键: unknown key 'bad键' in the file" in done.stderr.decode()
    assert load_workload(write(GOOD + "name: 聊天 🚀\n")).name == "聊天 🚀"


@pytest.mark.parametrize("key", ["engine", "engine.kv", "traffic.trace", "sweep"])
def test_an_override_never_empties_a_section_unasked(key: str) -> None:
    with pytest.raises(InputError, match=rf"{key}: expected keys and values, got nothing"):
        parse_override(f"{key}=")
    assert parse_override(f"{key}=null").value is None


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_in_another_encoding(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes("name: é\n".encode(encoding))
    with pytest.raises(InputError, match="save it as UTF-8"):
        load_workload(path)
