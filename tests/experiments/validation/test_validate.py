"""Choosing rows, knowing results again, impossible figures, fitting a deployment."""

import math

import pytest

from experiments.validation.cells import cell_of
from experiments.validation.metrics import parse_metric
from experiments.validation.plausible import mark_implausible
from experiments.validation.pool import Store
from experiments.validation.simulate import simulate
from experiments.validation.table import read_table
from experiments.validation.unstated import left_open
from experiments.validation.validate import choose, exclusions, validate
from workloads.errors import InputError


def test_rows_by_source_and_metric(table):
    rows = read_table(
        table({"source": "one"}, {"source": "two", "table_id": "t2", "metric": "ttft_ms_p99"}, {"source": "two"})
    )
    assert len(choose(rows, sources=["two"])) == 2
    assert len(choose(rows, sources=["t2"])) == 1
    assert len(choose(rows, metrics=["ttft_ms"])) == 1
    with pytest.raises(InputError, match=r"no source 'tvo'.*did you mean two"):
        choose(rows, sources=["tvo"])
    with pytest.raises(InputError, match=r"unknown metric 'ttft'.*ttft_ms"):
        choose(rows, metrics=["ttft"])
    with pytest.raises(InputError, match=r"no row has the metric itl_ms.*the tables have"):
        choose(rows, metrics=["itl_ms"])
    with pytest.raises(InputError, match="nothing is left"):
        choose([], sources=[])


def test_a_subset_is_spread_and_keeps_measurements_whole(table):
    rows = read_table(
        table(
            *[
                {"model": model, "isl": str(isl), "metric": metric}
                for model in ("Llama-3.1-8B", "Llama-3.1-70B")
                for isl in range(100, 150)
                for metric in ("ttft_ms", "tpot_ms")
            ]
        )
    )
    chosen = choose(rows, subset=6)
    assert len(chosen) == 12
    assert {r.model for r in chosen} == {"Llama-3.1-8B", "Llama-3.1-70B"}
    assert len({(r.model, r.isl) for r in chosen}) == 6
    assert chosen == choose(rows, subset=6)


def test_results_are_known_again_and_survive_a_torn_line(flat, table, tmp_path):
    rows = read_table(table({}, {"osl": "12"}))
    path = tmp_path / "points.jsonl"
    first = validate(rows, jobs=1, store=Store(path))
    path.write_text(path.read_text() + '{"key": "torn', "utf-8")
    again = validate(rows, jobs=1, store=Store(path))
    assert (first.points, first.known, again.known) == (2, 0, 2)
    assert [c.predicted for c in again.cells] == [c.predicted for c in first.cells]


def test_ctrl_c_keeps_what_is_done(flat, table, tmp_path, monkeypatch):
    rows = read_table(table(*[{"osl": str(n)} for n in (11, 12, 13)]))
    done = []

    def interrupt(point):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(point)
        return simulate(point)

    monkeypatch.setattr("experiments.validation.pool.simulate", interrupt)
    path = tmp_path / "points.jsonl"
    found = validate(rows, jobs=1, store=Store(path))
    assert not found.complete
    assert [c.predicted is not None for c in found.cells] == [True, True, False]
    assert len(Store(path).results) == 2


def test_in_two_processes_the_figures_are_the_same(table):
    rows = read_table(table(*[{"osl": str(n)} for n in (3, 4, 5)]))
    alone, together = validate(rows, jobs=1), validate(rows, jobs=2)
    assert [c.predicted for c in alone.cells] == [c.predicted for c in together.cells]
    assert all(c.predicted for c in alone.cells)


def test_exclusions_are_counted_and_simulated_only_where_that_is_wanted(flat, table):
    rows = read_table(table({}, {"weight_dtype": ""}, {"model": "Unknown-13B"}))
    counted = exclusions(validate(rows, jobs=1).cells)
    assert {key[0]: (count, key[2]) for key, count in counted.items()} == {
        "precision missing": (1, True),
        "unknown model": (1, False),
    }
    cells = validate(rows, jobs=1).cells
    assert [c.predicted is not None for c in cells] == [True, True, False]
    cells = validate(rows, jobs=1, everything=False).cells
    assert [c.predicted is not None for c in cells] == [True, False, False]


def doubted(table, *rows):
    cells = [cell_of(row) for row in read_table(table(*rows))]
    mark_implausible(cells)
    return [cell.implausible for cell in cells]


def test_impossible_figures_are_told(table):
    """8B in 16 bit is 15 GB beside the embedding: at least 4.5 ms a token on an H100, 224 tokens/s of one sequence."""
    single = {"concurrency_or_rate": "batch=1"}
    found = doubted(
        table, {**single, "value": "180"}, {**single, "value": "400"}, {**single, "weight_dtype": "fp8", "value": "400"},
        {**single, "metric": "tpot_ms", "value": "2"}, {**single, "metric": "tpot_ms", "value": "6"},
        {"concurrency_or_rate": "batch=512", "value": "90000"},
        {"concurrency_or_rate": "batch=512", "value": "90000", "n_gpu": ""},
    )  # fmt: skip
    assert [bool(reason) for reason in found] == [False, True, False, True, False, True, False]
    assert "reading the weights" in found[1]
    assert "tensor cores" in found[5]


def test_an_answer_that_cannot_have_been_so_long_is_told(table):
    """4.5 ms a token at least: 100 tokens take more than 0.45 s, or some of them never came."""
    whole = {"metric": "e2e_latency_ms", "concurrency_or_rate": "batch=1", "osl": "100"}
    told = doubted(
        table, {**whole, "value": "300"}, {**whole, "value": "600"}, {**whole, "value": "300", "osl": "mean 100"}
    )
    assert [bool(reason) for reason in told] == [True, False, False]
    assert "reading the weights once for every token" in told[0]


def test_a_closed_loop_whose_times_imply_too_much_is_told(table):
    """128 in flight of 4,000 + 100 tokens in 0.1 + 99 x 0.002 s are 1.76 million tokens/s."""
    loop = {
        "load_kind": "closed_loop_concurrency",
        "concurrency_or_rate": "concurrency=128",
        "isl": "4000",
        "osl": "100",
    }
    fast = ({**loop, "metric": "ttft_ms", "value": "100"}, {**loop, "metric": "tpot_ms", "value": "6"})
    assert all("in flight" in reason for reason in doubted(table, *fast))
    slow = ({**loop, "metric": "ttft_ms", "value": "9000"}, {**loop, "metric": "tpot_ms", "value": "60"})
    assert doubted(table, *slow) == ["", ""]


@pytest.mark.parametrize(("kind", "true"), [("host_ms", 1.5), ("pace", 1.3)])
def test_a_figure_of_a_deployment_is_found_again_on_the_other_half(table, kind, true):
    """Measured values made with 1.5 ms more a step, or steps 1.3 times as long: without fitting all are off, with it none."""
    loop = {"load_kind": "closed_loop_concurrency", "metric": "tpot_ms", "isl": "64"}
    plain = [
        {**loop, "concurrency_or_rate": f"concurrency={c}", "osl": str(n)} for c in (1, 2, 4) for n in (16, 24, 32)
    ]
    cells = [cell_of(row) for row in read_table(table(*plain))]
    for cell in cells:
        setattr(cell.point, kind, true)
    made = [
        {**row, "value": str(simulate(cell.point).figures["tpot_ms_mean"])}
        for row, cell in zip(plain, cells, strict=True)
    ]
    rows = read_table(table(*made))
    before, after = validate(rows, jobs=1), validate(rows, jobs=1, fit=True)
    assert all(cell.log_ratio < -0.1 for cell in before.cells)
    assert list(after.fitted.values()) == [(kind, pytest.approx(true, abs=0.02))]
    roles = [cell.role for cell in after.cells]
    assert set(roles) == {"fitted", "held out"}
    assert max(abs(cell.log_ratio) for cell in after.cells if cell.role == "held out") < 0.01


def test_intervals_hold_what_a_source_leaves_open(table):
    row = {
        "metric": "tpot_ms",
        "value": "9",
        "load_kind": "closed_loop_concurrency",
        "concurrency_or_rate": "concurrency=4",
    }
    stated, open_ = validate(
        read_table(table({**row, "engine_version": "0.12.0"}, {**row, "engine_version": ""})), jobs=1
    ).cells
    assert stated.low < stated.predicted < stated.high
    assert stated.high / stated.low < open_.high / open_.low
    first = validate(read_table(table({**row, "metric": "ttft_ms"})), jobs=1).cells[0]
    assert first.high / first.low > open_.high / open_.low


def test_slower_steps_widen_an_open_loop_more_where_it_is_nearly_full(table):
    row = {"metric": "ttft_ms", "value": "90", "load_kind": "open_loop_rate", "isl": "512", "osl": "64"}
    rates = [{**row, "concurrency_or_rate": f"rate={rate}"} for rate in (1, 66)]
    idle, full = (cell.result.spread["ttft_ms_mean"] for cell in validate(read_table(table(*rates)), jobs=1).cells)
    assert idle[0] < 1 < idle[1]
    assert full[1] / full[0] > 1.3 * idle[1] / idle[0]


def test_too_few_points_are_not_fitted(table):
    rows = read_table(table({"metric": "tpot_ms", "value": "9"}))
    found = validate(rows, jobs=1, fit=True)
    assert found.fitted == {}
    assert math.isfinite(found.cells[0].log_ratio)


def test_first_tokens_without_a_warm_up_are_doubted_where_experts_are_compiled_late(table):
    from experiments.validation.doubts import _cold

    dump = {"engine": "sglang", "engine_version": "", "gpu": "B200-180GB", "notes": "origin: InferenceX dump",
            "load_kind": "closed_loop_concurrency", "concurrency_or_rate": "concurrency=4"}  # fmt: skip
    stage = {"load_kind": "open_loop_rate", "model": "Mixtral-8x7B"}
    large = {**dump, "model": "DeepSeek-R1"}
    rows = (
        {**large, "source_date": "2025-11-10"}, {**large, "source_date": "2026-03-25"},
        {**dump, "model": "Llama-3-8B", "source_date": "2025-11-10"},
        {**stage, "notes": "x stage 0"}, {**stage, "notes": "x stage 1"},
    )  # fmt: skip
    cells = [cell_of(row) for row in read_table(table(*rows))]
    assert [bool(_cold(cell)) for cell in cells] == [True, False, False, True, False]
    names = ("ttft_ms_mean", "ttft_ms_p99")
    wider = [
        ["no warm-up" in left_open(c.row, parse_metric(name, c.row.place), c.deployment) for c in cells]
        for name in names
    ]
    assert wider == [[True, False, False, False, False], [True, False, False, True, False]]


def test_first_tokens_of_repeated_prompts_have_wider_ranges(table):
    made = {"engine": "vllm", "engine_version": "0.12.0", "weight_dtype": "fp8", "isl": "4000", "osl": "100",
            "load_kind": "closed_loop_concurrency", "concurrency_or_rate": "concurrency=4", "metric": "ttft_ms",
            "notes": "origin: other file; checkpoint X-FP8"}  # fmt: skip
    again, once = (cell_of(row) for row in read_table(table(made, {**made, "isl": "4096"})))
    assert "repeated prompts" in left_open(again.row, again.metric, again.deployment)
    assert "repeated prompts" not in left_open(once.row, once.metric, once.deployment)


@pytest.mark.parametrize(("median", "warned"), [(950.0, True), (300.0, False)])
def test_a_first_token_that_waits_all_along_is_doubted(median, warned):
    """Waiting when a load starts (a mean far above the median) is predicted well; waiting all along hangs on what coincides."""
    from types import SimpleNamespace as Part

    from experiments.validation.doubts import _first_token

    figures = {"ttft_ms_mean": 1000.0, "ttft_ms_p50": median, "output_tokens_per_s": 100.0}
    cell = Part(
        result=Part(facts={"queue_ms": 800.0, "kv_tokens": 1e9}, figures=figures, config={}),
        point=Part(front_end=True, workload={"load": {"mode": "open"}}),
        deployment=Part(layout=Part(replicas=1), mapped=Part(prompts=0)),
        row=Part(isl="1", osl="1", load="concurrency=4", load_kind="closed_loop_concurrency", notes=""),
    )
    assert any("all along" in reason for reason in _first_token(cell)) == warned


@pytest.mark.parametrize(("gate", "warned"), [("optimistic", True), ("reserve-output", False)])
def test_a_queue_before_an_engine_that_reserves_nothing_is_doubted_where_memory_is_not_ample(gate, warned):
    from types import SimpleNamespace as Part

    from experiments.validation.doubts import _first_token

    figures = {"ttft_ms_mean": 1000.0, "ttft_ms_p50": 300.0, "output_tokens_per_s": 100.0}
    cell = Part(
        result=Part(
            facts={"queue_ms": 700.0, "kv_tokens": 16.0}, figures=figures, config={"engine.scheduler.gate": gate}
        ),
        point=Part(front_end=True, workload={"load": {"mode": "closed", "concurrency": 4}}),
        deployment=Part(layout=Part(replicas=1), mapped=Part(prompts=0)),
        row=Part(isl="1", osl="1", load="concurrency=4", load_kind="closed_loop_concurrency", notes=""),
    )
    assert any("without reserving" in reason for reason in _first_token(cell)) == warned
