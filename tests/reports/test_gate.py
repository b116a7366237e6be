from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from synthetic_runs import simulated_run

from reports.baseline import read_baseline
from reports.fingerprint import traffic_fingerprint
from reports.gate import gate, update_baseline
from reports.metrics import summarize
from reports.run_folder import read_head, write_run
from reports.significance import change_interval, student_cdf, student_quantile
from workloads.errors import InputError, OutputError


@pytest.fixture(scope="module")
def run():
    return simulated_run(200, 12)


def head(**figures) -> dict:
    """The contents of a run.json with these figures."""
    return {
        "summary": figures,
        "fingerprint": "abc",
        "info": {"name": "ci", "complete": True},
        "config": {"engine": {"preset": {"value": "vllm", "source": "user"}}},
    }


def edit(path, change):
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def test_the_same_run_passes(run, tmp_path):
    file = tmp_path / "ci" / "baseline.json"
    made = update_baseline(run, file, "first")
    assert "output_throughput" in made.metrics
    assert "p99_ttft_ms" in made.metrics
    assert "request_goodput" in made.metrics
    result = gate(run, file)
    assert result.passed
    assert result.exit_code == 0
    assert "Gate passed" in result.text()
    assert result.text().isascii()


def test_targets_are_the_same_by_whatever_name(tmp_path):
    def verdict(before, after):
        def of(names):
            return head(output_throughput=1.0) | {"config": names}

        update_baseline(of(before), tmp_path / "t.json", "first")
        try:
            return gate(of(after), tmp_path / "t.json").passed
        except InputError as error:
            return str(error)

    assert verdict({"model": "/ci/a/tiny"}, {"model": "/home/b/tiny/"}) is True
    assert "model /ci/a/tiny -> /ci/a/small" in verdict({"model": "/ci/a/tiny"}, {"model": "/ci/a/small"})
    assert verdict({"backend": {"gpu": "a/mine.toml"}}, {"backend": {"gpu": "b/mine.toml"}}) is True
    assert "GPU a100-sxm -> mine.toml" in verdict({"backend": {"gpu": "a100-sxm"}}, {"backend": {"gpu": "mine.toml"}})
    assert verdict({"model": "x"}, {}) is True, "who does not say is not another"


def test_a_run_folder_and_a_run_give_the_same_verdict(run, tmp_path):
    out = write_run(run, tmp_path / "r")
    update_baseline(read_head(out), tmp_path / "b.json", "first")
    assert gate(run, tmp_path / "b.json").checks == gate(read_head(out), tmp_path / "b.json").checks


@pytest.mark.parametrize(
    ("after", "passes"), [(100.0, True), (98.1, True), (97.9, False), (150.0, True), (float("nan"), False)]
)
def test_direction_and_tolerance_of_throughput(tmp_path, after, passes):
    file = tmp_path / "b.json"
    update_baseline(head(output_throughput=100.0), file, "first")
    after = None if np.isnan(after) else after
    result = gate(head(output_throughput=after), file)
    assert result.passed is passes
    assert result.exit_code == (0 if passes else 1)


@pytest.mark.parametrize(("after", "passes"), [(104.9, True), (105.1, False), (10.0, True)])
def test_direction_and_tolerance_of_latency(tmp_path, after, passes):
    file = tmp_path / "b.json"
    update_baseline(head(p99_ttft_ms=100.0), file, "first")
    assert gate(head(p99_ttft_ms=after), file).passed is passes


def test_a_tolerance_of_zero_forgives_rounding_only(tmp_path):
    file = tmp_path / "b.json"
    update_baseline(head(completed=1000), file, "first")
    assert gate(head(completed=1000), file).passed
    assert not gate(head(completed=999), file).passed


def test_noise_gives_few_false_alarms(tmp_path):
    """3 % noise, 5 % gate, twenty runs of the same binary: at most one false alarm."""
    rng = np.random.default_rng(0)
    alarms = []
    for trial in range(20):
        file = tmp_path / f"{trial}.json"
        update_baseline([head(output_throughput=100 * (1 + 0.03 * rng.standard_normal())) for _ in range(5)], file, "x")
        edit(file, lambda raw: raw["metrics"]["output_throughput"].update(tolerance=0.05))
        alarms.append(
            sum(
                not gate(head(output_throughput=100 * (1 + 0.03 * rng.standard_normal())), file).passed
                for _ in range(20)
            )
        )
    assert np.mean(alarms) <= 1
    assert np.median(alarms) == 0


def test_a_true_drop_over_five_runs_is_caught(tmp_path):
    rng = np.random.default_rng(1)
    caught = 0
    for trial in range(40):
        file = tmp_path / f"{trial}.json"
        update_baseline([head(output_throughput=100 * (1 + 0.03 * rng.standard_normal())) for _ in range(5)], file, "x")
        edit(file, lambda raw: raw["metrics"]["output_throughput"].update(tolerance=0.05))
        runs = [head(output_throughput=92 * (1 + 0.03 * rng.standard_normal())) for _ in range(5)]
        caught += not gate(runs, file).passed
    assert caught >= 34


def test_other_traffic_is_refused(run, tmp_path):
    update_baseline(run, tmp_path / "b.json", "first")
    with pytest.raises(InputError, match="other traffic"):
        gate(simulated_run(200, 13), tmp_path / "b.json")
    with pytest.raises(InputError, match="different traffic"):
        update_baseline([run, simulated_run(200, 13)], tmp_path / "c.json", "x")


def test_the_fingerprint_is_of_what_was_asked_not_of_what_happened(run):
    slower = simulated_run(200, 12, max_num_seqs=4)
    assert traffic_fingerprint(slower) == traffic_fingerprint(run)
    assert summarize(slower)["mean_ttft_ms"] != summarize(run)["mean_ttft_ms"]
    other = copy.deepcopy(run)
    other.requests.target_tokens[7] += 1
    assert traffic_fingerprint(other) != traffic_fingerprint(run)
    closed = [copy.deepcopy(run) for _ in range(2)]
    for i, one in enumerate(closed):
        one.info["load"] = {"mode": "closed", "concurrency": 4}
        one.requests.scheduled += i
    assert traffic_fingerprint(closed[0]) == traffic_fingerprint(closed[1])


def test_changed_settings_are_told(tmp_path):
    update_baseline(head(completed=1), tmp_path / "b.json", "first")
    other = head(completed=1)
    other["config"]["engine"]["preset"]["value"] = "sglang"
    result = gate(other, tmp_path / "b.json")
    assert result.passed
    assert result.changed_settings == {"engine.preset": ("vllm", "sglang")}
    assert "engine.preset" in result.text()


def test_a_run_cut_short_is_refused(tmp_path):
    update_baseline(head(completed=1), tmp_path / "b.json", "first")
    short = head(completed=1)
    short["info"]["complete"] = False
    with pytest.raises(InputError, match="cut short"):
        gate(short, tmp_path / "b.json")


def test_edits_outlive_an_update(tmp_path):
    file = tmp_path / "b.json"
    update_baseline(head(output_throughput=100.0, completed=5), file, "first")

    def change(raw):
        del raw["metrics"]["completed"]
        raw["metrics"]["output_throughput"]["tolerance"] = 0.2

    edit(file, change)
    update_baseline(head(output_throughput=50.0, completed=5), file, "a slower model on purpose")
    kept = read_baseline(file)
    assert set(kept.metrics) == {"output_throughput"}
    assert (kept.metrics["output_throughput"].values, kept.metrics["output_throughput"].tolerance) == (
        (50.0,),
        0.2,
    )
    assert kept.reason == "a slower model on purpose"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda raw: raw.update(schema_version=7), "schema_version"),
        (lambda raw: raw.update(schema_version=True), "schema_version"),
        (lambda raw: raw.update(metric={}), "metric"),
        (lambda raw: raw.update(reason=3), "reason"),
        (lambda raw: raw.update(digests={"a": 1}), "digests.a"),
        (lambda raw: raw.update(asked={"requests": "many"}), "asked.requests"),
        (lambda raw: raw.update(asked={"request": 3}), "asked.request"),
        (lambda raw: raw.update(history=[3]), "history[0]"),
        (lambda raw: raw.update(history=[{"changes": []}]), "history[0]"),
        (lambda raw: raw["metrics"]["completed"].update(tolerence=0.1), "metrics.completed.tolerence"),
        (lambda raw: raw["metrics"]["completed"].update(better=[]), "metrics.completed.better"),
        (lambda raw: raw.pop("traffic"), "traffic"),
        (lambda raw: raw.update(metrics={}), "metrics"),
        (lambda raw: raw["metrics"].update(completed=3), "metrics.completed"),
        (lambda raw: raw["metrics"]["completed"].update(values=["x"]), "metrics.completed.values"),
        (lambda raw: raw["metrics"]["completed"].update(values=[]), "metrics.completed.values"),
        (lambda raw: raw["metrics"]["completed"].update(better="up"), "metrics.completed.better"),
        (lambda raw: raw["metrics"]["completed"].update(tolerance=-1), "metrics.completed.tolerance"),
        (lambda raw: raw["metrics"]["completed"].pop("tolerance"), "metrics.completed.tolerance"),
    ],
)
def test_a_malformed_baseline_names_file_and_key(tmp_path, change, named):
    file = tmp_path / "b.json"
    update_baseline(head(completed=1), file, "first")
    edit(file, change)
    with pytest.raises(InputError) as caught:
        gate(head(completed=1), file)
    assert caught.value.place.file == str(file)
    assert caught.value.place.key == named


def test_missing_and_unreadable_baselines(tmp_path):
    with pytest.raises(InputError, match=r"no such baseline.*--update"):
        gate(head(completed=1), tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{not json")
    with pytest.raises(InputError, match=r"bad\.json: is not a readable baseline"):
        gate(head(completed=1), tmp_path / "bad.json")
    update_baseline(head(completed=1), tmp_path / "b.json", "x")
    with pytest.raises(InputError, match=r"run\.json: fingerprint"):
        gate({"summary": {}}, tmp_path / "b.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        update_baseline(head(completed=1), tmp_path / "file" / "b.json", "x")


def test_student_against_known_quantiles():
    for dof, t in (
        (1, 6.3138),
        (2, 2.9200),
        (3, 2.3534),
        (4, 2.1318),
        (5, 2.0150),
        (8, 1.8595),
        (30, 1.6973),
    ):
        assert student_cdf(t, dof) == pytest.approx(0.95, abs=2e-5)
        assert student_cdf(-t, dof) == pytest.approx(0.05, abs=2e-5)
        assert student_quantile(0.95, dof) == pytest.approx(t, abs=2e-4)


def test_an_interval_of_change_needs_scatter():
    assert change_interval([1.0], [2.0], 0.02) is None
    assert change_interval([1.0, 1.0], [2.0], 0.02) == (1.0, 1.0)
    assert change_interval([1.0, 1.0], [1.0], 0.02) == (0.0, 0.0)
    low, high = change_interval([99.0, 101.0, 100.0], [110.0, 111.0, 109.0], 0.02)
    assert 0 < low < 10 < high


@pytest.mark.parametrize("sides", [(5, 1), (5, 5), (3, 3), (10, 3), (2, 2)])
def test_the_interval_holds_what_it_promises(sides):
    """Of unchanged noisy runs at most a little over `alpha` lie beyond either end."""
    rng = np.random.default_rng(3)
    beyond = 0
    for _ in range(600):
        before, after = (100 * (1 + 0.03 * rng.standard_normal(n)) for n in sides)
        low, high = change_interval(before, after, 0.05)
        beyond += low > 0
        assert low < high
    assert beyond / 600 < 0.09


def test_equality_says_where(run, tmp_path):
    file = tmp_path / "b.json"
    update_baseline(run, file, "first", exact=True)
    result = gate(run, file)
    assert result.passed
    assert "Equal to the baseline in all" in result.text()
    other = copy.deepcopy(run)
    other.requests.finish[3] = np.nextafter(other.requests.finish[3], 99)
    result = gate(other, file)
    assert not result.passed
    assert result.failed() == ["equality"]
    assert result.equality.differ == ("requests.finish",)
    assert "requests.finish differ" in result.text()
    edit(file, lambda raw: raw["versions"].update(numpy="0.1"))
    assert "numpy 0.1 then" in gate(other, file).equality.sentence
    update_baseline(other, file, "the last bit")  # keeps what it asks
    assert gate(other, file).passed and not gate(run, file).passed
    update_baseline(run, file, "no equality any more", exact=False)
    assert gate(other, file).equality is None
    with pytest.raises(InputError, match="not equal"):
        update_baseline([run, other], file, exact=True)
    with pytest.raises(InputError, match="run folders"):
        update_baseline(head(completed=1), tmp_path / "c.json", exact=True)


def test_a_figure_that_is_to_stay(tmp_path):
    file = tmp_path / "b.json"
    update_baseline(head(total_output_tokens=1000, completed=10), file)
    edit(
        file,
        lambda raw: raw["metrics"].update(total_output_tokens={"values": [1000], "better": "equal", "tolerance": 0.01}),
    )
    for value, passes in ((1000, True), (1009, True), (991, True), (1011, False), (989, False)):
        assert gate(head(total_output_tokens=value, completed=10), file).passed is passes


def test_history_says_what_moved_and_why(tmp_path):
    file = tmp_path / "b.json"
    update_baseline(head(output_throughput=100.0, completed=5), file, "first")
    update_baseline(head(output_throughput=50.0, completed=5), file, "a slower model on purpose")
    update_baseline(head(output_throughput=50.0, completed=5), file)
    kept = read_baseline(file)
    assert kept.history == (
        {"reason": "a slower model on purpose", "changes": {"output_throughput": [100.0, 50.0]}},
        {"reason": "", "changes": {}},
    )
    for _ in range(30):
        update_baseline(head(output_throughput=50.0, completed=5), file, "again")
    assert len(read_baseline(file).history) == 20


def test_the_refusal_says_what_differs(run, tmp_path):
    update_baseline(run, tmp_path / "b.json", "first")
    fewer = simulated_run(150, 12)
    with pytest.raises(InputError) as caught:
        gate(fewer, tmp_path / "b.json")
    assert "requests 200 and 150" in str(caught.value)
    other = copy.deepcopy(run)
    other.requests.max_tokens[:5] += 1
    with pytest.raises(InputError, match="limits of answers of 5 requests"):
        update_baseline([run, other], tmp_path / "c.json")
    with pytest.raises(InputError, match="fingerprints"):
        gate(other, tmp_path / "b.json")


def test_a_hundred_unchanged_noisy_repeats_pass(tmp_path):
    """2 % noise, a 5 % gate, five runs a side."""
    rng = np.random.default_rng(7)

    def repeats() -> list[dict]:
        return [head(output_throughput=100 * (1 + 0.02 * rng.standard_normal())) for _ in range(5)]

    file = tmp_path / "b.json"
    update_baseline(repeats(), file)
    edit(file, lambda raw: raw["metrics"]["output_throughput"].update(tolerance=0.05))
    assert all(gate(repeats(), file).passed for _ in range(100))
