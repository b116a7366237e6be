"""The `sampling:` section: how a real model chooses tokens, and what ends an answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from experiments.schema.base import Section, Text


def _listed(value: object) -> object:
    """One text is a list of one."""
    return [value] if isinstance(value, str) else value


class SamplingSection(Section):
    """`sampling`: real backends only; see `backends.torch.sampling.SamplingParams` for each key.

    Attributes:
        ignore_eos: answers have exactly the length that the traffic says, whatever is generated: the default, since only
            then can runs be compared. False: they end at the model's end of text, at a stop, or at `max_tokens`.
        stop: texts that end an answer. stop_token_ids: tokens that do. Both need `ignore_eos: false`.
    """

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    ignore_eos: bool | None = None
    stop: Annotated[list[Text], BeforeValidator(_listed)] | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = None
