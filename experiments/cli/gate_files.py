"""The files and annotations of `bench gate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from reports.gate import GateResult


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files and annotations that were asked for."""

    junit: Path | None
    github: bool
    summary: Path | None
    benchmark_action: Path | None
    bencher: Path | None

    def paths(self) -> list[tuple[str, Path | None]]:
        """Every file that may be written, with its option."""
        from reports.gate_output import benchmark_action_files

        points = list(benchmark_action_files(self.benchmark_action).values()) if self.benchmark_action else []
        return [
            ("--junit", self.junit), ("--summary", self.summary), ("--benchmark-action", self.benchmark_action),
            ("--bencher", self.bencher), *(("--benchmark-action", file) for file in points),
        ]  # fmt: skip

    def write(self, result: GateResult, summaries: list[dict]) -> list[Path]:
        """Write every file.

        Raises:
            OutputError: one cannot be written.
        """
        from reports import gate_output as to
        from reports import strict_json

        written = []
        if self.junit:
            to.write_text(self.junit, to.junit(result))
            written.append(self.junit)
        if self.summary:
            to.write_text(self.summary, to.markdown(result), append=True)
            written.append(self.summary)
        if self.benchmark_action:
            written += to.write_benchmark_action(result, self.benchmark_action)
        if self.bencher:
            to.write_text(self.bencher, strict_json.dumps(to.bencher(result, summaries)) + "\n")
            written.append(self.bencher)
        return written

    def annotate(self, result: GateResult, json: bool) -> None:
        """Print workflow commands; beside JSON they go to stderr, where GitHub reads them too."""
        if self.github:
            from reports.gate_output import annotations

            for line in annotations(result):
                typer.echo(line, err=json)

    def refused(self, name: str, baseline: str, message: str) -> None:
        """Say in JUnit and as an annotation that nothing could be held against the baseline."""
        from reports import gate_output as to

        if self.junit:
            to.write_text(self.junit, to.junit_refused(name, message))
        if self.github:
            typer.echo(to.annotation_refused(baseline, message), err=True)


def check_paths(runs: list[Path], baseline: Path, wanted: Outputs) -> None:
    """Nothing is written onto what is read or onto something else that is written, and no run counts twice.

    Raises:
        InputError: naming the two that meet.
    """
    from experiments.cli.paths import check_distinct, refuse_twice
    from experiments.cli.subjects import record_files

    refuse_twice(runs)
    files = [("a run", file) for run in runs for file in record_files(run)]
    written = [("--baseline", baseline), *wanted.paths()]
    check_distinct(written)
    for option in written:
        for file in files:
            check_distinct([file, option])
