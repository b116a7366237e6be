"""Times that cannot be meant, and paths that lead nowhere: told at once, without a warning of numpy's."""

from __future__ import annotations

import gzip
import math
import warnings
from pathlib import Path

import pytest

from workloads.errors import InputError
from workloads.readers import read_trace
from workloads.readers.files import existing
from workloads.readers.registry import guess_format
from workloads.readers.table import Table
from workloads.synthetic import SyntheticSpec, synthesize
from workloads.traffic import Traffic


@pytest.mark.parametrize("rate", [1e-8, 1e-300, 1e-320])
@pytest.mark.parametrize("process", ["constant", "poisson", "gamma", "on-off", "diurnal"])
def test_rates_that_never_end(process: str, rate: float) -> None:
    arrivals = {"process": process, "rate": rate} | ({"on": 1, "off": 1} if process == "on-off" else {})
    spec = SyntheticSpec.from_dict({"requests": 40, "arrivals": arrivals, "input_tokens": 4, "output_tokens": 4})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match="last more than"):
            synthesize(spec, 0)


def test_times_that_cannot_be_meant(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    line = '{"arrival": %s, "input_tokens": 4, "output_tokens": 3}'
    path.write_text("\n".join(line % text for text in ("0", "1", "1e308")))
    with pytest.raises(InputError, match=r"request 2: arrival is more than 1e\+09 s"):
        read_trace(path)
    with pytest.raises(InputError, match="request 1: think is more than"):
        Traffic([0.0, 0.0], [1, 1], [1, 1], parent=[-1, 0], think=[0, 1e10]).validate()


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone.csv").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"cannot be read: .*symbolic links"):
        existing(tmp_path / "loop")
    with pytest.raises(InputError, match="is a link to nowhere, which does not exist"):
        existing(tmp_path / "gone.csv")


@pytest.mark.parametrize("rate", [1e-300, 1e-30])
def test_an_on_off_process_that_hardly_ever_sends_ends(rate: float) -> None:
    arrivals = {"process": "on-off", "rate": rate, "on": 1.0, "off": 1.0}
    spec = {
        "duration": "10min",
        "arrivals": arrivals,
        "input_tokens": {"distribution": "fixed", "value": 8},
        "output_tokens": {"distribution": "fixed", "value": 8},
    }
    with pytest.raises(InputError):
        synthesize(spec, 0).validate()


@pytest.mark.parametrize("large", [1, 1 << 20])  # through pyarrow, and row by row
def test_a_column_that_is_there_twice_is_refused(tmp_path: Path, large: int) -> None:
    """The last one used to be taken, without a word."""
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n2023-11-16 18:17:00,100,10,7\n", "utf-8")
    with pytest.raises(InputError, match=r"t\.csv:1: the column 'ContextTokens' is there twice \(columns 2 and 4\)"):
        Table(path, large=large)


def test_columns_without_a_name_may_be_many(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival;input_tokens;output_tokens;;\n0;5;6;;\n1;5;6;;\n", "utf-8")
    assert read_trace(path).input_tokens.tolist() == [5, 5]


def test_gzip_that_was_cut_short_is_told_before_its_format_is_known(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"arrival,input_tokens,output_tokens\n" + b"1,2,3\n" * 50)[:40])
    with pytest.raises(InputError, match="damaged gzip"):
        guess_format(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requests": 10**20}, "requests: must be at most"), ({"requests": 2 * 10**9}, "requests: must be at most"),
        ({"arrivals": {"process": "poisson", "rate": 1e308}}, "rate: must be at most"),
        ({"arrivals": {"process": "diurnal", "rate": 1e12, "period": "1h"}}, "rate: must be at most"),
        ({"input_tokens": 1e30}, "at most"),
    ],
)  # fmt: skip
def test_more_than_anybody_can_mean(change: dict, words: str) -> None:
    section = {"requests": 4, "arrivals": {"process": "poisson", "rate": 5}, "input_tokens": 4, "output_tokens": 4}
    with pytest.raises(InputError, match=words):
        synthesize(SyntheticSpec.from_dict(section | change), 0)


def test_all_at_once_is_no_rate_too_high_and_a_wide_law_no_fault() -> None:
    wide = {"distribution": "lognormal", "mean": 50, "std": 1e300, "high": 90}
    arrivals = {"process": "poisson", "rate": math.inf}
    section = {"requests": 8, "arrivals": arrivals, "input_tokens": wide, "output_tokens": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = synthesize(SyntheticSpec.from_dict(section), 0)
    assert made.arrival.tolist() == [0.0] * 8 and made.input_tokens.min() >= 1 and made.input_tokens.max() <= 90
