"""The committed notebooks: one for each experiment, run in full, small in size; and they run again."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from experiments.claims.notebooks import (
    FOLDER,
    PARAMETERS,
    changes,
    execute,
    outputs,
    read_notebook,
    text_of,
    tidy,
    verdicts,
)
from experiments.claims.registry import MODULES, find, notebook
from workloads.errors import InputError

MOST_BYTES = 400_000


def test_there_is_one_for_each_experiment_and_no_other() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.ipynb")) == sorted(map(notebook, MODULES))


@pytest.mark.parametrize("name", MODULES)
def test_it_was_run_whole_and_ends_in_a_computed_verdict(name: str) -> None:
    path = FOLDER / notebook(name)
    read = read_notebook(name)
    text = path.read_text("utf-8")
    assert path.stat().st_size < MOST_BYTES
    code = [cell for cell in read["cells"] if cell["cell_type"] == "code"]
    (parameters,) = [cell for cell in code if PARAMETERS in cell["metadata"].get("tags", ())]
    assert "".join(parameters["source"]).startswith("small = False"), "a full run"
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "in order, from a fresh kernel"
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert kinds <= {"stream", "display_data", "execute_result"}, "no errors"
    assert not any(output.get("name") == "stderr" for cell in code for output in cell["outputs"])
    assert "".join(code[-1]["source"]) == "display(*result.verdicts)"
    assert len(code[-1]["outputs"]) == len(verdicts(read)) >= 1
    assert any("image/png" in data for data in outputs(read))
    assert not re.search(r"/(work|tmp|home|root|Users)/", text), "nothing of the machine it ran on"
    assert f"bench experiment run {name}" in text


def test_claims_in_the_prose_carry_no_figures_of_ours() -> None:
    """Markdown cells hold the claim and the method; what was found stands in outputs alone."""
    for name in MODULES:
        prose = "".join("".join(c["source"]) for c in read_notebook(name)["cells"] if c["cell_type"] == "markdown")
        assert not re.search(r"\b(we find|we found|our figure is|the verdict is)\b", prose, re.IGNORECASE), name


@pytest.mark.parametrize("name", MODULES)
def test_it_tells_of_the_method_what_its_module_tells(name: str) -> None:
    method = (inspect.getdoc(find(name)) or "").partition("\n\n")[2]
    told = text_of(read_notebook(name)["cells"][0]["source"])
    assert method and " ".join(method.split()) in " ".join(told.split()), "copy the docstring into its first cell"


def test_tidied_notebooks_hold_nothing_of_the_run() -> None:
    nbformat = pytest.importorskip("nbformat")
    read = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("1", metadata={"execution": {"a": "1"}, "tags": ["x"]})]
    )
    said = [("stdout", "a\n"), ("stdout", "b\n"), ("stderr", "c\n"), ("stdout", "d\n")]
    read.cells[0].outputs = [nbformat.v4.new_output("stream", name=name, text=text) for name, text in said]
    read.metadata = {"kernelspec": {"display_name": "mine", "name": "other"}, "authors": "me"}
    tidy(read)
    assert "execution" not in read.cells[0].metadata and read.cells[0].metadata["tags"] == ["x"]
    assert [(o.name, o.text) for o in read.cells[0].outputs] == [("stdout", "a\nb\n"), *said[2:]]
    assert read.metadata["kernelspec"]["name"] == "python3" and "authors" not in read.metadata


def test_verdicts_that_changed_are_told() -> None:
    read = read_notebook("sizing")
    assert changes("sizing", read) == []
    text = (
        json.dumps(read)
        .replace("Verdict: does not hold", "Verdict: holds", 1)
        .replace("an analysis of vLLM and TensorRT-LLM<", "somebody else<")
    )
    (told,) = changes("sizing", json.loads(text))
    assert told.endswith("does not hold, now holds") and told.startswith("sizing: a 70B model")
    assert len(changes("sizing", {"cells": []})) == len(verdicts(read))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_it_runs_again(name: str) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    path = FOLDER / notebook(name)
    before = path.read_bytes()
    read = execute(path, small=True)
    assert path.read_bytes() == before
    found = verdicts(json.loads(json.dumps(read)))
    assert [told.claim for told in found] == [told.claim for told in verdicts(read_notebook(name))]
    assert "small = False" in next(c.source for c in read.cells if PARAMETERS in c.metadata.get("tags", ()))


def test_what_cannot_be_run_is_told(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    with pytest.raises(InputError, match="cannot read"):
        execute(tmp_path / "none.ipynb", small=True)
    (tmp_path / "bad.ipynb").write_text("{")
    with pytest.raises(InputError, match="cannot read"):
        execute(tmp_path / "bad.ipynb", small=True)
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "plain.ipynb")
    with pytest.raises(InputError, match="no cell tagged parameters"):
        execute(tmp_path / "plain.ipynb", small=True)
