"""Too high a memory fraction, too long a maximum: what runs out of memory, and what is left beside the pool.

The memory planner divides a GPU as each engine does. With vLLM's rule the fraction covers everything, so that a
fraction near one leaves nothing for what is allocated outside of it; with SGLang's the activations live outside, so
that they are what no longer fits.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.claims.base import Chart, Check, Result, Table, Verdict, per_cent
from experiments.claims.simulate import resolved
from sim.memory import memory_budget
from sim.presets import preset_config
from workloads.errors import InputError

NAME, TITLE = "memory-limits", "Memory fraction and maximum length: where memory runs out"
WORKLOAD = """
name: memory limits
model: meta-llama/Llama-3.1-8B
backend: {name: sim, gpu: l4}
engine: {preset: vllm, max_model_len: 8192}
traffic:
  synthetic: {requests: 1, input_tokens: 512, output_tokens: 128}
"""
FRACTIONS = (0.70, 0.80, 0.85, 0.90, 0.92, 0.95, 0.98, 1.00)
LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
GIB = 1 << 30
MARGIN = (
    0.5  # GiB that must be left over: fragmentation and libraries; vLLM and SGLang advise some tenths of a GiB to 2
)


def outcome(preset: str = "vllm", fraction: float | None = None, longest: int = 8192) -> tuple[str, float, int]:
    """`runs`, `too little KV` or `out of memory`; GiB left beside everything that is planned; tokens of KV."""
    ready = resolved(WORKLOAD)
    engine = preset_config(preset, device_memory=ready.gpu.memory_bytes, max_model_len=longest)
    kv = engine.kv if fraction is None else replace(engine.kv, memory_utilization=fraction)
    try:
        budget = memory_budget(ready.model, ready.gpu, replace(engine, kv=kv, max_model_len=longest))
    except InputError:
        return "too little KV", 0.0, 0
    left = budget.unused_bytes / GIB
    if left < 0:
        return "out of memory", left, budget.kv_tokens
    return ("runs" if left >= MARGIN else f"runs with less than {MARGIN} GiB to spare"), left, budget.kv_tokens


def run(small: bool = False) -> Result:
    """The experiment; it is as quick in full."""
    by_fraction = {preset: {f: outcome(preset, f) for f in FRACTIONS} for preset in ("vllm", "sglang")}
    by_length = {n: outcome(longest=n) for n in LENGTHS}
    tables = (
        Table(
            "Llama-3.1-8B on an L4 (22 GiB) by memory fraction",
            ("fraction", *(f"{preset}: {what}" for preset in by_fraction for what in ("outcome", "GiB left", "KV tokens"))),
            tuple((f"{f:.2f}", *(cell for found in by_fraction.values() for cell in found[f])) for f in FRACTIONS),
        ),
        Table(
            "By maximum length, vLLM's rule at its default fraction", ("maximum length", "outcome", "KV tokens"),
            tuple((f"{n:,}", found[0], found[2]) for n, found in by_length.items()),
        ),
    )  # fmt: skip
    charts = (
        Chart(
            "Memory left beside all that is planned (Llama-3.1-8B, L4)", "lines", FRACTIONS,
            {preset: [left if word != "too little KV" else None for word, left, _ in found.values()]
             for preset, found in by_fraction.items()},
            "memory fraction", "GiB", level=(0.0, "out of memory below"),
        ),
    )  # fmt: skip
    return Result(NAME, TITLE, tables, charts, (_verdict(by_fraction, by_length),), small)


def _verdict(by_fraction: dict, by_length: dict) -> Verdict:
    bad = {
        preset: [f for f, (word, left, _) in found.items() if word != "too little KV" and left < MARGIN]
        for preset, found in by_fraction.items()
    }
    out = {
        preset: [f for f, (word, *_) in found.items() if word == "out of memory"]
        for preset, found in by_fraction.items()
    }
    refused = [n for n, (word, *_) in by_length.items() if word == "too little KV"]
    fits = max((n for n, (word, *_) in by_length.items() if word != "too little KV"), default=0)
    ready = resolved(WORKLOAD)
    limit = ready.model.max_position
    weights = ready.budget.weight_bytes / ready.budget.total_bytes

    def words(fractions: list[float]) -> str:
        return f"from {min(fractions):.2f} on" if fractions else "never"

    return Verdict(
        "too high a GPU memory fraction or maximum length ends in out-of-memory",
        "an overview of serving engines",
        (
            Check("vLLM's rule: less than 0.5 GiB left over at high fractions", "yes", words(bad["vllm"]), bool(bad["vllm"])),
            Check("SGLang's rule: activations do not fit at high fractions", "yes", words(out["sglang"]), bool(out["sglang"])),
            Check(f"the model's own maximum of {limit:,} tokens does not fit", "yes", words_of(refused), limit in refused),
        ),
        f"Weights take {per_cent(weights)} of an L4. With SGLang's rule what lives outside the fraction runs out "
        f"{words(out['sglang'])}; with vLLM's everything planned lies inside, so that the plan itself never fails, "
        f"but {words(bad['vllm'])} less than {MARGIN} GiB are left for what nobody planned. A maximum length is "
        f"refused at the start, not in the middle of the night: up to {fits:,} tokens fit. What is planned here are "
        "estimates from shapes; fragmentation is not simulated.",
    )  # fmt: skip


def words_of(lengths: list[int]) -> str:
    """Lengths that were refused, as a sentence."""
    return "refused: " + ", ".join(f"{n:,}" for n in lengths) if lengths else "all fit"
