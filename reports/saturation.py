"""Did the engine keep up? One word and one sentence.

The rule, over the *arrival window* (first to last request sent):

* **overloaded**: the queue grew as long as requests came. A line fitted to the number waiting over the last two thirds
  of the window rises by more than 5 % of the arrival rate and by more than chance would (2.5 × the square root of the
  arrivals in it), and either the run was cut short or finishing what was left took longer than 5 % of the window
  beyond a typical time of service.
* **backlogged**: a queue formed but was worked off: requests waited, on average, more than a tenth of the time they
  were then served for, or were refused for want of room.
* **stable**: neither.

What an overloaded engine keeps up with is counted where it was full and had settled: from one typical time of service
after its queue stopped running empty, until the last one waiting was taken, over whole times of service. The time in which it
filled up, and the one in which it ran empty, say nothing of that; a run that has no more than those gets no number.

Where prefill and decode are apart, requests queue twice: what they wait between prompt and answer counts as well.

Where the load has a most that may be in flight, requests are held back before they are sent: they then came when they were due,
and the queue is all that are due and not admitted.

An offline run has everything in the queue from the start; there is nothing to keep up with.

A closed loop sends only when something finishes, so its queue cannot grow and it is never overloaded. Where nobody saw
the queue (a remote server), the number in flight stands for it; in a closed loop, whose number in flight is fixed, what the
server itself says of its queue. Where more than 5 % of the requests failed, the load was not the one asked for, and nothing is
said.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reports.buckets import bucket_widths
from reports.concurrency import InFlight
from reports.run_data import FAILED, FINISHED, REFUSED, UNFINISHED, RunData

_FACTS = ("growth_per_s", "growth_share", "served_per_s", "drain_s", "mean_queue_s", "mean_waiting")
STABLE, BACKLOGGED, OVERLOADED = "stable", "backlogged", "overloaded"
GROWTH, CHANCE, DRAIN, MATERIAL, BURST, FAILURES = 0.05, 2.5, 0.05, 0.1, 0.05, 0.05
CROWD = 0.02
"""Share of the longest queue above which the engine counts as full: a prompt on its way for a step is no queue."""


def saturation(data: RunData) -> dict:
    """Label a run by the rule above.

    Returns:
        `label` ("stable" | "backlogged" | "overloaded"; "unknown" when nothing finished, or much failed), `sentence`, and
        what they rest on, None where it cannot be told: `growth_per_s` (requests a second by which the queue grew),
        `growth_share` (of the arrival rate), `served_per_s` (what an overloaded engine keeps up with), `drain_s` (last
        sent to last token beyond a typical service time), `mean_queue_s`, `mean_waiting`.
    """
    r = data.requests
    sent = _came(data)[np.isfinite(r.sent)]
    facts: dict = dict.fromkeys(_FACTS)
    done = r.status == FINISHED
    if not data.info.get("sent_seen", True):
        sentence = "When requests were sent is not known, so nothing can be said of saturation."
        return {"label": "unknown", "sentence": sentence, **facts}
    if not len(sent) or not done.any():
        return {
            "label": "unknown",
            "sentence": "Nothing finished, so nothing can be said of saturation.",
            **facts,
        }
    failed = int((r.status == FAILED).sum())
    if failed > FAILURES * len(r):
        sentence = f"{failed:,} of {len(r):,} requests failed, so nothing can be said of saturation."
        return {"label": "unknown", "sentence": sentence, **facts}
    window = float(sent.max() - sent.min())
    queue, seen = _queue(data)
    again = _waited_again(data)
    service = (r.finish - (r.admitted if seen else r.sent) - again)[done]
    typical = float(np.percentile(service, 50))
    facts["drain_s"] = max(0.0, float(r.finish[done].max() - sent.max()) - typical)
    if seen:
        waits = (r.admitted - r.queued + r.sent - _came(data) + again)[np.isfinite(r.admitted)]
        facts["mean_queue_s"] = float(waits.mean()) if len(waits) else None
        end = max(float(r.finish[done].max()), float(sent.max()))
        facts["mean_waiting"] = queue.area() / (end - float(sent.min())) if end > sent.min() else 0.0
    if data.info["load"].get("mode") == "closed":
        return _closed(data, facts, service)
    if data.info["load"].get("mode") == "offline":
        took = float(np.nanmax(r.finish) - sent.min())
        sentence = f"Offline: everything was there from the start and took {took:.3g} s to work off."
        return {"label": "stable", "sentence": sentence, **facts}
    burst = window <= BURST * float(
        np.median(r.finish[done]) - sent.min()
    )  # not of the last: one long answer is no burst
    if not burst and len(sent) >= 3:
        rate = (len(sent) - 1) / window
        facts["growth_per_s"] = _growth(queue, sent)
        facts["growth_share"] = facts["growth_per_s"] / rate
    return _open(data, facts, service, window, burst, queue)


def saturation_along(axis: str, names: Sequence[str], labels: Sequence[str], *, ordered: bool = True) -> str:
    """One sentence or two on the runs of a sweep: where it is overloaded, where it is backlogged; "" where it is neither.

    Args:
        axis: what is swept.   names, labels: its value in every run, as text, and the run's label.
        ordered: the axis drives the load, so that "from here on" makes sense.
    """
    told = []
    for label, meaning in (
        (OVERLOADED, "the queue grows for as long as requests come, and latencies say how long the run lasted"),
        (BACKLOGGED, "requests queue, and a part of every latency is waiting"),
    ):
        found = [i for i, each in enumerate(labels) if each == label]
        if not found:
            continue
        first, last = found[0], found[-1]
        unbroken = len(found) == last - first + 1 and (last + 1 == len(labels) or labels[last + 1] == OVERLOADED)
        if ordered and unbroken and len(found) > 1:
            where = f"from {axis} {names[first]} {'on' if last + 1 == len(labels) else f'to {names[last]}'}"
        else:
            more = f" and {len(found) - 8} more" if len(found) > 8 else ""
            where = f"at {axis} {', '.join(names[i] for i in found[:8])}{more}"
        told.append(f"{label.capitalize()} {where}: {meaning}.")
    return " ".join(told)


def _came(data: RunData) -> np.ndarray:
    """When each request came: when it was sent, or, where the load holds requests back, when it was due."""
    return data.requests.scheduled if data.info["load"].get("max_concurrency") else data.requests.sent


def _queue(data: RunData) -> tuple[InFlight, bool]:
    """Requests waiting for admission, and True; or, where nobody saw that, requests in flight, and False."""
    r = data.requests
    end = float(data.info["end"])
    stay = (r.status == FINISHED) | (r.status == UNFINISHED)
    if np.isfinite(r.admitted).any():
        until = np.where(np.isnan(r.admitted) & stay, end, r.admitted)
        since = r.queued + _came(data) - r.sent
        if r.received is not None:  # and between prompt and answer
            known = np.isfinite(r.received) | (r.status == UNFINISHED)
            since, until = np.append(since, r.prefilled[known]), np.append(until, (r.prefilled + _waited_again(data))[known])
        return InFlight.of(since, until), True
    return InFlight.of(_came(data), np.where(np.isnan(r.finish) & stay, end, r.finish)), False


def _waited_again(data: RunData) -> np.ndarray:
    """Seconds between prompt and answer of each request, where different engines compute them; 0 elsewhere."""
    r = data.requests
    if r.received is None:
        return np.zeros(len(r))
    until = np.where(np.isnan(r.received) & (r.status == UNFINISHED), float(data.info["end"]), r.received)
    return np.nan_to_num(until - r.prefilled)


def _growth(queue: InFlight, sent: np.ndarray) -> float:
    """Slope in requests a second of the line fitted to the queue over the last two thirds of the window."""
    low, high = float(sent.min()), float(sent.max())
    grid = np.linspace(low + (high - low) / 3, high, 200, endpoint=False)
    middle = grid - grid.mean()
    return float(np.dot(middle, queue.at(grid)) / np.dot(middle, middle))


def _served(data: RunData, queue: InFlight, facts: dict, service: np.ndarray, window: float) -> float | None:
    """Requests a second that an overloaded engine keeps up with; None if the run never settled."""
    r = data.requests
    typical = float(np.percentile(service, 50))
    if facts["mean_queue_s"] is None:  # nobody saw the queue: arrivals less growth, if growth was counted late enough
        sent = int(np.isfinite(r.sent).sum())
        return (sent - 1) / window - facts["growth_per_s"] if window / 3 >= typical else None
    full = queue.longest_at_least(max(1.0, CROWD * queue.peak()))
    if full is None or typical <= 0:
        return None
    low, high = full[0] + typical, min(full[1], float(np.nanmax(r.admitted if r.received is None else r.received)))
    times = int((high - low) / typical)
    if times < 1:
        return None
    ended = (r.status == FINISHED) & (r.finish > high - times * typical) & (r.finish <= high)
    return float(ended.sum()) / (times * typical)


def _overload(rate: float, facts: dict, cap: int | None) -> str:
    served = facts["served_per_s"]
    most = f" with {cap:,} in flight" if cap else ""
    if served is not None and 0 < served < rate:
        told = f"the engine keeps up with about {served:.3g}/s{most}, and the queue grew for as long as they came"
    else:
        told = (
            f"the queue grew by {facts['growth_per_s']:.3g}/s for as long as they came; the run is too short to tell how many "
            "the engine keeps up with"
        )
    return f"Overloaded: requests came at {rate:.3g}/s, {told}; latencies here depend on how long the run lasted."


def _open(data: RunData, facts: dict, service: np.ndarray, window: float, burst: bool, queue: InFlight) -> dict:
    sent = int(np.isfinite(data.requests.sent).sum())
    growth, share = facts["growth_per_s"], facts["growth_share"]
    cap = data.info["load"].get("max_concurrency")
    if growth is not None:
        grown = growth * window * 2 / 3
        beyond_chance = grown > CHANCE * np.sqrt(sent * 2 / 3)
        lasting = facts["drain_s"] > DRAIN * window or not data.info.get("complete", True)
        if share > GROWTH and beyond_chance and lasting:
            facts["served_per_s"] = _served(data, queue, facts, service, window)
            return {"label": "overloaded", "sentence": _overload((sent - 1) / window, facts, cap), **facts}
    if burst and _material(data, facts, service):
        drained = float(np.nanmax(data.requests.finish) - np.nanmin(_came(data)))
        sentence = f"Backlogged: all requests came at once and took {drained:.3g} s to work off."
        return {"label": "backlogged", "sentence": sentence, **facts}
    if _material(data, facts, service):
        sentence = (
            f"Backlogged: requests waited {_seconds(facts['mean_queue_s'])} on average{' to be sent and' if cap else ''} before "
            "the engine took them, but the queue did not keep growing."
        )
        return {"label": "backlogged", "sentence": sentence, **facts}
    if facts["mean_queue_s"] is None:
        return {"label": "stable", "sentence": "Stable: requests in flight did not keep growing.", **facts}
    wait = _seconds(facts["mean_queue_s"])
    sentence = f"Stable: requests waited {wait} on average, and the queue did not keep growing."
    return {"label": "stable", "sentence": sentence, **facts}


def _closed(data: RunData, facts: dict, service: np.ndarray) -> dict:
    cap = data.info["load"].get("concurrency")
    clients = f"{cap} clients" if cap else "the clients"
    if facts["mean_queue_s"] is None:
        return _closed_unseen(data, facts, clients)
    if _material(data, facts, service):
        waiting = facts["mean_waiting"]
        sentence = (
            f"Backlogged: of {clients}, {waiting:.3g} waited for the engine on average; "
            "it is full, and more clients would only wait longer."
        )
        return {"label": "backlogged", "sentence": sentence, **facts}
    sentence = f"Stable: the engine took what {clients} sent without making them queue."
    return {"label": "stable", "sentence": sentence, **facts}


def _closed_unseen(data: RunData, facts: dict, clients: str) -> dict:
    """A closed loop on a server, by what that says of its own queue, if it does."""
    t, width = data.timeline, bucket_widths(data)
    told = len(width) and "server_counters" in (data.host.get("client") or {})
    if not told:
        sentence = f"Stable: {clients} in a closed loop; whether they queued in the server, nobody saw."
        return {"label": "stable", "sentence": sentence, **facts}
    running, waiting = (float(np.dot(each, width) / width.sum()) for each in (t.running, t.waiting))
    facts["mean_waiting"] = waiting
    if waiting > MATERIAL * running:
        sentence = (
            f"Backlogged: of {clients}, {waiting:.3g} waited on average, as the server says; "
            "it is full, and more clients would only wait longer."
        )
        return {"label": "backlogged", "sentence": sentence, **facts}
    sentence = f"Stable: of {clients}, {waiting:.3g} waited on average, as the server says."
    return {"label": "stable", "sentence": sentence, **facts}


def _material(data: RunData, facts: dict, service: np.ndarray) -> bool:
    crowded = [reason for reason in data.requests.reason[data.requests.status == REFUSED] if "queue" in str(reason)]
    wait = facts["mean_queue_s"]
    return bool(crowded) or (wait is not None and wait > MATERIAL * float(service.mean()))


def _seconds(value: float | None) -> str:
    if value is None:
        return "an unknown time"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
