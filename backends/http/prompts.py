"""Prompts for a server: the traffic's own words as they are, made-up content as words or token ids of the lengths asked for.

A span becomes the same words wherever it stands, so prompts share a prefix exactly as far as their spans do; and an answer's
span becomes what the server answered. What the opening and a template take is taken off the first span of a prompt, or of a
turn, so that a prompt has as many tokens as the traffic says.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.http.counting import OPENING, Measure, text_of
from backends.http.request import CHAT
from backends.torch.tokens import Vocabulary
from workloads.traffic import Request, Span, Traffic

Message = dict[str, str]
LOWEST_ID, HIGHEST_ID = 1000, 30_000
"""Token ids that are ordinary text in the vocabularies of all families we know: special tokens and single bytes are below or
above."""


class PromptMaker:
    """Makes the prompts of a traffic.

    Args:
        measure: how the server counts words.   endpoint: `completions` or `chat`.
        ids: token ids in place of words (completions only).
    """

    def __init__(self, traffic: Traffic, measure: Measure, endpoint: str, seed: int = 0, *, ids: bool = False) -> None:
        self._traffic, self._measure = traffic, measure
        self._chat, self._ids = endpoint == CHAT, ids
        size = HIGHEST_ID - LOWEST_ID if ids else len(measure.words)
        self._vocabulary = Vocabulary(size, seed)
        self._awaited = frozenset(int(parent) for parent in traffic.parent if parent >= 0)
        self._said: dict[int, str] = {}  # answers that later turns contain
        self._before: dict[int, str | list[Message]] = {}  # prompts of rows with words that others continue

    def awaits(self, row: int) -> bool:
        """Whether a later turn contains the answer of a row."""
        return row in self._awaited

    def early(self, row: int) -> bool:
        """Whether the prompt of a row can be made before it is due: it contains no answer."""
        return self._traffic.parent[row] < 0

    def answered(self, row: int, text: str) -> None:
        """What the server said to a row that is awaited."""
        self._said[row] = text

    def make(self, request: Request) -> str | list[int] | list[Message]:
        """The prompt of a request; of a later turn when the one before is answered."""
        words = self._traffic.texts[request.row] if self._traffic.texts else None
        if words is not None:
            return self._own(request.row, words)
        if self._ids:
            return self._token_ids(request.prompt)
        return self._messages(request) if self._chat else self._text(request.prompt)

    def _own(self, row: int, words: str | list[Message]) -> str | list[Message]:
        """A prompt of the trace's own words; a later turn goes on from the one before."""
        parent = int(self._traffic.parent[row])
        before, said = self._before.get(parent), self._said.get(parent, "")
        if isinstance(words, str) and not self._chat:
            prompt: str | list[Message] = words if before is None else f"{before}{said}{words}"
        else:
            new = [{"role": "user", "content": words}] if isinstance(words, str) else words
            answer = [{"role": "assistant", "content": said}] if before is not None and said else []
            prompt = [*(before or ()), *answer, *new]
        if row in self._awaited:
            self._before[row] = prompt
        return prompt

    def _token_ids(self, spans: Sequence[Span]) -> list[int]:
        ids: list[int] = []
        for span in spans:
            ids += (self._vocabulary.tokens(*span) + LOWEST_ID).tolist()
        return ids

    def _text(self, spans: Sequence[Span]) -> str:
        """One text, with answers in it as the server gave them."""
        parts = [OPENING]
        for span in shortened(spans, self._measure.around):
            said = self._answer(span)
            parts.append(self._words(span) if said is None else said)
        return "".join(parts)

    def _messages(self, request: Request) -> list[Message]:
        """What users said between the answers, and the answers."""
        messages: list[Message] = []
        turn: list[Span] = []
        for span in request.prompt:
            said = self._answer(span)
            if said is None:
                turn.append(span)
                continue
            messages += [self._user(turn, not messages), {"role": "assistant", "content": said}]
            turn = []
        return [*messages, self._user(turn, not messages)]

    def _user(self, spans: list[Span], first: bool) -> Message:
        taken = self._measure.around if first else self._measure.turn
        words = "".join(self._words(span) for span in shortened(spans, taken))
        return {"role": "user", "content": OPENING + words if first else words.lstrip() or OPENING}

    def _answer(self, span: Span) -> str | None:
        """What was answered, where a span is a whole answer of an earlier turn."""
        row, own = divmod(span.content, 2)
        return self._said.get(row) if own and span.content > 0 and not span.offset else None

    def _words(self, span: Span) -> str:
        words = self._measure.words
        length = span.length if self._measure.per_word == 1.0 else max(round(span.length / self._measure.per_word), 1)
        return text_of([words[i] for i in self._vocabulary.tokens(span.content, span.offset, length).tolist()])


def shortened(spans: Sequence[Span], tokens: int) -> list[Span]:
    """Spans that are `tokens` shorter: the first ones lose the end of theirs. The last, which tells a prompt from others,
    keeps one token."""
    left: list[Span] = []
    for number, span in enumerate(spans):
        least = 1 if number == len(spans) - 1 else 0
        off = min(tokens, max(span.length - least, 0))
        tokens -= off
        if span.length > off:
            left.append(Span(span.content, span.offset, span.length - off))
    return left
