"""`read_trace`: formats, windows, and times that cannot be true."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workloads.errors import InputError
from workloads.readers import FORMATS, READS, guess_format, options_of, read_trace
from workloads.readers.jsonl import KNOWN
from workloads.readers.lengths import INPUTS, OUTPUTS, TIMES
from workloads.readers.times import alarming
from workloads.traffic import Traffic


def mooncake(*stamps) -> str:
    return "".join(
        json.dumps({"timestamp": t, "input_length": 5 + i, "output_length": 3}) + "\n" for i, t in enumerate(stamps)
    )


def ours(*stamps) -> str:
    return "".join(
        json.dumps({"arrival": t, "input_tokens": 5 + i, "output_tokens": 3}) + "\n" for i, t in enumerate(stamps)
    )


def burstgpt(*stamps) -> str:
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    return header + "".join(f"{t},GPT-4,{5 + i},3,{8 + i},API log\n" for i, t in enumerate(stamps))


WRITERS = {"mooncake": mooncake, "twinserve": ours, "burstgpt": burstgpt}


@pytest.mark.parametrize("format", WRITERS)
def test_an_epoch_starts_at_once_and_rows_are_sorted_stably(file, format):
    """A first time stamp of 1700000000000, and rows 3, 1, 2."""
    base = 1_700_000_000_000
    traffic = read_trace(file("t.csv", WRITERS[format](base + 3000, base + 1000, base + 2000, base + 1000)), format)
    assert traffic.arrival.tolist() == [0, 0, 1, 2]
    assert traffic.input_tokens.tolist() == [6, 8, 7, 5]
    assert any("shifted so that the first, 1700000001000" in note for note in traffic.notes)
    assert any("sorted by arrival" in note for note in traffic.notes)
    told = any("read in ms instead" in note for note in traffic.notes)
    assert told == (format != "mooncake")  # the others are in seconds, which this epoch cannot be


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_epochs_of_every_unit(file, unit):
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    stamps = [1_700_000_000 * scale + k * scale // 2 for k in range(4)]
    traffic = read_trace(file("t.jsonl", ours(*stamps)), time_unit="auto" if unit != "s" else "s")
    np.testing.assert_allclose(traffic.arrival * 2 // 1, [0, 1, 2, 3] if unit != "s" else [0, 0, 2, 2], atol=1e-6)


def test_a_row_without_a_time_is_named(file):
    text = ours(0, 1) + '{"input_tokens": 1, "output_tokens": 1}\n'
    with pytest.raises(InputError, match=r"t\.jsonl:3, column arrival: is missing"):
        read_trace(file("t.jsonl", text))


def test_milliseconds_taken_for_seconds_are_refused(file):
    """One request in 20 s, written in ms in a format of seconds, reads as one in five hours."""
    path = file("b.csv", burstgpt(*range(0, 4_000_000, 20_000)))
    with pytest.raises(InputError, match=r"milliseconds read as seconds: 200 arrivals over .*time_unit: ms"):
        read_trace(path)
    assert read_trace(path, time_unit="ms").duration == pytest.approx(3980)
    kept = read_trace(path, accept_implausible=True)
    assert any("look like milliseconds" in note for note in kept.notes)


@pytest.mark.parametrize("gap", [100, 2000])
def test_milliseconds_in_files_of_ones_own_are_told_or_refused(file, gap):
    """Ten a second, and one in two seconds, written in ms: the first could be true, the second cannot."""
    rng = np.random.default_rng(1)
    path = file("t.jsonl", ours(*np.cumsum(rng.integers(gap // 2, 2 * gap, 60)).tolist()))
    if gap == 2000:
        with pytest.raises(InputError, match=r"look like milliseconds read as seconds.*time_unit: ms"):
            read_trace(path)
    else:
        (note,) = alarming(read_trace(path).notes)
        assert "whole numbers" in note or "unusual rate" in note
    assert not alarming(read_trace(path, time_unit="ms").notes)
    assert alarming(read_trace(path, accept_implausible=True).notes)


def test_whole_seconds_close_together_or_evenly_spaced_raise_no_alarm(file):
    assert not alarming(read_trace(file("a.jsonl", ours(*range(0, 600, 20)))).notes)
    assert not alarming(read_trace(file("b.jsonl", ours(*(i * i // 40 for i in range(40))))).notes)
    assert alarming(read_trace(file("c.jsonl", ours(*(10 * i * i // 20 for i in range(40))))).notes)


def test_a_file_of_ours_may_have_any_high_rate(file):
    traffic = read_trace(file("t.jsonl", ours(*np.linspace(0, 1e-4, 30).tolist())))
    assert len(traffic) == 30 and alarming(traffic.notes)


def test_seconds_taken_for_milliseconds_are_refused(file):
    path = file("m.jsonl", mooncake(*np.linspace(0, 10, 300).tolist()))
    with pytest.raises(InputError, match=r"seconds read as smaller units"):
        read_trace(path)
    assert read_trace(path, time_unit="s").duration == pytest.approx(10)


def test_odd_rates_and_lengths_are_noted(file):
    slow = read_trace(file("a.csv", burstgpt(*range(0, 30_000, 1000))), accept_implausible=True)
    assert any("unusual rate" in note or "look like" in note for note in slow.notes)
    text = '{"arrival": 0, "input_tokens": 900000, "output_tokens": 5}\n'
    assert any("are they characters" in note for note in read_trace(file("l.jsonl", text)).notes)


def test_the_loader_says_duration_rate_and_lengths(file):
    (note, *_) = read_trace(file("t.jsonl", ours(0, 1, 2, 4))).notes
    assert "4 requests over 4.0 s, 0.75 a second; on average 6.5 in and 3.0 out" in note


def test_window_sample_limit_and_rate(file):
    path = file("t.jsonl.gz", ours(*range(100)))
    traffic = read_trace(path, "twinserve", start="20s", duration=50, rate_scale=2.0)
    assert (len(traffic), traffic.arrival[0], traffic.arrival[-1]) == (50, 0, 24.5)
    assert len(read_trace(path, limit=7)) == 7
    assert len(read_trace(path, sample=0.25)) == 25
    assert len(read_trace(path, sample=10, seed=1)) == 10
    with pytest.raises(InputError, match=r"no request arrives between 200 s.*ends at 99"):
        read_trace(path, start=200)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "azur"}, "unknown trace format 'azur'.*did you mean azure"),
        ({"tim_unit": "ms"}, "tim_unit: unknown option 'tim_unit'.*did you mean time_unit"),
        ({"time_unit": "min"}, "unknown time_unit 'min'"),
        ({"start": "10 parsecs"}, "start: '10 parsecs' is not a span of time"),
        ({"rate_scale": 0}, "rate_scale must be positive"),
        ({"sample": 1.5}, "sample 1.5"),
        ({"limit": 0}, "limit must be at least 1"),
    ],
)
def test_wrong_arguments(file, options, said):
    with pytest.raises(InputError, match=said):
        read_trace(file("t.jsonl", ours(0, 1)), **{"format": "twinserve"} | options)


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("a", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "azure"),
        ("b", burstgpt(1), "burstgpt"),
        ("m", '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}\n', "mooncake"),
        ("t.gz", ours(1), "twinserve"),
        ("l", "input_tokens,output_tokens\n1,2\n", "csv"),
    ],
)
def test_formats_are_told_from_their_content(file, name, text, format):
    assert guess_format(file(name, text)) == format


def test_a_format_that_cannot_be_told(file):
    with pytest.raises(InputError, match=r"cannot tell the format.*azure, burstgpt"):
        guess_format(file("x.txt", "hello\n"))


def test_files_that_are_not_there(file, tmp_path):
    file("conv.csv", "x")
    with pytest.raises(InputError, match=r"con\.csv: no such file \(did you mean conv.csv"):
        read_trace(tmp_path / "con.csv")


def test_a_folder_in_place_of_a_file(file, tmp_path):
    """Told what the format that was named reads, and what of that lies in the folder."""
    file("a.csv", "x")
    file("b.jsonl.gz", "x")
    for format, says in {
        "azure": r"format azure reads a \.csv file, plain or \.gz \(name one of its files: a\.csv\)",
        "twinserve": r"format twinserve reads a \.jsonl file, plain or \.gz \(name one of its files: b\.jsonl\.gz\)",
        "sharegpt": r"reads a \.json file, plain or \.gz \(name a file: there is none of that kind",
        "servegen": r"expected chunk-\*-trace\.csv",
        None: r"neither a run .* nor ServeGen's statistics.*name one of its files: a\.csv, b\.jsonl\.gz",
    }.items():
        with pytest.raises(InputError, match=says) as caught:
            read_trace(tmp_path, format)
        assert ("ServeGen" in str(caught.value)) == (format is None)


def test_a_reader_of_ones_own_may_read_a_folder(tmp_path, monkeypatch):
    (tmp_path / "folder_reader.py").write_text(
        "from workloads.traffic import Traffic\n\n\ndef read(path):\n    assert path.is_dir()\n"
        "    return Traffic([0.0], [10], [3])\n"
    )
    monkeypatch.chdir(tmp_path)
    assert read_trace(tmp_path, "folder_reader:read").input_tokens.tolist() == [10]


def test_damaged_files(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(ours(*range(1000)).encode())[:-200])
    with pytest.raises(InputError, match=r"damaged gzip"):
        read_trace(path, "twinserve")
    path.write_bytes(b"a,b\n1,\xff\n")
    with pytest.raises(InputError, match=r":2: not UTF-8"):
        read_trace(path, "csv")


def test_a_byte_order_mark_is_no_matter(file):
    assert len(read_trace(file("t.csv", "﻿input_tokens,output_tokens\r\n1,2\r\n"))) == 1


def test_a_reader_of_the_users_own(file, tmp_path, monkeypatch):
    (tmp_path / "my_reader.py").write_text(
        "import numpy as np\nfrom workloads.traffic import Traffic\n"
        "def read(path, *, seed=0, factor=1):\n"
        "    count = int(path.read_text())\n"
        "    return Traffic(np.arange(count) * float(factor), np.full(count, 5 + seed), np.ones(count))\n"
        "def bad(path):\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    path = file("x.txt", "4")
    traffic = read_trace(path, "my_reader:read", factor=3, seed=2)
    assert isinstance(traffic, Traffic)
    assert (traffic.arrival.tolist(), traffic.input_tokens.tolist()) == ([0, 3, 6, 9], [7] * 4)
    with pytest.raises(InputError, match=r"unknown option 'facto'.*did you mean factor"):
        read_trace(path, "my_reader:read", facto=3)
    with pytest.raises(InputError, match=r"gave int, expected Traffic"):
        read_trace(path, "my_reader:bad")
    with pytest.raises(InputError, match=r"cannot load trace format"):
        read_trace(path, "my_reader:nothing")


def test_every_format_says_its_options():
    for name, reader in FORMATS.items():
        assert reader.__doc__, name
        assert isinstance(options_of(reader), list)


def test_reading_needs_no_heavy_package(file):
    path = file("t.jsonl", ours(0, 1))
    code = (
        "import sys; from workloads.readers import read_trace; from workloads.synthetic import synthesize;"
        "import workloads.inspect, workloads.write, workloads.examples;"
        f"read_trace({str(path)!r});"
        "heavy = 'pandas', 'pyarrow', 'matplotlib', 'torch', 'scipy', 'ruamel';"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_formats_read_is_told_by_the_command_and_the_docs():
    assert READS.keys() == FORMATS.keys()
    told = (Path(__file__).parents[3] / "docs" / "howto" / "trace.md").read_text("utf-8")
    for name in (*INPUTS, *OUTPUTS, *TIMES):
        assert f"`{name}`" in told and name in READS["csv"]
    for name in KNOWN:
        assert name in told and name in READS["twinserve"]
