"""The whole plan: the cheapest of all, whoever looks; how sure it is; what is said where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from experiments import runner
from experiments.planner.candidates import candidates, longest_request
from experiments.planner.evaluate import evaluate
from experiments.planner.plan import Plan, check_question, holds_surely, make_plan
from experiments.planner.question import Question
from experiments.planner.report import plan_json, usd_per_million
from experiments.planner.search import resolved
from reports import strict_json
from reports.metrics import summarize
from sim.memory import memory_budget
from workloads.errors import InputError

PRICES = ["h100=3,l40s=1"]
ONE = ["engine.parallel.tensor=1", "engine.parallel.pipeline=1"]  # fewer candidates, where they do not matter
LOOSE = {"rate": 1.0, "slo": "ttft_p95=2s,tpot_p95=60ms"}


@pytest.fixture
def ask(question: Callable[..., Question]) -> Callable[..., Question]:
    """Questions of two kinds of GPU with prices."""
    return lambda **options: question(**({"gpus": ["h100", "l40s"], "prices": PRICES, "max_gpus": 6} | options))


@pytest.mark.slow
def test_nothing_cheaper_meets_the_slo(ask: Callable[..., Question]) -> None:
    """Against every candidate with every number of replicas, without bounds or bisection."""
    asked = ask(quantizations=["none", "fp8"], max_gpus=4)
    plan = make_plan(asked)
    longest = longest_request(asked)
    cheapest = float("inf")
    for each in candidates(asked):
        for replicas in range(1, 4 // each.gpus + 1):
            usd = asked.prices[each.gpu].usd_per_hour * each.gpus * replicas
            try:
                engine = resolved(asked, each, longest)
            except InputError:
                continue
            if usd < cheapest and evaluate(engine, asked.demand(), asked.limits, replicas, 3000).meets:
                cheapest = usd
    assert plan.best is not None and plan.best.usd_per_hour == cheapest
    assert plan.best.verified and plan.best.at.requests > 300, "on more than the search looked at"


def test_the_plan_holds_in_a_run_of_its_own(ask: Callable[..., Question]) -> None:
    """Poisson traffic split among R replicas is Poisson traffic at 1/R of the rate: no planner in between."""
    asked = ask(settings=ONE)
    plan = make_plan(asked)
    best = plan.best
    for replicas, good in ((best.replicas, True), (best.replicas - 1, False)):
        if not replicas:
            continue
        workload = best.candidate.workload(asked.workload, plan.longest)
        section = workload.traffic.synthetic
        arrivals = {"process": "poisson", "rate": 60 / replicas}
        split = {**section, "requests": 3000, "arrivals": arrivals}
        traffic = workload.traffic.model_copy(update={"synthetic": split})
        data = runner.run(runner.resolve(workload.model_copy(update={"traffic": traffic, "seed": 11})))
        summary = summarize(data, with_intervals=False)
        worst = max(summary[limit.key] / (limit.seconds * 1e3) for limit in asked.limits)
        overloaded = summary["saturation"]["label"] == "overloaded"
        # other requests than the plan's, so within what chance does to a p95
        assert (worst < 1.15 and not overloaded) if good else (worst > 0.87 or overloaded), (replicas, worst)


@pytest.mark.slow
def test_it_does_not_depend_on_who_is_quicker(ask: Callable[..., Question]) -> None:
    asked = ask(gpus=["h100"], prices=["h100=3"])
    alone, many = make_plan(asked), make_plan(asked, workers=2)
    assert strict_json.dumps(plan_json(alone)) == strict_json.dumps(plan_json(many))


def test_money_decides(ask: Callable[..., Question]) -> None:
    slo = "ttft_p95=500ms,tpot_p95=50ms"
    dear, cheap = (
        make_plan(ask(slo=slo, prices=[text], settings=ONE)) for text in ("h100=100,l40s=1", "h100=0.1,l40s=1")
    )
    assert dear.best.candidate.gpu == "l40s" and cheap.best.candidate.gpu == "h100-sxm"
    each = usd_per_million(cheap, cheap.best)
    demand = cheap.question.demand()
    tokens_an_hour = demand.rate * demand.outputs * 3600
    assert each["output"] == pytest.approx(0.1 * cheap.best.gpus / tokens_an_hour * 1e6)
    assert each["total"] == pytest.approx(each["output"] * demand.outputs / (demand.inputs + demand.outputs))


def test_kinds_without_a_price_are_told_apart(ask: Callable[..., Question]) -> None:
    plan = make_plan(ask(gpus=["h100", "h200"], prices=["h100=3"], settings=ONE))
    assert plan.best.candidate.gpu == "h100-sxm"
    assert [each.candidate.gpu for each in plan.unpriced] == ["h200-sxm"] and plan.unpriced[0].verified
    none = make_plan(ask(gpus=["h200"], prices=[], settings=ONE))
    assert none.best.usd_per_hour is None and usd_per_million(none, none.best) is None
    assert none.best.gpus == min(found.gpus for found in none.found if found.meets)


def test_how_sure_it_is(ask: Callable[..., Question]) -> None:
    plan = make_plan(ask(settings=ONE))
    best = plan.best
    assert set(best.ranges) == {"p95_ttft_ms", "p95_tpot_ms"}
    for key, (low, high) in best.ranges.items():
        assert low <= best.at.figures[key] <= high
    assert plan.within_error == (not holds_surely(best, plan.question))
    if plan.sure:
        assert holds_surely(plan.sure, plan.question) and plan.sure.replicas >= best.replicas
    wide = replace(best, ranges={"p95_ttft_ms": [1.0, 1e9], "p95_tpot_ms": [1.0, 2.0]})
    assert not holds_surely(wide, plan.question) and not holds_surely(replace(best, ranges={}), plan.question)
    assert plan.margin == pytest.approx(1 - best.at.worst) and plan.margin >= 0


@pytest.mark.slow
def test_quantized_weights_stand_beside_plain_ones(ask: Callable[..., Question]) -> None:
    """What the model ships in wins where it costs no more; else both are told."""
    plan = make_plan(
        ask(model="llama-3-70b", quantizations=["auto"], gpus=["h100"], prices=["h100=3"], max_gpus=2, **LOOSE)
    )
    assert not plan.best.candidate.plain and plan.best.gpus < plan.plain.gpus
    assert plan.plain.candidate.plain and plan.plain.verified
    same = make_plan(ask(quantizations=["none", "fp8"], rate=5.0, settings=ONE))
    assert same.best.candidate.plain and same.best.replicas == 1


def test_nothing_found_says_what_would_have_to_change(ask: Callable[..., Question]) -> None:
    few = make_plan(ask(max_gpus=1, gpus=["l40s"], prices=[]))
    assert few.best is None and few.closest is not None
    assert few.advice[0].startswith("with --max-gpus ")
    enough = int(few.advice[0].split()[2])
    more = ask(max_gpus=enough, gpus=["l40s"], prices=[], settings=ONE)
    assert make_plan(more).best is not None, "the advice is true"
    slow = make_plan(ask(slo="tpot_p95=1ms"))
    assert slow.best is None and slow.simulations == 0
    assert "no number of GPUs will do" in slow.advice[0]
    big = make_plan(ask(model="llama-3.1-405b", gpus=["l40s"], prices=[], max_gpus=2))
    assert big.best is None and "nothing fits into memory" in big.advice[0]


def test_looser_limits_as_advised_are_met(ask: Callable[..., Question]) -> None:
    few = {"gpus": ["h100"], "prices": [], "max_gpus": 1, "rate": 20.0}
    asked = ask(**few)
    (each,) = candidates(asked)
    engine = resolved(asked, each, longest_request(asked))
    takes = evaluate(engine, asked.demand(), asked.limits, 1, 600).figures["p95_tpot_ms"]
    plan = make_plan(ask(slo=f"tpot_p95={0.88 * takes:.3f}ms", **few))
    assert plan.best is None and plan.closest.at is not None
    (told,) = [sentence for sentence in plan.advice if "looser SLO" in sentence]
    looser = told.split(": ")[1].split(" ")[0]
    assert make_plan(ask(slo=looser, **few)).best is not None


def test_engines_are_set_up_for_the_longest_request(ask: Callable[..., Question]) -> None:
    """A context of 131,072 does not fit beside the weights of an 8B model on this card; the traffic's own does."""
    plan = make_plan(ask(model="llama-3.1-8b", gpus=["a10g"], prices=[], max_gpus=1, rate=1.0, slo="tpot_p95=80ms"))
    longest = plan.question.demand().longest
    assert longest <= plan.longest < longest + 1024
    assert plan.best is not None
    engine = resolved(plan.question, plan.best.candidate, plan.longest)
    with pytest.raises(InputError):
        memory_budget(engine.model, engine.gpu, replace(engine.engine, max_model_len=131_072))


def test_too_little_traffic_is_told_before_anything_runs(ask: Callable[..., Question]) -> None:
    asked = ask(slo="ttft_p99=1s", settings=["traffic.synthetic.requests=50"], requests=10, max_gpus=1)
    with pytest.raises(InputError, match="TTFT p99 needs 100 requests, and the traffic has 50"):
        check_question(asked)


def test_the_json_is_strict_and_whole(ask: Callable[..., Question]) -> None:
    plan: Plan = make_plan(ask(quantizations=["auto"], settings=ONE))
    found = strict_json.loads(strict_json.dumps(plan_json(plan)))
    assert found["best"]["meets"] and found["best"]["usd_per_million_tokens"]["output"] > 0
    assert len(found["candidates"]) == len(plan.found)
    assert all(each["meets"] or each["reason"] for each in found["candidates"])
    assert found["simulations"] >= sum(len(each["tried"]) for each in found["candidates"] if not each["verified"])
