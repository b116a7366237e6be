"""The engine's thread: what comes through it is what a run in virtual time gives at the same arrival times."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the extra server is not installed")

from serving_harness import eventually, made

from backends.server.asks import ABORT, Ask
from backends.server.loop import BEHIND, Delivery, EngineLoop
from experiments import runner
from workloads.traffic import Traffic

SPEED = 20.0


class Collected:
    """Takes what is delivered, and tells when nothing more is to come."""

    def __init__(self, count: int) -> None:
        self.letters: Delivery = []
        self._left = count
        self.done = threading.Event()

    def __call__(self, letters: Delivery) -> None:
        self.letters += letters
        self._left -= sum(piece.finish is not None for _, piece in letters)
        if self._left <= 0:
            self.done.set()


class TimesNoted:
    """Notes first and last tokens as the meter is told of them, in the engine's seconds."""

    def __init__(self, served) -> None:
        self.ttft, self.e2e = [], []
        first, finished, speed = served.meter.first, served.meter.finished, served.clock.speed

        def note_first(seq, ttft, *rest) -> None:
            self.ttft.append((seq.row, ttft * speed))
            first(seq, ttft, *rest)

        def note_finished(reason, prompt, said, e2e, *rest) -> None:
            self.e2e.append((prompt, e2e * speed))
            finished(reason, prompt, said, e2e, *rest)

        served.meter.first, served.meter.finished = note_first, note_finished


def asks_of(served, arrivals: np.ndarray, prompts: list[int], answers: list[int]) -> list[Ask]:
    """Requests that arrive at those times of the server's clock; no two share a token."""
    start = served.clock.now()
    return [
        Ask(list(range(1000 * row, 1000 * row + prompt)), answer, arrived=start + at)
        for row, (at, prompt, answer) in enumerate(zip(arrivals.tolist(), prompts, answers, strict=True))
    ]


def served_all(served, asks: list[Ask]) -> Delivery:
    """Everything that is delivered for these requests."""
    collected = Collected(len(asks))
    loop = EngineLoop(
        served.engine, served.side, served.clock, served.front, served.looks, served.meter, collected
    )  # fmt: skip
    for ask in asks:
        loop.ask(ask)
    loop.start()
    assert collected.done.wait(60)
    loop.stop()
    loop.join(10)
    assert loop.fault is None
    return collected.letters


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("engine.preset=vllm-v0",),
        ("engine.preset=sglang", "engine.scheduler.poll_interval=3"),
        ("engine.preset=tensorrt-llm",),
        ("engine.scheduler={name: static, max_num_seqs: 8, batch_wait: 200ms}",),
        ("engine.scheduler={name: static, max_num_seqs: 8, streaming: false}",),
        ("engine.kv.capacity_tokens=2000", "engine.max_model_len=600"),
    ],
    ids=lambda settings: " ".join(settings).replace("engine.", "") or "vllm",
)
def test_times_are_those_of_a_run_in_virtual_time(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """To the last bit but for rounding: a server is the simulator with waiting in it."""
    served, resolved = made(tmp_path, *settings, speed=SPEED)
    draw = np.random.default_rng(3)
    count = 30
    arrivals = 1.0 + np.cumsum(draw.exponential(0.02, count))  # all are known before the first is due
    prompts, answers = draw.integers(1, 300, count).tolist(), draw.integers(1, 60, count).tolist()
    times = TimesNoted(served)
    asks = asks_of(served, arrivals, prompts, answers)
    letters = served_all(served, asks)
    offset = asks[0].arrived - arrivals[0]

    resolved._traffic = Traffic(arrivals + offset, prompts, answers, max_tokens=np.array(answers), name="same")
    virtual = runner.run(resolved).requests
    if served.engine.held_back:  # every answer comes whole, when its batch ends
        assert all(piece.finish for _, piece in letters)
        assert dict(times.ttft) == pytest.approx(dict(enumerate(virtual.finish - virtual.sent)), abs=1e-9)
    else:
        assert dict(times.ttft) == pytest.approx(dict(enumerate(virtual.first_token - virtual.sent)), abs=1e-9)
    wanted = sorted(zip(prompts, (virtual.finish - virtual.sent).tolist(), strict=True))
    assert np.array(sorted(times.e2e)) == pytest.approx(np.array(wanted), abs=1e-9)
    said = np.zeros(count, int)
    for ask, piece in letters:
        said[ask.row] += len(piece.tokens)
    assert said.tolist() == answers
    if "capacity" in "".join(settings):
        assert served.meter.tally.preemptions == virtual.preemptions.sum() > 0


def test_a_cancelled_request_gives_its_memory_back(tmp_path: Path) -> None:
    served, _ = made(tmp_path, speed=SPEED)
    collected = Collected(2)
    loop = EngineLoop(served.engine, served.side, served.clock, served.front, served.looks, served.meter, collected)
    long, short = Ask([1, 2, 3], 8000), Ask([4, 5, 6], 40)
    started = threading.Event()
    deliver = loop._deliver

    def noting(letters: Delivery) -> None:
        deliver(letters)
        if any(ask is long for ask, _ in letters):
            started.set()

    loop._deliver = noting
    loop.ask(long)
    loop.start()
    assert started.wait(20)
    loop.cancel(long)
    loop.cancel(long)  # twice does no harm
    collected._left = 1
    loop.ask(short)
    assert collected.done.wait(20)
    loop.stop()
    loop.join(10)
    assert loop.fault is None and served.engine.state.idle and not loop._open
    assert served.engine.state.allocator.available == served.engine.state.allocator.capacity
    assert served.meter.finished_by == {"stop": 0, "length": 1, "abort": 1, "error": 0}


def test_who_waits_for_a_batch_gets_its_answer_when_the_last_of_it_is_cancelled(tmp_path: Path) -> None:
    served, _ = made(
        tmp_path, "engine.scheduler={name: static, max_num_seqs: 2, batch_wait: 60s, streaming: false}", speed=SPEED
    )
    collected = Collected(1)
    loop = EngineLoop(served.engine, served.side, served.clock, served.front, served.looks, served.meter, collected)
    long, short = Ask([1, 2, 3], 8000), Ask([4, 5, 6], 4)
    loop.ask(long)
    loop.ask(short)
    loop.start()
    eventually(lambda: served.engine._undelivered)  # the short one has its tokens, and waits for the batch
    loop.cancel(long)
    assert collected.done.wait(20)
    loop.stop()
    loop.join(10)
    ((ask, piece),) = collected.letters
    assert ask is short and len(piece.tokens) == 4 and piece.finish == "length"


def test_who_can_never_be_served_is_told_why(tmp_path: Path) -> None:
    served, _ = made(tmp_path, "engine.kv.capacity_tokens=320", "engine.max_model_len=8192", "engine.preset=sglang")
    ((_, piece),) = served_all(served, [Ask(list(range(400)), 8000)])
    assert piece.finish == ABORT and piece.refused and piece.status == 400
    assert served.meter.refusals == 1


def test_a_fault_of_the_engine_is_told_to_all_who_wait(tmp_path: Path) -> None:
    served, _ = made(tmp_path, speed=SPEED)
    collected = Collected(2)
    loop = EngineLoop(served.engine, served.side, served.clock, served.front, served.looks, served.meter, collected)

    def broken(*args) -> bool:
        raise ZeroDivisionError("made up")

    served.engine.launch = broken
    loop.ask(Ask([1], 4))
    loop.ask(Ask([2], 4))
    loop.start()
    assert collected.done.wait(20)
    loop.join(10)
    assert isinstance(loop.fault, ZeroDivisionError)
    assert {piece.status for _, piece in collected.letters} == {500}


def test_a_machine_that_is_too_slow_is_told_of_once(tmp_path: Path) -> None:
    served, _ = made(tmp_path, speed=1000.0)
    launch = served.engine.launch

    def slow(now: float, until: float) -> bool:
        time.sleep(0.02)
        return launch(now, until)

    served.engine.launch = slow
    collected, told = Collected(1), []
    loop = EngineLoop(
        served.engine, served.side, served.clock, served.front, served.looks, served.meter, collected, told.append
    )
    loop.ask(Ask([1], 40))
    loop.start()
    assert collected.done.wait(20)
    loop.stop()
    loop.join(10)
    assert len(told) == 1 and told[0] > BEHIND
    assert sum(served.meter.lateness.counts) >= 40


def test_nothing_is_looked_at_while_nothing_happens(tmp_path: Path) -> None:
    """An idle server sleeps: its thread does not come back to look."""
    served, _ = made(tmp_path)
    loop = EngineLoop(served.engine, served.side, served.clock, served.front, served.looks, served.meter, print)
    waits = []
    wait = loop._bell.wait

    def noted(timeout=None) -> bool:
        waits.append(timeout)
        return wait(timeout)

    loop._bell.wait = noted
    loop.start()
    eventually(lambda: waits)
    loop.join(0.2)
    assert waits == [None]
    loop.stop()
    loop.join(10)
    assert not loop.is_alive()
