"""What must be true of an engine at any moment, and of a run when it is over."""

from __future__ import annotations

from collections import Counter

from harness import NEVER, Run, holders

_EPS = 1e-12


def check_moment(run: Run, moment: str, now: float) -> None:
    """Memory and requests are conserved, and every count in the state is right."""
    check_memory(run)
    check_counts(run)
    check_requests(run)


def check_memory(run: Run) -> None:
    """No block has an owner too many, nothing leaks, and the accounts add up."""
    state = run.engine.state
    state.allocator.check(holders(run.engine))
    use = state.allocator.use(state.stored)
    parts = use.live, use.cached, use.allocated, use.holes, use.free
    assert sum(parts) == use.capacity == state.allocator.capacity, use
    assert min(parts) >= 0, use


def check_counts(run: Run) -> None:
    """The state's incremental sums are what they would be if counted anew."""
    state, config = run.engine.state, run.engine.config.scheduler
    running, members = list(state.running), list(state.cohort.members)
    assert len(running) + len(state.retained) <= config.max_num_seqs
    assert state.cohort.size == len(members)
    assert state.cohort.context == sum(seq.known for seq in members)
    assert Counter(running) == Counter([*members, *state.prefilling, *state.draining])
    if getattr(state, "keeps_totals", True):  # sums that only some gates look at
        assert state.promised == sum(seq.footprint for seq in running)
        assert state.declared == sum(seq.limit for seq in running)
    assert state.stored == sum(seq.computed for seq in holders(run.engine))
    assert all(seq.known <= seq.limit + run.engine.config.depth - 1 for seq in running)
    assert all(seq.place == "device" for seq in running)
    assert all(seq.place == "host" for seq in state.swapped)
    assert all(seq.place == "nowhere" for seq in state.waiting)


def check_requests(run: Run) -> None:
    """Arrived = finished + refused + cancelled + here."""
    here = run.engine.unfinished_rows()
    places = [*run.finished, *run.refused, *run.cancelled, *here]
    assert sorted(places) == run.submitted, "a request is in two places or in none"
    state = run.engine.state
    alive = {seq.row for seq in [*state.running, *state.waiting, *state.swapped]}
    late = set(here) if run.engine.held_back else alive  # a batch hands its answers out together
    assert alive <= set(here) and set(here) <= late


def check_run(run: Run) -> None:
    """Everything that holds of a run that was served to its end."""
    assert run.submitted == list(range(len(run.traffic))), "not everything was sent"
    assert not run.engine.unfinished_rows() and run.engine.idle
    use = run.engine.state.allocator.use(0)
    assert use.live == use.allocated == use.holes == 0, f"memory leaked: {use}"
    assert run.engine.state.host_free == run.host_tokens, "host memory leaked"
    check_tokens(run)
    check_causality(run)
    check_plans(run)


def check_tokens(run: Run) -> None:
    """Whoever finished has exactly min(truth, declared, room) × n tokens."""
    tokens = run.tokens()
    for row in run.finished:
        assert len(tokens.get(row, [])) == run.expected_tokens(row), f"row {row} has a wrong number of tokens"
    assert not set(run.refused) & set(run.finished)


def check_causality(run: Run) -> None:
    """arrival ≤ admitted ≤ first token ≤ finish, and tokens come exactly at ends of steps."""
    ends = {end for plan in run.plans for end in plan.ends}
    tokens, arrival = run.tokens(), run.traffic.arrival
    admitted: dict[int, float] = {}
    for left in run.departures():
        row = int(left["row"])
        if left["admitted"] == left["admitted"]:
            admitted[row] = min(left["admitted"], admitted.get(row, NEVER))
    for row, times in tokens.items():
        assert ends.issuperset(times), f"row {row} has a token in the middle of a step"
        if times:  # a cancelled row may have none
            assert arrival[row] <= admitted[row] <= times[0]
        if row in run.finished and not run.engine.held_back:
            assert run.finished[row] == times[-1]
    for earlier, later in zip(run.plans, run.plans[1:], strict=False):
        assert earlier.ends[-1] <= later.start + _EPS


def check_plans(run: Run) -> None:
    """No plan exceeds a budget, plans nobody twice, and gives every sequence its tokens in order."""
    config, computed = run.engine.config.scheduler, {}
    for plan in run.plans:
        prompt = sum(chunk[2] for chunk in plan.chunks)
        alone = len(plan.chunks) == 1 and not plan.decoding  # a prompt that is not cut may exceed the budget alone
        static = config.name == "static"
        assert alone or static or prompt + len(plan.decoding) <= max(config.max_num_batched_tokens, len(plan.decoding))
        planned = [*plan.decoding, *[chunk[:2] for chunk in plan.chunks]]
        assert len(planned) == len(set(planned)), "a sequence is planned twice in a step"
        assert len(planned) <= config.max_num_seqs
        for name in plan.preempted:
            computed.pop(name, None)
        for row, sample, tokens, past, _ in plan.chunks:
            assert tokens >= 1
            assert past == computed.get((row, sample), past), "a prompt is not computed from where it was left"
            computed[row, sample] = past + tokens
