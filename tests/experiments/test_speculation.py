"""Speculative decoding from a workload file to the figures of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from simulate import figures, run, workload

from experiments import runner
from reports.metrics import summarize
from reports.token_series import token_counts
from workloads.errors import InputError

DRAFTS = {"engine.speculation": {"method": "eagle", "num_speculative_tokens": 3, "acceptance": 0.7}}
FEW, MANY = ({"load": {"mode": "closed", "concurrency": n}} for n in (1, 256))
SHORT = {
    "traffic.synthetic": {"requests": 60, "input_tokens": 200, "output_tokens": 100,
                          "arrivals": {"process": "poisson", "rate": 20}},
}  # fmt: skip


def test_the_figures_of_drafts_have_the_names_of_vllm() -> None:
    found = figures({**SHORT, **DRAFTS})
    expected = 1 + 0.7 + 0.7**2 + 0.7**3
    assert found["spec_decode_acceptance_length"] == pytest.approx(expected, rel=0.03)
    assert found["spec_decode_per_position_acceptance_rates"] == pytest.approx([0.7, 0.49, 0.343], abs=0.04)
    assert found["spec_decode_acceptance_rate"] == pytest.approx((expected - 1) / 3 * 100, rel=0.05)
    assert found["spec_decode_draft_tokens"] <= 3 * found["spec_decode_num_drafts"]
    assert "spec_decode_acceptance_length" not in figures(SHORT)


def test_all_tokens_come_and_each_at_the_end_of_a_step() -> None:
    data = run({**SHORT, **DRAFTS})
    assert data.requests.output_tokens.tolist() == [100] * 60
    assert len(data.tokens.request) == 6000
    _, counted = token_counts(data.tokens)
    assert counted[-1] == 6000 and int(data.timeline.output_tokens.sum()) == 6000
    per_request = np.array([np.sort(data.tokens.start[data.tokens.request == row]) for row in range(60)])
    assert (per_request[:, 0] == data.requests.first_token).all() and (per_request[:, -1] == data.requests.finish).all()


def test_a_step_that_gives_three_tokens_spreads_its_time_over_them() -> None:
    """Gaps between tokens sum up to the time from first to last, so their mean is the time per token."""
    found = figures({**SHORT, **FEW, **DRAFTS})
    assert found["mean_itl_ms"] == pytest.approx(found["mean_tpot_ms"], rel=1e-6)


def test_it_helps_at_low_load_and_less_and_less_as_load_rises() -> None:
    size = {"traffic.synthetic.requests": 400}
    gain = {}
    for name, load in (("few", FEW), ("many", MANY)):
        plain, drafted = (figures({**size, **load, **extra}) for extra in ({}, DRAFTS))
        gain[name] = plain["mean_tpot_ms"] / drafted["mean_tpot_ms"]
    assert gain["few"] > 1.7 > 1.1 * gain["many"]


def test_several_replicas_speculate_too() -> None:
    data = run({**SHORT, **DRAFTS, "cluster": {"replicas": 2}})
    found = summarize(data, with_intervals=False)
    assert found["completed"] == 60 and found["spec_decode_acceptance_length"] == pytest.approx(2.53, rel=0.05)
    alone = figures({**SHORT, **DRAFTS})
    assert found["spec_decode_accepted_tokens"] == pytest.approx(alone["spec_decode_accepted_tokens"], rel=0.01), (
        "what holds does not depend on the replica"
    )


def test_the_seed_decides_which_drafts_hold() -> None:
    finish = {seed: run({**SHORT, **DRAFTS, "seed": seed}).requests.finish.tobytes() for seed in (0, 1)}
    assert finish[0] != finish[1] and finish[0] == run({**SHORT, **DRAFTS}).requests.finish.tobytes()


def test_a_front_end_that_hands_out_slowly_counts_every_token() -> None:
    """A front end that streams so many tokens a second is no quicker because they come in threes."""
    load = {"traffic.synthetic.requests": 300, "load": {"mode": "closed", "concurrency": 200}}
    for extra in ({}, DRAFTS):
        resolved = runner.resolve(workload({**load, **extra}))
        resolved.cost.front_end = resolved.cost.front_end.scaled(8.0)
        data = runner.run(resolved)
        most = 1 / resolved.cost.front_end.output_work
        assert summarize(data, with_intervals=False)["output_throughput"] < 1.02 * most


def test_the_assumption_is_said_and_kept_in_the_run() -> None:
    data = run({**SHORT, **DRAFTS})
    assert any("assumed, not predicted: 70%" in warning for warning in data.warnings)
    assert data.config["engine"]["speculation"]["acceptance"] == {"value": 0.7, "source": "user"}
    assert json.loads(json.dumps(data.info))["speculation"]["num_drafts"] > 0
    assert any(each["what"] == "draft_lm_head" for each in data.provenance)
    assert "speculation" not in run(SHORT).config["engine"]


def test_who_cannot_speculate_says_so() -> None:
    from experiments import serving

    resolved = runner.resolve(workload(DRAFTS))
    with pytest.raises(InputError, match="one token of each sequence a step"):
        serving._simulated(resolved)


def test_a_draft_model_of_another_vocabulary_is_told_at_its_key() -> None:
    changed = {"engine.speculation": {"method": "draft-model", "num_speculative_tokens": 3, "acceptance": 0.7,
                                      "draft_model": "gpt2"}}  # fmt: skip
    with pytest.raises(InputError, match="50,257 tokens") as caught:
        runner.resolve(workload(changed))
    assert caught.value.place.key == "engine.speculation.draft_model" and caught.value.place.line == 1
