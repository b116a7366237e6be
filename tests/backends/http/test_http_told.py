"""What a run on a server tells: on its page, in its verdict and in its progress, and what nobody saw."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scripted_server import Call, FakeServer, answer, running
from test_http_run import SYNTHETIC, run, workload

pytest.importorskip("aiohttp")

from experiments import runner
from reports.compare.comparison import figure_of
from reports.metrics import notices, summarize
from reports.run_folder import read_run, write_run


def test_what_nobody_sees_of_the_kv_pool_is_unknown_not_nothing(tmp_path: Path) -> None:
    """A comparison with a simulation must not say that a server wastes nothing."""
    text = 'vllm:kv_cache_usage_perc 0.5\nvllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
    data = run(FakeServer(metrics=text, gap=0.002), tmp_path)
    again = read_run(write_run(data, tmp_path / "run"))
    for each in (data, again):
        summary = summarize(each)
        assert (summary["kv_used_mean"], summary["kv_free_mean"]) == pytest.approx((0.5, 0.5))
        assert all(summary[f"kv_{kind}_mean"] is None for kind in ("cached", "reserved", "internal", "external"))
    assert figure_of(summary, "kv_wasted_mean") is None
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "internal waste" not in page.split("<h2>Server and client</h2>")[1].split("</section>")[0]
    silent = run(FakeServer(), tmp_path)
    assert np.isnan(silent.timeline.kv_used).all() and summarize(silent)["kv_used_mean"] is None


def test_the_page_tells_what_client_and_server_say_and_nothing_that_nobody_saw(tmp_path: Path) -> None:
    text = "vllm:num_requests_running 4\nvllm:num_preemptions_total 3\n"
    data = run(FakeServer(metrics=text, gap=0.002), tmp_path)
    page = (write_run(data, tmp_path / "run") / "report.html").read_text("utf-8")
    figures = re.findall(r'<figure data-chart="(.*?)"', page)
    assert {"throughput", "queue", "gantt"} <= set(figures) and not {"batch", "step_rate", "kv"} & set(figures)
    facts = dict(re.findall(r'<th scope="row">(.*?)</th><td class="n wrapped">(.*?)</td>', page))
    assert facts["Preemptions, as the server says"] == "0" and facts["Asked at"] == "/v1/completions"
    assert facts["Prompts counted by"] == "the server&#39;s /tokenize" and "Engine steps" not in facts
    assert "to the first token" in page and '<tr class="part"><th scope="row">queue' not in page
    assert f"<li><span>server</span>{data.config['backend']['base_url']['value']}</li>" in page
    assert "client.chunk gap mean" not in page and "client.prompt seed" in page


def test_a_run_of_which_much_failed_is_not_called_stable(tmp_path: Path) -> None:
    async def shedding(call: Call) -> None:
        if len(call.server.calls) > 5:
            return await call.json({"error": {"message": "too many"}}, 429)
        return await answer(call)

    summary = summarize(run(FakeServer(script=shedding), tmp_path))
    assert summary["failed"] == 8 and summary["saturation"]["label"] == "unknown"
    assert summary["saturation"]["sentence"] == "8 of 12 requests failed, so nothing can be said of saturation."
    (told,) = [each for each in notices(summary) if "failed" in each]
    assert told.startswith(
        "8 of 12 requests failed (most often status: 429 too many): latencies and rates are those of the"
    )


@pytest.mark.parametrize(
    ("metrics", "label", "words"),
    [
        ("", "stable", "Stable: 3 clients in a closed loop; whether they queued in the server, nobody saw."),
        ("vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n", "backlogged", "of 3 clients, 1 waited on average"),
        ("vllm:num_requests_running 3\nvllm:num_requests_waiting 0\n", "stable", "0 waited on average, as the server says"),
    ],
)  # fmt: skip
def test_what_a_closed_loop_on_a_server_can_tell(tmp_path: Path, metrics: str, label: str, words: str) -> None:
    data = run(FakeServer(metrics=metrics, gap=0.002), tmp_path, load={"mode": "closed", "concurrency": 3})
    found = summarize(data)["saturation"]
    assert found["label"] == label and words in found["sentence"]


def test_progress_is_told_in_seconds_where_the_time_will_end_a_run(tmp_path: Path) -> None:
    told: list[tuple[float, float, str]] = []
    traffic = {"synthetic": {**SYNTHETIC, "requests": 5000, "arrivals": {"process": "constant", "rate": 50}}}
    with running(FakeServer()) as server:
        file = workload(server, tmp_path, traffic=traffic, backend={"max_duration": "0.7s"})
        runner.run(runner.resolve(file), progress=lambda done, total, words: told.append((done, total, words)))
        assert told and all(total == 0.7 and 0 < done < 0.7 for done, total, _ in told)
        told.clear()
        file = workload(
            server, tmp_path, traffic={"synthetic": {**SYNTHETIC, "arrivals": {"process": "constant", "rate": 20}}}
        )
        runner.run(runner.resolve(file), progress=lambda done, total, words: told.append((done, total, words)))
        assert told and all(total == 12 for _, total, _ in told)


@pytest.mark.parametrize("takes", [("priority", "ignore_eos"), ("ignore_eos",), ("priority",), ()])
def test_priorities_go_along_where_the_server_takes_them(tmp_path: Path, takes: tuple[str, ...]) -> None:
    async def picky(call: Call) -> None:
        wrong = [key for key in ("priority", "ignore_eos") if call.body.get(key) and key not in takes]
        if wrong:
            return await call.json({"error": {"message": f"{wrong[0]} is not supported"}}, 400)
        return await answer(call)

    trace = tmp_path / "trace.jsonl"
    rows = [{"arrival": 0.01 * i, "input_tokens": 8 + i, "output_tokens": 2, "priority": i % 3} for i in range(6)]
    trace.write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    server = FakeServer(script=picky)
    data = run(server, tmp_path, traffic={"trace": {"path": str(trace)}}, backend={"fresh_prompts": False})
    assert set(data.requests.status) == {"finished"}
    sent = sorted((len(body["prompt"].split()), body.get("priority")) for body in server.calls[-6:])
    assert [each for _, each in sent] == [i % 3 if "priority" in takes else None for i in range(6)]
    assert all(body.get("ignore_eos", False) is ("ignore_eos" in takes) for body in server.calls[-6:])
    told = "the server takes no priorities: requests are sent without"
    assert (told in data.warnings) is ("priority" not in takes)


def test_requests_that_fail_make_no_rate_higher(tmp_path: Path) -> None:
    """A server that goes away after five of twelve requests has not served faster than one that answers all."""

    async def gone(call: Call) -> None:
        if len(call.server.calls) > 6:
            call.writer.transport.abort()
            return None
        return await answer(call)

    traffic = {**SYNTHETIC, "arrivals": {"process": "constant", "rate": 40.0}}
    data = run(FakeServer(script=gone), tmp_path, traffic={"synthetic": traffic})
    summary = summarize(data)
    assert summary["failed"] > 0 and summary["completed"] > 0
    assert summary["duration"] >= 11 / 40  # to the last send
    assert summary["request_throughput"] <= summary["completed"] * 40 / 11


def test_a_request_that_hung_is_part_of_the_run_until_it_failed(tmp_path: Path) -> None:
    async def hangs(call: Call) -> None:
        if len(call.server.calls) == 5:
            await call.start()
            await call.event(call.chunk("a"))
            await asyncio.sleep(5)
            return None
        return await answer(call)

    data = run(FakeServer(script=hangs), tmp_path, backend={"timeout": "700ms"})
    again = read_run(write_run(data, tmp_path / "run"))
    for each in (data, again):
        summary = summarize(each)
        assert summary["failed"] == 1 and summary["duration"] > 0.65
        assert summary["max_concurrent_requests"] >= 1


@pytest.mark.parametrize(
    ("tokens", "counted", "words"),
    [(2, 2, "are longer than asked for"), (1, 0.2, "its count (usage) cannot be right"), (1, 1, "")],
)
def test_counts_that_are_not_what_was_asked_for_or_came(
    tmp_path: Path, tokens: int, counted: float, words: str
) -> None:
    """Answers twice as long as asked for; a `usage` of a fifth of the chunks that came."""

    async def odd(call: Call) -> None:
        size = call.body.get("max_tokens", 16) * tokens
        await call.start()
        for _ in range(size):
            await call.event(call.chunk(" w"))
        await call.event({"choices": [], "usage": call.usage(max(round(size * counted), 1))})
        await call.event("[DONE]")
        await call.end()

    found = [
        each for each in run(FakeServer(script=odd), tmp_path).warnings if "longer than" in each or "usage" in each
    ]
    assert len(found) == bool(words) and all(words in each for each in found)
