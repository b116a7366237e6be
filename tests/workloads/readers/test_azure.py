import time

import numpy as np
import pytest

from workloads.errors import InputError
from workloads.readers import read_trace
from workloads.readers.azure import read_azure
from workloads.readers.table import Table

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = HEADER + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_times_keep_their_hundred_nanoseconds(file, name):
    traffic = read_azure(file(name, GOOD))
    assert traffic.arrival.tolist() == [0.0, 4.314579]
    assert traffic.input_tokens.tolist() == [374, 396]
    assert traffic.output_tokens.tolist() == [44, 109]
    assert any("2023-11-16 18:15:46.6805900" in note for note in traffic.notes)


def test_times_of_2024_have_a_zone(file):
    times = ("00:00:00.009930+00:00", "00:00:00+00:00", "02:00:01+02:00")
    rows = [f"2024-05-10 {time},{tokens},5\n" for time, tokens in zip(times, (2162, 1, 7), strict=True)]
    traffic = read_azure(file("a.csv", HEADER + "".join(rows)))
    np.testing.assert_allclose(traffic.arrival, [0, 0.00993, 1.0], rtol=0, atol=1e-12)
    assert traffic.input_tokens.tolist() == [1, 2162, 7]


def test_rows_out_of_order_are_sorted_stably_with_a_note(file):
    rows = "".join(f"2024-01-01 00:00:0{s},{i + 1},5\n" for i, s in enumerate([3, 1, 2, 1]))
    traffic = read_azure(file("a.csv", HEADER + rows))
    assert traffic.input_tokens.tolist() == [2, 4, 3, 1]
    assert any("sorted" in note for note in traffic.notes)


@pytest.mark.parametrize(
    ("row", "column", "said"),
    [
        ("2023-11-16 18:15:47,0,4", "ContextTokens", "must be at least 1, not 0"),
        ("2023-11-16 18:15:47,7,-4", "GeneratedTokens", "must be at least 1, not -4"),
        ("2023-11-16 18:15:47,nan,4", "ContextTokens", "must be finite"),
        ("2023-11-16 18:15:47,inf,4", "ContextTokens", "must be finite"),
        ("2023-11-16 18:15:47,7.5,4", "ContextTokens", "whole number"),
        ("2023-11-16 18:15:47,many,4", "ContextTokens", "expected a number, not 'many'"),
        ("2023-11-16 18:15:47,,4", "ContextTokens", "has no value"),
        (",7,4", "TIMESTAMP", "has no timestamp"),
        ("1700000000,7,4", "TIMESTAMP", "not a date with a time"),
        ("2023-11-16 18:17:33.45[0,7,4", "TIMESTAMP", "not a date with a time"),
        ("2023-11-16 18:17:33 18:17:34,7,4", "TIMESTAMP", "not a date with a time"),
        ("yesterday 10:00,7,4", "TIMESTAMP", "not a date with a time"),
    ],
)
def test_a_bad_value_names_file_line_and_column(file, row, column, said):
    path = file("bad.csv", GOOD + row + "\n")
    with pytest.raises(InputError) as caught:
        read_azure(path)
    assert (caught.value.place.file, caught.value.place.line, caught.value.place.column) == (
        str(path),
        4,
        column,
    )
    assert said in str(caught.value)


def test_a_row_cut_short_names_its_line_even_after_blank_lines(file):
    with pytest.raises(InputError, match=r"bad\.csv:5: has 2 fields where the header has 3"):
        read_azure(file("bad.csv", GOOD + "\n2023-11-16 18:15:47,1"))


def test_zero_lengths_can_be_dropped(file):
    traffic = read_azure(file("a.csv", GOOD + "2023-11-16 18:15:47,3,0\n"), drop_zero=True)
    assert len(traffic) == 2
    assert "dropped 1 rows with a length of 0" in traffic.notes


@pytest.mark.parametrize("text", ["", HEADER, "\n"])
def test_an_empty_file_is_an_error(file, text):
    with pytest.raises(InputError, match=r"empty|no rows"):
        read_azure(file("empty.csv", text))


def test_a_missing_column_gives_the_nearest(file):
    with pytest.raises(InputError, match=r"no column 'ContextTokens'.*did you mean ContextToken"):
        read_azure(file("a.csv", "TIMESTAMP,ContextToken,GeneratedTokens\n2023-11-16 18:15:47,1,1\n"))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_large_files_read_alike(file, name, same):
    path = file(name, GOOD + "2023-11-16 18:15:51.1234567,99,7\n")
    columns = ("moments", "TIMESTAMP"), ("whole", "ContextTokens"), ("whole", "GeneratedTokens")
    small, large = Table(path), Table(path, large=0)
    assert large._arrow is not None
    for method, column in columns:
        np.testing.assert_array_equal(getattr(small, method)(column), getattr(large, method)(column))


def test_large_files_fail_alike(file):
    table = Table(file("a.csv", GOOD + "2023-11-16 18:15:51,x,7\n"), large=0)
    with pytest.raises(InputError, match=r"a\.csv:4, column ContextTokens"):
        table.whole("ContextTokens")


@pytest.mark.shared
def test_the_recorded_hour_reads_at_once(recorded):
    path = recorded / "AzureLLMInferenceTrace_conv.csv.gz"
    times = []
    for _ in range(3):
        start = time.perf_counter()
        traffic = read_trace(path, "azure")
        times.append(time.perf_counter() - start)
    assert len(traffic) == 19_366
    assert min(times) < 0.5  # 0.06 s on an idle core
