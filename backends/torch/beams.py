"""Beam search through the engine: every step is a request of one token for each beam, whose prefix the KV cache has.

As in vLLM since its V1 engine (`vllm/entrypoints/llm.py`, `vllm/beam_search.py`): beams that part share the blocks
of what they have in common, and those that die leave theirs to whoever comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workloads.errors import InputError, Place

Best = Callable[[list[list[int]], int], list[dict[int, float]]]
"""From prompts and a number n: the log-probabilities of each one's n likeliest next tokens."""


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """A search; names and defaults are vLLM's.

    Attributes:
        beam_width: beams that are kept at every step. max_tokens: of an answer, at most.
        ignore_eos: the end of text ends no beam. length_penalty: answers rank by log-probability / length ** this.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"must be at least 1, found {getattr(self, name)}", place=Place(key=name))


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One answer: its token ids (without the prompt), their log-probability, its text, and why it ended."""

    tokens: list[int]
    cum_logprob: float
    text: str = ""
    finish_reason: str = "length"


def search(
    prompts: list[list[int]], how: BeamSearchParams, ends: frozenset[int], best: Best
) -> list[list[BeamSearchSequence]]:
    """The best `beam_width` answers to each prompt, best first."""
    alive = [[BeamSearchSequence([], 0.0)] for _ in prompts]
    complete: list[list[BeamSearchSequence]] = [[] for _ in prompts]
    stops = frozenset() if how.ignore_eos else ends
    for _ in range(how.max_tokens):
        asked = [[*prompt, *beam.tokens] for prompt, beams in zip(prompts, alive, strict=True) for beam in beams]
        if not asked:
            break
        answers = iter(best(asked, 2 * how.beam_width))
        for index, beams in enumerate(alive):
            grown = [(beam, token, value) for beam in beams for token, value in next(answers).items()]
            grown.sort(key=lambda each: -(each[0].cum_logprob + each[2]))
            alive[index] = []
            for beam, token, value in grown:
                over = token in stops
                after = BeamSearchSequence(
                    [*beam.tokens, token], beam.cum_logprob + value, finish_reason="stop" if over else "length"
                )
                if over:
                    complete[index].append(after)
                elif len(alive[index]) < how.beam_width:
                    alive[index].append(after)
    found = [[*done, *beams] for done, beams in zip(complete, alive, strict=True)]
    rank = [sorted(each, key=lambda beam: -beam.cum_logprob / len(beam.tokens) ** how.length_penalty) for each in found]
    return [each[: how.beam_width] for each in rank]
