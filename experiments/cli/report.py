"""`bench report`: a run folder, shown and rendered again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli import options


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", show_default=False, help="A run folder.")],
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show a run again and renew its page.

    Useful after an upgrade, or with a folder that somebody sent you. Metrics are computed anew from the recorded
    requests.

    \b
    Examples:
      bench report runs/chat-1
      bench report runs/chat-1 --json | jq .summary.p99_ttft_ms
    """
    from experiments.cli.console import stdout
    from experiments.cli.run import print_json
    from reports.console import print_summary
    from reports.html import render_report
    from reports.metrics import summarize
    from reports.run_folder import REPORT, head_of, read_run
    from workloads.errors import OutputError

    data = read_run(run)
    summary = summarize(data)
    try:
        (run / REPORT).write_text(render_report(data, summary), "utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {run / REPORT}: {error.strerror or error}") from error
    if json:
        print_json({**head_of(data, summary), "folder": str(run)})
    elif not quiet:
        print_summary(data, summary, stdout(), out=run)
