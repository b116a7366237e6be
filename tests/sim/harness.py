"""What the tests of engine, memory and schedulers share: a tiny cost model, traffic, a driver, and what came of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from backends.sim.acceptance import Acceptance
from backends.sim.drafting import DraftingExecutor
from backends.sim.executor import SimExecutor
from sim.build import make_engine
from sim.config import EngineConfig, SpeculationConfig
from sim.cost.base import DecodeLine, StepShape
from sim.engine.engine import Engine
from sim.engine.sequence import Sequence
from sim.presets import preset_config
from workloads.traffic import Span, SpanTable, Traffic, private_content

NEVER = float("inf")


class AffineCost:
    """Prices a step by its rows, context, prompt tokens and moves; decode lines change every `band` tokens of context."""

    def __init__(
        self, base: float = 5e-3, row: float = 1e-4, context: float = 1e-6, token: float = 2e-5, band: int = 701
    ):
        self.base, self.row, self.context, self.token, self.band = base, row, context, token, band

    def step_seconds(self, shape: StepShape) -> float:
        prompts = sum(tokens for tokens, _ in shape.chunks)
        past = sum(tokens * cached for tokens, cached in shape.chunks)
        decode = self.row * (shape.decode_rows + shape.drafts) + self.context * shape.decode_context
        return self.base + decode + self.token * prompts + 1e-9 * past + 1e-6 * shape.swapped_tokens

    def decode_line(self, rows: int, context: int) -> DecodeLine:
        band = context // self.band
        low = band * self.band
        return DecodeLine(low, low + self.band, self.base + self.row * rows + 1e-5 * band, self.context)


class ConstantCost(AffineCost):
    """Every step takes as long."""

    def __init__(self, seconds: float):
        super().__init__(seconds, 0.0, 0.0, 0.0)

    def step_seconds(self, shape: StepShape) -> float:
        return self.base

    def decode_line(self, rows: int, context: int) -> DecodeLine:
        return DecodeLine(0, 1 << 60, self.base, 0.0)


def requests(*rows: dict | tuple, gap: float = 0.0) -> Traffic:
    """Traffic from (input, output) or a dict with keys of `Traffic` columns, `prompt` (spans) and `at` (arrival)."""
    full = [row if isinstance(row, dict) else {"input": row[0], "output": row[1]} for row in rows]
    prompts = []
    for number, row in enumerate(full):
        prompt = row.get("prompt") or [Span(private_content(number), 0, row["input"])]
        row["input"] = sum(span.length for span in prompt)
        prompts.append(prompt)
    return Traffic(
        np.array([row.get("at", number * gap) for number, row in enumerate(full)], float),
        np.array([row["input"] for row in full]),
        np.array([row["output"] for row in full]),
        max_tokens=np.array([row.get("declared", row["output"]) for row in full]),
        spans=SpanTable.build(prompts),
        priority=np.array([row.get("priority", 0) for row in full]),
        n=np.array([row.get("n", 1) for row in full]),
    )


def random_traffic(
    seed: int, count: int = 30, gap: float = 0.01, inputs: int = 150, outputs: int = 60, samples: bool = False
) -> Traffic:
    """Poisson arrivals; a third of the prompts share a beginning, some are the same; declared answers are often too long."""
    g = np.random.default_rng(seed)
    rows = []
    at = np.cumsum(g.exponential(gap, count)) if gap else np.zeros(count)
    for number in range(count):
        length, output = int(g.integers(1, inputs)), int(g.integers(1, outputs))
        prompt, kind = [Span(private_content(number), 0, length)], g.integers(0, 4)
        if kind == 1 and length > 20:
            head = int(g.integers(1, length))
            prompt = [Span(-1 - int(g.integers(0, 2)), 0, head), Span(private_content(number), 0, length - head)]
        elif kind == 2:
            prompt = [Span(-5, 0, length)]
        declared = output + int(g.integers(0, outputs)) * int(g.integers(0, 2)) - (g.random() < 0.1) * (output // 2)
        rows.append({
            "prompt": prompt, "output": output, "declared": declared, "at": float(at[number]),
            "priority": int(g.integers(0, 3)), "n": int(g.integers(2, 4)) if samples and g.random() < 0.2 else 1,
        })  # fmt: skip
    return requests(*rows)


def config(
    preset: str | None = None, *, depth: int | None = None, stops_ahead: bool | None = None,
    speculation: SpeculationConfig | None = None, **settings,
) -> EngineConfig:  # fmt: skip
    """An engine configuration: a preset (on an 80 GB GPU) or plain defaults, then fields of scheduler and KV by name."""
    made = preset_config(preset, device_memory=85e9, max_model_len=4096) if preset else EngineConfig()
    for section in ("scheduler", "kv"):
        part = getattr(made, section)
        mine = {name: settings.pop(name) for name in list(settings) if name in part.__slots__}
        made = replace(made, **{section: replace(part, **mine)})
    assert not settings, f"no such setting: {settings}"
    whole = {"depth": depth, "stops_ahead": stops_ahead, "speculation": speculation}
    return replace(made, **{name: value for name, value in whole.items() if value is not None})


@dataclass
class Planned:
    """One plan as the executor received it; sequences are (row, sample)."""

    at: float
    decoding: list[tuple[int, int]]
    chunks: list[tuple[int, int, int, int, bool]]  # row, sample, tokens, past, samples
    preempted: list[tuple[int, int]]
    swapped: tuple[int, int]  # tokens out, tokens in
    rows: int
    context: int
    repeat: int
    widths: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    gained: tuple[int, ...] = ()
    start: float = 0.0
    ends: list[float] = field(default_factory=list)

    @property
    def decision(self) -> tuple:
        """What was chosen, apart from times."""
        return tuple(self.decoding), tuple(self.chunks), tuple(self.preempted), self.swapped


class Spying:
    """Makes a simulated executor keep every plan."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.plans: list[Planned] = []

    def submit(self, plan, now, until):
        names = [(seq.row, seq.sample) for seq in plan.moves.preempted]
        chunks = [(c.seq.row, c.seq.sample, c.tokens, c.past, c.samples) for c in plan.chunks]
        moved = sum(m.tokens for m in plan.moves.swapped_out), sum(m.tokens for m in plan.moves.swapped_in)
        decoding = [(seq.row, seq.sample) for seq in plan.decoding()]
        note = Planned(now, decoding, chunks, names, moved, plan.rows, plan.context, plan.repeat)
        note.widths = tuple(c.width for c in plan.chunks)
        ticket = super().submit(plan, now, until)
        if plan.drafts is not None:
            note.drafts, note.gained = tuple(plan.drafts.counts), tuple(ticket.gained or ())
        note.ends = list(super().collect(ticket).ends)
        note.start = max(now, self.plans[-1].ends[-1]) if self.plans else now
        self.plans.append(note)
        return ticket


class Spy(Spying, SimExecutor):
    """Of engines that decode a token a step."""


class DraftingSpy(Spying, DraftingExecutor):
    """Of engines that speculate."""


def holders(engine: Engine) -> list[Sequence]:
    """Every sequence that holds memory on the device."""
    return [*engine.state.running, *engine.state.retained]


Watch = Callable[["Run", str, float], None]


class Run:
    """A load on an engine, and what came of it.

    Args:
        watch: called with (run, moment, now) after every `submit`, `launch` and `land`, and when the engine has fallen `idle`.

    Attributes:
        finished, refused, cancelled, submitted: rows; `refused` with the reason.
        spy: the executor, with all plans.
    """

    def __init__(
        self, traffic: Traffic, settings: EngineConfig, *, capacity: int = 4000, max_len: int = 300, stretch: bool = False,
        host_tokens: int = 3000, cost=None, watch: Watch | None = None, state_tokens: int = 0,
        kept_states: int = 0,
    ) -> None:  # fmt: skip
        self.traffic, self.max_len, self.host_tokens = traffic, max_len, host_tokens
        self.spy = Spy(cost or AffineCost(), settings.depth)
        if settings.speculation.active:
            acceptance = Acceptance(settings.speculation.rates)
            self.spy = DraftingSpy(cost or AffineCost(), settings.depth, acceptance=acceptance)
        self.engine = make_engine(
            settings, self.spy, capacity=capacity, max_len=max_len, host_tokens=host_tokens, stretch=stretch,
            state_tokens=state_tokens, kept_states=kept_states,
        )  # fmt: skip
        self.engine.on_finish = self._finish
        self.finished: dict[int, float] = {}
        self.refused: dict[int, str] = {}
        self.stuck: list[int] = []
        self.cancelled: list[int] = []
        self.submitted: list[int] = []
        self.now = 0.0
        self._watch = watch or (lambda run, moment, now: None)

    def _finish(self, row: int, now: float) -> None:
        assert row not in self.finished, f"row {row} finished twice"
        self.finished[row] = now

    def cancel(self, row: int) -> bool:
        """Cancel a row now."""
        gone = self.engine.cancel(row, self.now)
        if gone:
            self.cancelled.append(row)
        return gone

    def serve(self, plans: int = 1 << 60) -> Run:
        """Drive until everything is served, or until so many plans have been launched."""
        engine, traffic, watch = self.engine, self.traffic, self._watch
        arrivals = [*traffic.arrival.tolist(), NEVER]
        depth = engine.config.depth
        while len(self.spy.plans) < plans:
            while arrivals[len(self.submitted)] <= self.now:
                self._submit(len(self.submitted), arrivals)
            coming = arrivals[len(self.submitted)]
            while engine.in_flight < depth and engine.launch(self.now, coming):
                watch(self, "launch", self.now)
            if engine.in_flight:
                self.now = engine.land(engine.collect())
                watch(self, "land", self.now)
                continue
            wake = min(coming, engine.wake_at or NEVER)
            if not engine.state.idle and engine.wake_at is None and (stuck := engine.refuse_stuck()):
                self.refused[stuck[0]] = stuck[1]
                self.stuck.append(stuck[0])
                continue
            watch(self, "idle", self.now)
            if wake == NEVER:
                break
            self.now = max(self.now, wake)
        return self

    def _submit(self, row: int, arrivals: list[float]) -> None:
        self.submitted.append(row)
        if reason := self.engine.submit(self.traffic.request(row), arrivals[row]):
            self.refused[row] = reason
        self._watch(self, "submit", self.now)

    # --- what came of it

    @property
    def plans(self) -> list[Planned]:
        """Every plan."""
        return self.spy.plans

    def tokens(self) -> dict[int, list[float]]:
        """Row → sorted times of its tokens, all samples together."""
        recorder = self.engine.recorder
        segments, ends = recorder.segments.array(), list(recorder.step_ends)
        times: dict[int, list[float]] = {}
        gains, drafting = iter(recorder.gains), self.engine.config.speculation.active
        columns = (segments[name].tolist() for name in ("row", "start", "tick", "ticks"))
        for row, start, tick, ticks in zip(*columns, strict=True):
            mine = times.setdefault(int(row), [])
            mine += [] if start != start else [start]
            for end in ends[int(tick) : int(tick) + int(ticks)]:
                mine += [end] * (next(gains) if drafting else 1)
        return {row: sorted(mine) for row, mine in times.items()}

    def departures(self) -> list[dict]:
        """A dict for every sequence that left."""
        columns = self.engine.recorder.departures.array()
        return [
            dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)
        ]

    def expected_tokens(self, row: int) -> int:
        """How many tokens all samples of a row should give together."""
        t = self.traffic
        room = self.max_len - t.input_tokens[row]
        return int(min(t.output_tokens[row], t.max_tokens[row], room) * t.n[row])

    def results(self) -> dict:
        """All that must not depend on whether steps are taken one by one."""
        recorder = self.engine.recorder
        tables = {name: getattr(recorder, name).array() for name in ("departures", "segments", "changes", "deliveries")}
        exact = {name: {key: column.tobytes() for key, column in table.items()} for name, table in tables.items()}
        return {
            **exact, "step_ends": bytes(recorder.step_ends), "steps": recorder.steps, "finished": list(self.finished.items()),
            "refused": list(self.refused.items()), "end": self.now,
        }  # fmt: skip


def run(traffic: Traffic, settings: EngineConfig, **options) -> Run:
    """Serve a traffic to its end."""
    return Run(traffic, settings, **options).serve()
