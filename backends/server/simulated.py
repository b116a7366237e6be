"""The simulator behind the server: the same engine, its steps as long as the cost model says, its answers filler words."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

from backends.server.asks import LENGTH, STOP, Ask
from backends.server.filler import FillerExecutor, filler
from backends.server.words import Words
from backends.torch.kv import ALLOCATORS, TokenPagedAllocator, TokenRadixAllocator
from sim.build import make_engine
from sim.config import EngineConfig
from sim.cost.base import CostModel
from sim.engine.engine import Engine
from sim.engine.sequence import Sequence
from workloads.traffic import Request, Span, private_content


class SimulatedSide:
    """Answers of filler words. Equal prompts get equal ones.

    Args:
        executor: who prices the steps. words: which has the fillers.
    """

    real = False

    def __init__(self, executor: FillerExecutor, words: Words) -> None:
        self._executor, self._words = executor, words
        self._texts: dict[tuple[int, bool], str] = {}  # of fillers

    def request(self, ask: Ask) -> Request:
        """What the engine gets, once the executor has been told what it contains."""
        prompt = ask.prompt
        key = zlib.crc32(array("q", prompt).tobytes())
        length, finish = (ask.max_tokens, LENGTH) if ask.length is None else (ask.length, STOP)
        if stops := ask.sampling.get("stop"):
            stopped = self._stopped(key, length, ask.min_tokens, stops)
            length, finish = (stopped, STOP) if stopped else (length, finish)
        self._executor.give(ask.row, prompt, self._words.fillers, key, finish)
        spans = (Span(private_content(ask.row), 0, len(prompt)),)
        return Request(ask.row, ask.arrived, len(prompt), length, ask.max_tokens, spans, ask.priority)

    @property
    def decoded(self) -> int:
        """Tokens of the last step that decoding sequences got."""
        return self._executor.decoded

    def _stopped(self, key: int, length: int, least: int, stops: tuple[str, ...]) -> int:
        """After how many tokens one of the texts is complete; 0: never. Looked for in all of the answer at once, since the
        engine waits meanwhile."""
        fillers = self._words.fillers
        said = [self._said(filler(fillers, key, place), not place) for place in range(least, length)]
        text = "".join(said)
        ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
        if not ends:
            return 0
        return least + 1 + bisect_left(list(accumulate(map(len, said))), min(ends))

    def _said(self, token: int, first: bool) -> str:
        """What a filler adds to a text: some tokenizers leave a blank before the first word out."""
        words, known = self._words, self._texts
        if (token, first) not in known:
            alone = words.decode([token])
            known[token, True] = alone
            known[token, False] = words.decode([token, token]).removeprefix(alone)
        return known[token, first]

    def finish(self, seq: Sequence) -> str:
        """Why an answer ended."""
        return self._executor.book[seq].finish


def make_simulated(
    config: EngineConfig,
    cost: CostModel,
    words: Words,
    *,
    capacity: int,
    max_len: int,
    host_tokens: int = 0,
    state_tokens: int = 0,
    kept_states: int = 0,
) -> tuple[Engine, SimulatedSide]:
    """A simulated engine that takes every step by itself, and names content by token ids.

    Args:
        capacity: tokens of KV on the device.
        max_len: longest sequence in tokens.
        host_tokens: tokens of KV that fit in host memory.
        state_tokens, kept_states: as `sim.build.make_engine` takes them.
    """
    executor = FillerExecutor(cost, config.depth)
    allocator = ALLOCATORS.get(config.kv.allocator, config.kv.allocator)
    named = replace(config, kv=replace(config.kv, allocator=allocator))
    engine = make_engine(
        named, executor, capacity=capacity, max_len=max_len, host_tokens=host_tokens, stretch=False,
        state_tokens=state_tokens, kept_states=kept_states,
    )  # fmt: skip
    if isinstance(engine.state.allocator, TokenPagedAllocator | TokenRadixAllocator):
        engine.state.allocator.book = executor.book
    return engine, SimulatedSide(executor, words)
