"""The figures of the documentation, made by code: `python -m experiments.handbook.figures` renews `docs/figures`."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.claims.base import Chart
from experiments.claims.figures import COLOURS, svg
from experiments.claims.simulate import Run, resolved, simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "figures"
FEW = """
name: a dozen requests
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm, scheduler: {max_num_seqs: 4}}
traffic:
  max_tokens: exact
  synthetic:
    requests: 12
    arrivals: {process: at-once}
    input_tokens: {distribution: uniform, low: 500, high: 3000}
    output_tokens: {distribution: exponential, mean: 120, low: 20, high: 500}
load: {mode: open}
"""
CHAT = """
name: chat
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm}
traffic: {trace: {format: twinserve, path: chat.jsonl.gz, limit: 600, rate_scale: 3.5}}
load: {mode: open}
"""


def batching() -> bytes:
    """The same requests under static and continuous batching: who runs when."""
    from matplotlib.figure import Figure

    runs = {
        "static batching: the batch ends with its longest answer": simulate(
            FEW,
            {
                "engine.preset": "static",
                "engine.scheduler": {"max_num_seqs": 4, "streaming": True, "batch_wait": "100ms"},
            },
        ),
        "continuous batching: a place that is free is taken at once": simulate(FEW),
    }
    figure = Figure(figsize=(7.2, 4.6))
    end = max(float(one.data.requests.finish.max()) for one in runs.values())
    for place, (title, one) in enumerate(runs.items(), 1):
        axes = figure.add_subplot(2, 1, place)
        _gantt(axes, one)
        axes.set_xlim(0, end * 1.02)
        axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("seconds")
    figure.legend(*axes.get_legend_handles_labels(), loc="lower right", ncols=3, frameon=False, fontsize=8.5)
    figure.tight_layout()
    return _saved(figure)


def _gantt(axes: Axes, one: Run) -> None:
    r = one.data.requests
    for row in range(len(r)):
        spans = (
            (r.queued[row], r.admitted[row], "#dddddd", "waits"),
            (r.admitted[row], r.first_token[row], COLOURS[1], "prefill"),
            (r.first_token[row], r.finish[row], COLOURS[0], "decode"),
        )
        for start, stop, colour, label in spans:
            axes.barh(row, stop - start, left=start, height=0.75, color=colour, label=label if row == 0 else None)
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.set_ylabel("requests")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def anatomy() -> bytes:
    """One request of a busy engine: front end, queue, prefill, tokens; and what TTFT, ITL and E2E are."""
    import numpy as np
    from matplotlib.figure import Figure

    one = simulate(CHAT)
    r = one.data.requests
    busy = np.flatnonzero((r.output_tokens > 25) & (r.output_tokens < 40))
    row = int(busy[np.argmax(np.minimum(r.admitted - r.queued, r.first_token - r.admitted)[busy])])
    zero = r.sent[row]
    marks = [float(each - zero) * 1e3 for each in (r.sent[row], r.queued[row], r.admitted[row], r.first_token[row])]
    tokens = one.data.tokens
    times = []
    for place in np.flatnonzero(tokens.request == r.request[row]):
        first = int(tokens.first_step[place])
        times += [float(tokens.start[place]), *tokens.step_ends[first : first + int(tokens.steps[place])].tolist()]
    arrived = [(each - zero) * 1e3 for each in times]
    figure = Figure(figsize=(7.2, 2.3))
    axes = figure.add_subplot()
    names = ("front end", "queue", "prefill")
    for name, start, stop, colour in zip(names, marks, marks[1:], (COLOURS[5], "#dddddd", COLOURS[1]), strict=False):
        axes.barh(0, stop - start, left=start, height=0.5, color=colour, label=name)
    axes.vlines(arrived, -0.25, 0.25, color=COLOURS[0], linewidth=1.3, label="a token")
    spans = [(0.45, 0.0, marks[3], "TTFT"), (0.75, 0.0, arrived[-1], "end-to-end latency")]
    if len(arrived) > 2:
        gap = int(np.argmax(np.diff(arrived[1:]))) + 1
        spans.append((-0.36, arrived[gap], arrived[gap + 1], "ITL"))
    for y, start, stop, name in spans:
        axes.annotate(
            "", (stop, y), (start, y), arrowprops={"arrowstyle": "<->", "color": "#555555", "shrinkA": 0, "shrinkB": 0}
        )
        up = y > 0
        axes.text(
            (start + stop) / 2,
            y + (0.03 if up else -0.05),
            name,
            ha="center",
            va="bottom" if up else "top",
            fontsize=8.5,
        )
    axes.set_ylim(-0.68, 1.05)
    axes.set_yticks([])
    axes.set_xlabel("milliseconds since it was sent")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8.5)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    return _saved(figure)


def step_cost() -> bytes:
    """A decode step by batch: what reads weights is shared by all, attention is not."""
    from sim.cost.base import StepShape
    from sim.cost.coverage import class_of

    cost = resolved(CHAT).cost
    batches = (1, 4, 16, 64, 128, 256)
    kinds = {
        "linear": "weights (linear layers)",
        "attention_decode": "attention",
        "elementwise": "element-wise",
        "host": "host",
    }
    series: dict[str, list[float]] = {label: [] for label in kinds.values()}
    for batch in batches:
        sums = dict.fromkeys(kinds, 0.0)
        for each in cost.explain(StepShape(decode_rows=batch, decode_context=batch * 1024, sampled=batch)):
            kind = class_of(each.name)
            sums[kind if kind in sums else "elementwise"] += each.seconds * 1e3
        for kind, label in kinds.items():
            series[label].append(sums[kind])
    return svg(
        Chart(
            "A decode step of Llama-3-8B on one H100, 1,024 tokens of context each", "stacked", batches, series,
            "sequences in the batch", "ms a step",
        )
    )  # fmt: skip


def _of(name: str, place: int, small: bool = True) -> bytes:
    """A chart of an experiment."""
    from experiments.claims.registry import find

    return svg(find(name).run(small).charts[place])


FIGURES: dict[str, Callable[[], bytes]] = {
    "batching": batching,
    "anatomy": anatomy,
    "step-cost": step_cost,
    "kv-waste": lambda: _of("kv-waste", 0),
    "chunked-prefill": lambda: _of("chunked-prefill", 0),
    "prefix-caching": lambda: _of("prefix-caching", 0),
    "operating-point": lambda: _of("operating-point", 0, small=False),
    "quantization": lambda: _of("quantization", 1),
}


def _saved(figure: Figure) -> bytes:
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "twinserve", "svg.fonttype": "none", "font.size": 9.5}):
        figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    return out.getvalue()


def main() -> None:
    """Renew them all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in FIGURES.items():
        path = FOLDER / f"{name}.svg"
        path.write_bytes(make())
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
