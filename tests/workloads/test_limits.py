"""Times that cannot be meant, and paths that lead nowhere: told at once, without a warning of numpy's."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from workloads.errors import InputError
from workloads.readers import read_trace
from workloads.readers.files import existing
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
