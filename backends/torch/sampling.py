"""How a request's tokens are chosen and when its answer ends."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.errors import InputError, Place


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's wishes; names and defaults are vLLM's, but for `temperature`: greedy unless told otherwise.

    Attributes:
        temperature: 0 = the most likely token.
        top_k: only the k most likely; 0 = all. top_p: only the likeliest that reach this share; 1 = all.
        min_p: only those at least this fraction as likely as the likeliest; 0 = all.
        seed: of its own: equal prompts with equal seeds get equal answers. None: the engine's seed and the request's number.
        stop_token_ids: tokens that end the answer, beside the model's own.
        ignore_eos: the model's own end-of-text tokens do not end it. With no `stop_token_ids` its length is then forced.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        rules = {
            "temperature": (0 <= self.temperature < float("inf"), "must not be negative"),
            "top_k": (self.top_k >= 0, "must be 0 (all) or more"),
            "top_p": (0 < self.top_p <= 1, "must be above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "must be between 0 and 1"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise InputError(f"{rule}, found {getattr(self, name)}", place=Place(key=name))

    @property
    def filters(self) -> bool:
        """Whether anything is left out before a draw."""
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0
