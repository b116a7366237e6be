"""Pages of the published claims, from the committed notebooks: what each found, and a table of all verdicts."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from experiments.claims.notebooks import FOLDER
from experiments.claims.registry import MODULES, find, notebook
from experiments.handbook.markdown import table

_VERDICT = re.compile(r"<b>Claim\.</b> (.*?)<br>.*?<b>Verdict: (.*?)\.</b>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Told:
    """A verdict as a notebook tells it."""

    claim: str
    verdict: str


def read_notebook(name: str) -> dict[str, Any]:
    """An experiment's notebook as JSON.

    Raises:
        FileNotFoundError: there is none.
    """
    return json.loads((FOLDER / notebook(name)).read_text("utf-8"))


def outputs(read: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What its cells displayed, by kind of content."""
    for cell in read["cells"]:
        for output in cell.get("outputs", ()):
            if "data" in output:
                yield output["data"]


def _text(value: Any) -> str:
    return "".join(value) if isinstance(value, list) else value


def verdicts(read: dict[str, Any]) -> list[Told]:
    """The verdicts that a notebook displays."""
    found = []
    for data in outputs(read):
        for claim, verdict in _VERDICT.findall(_text(data.get("text/html", ""))):
            found.append(Told(unescape(claim), verdict))
    return found


def index() -> Iterator[str]:
    """The page of all verdicts, as lines of Markdown."""
    yield "# Published claims, tried again"
    yield ""
    yield (
        "Every claim is taken apart into checks with our figure beside the published one. It *holds* when all are met, *holds in "
        "part* when some are, and *does not hold* when none is. Nothing here was typed: the figures and verdicts are those of "
        "the notebooks in `experiments/notebooks`, which `bench experiment run NAME` runs without Jupyter. Simulated figures "
        "carry the errors that [Limits](../limits.md) tells."
    )
    yield ""
    rows = []
    for name in MODULES:
        for told in verdicts(read_notebook(name)):
            rows.append((told.claim, f"**{told.verdict}**", f"[{find(name).TITLE}]({name}.md)"))
    yield from table(("claim", "verdict", "experiment"), rows)


def page(name: str, folder: Path) -> Iterator[str]:
    """The page of an experiment, as lines of Markdown; its figures are written into `folder`."""
    read = read_notebook(name)
    number = 0
    for cell in read["cells"]:
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source.replace("`docs/validation.md` tells", "[Validation](../validation.md) tells")
            yield ""
            continue
        if not source.startswith("small ="):
            yield "```python"
            yield source
            yield "```"
            yield ""
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                number += 1
                picture = folder / f"{name}-{number}.png"
                picture.write_bytes(base64.b64decode(_text(data["image/png"])))
                title = _text(data.get("text/plain", "")).removeprefix("<Chart: ").removesuffix(">")
                yield f"![{title}]({picture.name})"
            elif "text/html" in data:
                yield _text(data["text/html"])
            elif text := _text(data.get("text/plain", output.get("text", ""))):
                yield "```text"
                yield text.rstrip()
                yield "```"
            yield ""
