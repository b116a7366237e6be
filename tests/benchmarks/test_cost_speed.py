"""Pricing a step: a few microseconds, whatever the batch. Processor time, as ratios."""

import random
import time

from sim.config import EngineConfig
from sim.cost import StepShape, build_cost
from sim.cost.constants import load_constants
from sim.hardware import load_gpu
from sim.models import load_model

COST = build_cost(load_model("Llama-3-8B"), load_gpu("h100"), EngineConfig(preset="vllm", depth=2))


def seconds_each(shapes: list[StepShape], rounds: int = 5) -> float:
    best = float("inf")
    for shape in shapes:  # sums that depend on a count alone are kept once computed
        COST.step_seconds(shape)
    for _ in range(rounds):
        began = time.process_time()
        for shape in shapes:
            COST.step_seconds(shape)
        best = min(best, time.process_time() - began)
    return best / len(shapes)


def mixed(rows: int, count: int = 3000) -> list[StepShape]:
    rng = random.Random(0)
    return [
        StepShape(rows, rows * rng.randint(100, 4000), ((rng.randint(1, 4000), rng.randint(0, 8000)),), rows + 1)
        for _ in range(count)
    ]


def decoding(rows: int, count: int = 3000) -> list[StepShape]:
    rng = random.Random(0)
    return [StepShape(rows, rows * rng.randint(100, 4000), sampled=rows) for _ in range(count)]


def yardstick() -> float:
    """What looking twenty numbers up takes on this machine, so that a bound is not in microseconds."""
    table = {i: float(i) for i in range(64)}
    keys = [i % 64 for i in range(20)]
    best = float("inf")
    for _ in range(20):
        began = time.process_time()
        for _ in range(2000):
            sum(table[key] ** 1.5 for key in keys)
        best = min(best, (time.process_time() - began) / 2000)
    return best


def test_the_batch_does_not_matter(benchmark) -> None:
    few, many = seconds_each(mixed(1)), seconds_each(mixed(1000))
    benchmark.pedantic(lambda: seconds_each(mixed(1000), 1), rounds=1)
    benchmark.extra_info |= {"microseconds": round(many * 1e6, 2), "ratio": round(many / few, 2)}
    assert many / few < 1.5
    assert seconds_each(decoding(1000)) / seconds_each(decoding(1)) < 1.5


def test_a_step_is_priced_in_the_time_of_a_few_dozen_look_ups(benchmark) -> None:
    """4 to 8 us for a mixed step and 1 to 1.5 us for decoding, where the yardstick takes 2 to 4."""
    unit = yardstick()
    benchmark.pedantic(lambda: seconds_each(decoding(64), 1), rounds=1)
    whole, light = seconds_each(mixed(64)), seconds_each(decoding(64))
    benchmark.extra_info |= {"mixed": round(whole / unit, 2), "decoding": round(light / unit, 2)}
    assert whole / unit < 6 and light / unit < 1.5


def test_a_measured_table_costs_little_more(benchmark, tmp_path) -> None:
    """Once the corrections around a shape are known, a table is a look-up more for every kernel that is not memoised."""
    gpu = load_gpu("h100")
    from sim.cost.forms import predict
    from sim.cost.timings import Timing
    from workloads.errors import Place

    section, rows = load_constants(gpu, "vllm").prefill["bf16"], ["op,dtype,batch,seq,heads,kv_heads,head_dim,us"]
    for seq in (128, 512, 2048, 8192):
        shape = {"batch": 1, "seq": seq, "heads": 16, "kv_heads": 4, "head_dim": 128}
        us = 1.3 * predict(Timing("attn_prefill", "bf16", "bf16", shape, 1.0, "", "", "", "", Place()), section, gpu)
        rows.append(f"attn_prefill,bf16,1,{seq},16,4,128,{us}")
    path = tmp_path / "t.csv"
    path.write_text("\n".join(rows) + "\n")
    tabled = build_cost(load_model("Llama-3-8B"), gpu, EngineConfig(preset="vllm", depth=2), table=path)
    shapes = [StepShape(64, 64 * 1000, ((n, 0),), 65) for n in range(1, 4000)]
    plain = seconds_each(shapes)
    global COST
    kept, COST = COST, tabled
    try:
        benchmark.pedantic(lambda: seconds_each(shapes, 1), rounds=1)
        ratio = seconds_each(shapes) / plain
    finally:
        COST = kept
    benchmark.extra_info["ratio"] = round(ratio, 2)
    assert ratio < 3.5
