"""Pages of the published claims, from the committed notebooks: what each found, and a table of all verdicts."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

from experiments.claims.notebooks import read_notebook, text_of, verdicts
from experiments.claims.registry import MODULES, find
from experiments.handbook.markdown import table


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
        source = text_of(cell["source"])
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
                picture.write_bytes(base64.b64decode(text_of(data["image/png"])))
                title = text_of(data.get("text/plain", "")).removeprefix("<Chart: ").removesuffix(">")
                yield f"![{title}]({picture.name})"
            elif "text/html" in data:
                yield text_of(data["text/html"])
            elif text := text_of(data.get("text/plain", output.get("text", ""))):
                yield "```text"
                yield text.rstrip()
                yield "```"
            yield ""
