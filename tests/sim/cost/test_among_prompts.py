"""Decoding rows in the launch of a prompt's chunks: where one kernel takes both, and what that costs."""

import gzip
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from sim.config import EngineConfig, KVConfig, ParallelConfig
from sim.cost import StepShape, build_cost
from sim.cost.assemble import Assembler
from sim.cost.constants import load_constants
from sim.hardware import load_gpu
from sim.models import load_model

KERNELS = Path(__file__).parents[3].parent / "shared" / "measured" / "llmservingsim-kernels"


def among(gpu="a100", model="Llama-3.1-8B", engine="vllm", **config):
    spec, card = load_model(model), load_gpu(gpu)
    config = EngineConfig(preset=config.pop("preset", engine), **config)
    return Assembler(spec, card, config, load_constants(card, engine)).build().among


def test_where_one_kernel_takes_both():
    """FlashAttention 2 in vLLM's V1 engine; not 3, not other engines, caches, sinks or latent attention."""
    for gpu in ("a100", "a40", "l40s", "l4", "rtx-4090", "rtx-pro-6000"):
        assert among(gpu) is not None, gpu
    for gpu in ("h100", "b200", "t4", "mi300x"):
        assert among(gpu) is None, gpu
    assert among(engine="sglang") is None and among(engine="tensorrt-llm") is None
    assert among(preset="vllm-v0") is None
    assert among(kv=KVConfig(dtype="fp8")) is None
    assert among(model="gpt-oss-20b") is None and among("l40s", "DeepSeek-V2-Lite") is None


def test_it_adds_time_with_rows_keys_and_the_longest_chunk():
    operator = among()
    base = operator.seconds(32, 32_000, 1e-4, 512)
    assert 0.0 == operator.seconds(0, 0, 1e-4, 512) < base
    assert base < operator.seconds(64, 32_000, 1e-4, 512) < operator.seconds(64, 64_000, 1e-4, 512)
    assert operator.seconds(32, 32_000, 1e-4, 512) < operator.seconds(32, 32_000, 1e-4, 2048)
    # One long sequence is walked through by one block a head, however idle the rest of the device is.
    assert operator.seconds(1, 16_000, 1e-4, 512) > 10 * operator.seconds(1, 1_000, 1e-4, 512)


def test_a_step_is_explained_with_it():
    """A mixed step's decode attention is dearer than in a step of its own, and the parts add up."""
    cost = build_cost(load_model("Llama-3.1-8B"), load_gpu("a100"), EngineConfig(preset="vllm"))
    rows, context = 64, 64_000
    mixed = StepShape(rows, context, ((512, 0),), rows + 1)
    parts = {part.name: part.seconds for part in cost.explain(mixed)}
    alone = {part.name: part.seconds for part in cost.explain(StepShape(rows, context, sampled=rows))}
    assert parts["attention_decode"] > 1.3 * alone["attention_decode"]
    assert sum(parts.values()) == pytest.approx(cost.step_seconds(mixed))
    assert any(entry["what"] == "attention_decode_among_prompts" for entry in cost.provenance)


@pytest.mark.shared
@pytest.mark.parametrize("tensor", [1, 2])
def test_against_timings_of_both_in_one_call(tensor):
    """vLLM 0.19 on an RTX PRO 6000: within 12 % in the median; the sum of both alone is off by a quarter."""
    path = KERNELS / f"rtxpro6000_llama-3.1-8b_bf16_tp{tensor}_attention.csv.gz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not here: a plain clone has no measurements")
    with gzip.open(path, "rt") as lines:
        rows = [tuple(map(float, line.split(","))) for line in list(lines)[1:]]
    prompts = {(chunk, past): us for chunk, past, count, _, us in rows if not count}
    decodes = {(count, context): us for chunk, _, count, context, us in rows if not chunk}
    spec, card = load_model("Llama-3.1-8B"), load_gpu("rtx-pro-6000")
    operator = among("rtx-pro-6000", parallel=ParallelConfig(tensor=tensor))
    assert spec.heads == 32 and card.sms == 188
    off = defaultdict(list)
    for chunk, past, count, context, us in rows:
        if chunk and count and (chunk, past) in prompts and (count, context) in decodes:
            alone = prompts[chunk, past]
            together = alone + operator.seconds(count, count * context, alone * 1e-6, chunk) * 1e6
            off["together"].append(abs(together / us - 1))
            off["apart"].append(abs((alone + decodes[count, context]) / us - 1))
    assert len(off["together"]) > 10_000
    assert median(off["together"]) < 0.12 < 0.2 < median(off["apart"])
