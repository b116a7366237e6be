import pytest

from workloads.errors import InputError
from workloads.readers import read_trace
from workloads.readers.lengths import read_lengths
from workloads.readers.table import Table
from workloads.readers.times import alarming


def test_lengths_without_times_all_arrive_at_once_and_say_so(file):
    traffic = read_lengths(file("l.csv", "num_prefill_tokens,num_decode_tokens,ratio\n10,2,5.0\n20,4,5.0\n"))
    assert traffic.arrival.tolist() == [0, 0]
    assert traffic.input_tokens.tolist() == [10, 20]
    assert any("no arrival times" in note for note in traffic.notes)
    assert alarming(traffic.notes) and not alarming(traffic.notes, timed=False)


def test_lengths_with_times_and_other_names(file):
    path = file("l.csv", "when,a,b\n2000,10,2\n1000,20,4\n")
    traffic = read_lengths(path, time_column="when", input_column="a", output_column="b", time_unit="ms")
    assert traffic.arrival.tolist() == [1, 2]
    assert traffic.input_tokens.tolist() == [20, 10]
    assert any("read in ms" in note for note in traffic.notes)


def test_arrivals_can_be_given(file):
    path = file("l.csv", "input_tokens,output_tokens\n" + "5,6\n" * 200)
    traffic = read_trace(path, arrivals={"process": "constant", "rate": 4})
    assert traffic.duration == pytest.approx(199 / 4)
    assert any("arrivals replaced: constant" in note for note in traffic.notes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no column of input lengths; the file has when, a, b"),
        ({"input_column": "aa"}, "unknown column 'aa'"),
        ({"input_column": "a", "output_column": "b", "time_column": "whem"}, "did you mean when"),
    ],
)
def test_columns_that_are_not_there(file, options, said):
    with pytest.raises(InputError, match=said):
        read_lengths(file("l.csv", "when,a,b\n1,2,3\n"), **options)


@pytest.mark.shared
def test_recorded_lengths(recorded):
    arxiv = read_trace(recorded / "arxiv_summarization_lengths.csv.gz")
    assert (len(arxiv), round(arxiv.input_tokens.mean(), 1)) == (28_257, 2588.1)
    sharegpt = read_trace(recorded / "sharegpt_300_lengths.csv")
    assert (len(sharegpt), round(sharegpt.duration, 1)) == (300, 29.1)


def test_times_by_their_usual_names_and_columns_that_are_not_read(tmp_path):
    for name in ("timestamp", "time", "ts"):
        (tmp_path / "a.csv").write_text(f"{name},prompt_tokens,completion_tokens\n0.5,10,2\n1.5,20,3\n")
        assert read_lengths(tmp_path / "a.csv").arrival.tolist() == [0.5, 1.5]
    (tmp_path / "b.csv").write_text("moment,prompt_tokens,completion_tokens\n0.5,10,2\n1.5,20,3\n")
    (note,) = read_lengths(tmp_path / "b.csv").notes
    assert "not read: moment; time_column names" in note and alarming([note, "sorted by arrival: 3"]) == [note]


@pytest.mark.parametrize(
    "stamps",
    [
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:01.5Z", "2024-05-01T10:00:00.25Z"),
        ("2024-05-01 10:00:00", "2024-05-01 10:00:01.500000000", "2024-05-01 10:00:00.25"),
        ("2024-05-01T12:00:00+02:00", "2024-05-01T10:00:01.5+00:00", "2024-05-01T05:00:00.25-05:00"),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_dates_count_from_the_first(file, stamps, large, monkeypatch):
    if large:
        monkeypatch.setattr("workloads.readers.lengths.Table", lambda path: Table(path, large=1))
    rows = "".join(f"{stamp},{10 + i},2\n" for i, stamp in enumerate(stamps))
    traffic = read_lengths(file("d.csv", "timestamp,prompt_tokens,completion_tokens\n" + rows))
    assert traffic.arrival.tolist() == [0, 0.25, 1.5]
    assert traffic.input_tokens.tolist() == [10, 12, 11]
    assert "dates: the first, 2024-05-01T10:00:00 UTC, is 0" in traffic.notes


@pytest.mark.parametrize(
    ("stamps", "options", "said"),
    [
        (("2024-05-01 10:00:00", "soon"), {}, ":3, column arrival: 'soon' is not a date with a time"),
        (("2024-05-01 10:00:00", ""), {}, "column arrival: has no timestamp"),
        (("2024-05-01", "2024-05-02"), {}, "'2024-05-01' is not a date with a time"),
        (("2024-05-01 10:00:00", "7"), {}, "'7' is not a date with a time"),
        (("2024-05-01 10:00:00", "2024-05-01 10:00:07"), {"time_unit": "ms"}, "time_unit: dates have no unit"),
        (("7", "2024-05-01 10:00:00"), {}, "expected a number, not '2024-05-01 10:00:00'"),
    ],
)
def test_dates_that_are_none(file, stamps, options, said):
    rows = "".join(f"{stamp},10,2\n" for stamp in stamps)
    with pytest.raises(InputError, match=said):
        read_lengths(file("d.csv", "arrival,input_tokens,output_tokens\n" + rows), **options)


@pytest.mark.parametrize(
    ("header", "stamps", "arrivals"),
    [
        ("arrival_ms,isl,osl", (500, 1500), [0.5, 1.5]),
        ("ts_us,input_len,output_len", (500, 1500), [0.0005, 0.0015]),
        ("Arrival Time,Prompt Tokens,Completion Tokens", (0.5, 1.5), [0.5, 1.5]),
        ("request_time,prompt_tokens,completion_tokens", ("2024-05-01T10:00:00", "2024-05-01T10:00:01"), [0, 1]),
        ("arrival_ms,prompt_tokens,completion_tokens", ("2024-05-01T10:00:00", "2024-05-01T10:00:01"), [0, 1]),
    ],
)
@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("large", [False, True])
def test_columns_as_people_call_them(file, header, stamps, arrivals, mark, large, monkeypatch):
    if large:
        monkeypatch.setattr("workloads.readers.lengths.Table", lambda path: Table(path, large=1))
    text = "\n".join([header, *(f"{stamp},10,2" for stamp in stamps)]) + "\n"
    traffic = read_trace(file("c.csv", text.replace(",", mark)))
    assert traffic.arrival.tolist() == pytest.approx(arrivals)
    assert traffic.input_tokens.tolist() == [10, 10]
    assert any("times in ms" in note or "times in us" in note for note in traffic.notes) == (stamps[0] == 500)


@pytest.mark.parametrize(
    ("column", "stamps"),
    [
        ("logged", ("2024-05-01 10:00:00", "2024-05-01 10:00:01")),
        ("logged", ("11/20/2026 09:00 AM", "11/20/2026 09:01 AM")),
        ("event_timestamp", ("7", "9.5")),
    ],
)
def test_times_under_a_name_that_is_not_known_are_not_left_out(file, column, stamps):
    rows = "".join(f"{stamp},10,2\n" for stamp in stamps)
    path = file("c.csv", f"{column},input_tokens,output_tokens\n{rows}")
    with pytest.raises(InputError, match=f"column '{column}' seems to hold times.*time_column: {column} reads them"):
        read_trace(path)
    assert read_trace(path, time_column="none").arrival.tolist() == [0, 0]


def test_what_is_called_a_time_but_does_not_rise_is_no_arrival(file):
    path = file("c.csv", "latency_time,input_tokens,output_tokens\n7,10,2\n5,10,2\n")
    assert "not read: latency_time" in read_lengths(path).notes[0]


def test_unknown_columns_are_named_with_the_options_that_read_them(file):
    with pytest.raises(
        InputError, match=r"none of the columns when, a, b is a known name.*input_column, output_column"
    ):
        read_trace(file("c.csv", "when;a;b\n1;2;3\n"))
