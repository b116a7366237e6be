import json

import numpy as np
import pytest

from workloads.errors import InputError
from workloads.readers import read_trace
from workloads.readers.mooncake import read_mooncake
from workloads.traffic import Span


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(at=0, inputs=1024, output=5, ids=None) -> dict:
    ids = list(range(-(-inputs // 512))) if ids is None else ids
    return {"timestamp": at, "input_length": inputs, "output_length": output, "hash_ids": ids}


def test_blocks_become_shared_spans_and_the_last_may_be_partial(file):
    traffic = read_mooncake(file("m.jsonl", lines(row(), row(1500, 1100, 9, [0, 1, 7]))))
    assert traffic.arrival.tolist() == [0.0, 1.5]
    assert traffic.request(0).prompt == (Span(-1, 0, 512), Span(-2, 0, 512))
    assert traffic.request(1).prompt == (Span(-1, 0, 512), Span(-2, 0, 512), Span(-8, 0, 76))
    traffic.validate()


def test_other_block_sizes_and_true_hashes(file):
    text = lines(row(0, 20, 5, [-5, 2**62 + 9]), row(1, 16, 5, [-5]))
    traffic = read_mooncake(file("m.jsonl", text), block_size=16)
    first, second = traffic.request(0).prompt, traffic.request(1).prompt
    assert first[0] == second[0]
    assert first[1].content != first[0].content and first[1].length == 4
    assert all(span.content < 0 for span in first)


@pytest.mark.parametrize("large", [2**64 - 1, 2**64, 10**40])
def test_hashes_of_any_width(file, large):
    traffic = read_mooncake(file("m.jsonl", lines(row(0, 1024, 5, [-5, large]), row(1, 1024, 5, [-5, large - 1]))))
    first, second = traffic.request(0).prompt, traffic.request(1).prompt
    assert first[0] == second[0] and first[1] != second[1]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (row(0, 1025, 5, [0, 1]), "column hash_ids: 2 ids for 1025 tokens, which are 3 blocks of 512"),
        (row(0, 512, 5, ["a"]), "column hash_ids: expected a list of whole numbers"),
        (row(0, 512, 5, [[1]]), "column hash_ids: expected a list of whole numbers"),
        (row(0, 512, 5, 7), "column hash_ids: expected a list of whole numbers"),
        (row(0, 512, 5, [1e30]), "column hash_ids: expected a list of whole numbers"),
        (row(0, 0, 5, []), "column input_length: must be at least 1, not 0"),
        ({"input_length": 5, "output_length": 5, "hash_ids": [1]}, "column timestamp: is missing"),
        (row(None), "column timestamp: has no value"),
        (row(-1), "column timestamp: must be at least 0, not -1"),
        ({**row(), "input_lenght": 3}, "column input_lenght: unknown field.*did you mean input_length"),
    ],
)
def test_errors_name_the_line(file, bad, said):
    with pytest.raises(InputError, match=rf"m\.jsonl:3, {said}"):
        read_mooncake(file("m.jsonl", lines(row(), row(1)) + lines(bad)))


@pytest.mark.parametrize("bad", ["{", '{"timestamp": 0} {"timestamp": 1}', "[1]", "3"])
def test_a_malformed_line_is_named(file, bad):
    with pytest.raises(InputError, match=r"m\.jsonl:2"):
        read_mooncake(file("m.jsonl", lines(row()) + bad + "\n"))


def test_binned_arrivals_can_be_spread(file):
    text = lines(*(row(3000 * (i // 10)) for i in range(50)))
    path = file("m.jsonl", text)
    plain = read_mooncake(path)
    assert len(set(plain.arrival.tolist())) == 5
    assert any("recorded in bins" in note for note in plain.notes)
    for how in ("random", "even"):
        spread = read_mooncake(path, spread=how, seed=1)
        assert len(set(spread.arrival.tolist())) == 50
        assert np.all(np.diff(spread.arrival) >= 0)
        np.testing.assert_array_equal(spread.arrival // 3, plain.arrival // 3)
        assert any(f"spread within their bins ({how}" in note for note in spread.notes)
    np.testing.assert_allclose(np.diff(read_mooncake(path, spread="even").arrival), 0.3)
    with pytest.raises(InputError, match=r"unknown spread 'evenly'.*did you mean even"):
        read_mooncake(path, spread="evenly")


@pytest.mark.shared
def test_the_recorded_bins_are_about_three_seconds(recorded):
    path = recorded / "mooncake_conversation_trace.jsonl.gz"
    assert any("1,180 distinct" in note for note in read_trace(path).notes)
    spread = read_trace(path, spread="random")
    gaps = np.diff(spread.arrival)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.1)
