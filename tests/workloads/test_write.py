import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workloads.errors import OutputError
from workloads.readers import read_trace
from workloads.readers.jsonl import read_jsonl
from workloads.synthetic import synthesize
from workloads.traffic import SpanTable, Traffic, answer_content, private_content
from workloads.write import to_lines, write_jsonl


@st.composite
def traffics(draw) -> Traffic:
    """Any valid traffic: sessions, spans, limits, priorities; arrivals of any size and precision."""
    size = draw(st.integers(1, 12))
    whole = st.integers(1, 10**7)
    parent = [draw(st.sampled_from([-1, *range(i)])) for i in range(size)]
    times = sorted(draw(st.lists(st.floats(0, 8e8), min_size=size, max_size=size)))
    column = lambda values: draw(st.lists(values, min_size=size, max_size=size))  # noqa: E731
    inputs, outputs, spans = column(whole), column(st.integers(1, 3000)), None
    if draw(st.booleans()):
        prompts = []
        for i in range(size):
            prompt = [(-draw(whole), draw(st.integers(0, 99)), draw(whole))] if draw(st.booleans()) else []
            if parent[i] >= 0 and draw(st.booleans()):
                prompt.append((answer_content(parent[i]), 0, outputs[parent[i]]))
            prompts.append([*prompt, (private_content(i), 0, draw(whole))])
        inputs = [sum(n for _, _, n in prompt) for prompt in prompts]
        spans = SpanTable.build(prompts)
    return Traffic(
        times, inputs, outputs, column(st.integers(0, 10**6)), spans=spans, parent=parent,
        think=column(st.floats(0, 1e6)), priority=column(st.integers(-5, 5)), n=column(st.integers(1, 4)),
    )  # fmt: skip


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traffic=traffics(), ending=st.sampled_from([".jsonl", ".jsonl.gz"]))
def test_what_is_written_is_read_back_exactly(tmp_path, same, traffic, ending):
    traffic.validate()
    path = tmp_path / f"t{ending}"
    write_jsonl(traffic, path)
    same(read_jsonl(path), traffic)
    same(read_trace(path, "twinserve"), traffic)


def test_synthetic_sessions_survive(tmp_path, same):
    spec = {
        "requests": 300,
        "arrivals": {"process": "gamma", "rate": 3, "burstiness": 0.5},
        "input_tokens": 20,
        "output_tokens": {"distribution": "uniform", "low": 1, "high": 9},
        "prefix": {"kind": "tree", "levels": [{"branches": 2, "tokens": 9}] * 2},
        "sessions": {"turns": {"distribution": "uniform", "low": 1, "high": 5}, "think": "2s"},
    }
    traffic = synthesize(spec)
    write_jsonl(traffic, tmp_path / "t.jsonl")
    same(read_jsonl(tmp_path / "t.jsonl"), traffic)


def test_equal_traffic_gives_equal_bytes_whatever_the_file_is_called(tmp_path):
    traffic = Traffic([0, 1 / 3], [5, 6], [7, 8])
    write_jsonl(traffic, tmp_path / "a.jsonl.gz")
    write_jsonl(traffic, tmp_path / "b.jsonl.gz")
    data = (tmp_path / "a.jsonl.gz").read_bytes()
    assert data == (tmp_path / "b.jsonl.gz").read_bytes()
    assert data[4:8] == b"\0\0\0\0"  # no time of writing
    assert gzip.decompress(data).decode() == to_lines(traffic)


def test_a_line_says_only_what_is_not_plain():
    traffic = Traffic([0, 0.1], [5, 6], [7, 8], [0, 64], priority=[0, 2])
    assert [json.loads(line) for line in to_lines(traffic).splitlines()] == [
        {"arrival": 0.0, "input_tokens": 5, "output_tokens": 7},
        {"arrival": 0.1, "input_tokens": 6, "output_tokens": 8, "max_tokens": 64, "priority": 2},
    ]


def test_folders_are_made_and_failures_told(tmp_path):
    traffic = Traffic([0.0], [5], [7])
    write_jsonl(traffic, tmp_path / "new" / "t.jsonl")
    with pytest.raises(OutputError, match=r"cannot be written"):
        write_jsonl(traffic, tmp_path / "new")
    with pytest.raises(OutputError, match=r"cannot be written"):
        write_jsonl(traffic, tmp_path / "new" / "t.jsonl" / "x.jsonl")


@pytest.mark.shared
@pytest.mark.parametrize("name", ["AzureLLMInferenceTrace_conv.csv.gz", "mooncake_synthetic_trace.jsonl.gz"])
def test_recorded_traces_survive(recorded, tmp_path, same, name):
    traffic = read_trace(recorded / name)
    write_jsonl(traffic, tmp_path / "t.jsonl.gz")
    same(read_trace(tmp_path / "t.jsonl.gz"), traffic)
    assert math.isclose(float(np.diff(traffic.arrival).min()), 0, abs_tol=1e-3)
