"""The small model that is trained here: it learns, the same each time, and leaves a folder that the engine runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")

from experiments.train_small import SHAPE, Training, train
from workloads.errors import OutputError

BRIEF = Training(steps=14, batch=4, length=48, rate=6e-3, seed=1)


def test_it_learns_and_leaves_a_model_that_runs(tmp_path: Path) -> None:
    from backends.weights.load import load_model

    losses: list[float] = []
    train(tmp_path / "one", BRIEF, lambda done, loss: losses.append(loss))
    assert len(losses) == 14
    assert losses[0] == pytest.approx(math.log(SHAPE["vocab_size"]), abs=0.6)  # it starts from knowing nothing
    assert losses[-1] < losses[0] - 0.4
    model = load_model(tmp_path / "one")
    assert 1e6 < model.architecture.spec.params_total < 1.3e6
    train(tmp_path / "two", BRIEF)
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()
    with pytest.raises(OutputError, match="is there already"):
        train(tmp_path / "one", BRIEF)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one", "two"]
