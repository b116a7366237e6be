"""The documentation names things that exist, and its examples run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from experiments.api import load_workload, run
from workloads.readers import read_trace

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
FOLDERS = ("workloads", "sim", "backends", "reports", "experiments", "tests", "docs")


def names_of_tests(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)}


def test_every_invariant_is_numbered_and_held_by_tests_that_exist() -> None:
    text = (ROOT / "docs" / "invariants.md").read_text("utf-8")
    items = re.split(r"^(?=\d+\. )", text, flags=re.MULTILINE)[1:]
    assert [int(item.split(".")[0]) for item in items] == list(range(1, len(items) + 1))
    for item in items:
        named = re.findall(r"^ +\* `([^`]+)`$", item, re.MULTILINE)
        assert named, f"nothing holds: {item.splitlines()[0]}"
        for place in named:
            file, _, test = place.partition("::")
            assert (ROOT / file).is_file(), place
            assert not test or test in names_of_tests(ROOT / file), place


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"
    for path in re.findall(r"`([\w./-]+/[\w./-]*)`", text):
        if path.split("/")[0] in FOLDERS and not re.search(r"[<>*{]", path):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def python_block(word: str) -> str:
    """The one Python example of CONTRIBUTING.md with this word in it."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (found,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if word in block]
    return found


def test_the_scheduler_shown_to_contributors_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts wait until nothing runs; with the scheduler that it builds on they do not."""
    (tmp_path / "my_schedulers.py").write_text(python_block("ShortPromptsFirst"))
    monkeypatch.chdir(tmp_path)
    waited = {}
    for name in ("chunked-prefill", "my_schedulers:ShortPromptsFirst"):
        rows = "\n".join(
            f'{{"arrival": {at}, "input_tokens": {size}, "output_tokens": 100}}' for at, size in ((0, 500), (0.1, 2000))
        )
        (tmp_path / "two.jsonl").write_text(rows + "\n")
        (tmp_path / "w.yaml").write_text(
            "model: meta-llama/Meta-Llama-3-8B\nbackend: {name: sim, gpu: h100-sxm}\n"
            f'engine: {{scheduler: {{name: "{name}"}}}}\ntraffic: {{trace: {{path: two.jsonl}}}}\n'
        )
        requests = run(load_workload(tmp_path / "w.yaml")).requests
        waited[name] = bool(requests.admitted[1] > 0.9 * requests.finish[0])
    assert waited == {"chunked-prefill": False, "my_schedulers:ShortPromptsFirst": True}


def test_the_reader_shown_to_contributors_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_readers.py").write_text(python_block("read_ours"))
    (tmp_path / "log.csv").write_text("start,prompt,answer\n0,10,3\n500,20,4\n")
    monkeypatch.chdir(tmp_path)
    traffic = read_trace(tmp_path / "log.csv", "my_readers:read_ours", unit=0.001)
    assert traffic.arrival.tolist() == [0.0, 0.5] and traffic.input_tokens.tolist() == [10, 20]


def test_the_quick_start_lists_every_example() -> None:
    listed = re.findall(r"^\| `([\w-]+\.yaml)` \|", (ROOT / "docs" / "quickstart.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "workloads" / "examples").glob("*.yaml"))
