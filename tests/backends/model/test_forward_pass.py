"""The forward pass against `transformers`, on small random checkpoints in float32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.0")
transformers = pytest.importorskip("transformers")

from backends.model.model import Model  # noqa: E402
from backends.ops.base import PackedBatch  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import TINY, make_tiny  # noqa: E402

PAGE = 8


def batch_of(rows: list[tuple[list[int], int, list[int]]], page: int = PAGE, everything: bool = True) -> PackedBatch:
    """(tokens of this step, how many are cached already, pages) a sequence; every token is sampled, or the last of each."""
    queries = np.array([len(tokens) for tokens, _, _ in rows])
    past = np.array([cached for _, cached, _ in rows])
    starts = np.concatenate(([0], np.cumsum(queries)))
    positions = np.concatenate([np.arange(p, p + n) for p, n in zip(past, queries, strict=True)])
    owner = np.repeat(np.arange(len(rows)), queries)
    tables = np.zeros((len(rows), max(len(pages) for _, _, pages in rows)), np.int64)
    for index, (_, _, pages) in enumerate(rows):
        tables[index, : len(pages)] = pages
    slots = tables[owner, positions // page] * page + positions % page
    chosen = np.arange(starts[-1]) if everything else starts[1:] - 1
    tensors = [
        np.concatenate([tokens for tokens, _, _ in rows]),
        positions,
        slots,
        starts,
        past + queries,
        tables,
        chosen,
    ]
    return PackedBatch(*(torch.as_tensor(np.asarray(t, np.int64)) for t in tensors), queries, past + queries)


def cache_for(model: Model, pages: int, page: int = PAGE) -> torch.Tensor:
    """A cache full of NaN: what was not written must not be read."""
    spec = model.architecture.spec
    return torch.full((spec.layers, 2, pages, page, spec.kv_heads, spec.head_dim), float("nan"), dtype=model.dtype)


def reference(folder: Path, **changes) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **changes).eval()


@pytest.fixture(scope="module", params=TINY)
def folder(request, tmp_path_factory) -> Path:
    return make_tiny(request.param, tmp_path_factory.mktemp(request.param), seed=3)


def agree(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert ours.std() > 0.1, "logits that hardly differ prove nothing"
    assert (ours - theirs).abs().max() < 1e-4


@torch.inference_mode()
def test_logits_equal_those_of_transformers(folder: Path) -> None:
    model, theirs = load_model(folder), reference(folder)
    draw = np.random.default_rng(0)
    a, b, c = (draw.integers(3, 512, n).tolist() for n in (70, 1, 23))
    cache = cache_for(model, 24)
    rows = [(a, 0, list(range(9))), (b, 0, [20]), (c, 0, [13, 12, 11])]
    logits = model.forward(batch_of(rows), cache)
    expected = torch.cat([theirs(torch.tensor([tokens])).logits[0] for tokens in (a, b, c)])
    agree(logits, expected)


@torch.inference_mode()
def test_chunks_and_decodes_in_one_batch_equal_whole_prompts(folder: Path) -> None:
    """Pieces of several prompts and single tokens of others, scattered over pages in any order."""
    model, theirs = load_model(folder), reference(folder)
    draw = np.random.default_rng(1)
    prompts = [draw.integers(3, 512, n).tolist() for n in (90, 64, 33, 17)]
    pages = draw.permutation(40)
    tables = [pages[i * 12 : i * 12 + 12].tolist() for i in range(3)] + [pages[36:40].tolist()]
    cuts = [[0, 40, 41, 89, 90], [0, 64], [0, 1, 2, 31, 33], [0, 9, 16, 17]]
    cache, got = cache_for(model, 40), [[] for _ in prompts]
    for step in range(4):
        live = [i for i, cut in enumerate(cuts) if step + 1 < len(cut)]
        ranges = [(cuts[i][step], cuts[i][step + 1]) for i in live]
        rows = [(prompts[i][low:high], low, tables[i]) for i, (low, high) in zip(live, ranges, strict=True)]
        logits = model.forward(batch_of(rows), cache)
        for i, piece in zip(live, logits.split([high - low for low, high in ranges]), strict=True):
            got[i].append(piece)
    for prompt, pieces in zip(prompts, got, strict=True):
        agree(torch.cat(pieces), theirs(torch.tensor([prompt])).logits[0])


@torch.inference_mode()
def test_only_sampled_rows_come_back(folder: Path) -> None:
    model = load_model(folder)
    rows = [([5, 6, 7], 0, [0]), ([8], 0, [1])]
    everything = model.forward(batch_of(rows), cache_for(model, 2))
    last = model.forward(batch_of(rows, everything=False), cache_for(model, 2))
    torch.testing.assert_close(last, everything[[2, 3]])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("tiny-qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
        ("tiny-llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        ("tiny-llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}}),
        ("tiny-llama", {"attention_bias": True, "mlp_bias": True}),
        ("tiny-qwen3-moe", {"norm_topk_prob": False}),
        ("tiny-qwen3", {"attention_bias": True}),
    ],
)
@torch.inference_mode()
def test_variants_of_a_family(kind: str, changes: dict, tmp_path: Path) -> None:
    """As saved by transformers itself, in its own newest spelling of config.json."""
    values = json.loads((make_tiny(kind, tmp_path / "plain") / "config.json").read_text()) | changes
    (tmp_path / "plain" / "config.json").write_text(json.dumps(values))
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(tmp_path / "plain")
    ).eval()
    for weight in theirs.parameters():
        weight.data.normal_(0.0, 0.15)
    theirs.save_pretrained(tmp_path / "saved")
    if (
        kind == "tiny-qwen3-moe"
    ):  # transformers 5 writes the number of experts under another name than hub checkpoints have
        saved = tmp_path / "saved" / "config.json"
        saved.write_text(json.dumps(json.loads(saved.read_text()) | {"num_experts": 6}))
    model = load_model(tmp_path / "saved")
    tokens = np.random.default_rng(2).integers(3, 512, 60).tolist()
    logits = model.forward(batch_of([(tokens, 0, list(range(8)))]), cache_for(model, 8))
    agree(logits, theirs(torch.tensor([tokens])).logits[0])


@torch.inference_mode()
def test_half_precision_stays_close_to_single(tmp_path: Path) -> None:
    folder = make_tiny("tiny-llama", tmp_path)
    exact, rough = load_model(folder), load_model(folder, dtype="bf16")
    tokens = np.random.default_rng(4).integers(3, 512, 40).tolist()
    rows = [(tokens, 0, list(range(5)))]
    a, b = exact.forward(batch_of(rows), cache_for(exact, 5)), rough.forward(batch_of(rows), cache_for(rough, 5))
    assert rough.dtype == torch.bfloat16 and b.dtype == torch.float32
    assert (a - b).abs().mean() < 0.03 * a.std()
