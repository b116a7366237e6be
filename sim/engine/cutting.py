"""Stretches of steps that were launched before it was known that something comes.

An engine behind a router cannot know when its next request comes. It takes as many equal steps at once as it would if nothing
came; when something does, the stretch is cut to what it would have been.
"""

from __future__ import annotations

from sim.engine import refusals
from sim.engine.engine import Engine
from sim.engine.sequence import Sequence
from workloads.traffic import Request


def next_end(engine: Engine) -> float:
    """When the oldest plan in flight of a simulated engine comes back, as it stands."""
    plan, ticket, _ = engine._flights[0]
    return ticket.ends[-2 if plan.stretched else -1]


def cut(engine: Engine, until: float, *, heed: bool = False) -> None:
    """Have a simulated engine's last plan in flight be what it were, had `until` been told to `Engine.launch`.

    Args:
        until: not before the first step of that plan begins, unless another plan is in flight before it.
        heed: also where an arrival cannot change the next plan, so that the engine looks at it.
    """
    plan, ticket, _ = engine._flights[-1]
    if ticket.steps > 1 and (heed or engine._heeds):
        engine.executor.shorten(plan, ticket, until)
        if plan.stretched and ticket.steps == 1:
            plan.stretched = False
            engine._advance(plan, 1)


def never_fits(engine: Engine, request: Request) -> str | None:
    """Why `Engine.submit` will refuse a request, now or later; None if it will not."""
    room = engine.max_len - request.input_tokens
    declared = min(request.max_tokens, room)
    if room < 1:
        return refusals.no_room(request.input_tokens, engine.max_len)
    if request.input_tokens + declared <= engine._roomy and request.n == 1 and not engine._slabs:
        return None
    seq = Sequence(request.row, request.prompt, request.input_tokens, declared, 0.0, request.priority)
    engine.executor.start(seq, min(request.output_tokens, declared))
    reason = engine._unfit(seq, request.n)
    engine.executor.forget(seq)
    return reason
