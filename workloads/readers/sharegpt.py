"""ShareGPT-like conversations: JSON with the text of every turn.

Lengths come from a tokenizer, or from a stated estimate.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import InputError, Place, unknown_name
from workloads.readers.files import read_text, stem
from workloads.traffic import Span, SpanTable, Traffic, answer_content, private_content

USER, MODEL = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")
CHARACTERS_PER_TOKEN = 4


def read_sharegpt(
    path: Path, *, tokenizer: str | Path | Callable[[str], Any] | None = None, turns: str = "all",
    think: float = 0.0, max_context: int = 0,
) -> Traffic:  # fmt: skip
    """List of `{"conversations": [{"from": "human", "value": …}, …]}`, or of `messages` (`role`, `content`).

    Conversations become sessions: a later turn's prompt is all that was said before it, and its own text.
        There are no times:
    every conversation starts at 0, with a note.

    Args:
        path: plain or gzipped JSON file.
        tokenizer: folder or name of a Hugging Face tokenizer, or a callable from text to a list of tokens or
            their number. Without one a length is estimated as characters / 4.
        turns: `all`, or `first` for the first question and answer alone, as vLLM's benchmark takes.
        think: seconds between an answer and the next turn.
        max_context: a turn that is longer with its answer ends its conversation; 0 = no limit.
    """
    if turns not in ("all", "first"):
        raise unknown_name("turns", turns, ("all", "first"), place=Place(key="turns"))
    count = _counter(tokenizer)
    conversations = _load(path)
    columns: dict[str, list] = {"inputs": [], "outputs": [], "parent": [], "prompts": [], "texts": []}
    skipped = 0
    for number, conversation in enumerate(conversations):
        exchanges = _exchanges(path, number, conversation)
        if not exchanges:
            skipped += 1
        _add(columns, exchanges[:1] if turns == "first" else exchanges, count, max_context)
    if not columns["inputs"]:
        raise InputError("no conversation has a question with an answer", place=Place(str(path)))
    parent = np.array(columns["parent"])
    notes = ["no arrival times: every conversation starts at 0; give arrivals, or run a closed loop"]
    if tokenizer is None:
        notes.append(f"lengths estimated as characters / {CHARACTERS_PER_TOKEN}: no tokenizer was given")
    if skipped:
        notes.append(f"skipped {skipped:,} conversations without a question and an answer")
    multi = bool((parent >= 0).any())
    return Traffic(
        np.zeros(len(parent)),
        columns["inputs"],
        columns["outputs"],
        parent=parent,
        think=np.where(parent >= 0, think, 0.0),
        spans=SpanTable.build(columns["prompts"]) if multi else None,
        texts=columns["texts"],
        name=stem(path),
        notes=notes,
    )


def _add(columns: dict[str, list], exchanges: list[tuple[str, str]], count: Callable, max_context: int) -> None:
    """Append a conversation's turns to the columns."""
    parent, said = -1, ()
    for question, answer in exchanges:
        row = len(columns["inputs"])
        words, output = count(question), count(answer)
        prompt = (*said, Span(private_content(row), 0, words))
        length = sum(span.length for span in prompt)
        if max_context and length + output > max_context:
            return
        columns["inputs"].append(length)
        columns["outputs"].append(output)
        columns["parent"].append(parent)
        columns["prompts"].append(prompt)
        columns["texts"].append([{"role": "user", "content": question}])
        parent, said = row, (*prompt, Span(answer_content(row), 0, output))


def _exchanges(path: Path, number: int, conversation: object) -> list[tuple[str, str]]:
    """Questions with answers, in order. Texts of one side in a row are joined; a lone end is dropped."""
    place = Place(str(path), key=f"[{number}]")
    if not isinstance(conversation, dict):
        raise InputError(f"expected a conversation, not {str(conversation)[:40]!r}", place=place)
    messages = conversation.get("conversations", conversation.get("messages", conversation.get("conversation")))
    if not isinstance(messages, list):
        raise InputError("has no list of conversations or messages", place=place)
    pairs: list[tuple[str, str]] = []
    asked, answered = "", ""
    for message in messages:
        if not isinstance(message, dict):
            raise InputError(f"expected a message, not {str(message)[:40]!r}", place=place)
        side, text = message.get("from", message.get("role")), message.get("value", message.get("content"))
        if not isinstance(text, str):
            raise InputError("a message has no text (value or content)", place=place)
        if side in MODEL:
            answered = f"{answered}\n{text}" if answered else text
            continue
        if asked and answered:
            pairs.append((asked, answered))
            asked, answered = "", ""
        elif answered:  # an answer before any question
            answered = ""
        asked = f"{asked}\n{text}" if asked else text
    if asked and answered:
        pairs.append((asked, answered))
    return pairs


def _load(path: Path) -> list:
    text = read_text(path)
    if not text.strip():
        raise InputError("the file is empty", place=Place(str(path)))
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg}", place=Place(str(path), error.lineno, error.colno)) from error
    if not isinstance(data, list) or not data:
        raise InputError("expected a list of conversations", place=Place(str(path)))
    return data


def _counter(tokenizer: str | Path | Callable[[str], Any] | None) -> Callable[[str], int]:
    """A function from text to its number of tokens, at least 1."""
    if tokenizer is None:
        return lambda text: max(1, -(-len(text) // CHARACTERS_PER_TOKEN))
    if not callable(tokenizer):
        tokenizer = _hugging_face(str(tokenizer))

    def count(text: str) -> int:
        tokens = tokenizer(text)  # type: ignore[operator]
        return max(1, tokens if isinstance(tokens, int) else len(tokens))

    return count


def _hugging_face(name: str) -> Callable[[str], list[int]]:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise InputError(
            "a tokenizer by name needs the package transformers",
            place=Place(key="tokenizer"),
            hint="pip install 'twinserve[engine]', or leave tokenizer out for an estimate",
        ) from error
    try:
        loaded = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise InputError(f"no tokenizer {name!r}: {error}", place=Place(key="tokenizer")) from error
    return lambda text: loaded.encode(text, add_special_tokens=False)
