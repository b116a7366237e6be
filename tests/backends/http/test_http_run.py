"""Whole runs against a scripted server: what is sent, what is measured, what goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_server import Call, FakeServer, answer, running

pytest.importorskip("aiohttp")

from experiments import runner
from experiments.workload_file import load_workload
from reports.metrics import summarize
from reports.run_data import RunData
from reports.run_folder import read_run, write_run
from workloads.errors import InputError, TargetError

SYNTHETIC = {
    "requests": 12, "arrivals": {"process": "constant", "rate": 400},
    "input_tokens": {"distribution": "uniform", "low": 8, "high": 40},
    "output_tokens": {"distribution": "uniform", "low": 2, "high": 6},
}  # fmt: skip


def workload(server: FakeServer, folder: Path, **changes: Any) -> Any:
    """A small workload on a server; `backend` and others are laid over it."""
    whole = {
        "name": "w", "model": "meta-llama/Meta-Llama-3-8B", "traffic": {"synthetic": SYNTHETIC},
        "backend": {"name": "http", "base_url": server.url},
    }  # fmt: skip
    whole["backend"] |= changes.pop("backend", {})
    file = folder / "w.yaml"
    file.write_text(json.dumps(whole | changes), "utf-8")
    return load_workload(file)


def run(server: FakeServer, folder: Path, **changes: Any) -> RunData:
    with running(server):
        return runner.run(runner.resolve(workload(server, folder, **changes)))


def test_a_run_asks_for_the_lengths_of_the_traffic_and_counts_them(tmp_path: Path) -> None:
    server = FakeServer()
    data = run(server, tmp_path)
    r = data.requests
    assert set(r.status) == {"finished"} and (r.output_tokens == r.target_tokens).all()
    assert (data.client.counted_input == r.input_tokens).all() and (data.client.chunks == r.output_tokens).all()
    sent = server.calls[1:]  # the first was to find out what the server takes
    assert sorted(body["max_tokens"] for body in sent) == sorted(r.target_tokens.tolist())
    assert all(body["ignore_eos"] and body["stream"] and body["model"] == "served" for body in sent)
    assert all(body["stream_options"] == {"include_usage": True} for body in sent)
    assert len({body["prompt"] for body in sent}) == len(r)
    assert np.allclose(r.scheduled, np.arange(12) / 400, atol=1e-6) and (r.sent >= r.scheduled).all()
    assert (r.first_token >= r.sent).all() and (r.finish >= r.first_token).all()
    assert data.info["backend"] == "http" and data.host["server"]["version"] == "0.1-fake"
    assert data.host["client"]["prompts_counted_by"] == "the server's /tokenize"
    assert not any("mismatch" in each for each in data.warnings)
    summary = summarize(data)
    assert summary["completed"] == 12 and summary["total_output_tokens"] == int(r.target_tokens.sum())
    assert int(data.timeline.output_tokens.sum()) == summary["total_output_tokens"]


def test_a_run_folder_is_read_back_with_what_the_client_saw(tmp_path: Path) -> None:
    data = run(FakeServer(), tmp_path)
    again = read_run(write_run(data, tmp_path / "run"))
    assert (again.client.chunks == data.client.chunks).all() and again.host["client"] == data.host["client"]
    assert summarize(again) == summarize(data)


@pytest.mark.parametrize("tokenize", [True, False])
def test_chat_with_messages_of_a_template(tmp_path: Path, tokenize: bool) -> None:
    server = FakeServer(tokenize=tokenize)
    data = run(server, tmp_path, backend={"endpoint": "chat"})
    assert (data.client.counted_input == data.requests.input_tokens).all()
    assert data.client.any_chunk.max() > 0 and all(len(body["messages"]) == 1 for body in server.calls)
    told = "the server's /tokenize" if tokenize else "the usage that the server tells"
    assert data.host["client"]["prompts_counted_by"] == told


def test_prompts_of_token_ids(tmp_path: Path) -> None:
    server = FakeServer()
    data = run(server, tmp_path, backend={"prompts": "ids"})
    prompts = [body["prompt"] for body in server.calls[1:]]
    assert sorted(map(len, prompts)) == sorted(data.requests.input_tokens.tolist())
    assert "/tokenize" not in server.seen


def test_more_requests_than_any_pool_of_connections_are_in_flight_at_once(tmp_path: Path) -> None:
    """A hundred connections is where many clients begin to queue themselves."""
    gate = asyncio.Event()

    async def held(call: Call) -> None:
        if len(call.server.calls) > 1:
            if call.server.at_once == 180:
                gate.set()
            await gate.wait()
        await answer(call)

    burst = {**SYNTHETIC, "requests": 180, "arrivals": {"process": "constant", "rate": 100_000}}
    server = FakeServer(script=held)
    data = run(server, tmp_path, traffic={"synthetic": burst})
    assert server.most_at_once == 180 and set(data.requests.status) == {"finished"}


def test_the_systems_limit_of_open_files_is_raised_for_a_run(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1000:
        pytest.skip("the system does not let it be raised")
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))  # the server at the other end needs some too
    try:
        test_more_requests_than_any_pool_of_connections_are_in_flight_at_once(tmp_path)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_closed_loop_keeps_so_many_in_flight(tmp_path: Path) -> None:
    server = FakeServer(gap=0.001)
    data = run(server, tmp_path, load={"mode": "closed", "concurrency": 3})
    assert server.most_at_once == 3 and set(data.requests.status) == {"finished"}
    assert summarize(data)["max_concurrent_requests"] <= 3


def test_the_turns_of_a_session_contain_the_answers(tmp_path: Path) -> None:
    talk = {
        **SYNTHETIC, "requests": 12, "arrivals": {"process": "constant", "rate": 100},
        "sessions": {"turns": 3, "think": 0.001},
    }  # fmt: skip
    server = FakeServer()
    data = run(server, tmp_path, traffic={"synthetic": talk})
    r = data.requests
    assert set(r.status) == {"finished"} and r.turn.max() == 2
    assert (np.abs(data.client.counted_input - r.input_tokens) <= 1).all()
    prompts = sorted((body["prompt"] for body in server.calls[1:]), key=len)
    longest = prompts[-1]
    before = next(p for p in prompts if longest.startswith(p + " w0"))
    assert longest.startswith(before + " w0 w1")
    later = r.turn == 1
    parents = np.array([int(np.flatnonzero((r.session == s) & (r.turn == 0))[0]) for s in r.session[later]])
    assert (r.sent[later] >= r.finish[parents]).all()


async def refusing(call: Call) -> None:
    for key in ("ignore_eos", "min_tokens"):
        if key in call.body:
            return await call.json({"error": {"message": f"Unrecognized request argument: {key}"}}, 400)
    await answer(call)


def test_a_server_that_takes_no_foreign_fields_is_asked_without_them_and_it_is_told_once(tmp_path: Path) -> None:
    server = FakeServer(script=refusing)
    data = run(server, tmp_path)
    assert sum("cannot be told how long answers shall be" in each for each in data.warnings) == 1
    assert set(data.requests.status) == {"finished"} and "ignore_eos" not in server.calls[-1]
    assert server.calls[-1]["max_tokens"] > 100  # what is declared, since the answer ends by itself


async def modern(call: Call) -> None:
    if "max_tokens" in call.body:
        return await call.json({"error": {"message": "Use 'max_completion_tokens' instead of 'max_tokens'."}}, 400)
    call.body["max_tokens"] = call.body["max_completion_tokens"]
    await refusing(call)


def test_the_newer_name_of_the_limit(tmp_path: Path) -> None:
    server = FakeServer(script=modern)
    assert set(run(server, tmp_path, backend={"endpoint": "chat"}).requests.status) == {"finished"}


async def coarse(call: Call) -> None:
    """Four tokens in a chunk, a pause before the end, another count of the prompt."""
    tokens = call.body["max_tokens"]
    await call.start()
    for first in range(0, tokens, 4):
        await asyncio.sleep(0.04)
        await call.event(call.chunk("".join(f" w{i}" for i in range(first, min(first + 4, tokens)))))
    await call.event(
        {"choices": [], "usage": {**call.usage(tokens), "prompt_tokens": 3 * call.usage(0)["prompt_tokens"]}}
    )
    await asyncio.sleep(0.05)
    await call.event("[DONE]")
    await call.end()


def test_chunks_of_several_tokens_and_a_pause_before_the_end(tmp_path: Path) -> None:
    eight = {**SYNTHETIC, "output_tokens": {"distribution": "fixed", "value": 8}}
    data = run(FakeServer(script=coarse), tmp_path, traffic={"synthetic": eight})
    summary = summarize(data)
    assert (data.client.chunks == 2).all() and (data.requests.output_tokens == 8).all()
    assert (data.client.stream_end - data.requests.finish >= 0.045).all()
    assert summary["latency_counts"]["itl"] == 12 * 4  # the gap before the second chunk, over its four tokens
    gap = (data.requests.finish - data.requests.first_token).mean()
    told = data.host["client"]
    assert told["tokens_a_chunk"] == 4.0 and told["tpot_after_first_chunk_mean"] == pytest.approx(gap / 4)
    assert told["chunk_gap_mean"] == pytest.approx(gap)
    assert told["e2e_to_stream_end_mean"] - summary["mean_e2el_ms"] / 1e3 >= 0.045
    assert summary["mean_itl_ms"] == pytest.approx(gap / 4 * 1e3) and summary["mean_tpot_ms"] == pytest.approx(
        gap / 7 * 1e3
    )
    assert any("token mismatch: the server counts" in each and "(+200" in each for each in data.warnings)


async def failing(call: Call) -> None:
    """Every way to fail, by turns."""
    number = len(call.server.calls) - 2
    if number < 0:
        return await answer(call)
    way = number % 6
    if way == 0:
        return await call.json({"object": "error", "message": "queue is full"}, 503)
    if way == 1:
        call.writer.close()
        return None
    await call.start()
    if way == 2:
        await call.event("[DONE]")
    elif way == 3:
        await call.event(call.chunk("a"))
        await call.event({"error": {"message": "CUDA error"}})
        await call.event("[DONE]")
    elif way == 4:
        await call.event(call.chunk("a"))
        call.writer.close()
        return None
    else:
        await call.event(call.chunk("a"))
        await asyncio.sleep(5)
        return None
    await call.end()
    return None


def test_failures_are_told_by_kind_and_feed_no_latency(tmp_path: Path) -> None:
    data = run(FakeServer(script=failing), tmp_path, backend={"timeout": "800ms"})
    kinds = sorted(data.client.kind.tolist())
    assert kinds == sorted(["status", "cut", "empty", "error in the stream", "cut", "timeout"] * 2)
    assert data.host["client"]["failed_by_kind"]["cut"] == 4
    reasons = set(data.requests.reason)
    assert "status: 503 queue is full" in reasons and "error in the stream: CUDA error" in reasons
    assert any("not finished within 0.8 s" in each for each in reasons)
    summary = summarize(data)
    assert summary["failed"] == 12 and summary["completed"] == 0 and summary["mean_ttft_ms"] is None
    assert summary["output_throughput"] in (0, None) or summary["output_throughput"] == 0
    assert sorted(data.client.http_status.tolist())[-1] == 503


def test_a_turn_after_a_failed_one_is_not_sent(tmp_path: Path) -> None:
    async def second_fails(call: Call) -> None:
        if len(call.server.calls) == 2:
            return await call.json({"error": "no"}, 500)
        return await answer(call)

    talk = {**SYNTHETIC, "requests": 4, "sessions": {"turns": 2, "think": 0.001}}
    data = run(FakeServer(script=second_fails), tmp_path, traffic={"synthetic": talk})
    assert sorted(data.requests.status) == ["failed", "finished", "finished", "refused"]
    assert "an earlier turn of its session failed" in set(data.requests.reason)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"cannot reach http://127\.0\.0\.1:9: "):
        runner.resolve(workload(FakeServer(url="http://127.0.0.1:9"), tmp_path))


def test_a_server_that_says_no(tmp_path: Path) -> None:
    async def refuse(call: Call) -> None:
        await call.json({"error": {"message": "The model `x` does not exist"}}, 404)

    async def whole(call: Call) -> None:
        await call.json({"choices": [{"text": "hello"}]})

    with pytest.raises(TargetError, match=r"refuses requests: 404 The model `x` does not exist"):
        run(FakeServer(script=refuse), tmp_path, backend={"model": "x"})
    with pytest.raises(TargetError, match="gives no stream: the answer came in one piece"):
        run(FakeServer(script=whole), tmp_path)
    with pytest.raises(TargetError, match="does not say what it serves"):
        run(FakeServer(models=None), tmp_path)
    server = FakeServer(models=None)
    assert set(run(server, tmp_path, backend={"model": "mine"}).requests.status) == {"finished"}
    assert server.calls[-1]["model"] == "mine"


def test_the_model_that_the_workload_names_is_asked_where_it_is_served(tmp_path: Path) -> None:
    server = FakeServer(models=["other", "meta-llama/Meta-Llama-3-8B"])
    run(server, tmp_path)
    assert server.calls[-1]["model"] == "meta-llama/Meta-Llama-3-8B"
    server = FakeServer(models=["one", "two"])
    assert any("one is asked, others are two" in each for each in run(server, tmp_path).warnings)


def test_key_headers_settings_and_more_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    with pytest.raises(InputError, match=r"backend\.api_key_env: the environment variable THE_KEY is not set"):
        run(server, tmp_path, backend={"api_key_env": "THE_KEY"})
    monkeypatch.setenv("THE_KEY", "s3cret")
    backend = {"api_key_env": "THE_KEY", "headers": {"X-Team": "a"}, "extra_body": {"add_special_tokens": False}}
    data = run(server, tmp_path, backend=backend, sampling={"temperature": 0.5, "top_k": 3})
    assert (
        server.headers[-1]["authorization"] == "Bearer s3cret" and server.headers[-1]["accept-encoding"] == "identity"
    )
    assert server.headers[-1]["x-team"] == "a"
    body = server.calls[-1]
    assert (body["temperature"], body["top_k"], body["add_special_tokens"]) == (0.5, 3, False)
    folder = write_run(data, tmp_path / "run")
    assert "s3cret" not in (folder / "run.json").read_text() and '"a"' not in json.dumps(
        data.config["backend"]["headers"]
    )


def test_answers_that_end_by_themselves(tmp_path: Path) -> None:
    server = FakeServer()
    data = run(
        server,
        tmp_path,
        sampling={"ignore_eos": False, "stop": ["."]},
        traffic={"synthetic": SYNTHETIC, "max_tokens": {"fixed": 9}},
    )
    assert all("ignore_eos" not in body and body["max_tokens"] == 9 for body in server.calls[1:])
    assert server.calls[-1]["stop"] == ["."] and not any("shorter" in each for each in data.warnings)
    with pytest.raises(InputError, match=r"sampling\.stop: ends no answer"):
        run(server, tmp_path, sampling={"stop": ["."]})


def test_a_server_that_takes_ignore_eos_and_does_not_do_it(tmp_path: Path) -> None:
    async def short(call: Call) -> None:
        call.body["max_tokens"] = 1
        await answer(call)

    assert any("12 of 12 answers are shorter" in each for each in run(FakeServer(script=short), tmp_path).warnings)


def test_warm_up_is_not_counted_and_shares_nothing_with_the_run(tmp_path: Path) -> None:
    server = FakeServer()
    data = run(server, tmp_path, backend={"warmup": 5})
    assert len(server.calls) == 1 + 5 + 12 and len(data.requests) == 12
    warm, own = server.calls[1:6], server.calls[6:]
    assert not {b["prompt"].split()[1] + b["prompt"].split()[2] for b in warm} & {b["prompt"][3:20] for b in own}


def test_nothing_is_sent_after_the_longest_duration(tmp_path: Path) -> None:
    slow = {**SYNTHETIC, "requests": 50, "arrivals": {"process": "constant", "rate": 100}}
    data = run(FakeServer(), tmp_path, traffic={"synthetic": slow}, backend={"max_duration": "100ms"})
    assert 2 <= len(data.requests) <= 11 and set(data.requests.status) == {"finished"} and data.info["complete"]
    assert any("nothing was sent after 0.1 s" in each for each in data.warnings)


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread")

    async def stuck(call: Call) -> None:
        if len(call.server.calls) == 6:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)
        await answer(call)

    before = signal.getsignal(signal.SIGINT)
    began = time.monotonic()
    data = run(FakeServer(script=stuck), tmp_path, load={"mode": "closed", "concurrency": 1})
    assert not data.info["complete"] and time.monotonic() - began < 20
    assert (data.requests.status == "finished").sum() == 4 and "unfinished" in set(data.requests.status)
    assert signal.getsignal(signal.SIGINT) is before
    assert (
        summarize(data)["completed"] == 4
        and read_run(write_run(data, tmp_path / "run")).requests.status[0] == "finished"
    )


def test_what_a_server_does_not_read_is_told(tmp_path: Path) -> None:
    data = run(FakeServer(), tmp_path, engine={"preset": "vllm"}, backend={"gpu": "h100-sxm", "dtype": "bf16"})
    assert any(each.startswith("engine only describes the server") for each in data.warnings)
    assert any("backend.dtype has no effect on backend http" in each for each in data.warnings)
    assert data.config["engine"]["preset"]["value"] == "vllm@0.33" and data.info["gpu"] == "h100-sxm"


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ({"base_url": "localhost:8000"}, "expected an address"), ({"base_url": "http://h:99999"}, "expected an address"),
        ({"base_url": None}, "where is the server"), ({"prompts": "ids", "endpoint": "chat"}, "no token ids"),
        ({"endpoint": "chats"}, "endpoint"), ({"timeout": 0}, "timeout"), ({"basee_url": "http://x"}, "base_url"),
    ],
)  # fmt: skip
def test_mistakes_in_the_file(tmp_path: Path, backend: dict, words: str) -> None:
    with pytest.raises(InputError) as caught:
        workload(FakeServer(url="http://127.0.0.1:9"), tmp_path, backend=backend)
    assert words in str(caught.value)


def test_inside_a_loop_that_runs_already(tmp_path: Path) -> None:
    async def notebook() -> RunData:
        return run(FakeServer(), tmp_path)

    assert set(asyncio.run(notebook()).requests.status) == {"finished"}


def test_made_up_words_are_others_in_every_run_unless_asked_for(tmp_path: Path) -> None:
    """Else the server's prefix cache would have them from the run before."""

    def prompts(**backend: Any) -> set[str]:
        server = FakeServer()
        run(server, tmp_path, backend=backend)
        return {body["prompt"] for body in server.calls[1:]}

    assert not prompts() & prompts()
    same = prompts(fresh_prompts=False)
    assert same == prompts(fresh_prompts=False) and len(same) == 12


def test_a_servers_own_figures_are_in_the_timeline(tmp_path: Path) -> None:
    text = (
        "vllm:num_requests_running 4\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\nvllm:num_preemptions_total 3\n'
    )
    data = run(FakeServer(metrics=text, gap=0.002), tmp_path)
    assert data.info["kv_pool_tokens"] == 1600 and np.allclose(data.timeline.kv_used, 800)
    assert np.allclose(data.timeline.running, 4) and np.allclose(data.timeline.waiting, 2)
    assert data.host["client"]["server_counters"] == {"preemptions": 0}
    assert summarize(data)["kv_used_mean"] == pytest.approx(0.5)
