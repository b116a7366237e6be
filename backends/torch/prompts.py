"""Prompts that come as text or messages, made into token ids when they are sent: later turns contain what was answered."""

from __future__ import annotations

from backends.torch.executor import TorchExecutor
from backends.weights.tokenizer import Message, Tokenizer
from workloads.traffic import Request, Span, Traffic, private_content


class PromptWriter:
    """Writes the prompts of a traffic's rows that have words. Rows without are left to the executor, which makes words up.

    Args:
        traffic: its `input_tokens` are set to what a prompt really has.
    """

    def __init__(self, traffic: Traffic, tokenizer: Tokenizer, executor: TorchExecutor) -> None:
        self._traffic, self._tokenizer, self._executor = traffic, tokenizer, executor
        self._ends = frozenset(executor.model.architecture.stop_ids)
        self._awaited = {int(parent) for parent in traffic.parent if parent >= 0}
        self._prompts: dict[int, list[int]] = {}  # of rows that others continue
        self._histories: dict[int, list[Message]] = {}

    def __call__(self, request: Request) -> Request:
        """The request as it really is; its prompt is private, since the executor knows its token ids."""
        words = self._traffic.texts[request.row] if self._traffic.texts else None
        if words is None:
            return request
        ids = self._ids(request.row, words)
        if request.row in self._awaited:
            self._prompts[request.row] = ids
        self._executor.give(request.row, ids)
        self._traffic.input_tokens[request.row] = len(ids)
        prompt = (Span(private_content(request.row), 0, len(ids)),)
        return request._replace(input_tokens=len(ids), prompt=prompt)

    def _ids(self, row: int, words: str | list[Message]) -> list[int]:
        parent = int(self._traffic.parent[row])
        before = self._prompts.get(parent)
        answer = self._executor.book.answer(parent) if before is not None else None
        if isinstance(words, str):
            if answer is None:
                return self._tokenizer.encode(words)
            return [*before, *answer, *self._tokenizer.plain(words)]
        history = self._histories.get(parent, [])
        if row in self._awaited:
            answered = [] if answer is None else [{"role": "assistant", "content": self._tokenizer.decode(answer)}]
            self._histories[row] = [*history, *answered, *words]
        if answer is None:
            return self._tokenizer.chat([*history, *words])
        return self._tokenizer.next_turn(history, [*before, *answer], self._ends, words)
