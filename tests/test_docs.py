"""The documentation names things that exist, and its examples run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

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
