"""Prompts for a server: exact lengths, prefixes that are shared exactly as far as spans are, answers in later turns."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from backends.http.counting import OPENING, Measure, measure, text_of
from backends.http.prompts import HIGHEST_ID, LOWEST_ID, PromptMaker, shortened
from backends.http.words import WORDS
from workloads.traffic import Span, SpanTable, Traffic, answer_content, private_content


def counted(text: str) -> int:
    """A tokenizer with a token before a text and one a word."""
    return 1 + len(text.split())


def templated(messages: list[dict]) -> int:
    """A template with three tokens around every message and two at its end."""
    return sum(3 + len(message["content"].split()) for message in messages) + 2


async def count_text(prompt: str) -> int:
    return counted(prompt)


async def count_chat(prompt: list[dict]) -> int:
    return templated(prompt)


def known(chat: bool = False, sessions: bool = False) -> Measure:
    return asyncio.run(measure(count_chat if chat else count_text, WORDS, chat=chat, sessions=sessions))


def traffic(prompts: list[list[Span]], **more: object) -> Traffic:
    lengths = [sum(span.length for span in prompt) for prompt in prompts]
    size = len(prompts)
    return Traffic(
        np.zeros(size), np.array(lengths), np.full(size, 4), np.full(size, 4), SpanTable.build(prompts), **more
    )


def test_words_are_common_and_none_comes_twice() -> None:
    assert len(WORDS) == len(set(WORDS)) > 900 and all(word.isalpha() and word.islower() for word in WORDS)


def test_prompts_have_the_lengths_asked_for() -> None:
    rows = traffic([[Span(private_content(i), 0, n)] for i, n in enumerate((3, 4, 17, 900))])
    maker = PromptMaker(rows, known(), "completions")
    assert [counted(maker.make(rows.request(i))) for i in range(4)] == [3, 4, 17, 900]
    chat = PromptMaker(rows, known(chat=True), "chat")
    assert [templated(chat.make(rows.request(i))) for i in range(1, 4)] == [6 + 1, 17, 900]  # a template takes 6 itself


def test_prefixes_are_shared_as_far_as_spans_are_and_distinct_ones_are_distinct() -> None:
    shared = Span(-5, 0, 64)
    rows = traffic([
        [shared, Span(private_content(0), 0, 8)], [shared, Span(private_content(1), 0, 8)],
        [Span(-5, 0, 30), Span(private_content(2), 0, 42)], [Span(private_content(3), 0, 72)],
    ])  # fmt: skip
    maker = PromptMaker(rows, known(), "completions")
    prompts = [maker.make(rows.request(i)).split() for i in range(4)]
    assert prompts[0][:63] == prompts[1][:63] and prompts[0][63:] != prompts[1][63:]
    assert prompts[0][:29] == prompts[2][:29] and prompts[0][29:] != prompts[2][29:]
    assert prompts[0][1:20] != prompts[3][1:20]
    again = PromptMaker(rows, known(), "completions", seed=1)
    assert again.make(rows.request(3)).split()[1:] != prompts[3][1:]


def test_the_private_end_of_a_short_prompt_stays() -> None:
    spans = [Span(-1, 0, 5), Span(8, 0, 3)]
    assert shortened(spans, 4) == [Span(-1, 0, 1), Span(8, 0, 3)]
    assert shortened(spans, 6) == [Span(8, 0, 2)] and shortened(spans, 50) == [Span(8, 0, 1)]
    assert shortened(spans, 0) == spans


def test_a_later_turn_contains_what_was_answered() -> None:
    first = [Span(private_content(0), 0, 10)]
    second = [*first, Span(answer_content(0), 0, 4), Span(private_content(1), 0, 8)]
    rows = traffic([first, second], parent=np.array([-1, 0]))
    maker = PromptMaker(rows, known(), "completions")
    assert maker.awaits(0) and not maker.awaits(1) and maker.early(0) and not maker.early(1)
    before = maker.make(rows.request(0))
    maker.answered(0, " the answer it gave")
    after = maker.make(rows.request(1))
    assert after.startswith(before + " the answer it gave ") and counted(after) == 22
    chat = PromptMaker(rows, known(chat=True, sessions=True), "chat")
    start = chat.make(rows.request(0))
    chat.answered(0, "the answer it gave")
    turns = chat.make(rows.request(1))
    assert [m["role"] for m in turns] == ["user", "assistant", "user"] and turns[:1] == start
    assert turns[1]["content"] == "the answer it gave" and templated(turns) == 22


def test_the_traces_own_words_are_sent_as_they_are() -> None:
    spoken = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    rows = traffic([[Span(0, 0, 5)], [Span(0, 0, 5), Span(2, 0, 3)], [Span(4, 0, 2)]], parent=np.array([-1, 0, -1]),
                   texts=["Say it", " And again", "Alone"])  # fmt: skip
    maker = PromptMaker(rows, known(), "completions")
    assert maker.make(rows.request(0)) == "Say it"
    maker.answered(0, " so.")
    assert maker.make(rows.request(1)) == "Say it so. And again" and maker.make(rows.request(2)) == "Alone"
    rows.texts = [spoken, [{"role": "user", "content": "More"}], "Alone"]
    chat = PromptMaker(rows, known(), "chat")
    assert chat.make(rows.request(0)) == spoken
    chat.answered(0, "So.")
    said = {"role": "assistant", "content": "So."}
    assert chat.make(rows.request(1)) == [*spoken, said, {"role": "user", "content": "More"}]
    assert chat.make(rows.request(2)) == [{"role": "user", "content": "Alone"}]


def test_token_ids_are_exact_and_ordinary() -> None:
    shared = Span(-5, 0, 300)
    rows = traffic([[shared, Span(private_content(0), 0, 20)], [shared, Span(private_content(1), 0, 20)]])
    maker = PromptMaker(rows, Measure(WORDS), "completions", ids=True)
    one, other = maker.make(rows.request(0)), maker.make(rows.request(1))
    assert len(one) == 320 and one[:300] == other[:300] and one[300:] != other[300:]
    assert min(one) >= LOWEST_ID and max(one) < HIGHEST_ID


@pytest.mark.parametrize("odd", [("water",), ("able", "youth"), WORDS[100:103] + WORDS[500:501]])
def test_words_that_are_no_single_token_are_found_and_left_out(odd: tuple[str, ...]) -> None:
    asked = 0

    async def count(prompt: str) -> int:
        nonlocal asked
        asked += 1
        return 1 + sum(2 if word in odd else 1 for word in prompt.split())

    found = asyncio.run(measure(count, WORDS, chat=False, sessions=False))
    assert set(found.words) == set(WORDS) - set(odd) and found.exact and found.per_word == 1.0
    assert found.around == 2 and asked <= 42


def test_a_server_that_counts_characters_gets_lengths_that_are_near() -> None:
    async def count(prompt: str) -> int:
        return (len(prompt) + 3) // 4

    found = asyncio.run(measure(count, WORDS, chat=False, sessions=False))
    assert found.per_word == pytest.approx(len(text_of(WORDS)) / 4 / len(WORDS), rel=0.01)
    rows = traffic([[Span(private_content(i), 0, 500)] for i in range(20)])
    maker = PromptMaker(rows, found, "completions")
    counts = [asyncio.run(count(maker.make(rows.request(i)))) for i in range(20)]
    assert np.mean(counts) == pytest.approx(500, rel=0.02)


def test_a_short_context_is_asked_with_fewer_words() -> None:
    async def count(prompt: str) -> int | None:
        return counted(prompt) if counted(prompt) <= 300 else None

    found = asyncio.run(measure(count, WORDS, chat=False, sessions=False))
    assert found.exact and 200 < len(found.words) <= 298 and found.per_word == 1.0


def test_a_server_that_does_not_count_gets_a_word_for_a_token() -> None:
    async def count(prompt: str) -> None:
        return None

    found = asyncio.run(measure(count, WORDS, chat=False, sessions=False))
    assert not found.exact and found.words == WORDS
    rows = traffic([[Span(0, 0, 5)]])
    assert PromptMaker(rows, found, "completions").make(rows.request(0)).startswith(OPENING)
