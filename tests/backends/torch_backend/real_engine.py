"""What the tests of the real engine share: a driver, and transformers' answers to compare with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch

from backends.model.model import Model
from backends.torch.build import make_torch_engine
from backends.torch.executor import TorchExecutor
from backends.torch.graphs import Capture
from backends.torch.sampling import SamplingParams
from sim.config import EngineConfig, KVConfig, SchedulerConfig
from sim.engine.engine import Engine
from sim.engine.plan import StepOutcome
from workloads.traffic import Span, SpanTable, Traffic, private_content

NEVER = float("inf")


def engine_config(depth: int = 1, stops_ahead: bool = True, **settings) -> EngineConfig:
    """Settings of scheduler and KV by name."""
    parts = {}
    for name, kind in (("scheduler", SchedulerConfig), ("kv", KVConfig)):
        mine = {key: settings.pop(key) for key in list(settings) if key in kind.__slots__}
        parts[name] = kind(**mine)
    assert not settings, settings
    return EngineConfig(depth=depth, stops_ahead=stops_ahead, **parts)


def traffic_of(rows: list[dict]) -> Traffic:
    """Rows with `prompt` (spans, or a length) and `output`; optionally `at`, `n`, `declared`."""
    prompts = [
        [Span(private_content(i), 0, row["prompt"])] if isinstance(row["prompt"], int) else row["prompt"]
        for i, row in enumerate(rows)
    ]
    return Traffic(
        np.array([row.get("at", 0.0) for row in rows], float),
        np.array([sum(span.length for span in prompt) for prompt in prompts]),
        np.array([row["output"] for row in rows]),
        max_tokens=np.array([row.get("declared", row["output"]) for row in rows]),
        spans=SpanTable.build(prompts),
        n=np.array([row.get("n", 1) for row in rows]),
    )


def busy(
    seed: int, count: int = 16, gap: float = 1.0, samples: bool = True, prompts: tuple[int, int] = (1, 90),
    answers: tuple[int, int] = (1, 40),
) -> list[dict]:  # fmt: skip
    """Rows of all sizes: some prompts begin alike, some are the same, some declare more than they say; a few ask for two
    samples."""
    draw = np.random.default_rng(seed)
    rows, at = [], np.cumsum(draw.exponential(gap, count)).astype(int)
    for i in range(count):
        length, head = int(draw.integers(*prompts)), int(draw.integers(17, 45))
        kind = i % 4
        prompt = [Span(private_content(i), 0, length)]
        if kind == 1:
            prompt = [Span(-1, 0, head), *prompt]
        elif kind == 2:
            prompt = [Span(-2, 0, 33)]
        declared = int(draw.integers(*answers))
        rows.append({
            "prompt": prompt, "output": int(draw.integers(answers[0], declared + 1)), "declared": declared, "at": int(at[i]),
            "n": 2 if samples and i % 5 == 0 else 1,
        })  # fmt: skip
    return rows


class Served:
    """A traffic served by the real engine; see `drive` for what arrival times mean.

    Attributes:
        tokens: (row, sample) → generated ids, in the order in which steps gave them.
        prompts: row → ids of the prompt.
        logits: (row, sample, position) → logits of the step that drew the token there.
        cached, preemptions: row → of its first sample. finished, refused: rows. plans: how many.
        exchanges: steps that swapped both ways. mixed: whether a step had prompt pieces and decoding sequences.
    """

    def __init__(
        self, model: Model, traffic: Traffic, config: EngineConfig, *, capacity: int = 4096, max_len: int = 512,
        host_tokens: int = 2000, forced: bool = True, seed: int = 0, sampling: SamplingParams | None = None,
        given: dict[int, tuple] | None = None, after: Callable[[Served, int], None] | None = None, poison: bool = True,
        check: bool = True, capture: Capture | None = None, before: Callable[[Served], None] | None = None,
    ) -> None:  # fmt: skip
        self.executor = TorchExecutor(model, seed=seed, forced_lengths=forced, sampling=sampling, capture=capture)
        self.engine = make_torch_engine(
            config, self.executor, capacity=capacity, max_len=max_len, host_tokens=host_tokens
        )
        self.engine.on_finish = lambda row, now: self.finished.append(row)
        self.executor.keep_logits = True
        if poison:
            self.executor.pool.cache[:, :, :-1] = float("nan")  # all pages but the one that nobody has
        self.traffic = traffic
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.prompts: dict[int, list[int]] = {}
        self.logits: dict[tuple[int, int, int], torch.Tensor] = {}
        self.cached: dict[int, int] = {}
        self.preemptions = self.swaps = self.exchanges = self.copies = self.chunks = 0
        self.mixed = False
        self.finished: list[int] = []
        self.refused: dict[int, str] = {}
        self.plans = 0
        self._check = check
        for row, (prompt, how) in (given or {}).items():
            self.executor.give(row, prompt, how)
        if before is not None:
            before(self)
        self._watch()
        self._serve(after or (lambda served, plans: None))

    def _watch(self) -> None:
        """Look over the executor's shoulder."""
        submit, start, forget = self.executor.submit, self.executor.start, self.executor.forget

        def watched_submit(plan, now, until):
            self.preemptions += len(plan.moves.preempted)
            self.swaps += len(plan.moves.swapped_in)
            self.exchanges += bool(plan.moves.swapped_in) and bool(plan.moves.swapped_out)
            self.copies += len(plan.moves.copies)
            self.chunks += len(plan.chunks)
            self.mixed |= bool(plan.chunks) and plan.cohort is not None
            flight = submit(plan, now, until)
            for index, (draw, position) in enumerate(zip(flight.draws, flight.positions.tolist(), strict=True)):
                self.logits[draw.seq.row, draw.seq.sample, position] = self.executor.logits[index]
            return flight

        def watched_start(seq, length):
            start(seq, length)
            self.prompts[seq.row] = self.executor.book[seq].ids.tolist()

        def watched_forget(seq):
            self.cached[seq.row] = max(self.cached.get(seq.row, 0), seq.cached_tokens)
            forget(seq)

        self.executor.submit, self.executor.start, self.executor.forget = watched_submit, watched_start, watched_forget

    def _serve(self, after: Callable[[Served, int], None]) -> None:
        engine = self.engine

        def landed(outcome) -> None:
            engine.land(outcome)
            for seq, token in outcome.tokens.items():
                self.tokens.setdefault((seq.row, seq.sample), []).append(token)
            self.plans += 1
            after(self, self.plans)
            if self._check:
                engine.state.allocator.check([*engine.state.running, *engine.state.retained])

        self.refused = drive(engine, self.traffic, landed)
        engine.state.allocator.check([*engine.state.retained])


def drive(engine: Engine, traffic: Traffic, landed: Callable[[StepOutcome], None]) -> dict[int, str]:
    """Serve a traffic on a clock that counts launched plans, and jumps to the next arrival when nothing is left to do.

    Returns:
        Refused rows with their reasons.
    """
    arrivals = [*traffic.arrival.tolist(), NEVER]
    refused: dict[int, str] = {}
    sent, now = 0, 0.0
    while True:
        if engine.idle and arrivals[sent] < NEVER:
            now = max(now, arrivals[sent])
        while arrivals[sent] <= now:
            if reason := engine.submit(traffic.request(sent), now):
                refused[sent] = reason
            sent += 1
        while engine.in_flight < engine.config.depth and engine.launch(now, NEVER):
            now += 1
        if engine.in_flight:
            landed(engine.collect())
        elif not engine.state.idle and (engine.state.waiting or engine.state.swapped):
            stuck = engine.refuse_stuck()
            assert stuck, "the engine neither runs nor refuses"
            refused[stuck[0]] = stuck[1]
        elif arrivals[sent] == NEVER:
            return refused


@cache
def reference_model(folder: Path):
    """The checkpoint as transformers runs it."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def check_against(folder: Path, prompt: list[int], answer: list[int], tolerance: float = 1e-4, logits=None) -> None:
    """Every greedy token is transformers' choice after the tokens before it, unless its two best are closer than `tolerance`.

    `logits`: position → ours, each to be within `tolerance` of theirs.
    """
    theirs = reference_model(folder)(torch.tensor([prompt + answer])).logits[0]
    for index, token in enumerate(answer):
        row = theirs[len(prompt) + index - 1]
        best = row.topk(2)
        near = float(best.values[0] - best.values[1]) < tolerance
        assert token == int(best.indices[0]) or (near and token == int(best.indices[1])), (
            f"token {index} of {len(answer)}"
        )
        if logits is not None:
            assert (logits[len(prompt) + index] - row).abs().max() < tolerance, f"logits of token {index}"


def check_all(served: Served, folder: Path) -> None:
    """Check every answer, its length, and the logits of all its tokens."""
    traffic = served.traffic
    for row in range(len(traffic)):
        if row in served.refused:
            continue
        for sample in range(int(traffic.n[row])):
            answer = served.tokens[row, sample]
            assert len(answer) == min(traffic.output_tokens[row], traffic.max_tokens[row])
            mine = {at: logits for (*who, at), logits in served.logits.items() if who == [row, sample]}
            check_against(folder, served.prompts[row], answer, logits=mine)
