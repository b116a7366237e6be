"""Hot kernels compile for GPUs that are not here, without spills and with the matrix instructions that they are meant to have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]

COMPILE = """
import json, sys
from dataclasses import asdict
from backends.triton.compile_ahead import TARGETS, compile_variant
from backends.triton.launch import Target
from backends.triton.variants import variants

arch, shaped_for, names = sys.argv[1], sys.argv[2], sys.argv[3:]
found = {v.name: v for v in variants(Target(shaped_for, TARGETS[shaped_for][1]))}
missing = [name for name in names if name not in found]
assert not missing, (missing, sorted(found))
print(json.dumps({name: asdict(compile_variant(found[name], arch)) for name in names}))
"""


def compiled(arch: str, shaped_for: str, *names: str) -> dict[str, dict]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, arch, shaped_for, *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


LLAMA = "bf16, 32/8 heads of 128, pages of 16"


@pytest.mark.slow
def test_hot_kernels_for_hopper() -> None:
    prefill, decode = f"prefill_kernel: {LLAMA}", f"decode_kernel: {LLAMA}"
    experts = "grouped_kernel: bf16, Mixtral 8x7B, 4096 tokens, gated True"
    rope, fp8 = f"rope_kernel: {LLAMA}", "decode_kernel: bf16, e4m3 pages, 32/8 heads of 128, pages of 16"
    found = compiled("sm_90", "sm_90", prefill, decode, experts, rope, fp8)
    for name, result in found.items():
        assert not result["refused"], (name, result)
        assert result["spilled"] == 0 and 0 < result["registers"] <= 255, (name, result)
        assert result["shared"] <= 227 * 1024
    assert found[prefill]["matrix"] == found[experts]["matrix"] == "wgmma"
    assert found[decode]["matrix"] == "mma"


@pytest.mark.slow
def test_experts_of_packed_weights_and_weights_expanded_once_for_hopper() -> None:
    experts = "grouped_expand_kernel: bf16, Mixtral 8x7B, int4, groups of 128, 4096 tokens"
    few = "grouped_expand_kernel: bf16, Qwen 3 30B-A3B, int4, groups of 128 with zeros, 16 tokens"
    found = compiled("sm_90", "sm_90", experts, few, "whole_kernel: bf16, int4, groups of 128, 4096 tokens")
    for name, result in found.items():
        assert not result["refused"] and result["spilled"] == 0, (name, result)
    assert found[experts]["matrix"] == "wgmma" and found[few]["matrix"] == "mma"


@pytest.mark.slow
def test_the_compiler_refuses_e4m3_before_ada_and_e5m2_is_not() -> None:
    names = [f"decode_kernel: bf16, {fp8} pages, 32/8 heads of 128, pages of 16" for fp8 in ("e4m3", "e5m2")]
    refused, accepted = compiled("sm_80", "sm_90", *names).values()
    assert "fp8e4nv not supported" in refused["refused"]
    assert not accepted["refused"] and accepted["matrix"] == "mma"


@pytest.mark.slow
def test_products_with_packed_weights_for_hopper() -> None:
    few, many = (
        "expand_kernel: bf16, int4, groups of 128, 1 tokens",
        "expand_kernel: bf16, int4, groups of 128, 512 tokens",
    )
    codes, blocks = "scaled_kernel: bf16, int8, W8A8, 512 tokens", "scaled_kernel: bf16, fp8, blocks of 128, 64 tokens"
    table, floats = "expand_kernel: bf16, table of 16, 64 tokens", "expand_kernel: bf16, nvfp4, 1 tokens"
    found = compiled("sm_90", "sm_90", few, many, codes, blocks, table, floats)
    for name, result in found.items():
        assert not result["refused"] and result["spilled"] == 0, (name, result)
    assert found[few]["matrix"] == found[floats]["matrix"] == "mma"
    assert all(found[name]["matrix"] == "wgmma" for name in (many, codes, blocks, table))


@pytest.mark.slow
def test_the_compiler_refuses_fp8_codes_before_ada_and_4_bit_floats_are_not() -> None:
    refused, accepted = compiled(
        "sm_80", "sm_90", "scaled_kernel: bf16, fp8, a channel, 1 tokens", "expand_kernel: bf16, nvfp4, 1 tokens"
    ).values()
    assert "fp8e4nv not supported" in refused["refused"]
    assert not accepted["refused"] and accepted["matrix"] == "mma"
