"""What tests of packed weights share: numbers that need no generator, hashes of tensors, tiny checkpoints and their logits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backends.model.model import Model
from backends.quantization.formats.raw import Raw
from backends.torch.pack import bare_batch
from backends.torch.pool import KVPool


def pattern(rows: int, columns: int, modulus: int, a: int, b: int) -> Tensor:
    """Numbers [rows, columns] int64 from 0 to modulus − 1, the same everywhere."""
    i, j = torch.arange(rows)[:, None], torch.arange(columns)
    return (i * a + j * b + (i * j) % 5) % modulus


def digest(tensor: Tensor) -> str:
    """The first half of the SHA-256 of a tensor's bytes."""
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def raw(tensors: Mapping[str, Tensor]) -> Raw:
    """Tensors of one layer as if from a file."""
    return Raw("layer", "file.safetensors", tensors)


def logits(model: Model, ids: list[int]) -> Tensor:
    """Logits [len(ids), vocabulary] of every position of a prompt."""
    pages = -(-len(ids) // 16)
    pool = KVPool(model.architecture.spec, pages, 16, model.dtype, model.device)
    batch = bare_batch([0], [len(ids)], np.arange(pages).reshape(1, pages), 16, model.device)
    batch = replace(batch, ids=torch.tensor(ids), sample_rows=torch.arange(len(ids)))
    return model.forward(batch, pool.cache)


def prompt(count: int = 48) -> list[int]:
    """Token ids of a tiny model's words, not its special tokens."""
    return [3 + (7 * number * number + 11 * number) % 250 for number in range(count)]


def calibration(sequences: int = 6, tokens: int = 64) -> Tensor:
    """Token ids [sequences, tokens] for methods that learn from text."""
    return torch.tensor([[3 + (row * 31 + n * n + 5 * n) % 250 for n in range(tokens)] for row in range(sequences)])


def edit_config(folder: Path, **changes) -> None:
    """Change `config.json`; None takes a key out."""
    file = folder / "config.json"
    values = json.loads(file.read_text("utf-8")) | changes
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}), "utf-8")


def rewrite(folder: Path, change) -> None:
    """Change the tensors of a checkpoint's one file: `change(tensors)` works on a dict of them."""
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
