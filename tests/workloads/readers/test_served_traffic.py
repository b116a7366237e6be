"""Traffic that was served before, read from what was recorded of it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workloads.errors import InputError
from workloads.readers import read_trace
from workloads.readers.measured import COLUMNS

ROWS = [  # session, turn, priority, scheduled, sent, finish, input_tokens, target_tokens
    (0, 0, 0, 1.0, 1.1, 3.0, 10, 5),
    (1, 0, 2, 2.0, 2.0, 4.0, 20, 6),
    (0, 1, 0, 3.5, 3.5, 5.0, 30, 7),
    (3, 0, 0, 4.0, 4.0, np.nan, 40, 8),  # failed; its next turn was never sent
    (3, 1, 0, np.nan, np.nan, np.nan, 50, 9),
]


@pytest.fixture
def run(tmp_path):
    """A run folder with as much as the reader needs: `run(info)`."""

    def write(info: dict, rows=ROWS, columns=COLUMNS):
        table = pa.table({name: list(values) for name, values in zip(columns, zip(*rows, strict=True), strict=False)})
        pq.write_table(table, tmp_path / "requests.parquet")
        (tmp_path / "run.json").write_text(json.dumps({"info": info}))
        return tmp_path

    return write


@pytest.mark.parametrize("part", ["", "requests.parquet", "run.json"])
def test_a_run_folder_is_traffic(run, part):
    traffic = read_trace(run({"load": {"mode": "open"}}) / part)
    assert traffic.arrival.tolist() == [0, 1, 2.5, 3]
    assert traffic.input_tokens.tolist() == [10, 20, 30, 40]
    assert traffic.output_tokens.tolist() == [5, 6, 7, 8]
    assert traffic.parent.tolist() == [-1, -1, 0, -1]
    assert traffic.think.tolist() == [0, 0, 0.5, 0]
    assert traffic.priority.tolist() == [0, 2, 0, 0]
    assert any("left out 1 requests" in note for note in traffic.notes)


@pytest.mark.parametrize(
    ("info", "said"),
    [({"load": {"mode": "closed"}}, "closed loop: requests arrive when"), ({"sent_seen": False}, "no arrival times")],
)
def test_what_its_times_mean_is_told(run, info, said):
    assert any(said in note for note in read_trace(run(info)).notes)


def test_what_is_no_run(run, tmp_path):
    with pytest.raises(InputError, match="lacks target_tokens"):
        read_trace(run({}, columns=COLUMNS[:-1]))
    (tmp_path / "requests.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a run's requests"):
        read_trace(tmp_path)
    (tmp_path / "requests.parquet").unlink()
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path)


def result(**changes) -> dict:
    figures = {"mean_ttft_ms": 9.0, "total_token_throughput": 5.0, "duration": 3.0}
    return (
        figures | {"input_lens": [10, 20, 30], "output_lens": [3, 0, 4], "start_times": [104.5, 103.0, 101.0]} | changes
    )


@pytest.mark.parametrize("indent", [None, 2])
def test_a_result_of_vllm_is_traffic(file, indent):
    traffic = read_trace(file("v.json", json.dumps(result(), indent=indent)))
    assert traffic.arrival.tolist() == [0, 3.5]
    assert (traffic.input_tokens.tolist(), traffic.output_tokens.tolist()) == ([30, 10], [4, 3])
    assert any("left out 1 requests" in note for note in traffic.notes)
    untimed = read_trace(file("v.json", json.dumps(result(start_times=None))))
    assert not untimed.arrival.any() and any(note.startswith("no arrival times") for note in untimed.notes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input_lens": None}, "input_lens: holds no requests.*--save-detailed"),
        ({"start_times": [1.0]}, "start_times: expected a list of 3 numbers"),
        ({"output_lens": [1, "x", 2]}, "column output_lens: expected a number, not 'x'"),
        ({"output_lens": [0, 0, 0]}, "no request of it was sent"),
    ],
)
def test_a_result_that_is_no_traffic(file, changes, said):
    with pytest.raises(InputError, match=said):
        read_trace(file("v.json", json.dumps(result(**changes))))
