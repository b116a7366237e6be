"""The site's sources, put together: the pages of `docs/`, and the reference and the claims' pages beside them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.claims.registry import MODULES, notebook
from experiments.handbook import api, claims, commands, names, schema

ROOT = Path(__file__).resolve().parents[2]
DOCS, CONFIG = ROOT / "docs", ROOT / "mkdocs.yml"
REFERENCE = {"cli": commands, "workload": schema, "api": api, "names": names}
SOURCES = {
    "experiments/schema": "reference/workload.md",
    "experiments/cli": "reference/cli.md",
    "twinserve.py": "reference/api.md",
    "sim/data": "reference/names.md",
    "experiments/notebooks": "claims/index.md",
}
MARKER = "<!-- fidelity -->"
COLUMNS = ("cells", "median", "bias", "within 1.25×", "inside")  # of the table of errors, in the page of limits
_LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)\s]+)\)")


def build(out: Path) -> None:
    """Write `out/docs` and `out/mkdocs.yml`, in place of what is there."""
    pages = out / "docs"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(DOCS, pages)
    (pages / "reference").mkdir()
    (pages / "claims").mkdir()
    for name, module in REFERENCE.items():
        _write(pages / "reference" / f"{name}.md", module.page())
    _write(pages / "claims" / "index.md", claims.index())
    for name in MODULES:
        _write(pages / "claims" / f"{name}.md", claims.page(name, pages / "claims"))
    limits = pages / "limits.md"
    limits.write_text(with_fidelity(limits.read_text("utf-8"), (pages / "validation.md").read_text("utf-8")), "utf-8")
    for page in pages.rglob("*.md"):
        page.write_text(stay_inside(page.read_text("utf-8"), page, pages), "utf-8")
    (out / "mkdocs.yml").write_text(_config(pages), "utf-8")


def with_fidelity(limits: str, validation: str) -> str:
    """The page of limits with the main rows of the table of errors in place of its marker."""
    lines = [line.strip() for line in validation.splitlines()]
    head = next((i for i, line in enumerate(lines) if line.startswith("| group |")), None)
    if head is None:
        return limits.replace(MARKER, "See [Validation](validation.md).")
    titles = _cells(lines[head])
    wanted = [place for place, title in enumerate(titles) if place == 0 or title in COLUMNS or place == len(titles) - 1]
    rows, heading = [], ""
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        cells = _cells(line)
        if not any(cells[1:]):
            heading = cells[0].strip("*") + ": "
        elif not cells[0].startswith("…"):
            cells[0] = cells[0] if cells[0].startswith("**") else heading + cells[0]
            rows.append("| " + " | ".join(cells[place] for place in wanted) + " |")
    top = ["| " + " | ".join(titles[place] for place in wanted) + " |", "|" + "---|" * len(wanted)]
    return limits.replace(MARKER, "\n".join([*top, *rows]))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("\n".join(lines) + "\n", "utf-8")


def stay_inside(text: str, page: Path, pages: Path) -> str:
    """Links that lead out of the site, into the repository: to the page made of what they lead to, where there is one;
    others become the files' names."""
    made = generated()

    def kept(match: re.Match[str]) -> str:
        mark, words, link = match.groups()
        target = link.partition("#")[0]
        if not target or "://" in target or target.startswith("mailto:"):
            return match.group(0)
        if (page.parent / target).resolve().is_relative_to(pages.resolve()):
            return match.group(0)
        path = ((DOCS / page.relative_to(pages)).parent / target).resolve()
        where = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else target
        if where in made:
            return f"{mark}[{words}]({os.path.relpath(made[where], page.relative_to(pages).parent)})"
        return f"`{where}`" if words.strip("`") in (where, path.name) else f"{words} (`{where}`)"

    return _LINK.sub(kept, text)


def generated() -> dict[str, str]:
    """Pages that are made of files of the repository: path in the repository → page of the site."""
    return SOURCES | {f"experiments/notebooks/{notebook(name)}": f"claims/{name}.md" for name in MODULES}


def navigation(config: dict[str, Any], pages: Path) -> list[Any]:
    """The navigation without pages that are not there."""

    def kept(entries: list[Any]) -> list[Any]:
        found = []
        for entry in entries:
            ((title, target),) = entry.items()
            if isinstance(target, list):
                inner = kept(target)
                if inner:
                    found.append({title: inner})
            elif (pages / target).is_file():
                found.append({title: target})
        return found

    return kept(config["nav"])


def _config(pages: Path) -> str:
    """The configuration with the navigation of what is there, and the claims' pages in it."""
    import io

    from ruamel.yaml import YAML

    from experiments.claims.registry import find

    yaml = YAML(typ="safe", pure=True)
    config = yaml.load(CONFIG.read_text("utf-8"))
    for entry in config["nav"]:
        if "Claims" in entry:
            entry["Claims"] = [*entry["Claims"], *({find(name).TITLE: f"claims/{name}.md"} for name in MODULES)]
    config["nav"] = navigation(config, pages)
    config |= {"docs_dir": "docs", "site_dir": "site"}
    out = io.StringIO()
    yaml.default_flow_style = False
    yaml.dump(config, out)
    return out.getvalue()
