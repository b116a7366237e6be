"""Warnings on a simulated run: where the front end, whose speed is partly an estimate, decides what clients see."""

from __future__ import annotations

import numpy as np

from reports.run_data import Requests
from sim.cost.host import FrontEnd

STREAMED = 8000.0
"""Output tokens a second through one HTTP front end from which on its capacity may decide. Measured ceilings: 9,200
(`trtllm-serve` 1.0, Llama-3.1-8B on H100), 12,100 (vLLM 0.19, Qwen3-0.6B on H100, ovg-project/kvcached#331); vLLM 0.30 hands out
16,500 and more."""

WAITED, SHARE = 0.1, 0.2
"""Seconds for which requests wait on average to be prepared, and their share of TTFT, from which on they are told."""


def front_end_limits(front: FrontEnd, requests: Requests, seconds: float) -> list[str]:
    """What to tell the user of a run that took `seconds`."""
    found = []
    sent = np.isfinite(requests.queued) & np.isfinite(requests.first_token)
    if not sent.any() or seconds <= 0:
        return []
    own = front.base + front.request_work + front.input_token * requests.input_tokens[sent]
    wait = float(np.mean(requests.queued[sent] - requests.sent[sent] - own))
    ttft = float(np.mean(requests.first_token[sent] - requests.sent[sent]))
    if wait > WAITED and wait > SHARE * ttft:
        each = 1.0 / float(np.mean(own - front.base))
        found.append(
            f"requests wait {wait:.2f} s of their TTFT for the front end, which is taken to prepare {each:,.0f} a second, an "
            "estimate: vLLM 0.9 to 0.19 took about 95 in two reports, vLLM 0.30 at least 130"
        )
    rate = float(requests.output_tokens.sum()) / seconds
    if front.output_work and rate > STREAMED:
        found.append(
            f"{rate:,.0f} tokens a second may be more than one HTTP front end streams: it is taken to hand out "
            f"{1 / front.output_work:,.0f}, partly an estimate; ceilings of 9,200 to 16,500 were measured"
        )
    return found
