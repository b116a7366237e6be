"""Reading measured tables: what is wrong is told with file, line and column."""

import pytest

from experiments.validation.load import parse_load
from experiments.validation.table import COLUMNS, read_table
from workloads.errors import InputError


def test_a_row_keeps_what_was_written(table):
    (row,) = read_table(table({"value": "1,234.5", "tp": "2.0", "concurrency_or_rate": "batch=8"}))
    assert (row.value, row.tp, row.load, row.n_gpu, row.metric) == (1234.5, 2, "batch=8", 1, "output_tokens_per_s")
    assert row.line == 2


def test_columns_may_be_absent_where_they_are_not_needed(table):
    (row,) = read_table(table({}, columns=("engine", "model", "gpu", "metric", "value", "load_kind")))
    assert (row.isl, row.tp, row.table_id, row.source) == ("", 0, "made", "made")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([c.replace("load_kind", "loadkind") for c in COLUMNS], ["unknown column 'loadkind'", "load_kind"]),
        ([c.replace("concurrency_or_rate", "concurency_or_rate") for c in COLUMNS], ["concurrency_or_rate"]),
        ([c for c in COLUMNS if c != "gpu"], ["column 'gpu' is missing"]),
    ],
)
def test_a_misspelt_or_missing_column_is_named(tmp_path, columns, words):
    path = tmp_path / "a.csv"
    path.write_text(",".join(columns) + "\n" + ",".join("1" for _ in columns) + "\n", "utf-8")
    with pytest.raises(InputError) as error:
        read_table(path)
    for word in ["a.csv:1", *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("change", "column", "words"),
    [
        ({"value": "fast"}, "value", "expected a number, found 'fast'"),
        ({"value": "-3"}, "value", "above 0"),
        ({"value": "nan"}, "value", "above 0"),
        ({"value": "inf"}, "value", "above 0"),
        ({"value": ""}, "value", "is empty"),
        ({"tp": "two"}, "tp", "whole number"),
        ({"tp": "1.5"}, "tp", "whole number"),
        ({"n_gpu": "0"}, "n_gpu", "from 1 to a million"),
        ({"n_gpu": "1e999"}, "n_gpu", "from 1 to a million"),
        ({"model": ""}, "model", "is empty"),
    ],
)
def test_a_bad_value_is_told_with_file_line_and_column(table, change, column, words):
    path = table({}, change)
    with pytest.raises(InputError) as error:
        read_table(path)
    assert f"{path}:3, column {column}" in str(error.value)
    assert words in str(error.value)


def test_files_without_rows_or_of_other_kinds_are_refused(tmp_path, table):
    with pytest.raises(InputError, match="has no rows"):
        read_table(table())
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match="is empty"):
        read_table(tmp_path / "empty.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80" * 10)
    with pytest.raises(InputError, match="cannot read it"):
        read_table(tmp_path / "binary.csv")
    path = table({})
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + ",more,more\n")
    with pytest.raises(InputError, match="more fields than the header"):
        read_table(path)


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(",".join([*COLUMNS, "value"]) + "\n" + ",".join("1" for _ in [*COLUMNS, ""]) + "\n", "utf-8")
    with pytest.raises(InputError, match=r"a\.csv:1: the column 'value' is there twice"):
        read_table(path)


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("closed", "closed_loop_concurrency"), ("Closed loop", "closed_loop_concurrency"), ("open-loop", "open_loop_rate"),
        ("offline", "offline_all_at_once"), ("STATIC_BATCH", "static_batch"), ("my own", "my_own"),
    ],
)  # fmt: skip
def test_kinds_of_load_have_shorter_names(table, written, kind):
    (row,) = read_table(table({"load_kind": written}))
    assert row.load_kind == kind


@pytest.mark.parametrize("load", ["999999999", "batch=5000000", "offline, 900,000,000 requests at once"])
def test_more_at_once_than_fits_into_memory_is_a_slip(table, load):
    (row,) = read_table(table({"concurrency_or_rate": load}))
    with pytest.raises(InputError, match=r"made\.csv:2, column concurrency_or_rate: expected at most"):
        parse_load(row)
