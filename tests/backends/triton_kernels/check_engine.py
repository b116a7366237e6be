"""The engine on the kernels: prompts in pieces beside decoding, parallel samples, and recorded decode steps."""

from __future__ import annotations

import sys
from pathlib import Path

import interpreter  # noqa: F401 (first)
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "torch_backend"))

from real_engine import Served, check_all, engine_config, traffic_of

from backends.ops.reference import ReferenceOperators
from backends.triton.operators import TritonOperators
from backends.weights.load import load_model
from backends.weights.tiny import make_tiny


@pytest.mark.parametrize("recorded", [False, True])
def test_greedy_tokens_are_those_of_transformers(recorded, tmp_path) -> None:
    """Recorded: filled up with dead rows, planned for the longest sequence there may be, and always through the same buffers."""
    folder = make_tiny("tiny-llama", tmp_path, seed=3)
    model = load_model(folder, dtype="fp32", operators=TritonOperators("cpu"))
    rows = [{"prompt": 3, "output": 6, "n": 2}, {"prompt": 20, "output": 4}, {"prompt": 9, "output": 3, "at": 2}]
    config = engine_config(depth=2, max_num_batched_tokens=16, max_num_seqs=8)
    capture = (lambda work: work) if recorded else None
    served = Served(model, traffic_of(rows), config, capacity=320, max_len=80, capture=capture)
    check_all(served, folder)
    assert served.mixed and not served.refused
    assert not recorded or served.executor.graphs.replayed > served.executor.graphs.recorded > 1


@pytest.mark.parametrize("stored", ["fp8-e4m3", "int8"])
def test_small_keys_and_values_give_what_plain_torch_gives_of_them(stored, tmp_path) -> None:
    """Served by the kernels and by the reference: pages hold the same, so logits agree to where a key lies on an edge."""
    folder = make_tiny("tiny-llama", tmp_path, seed=3)
    rows = [{"prompt": 3, "output": 5, "n": 2}, {"prompt": 20, "output": 3}, {"prompt": 9, "output": 3, "at": 2}]
    config = engine_config(depth=2, max_num_batched_tokens=16, max_num_seqs=8, dtype=stored)
    found = []
    for operators in (TritonOperators("cpu"), ReferenceOperators()):
        model = load_model(folder, dtype="fp32", operators=operators)
        found.append(Served(model, traffic_of(rows), config, capacity=320, max_len=80, poison=False))
    ours, plain = found
    assert ours.tokens == plain.tokens and ours.mixed
    errors = [float((ours.logits[at] - want).abs().max()) for at, want in plain.logits.items()]
    assert max(errors) < 2e-3 and sorted(errors)[len(errors) // 2] < 1e-4, errors
