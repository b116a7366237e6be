from __future__ import annotations

import copy
import json
import random

import foreign_results as foreign
import numpy as np
import pytest
from foreign_results import Known
from synthetic_runs import simulated_run

from reports.export import write_vllm_result
from reports.imports import is_result, read_results
from reports.metrics import summarize
from reports.run_folder import read_run, write_run
from reports.subject import Subject
from reports.traffic import differences
from workloads.errors import InputError

LATENCIES = ("ttft", "tpot", "e2el")


@pytest.fixture
def known() -> Known:
    return Known()


def put(folder, name: str, content) -> object:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def agree(subject: Subject, known: Known, names=LATENCIES, tolerance: float = 1e-6) -> None:
    """Means and medians of a subject are those of the requests."""
    for name in names:
        stats = known.stats(known.series()[name])
        for stat in ("mean", "median"):
            assert subject.summary[f"{stat}_{name}_ms"] == pytest.approx(stats[stat], rel=tolerance), (name, stat)
    assert subject.summary["completed"] == len(known.sent)


# vLLM


@pytest.mark.parametrize(("detailed", "times"), [(False, False), (True, False), (True, True)])
def test_vllm(known, tmp_path, detailed, times):
    (found,) = read_results(put(tmp_path, "v.json", foreign.vllm(known, detailed=detailed, times=times)))
    agree(found, known, (*LATENCIES, "itl"))
    assert (found.tool, found.data is not None, found.timed) == ("vLLM", detailed, times)
    assert found.summary["output_throughput"] == pytest.approx(known.outputs.sum() / known.duration)
    assert found.traffic.plain() == {
        "requests": 12, "input_tokens": int(known.inputs.sum()), "output_tokens": int(known.outputs.sum()), "mode": "open",
        "rate": 2.0,
    }  # fmt: skip
    assert found.config["model"] == "meta-llama/Meta-Llama-3-8B"
    assert any("no times of sending" in note for note in found.notes) == (detailed and not times)


def test_vllm_chunks_of_several_tokens(tmp_path):
    known = Known(tokens_a_chunk=4)
    (found,) = read_results(put(tmp_path, "v.json", foreign.vllm(known)))
    agree(found, known)
    # a chunk's gap is spread over its tokens, so four times as many gaps of a quarter
    assert found.summary["mean_itl_ms"] < 0.4 * known.series()["itl"].mean() * 1e3
    assert any("chunks" in note for note in found.notes)
    assert len(found.data.tokens.request) == known.outputs.sum()


def test_vllm_failures_feed_no_latency(known, tmp_path):
    raw = foreign.vllm(known)
    raw["errors"][3], raw["ttfts"][3], raw["output_lens"][3], raw["itls"][3] = "Traceback: reset", 0.0, 0, []
    raw["latencies"][3] = 0.0
    raw["ttfts"][4], raw["output_lens"][4], raw["itls"][4] = 0.0, 0, []  # ended without a token
    (found,) = read_results(put(tmp_path, "v.json", raw))
    assert (found.summary["completed"], found.summary["failed"]) == (10, 2)
    kept = np.delete(np.arange(12), [3, 4])
    assert found.summary["mean_ttft_ms"] == pytest.approx(known.ttft[kept].mean() * 1e3)
    assert found.summary["failed_reasons"] == {"Traceback: reset": 1, "empty": 1}


def test_vllm_closed_loop_and_unknown_fields(known, tmp_path):
    raw = foreign.vllm(known, detailed=False, request_rate="inf", max_concurrency=8, brand_new="x", tensor_parallel=2)
    (found,) = read_results(put(tmp_path, "v.json", raw))
    assert (found.traffic.mode, found.traffic.concurrency, found.traffic.rate) == ("closed", 8, None)
    assert any("brand_new, tensor_parallel" in note for note in found.notes)
    assert found.config["metadata.tensor_parallel"] == 2


def test_vllm_files_of_2025(known, tmp_path):
    raw = foreign.vllm(known, detailed=False)
    for key in (
        "request_goodput",
        "failed",
        "endpoint_type",
        "label",
        "rtfx",
        "max_output_tokens_per_s",
        "max_concurrent_requests",
    ):
        del raw[key]
    (found,) = read_results(
        put(tmp_path, "v.json", raw | {"request_goodput:": 1.5, "gpu": "4xL40S", "deployment": "base"})
    )
    agree(found, known, ("ttft", "tpot", "itl"))
    assert found.summary["request_goodput"] == 1.5
    assert found.config["metadata.gpu"] == "4xL40S"


def test_our_own_export_comes_back(tmp_path):
    run = simulated_run(120, 15, pool=9000)
    write_vllm_result(run, tmp_path / "ours.json", detailed=True)
    (found,) = read_results(tmp_path / "ours.json")
    ours = summarize(run, with_intervals=False)
    for key in (
        "mean_ttft_ms",
        "p99_ttft_ms",
        "median_tpot_ms",
        "p99_itl_ms",
        "mean_e2el_ms",
        "output_throughput",
        "duration",
    ):
        assert found.summary[key] == pytest.approx(ours[key], rel=1e-9), key
    assert not any("otherwise" in note for note in found.notes)
    assert differences(Subject.of(run).traffic, found.traffic) == []
    assert differences(Subject.of(simulated_run(110, 15)).traffic, found.traffic)[0] == "requests 110 and 120"


def test_an_import_becomes_a_run_folder_with_a_page(known, tmp_path):
    (found,) = read_results(put(tmp_path, "v.json", foreign.vllm(known)))
    out = write_run(found.data, tmp_path / "run")
    again = summarize(read_run(out), with_intervals=False)
    assert again["mean_itl_ms"] == pytest.approx(found.summary["mean_itl_ms"])
    assert again["littles_law"]["error"] is None or again["littles_law"]["error"] < 0.02
    assert "<svg" in (out / "report.html").read_text("utf-8")


# SGLang


@pytest.mark.parametrize("detailed", [False, True])
def test_sglang(known, tmp_path, detailed):
    path = put(tmp_path, "s.jsonl", foreign.sglang(known, detailed=detailed) + "\n\n" + foreign.sglang(known) + "\n")
    found = read_results(path)
    assert len(found) == 2
    for one in found:
        agree(one, known, (*LATENCIES, "itl"))
        assert (one.traffic.mode, one.traffic.concurrency) == ("closed", 4)
        assert one.summary["total_token_throughput"] > one.summary["output_throughput"]
        assert not any("not known here" in note for note in one.notes)
    assert found[0].name != found[1].name


def test_sglang_in_a_json_file(known, tmp_path):
    pretty = json.dumps(json.loads(foreign.sglang(known)), indent=2)
    assert len(read_results(put(tmp_path, "s.json", pretty))) == 1


# guidellm


def test_guidellm(known, tmp_path):
    (found,) = read_results(put(tmp_path, "g.json", foreign.guidellm(known)))
    agree(found, known)  # from its requests: to the last token, though its own latency ends 0.2 s later
    assert (found.traffic.mode, found.traffic.concurrency, found.timed) == ("closed", 4, True)
    assert found.summary.get("mean_itl_ms") is None
    assert any("e2el_ms" in note and "otherwise" in note for note in found.notes)


def test_guidellm_with_a_sample_of_requests_only(known, tmp_path):
    (found,) = read_results(put(tmp_path, "g.json", foreign.guidellm(known, requests=False)))
    assert found.data is None
    assert any("3 requests of 12" in note for note in found.notes)
    assert found.summary["p99_ttft_ms"] == pytest.approx(known.stats(known.ttft)["p99"])
    assert found.summary["mean_e2el_ms"] == pytest.approx((known.latency.mean() + 0.2) * 1e3)
    assert found.summary["total_output_tokens"] == pytest.approx(known.outputs.sum())


def test_guidellm_yaml_and_versions(known, tmp_path):
    from ruamel.yaml import YAML

    plain = json.loads(json.dumps(foreign.guidellm(known, benchmarks=2, version=9)))
    with (tmp_path / "g.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(plain, file)
    found = read_results(tmp_path / "g.yaml")
    assert len(found) == 2
    agree(found[1], known)
    assert any("version 9 is newer" in note for note in found[0].notes)


# AIPerf


def test_aiperf_summary_records_and_table(known, tmp_path):
    summary = put(tmp_path, "profile_export_aiperf.json", foreign.aiperf(known))
    (alone,) = read_results(summary)
    agree(alone, known)
    assert (alone.traffic.concurrency, alone.config["model"], alone.data) == (4, "llama", None)
    assert alone.summary["total_input_tokens"] == pytest.approx(known.inputs.sum())
    (table,) = read_results(put(tmp_path, "x.csv", foreign.aiperf_table(known)))
    agree(table, known, tolerance=1e-3)
    assert table.summary["output_throughput"] == pytest.approx(known.outputs.sum() / known.duration, rel=1e-3)
    put(tmp_path, "profile_export.jsonl", foreign.aiperf_records(known))
    (whole,) = read_results(tmp_path)
    agree(whole, known)
    assert whole.data is not None and len(whole.data.requests) == 12  # the warm-up is left out
    assert whole.summary.get("p99_itl_ms") is None
    (lines,) = read_results(tmp_path / "profile_export.jsonl")
    agree(lines, known)


def test_aiperf_versions_units_and_unknown_fields(known, tmp_path):
    (found,) = read_results(put(tmp_path, "a.json", foreign.aiperf(known, schema_version="2.0", quantum={"avg": 1})))
    assert any("schema_version 2.0 is newer" in note for note in found.notes)
    assert any("quantum" in note and "AIPerf 0.4.0" in note for note in found.notes)
    raw = foreign.aiperf(known)
    raw["request_latency"]["unit"] = "fortnights"
    with pytest.raises(InputError, match=r"a\.json: request_latency\.unit: unknown unit 'fortnights'"):
        read_results(put(tmp_path, "a.json", raw))


# inference-perf


@pytest.mark.parametrize("chunk", [1, 3])
def test_inference_perf(tmp_path, chunk):
    known = Known(tokens_a_chunk=chunk)
    put(tmp_path, "summary_lifecycle_metrics.json", foreign.inference_perf(known))
    (alone,) = read_results(tmp_path / "summary_lifecycle_metrics.json")
    agree(alone, known)
    put(
        tmp_path, "stage_0_lifecycle_metrics.json", foreign.inference_perf(known, requested_rate=2.0, achieved_rate=1.9)
    )
    put(tmp_path, "per_request_lifecycle_metrics.json", foreign.inference_perf_requests(known))
    (whole,) = read_results(tmp_path)
    agree(whole, known)
    assert (whole.traffic.rate, whole.data is not None) == (2.0, True)
    (rows,) = read_results(tmp_path / "per_request_lifecycle_metrics.json")
    agree(rows, known)


def test_inference_perf_stages(known, tmp_path):
    older = foreign.inference_perf(known)
    del older["benchmark_time_seconds"], older["successes"]["prompt_tokens"], older["successes"]["output_tokens"]
    older["successes"] |= {"prompt_len": {"mean": 100.0}, "output_len": {"mean": 10.0}}
    (found,) = read_results(put(tmp_path, "older.json", older))
    assert found.summary["duration"] == pytest.approx(known.duration)
    assert found.traffic.input_tokens == 1200
    for stage, rate in ((0, 1.0), (1, 2.0), (10, 4.0)):
        put(tmp_path, f"stage_{stage}_lifecycle_metrics.json", foreign.inference_perf(known, requested_rate=rate))
    found = read_results(tmp_path)
    assert [one.traffic.rate for one in found] == [1.0, 2.0, 4.0]
    assert len({one.name for one in found}) == 3


# what is wrong with a file


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"duration": 0}, "duration: must be more than 0"),
        ({"duration": None}, "duration: is missing"),
        ({"completed": "many"}, "completed: must be a number, is 'many'"),
        ({"completed": 1.5}, "completed: must be a whole number"),
        ({"mean_ttft_ms": -3}, "mean_ttft_ms: must not be negative"),
        ({"duration": float("inf")}, "duration: must be a finite number"),
        ({"ttfts": [0.1, "x"]}, r"ttfts\[1\]: must be a number"),
        ({"output_lens": [1]}, "output_lens: has 1 entries where there are 12"),
        ({"itls": [1.0] * 12}, "itls: must be a list for each"),
        ({"request_rate": []}, "request_rate: must be a number"),
    ],
)
def test_wrong_fields_are_named(known, tmp_path, change, named):
    with pytest.raises(InputError, match=rf"v\.json: {named}"):
        read_results(put(tmp_path, "v.json", foreign.vllm(known) | change))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "", "is empty"),
        ("a.json", "{not json", "is not JSON"),
        ("a.json", "[]", "neither a run folder nor a result file"),
        ("a.json", '{"benchmarks": []}', "has no benchmarks"),
        ("a.json", '{"benchmarks": [3]}', r"benchmarks\[0\]: must be an object"),
        ("a.jsonl", "\n\n", "is empty"),
        ("a.jsonl", '{"a": 1}\n{', "a.jsonl:2: is not JSON"),
        ("a.yaml", "benchmarks: [", "is not YAML"),
        ("a.yaml", "name: x", "neither a run folder"),
        ("a.csv", "Metric,avg\nRequest Latency (ms),fast\n", "expected a number, found 'fast'"),
        ("a.txt", "x", "neither a run folder"),
        ("a.json", "[" * 5000, "is not JSON"),
    ],
)
def test_files_of_nobody(tmp_path, name, content, said):
    path = put(tmp_path, name, content)
    with pytest.raises(InputError, match=said):
        read_results(path)
    with pytest.raises(InputError, match="no such file"):
        read_results(tmp_path / "none.json")


def test_binary_and_latin_files(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(InputError, match="not UTF-8"):
        read_results(tmp_path / "a.json")
    assert not is_result(tmp_path / "a.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="neither a run folder"):
        read_results(tmp_path / "empty")


def test_nothing_finished(known, tmp_path):
    raw = foreign.vllm(known, completed=0, total_output_tokens=0, output_throughput=0.0, errors=["reset"] * 12)
    (found,) = read_results(put(tmp_path, "v.json", raw))
    assert found.summary["completed"] == 0
    assert found.summary.get("mean_ttft_ms") is None
    raw = foreign.vllm(known, detailed=False, completed=0, mean_ttft_ms=0.0)
    (found,) = read_results(put(tmp_path, "v.json", raw))
    assert found.summary.get("mean_ttft_ms") is None


def test_hostile_names(known, tmp_path):
    raw = foreign.vllm(known, label="<script>alert(1)</script>\x1b[31m" + "x" * 5000, model_id="\ud800名前")
    (found,) = read_results(put(tmp_path, "v.json", raw))
    assert len(found.name) <= 120
    assert "\x1b" not in found.name


# what no benchmark can have measured

HUGE = int("9" * 400)


def refused(folder, name: str, content, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_results(put(folder, name, content))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("ttfts", -0.1, r"ttfts\[0\]: must not be negative"),
        ("ttfts", float("inf"), r"ttfts\[0\]: must be a finite number"),
        ("ttfts", float("nan"), r"ttfts\[0\]: must be a finite number"),
        ("ttfts", HUGE, r"ttfts\[0\]: must not be more than 1e\+12"),
        ("ttfts", 1e3, r"latencies\[0\]: is .* s, less than the 1000 s to its first token"),
        ("output_lens", 10**12, r"output_lens\[0\]: must not be more than 1e\+08"),
        ("input_lens", -1, r"input_lens\[0\]: must not be negative"),
        ("start_times", 1e13, r"start_times\[0\]: must not be more than 1e\+12"),
        ("itls", [None], r"itls\[0\]\[0\]: must be a number, is None"),
        ("itls", ["x"], r"itls\[0\]\[0\]: must be a number, is 'x'"),
        ("itls", [0.1, [0.1]], r"itls\[0\]\[1\]: must be a number"),
        ("itls", [-0.1], r"itls\[0\]\[0\]: must not be negative"),
    ],
)
def test_impossible_entries_are_named(known, tmp_path, key, value, said):
    raw = foreign.vllm(known)
    raw[key] = [value, *raw[key][1:]]
    refused(tmp_path, "v.json", raw, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"completed": 13}, "completed: is 13, but the file has 12 requests"),
        ({"completed": HUGE}, "completed: must not be more than"),
        ({"output_throughput": 1e16}, "output_throughput: must not be more than"),
        ({"total_input_tokens": 2**53 + 1}, "total_input_tokens: must not be more than"),
        ({"request_rate": -2.0}, "request_rate: must not be negative"),
        ({"own_setting": HUGE}, "own_setting: must not be more than"),
    ],
)
def test_impossible_figures_are_named(known, tmp_path, change, said):
    refused(tmp_path, "v.json", foreign.vllm(known) | change, said)


def test_too_many_tokens_in_all(known, tmp_path):
    refused(tmp_path, "v.json", foreign.vllm(known, output_lens=[10**8] * 12), r"output_lens\[2\]: output tokens")


@pytest.mark.parametrize("key", ["ttfts", "itls"])
def test_milliseconds_among_seconds(known, tmp_path, key):
    raw = foreign.vllm(known)
    raw |= {"latencies": [v * 1e3 for v in raw["latencies"]]}
    raw[key] = [[g * 1e3 for g in v] if isinstance(v, list) else v * 1e3 for v in raw[key]]
    if key == "itls":
        raw["latencies"] = [v + 1e3 for v in raw["latencies"]]
    refused(tmp_path, "v.json", raw, f"{key}: must be seconds, seems to be milliseconds: its mean is 1000 times")


@pytest.mark.parametrize("group", ["successful", "errored", "incomplete"])
@pytest.mark.parametrize("value", [3, True, "x", [3]])
def test_guidellm_groups_that_are_no_lists(known, tmp_path, group, value):
    raw = foreign.guidellm(known)
    raw["benchmarks"][0]["requests"][group] = value
    refused(tmp_path, "g.json", raw, rf"benchmarks\[0\]\.requests\.{group}.*: must be an? (list|object)")


@pytest.mark.parametrize("value", [3, True, "request_start_ns", None])
def test_aiperf_records_without_metadata(known, tmp_path, value):
    lines = foreign.aiperf_records(known).splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | {"metadata": value})
    refused(tmp_path, "profile_export.jsonl", "\n".join(lines), r"profile_export\.jsonl:3: is no request of AIPerf")


def test_aiperf_table_with_a_field_too_long(tmp_path):
    refused(tmp_path, "x.csv", "Metric,avg\nRequest Latency (ms)," + "1" * 140_000, r"x\.csv:2: is not CSV")


def test_inference_perf_times_that_go_back(known, tmp_path):
    rows = foreign.inference_perf_requests(known)
    rows[1]["end_time"] = 1.0
    refused(tmp_path, "r.json", rows, r"\[1\]\.end_time: is before start_time")
    rows = foreign.inference_perf_requests(known)
    rows[1]["info"]["response_metrics"]["output_token_times"][1] = 1.0
    refused(tmp_path, "r.json", rows, r"\[1\]\.info\.response_metrics\.output_token_times\[1\]: must be a time")


HOSTILE = (
    None, True, -1, 0, 10**12, HUGE, 2**53 + 1, -0.5, 1e16, 1e308, float("nan"), float("inf"), float("-inf"), "", "x", "inf",
    [], [None], ["x"], [[]], [1e308], {}, {"a": 1}, {"mean": HUGE}, {"avg": -1}, {"value": "x"}, "<script>\x1b[31m\ud800",
)  # fmt: skip


def mutated(raw, rng: random.Random):
    """A copy with something inside replaced or taken away."""
    raw = copy.deepcopy(raw)
    node, rest = raw, rng.randrange(1, 8)
    while isinstance(node, dict | list) and node:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = rng.choice(keys)
        rest -= 1
        if rest == 0 or not isinstance(node[key], dict | list) or not node[key]:
            if rng.random() < 0.1:
                del node[key]
            else:
                node[key] = copy.deepcopy(rng.choice(HOSTILE))
            break
        node = node[key]
    return raw


@pytest.mark.parametrize("tool", ["v", "s", "g", "a", "profile_export", "i", "r", "x"])
def test_hostile_files_give_input_errors_only(tmp_path, tool):
    known, rng = Known(4), random.Random(7)
    raw = {
        "v": lambda: foreign.vllm(known), "s": lambda: json.loads(foreign.sglang(known)), "g": lambda: foreign.guidellm(known),
        "a": lambda: foreign.aiperf(known), "i": lambda: foreign.inference_perf(known),
        "r": lambda: foreign.inference_perf_requests(known), "x": lambda: foreign.aiperf_table(known).splitlines(),
        "profile_export": lambda: [json.loads(line) for line in foreign.aiperf_records(known).splitlines()],
    }[tool]()  # fmt: skip
    raised = 0
    for _ in range(300):
        content = mutated(raw, rng)
        if tool == "x":
            content = "\n".join(str(line).encode("utf-8", "replace").decode() for line in content)
        elif tool == "profile_export":
            content = "\n".join(map(json.dumps, content))
        path = put(tmp_path, tool + {"x": ".csv", "profile_export": ".jsonl"}.get(tool, ".json"), content)
        try:
            assert read_results(path)
        except InputError as error:
            assert str(path) in str(error)
            raised += 1
    assert 0 < raised < 300


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""), ({"output_throughput": 0.1}, "output_throughput is 0.1"), ({"duration": 4000.0}, "request_throughput is"),
        ({"mean_e2el_ms": 0.4}, "are they in milliseconds?"), ({"mean_e2el_ms": 4e6}, "are they in milliseconds?"),
    ],
)  # fmt: skip
def test_figures_of_a_file_that_cannot_all_be_true(known, tmp_path, change, words):
    """As where one was put into another unit by hand."""
    raw = foreign.vllm(known, detailed=False) | {"request_rate": "inf", "max_concurrency": 2} | change
    (found,) = read_results(put(tmp_path, "v.json", raw))
    disagreeing = [note for note in found.notes if "disagree" in note]
    assert bool(disagreeing) == bool(words) and words in " ".join(disagreeing)
