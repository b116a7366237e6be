"""Two panels: bits per weight against KL divergence, and tokens a second against it; matplotlib, to SVG, PNG or PDF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reports.quality import Quality, QualityRow
from workloads.errors import OutputError

COLOURS = {"int": "#0072B2", "gptq": "#D55E00", "awq": "#E69F00", "squeezellm": "#009E73", "fp8": "#CC79A7",
           "nvfp4": "#56B4E9", "mxfp4": "#56B4E9", "rtn": "#999999", "kv": "#000000"}  # fmt: skip


def figure(quality: Quality) -> Any:
    """A matplotlib figure; whiskers are 95 % intervals. Rows without any divergence have no place on its logarithmic axis."""
    from matplotlib.figure import Figure

    rows = [row for row in quality.rows if row.divergence.value > 0]
    drawn = Figure(figsize=(12, max(4.8, 0.26 * len(rows))), layout="constrained")
    panels = (
        ("bits per weight (linear layers, scales included)", lambda row: row.bits_per_weight),
        ("decode tokens/s, one sequence, on the machine named", lambda row: row.decode_tokens_per_s),
    )
    for number, (title, along) in enumerate(panels):
        axes = drawn.add_subplot(1, 2, number + 1)
        for row in rows:
            _point(axes, along(row), row)
        axes.set_xlabel(title)
        axes.set_ylabel("KL divergence from the reference, nats per token")
        axes.set_yscale("log")
        axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
        if number == 0:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        axes.margins(x=0.1, y=0.08)
        _names(axes, [(along(row), row.divergence.value, row.mode) for row in rows])
    drawn.suptitle(f"{quality.model}: {quality.tokens:,} tokens, windows of {quality.window}", fontsize=10)
    return drawn


def _point(axes: Any, x: float, row: QualityRow) -> None:
    kl = row.divergence
    colour = next((shade for name, shade in COLOURS.items() if row.mode.startswith(name)), "#444444")
    whiskers = [[max(kl.value - kl.low, 0)], [max(kl.high - kl.value, 0)]]
    axes.errorbar([x], [kl.value], yerr=whiskers, fmt="o", color=colour, markersize=5, capsize=2, linewidth=1)


def _names(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Names in a column to the right, in the order of the points and apart from each other, each with a line to its own."""
    if not points:
        return
    ranked = sorted(points, key=lambda point: (point[1], point[0]))
    low, high = (math.log(limit) for limit in axes.get_ylim())
    step = min(0.05, 1 / len(ranked))
    wanted = [(math.log(y) - low) / (high - low) for _, y, _ in ranked]
    for number in range(1, len(wanted)):
        wanted[number] = max(wanted[number], wanted[number - 1] + step)
    over = max(wanted[-1] - 1, 0)
    for number in reversed(range(len(wanted))):  # what was pushed beyond the top goes down again, and pushes others
        above = wanted[number + 1] - step if number + 1 < len(wanted) else 1.0
        wanted[number] = min(wanted[number], above) if over else wanted[number]
    line = {"arrowstyle": "-", "color": "#aaaaaa", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
    for (x, y, name), height in zip(ranked, wanted, strict=True):
        axes.annotate(
            name[-40:].replace("$", r"\$"), (x, y), xytext=(1.03, height), textcoords="axes fraction", fontsize=7.5, va="center",
            annotation_clip=False, arrowprops=line,
        )  # fmt: skip


def draw(quality: Quality, path: Path) -> None:
    """Write the figure; the file's ending says in which format.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        figure(quality).savefig(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
