"""What a static batch pads is computed, on a page that nobody has, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")

from real_engine import Served, check_all, engine_config, traffic_of  # noqa: E402

from backends.model.model import Model  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny("tiny-llama", tmp_path_factory.mktemp("dead"), seed=5)


class Watched(Model):
    """Notes the tokens, sequences and attended lengths of every pass."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.architecture, model.parameters, model.operators)
        self.passes: list[tuple[int, int, int]] = []

    def forward(self, batch, cache, scales=None):
        decoding = batch.queries == 1
        self.passes.append((len(batch.ids), int(decoding.sum()), int(np.max(batch.lengths))))
        slots = batch.slots[batch.slots >= 0]
        assert len(slots) == len(slots.unique())
        return super().forward(batch, cache, scales)


@pytest.mark.parametrize("allocator", ["contiguous", "paged", "radix"])
@pytest.mark.parametrize("pad", [True, False])
def test_padding_and_dead_rows_are_computed_and_harmless(folder: Path, allocator: str, pad: bool) -> None:
    model = Watched(load_model(folder))
    rows = [{"prompt": 30, "output": 3}, {"prompt": 7, "output": 9}, {"prompt": 18, "output": 1}]
    block = 1 if allocator == "radix" else 16
    config = engine_config(
        name="static", allocator=allocator, pad=pad, max_num_seqs=3, block_size=block, prefix_caching=False,
        max_num_batched_tokens=1 << 24, gate="max-length", victim="none", batch_wait=100.0,
    )  # fmt: skip
    served = Served(model, traffic_of(rows), config, max_len=64)
    check_all(served, folder)
    first, *decodes = model.passes
    assert first[0] == (3 * 30 if pad else 30 + 7 + 18)
    assert [each[1] for each in decodes] == ([3] * 8 if pad else [2, 2, 1, 1, 1, 1, 1, 1])
    assert len(decodes) == 8
