"""What a gate found, for the machines of others: JUnit, GitHub's annotations and step summary, github-action-benchmark, Bencher.

Formats: JUnit XML as CI servers read it (testsuite, testcase, failure); GitHub's workflow commands (`::error …::`);
github-action-benchmark's `customBiggerIsBetter` and `customSmallerIsBetter` (one direction a file); Bencher Metric Format
(benchmark → measure → value, lower_value, upper_value).
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

from reports import strict_json
from reports.baseline import HIGHER, LOWER
from reports.gate import GateResult
from reports.uncertainty import interval_of
from reports.wording import clean
from reports.write_file import replace_text
from workloads.errors import OutputError

_NOT_XML = re.compile("[\ufdd0-\ufdef\ufffe\uffff]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!&$@])")


def junit(result: GateResult) -> str:
    """A test suite with a case for every metric, and one for equality where it is asked for."""
    cases = [(c.metric, row, c.passed) for c, row in zip(result.checks, result.rows(), strict=True)]
    suite = _suite(result.name, len(cases) + (result.equality is not None), failures=len(result.failed()))
    for metric, row, passed in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=suite.get("name"), name=_xml(metric), time="0")
        said = f"baseline {row[1]}, now {row[2]}, change {row[3]}, allowed {row[4]}"
        if passed:
            ElementTree.SubElement(case, "system-out").text = said
        else:
            ElementTree.SubElement(case, "failure", message=_xml(f"{metric}: {said}"), type="regression").text = said
    if result.equality is not None:
        case = ElementTree.SubElement(suite, "testcase", classname=suite.get("name"), name="equality", time="0")
        if not result.equality.passed:
            said = _xml(result.equality.sentence)
            ElementTree.SubElement(case, "failure", message=said, type="inequality").text = said
    return _document(suite)


def junit_refused(name: str, message: str) -> str:
    """A test suite that could not be run: the input was wrong, or the traffic was another."""
    suite = _suite(name, 1, errors=1)
    case = ElementTree.SubElement(suite, "testcase", classname=suite.get("name"), name="comparable", time="0")
    ElementTree.SubElement(case, "error", message=_xml(message), type="refused").text = _xml(message)
    return _document(suite)


def annotations(result: GateResult) -> list[str]:
    """Workflow commands: an error for what failed, a notice when all is well."""
    if result.passed:
        return [_annotation("notice", result.baseline, f"gate: {result.name}", " ".join(result.remarks()))]
    found = [
        _annotation(
            "error", result.baseline, f"{c.metric} is worse",
            f"{result.name}: {c.metric} was {row[1]}, is {row[2]} ({row[3]}; allowed {row[4]}) {c.why}".rstrip(),
        )
        for c, row in zip(result.checks, result.rows(), strict=True)
        if not c.passed
    ]  # fmt: skip
    if result.equality is not None and not result.equality.passed:
        said = f"{result.name}: {result.equality.sentence}"
        found.append(_annotation("error", result.baseline, "not equal to the baseline", said))
    return found


def annotation_refused(baseline: str, message: str) -> str:
    """The workflow command for input that was wrong."""
    return _annotation("error", baseline, "the gate could not be run", message)


def markdown(result: GateResult) -> str:
    """A section for a step summary."""
    lines = [
        f"### {'✅' if result.passed else '❌'} {_md(result.name or 'gate')}", "",
        "| metric | baseline | now | change | allowed | |", "|---|---:|---:|---:|---:|---|",
        *(
            f"| {_md(row[0])} | {row[1]} | {row[2]} | {row[3]} | {row[4]} | "
            f"{'ok' if c.passed else '**worse**'}{f' ({_md(c.why)})' if c.why else ''} |"
            for c, row in zip(result.checks, result.rows(), strict=True)
        ),
        "", " ".join(_md(remark) for remark in result.remarks()), "",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def benchmark_action(result: GateResult) -> dict[str, list[dict[str, Any]]]:
    """Points for github-action-benchmark by direction: "bigger" and "smaller" is better; one with no metrics is left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    for c in result.checks:
        key = {HIGHER: "bigger", LOWER: "smaller"}.get(c.better)
        if key is None or c.after is None:
            continue
        point: dict[str, Any] = {
            "name": f"{clean(result.name, 80)}: {c.metric}",
            "unit": unit(c.metric),
            "value": c.after,
        }
        if c.low is not None and c.high is not None and c.change is not None:
            point["range"] = f"± {(c.high - c.low) / 2 * abs(c.before):.4g}"
        point["extra"] = f"baseline {c.before:.6g}, allowed {c.tolerance:.2%} worse"
        found.setdefault(key, []).append(point)
    return found


def bencher(result: GateResult, runs: list[dict]) -> dict[str, dict[str, dict[str, float]]]:
    """Bencher Metric Format.

    Args:
        runs: the summaries; several give lowest and highest, a single one the interval that it carries, if it does.
    """
    measures: dict[str, dict[str, float]] = {}
    for c in result.checks:
        values = [float(v) for s in runs if isinstance(v := s.get(c.metric), int | float)]
        if not values:
            continue
        measures[c.metric] = {"value": fmean(values)}
        ends = [min(values), max(values)] if len(values) > 1 else interval_of(runs[0], c.metric)
        if ends:
            measures[c.metric] |= {"lower_value": ends[0], "upper_value": ends[1]}
    return {clean(result.name, 80) or "run": measures}


def unit(metric: str) -> str:
    """The unit of a metric of the summary, from its name."""
    if metric.endswith("_ms"):
        return "ms"
    if metric in ("request_throughput", "request_goodput", "arrival_rate"):
        return "requests/s"
    if "throughput" in metric or metric == "max_output_tokens_per_s":
        return "tokens/s"
    if metric == "duration":
        return "s"
    return "share" if metric.endswith(("_rate", "_attainment", "_share", "_mean", "_peak")) else "count"


def write_text(path: Path, text: str, *, append: bool = False) -> None:
    """Write a file whole or not at all, or add to it; folders are made.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if append:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        else:
            replace_text(path, text)
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


def benchmark_action_files(path: Path) -> dict[str, Path]:
    """The file of each direction."""
    return {key: path.with_name(f"{path.stem}.{key}{path.suffix or '.json'}") for key in ("bigger", "smaller")}


def write_benchmark_action(result: GateResult, path: Path) -> list[Path]:
    """Write one file a direction: `name.bigger.json` and `name.smaller.json` for `name.json`; the paths are given back."""
    written = []
    for key, points in benchmark_action(result).items():
        file = benchmark_action_files(path)[key]
        write_text(file, strict_json.dumps(points) + "\n")
        written.append(file)
    return written


def _suite(name: str, tests: int, *, failures: int = 0, errors: int = 0) -> ElementTree.Element:
    return ElementTree.Element(
        "testsuite", name=_xml(f"bench gate: {name}"), tests=str(tests), failures=str(failures), errors=str(errors),
        skipped="0", time="0",
    )  # fmt: skip


def _document(suite: ElementTree.Element) -> str:
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def _annotation(kind: str, file: str, title: str, message: str) -> str:
    def escaped(text: str, more: str = "") -> str:
        text = clean(text).replace("%", "%25")
        return "".join(f"%{ord(c):02X}" if c in more else c for c in text)

    place = f"file={escaped(file, ':,')}," if file else ""
    return f"::{kind} {place}title={escaped(title, ':,')}::{escaped(message)}"


def _xml(text: str) -> str:
    return _NOT_XML.sub(" ", clean(text))


def _md(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", clean(text))
