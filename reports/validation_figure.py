"""Predicted against measured, on logarithmic axes: matplotlib, to SVG or PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workloads.errors import OutputError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
TITLES = {
    "output_tokens_per_s": "output tokens/s", "total_tokens_per_s": "total tokens/s", "ttft_ms": "TTFT, ms",
    "tpot_ms": "TPOT, ms", "itl_ms": "ITL, ms", "e2e_latency_ms": "E2E latency, ms", "request_per_s": "requests/s",
    "input_tokens_per_s": "input tokens/s", "kv_capacity_tokens": "KV capacity, tokens", "makespan_s": "makespan, s",
}  # fmt: skip


def scatter(records: Sequence[dict]) -> Any:
    """A matplotlib figure: one panel a quantity, one colour an engine, cells with a warning hollow.

    The solid line is equality, the dashed ones a factor of 1.25 to either side.
    """
    from matplotlib.figure import Figure

    scored = [r for r in records if r["log_ratio"] is not None]
    quantities = sorted({r["quantity"] for r in scored}, key=lambda q: -sum(r["quantity"] == q for r in scored))
    families = sorted({r["family"] or "other" for r in scored})
    columns = min(max(len(quantities), 1), 3)
    lines = max(-(-len(quantities) // columns), 1)
    figure = Figure(figsize=(4.4 * columns, 4.2 * lines), layout="constrained")
    for place, quantity in enumerate(quantities, start=1):
        axes = figure.add_subplot(lines, columns, place)
        cells = [r for r in scored if r["quantity"] == quantity]
        ends = [v for r in cells for v in (r["measured"], r["predicted"])]
        low, high = min(ends) / 1.3, max(ends) * 1.3
        axes.plot([low, high], [low, high], color="#444444", linewidth=1)
        for factor in (1.25, 1 / 1.25):
            axes.plot([low, high], [low * factor, high * factor], color="#999999", linewidth=0.8, linestyle="--")
        for colour, family in enumerate(families):
            for hollow in (False, True):
                own = [r for r in cells if (r["family"] or "other") == family and bool(r["warnings"]) == hollow]
                if own:
                    shade = COLOURS[colour % len(COLOURS)]
                    axes.scatter(
                        [r["measured"] for r in own], [r["predicted"] for r in own], s=11, linewidths=0.7,
                        facecolors="none" if hollow else shade, edgecolors=shade, alpha=0.7,
                        label=family + (" (warned)" if hollow else ""),
                    )  # fmt: skip
        axes.set(
            xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel="measured", ylabel="predicted",
            title=f"{TITLES.get(quantity, quantity)} ({len(cells):,})",
        )  # fmt: skip
        axes.legend(fontsize=7, frameon=False)
    return figure


def draw(records: Sequence[dict], path: Path | None = None) -> str:
    """The figure as SVG text, written to `path` (`.svg` or `.png`) where one is given.

    Raises:
        OutputError: the file cannot be written.
    """
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "twinserve", "svg.fonttype": "none"}):
        figure = scatter(records)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        if path is not None:
            try:
                if path.suffix == ".png":
                    figure.savefig(path, dpi=150)
                else:
                    path.write_text(text.getvalue(), encoding="utf-8")
            except OSError as error:
                raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    return text.getvalue()
