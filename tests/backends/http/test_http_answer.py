"""What is read out of a stream: chunks, tokens, failures."""

from __future__ import annotations

import json

import pytest

from backends.http.answer import Answer, Reader, message_of
from backends.http.events import EventStream
from backends.http.tokens import source_of, tokens_of_chunks, total_of


def read(*events: object, keep: bool = True) -> Answer:
    """An answer whose events come at 1, 2, 3 … seconds."""
    answer = Answer(0, 0.0)
    reader = Reader(answer, keep)
    for number, event in enumerate(events):
        reader.take(event.encode() if isinstance(event, str) else json.dumps(event).encode(), float(number + 1))
    reader.finish(float(len(events)))
    return answer


def text(words: str, **more: object) -> dict:
    return {"choices": [{"index": 0, "text": words}], **more}


def delta(**said: object) -> dict:
    return {"choices": [{"index": 0, "delta": said}]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 7, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 3}},
}


def test_events_are_cut_out_of_bytes_however_they_come() -> None:
    whole = 'data: {"a": "é世😀"}\r\n\r\n: keep-alive\n\ndata:two\n\nevent: x\ndata: a\ndata: b\n\n'.encode()
    for size in (1, 2, 3, 7, len(whole)):
        stream = EventStream()
        found = [event for i in range(0, len(whole), size) for event in stream.feed(whole[i : i + size])]
        assert found == ['{"a": "é世😀"}'.encode(), b"two", b"a\nb"], size
    stream = EventStream()
    assert stream.feed(b"data: [DONE]") == [] and stream.end() == [b"[DONE]"]
    long = b"data: " + b"x" * 300_000 + b"\n\n"
    assert EventStream().feed(long) == [b"x" * 300_000]


def test_the_first_chunk_is_the_first_with_something_generated() -> None:
    answer = read(delta(role="assistant", content=""), delta(content="Hi"), delta(content=" you"), USAGE, "[DONE]")
    assert answer.any_chunk == 1.0 and list(answer.times) == [2.0, 3.0]
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (7, 8, 3)
    assert answer.good and answer.text == "Hi you" and answer.end == 5.0


@pytest.mark.parametrize(
    "said",
    [
        {"reasoning_content": "hm"}, {"reasoning": "hm"},
        {"tool_calls": [{"function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"function": {"arguments": "{}"}}]},
    ],
)  # fmt: skip
def test_reasoning_and_tool_calls_are_generated_too_but_no_part_of_the_text(said: dict) -> None:
    answer = read(delta(**said), delta(content="x"), "[DONE]")
    assert list(answer.times) == [1.0, 2.0] and answer.text == "x"


def test_tokens_of_chunks_are_the_servers_count() -> None:
    one = read(text("a"), text("b"), {"choices": [], "usage": {"completion_tokens": 2}}, "[DONE]")
    assert source_of(one) == "usage" and tokens_of_chunks(one).tolist() == [1, 1]
    several = read(
        text("one"), text("x" * 9), text("x" * 3), {"choices": [], "usage": {"completion_tokens": 8}}, "[DONE]"
    )
    assert tokens_of_chunks(several).tolist() == [2, 4, 2] and total_of(several) == 8
    fewer = read(text("a"), text("b"), text("c"), {"choices": [], "usage": {"completion_tokens": 2}}, "[DONE]")
    assert tokens_of_chunks(fewer).sum() == 2 and len(tokens_of_chunks(fewer)) == 3
    uncounted = read(text("a"), text("b"), "[DONE]")
    assert source_of(uncounted) == "chunks" and tokens_of_chunks(uncounted).tolist() == [1, 1]


def test_a_count_in_every_chunk_is_taken_and_one_in_the_last_alone_is_not() -> None:
    running = read(*(text("x", usage={"completion_tokens": n}) for n in (1, 5, 6)), "[DONE]")
    assert tokens_of_chunks(running).tolist() == [1, 4, 1]
    last = read(text("x"), text("x"), text("x", usage={"completion_tokens": 6}), "[DONE]")
    assert tokens_of_chunks(last).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("events", "kind", "words"),
    [
        ((text("a"), text("b")), "cut", "ended before"),
        ((), "cut", ""),
        (("[DONE]",), "empty", "no token"),
        ((text("a"), {"error": {"message": "out of memory"}}, "[DONE]"), "error in the stream", "out of memory"),
        ((text("a"), "{broken", "[DONE]"), "not understood", "{broken"),
        (("3", "[DONE]"), "not understood", "3"),
        ((text("a"), {"choices": [{"text": "", "finish_reason": "abort"}]}, "[DONE]"), "error in the stream", "abort"),
        ((text("a"), {"choices": [{"text": "", "finish_reason": {"type": "error"}}]}), "error in the stream", "error"),
    ],
)
def test_what_is_no_whole_answer_has_failed(events: tuple, kind: str, words: str) -> None:
    answer = read(*events)
    assert answer.kind == kind and words in answer.reason and not answer.good


def test_a_reason_to_stop_is_as_good_as_done() -> None:
    assert read({"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}).good


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"error": {"message": "too long", "type": "x"}}, "too long"),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
        ({"object": "error", "message": "no such model"}, "no such model"),
        (b'{"error": "plain"}', "plain"), (b"", ""),
        (b"<html><head><title>502 Bad Gateway</title></head>\r\n<body><h1>502 Bad\nGateway</h1></body>", "502 Bad Gateway"),
        (b"<html>", "<html>"), (b"< 3", "< 3"),
        ({"detail": "Not Found"}, "Not Found"), ([1], "1"), (None, "None"),
    ],
)  # fmt: skip
def test_errors_in_the_forms_that_servers_have(said: object, words: str) -> None:
    assert message_of(said) == words


def test_what_comes_after_the_end_is_no_part_of_the_answer_but_its_count_is() -> None:
    late = read(text("a"), text("b"), "[DONE]", text("c"), {"choices": [], "usage": {"completion_tokens": 2}})
    assert late.text == "ab" and list(late.times) == [1.0, 2.0] and late.good and late.output_tokens == 2


def test_no_answer_has_millions_of_tokens() -> None:
    """They would each become a row; what a server counts beyond reason is no count."""
    huge = read(text("a"), text("b"), {"choices": [], "usage": {"completion_tokens": 9_000_000}}, "[DONE]")
    assert source_of(huge) == "chunks" and total_of(huge) == 2
