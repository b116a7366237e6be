"""A scheduler of one's own, written in a few lines, against those that are built in.

Shortest prompt first, and the same with ageing: a prompt that has waited long goes first whatever its length. The
chat trace at two and a half times its rate with room for 32 sequences, so that the queue decides.
"""

from __future__ import annotations

from experiments.claims.base import Chart, Check, Result, Table, Verdict, more
from experiments.claims.simulate import Run, simulate
from sim.engine.step import Step
from sim.schedulers.base import Scheduler

NAME, TITLE = "scheduler-plugin", "A scheduler of your own: shortest prompt first"
WORKLOAD = """
name: a scheduler of one's own
model: meta-llama/Meta-Llama-3-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm, scheduler: {max_num_seqs: 32}}
traffic:
  trace: {format: twinserve, path: chat.jsonl.gz, duration: 10min, rate_scale: 2.5}
load: {mode: open}
slo: {ttft_ms: 1000}
"""


class ShortestPromptFirst(Scheduler):
    """Who decodes gets a token; then waiting prompts are admitted whole, the shortest first."""

    def plan(self, step: Step) -> None:
        """Fill a step."""
        step.decode()
        for seq in sorted(step.waiting, key=lambda seq: (seq.prompt_tokens, seq.tie)):
            if step.preempted or step.budget < 1 or not step.admit(seq, whole=True):
                break


class ShortestPromptFirstAged(Scheduler):
    """The same, but every second of waiting is worth thirty tokens, so that nobody starves."""

    def plan(self, step: Step) -> None:
        """Fill a step."""
        step.decode()
        for seq in sorted(step.waiting, key=lambda seq: (seq.prompt_tokens + 30 * seq.arrival, seq.tie)):
            if step.preempted or step.budget < 1 or not step.admit(seq, whole=True):
                break


SCHEDULERS = {
    "first come, first served": "chunked-prefill",
    "shortest prompt first": f"{__name__}:ShortestPromptFirst",
    "… with ageing": f"{__name__}:ShortestPromptFirstAged",
}


def run(small: bool = False) -> Result:
    """The experiment; `small` takes two minutes of the trace."""
    part = {"traffic.trace.duration": "2min" if small else "10min"}
    runs = {
        name: simulate(WORKLOAD, {**part, "engine.scheduler.name": scheduler}) for name, scheduler in SCHEDULERS.items()
    }
    return Result(NAME, TITLE, (table(runs),), (chart(runs),), (_verdict(runs),), small)


def table(runs: dict[str, Run]) -> Table:
    """Figures of each scheduler."""
    keys = ("median_ttft_ms", "p95_ttft_ms", "p99_ttft_ms", "slo_attainment", "output_throughput")
    return Table(
        "Chat at two and a half times its rate, room for 32 sequences",
        ("scheduler", "p50 TTFT ms", "p95 TTFT ms", "p99 TTFT ms", "TTFT under 1 s", "output tokens/s"),
        tuple((name, *(one[key] for key in keys)) for name, one in runs.items()),
    )


def chart(runs: dict[str, Run]) -> Chart:
    """Time to first token by share of the requests."""
    import numpy as np

    shares = tuple(range(5, 100, 5))
    series = {}
    for name, one in runs.items():
        r = one.data.requests
        waits = (r.first_token - r.sent)[np.isfinite(r.first_token)]
        series[name] = [max(float(np.percentile(waits, share)), 0.01) for share in shares]
    return Chart("Time to first token", "lines", shares, series, "share of the requests (%)", "seconds", log_y=True)


def _verdict(runs: dict[str, Run]) -> Verdict:
    fcfs, short, aged = runs.values()
    median, tail = (short[key] / fcfs[key] for key in ("median_ttft_ms", "p99_ttft_ms"))
    rate = short["output_throughput"] / fcfs["output_throughput"]
    return Verdict(
        "serving short jobs first cuts the typical wait, and those with long ones pay for it",
        "queueing theory (Schrage and Miller 1966); prompts stand for jobs, whose answers nobody knows",
        (
            Check("median TTFT", "at most half", more(median), median <= 0.5),
            Check("p99 TTFT", "longer", more(tail), tail > 1),
            Check("output tokens a second (within 3 %)", "unchanged", more(rate), abs(rate - 1) <= 0.03),
            Check("with ageing the tail is shorter than without", "yes", more(aged["p99_ttft_ms"] / short["p99_ttft_ms"]),
                  aged["p99_ttft_ms"] < short["p99_ttft_ms"]),
        ),
        f"The queue holds {fcfs['saturation']['mean_waiting']:.0f} requests on average when they are served as they "
        f"come. Sorted by prompt, {short['slo_attainment'] * 100:.0f} % see a first token within a second, instead "
        f"of {fcfs['slo_attainment'] * 100:.0f} %; the longest prompts wait up to {short['p99_ttft_ms'] / 1e3:.0f} "
        f"s at p99 instead of {fcfs['p99_ttft_ms'] / 1e3:.0f}. Work done is the same.",
    )  # fmt: skip
