"""How a request's tokens are chosen and when its answer ends."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.errors import InputError, Place

COLDEST = 1e-5
"""Temperatures below it are 0: logits divided by less leave the range of float32 (vLLM draws the line there too)."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's wishes; names and defaults are vLLM's, but for `temperature`: greedy unless told otherwise.

    Attributes:
        temperature: 0 = the most likely token.
        top_k: only the k most likely; 0 = all. top_p: only the likeliest that reach this share; 1 = all.
        min_p: only those at least this fraction as likely as the likeliest; 0 = all.
        repetition_penalty: above 1 makes tokens that the prompt or the answer has less likely (Keskar et al. 2019).
        seed: of its own: equal prompts with equal seeds get equal answers. None: the engine's seed and the request's number.
        max_tokens: of the answer, at most. n: answers to one prompt.
        min_tokens: nothing ends the answer before there are so many; stop texts count in what comes after them.
        stop: texts that end the answer; they are no part of it. A text may be given without a list.
        stop_token_ids: tokens that end the answer, beside the model's own.
        ignore_eos: the model's own end-of-text tokens do not end it. With no `stop_token_ids` its length is then forced.
        logprobs: for every token, log-probabilities of so many of the likeliest and of itself, before any of the above.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        if 0 < self.temperature < COLDEST:
            object.__setattr__(self, "temperature", 0.0)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        rules = {
            "temperature": (0 <= self.temperature < float("inf"), "must not be negative"),
            "top_k": (self.top_k >= 0, "must be 0 (all) or more"),
            "top_p": (0 < self.top_p <= 1, "must be above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "must be between 0 and 1"),
            "repetition_penalty": (0 < self.repetition_penalty < float("inf"), "must be above 0"),
            "max_tokens": (self.max_tokens >= 1, "must be at least 1"),
            "min_tokens": (0 <= self.min_tokens <= self.max_tokens, f"must be 0 to max_tokens={self.max_tokens}"),
            "n": (self.n >= 1, "must be at least 1"),
            "stop": (all(isinstance(each, str) and each for each in stop), "must be texts, none of them empty"),
            "logprobs": (self.logprobs is None or self.logprobs >= 0, "must be 0 or more"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise InputError(f"{rule}, found {getattr(self, name)}", place=Place(key=name))

    @property
    def filters(self) -> bool:
        """Whether anything is left out before a draw."""
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0
