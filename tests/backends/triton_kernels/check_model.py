"""Whole models on the kernels: the same greedy tokens as in plain torch, from prompts in pieces, then decoding."""

from __future__ import annotations

import interpreter  # noqa: F401 (first)
import numpy as np
import pytest
import torch

from backends.model.model import Model
from backends.ops.base import PackedBatch
from backends.ops.reference import ReferenceOperators
from backends.triton.operators import TritonOperators
from backends.weights.load import load_model
from backends.weights.tiny import make_tiny

PAGE = 16
PROMPTS = (12, 3, 22)


def step(
    model: Model, cache: torch.Tensor, tables: np.ndarray, pieces: list[tuple[int, int, list[int]]]
) -> torch.Tensor:
    """Logits after each of the `pieces` (sequence, tokens before, token ids)."""
    counts = np.array([len(ids) for _, _, ids in pieces])
    lengths = np.array([past + len(ids) for _, past, ids in pieces])
    positions = np.concatenate([np.arange(past, past + len(ids)) for _, past, ids in pieces])
    owner = np.repeat([sequence for sequence, _, _ in pieces], counts)
    slots = tables[owner, positions // PAGE] * PAGE + positions % PAGE
    starts = np.concatenate(([0], np.cumsum(counts)))
    mine = tables[[sequence for sequence, _, _ in pieces]]
    ids = np.concatenate([ids for _, _, ids in pieces])
    columns = (ids, positions, slots, starts, lengths, mine, starts[1:] - 1)
    batch = PackedBatch(*(torch.as_tensor(column, dtype=torch.int64) for column in columns), counts, lengths)
    return model.forward(batch, cache)


def answers(model: Model) -> tuple[list[list[int]], torch.Tensor]:
    """Three or four greedy tokens a prompt, and all logits on the way. Long prompts come in two pieces, beside a decode."""
    spec = model.architecture.spec
    tables = np.random.default_rng(1).permutation(6).reshape(3, 2)
    cache = torch.full((spec.layers, 2, 6, PAGE, spec.kv_heads, spec.head_dim), float("nan"))
    known = [np.random.default_rng(row).integers(3, spec.vocab, count).tolist() for row, count in enumerate(PROMPTS)]
    first = step(model, cache, tables, [(0, 0, known[0][:7]), (1, 0, known[1]), (2, 0, known[2][:13])])
    known[1].append(int(first[1].argmax()))
    second = step(model, cache, tables, [(0, 7, known[0][7:]), (1, 3, known[1][3:]), (2, 13, known[2][13:])])
    seen = [first[1:2], second]
    for _ in range(2):
        for row, logits in enumerate(seen[-1]):
            known[row].append(int(logits.argmax()))
        seen.append(step(model, cache, tables, [(row, len(ids) - 1, ids[-1:]) for row, ids in enumerate(known)]))
    return [ids[count:] for ids, count in zip(known, PROMPTS, strict=True)], torch.cat(seen)


@pytest.mark.parametrize("kind", ["tiny-llama", "tiny-qwen3", "tiny-mixtral"])
def test_greedy_tokens_are_those_of_plain_torch(kind, tmp_path) -> None:
    folder = make_tiny(kind, tmp_path / kind)
    (got, ours), (want, plain) = (
        answers(load_model(folder, dtype="fp32", operators=ops))
        for ops in (TritonOperators("cpu"), ReferenceOperators())
    )
    assert got == want
    error = (ours - plain).abs()
    assert error.max() < 2e-5 * plain.abs().max() and error.mean() < 2e-6 * plain.abs().max()


def test_bfloat16_is_as_near_to_float32_as_plain_torch_is(tmp_path) -> None:
    folder = make_tiny("tiny-llama", tmp_path / "llama")
    ids = np.random.default_rng(0).integers(3, 512, 24).tolist()
    found = []
    for dtype, ops in (
        ("fp32", ReferenceOperators()),
        ("bf16", ReferenceOperators()),
        ("bf16", TritonOperators("cpu")),
    ):
        model = load_model(folder, dtype=dtype, operators=ops)
        spec = model.architecture.spec
        cache = torch.full((spec.layers, 2, 3, PAGE, spec.kv_heads, spec.head_dim), float("nan"), dtype=model.dtype)
        found.append(step(model, cache, np.array([[2, 0, 1]]), [(0, 0, ids)]))
    exact, plain, ours = found
    assert (ours - exact).abs().mean() < 1.5 * (plain - exact).abs().mean()


@pytest.mark.parametrize(("kind", "mode"), [
    ("tiny-llama", "gptq-int4"), ("tiny-qwen3", "fp8-block"), ("tiny-mixtral", "int8-w8a8"), ("tiny-llama", "squeezellm-3bit"),
])  # fmt: skip
def test_quantized_models_say_what_plain_torch_says_of_them(kind, mode, tmp_path) -> None:
    folder = make_tiny(kind, tmp_path / kind)
    models = [
        load_model(folder, dtype="fp32", load="dummy", quantization=mode, operators=ops)
        for ops in (TritonOperators("cpu"), ReferenceOperators())
    ]
    spec, ids = models[0].architecture.spec, np.random.default_rng(0).integers(3, 512, 20).tolist()
    found = []
    for model in models:
        cache = torch.full((spec.layers, 2, 2, PAGE, spec.kv_heads, spec.head_dim), float("nan"))
        found.append(step(model, cache, np.array([[1, 0]]), [(0, 0, ids)]))
    error = (found[0] - found[1]).abs().max() / found[1].abs().max()
    assert error < (2e-5 if mode in ("gptq-int4", "squeezellm-3bit") else 2e-2), "inputs on an edge of rounding apart"
    assert models[0].recordable and not models[1].recordable
    if kind == "tiny-mixtral":
        for layer in models[0].parameters.layers:  # one after the other, each waited for
            object.__setattr__(layer.mlp, "down", tuple(layer.mlp.down))
        assert not models[0].recordable
        cache = torch.full((spec.layers, 2, 2, PAGE, spec.kv_heads, spec.head_dim), float("nan"))
        apart = step(models[0], cache, np.array([[1, 0]]), [(0, 0, ids)])
        assert (apart - found[0]).abs().max() < 2e-2 * found[1].abs().max()
