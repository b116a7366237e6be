"""What the page on servers says can be written is what may be written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from experiments.workload_file import load_workload

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "http.md"


def settings() -> list[str]:
    """The last cells of the table for people who come from other clients, as far as they are keys of a workload."""
    table = PAGE.read_text("utf-8").split("## If you come from another client")[1].split("\n## ")[0]
    cells = re.findall(r"\| ([^|]*) \|$", table, re.MULTILINE)
    return [text for cell in cells for text in re.findall(r"`([\w.]+: [^`]+)`", cell)]


@pytest.mark.parametrize("text", settings())
def test_keys_for_people_who_come_from_other_clients(text: str, tmp_path: Path) -> None:
    ((key, value),) = YAML(typ="safe").load(text).items()
    synthetic: dict = {"requests": 2, "input_tokens": 8, "output_tokens": 2}
    whole: dict = {
        "model": "meta-llama/Meta-Llama-3-8B", "traffic": {"synthetic": synthetic},
        "backend": {"name": "http", "base_url": "http://localhost:1"},
    }  # fmt: skip
    if key == "traffic.trace":
        (tmp_path / "F").write_text('{"arrival": 0.0, "input_tokens": 8, "output_tokens": 2}\n', "utf-8")
        whole["traffic"] = {"trace": value}
    elif key.startswith("backend."):
        whole["backend"][key.removeprefix("backend.")] = value
    elif key in ("load", "slo", "sampling"):
        whole[key] = value
    else:
        synthetic[key] = value
    file = tmp_path / "w.yaml"
    file.write_text(json.dumps(whole), "utf-8")
    load_workload(file)


def test_there_are_such_keys() -> None:
    assert len(settings()) > 10
