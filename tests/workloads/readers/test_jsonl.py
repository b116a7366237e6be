import json

import numpy as np
import pytest

from workloads.errors import InputError
from workloads.readers import read_trace
from workloads.readers.jsonl import read_jsonl
from workloads.traffic import Span


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(at: float | None = 0.0, **more) -> dict:
    return ({} if at is None else {"arrival": at}) | {"input_tokens": 10, "output_tokens": 5} | more


def test_fields_and_their_defaults(file):
    traffic = read_jsonl(file("t.jsonl", lines(row(), row(0.5, max_tokens=64, priority=-2, n=4, input_tokens=7))))
    assert traffic.arrival.tolist() == [0, 0.5]
    assert traffic.input_tokens.tolist() == [10, 7]
    assert traffic.max_tokens.tolist() == [0, 64]
    assert traffic.priority.tolist() == [0, -2]
    assert traffic.n.tolist() == [1, 4]
    assert traffic.spans is None and traffic.name == "t"


def test_sessions_by_name_in_turn_order(file):
    text = lines(row(5.0, session="a", turn=1, think=2), row(1.0), row(3.0, session="a", turn=0), row(2.0, session="b"))
    traffic = read_jsonl(file("t.jsonl", text))
    assert traffic.parent.tolist() == [-1, -1, -1, 2]
    assert traffic.arrival[traffic.parent < 0].tolist() == [1, 2, 3]
    assert traffic.think.tolist() == [0, 0, 0, 2]
    traffic.validate()


def test_sessions_by_parent_need_no_arrival(file):
    text = lines(row(3.0), row(None, parent=0, think=1.5), row(1.0), row(None, parent=1))
    traffic = read_jsonl(file("t.jsonl", text))
    assert traffic.parent.tolist() == [-1, -1, 1, 2]
    assert traffic.arrival.tolist() == [1, 3, 3, 3]


def test_spans_follow_their_rows_when_these_are_sorted(file):
    text = lines(
        row(9.0, spans=[[-1, 0, 6], [0, 0, 4]]),
        row(None, parent=0, input_tokens=18, spans=[[-1, 0, 6], [0, 0, 4], [1, 0, 5], [2, 0, 3]]),
        row(1.0),
    )
    traffic = read_jsonl(file("t.jsonl", text))
    assert traffic.request(0).prompt == (Span(0, 0, 10),)
    assert traffic.request(1).prompt == (Span(-1, 0, 6), Span(2, 0, 4))
    assert traffic.request(2).prompt == (Span(-1, 0, 6), Span(2, 0, 4), Span(3, 0, 5), Span(4, 0, 3))
    traffic.validate()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"input_tokens": 1, "output_tokens": 1}, "column arrival: is missing"),
        (row(None, arrival=None), "column arrival: has no value"),
        (row(float("nan")), "column arrival: must be finite"),
        (row("soon"), "column arrival: expected a number, not 'soon'"),
        (row(-1), "column arrival: must be at least 0"),
        (row(input_tokens=0), "column input_tokens: must be at least 1, not 0"),
        (row(output_tokens=-3), "column output_tokens: must be at least 1, not -3"),
        (row(output_tokens=1.5), "column output_tokens: expected a whole number"),
        (row(input_tokens=True), "column input_tokens: expected a number, not True"),
        (row(max_tokens=-1), "column max_tokens: must be at least 0"),
        (row(n=0), "column n: must be at least 1"),
        (row(think=-1), "column think: must be at least 0"),
        (row(max_token=9), "column max_token: unknown field.*did you mean max_tokens"),
        (row(parent=2), "column parent: expected an earlier row, 0 to 1, not 2"),
        (row(parent=0, session="a"), "either parent or session"),
        (row(turn=0), "column turn: is there without a session"),
        (row(session=1.5), "column session: expected"),
        (row(spans=[[-1, 0, 9]]), "column spans: lengths must add up to input_tokens"),
        (row(spans=[[-1, 0, 0], [-2, 0, 10]]), "column spans: expected"),
        (row(spans=[[-1, 0]]), "column spans: expected"),
        (row(spans=[]), "column spans: lengths must add up to input_tokens, not 0"),
        (row(spans="x"), "column spans: expected"),
        (row(spans=[[-1, 0, 1e1]]), "column spans: expected"),
    ],
)
def test_errors_name_the_line_and_the_field(file, bad, said):
    with pytest.raises(InputError, match=rf"t\.jsonl:3.*{said}"):
        read_jsonl(file("t.jsonl", lines(row(), row(spans=[[-1, 0, 10]]), bad)))


def test_a_turn_twice(file):
    text = lines(row(session="a", turn=1), row(), row(session="a", turn=1))
    with pytest.raises(InputError, match=r"t\.jsonl:3, column turn: turn 1 is there twice, also on line 1"):
        read_jsonl(file("t.jsonl", text))


@pytest.mark.parametrize("content", [0, 1, 2, 9])
def test_only_contents_of_the_own_session_can_be_named(file, content):
    with pytest.raises(InputError, match=r"not of an earlier turn"):
        read_jsonl(file("t.jsonl", lines(row(), row(1.0, spans=[[content, 0, 10]])))) if content != 2 else (
            read_jsonl(file("t.jsonl", lines(row(spans=[[2, 0, 10]]), row(1.0))))
        )


def test_an_answer_cannot_be_quoted_beyond_its_end(file):
    text = lines(row(), row(None, parent=0, input_tokens=16, spans=[[0, 0, 10], [1, 0, 6]]))
    with pytest.raises(InputError, match=r"longer than that turn's answer"):
        read_jsonl(file("t.jsonl", text))


def test_other_fields_are_kept_out_with_a_note(file):
    traffic = read_jsonl(file("t.jsonl", lines(row(tenant="x"))))
    assert "ignored fields: tenant" in traffic.notes


def test_many_rows(file):
    text = "".join(f'{{"arrival":{i / 7},"input_tokens":{i % 900 + 1},"output_tokens":5}}\n' for i in range(100_000))
    import time

    path = file("t.jsonl", text)
    start = time.perf_counter()
    traffic = read_trace(path, "twinserve")
    assert time.perf_counter() - start < 5  # 0.5 s on an idle core
    np.testing.assert_array_equal(traffic.arrival, np.arange(100_000) / 7)


def test_arrivals_may_be_dates(file):
    at = "2024-05-01T10:00:0{}Z"
    text = lines(row(at.format(3), session="a", turn=0), row(at.format(1)), row(None, session="a", turn=1, think=1))
    traffic = read_jsonl(file("t.jsonl", text))
    assert traffic.arrival[traffic.parent < 0].tolist() == [0, 2]
    assert "dates: the first, 2024-05-01T10:00:01 UTC, is 0" in traffic.notes
    for bad in (3.5, "later", None, True):
        with pytest.raises(InputError, match=r"t\.jsonl:2, column arrival: "):
            read_jsonl(file("t.jsonl", lines(row(at.format(1)), row(at.format(2)) | {"arrival": bad})))
    with pytest.raises(InputError, match="expected a number, not '2024"):
        read_jsonl(file("t.jsonl", lines(row(0.5), row(at.format(1)))))
