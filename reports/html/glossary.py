"""What the words of a report mean, in the order in which a reader meets them."""

from __future__ import annotations

GLOSSARY = (
    ("TTFT", "Time to first token: from handing the request over to its first token. It is spent in the front end "
     "(parsing, tokenising), the queue (until the engine gives it KV memory) and prefill."),
    ("TPOT", "Time per output token: (E2E − TTFT) / (n − 1) of a request with n > 1 output tokens. Every request "
     "counts once."),
    ("ITL", "Inter-token latency: the gap between two successive tokens of a request. Every gap counts once, so long "
     "answers weigh more than in TPOT; pauses show here that TPOT averages away. TTFT is not part of it."),
    ("E2E latency", "From handing the request over to its last token."),
    ("E2E from schedule", "The same from the time at which it should have been sent: it does not flatter a client that "
     "falls behind."),
    ("Output throughput", "Output tokens of finished requests / duration, where duration runs from the first planned "
     "send to the last token, or to the end of a request that failed later. Warm-up and drain are in it; the steady "
     "value leaves them out."),
    ("Total throughput", "Input and output tokens of finished requests / duration. Never compare it with output "
     "throughput."),
    ("Peak second", "The most tokens handed out in any one second."),
    ("Concurrency", "Requests in flight. The mean is the sum of all E2E latencies / duration (Little's law)."),
    ("Goodput", "Finished requests a second that met every limit of the SLO. Attainment is their share of the "
     "requests sent, so refusals and failures hurt it."),
    ("p95, p99", "95 or 99 of 100 values are at most this (linear interpolation). Withheld below 20 or 100 values."),
    ("Range", "Low and high end of an 80 % interval. In simulation it holds the errors of the cost model, which are one for "
     "the whole run and do not average out, and, where traffic was drawn, what another seed would give. On a real engine it "
     "is what chance leaves open. Near saturation small errors of steps become large ones of latencies."),
    ("KV used", "KV tokens of live sequences."),
    ("KV cached", "Blocks no sequence needs now that hold a prefix which may be hit; free on demand."),
    ("KV reserved", "Set aside for tokens that will come."),
    ("Internal waste", "Slots inside an allocated block or slab that will never be used."),
    ("External waste", "Free slots in holes too small for what is asked."),
    ("Preemption", "A running sequence gives its KV memory back and is computed again, or swapped in, later."),
    ("Prefix hit rate", "Prompt tokens served from cache / prompt tokens, once per admission."),
    ("Mean batch", "Decoding sequences per engine step."),
    ("Acceptance length", "Tokens that a step of speculative decoding gives a sequence: the drafts that held, and one more."),
    ("Acceptance rate", "Drafts that held / drafts verified; by position, of all steps with drafts."),
    ("Stable, backlogged, overloaded", "Whether the queue stayed small; formed but was worked off; or grew for as long "
     "as requests came."),
)  # fmt: skip
