"""Prompts that come with their words."""

import json

import numpy as np
import pytest

from workloads.errors import InputError
from workloads.examples import FOLDER
from workloads.readers import read_trace
from workloads.transform import take


def rows(file, *items):
    base = {"arrival": 0.0, "input_tokens": 4, "output_tokens": 2}
    return file("t.jsonl", "".join(json.dumps(base | item) + "\n" for item in items))


def test_text_and_messages_travel_with_their_rows(file):
    said = [{"role": "user", "content": "hello"}]
    traffic = read_trace(rows(file, {"text": "a b"}, {}, {"messages": said, "arrival": 1.0}))
    assert traffic.texts == ["a b", None, said]
    assert not any("ignored" in note for note in traffic.notes)
    assert take(traffic, np.array([2, 0])).texts == [said, "a b"]
    assert read_trace(rows(file, {})).texts is None


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"text": "a", "messages": [{"role": "user", "content": "b"}]}, "either text or messages"),
        ({"text": ""}, "expected some text"),
        ({"messages": []}, "expected"),
        ({"messages": [{"role": "user"}]}, "expected"),
        ({"messages": "hello"}, "expected"),
    ],
)
def test_words_that_cannot_be_used(file, item, words):
    with pytest.raises(InputError, match=words):
        read_trace(rows(file, {}, item))


def test_questions_of_conversations_are_kept(file):
    talk = [
        {"from": who, "value": text} for who, text in (("human", "one"), ("gpt", "1"), ("human", "two"), ("gpt", "2"))
    ]
    traffic = read_trace(file("s.json", json.dumps([{"conversations": talk}])), "sharegpt")
    assert traffic.texts == [[{"role": "user", "content": text}] for text in ("one", "two")]


def test_the_bundled_conversations_share_what_they_say_they_do():
    traffic = read_trace(FOLDER / "traces" / "smollm2-chat.jsonl")
    assert len(traffic) == 12 and all(traffic.texts)
    assert {traffic.spans.row(int(i))[0].content for i in range(12)} == {-1}
    assert (traffic.parent >= 0).sum() == 8
