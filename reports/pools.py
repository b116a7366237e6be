"""Prefill apart from decode: what either pool did, and how long requests were on their way from one to the other."""

from __future__ import annotations

import numpy as np

from reports.percentiles import Distribution, statistics
from reports.run_data import FINISHED, RunData
from reports.wording import number, share, size

STAGES = ("handover", "decode_queue", "transfer")
"""From prompt to answer: from the prefill engine through front ends to a decode engine (where it is asked after the prompt), in
the queue for memory there, and KV on its way, waiting for adapters counted in."""


def stages(data: RunData) -> dict[str, Distribution]:
    """Seconds that finished requests spent in each of `STAGES`; nothing of a run with one kind of engine."""
    r = data.requests
    if r.received is None:
        return {}
    done = (r.status == FINISHED) & np.isfinite(r.received)
    asked_after = r.handed >= r.prefilled
    return {
        "handover": Distribution.of((r.handed - r.prefilled)[done & asked_after]),
        "decode_queue": Distribution.of((r.reserved - r.handed)[done]),
        "transfer": Distribution.of((r.received - r.moving)[done]),
    }


def pool_figures(data: RunData) -> dict:
    """Figures of both pools; nothing of a run with one kind of engine.

    Returns:
        `pools`: for `prefill` and `decode` each `replicas`, `gpus`, `busy_share`, `kv_used_mean`, `imbalance` (requests of the
        engine with most over the mean) and the tokens that it computed; `transfer`: `bytes`, `tokens`, `rate` in bytes/s of one
        transfer alone, `busy_share` of the adapters on the side with fewer engines; and statistics of `STAGES`, such as
        `p95_transfer_ms`.
    """
    found = stages(data)
    if not found:
        return {}
    r, pools = data.requests, data.info["pools"]
    done = r.status == FINISHED
    tokens = {
        "prefill": int((r.input_tokens - r.cached_tokens)[done].sum()),
        "decode": int((r.output_tokens - 1)[done & (r.decode_replica >= 0)].sum()),
    }
    figures: dict = {"pools": {}, "transfer": dict(data.info["transfer"])}
    for name, place in (("prefill", r.replica), ("decode", r.decode_replica)):
        counts = np.bincount(place[place >= 0], minlength=pools[name]["replicas"])
        figures["pools"][name] = {
            **pools[name], "tokens": tokens[name], "requests": int(counts.sum()),
            "imbalance": float(counts.max() / counts.mean()) if counts.any() else None,
        }  # fmt: skip
    for name in STAGES:
        figures |= statistics(f"{name}_ms", found[name])
    return figures


def pool_rows(s: dict) -> list[tuple[str, str]]:
    """What is told of the pools, as (title, figure)."""
    rows = []
    for name in ("prefill", "decode"):
        pool = s["pools"][name]
        engines = (
            f"{pool['replicas']} engine{'s' * (pool['replicas'] > 1)} on {pool['gpus']} GPU{'s' * (pool['gpus'] > 1)}"
        )
        use = f"busy {share(pool['busy_share'])}, KV used {share(pool['kv_used_mean'])}"
        rows.append((f"{name.capitalize()}: {engines}", use))
    for title, name in (
        ("Prompt to decode engine", "handover"), ("Queue for memory there", "decode_queue"), ("KV transfer", "transfer"),
    ):  # fmt: skip
        if s[f"mean_{name}_ms"] is not None:
            rows.append(
                (f"  {title}, mean / p95 (ms)", f"{number(s[f'mean_{name}_ms'])} / {number(s[f'p95_{name}_ms'])}")
            )
    moved = s["transfer"]
    rows.append(("  KV moved, links busy", f"{size(moved['bytes'])}, {share(moved['busy_share'])}"))
    return rows
