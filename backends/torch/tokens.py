"""Token ids of sequences: from prompts as given or made up from spans, and what was generated.

Traces carry the identity of content, not its words. `Vocabulary` turns a content id and an offset into a token id, always the
same, so that prompts which share spans share tokens, and prompts which do not, do not (but by chance).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from backends.torch.sampling import SamplingParams
from sim.engine.sequence import Sequence
from workloads.traffic import Span, answer_content

_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


Decode = Callable[[list[int]], str]


class Vocabulary:
    """A seeded map from (content, offset) to token ids.

    Args:
        size: token ids are below it.
        reserved: ids that are never made: those that begin, end or pad.
    """

    def __init__(self, size: int, seed: int = 0, reserved: Iterable[int] = ()) -> None:
        self.size = size
        self._reserved = sorted(each for each in set(reserved) if each < size)
        self._seed = seed

    def tokens(self, content: int, offset: int, length: int) -> np.ndarray:
        """Token ids `offset … offset + length − 1` of a content; int32."""
        start = (self._seed * 0xD1342543DE82EF95 + content * _GOLDEN) & _MASK
        key = int(_mixed(np.array([start], np.uint64))[0])
        places = np.arange(offset, offset + length, dtype=np.uint64) * np.uint64(_GOLDEN)
        ids = (_mixed(places + np.uint64(key)) % np.uint64(self.size - len(self._reserved))).astype(np.int32)
        for reserved in self._reserved:
            ids += ids >= reserved
        return ids


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = (x ^ (x >> _SHIFTS[0])) * _MULTIPLIERS[0]
    x = (x ^ (x >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return x ^ (x >> _SHIFTS[2])


@dataclass(slots=True, eq=False)
class Tokens:
    """What a sequence says.

    Attributes:
        ids: token ids of the prompt and of what was generated, as far as the host knows them.
        prompt: how many of them are the prompt.
        most: tokens of the answer at most. stops: ids that end it.
        sampling: how tokens are chosen.
        decode: from token ids to text, where texts can end it.
        logprobs: position → token id → log-probability, where they were asked for.
        over: whether its answer has ended, or it was dropped; what is still computed for it is thrown away.
        split: whether this parallel sample has memory of its own. pending: its first token until then.
        place: its place in `Places`, −1: none yet. stay: `join_tick` of the stay in the cohort for which its table was laid.
        host: its keys and values while they are on the host.
    """

    ids: array[int]
    prompt: int
    most: int
    stops: frozenset[int]
    sampling: SamplingParams
    decode: Decode | None = None
    logprobs: dict[int, dict[int, float]] = field(default_factory=dict)
    over: bool = False
    split: bool = False
    pending: int | None = None
    place: int = -1
    stay: int = -1
    host: object = None
    _spans: list[Span] = field(default_factory=list)

    @property
    def answer(self) -> array[int]:
        """The generated ids."""
        return self.ids[self.prompt :]

    def spell_out(self) -> list[Span]:
        """All known tokens as spans of one token each, whose content is the token id; not to be changed."""
        spans = self._spans
        spans += [Span(token, 0, 1) for token in self.ids[len(spans) :]]
        return spans

    def ends_with(self, token: int) -> bool:
        """Whether this would be the answer's last token."""
        return len(self.ids) - self.prompt + 1 >= self.most or self.stops_with(token)

    def stops_with(self, token: int) -> bool:
        """Whether this token, or the text that it completes, is a stop."""
        free = self.prompt + self.sampling.min_tokens  # tokens up to here end nothing
        if len(self.ids) < free:
            return False
        if token in self.stops:
            return True
        if self.decode is None or not self.sampling.stop:
            return False
        # A character takes at most a few tokens and a token has at least a byte, so that this much holds any stop text.
        reach = max(len(stop.encode()) for stop in self.sampling.stop) + 4
        text = self.decode([*self.ids[max(free, len(self.ids) - reach) :], token])
        return any(stop in text for stop in self.sampling.stop)

    @property
    def reason(self) -> str:
        """Why the answer ended, in vLLM's words: `stop` or `length`; empty while it goes on."""
        if not self.over or len(self.ids) == self.prompt:
            return ""
        last = self.ids.pop()
        stopped = self.stops_with(last)
        self.ids.append(last)
        return "stop" if stopped else "length"

    def add(self, token: int) -> bool:
        """One more generated token; whether it ends the answer."""
        self.over = self.ends_with(token)
        self.ids.append(token)
        return self.over


class TokenBook:
    """The tokens of every sequence that is alive, and of answers that later prompts may contain.

    An entry goes when nothing refers to its sequence any more: an allocator names content while it takes memory back, which is
    after the executor has been told that the sequence is gone.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._entries: WeakKeyDictionary[Sequence, Tokens] = WeakKeyDictionary()
        self._answers: dict[int, np.ndarray] = {}

    def __getitem__(self, seq: Sequence) -> Tokens:
        return self._entries[seq]

    def __setitem__(self, seq: Sequence, tokens: Tokens) -> None:
        self._entries[seq] = tokens

    def spell(self, prompt: tuple[Span, ...]) -> array[int]:
        """Token ids of a prompt of spans. A span of an earlier answer is what was generated, made up where that was shorter."""
        ids = array("i")
        for content, offset, length in prompt:
            said = self._answers.get(content)
            have = 0 if said is None else max(0, min(length, len(said) - offset))
            if have:
                ids.frombytes(said[offset : offset + have].tobytes())
            if have < length:
                ids.frombytes(self._vocabulary.tokens(content, offset + have, length - have).tobytes())
        return ids

    def answer(self, row: int) -> list[int] | None:
        """The complete answer of a request's first sample; None if there is none."""
        said = self._answers.get(answer_content(row))
        return None if said is None else said.tolist()

    def release(self, row: int) -> None:
        """No later prompt contains the answer of this request."""
        self._answers.pop(answer_content(row), None)

    def bind(self, seq: Sequence) -> None:
        """The answer of a sequence is complete: spans that name it mean these tokens from now on."""
        if not seq.sample:
            self._answers[answer_content(seq.row)] = np.array(self._entries[seq].answer, np.int32)
