"""Text to tokens and back where there is no tokenizer; text of answers while they grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.server.detokenise import TextStream
from backends.server.words import CountedWords, NoWords
from workloads.errors import InputError

WORDS = CountedWords()
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)


@given(TEXTS)
def test_four_bytes_are_a_token_and_come_back(text: str) -> None:
    ids = WORDS.encode(text)
    assert len(ids) == -(-len(text.encode()) // 4) and all(0 <= each < WORDS.size for each in ids)
    assert WORDS.decode(ids) == text


def test_fillers_are_words_that_stay_the_same_tokens() -> None:
    assert len(set(WORDS.fillers)) == len(WORDS.fillers) > 50
    assert WORDS.encode(WORDS.decode(WORDS.fillers)) == list(WORDS.fillers)
    assert all(text[0] == " " and text[1:].isalpha() for text in WORDS.parts(WORDS.fillers))


def test_a_chat_begins_as_the_chat_before_it() -> None:
    one = [{"role": "user", "content": "What is it?"}]
    said = WORDS.decode(WORDS.fillers[:9])
    more = [*one, {"role": "assistant", "content": said}, {"role": "user", "content": "Why?"}]
    known = [*WORDS.chat(one), *WORDS.fillers[:9]]
    assert WORDS.chat(more)[: len(known)] == known


def test_without_a_tokenizer_text_is_refused() -> None:
    with pytest.raises(InputError, match="token ids"):
        NoWords(100).chat([{"role": "user", "content": "x"}])


def spoken(text: str, stops: tuple[str, ...] = (), at_once: int = 1, least: int = 0) -> list[str]:
    """What a stream gives out, a piece for each call."""
    stream, ids = TextStream(WORDS.decode, stops, least), WORDS.encode(text)
    starts = range(0, len(ids), at_once)
    return [stream.add(ids[at : at + at_once], at + at_once >= len(ids)) for at in starts]


@given(TEXTS, st.integers(1, 4))
def test_no_character_is_given_out_in_pieces(text: str, at_once: int) -> None:
    pieces = spoken(text, at_once=at_once)
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces) or "�" in text


@given(st.text("ab ", max_size=30), st.lists(st.text("ab ", min_size=1, max_size=5), min_size=1, max_size=3))
def test_a_stop_is_never_seen_and_all_before_it_is(text: str, stops: list[str]) -> None:
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    first = min((text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text) if found else None
    pieces = spoken(text, tuple(stops))
    said = "".join(pieces)
    if first is None:
        assert said == text
    else:  # where several end in one token, the one that begins first counts
        token_end = -(-first[0] // 4) * 4
        assert said == text[: min(text.find(stop) for stop in stops if text[:token_end].find(stop) >= 0)]


def test_what_may_become_a_stop_is_held_back_until_it_is_none() -> None:
    assert spoken("abcdefghijkl", ("defgX",)) == ["abc", "defgh", "ijkl"]
    assert spoken("abcdefghijkl", ("defghX",)) == ["abc", "", "defghijkl"]
    assert spoken("abcdefgh", ("hX",)) == ["abcd", "efgh"]


def test_no_stop_counts_before_the_least_tokens() -> None:
    assert "".join(spoken("one two one two ", ("two",), least=2)) == "one two one "
    assert "".join(spoken("one two one two ", ("two",), least=4)) == "one two one two "


def test_bytes_that_are_no_text_do_not_stop_a_stream() -> None:
    stream = TextStream(WORDS.decode)
    said = [stream.add([0xFFFFFFFF]) for _ in range(400)]
    assert sum(map(bool, said)) > 4 and len("".join([*said, stream.add([], True)])) == 1600
