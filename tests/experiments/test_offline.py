"""`load: {mode: offline}`: everything at once, without a server in front of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulate import run, workload

from experiments import runner
from reports.metrics import summarize
from reports.run_data import RunData
from workloads.errors import InputError

OFFLINE = {"load": {"mode": "offline"}}


def offline(**more: object) -> RunData:
    return run({**OFFLINE, "traffic.synthetic.requests": 120, **more})


def test_everything_is_in_the_queue_at_nought() -> None:
    r = offline().requests
    assert (r.scheduled == 0).all() and (r.sent == 0).all() and (r.queued == 0).all()


def test_arrivals_make_no_difference() -> None:
    slow, fast = (
        offline(**{"traffic.synthetic.arrivals": {"process": "constant", "rate": rate}}).requests.finish
        for rate in (1, 1000)
    )
    assert (slow == fast).all()


def test_no_front_end_stands_before_the_engine() -> None:
    """The same at once through a server: its front end prepares the prompts one after another, and streams."""
    at_once = {"traffic.synthetic.requests": 120, "traffic.synthetic.arrivals": {"process": "constant", "rate": 1e9}}
    data, served = offline(), run(at_once)
    assert (served.requests.queued > served.requests.sent).all()
    assert summarize(data)["output_throughput"] > summarize(served)["output_throughput"]
    assert summarize(data)["mean_ttft_ms"] < summarize(served)["mean_ttft_ms"]


def test_there_is_nothing_to_keep_up_with() -> None:
    data = offline()
    verdict = summarize(data)["saturation"]
    assert verdict["label"] == "stable" and verdict["sentence"].startswith("Offline: everything was there from the start")


@pytest.mark.parametrize("key", ["concurrency", "max_concurrency"])
def test_it_knows_no_concurrency(key: str) -> None:
    with pytest.raises(InputError, match="an offline run sends everything at once") as error:
        workload({"load": {"mode": "offline", key: 4}})
    assert error.value.place.key == f"load.{key}"


def test_a_trace_without_times_is_no_alarm(tmp_path: Path) -> None:
    trace = tmp_path / "lengths.csv"
    trace.write_text("input_tokens,output_tokens\n" + "200,20\n" * 30)
    traffic = {"trace": {"path": str(trace)}}
    base = {"name": "lengths", "model": "Llama-3.1-8B", "backend": {"gpu": "h100-sxm"}, "traffic": traffic}
    assert any("no arrival times" in text for text in run({}, base).warnings)
    data = run(OFFLINE, base)
    assert not any("arrival" in text for text in (*data.warnings, *data.notes))


def test_a_server_is_refused() -> None:
    with pytest.raises(InputError, match="a server is never offline") as error:
        runner.resolve(workload({**OFFLINE, "backend": {"name": "http", "base_url": "http://127.0.0.1:9"}}))
    assert error.value.place.key == "load.mode"
