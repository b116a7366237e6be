"""A real model behind the server: real tokens, and wishes of each request of its own."""

from __future__ import annotations

from typing import Any

from backends.server.asks import LENGTH, Ask
from backends.torch.executor import TorchExecutor
from backends.torch.sampling import SamplingParams
from backends.torch.timing import StepTimes
from sim.engine.sequence import Sequence
from workloads.traffic import Request, Span, private_content


class _Forgotten(StepTimes):
    """Times of steps that nobody asks for: a server runs for weeks."""

    def add(self, end: float, device: float, host: float) -> None:
        """Not kept."""


class RealSide:
    """Answers of a model.

    Args:
        executor: which runs it.
        defaults: of sampling, where a client says nothing.
    """

    real = True
    decoded = 0

    def __init__(self, executor: TorchExecutor, defaults: dict[str, Any]) -> None:
        self._executor, self._defaults = executor, defaults
        executor.times = _Forgotten()

    def request(self, ask: Ask) -> Request:
        """What the engine gets, once the executor has been told what it contains.

        Raises:
            InputError: a wish that cannot be, or a token id that the model does not have.
        """
        wishes = {**self._defaults, **ask.sampling, "max_tokens": ask.max_tokens, "min_tokens": ask.min_tokens}
        self._executor.give(ask.row, ask.prompt, SamplingParams(**wishes))
        count = len(ask.prompt)
        spans = (Span(private_content(ask.row), 0, count),)
        return Request(ask.row, ask.arrived, count, ask.max_tokens, ask.max_tokens, spans, ask.priority)

    def finish(self, seq: Sequence) -> str:
        """Why an answer ended; its words are not kept, as no prompt refers to them."""
        self._executor.book.release(seq.row)
        return self._executor.book[seq].reason or LENGTH
