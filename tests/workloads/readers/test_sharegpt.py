import json

import pytest

from workloads.errors import InputError
from workloads.readers import guess_format
from workloads.readers.sharegpt import read_sharegpt
from workloads.traffic import Span, answer_content, private_content


def talk(*messages):
    return {"id": "x", "conversations": [{"from": side, "value": text} for side, text in messages]}


TWO = talk(("human", "a b c"), ("gpt", "d e"), ("human", "f"), ("gpt", "g h i j"))
ONE = talk(("gpt", "hello"), ("human", "a b"), ("gpt", "c"))
LONELY = talk(("human", "anyone?"))


def read(file, data, **options):
    return read_sharegpt(file("s.json", json.dumps(data)), tokenizer=str.split, **options)


def test_turns_of_a_conversation_become_a_session(file):
    traffic = read(file, [TWO, ONE, LONELY], think=2.5)
    assert traffic.input_tokens.tolist() == [3, 6, 2]
    assert traffic.output_tokens.tolist() == [2, 4, 1]
    assert traffic.parent.tolist() == [-1, 0, -1]
    assert traffic.think.tolist() == [0, 2.5, 0]
    assert traffic.request(1).prompt == (
        Span(private_content(0), 0, 3),
        Span(answer_content(0), 0, 2),
        Span(private_content(1), 0, 1),
    )
    assert any("skipped 1" in note for note in traffic.notes)
    traffic.validate()


def test_first_turns_alone(file):
    traffic = read(file, [TWO, ONE], turns="first")
    assert traffic.input_tokens.tolist() == [3, 2]
    assert traffic.spans is None


def test_context_ends_a_conversation(file):
    assert read(file, [TWO], max_context=9).input_tokens.tolist() == [3]
    assert read(file, [TWO], max_context=10).input_tokens.tolist() == [3, 6]


def test_without_a_tokenizer_lengths_are_a_stated_estimate(file):
    path = file("s.json", json.dumps([talk(("human", "x" * 401), ("gpt", "y"))]))
    traffic = read_sharegpt(path)
    assert (traffic.input_tokens[0], traffic.output_tokens[0]) == (101, 1)
    assert any("characters / 4" in note for note in traffic.notes)


def test_messages_of_openai_and_texts_in_a_row(file):
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a b"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    traffic = read(file, [{"messages": messages}])
    assert (traffic.input_tokens.tolist(), traffic.output_tokens.tolist()) == ([3], [2])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("[]", "expected a list of conversations"),
        ("{}", "expected a list of conversations"),
        ('[{"a": 1}]', r"\[0\]: has no list of conversations"),
        ('[{"conversations": [{"from": "human"}]}]', "no text"),
        ('[\n{"conversations": ]', r"s\.json:2"),
        (json.dumps([LONELY]), "no conversation has a question with an answer"),
    ],
)
def test_errors(file, text, said):
    with pytest.raises(InputError, match=said):
        read_sharegpt(file("s.json", text))


def test_a_tokenizer_that_does_not_exist_is_the_users_mistake(file):
    path = file("s.json", json.dumps([ONE]))
    with pytest.raises(InputError, match=r"tokenizer"):
        read_sharegpt(path, tokenizer=str(path.parent / "nowhere"))


def test_format_is_told(file):
    assert guess_format(file("s.json", json.dumps([ONE]))) == "sharegpt"
