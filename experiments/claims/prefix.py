"""Prefix caching: blocks against a radix tree, and what it needs to be worth anything.

The bundled agents trace (lengths, rate and sharing of Mooncake's conversations: a system prompt, several turns), the
same engine with no cache, with vLLM's blocks of 16 tokens and with a radix tree over single tokens, so that nothing
else differs. Then three kinds of prompts that are said to gain: RAG (a few long documents), few-shot examples (a
tree), several turns. And traffic in which nothing is shared.
"""

from __future__ import annotations

from typing import Any

from experiments.claims.base import Chart, Check, Result, Table, Verdict, more, per_cent, times
from experiments.claims.simulate import Run, simulate

NAME, TITLE = "prefix-caching", "Prefix caching: blocks, radix tree, and traffic that shares nothing"
WORKLOAD = """
name: prefix caching
model: meta-llama/Llama-3.1-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm}
traffic:
  max_tokens: {fixed: 2048}
  trace: {format: twinserve, path: agents.jsonl.gz, limit: 1500}
load: {mode: closed, concurrency: 24}
"""
CACHES = {
    "no cache": {"engine.kv.prefix_caching": False},
    "blocks of 16": {"engine.kv.prefix_caching": True},
    "radix tree": {"engine.kv.allocator": "radix", "engine.kv.block_size": 1, "engine.kv.register": "computed"},
}
BLOCKS = (16, 64, 256, 1024)
TURNS = """
name: prompts that share
model: meta-llama/Llama-3.1-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm}
traffic:
  max_tokens: exact
  synthetic:
    requests: 600
    arrivals: {process: poisson, rate: 4}
    input_tokens: {distribution: lognormal, mean: 200, std: 150, high: 1000}
    output_tokens: {distribution: lognormal, mean: 200, std: 150, high: 1000}
load: {mode: open}
"""
KINDS: dict[str, dict[str, Any]] = {
    "RAG: 20 documents of 6,000 tokens": {
        "traffic.synthetic.prefix": {"kind": "system-prompts", "count": 20, "tokens": 6000, "zipf": 1.0},
    },
    "few-shot: tree of examples, 3,000 tokens": {
        "traffic.synthetic.prefix": {
            "kind": "tree", "levels": [{"branches": 4, "tokens": 2000}, {"branches": 8, "tokens": 1000}],
        },
    },
    "multi-turn: 8 turns": {
        "traffic.synthetic.sessions": {"turns": 8, "think": {"distribution": "exponential", "mean": "10s"}},
        "traffic.synthetic.arrivals": {"process": "poisson", "rate": 0.6},
        "traffic.synthetic.input_tokens": {"distribution": "lognormal", "mean": 600, "std": 400, "high": 3000},
    },
    "nothing shared": {
        "traffic.synthetic.input_tokens": {"distribution": "lognormal", "mean": 3000, "std": 1500, "high": 8000},
    },
}  # fmt: skip


def run(small: bool = False) -> Result:
    """The experiment; `small` takes a fifth of the requests."""
    limit, requests = (300, 150) if small else (1500, 600)
    agents = {name: simulate(WORKLOAD, {**cache, "traffic.trace.limit": limit}) for name, cache in CACHES.items()}
    sizes = {size: simulate(WORKLOAD, {"engine.kv.block_size": size, "traffic.trace.limit": limit}) for size in BLOCKS}
    private = {
        name: simulate(TURNS, {
            **KINDS["nothing shared"], **cache, "traffic.synthetic.requests": requests,
            "traffic.synthetic.arrivals": {"process": "at-once"},
        })
        for name, cache in CACHES.items()
    }  # fmt: skip
    kinds = {
        name: {
            caching: simulate(
                TURNS, {**change, "traffic.synthetic.requests": requests, "engine.kv.prefix_caching": caching}
            )
            for caching in (False, True)
        }
        for name, change in KINDS.items()
    }
    tables = (
        Table(
            "Engine kept full: Llama-3.1-8B on one H100",
            ("traffic", "cache", "output tokens/s", "p50 TTFT ms", "hit rate"),
            tuple(
                (traffic, name, one["output_throughput"], one["median_ttft_ms"], per_cent(one["prefix_hit_rate"] or 0, 1))
                for traffic, found in (("agents", agents), ("nothing shared", private))
                for name, one in found.items()
            ),
        ),
        Table(
            "Agents by size of block", ("tokens a block", "output tokens/s", "p50 TTFT ms", "hit rate"),
            tuple(
                (size, one["output_throughput"], one["median_ttft_ms"], per_cent(one["prefix_hit_rate"] or 0, 1))
                for size, one in sizes.items()
            ),
        ),
        Table(
            "Time to first token, open loop",
            ("prompts", "hit rate", "p50 without ms", "p50 with ms", "p95 without ms", "p95 with ms"),
            tuple(
                (name, per_cent(two[True]["prefix_hit_rate"], 0), two[False]["median_ttft_ms"], two[True]["median_ttft_ms"],
                 two[False]["p95_ttft_ms"], two[True]["p95_ttft_ms"])
                for name, two in kinds.items()
            ),
        ),
    )  # fmt: skip
    charts = (
        Chart(
            "Median time to first token", "bars", tuple(name.split(":")[0] for name in kinds),
            {
                "no cache": [two[False]["median_ttft_ms"] for two in kinds.values()],
                "prefix caching": [two[True]["median_ttft_ms"] for two in kinds.values()],
            },
            "", "ms",
        ),
    )  # fmt: skip
    return Result(NAME, TITLE, tables, charts, (_radix(agents, private, sizes), _first(kinds)), small)


def _rate(one: Run) -> float:
    return one["output_throughput"]


def _radix(agents: dict, private: dict, sizes: dict) -> Verdict:
    none, blocks, tree = (_rate(agents[name]) for name in CACHES)
    alone = {name: _rate(one) / _rate(private["no cache"]) for name, one in private.items()}
    hits = {name: agents[name]["prefix_hit_rate"] or 0 for name in CACHES}
    return Verdict(
        "RadixAttention gains 10 to 20 % on multi-turn and agent traffic, about 10 % over block prefix caching; "
        "nothing when nothing is shared",
        "an overview of serving engines and an analysis of vLLM and TensorRT-LLM, after SGLang",
        (
            Check("radix tree over no cache, agents", "+10 to 20 % (± 5 points)", more(tree / none), 1.05 <= tree / none <= 1.25),
            Check("radix tree over blocks, agents", "about +10 % (± 5 points)", more(tree / blocks),
                  1.05 <= tree / blocks <= 1.15),
            Check("nothing shared (within 1 %)", "0 %", more(alone["radix tree"]), abs(alone["radix tree"] - 1) <= 0.01),
        ),
        f"Agents share much: {per_cent(hits['radix tree'], 1)} of prompt tokens are hit by the tree and "
        f"{per_cent(hits['blocks of 16'], 1)} by blocks of 16, which lose half a block a request but may be hit as "
        "soon as a step is planned, the tree only once it was computed. So caching as such gives "
        f"{more(blocks / none)}, and tokens instead of blocks {more(tree / blocks)}; even blocks of {BLOCKS[-1]:,} "
        f"still hit {per_cent(sizes[BLOCKS[-1]]['prefix_hit_rate'], 1)}. A lead of 10 % over an engine with a block "
        "cache must have other causes than the tree, such as a cache that was off by default.",
    )  # fmt: skip


def _first(kinds: dict) -> Verdict:
    cut = {name: two[True]["median_ttft_ms"] / two[False]["median_ttft_ms"] for name, two in kinds.items()}
    named = {name: ratio for name, ratio in cut.items() if name != "nothing shared"}
    hits = {name: two[True]["prefix_hit_rate"] for name, two in kinds.items()}
    front = {name: two[True]["median_front_end_ms"] for name, two in kinds.items()}
    most = min(named, key=lambda name: named[name])
    return Verdict(
        "prefix caching cuts time to first token sharply for RAG, few-shot and multi-turn prompts",
        "an analysis of vLLM and TensorRT-LLM",
        (
            *(
                Check(f"{name}: median TTFT", "at most half", more(ratio), ratio <= 0.5) for name, ratio in named.items()
            ),
            Check("nothing shared: median TTFT (within 2 %)", "0 %", more(cut["nothing shared"]),
                  abs(cut["nothing shared"] - 1) <= 0.02),
        ),
        "The cut follows the share of the prompt that is there already "
        f"({', '.join(per_cent(hits[name]) for name in named)}): the most is {times(1 / named[most])} for "
        f"{most.split(':')[0]}. What stays is the part that is new, a step's fixed cost and {front[most]:.0f} ms of "
        "front end, which reads the whole prompt, hit or not.",
    )  # fmt: skip
