"""What errors of the cost models do to ratios of two runs: which classes they share, and how far that reaches."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from simulate import workload

from experiments import runner
from experiments.intervals import add_spread, drawn_errors
from experiments.load_response import mean_shape
from experiments.propagation import Mix
from reports.compare import compare
from reports.compare.comparison import settings_apart
from reports.compare.constants import apart
from reports.metrics import summarize
from reports.subject import Subject

SHORT = {"traffic.synthetic.requests": 100}
TRIALS = 24


def subject(changes: dict, name: str = "run") -> tuple[object, Subject]:
    resolved = runner.resolve(workload(SHORT | changes))
    data = runner.run(resolved)
    summary = summarize(data)
    add_spread(resolved, data, summary)
    return resolved, Subject.of(data, summary=summary).named(name)


@pytest.fixture(scope="module")
def base() -> tuple[object, Subject]:
    return subject({}, "base")


def test_squares_of_the_parts_sum_to_one(base: tuple) -> None:
    spread = base[1].data.info["cost_spread"]
    for parts in spread["shares"].values():
        assert sum(part**2 for part in parts.values()) == pytest.approx(1, abs=1e-4)
        assert parts.keys() <= spread["priced"].keys()
    assert spread["shares"]["ttft"]["front end"] > spread["shares"]["e2el"]["front end"] > 0
    assert "front end" not in spread["shares"]["steps"]


@pytest.mark.parametrize(
    ("changes", "independent", "common"),
    [
        ({"engine.scheduler.max_num_batched_tokens": 512}, set(), {"linear", "attention_decode", "host", "deployment"}),
        ({"engine.scheduler.max_num_seqs": 700}, set(), {"linear", "attention_decode", "host"}),
        ({"engine.quantization": "fp8"}, {"linear"}, {"attention_decode", "host", "front end", "deployment"}),
        ({"engine.kv.dtype": "fp8"}, {"attention_decode"}, {"linear", "host"}),
        ({"backend.gpu": "a100-sxm"}, {"linear", "attention_decode", "host"}, set()),
        ({"backend.gpu": "h200-sxm"}, {"linear", "attention_decode"}, {"deployment"}),
        ({"engine.preset": "sglang"}, {"linear", "attention_decode", "host", "deployment"}, {"elementwise"}),
        ({"model": "meta-llama/Llama-2-7b-hf"}, {"linear", "attention_decode"}, {"host", "elementwise"}),
    ],
)
def test_what_is_priced_alike_errs_alike(base: tuple, changes: dict, independent: set, common: set) -> None:
    found = compare([base[1], subject(changes, "other")[1]], force=True).errors[0]
    assert found.known
    assert independent <= set(found.apart)
    assert common <= set(found.common)
    assert not (independent & set(found.common) or common & set(found.apart))


def test_other_constants_widen_ranges_and_common_ones_cancel(base: tuple) -> None:
    def width(other: Subject) -> float:
        rows = {row.key: row.ratios[0] for row in compare([base[1], other]).rows}
        return log(rows["mean_tpot_ms"].high / rows["mean_tpot_ms"].low)

    alike, gpu = (
        subject({"engine.scheduler.max_num_seqs": 12}, "alike")[1],
        subject({"backend.gpu": "a100-sxm"}, "gpu")[1],
    )
    assert 2 * width(alike) < width(gpu)  # what is common to both still fills one of them up more
    assert width(gpu) > 0.5


@pytest.mark.parametrize("changes", [{"engine.quantization": "fp8"}, {"backend.gpu": "a100-sxm"}])
def test_factors_are_those_of_runs_with_drawn_errors(base: tuple, changes: dict) -> None:
    """Both runs again and again with errors drawn, once for what they share, apart for what they do not."""
    sides = [base, subject(changes, "other")]
    found = apart(sides[0][1], sides[1][1], settings_apart([s for _, s in sides]), 0.95)
    mixes = [Mix(resolved.cost, mean_shape(s.data)[0]._replace(chunks=())) for resolved, s in sides]
    draws = [drawn_errors(mix.deviations, TRIALS, seed=i) for i, mix in enumerate(mixes)]
    draws[1] |= {kind: draws[0][kind] for kind in found.common}
    ratios: dict[str, list[float]] = {"mean_tpot_ms": [], "mean_ttft_ms": []}
    for trial in range(TRIALS):
        summaries = []
        for (resolved, _), mix, drawn in zip(sides, mixes, draws, strict=True):
            factors = {kind: values[trial] for kind, values in drawn.items()}
            cost = mix.erring(lambda shares, f=factors: Mix.weighted(shares, f))
            summaries.append(summarize(runner.run(replace(resolved, cost=cost)), with_intervals=False))
        for key, values in ratios.items():
            values.append(log(summaries[1][key] / summaries[0][key]))
    for key, values in ratios.items():
        said = log(found.factors[key][1] / found.factors[key][0]) / 2 / 1.96
        widest = 1.5 if "tpot" in key else 2.0  # of the first token a part is a queue, which is not of first order
        assert 0.75 < said / float(np.std(values)) < widest, key


def test_a_measured_run_leaves_the_whole_error_of_the_simulated_one(base: tuple) -> None:
    info = {key: value for key, value in base[1].data.info.items() if key != "cost_spread"}
    measured = replace(base[1], tool="vllm", data=replace(base[1].data, info=info))
    found = compare([measured, base[1]])
    low, high = base[1].data.info["cost_spread"]["figures"]["mean_tpot_ms"]
    factors = found.errors[0].factors["mean_tpot_ms"]
    assert log(factors[1]) == pytest.approx(log(high) * 1.96 / 1.2816, rel=1e-3)
    assert log(factors[0]) == pytest.approx(log(low) * 1.96 / 1.2816, rel=1e-3)
    assert found.errors[0].apart == found.errors[0].common == ()


def test_runs_that_do_not_say_what_their_error_is_made_of(base: tuple) -> None:
    """As those of an older version: all of it is shared where nothing that decides prices was set otherwise."""

    def older(one: Subject) -> Subject:
        spread = {k: v for k, v in one.data.info["cost_spread"].items() if k not in ("priced", "shares")}
        return replace(one, data=replace(one.data, info=one.data.info | {"cost_spread": spread}))

    scheduler, gpu = ({"engine.scheduler.max_num_seqs": 12}, {"backend.gpu": "a100-sxm"})
    one, near, far = older(base[1]), older(subject(scheduler, "near")[1]), older(subject(gpu, "far")[1])
    near_ends, far_ends = (compare([one, s]).errors[0].factors["mean_tpot_ms"] for s in (near, far))
    assert near_ends[1] / near_ends[0] < 1.3
    assert far_ends[1] / far_ends[0] > 1.8


NO_SPREADS = (
    None, [], {}, {"figures": 3}, {"figures": {"mean_tpot_ms": [2]}}, {"figures": {"mean_tpot_ms": [1.1, 0.9]}},
    {"figures": {"mean_tpot_ms": ["a", None]}}, {"figures": {}, "priced": 3, "shares": {"steps": 4, "ttft": {"linear": "x"}}},
)  # fmt: skip


@pytest.mark.parametrize("spread", NO_SPREADS)
def test_a_spread_that_makes_no_sense_counts_for_nothing(base: tuple, spread: object) -> None:
    odd = replace(base[1], data=replace(base[1].data, info=base[1].data.info | {"cost_spread": spread}))
    found = compare([odd, odd.named("again")])
    assert found.errors[0].factors.get("mean_tpot_ms", (1.0, 1.0)) == (1.0, 1.0)


def test_other_hosts_are_told(base: tuple) -> None:
    told = " ".join(compare([base[1], subject({"engine.preset": "sglang"}, "sglang")[1]]).notes)
    assert "engine.host differs (vllm, sglang)" in told
    same = compare([base[1], subject({"engine.preset": "sglang", "engine.host": "vllm"}, "sglang")[1]])
    assert "engine.host differs" not in " ".join(same.notes)
