"""The documentation site: complete, no link broken, its examples true."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from ruamel.yaml import YAML

from experiments.claims.registry import MODULES
from experiments.handbook import commands, figures, schema
from experiments.handbook.attributes import attributes_of
from experiments.handbook.site import DOCS, MARKER, ROOT, build, stay_inside, with_fidelity
from experiments.schema import EngineSection, Workload

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HAND_WRITTEN = [DOCS / f"{name}.md" for name in ("index", "quickstart", "limits")]
HAND_WRITTEN += sorted([*DOCS.glob("concepts/*.md"), *DOCS.glob("howto/*.md")])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build(out)
    return out


def pages(site: Path) -> list[Path]:
    return sorted((site / "docs").rglob("*.md"))


def test_no_link_is_broken(site: Path) -> None:
    wrong = []
    for page in pages(site):
        text = page.read_text("utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))):
            if "://" in target:
                continue
            path = target.partition("#")[0]  # anchors are looked at by the strict build
            place = (page.parent / path).resolve() if path else page.resolve()
            if not place.is_file() or not place.is_relative_to((site / "docs").resolve()):
                wrong.append(f"{page.relative_to(site)}: {target}")
    assert not wrong, "\n".join(wrong)


def test_every_page_is_in_the_navigation_and_the_other_way_round(site: Path) -> None:
    def targets(entries: list) -> list[str]:
        found = []
        for entry in entries:
            for target in entry.values():
                found += targets(target) if isinstance(target, list) else [target]
        return found

    listed = targets(YAML(typ="safe").load((site / "mkdocs.yml").read_text("utf-8"))["nav"])
    there = [str(page.relative_to(site / "docs")) for page in pages(site)]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(there)
    planned = targets(YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    missing = set(there) - set(listed)
    assert not missing, f"add to nav in mkdocs.yml: {sorted(missing)}"
    assert planned and {f"claims/{name}.md" for name in MODULES} <= set(listed)


def test_every_command_is_in_the_reference(site: Path) -> None:
    text = (site / "docs" / "reference" / "cli.md").read_text("utf-8")
    found = commands.commands()
    assert len(found) > 15
    for name, command in found.items():
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--"):
                    assert option in section, f"{name}: {option}"
        assert "Usage: " + name in section


def test_every_workload_key_is_in_the_reference(site: Path) -> None:
    text = (site / "docs" / "reference" / "workload.md").read_text("utf-8")

    def walk(section: type, path: tuple[str, ...]) -> None:
        heading = ".".join(path) or "The top"
        for name, info in section.model_fields.items():
            inner = schema.section_of(info.annotation)
            if inner is not None and not (inner is EngineSection and path):  # that of a pool is told once
                walk(inner, (*path, name))
            else:
                assert f"| `{name}` |" in text.split(f"\n## {heading}\n")[1].split("\n## ")[0], (heading, name)

    walk(Workload, ())
    told = {key.name: key for key in schema.entries()}
    assert told["engine.kv.block_size"].value == "whole number ≥ 1"
    assert told["engine.kv.slab"].value == "`max-length`, `power-of-two`, `exact`"
    assert told["load.mode"].default == "`open`"
    silent = [key.name for key in told.values() if not key.about]
    assert not silent, f"say in the section's docstring (Attributes:) what they do: {silent}"
    for name in ("requests", "arrivals", "prefix", "sessions", "lengths"):
        assert f"`traffic.synthetic.{name}`" in text


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import twinserve
    from sim.models import list_models

    api = (site / "docs" / "reference" / "api.md").read_text("utf-8")
    assert all(f"\n## {name}\n" in api for name in twinserve.__all__)
    assert "### LLM.generate" in api and "load: str = 'auto'" in api
    names = (site / "docs" / "reference" / "names.md").read_text("utf-8")
    assert all(model.name in names for model in list_models())


def test_claims_pages_show_what_notebooks_show(site: Path) -> None:
    index = (site / "docs" / "claims" / "index.md").read_text("utf-8")
    assert index.count("**holds**") and index.count("**does not hold**") and index.count("**holds in part**")
    for name in MODULES:
        page = (site / "docs" / "claims" / f"{name}.md").read_text("utf-8")
        assert "<b>Verdict: " in page and f"{name}-1.png" in page
        assert (site / "docs" / "claims" / f"{name}-1.png").read_bytes().startswith(b"\x89PNG")


def test_limits_show_the_errors_of_the_validation_page(site: Path) -> None:
    text = (site / "docs" / "limits.md").read_text("utf-8")
    assert MARKER not in text
    assert ("| group |" in text) == ("| group |" in (DOCS / "validation.md").read_text("utf-8"))
    assert MARKER in (DOCS / "limits.md").read_text("utf-8"), "numbers stand in docs/validation.md alone"
    table = "| group | cells | median | p95 | |\n|---|---|---|---|---|\n| **all** | 9 | 5 % | 9 % | |\n| **Big** | | | | |\n"
    table += "| TPOT | 3 | 4 % | 8 % | seen |\n| … of it | 1 | 1 % | 1 % | seen |\n\nMore | words | here\n"
    made = with_fidelity(f"before {MARKER} after", table)
    assert made.splitlines()[0] == "before | group | cells | median |  |"
    assert "| Big: TPOT | 3 | 4 % | seen |" in made and "of it" not in made and "words" not in made
    assert "See [Validation]" in with_fidelity(MARKER, "no table")


def test_figures_are_there_and_used() -> None:
    there = {path.stem for path in (DOCS / "figures").glob("*")}
    used = {name for page in HAND_WRITTEN for name in re.findall(r"figures/([\w-]+)\.svg", page.read_text("utf-8"))}
    assert there == set(figures.FIGURES) == used
    assert all((DOCS / "figures" / f"{name}.svg").stat().st_size < 150_000 for name in there)


@pytest.mark.parametrize("name", ["batching", "anatomy", "step-cost"])
def test_figures_are_made_by_code(name: str) -> None:
    assert figures.FIGURES[name]().startswith(b"<?xml")


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: str(page.relative_to(DOCS)))
def test_examples_are_what_they_say(page: Path) -> None:
    """Python parses, YAML reads, and every `bench` command with its options exists."""
    text = page.read_text("utf-8")
    known = commands.commands()
    for language, body in FENCE.findall(text):
        if language == "python":
            ast.parse(body)
        elif language == "yaml":
            assert YAML(typ="safe").load(body)
    for line in re.findall(r"(?:^|`)(bench [a-z][^`\n#]*)", text, re.MULTILINE):
        name = max((each for each in known if f"{line} ".startswith(f"{each} ")), key=len, default=None)
        if name is None:
            assert any(each.startswith(line.strip()) for each in known), line
            continue
        options = {option for parameter in known[name].params for option in parameter.opts}
        for option in re.findall(r"(?<= )--?[a-z][\w-]*", line):
            assert option in options or option == "--help", f"{line}: {option}"


def code(page: str, word: str) -> str:
    text = (DOCS / page).read_text("utf-8")
    (found,) = [body for language, body in FENCE.findall(text) if language == "python" and word in body]
    return found


def test_the_reader_of_ones_own_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workloads.readers import read_trace

    (tmp_path / "my_readers.py").write_text(code("howto/trace.md", "read_ours"))
    (tmp_path / "log.csv").write_text("start,prompt,answer\n0,10,3\n500,20,4\n")
    monkeypatch.chdir(tmp_path)
    assert read_trace(tmp_path / "log.csv", "my_readers:read_ours", unit=0.001).arrival.tolist() == [0.0, 0.5]


def test_the_scheduler_of_ones_own_runs(tmp_path: Path) -> None:
    from experiments.api import load_workload, run

    (tmp_path / "my_sched.py").write_text(code("howto/scheduler.md", "ShortestPromptFirst"))
    (tmp_path / "w.yaml").write_text(
        "model: meta-llama/Meta-Llama-3-8B\nbackend: {name: sim, gpu: h100-sxm}\n"
        'engine: {scheduler: {name: "my_sched:ShortestPromptFirst"}}\n'
        "traffic: {synthetic: {requests: 20, input_tokens: 100, output_tokens: 10}}\n"
    )
    assert (run(load_workload(tmp_path / "w.yaml")).requests.status == "finished").all()


LOOKING = """\
from twinserve import Scheduler


class Looking(Scheduler):
    missing, found = set(), set()

    def plan(self, step):
        for seq in [*step.waiting, *step.state.running]:
            for path in PATHS:
                here = {"step": step, "seq": seq}[path[0]]
                for name in path[1:]:
                    if not hasattr(here, name):
                        self.missing.add(".".join(path))
                        break
                    here = getattr(here, name)
                else:
                    self.found.add(path)
        step.decode()
        for seq in list(step.waiting):
            if step.budget < 1 or not step.admit(seq, whole=True):
                break
"""


def test_what_the_page_on_schedulers_names_is_there(tmp_path: Path) -> None:
    """Its other examples run; and each attribute of its tables is one of the sequence, the step or the state."""
    from importlib import import_module

    from experiments.api import load_workload, run

    text = (DOCS / "howto/scheduler.md").read_text("utf-8")
    named = sorted({tuple(path.split(".")) for path in re.findall(r"`((?:step|seq)(?:\.\w+)+)", text)})
    assert len(named) > 30
    module = f"looking_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(f"PATHS = {named!r}\n{LOOKING}")
    (tmp_path / "my_sched2.py").write_text(code("howto/scheduler.md", "Cautious"))
    (tmp_path / "my_kv.py").write_text(code("howto/scheduler.md", "Doubling"))
    (tmp_path / "w.yaml").write_text(
        "model: meta-llama/Meta-Llama-3-8B\nbackend: {name: sim, gpu: h100-sxm}\n"
        "engine: {scheduler: {max_num_seqs: 20}}\n"
        "traffic: {synthetic: {requests: 60, arrivals: {process: at-once}, input_tokens: 100, output_tokens: 10}}\n"
    )
    run(load_workload(tmp_path / "w.yaml", [f"engine.scheduler.name={module}:Looking"]))
    looking = import_module(module).Looking
    assert looking.missing == set() and looking.found == set(named)
    cautious = run(load_workload(tmp_path / "w.yaml", ["engine.scheduler.name=my_sched2:Cautious"]))
    assert (cautious.requests.status == "finished").all() and 15 < cautious.timeline.running.max() < 18.001
    own = run(load_workload(tmp_path / "w.yaml", ["engine.kv.allocator=my_kv:Doubling"]))
    assert (own.requests.status == "finished").all() and own.timeline.kv_internal.max() > 0


def test_the_claim_of_ones_own_and_the_first_run_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict = {}
    exec(code("howto/claims.md", "my-claim"), scope)
    assert scope["run"]().verdicts[0].checks[0].ours.endswith("x")
    text = (DOCS / "quickstart.md").read_text("utf-8")
    (workload,) = [body for language, body in FENCE.findall(text) if language == "yaml"]
    (tmp_path / "workload.yaml").write_text(workload.replace("duration: 10min", "limit: 50"))
    monkeypatch.chdir(tmp_path)
    exec(code("quickstart.md", "load_workload"), {})


def test_links_out_of_the_site_become_names(tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    page = pages / "howto" / "x.md"
    text = "[a](../y.md) [README](../../README.md) [w](https://x.y) ![f](../f.svg) "
    text += "[the example](../../workloads/examples/chat-h100.yaml#L3) [keys](../../experiments/schema/) "
    text += "[it](../../experiments/notebooks/01-batching.ipynb)"
    kept = stay_inside(text, page, pages)
    assert "[a](../y.md)" in kept and "[w](https://x.y)" in kept and "![f](../f.svg)" in kept
    assert "[keys](../reference/workload.md)" in kept and "[it](../claims/batching.md)" in kept
    assert "README (`README.md`)" in kept and "the example (`workloads/examples/chat-h100.yaml`)" in kept


def test_docstrings_are_read_as_they_are_written() -> None:
    """\
    Not this: colon.

    Attributes:
        one: first, with
            a second line: and a colon.
        two, three: both.   four: beside. five: as well.
        `code`: not a name.

    Returns:
        six: not an attribute.
    """
    text = test_docstrings_are_read_as_they_are_written.__doc__ or ""
    found = attributes_of(inspect.cleandoc(text))
    assert found["one"] == "first, with a second line: and a colon."
    assert (found["two"], found["three"]) == ("both.", "both.")
    assert (found["four"] == "beside." and found["five"] == "as well. `code`: not a name.") or found[
        "five"
    ] == "as well."
    assert "six" not in found and "colon" not in found


def test_it_builds_strictly(site: Path) -> None:
    pytest.importorskip("zensical")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(site / "mkdocs.yml")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    html = (site / "site" / "index.html").read_text("utf-8")
    assert "fonts.googleapis" not in html, "nothing is fetched from elsewhere"
    assert (site / "site" / "claims" / "batching.html").is_file()
    for page in (site / "site").rglob("*.html"):  # read from the disk: a link to a folder would list it
        if page.name == "404.html":  # what a server shows for any address: its links are from the root
            continue
        for link in re.findall(r'(?:href|src)="([^"#]+)', page.read_text("utf-8")):
            if not urlsplit(link).scheme and not link.startswith("//"):
                assert (page.parent / unquote(urlsplit(link).path)).is_file(), f"{page.name}: {link}"
