"""The real engine and the simulated one make the same plans, and hit the same prefixes, on the same traffic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")

from real_engine import Served, check_all, drive, engine_config, traffic_of  # noqa: E402

from backends.sim.executor import SimExecutor  # noqa: E402
from backends.torch.build import make_torch_engine  # noqa: E402
from backends.torch.executor import TorchExecutor  # noqa: E402
from backends.torch.sampling import SamplingParams  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402
from sim.build import make_engine  # noqa: E402
from sim.cost.base import DecodeLine  # noqa: E402
from workloads.traffic import Span, Traffic, answer_content, private_content  # noqa: E402


class Second:
    """Every step takes a second."""

    def step_seconds(self, shape) -> float:
        return 1.0

    def decode_line(self, rows, context) -> DecodeLine:
        return DecodeLine(0, 1 << 60, 1.0, 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny("tiny-smollm", tmp_path_factory.mktemp("smollm"), seed=2)


def conversations(turns: int = 2, sessions: int = 6) -> Traffic:
    """Sessions over one system prompt; a turn's prompt is all that was said before, and something new."""
    draw = np.random.default_rng(5)
    rows: list[dict] = []
    said: dict[int, list[Span]] = {}
    for turn in range(turns):
        for session in range(sessions):
            row = len(rows)
            before = said.get(session, [Span(-1, 0, 37)])
            prompt = [*before, Span(private_content(row), 0, int(draw.integers(3, 30)))]
            output = int(draw.integers(12, 30))
            said[session] = [*prompt, Span(answer_content(row), 0, output)]
            rows.append({"prompt": prompt, "output": output, "at": 10_000 * turn, "n": 1 + (session == 3)})
    return traffic_of(rows)


def plans_of(executor) -> list[tuple]:
    """Notes every plan that the executor gets."""
    plans, submit = [], executor.submit

    def watched(plan, now, until):
        chunks = tuple((c.seq.row, c.seq.sample, c.tokens, c.past, c.samples) for c in plan.chunks)
        moves = tuple((m.seq.row, m.tokens) for m in plan.moves.swaps)
        plans.append(
            (chunks, tuple((s.row, s.sample, s.known) for s in plan.decoding()), moves, len(plan.moves.copies))
        )
        return submit(plan, now, until)

    executor.submit = watched
    return plans


def simulated(traffic: Traffic, config, **sizes) -> tuple[list[tuple], object]:
    executor = SimExecutor(Second(), config.depth)
    engine = make_engine(config, executor, stretch=False, **sizes)
    plans = plans_of(executor)
    drive(engine, traffic, engine.land)
    return plans, engine


def real(model, traffic: Traffic, config, **sizes) -> tuple[list[tuple], object]:
    executor = TorchExecutor(
        model, forced_lengths=True, sampling=SamplingParams(temperature=2.0)
    )  # samples shall differ
    engine = make_torch_engine(config, executor, **sizes)
    plans = plans_of(executor)
    drive(engine, traffic, engine.land)
    return plans, engine


@pytest.mark.parametrize(("capacity", "depth"), [(2000, 1), (256, 1), (256, 2)])
@pytest.mark.parametrize(
    "kv", [
        {"allocator": "paged"}, {"allocator": "paged", "block_size": 4, "register": "computed"},
        {"allocator": "radix", "block_size": 1, "register": "computed"},
    ], ids=["paged", "paged 4", "radix"],
)  # fmt: skip
def test_same_plans_same_hits_same_memory(folder, kv, capacity, depth) -> None:
    config = engine_config(depth=depth, max_num_batched_tokens=64, max_num_seqs=8, **kv)
    sizes = {"capacity": capacity, "max_len": 200, "host_tokens": 1000}
    expected, sim = simulated(conversations(), config, **sizes)
    got, engine = real(load_model(folder), conversations(), config, **sizes)
    assert got == expected
    departures = [each.recorder.departures.array() for each in (sim, engine)]
    for column in ("row", "finished", "cached", "recomputed", "preemptions"):
        assert departures[0][column].tolist() == departures[1][column].tolist()
    assert departures[0]["cached"].sum() > 400, "hardly anything was hit"
    assert capacity > 1000 or departures[0]["preemptions"].sum(), "there was room for all"
    assert sim.state.allocator.use(0) == engine.state.allocator.use(0)


@pytest.mark.parametrize("allocator", ["paged", "radix"])
def test_later_turns_continue_what_was_really_said(folder, allocator) -> None:
    """The second turn's prompt contains the first one's answer, word by word, and hits it."""
    served = Served(load_model(folder), conversations(2), engine_config(allocator=allocator))
    check_all(served, folder)
    for row in range(6, 12):
        before = row - 6
        history = served.prompts[before] + served.tokens[before, 0]
        assert served.prompts[row][: len(history)] == history
        least = len(history) - 1 if allocator == "radix" else (len(history) - 1) // 16 * 16
        assert served.cached[row] >= least


def test_equal_token_ids_hit_whatever_their_spans_are_called(folder) -> None:
    ids = list(range(100, 150))
    rows = [{"prompt": 50, "output": 4, "at": i * 1000} for i in range(3)]
    given = {0: (ids, None), 1: (ids, None), 2: (ids[:40] + ids[:10], None)}
    for allocator, hits in (("paged", [0, 48, 32]), ("radix", [0, 49, 40])):
        served = Served(load_model(folder), traffic_of(rows), engine_config(allocator=allocator), given=given)
        assert [served.cached[row] for row in range(3)] == hits
        check_all(served, folder)
