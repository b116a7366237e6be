"""Which cells count, by rules on their metadata alone, decided before anything is simulated.

A rule has a name and a reason. `runnable` says whether its cells can be simulated all the same: then the figures are also
given with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiments.validation.apart import is_apart
from experiments.validation.deployment import Deployment
from experiments.validation.drafts import assumed, speculates, states
from experiments.validation.load import NONE, SERVER, STATIC, Load
from experiments.validation.mapping import states_precision
from experiments.validation.metrics import Metric
from experiments.validation.names import find_gpu, find_model
from experiments.validation.table import Row


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row with everything that is known of it before simulating."""

    row: Row
    metric: Metric
    load: Load | None
    deployment: Deployment | None


@dataclass(frozen=True, slots=True)
class Rule:
    """An exclusion: `applies` to candidates, for a `reason`."""

    name: str
    reason: str
    runnable: bool
    applies: Callable[[Candidate], bool]


def _lengths_missing(c: Candidate) -> bool:
    if c.load is None or c.load.kind == NONE:
        return False
    return not c.row.extra.keys() & {"traffic.trace", "workload"} and (c.load.inputs is None or c.load.outputs is None)


def _load_missing(c: Candidate) -> bool:
    load = c.load
    if load is None or c.row.extra.keys() & {"traffic.trace", "workload"}:
        return False
    if load.kind in ("closed", STATIC):
        return load.number < 1
    if load.kind == "open":
        return load.rate <= 0
    return load.kind == "phase" and (not load.phase or load.number < 1)


def _drafts(c: Candidate, known: bool) -> bool:
    """Whether draft tokens were used and the row does not say how many held, which is `known` of the model or not."""
    found = c.deployment
    if not speculates(c.row.notes, found.mapped.speculation if found else "") or states(c.row.extra):
        return False
    return known == bool(found is not None and assumed(found.model))


def _apart(c: Candidate) -> bool:
    """Whether prefill and decode are on GPUs apart that are told; draft tokens are not simulated then."""
    return c.deployment is not None and c.deployment.apart is not None


def _no_data(kind: str) -> Callable[[Candidate], bool]:
    return lambda c: c.load is not None and c.load.kind == kind


RULES: tuple[Rule, ...] = (
    Rule("unknown load kind", "the protocol is none of those that can be reproduced", False, lambda c: c.load is None),
    Rule("unknown model", "the model's shape is not in our table", False, lambda c: find_model(c.row.model) is None),
    Rule("unknown GPU", "the card, or this variant of it, is not in our table", False, lambda c: find_gpu(c.row.gpu) is None),
    Rule(
        "disaggregated, layout unknown", "prefill and decode run on GPUs apart, and which is not told, or told in two ways",
        False, lambda c: is_apart(f"{c.row.notes} {c.row.engine}") and (c.deployment is None or c.deployment.apart is None),
    ),
    Rule(
        "speculative decoding", "how many drafts held is not stated", False,
        lambda c: _drafts(c, False) or (_apart(c) and _drafts(c, True)),
    ),
    Rule("lengths unknown", "the lengths of prompts or answers are not stated", False, _lengths_missing),
    Rule("load unknown", "batch, concurrency or rate is not stated", False, _load_missing),
    Rule("rate searched", "the rate was searched for under an SLO; only the outcome is stated", False, _no_data(SERVER)),
    Rule(
        "precision not modelled", "the weights' type has no mode here (32-bit floats, 2-bit formats)", False,
        lambda c: c.deployment is not None and not c.deployment.mapped.weights,
    ),
    Rule("disaggregated", "prefill and decode run on separate GPUs: a group of its own", True,
         _apart),
    Rule("marked impossible", "the source's figures exceed what memory bandwidth allows", True,
         lambda c: "IMPOSSIBLE" in c.row.notes),
    Rule("unknown engine", "the engine is none of those that are modelled", True,
         lambda c: c.deployment is not None and not c.deployment.mapped.known),
    Rule("drafts assumed", "how many drafts held is not stated: one is assumed, which holds in 87 % (DeepSeek-V3's report)", True,
         lambda c: _drafts(c, True)),
    Rule("speculation not told", "runs with and without draft tokens are not told apart", True,
         lambda c: c.deployment is not None and c.deployment.mapped.speculation == "untold"),
    Rule("precision missing", "the weights' type is not stated", True, lambda c: not states_precision(c.row)),
)  # fmt: skip


def exclusion_of(candidate: Candidate) -> Rule | None:
    """The first rule that a candidate falls under, or None."""
    return next((rule for rule in RULES if rule.applies(candidate)), None)
