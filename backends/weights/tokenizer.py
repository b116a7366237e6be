"""A model's tokenizer: text to token ids and back, and its chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workloads.errors import InputError, Place

Message = dict[str, str]
"""`role` (`system`, `user`, `assistant`) and `content`."""

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
_ANSWER = "ANSWER7F3A"  # stands where an answer will be; letters and digits, which no template changes


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a tokenizer's files."""
    return any((folder / name).is_file() for name in _FILES)


class Tokenizer:
    """The tokenizer in a model's folder.

    Raises:
        InputError: there is none, or it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not has_tokenizer(folder):
            raise InputError(
                "has no tokenizer, which prompts of text need", place=Place(str(folder)),
                hint="copy tokenizer.json and tokenizer_config.json of the checkpoint into it",
            )  # fmt: skip
        from transformers import AutoTokenizer

        try:
            self._hf: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # each kind of tokenizer fails in its own way
            why = str(error).strip().partition("\n")[0][:200]
            raise InputError(f"its tokenizer cannot be read: {why}", place=Place(str(folder))) from None
        self._folder = folder

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with what the model wants before it."""
        return self._hf.encode(text)

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, without those that are not text."""
        return self._hf.decode(ids, skip_special_tokens=True)

    def chat(self, messages: list[Message]) -> list[int]:
        """Token ids of a conversation that the model is to continue."""
        return self.plain(self._render(messages))

    def next_turn(self, history: list[Message], said: list[int], ends: frozenset[int], new: list[Message]) -> list[int]:
        """A conversation that goes on: the prompt and answer so far as they were, token by token, and what is new.

        Answers are not tokenized again, which may give other tokens: the cached prefix stays what it was.

        Args:
            history: messages before the last answer.
            said: token ids of the prompt and the answer. ends: ids that end an answer; the template brings its own.
            new: messages after the answer.
        """
        before = self._render([*history, {"role": "assistant", "content": _ANSWER}, *new])
        _, found, tail = before.rpartition(_ANSWER)
        if not found:
            raise InputError("its chat template does not show answers as they are", place=Place(str(self._folder)))
        kept = said[:-1] if said and said[-1] in ends else said
        return [*kept, *self.plain(tail)]

    def plain(self, text: str) -> list[int]:
        """Token ids of a text that goes on from others."""
        return self._hf.encode(text, add_special_tokens=False)

    def _render(self, messages: list[Message]) -> str:
        if not self._hf.chat_template:
            raise InputError(
                "its tokenizer has no chat template, which prompts of messages need", place=Place(str(self._folder)),
                hint="give prompts as `text`",
            )  # fmt: skip
        try:
            return self._hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template raises what it likes
            why = str(error).strip().partition("\n")[0][:200]
            raise InputError(f"its chat template refuses the messages: {why}", place=Place(str(self._folder))) from None
