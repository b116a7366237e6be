"""No option without an effect: every key of the workload file changes a result, or is refused where it could not.

Each key has an entry below (a blank tells a second one apart); a new field of the schema without one fails. Options that
are parsed and then ignored are the most reported fault of engines and simulators alike.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import BaseModel
from simulate import run, workload

from experiments import runner
from experiments.schema import EngineSection, Workload
from experiments.schema.sampling import SamplingSection
from experiments.schema.workload import HTTP_KEYS
from reports.metrics import summarize
from workloads.errors import InputError

# Memory for a few of many requests that come at once, of all lengths, with prompts, priorities and samples: whatever an
# option is about, it happens here.
PRESSED = {
    "model": "meta-llama/Meta-Llama-3-8B",
    "backend": {"gpu": "h100-sxm"},
    "engine": {
        "preset": "vllm@0.8",
        "scheduler": {"max_num_seqs": 12, "max_num_batched_tokens": 256},
        "kv": {"capacity_tokens": 4000},
        "max_model_len": 2048,
    },
    "traffic": {
        "max_tokens": {"multiple": 2},
        "synthetic": {
            "requests": 60,
            "arrivals": {"process": "poisson", "rate": 60},
            "input_tokens": {"distribution": "lognormal", "mean": 400, "std": 300, "high": 1200},
            "output_tokens": {"distribution": "lognormal", "mean": 120, "std": 90, "high": 400},
            "prefix": {"kind": "system-prompts", "count": 3, "tokens": 100},
            "priority": {"0": 1, "1": 1, "2": 1},
            "n": {"1": 9, "2": 1},
        },
    },
}
ROOMY = {"engine.kv": {}, "engine.scheduler": {}}
FIRST = {"engine.scheduler.prefill": "first"}
CROWDED = {  # several prompts with the same beginning in one step
    "engine.scheduler.max_num_batched_tokens": 2048,
    "traffic.synthetic.arrivals": {"process": "poisson", "rate": 400},
}
RATIO = {"engine.scheduler.gate": "ratio"}
MOE = {**ROOMY, "model": "mistralai/Mixtral-8x7B-v0.1", "engine.parallel.tensor": 4}
STATIC = {"engine.preset": "static", "engine.scheduler": {"max_num_seqs": 8}, "engine.kv": {"capacity_tokens": 20_000}}
SLABS = {"engine.kv.allocator": "contiguous", "engine.kv.capacity_tokens": 12_000}
DRAFTS = {"engine.speculation": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.7}}
SMALLER = {"engine.speculation": {"method": "draft-model", "num_speculative_tokens": 3, "acceptance": 0.7,
                                  "draft_model": "meta-llama/Llama-3.2-1B"}}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Values of one key, all of which must give different results from what is there without it and from each other.

    Attributes:
        values: of the key.   on: what is changed first, so that the key has something to do.
        baseline: whether leaving the key out is one of those that must differ.
        refused: (on, value) pairs that must be errors, since the key could not do anything there.
    """

    values: tuple[Any, ...] = ()
    on: dict[str, Any] = field(default_factory=dict)
    baseline: bool = True
    refused: tuple[tuple[dict[str, Any], Any], ...] = ()


ENGINE = {
    "preset": Case(("vllm", "vllm-v0", "sglang", "sglang-mixed", "tensorrt-llm", "tensorrt-llm-max-utilization",
                    "tensorrt-llm-static", "lightllm", "orca", "static"), {"engine.scheduler": {}}),
    "preset ": Case(("vllm", "vllm-v0", "sglang", "sglang-mixed", "tensorrt-llm", "tensorrt-llm-chunked", "lightllm")),
    "quantization": Case(("fp8", "awq-int4"), ROOMY),
    "max_model_len": Case((500, 700)),
    "depth": Case((2,)),
    "stops_ahead": Case((False,), {"engine.preset": "vllm"}, refused=(({}, True),)),
    "cuda_graphs": Case((False,), refused=(({"engine.host": "none"}, True),)),
    "cuda_graph_padding": Case((False,), {**ROOMY, "engine.preset": "tensorrt-llm", **CROWDED},
                               refused=(({"engine.host": "none"}, True), ({"engine.preset": "vllm"}, False),
                                        ({"engine.cuda_graphs": False}, False))),
    "host": Case(("sglang", "tensorrt-llm", "none")),
    "scheduler.name": Case(("static",), {"engine.scheduler": {}}),
    "scheduler.name ": Case(("continuous",)),
    "scheduler.max_num_seqs": Case((2, 4)),
    "scheduler.max_num_batched_tokens": Case((64, 128), refused=((STATIC, 512),)),
    "scheduler.policy": Case(("priority", "lpm", "shortest-job"),
                             refused=(({"engine.kv.prefix_caching": False}, "lpm"),)),
    "scheduler.gate": Case(("watermark", "full-prompt", "ratio", "reserve-output", "max-length", "future-peak"),
                           refused=((SLABS, "ratio"), ({"engine.scheduler.victim": "none"}, "optimistic"))),
    "scheduler.watermark": Case((0.1, 0.3), {"engine.scheduler.gate": "full-prompt"}, refused=((RATIO, 0.1),)),
    "scheduler.victim": Case(("lowest-priority", "fewest-outputs", "none"),
                             refused=((STATIC, "last-admitted"), (SLABS, "last-admitted"))),
    "scheduler.preemption": Case(("swap",), {"engine.preset": "vllm-v0", "engine.scheduler": {}},
                                 refused=(({}, "swap"), ({"engine.preset": "sglang"}, "swap"), (SLABS, "swap"))),
    "scheduler.requeue": Case(("tail", "arrival"),
                              refused=(({"engine.scheduler.policy": "priority"}, "tail"), (SLABS, "tail"))),
    "scheduler.prefill": Case(("first",), refused=((STATIC, "first"),)),
    "scheduler.hold_shared": Case((True,), {**CROWDED, "engine.kv.register": "computed"},
                                  refused=((SLABS, True), ({"engine.kv.allocator": "radix"}, True))),
    "scheduler.long_prefill_token_threshold": Case((64, 128), refused=((STATIC, 64),)),
    "scheduler.chunk_unit": Case((32, 100), refused=(({"engine.scheduler.name": "continuous"}, 32),)),
    "scheduler.max_partial_prefills": Case((1,), {"engine.scheduler.long_prefill_token_threshold": 64},
                                           refused=((STATIC, 1),)),
    "scheduler.admit_after_preemption": Case((True,), {"engine.scheduler.requeue": "tail"},
                                             refused=((STATIC, True), (SLABS, True))),
    "scheduler.conservativeness": Case((0.3, 1.3), RATIO, refused=(({}, 0.5),)),
    "scheduler.batch_wait": Case(("100ms", "1s"), STATIC, refused=(({}, "1s"),)),
    "scheduler.prefill_wait_steps": Case((4, 16), FIRST, refused=(({}, 4), (STATIC, 4))),
    "scheduler.poll_interval": Case((4, 16), ROOMY),
    "scheduler.streaming": Case((True,), STATIC, refused=(({}, True),)),
    "scheduler.pad": Case((False,), STATIC, refused=(({}, False),)),
    "kv.allocator": Case(("contiguous", "radix")),
    "kv.block_size": Case((1, 64, 256), refused=((SLABS, 16), ({"engine.kv.allocator": "radix"}, 16))),
    "kv.prefix_caching": Case((False,), refused=((SLABS, True), (STATIC, True))),
    "kv.register": Case(("computed",), CROWDED, refused=(({"engine.kv.prefix_caching": False}, "computed"),)),
    "kv.slab": Case(("power-of-two", "exact"), SLABS, refused=(({}, "exact"), ({"engine.kv.allocator": "radix"}, "exact"))),
    "kv.dtype": Case(("fp8", "int8"), ROOMY),
    "kv.memory_utilization": Case((0.3, 0.5), ROOMY, refused=(({}, 0.5),)),
    "kv.memory_rule": Case(("static", "free"), ROOMY, refused=(({}, "free"),)),
    "kv.capacity_tokens": Case((3000, 8000)),
    "kv.swap_gib": Case((0, 0.05), {"engine.preset": "vllm-v0", "engine.scheduler": {"preemption": "swap"}},
                        refused=(({}, 1),)),
    "speculation.method": Case(("eagle", "eagle3", "medusa"), DRAFTS),
    "speculation.method ": Case(("mtp",), DRAFTS),
    "speculation.num_speculative_tokens": Case((1, 5), DRAFTS, refused=(({}, 3),)),
    "speculation.acceptance": Case((0.5, [0.7, 0.6, 0.5], [0.7, 0.5, 0.6]), DRAFTS,
                                   refused=(({}, 0.7), (DRAFTS, [0.7, 0.6]))),
    "speculation.draft_model": Case(("meta-llama/Llama-3.2-3B",), SMALLER,
                                    refused=((DRAFTS, "meta-llama/Llama-3.2-1B"), (SMALLER, "Qwen/Qwen2.5-0.5B"))),
    "speculation.disable_by_batch_size": Case((3, 6), DRAFTS, refused=(({}, 3), (DRAFTS, 12))),
    "parallel.tensor": Case((2, 4), ROOMY),
    "parallel.pipeline": Case((2, 4), ROOMY),
    "parallel.expert": Case((2, 4), MOE, refused=((ROOMY, 2),)),
    "parallel.data": Case((2, 4), {**MOE, "engine.parallel.tensor": 2}, refused=((ROOMY, 2),)),
}  # fmt: skip


def keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted keys of a section and what lies in it."""
    found = []
    for name, info in section.model_fields.items():
        inner = [t for t in (info.annotation, *get_args(info.annotation)) if isinstance(t, type)]
        nested = next((t for t in inner if issubclass(t, BaseModel)), None)
        found += keys(nested, f"{prefix}{name}.") if nested else [prefix + name]
    return found


def outcome(changes: dict[str, Any]) -> tuple:
    """All that a run gives: what became of each request and when, where memory went, who met the SLO."""
    data = run(changes, PRESSED)
    r, t = data.requests, data.timeline
    columns = [r.status.astype(str), r.output_tokens, r.cached_tokens, r.preemptions, r.first_token, r.finish]
    memory = [data.info["kv_pool_tokens"], t.kv_used, t.kv_internal, t.kv_reserved, t.kv_cached]
    return tuple(np.asarray(column).tobytes() for column in [*columns, *memory])


def test_every_engine_option_has_an_entry() -> None:
    assert sorted(keys(EngineSection)) == sorted({key.strip() for key in ENGINE})


@pytest.mark.parametrize("key", ENGINE)
def test_an_engine_option_changes_a_result(key: str) -> None:
    case, key = ENGINE[key], key.strip()
    seen = {}
    if case.values and case.baseline:
        seen[outcome(case.on)] = "nothing"
    for value in case.values:
        found = outcome({**case.on, f"engine.{key}": value})
        assert found not in seen, f"{key}: {value} gives what {seen[found]} gives"
        seen[found] = value


@pytest.mark.parametrize(
    ("key", "on", "value"), [(key, on, value) for key, case in ENGINE.items() for on, value in case.refused]
)
def test_an_engine_option_that_could_do_nothing_is_refused(key: str, on: dict, value: Any) -> None:
    runner.resolve(workload(on, PRESSED))
    with pytest.raises(InputError) as caught:
        runner.resolve(workload({**on, f"engine.{key}": value}, PRESSED))
    assert key.split(".")[-1] in str(caught.value)


TRACED = {
    "model": "meta-llama/Meta-Llama-3-8B",
    "backend": {"gpu": "l4"},
    "engine": {"kv": {"capacity_tokens": 40_000}},
    "traffic": {"trace": {"path": "chat.jsonl.gz", "limit": 30}},
    "slo": {"ttft_ms": 1000},
}
CLOSED = {"load": {"mode": "closed", "concurrency": 4}}
NODES = {"backend.gpu": "h100-sxm", "engine.parallel.tensor": 4, "backend.gpus_per_node": 1}
RESERVING = {"engine.preset": "tensorrt-llm", "engine.kv.capacity_tokens": 9000}
AGENTS = {"traffic.trace": {"path": "agents.jsonl.gz", "limit": 60}, "cluster": {"replicas": 3, "router": "prefix"}}
APART = {"cluster": {"prefill": {}, "decode": {}}, "engine.scheduler.max_num_seqs": 256}
SCALED = {
    "engine.scheduler.max_num_seqs": 256, "backend.gpu": "l40s", "traffic.trace.rate_scale": 20, "traffic.trace.limit": 120,
    "cluster.autoscale": {"max": 5, "signal": "requests", "target": 2, "interval": "500ms", "start_up": "500ms",
                          "down_window": "500ms"},
}  # fmt: skip
OTHERS = {
    "name": Case(("another",)),
    "seed": Case((1, 2), {"traffic.trace.sample": 0.1}),
    "model": Case(("mistralai/Mistral-7B-v0.1",)),
    "backend.name": Case(refused=(({}, "torchh"),)),
    "backend.gpu": Case(("a10g", "h100-sxm")),
    "backend.link": Case(("nvlink4", "pcie3"), {"engine.parallel.tensor": 2}),
    "backend.network": Case(("ethernet-100g", "infiniband-xdr"), NODES),
    "backend.gpus_per_node": Case((2, 4), NODES, baseline=False),
    # what only one of the two worlds reads is told (tests in test_real_backend.py), so that one file runs in both
    "backend.load": Case(),
    "backend.dtype": Case(),
    "backend.device": Case(),
    **{f"backend.{key}": Case() for key in HTTP_KEYS},  # tests in tests/backends/http
    "cluster.replicas": Case((2, 3)),
    "cluster.router": Case(("least-requests", "random", "session"), {"cluster.replicas": 3}),
    "cluster.options": Case(
        ({"cache_threshold": 0.0}, {"balance_abs": 0, "balance_rel": 1.0}),
        AGENTS,
        refused=(({}, {"cache_threshold": 0.5}), (AGENTS, {"threshold": 0.5})),
    ),
    "cluster.autoscale.min": Case((2, 3), SCALED),
    "cluster.autoscale.max": Case((2, 3), SCALED, baseline=False),
    "cluster.autoscale.policy": Case((), SCALED, refused=((SCALED, "hpaa"),)),  # others in test_scaled.py
    "cluster.autoscale.signal": Case(("queue", "rate"), SCALED),
    "cluster.autoscale.target": Case((1, 4), SCALED),
    "cluster.autoscale.tolerance": Case((0.5, 0.9), SCALED),
    "cluster.autoscale.up_window": Case(("1s", "2s"), SCALED),
    "cluster.autoscale.down_window": Case(("0s", "1s"), SCALED),
    "cluster.autoscale.interval": Case(("300ms", "1s"), SCALED),
    "cluster.autoscale.start_up": Case(("0s", "1s"), SCALED),
    "cluster.autoscale.options": Case((), SCALED, refused=((SCALED, {"a": 1}),)),  # others in test_scaled.py
    "cluster.prefill.replicas": Case((2, 3), APART),
    "cluster.decode.replicas": Case((2, 3), APART),
    "cluster.prefill.router": Case(("random", "session"), {**APART, "cluster.prefill.replicas": 3}),
    "cluster.decode.router": Case(("random", "session"), {**APART, "cluster.decode.replicas": 3}),
    "cluster.prefill.options": Case(
        ({"cache_threshold": 0.9}, {"balance_abs": 0, "balance_rel": 1.0}),
        {**AGENTS, "cluster": {"prefill": {"replicas": 3, "router": "prefix"}, "decode": {}}},
        refused=((APART, {"cache_threshold": 0.5}),),
    ),
    "cluster.decode.options": Case(
        ({"balance_abs": 0, "balance_rel": 1.0},),
        {**AGENTS, "cluster": {"prefill": {}, "decode": {"replicas": 3, "router": "prefix"}}},
        refused=((APART, {"cache_threshold": 0.5}),),
    ),
    "cluster.transfer.link": Case(("pcie3", "ethernet-100g"), APART, refused=((APART, "pcie9"),)),
    "cluster.transfer.bandwidth": Case(("1GB/s", "100Gbit/s"), APART, refused=((APART, 3),)),
    "cluster.transfer.latency": Case(("5ms", "20ms"), APART),
    "cluster.transfer.protocol": Case(("push",), APART),
    "cluster.transfer.overlap": Case(
        ("none", "layers"),
        {
            **APART,
            "cluster.transfer": {"protocol": "push", "bandwidth": "1GB/s"},
            "engine.scheduler.max_num_batched_tokens": 256,
        },
        refused=((APART, "layers"),),
    ),
    "cluster.transfer.first_token": Case(("prefill",), APART),
    **{
        f"cost.{key}": Case() for key in ("model", "tables", "calibration", "routing_skew")
    },  # tests in test_cost_section.py
    "traffic.max_tokens": Case(("exact", {"fixed": 100}, {"multiple": 1.5}), RESERVING),
    "traffic.synthetic": Case(refused=(({}, {"requests": 3, "input_tokens": 5, "output_tokens": 5}),)),
    "traffic.trace.path": Case(("code.jsonl.gz", "agents.jsonl.gz")),
    "traffic.trace.format": Case(refused=(({}, "azure"), ({}, "azur"))),
    "traffic.trace.start": Case(("1min", "2min")),
    "traffic.trace.duration": Case(("1s", "2s")),
    "traffic.trace.rate_scale": Case((0.5, 3.0)),
    "traffic.trace.sample": Case((0.1, 20), {"traffic.trace.limit": None}, baseline=False),
    "traffic.trace.limit": Case((5, 10)),
    "traffic.trace.arrivals": Case(({"process": "poisson", "rate": 3}, {"process": "constant", "rate": 3})),
    "traffic.trace.accept_implausible": Case(),  # below
    **{f"sampling.{key}": Case() for key in SamplingSection.model_fields},  # as backend.load
    "load.mode": Case(("offline",), refused=(({}, "closed"), (CLOSED, "open"))),
    "load.max_concurrency": Case((1, 2), refused=((CLOSED, 4),)),
    "load.concurrency": Case((1, 4), CLOSED, baseline=False, refused=(({}, 4),)),
    "slo.ttft_ms": Case((400, 800)),
    "slo.tpot_ms": Case((70, 75)),
    "slo.e2e_ms": Case((8000, 16000)),
}


def whole(changes: dict[str, Any]) -> str:
    """Everything that is told of a run."""
    data = run(changes, TRACED)
    return json.dumps([data.info["name"], summarize(data, with_intervals=False)], default=str)


def test_every_other_option_has_an_entry() -> None:
    engines = ("engine.", "cluster.prefill.engine.", "cluster.decode.engine.")  # the same section three times
    ours = [key for key in keys(Workload) if not key.startswith(engines) and key != "sweep"]
    assert sorted(ours) == sorted(OTHERS)


@pytest.mark.parametrize("key", [key for key, case in OTHERS.items() if case.values])
def test_another_option_changes_a_result(key: str) -> None:
    case = OTHERS[key]
    found = [whole({**case.on, key: value}) for value in case.values]
    found += [whole(case.on)] if case.baseline else []
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("key", "on", "value"), [(key, on, value) for key, case in OTHERS.items() for on, value in case.refused]
)
def test_another_option_that_could_do_nothing_is_refused(key: str, on: dict, value: Any) -> None:
    assert len(runner.resolve(workload(on, TRACED)).traffic)
    with pytest.raises(InputError) as caught:
        len(runner.resolve(workload({**on, key: value}, TRACED)).traffic)
    assert key.rpartition(".")[2] in str(caught.value)


def test_traffic_that_looks_wrong_is_refused_unless_asked_for(tmp_path: Path) -> None:
    rows = "".join(f"{i * 1_000_000},50,5\n" for i in range(30))
    (tmp_path / "t.csv").write_text("arrival,input_tokens,output_tokens\n" + rows)
    trace = {"traffic.trace": {"path": str(tmp_path / "t.csv")}}
    with pytest.raises(InputError, match=r"look like milliseconds read as seconds.*accept_implausible: true"):
        run(trace, TRACED)
    assert len(run({**trace, "traffic.trace.accept_implausible": True}, TRACED).requests) == 30
