"""A small model trained here, on a CPU in minutes: a second subject for `bench quality`, whose weights never were in 4 bits.

    python -m experiments.train_small -o models/small
    bench quality models/small --out quality-small

It is a Llama of 1.1 million weights over bytes, trained on the calibration half of the reference topics that Python ships
(`experiments.quality_text`), so that the evaluation half is new to it. Equal seeds give equal weights on one machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from backends.model.architecture import Architecture

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 264, "hidden_size": 128,
    "intermediate_size": 384, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_WARM = 40
"""Steps until the learning rate is at its highest."""


@dataclass(frozen=True, slots=True)
class Training:
    """How to train: `steps` of `batch` sequences of `length` bytes, at most at `rate`."""

    steps: int = 400
    batch: int = 12
    length: int = 128
    rate: float = 3e-3
    seed: int = 0


_DEFAULT = Training()


def train(folder: Path, how: Training, tell: Callable[[int, float], None] | None = None) -> float:
    """Train a model and write it as a Hugging Face folder with its tokenizer.

    Args:
        folder: complete or absent afterwards.
        tell: called with the number of steps and the loss.

    Returns:
        The mean loss of the last fifty steps, nats a byte.

    Raises:
        OutputError: the folder is there already, or cannot be written.
    """
    import json

    import torch
    from safetensors.torch import save_file

    from backends.model.architecture import read_architecture
    from backends.weights.tiny_tokenizer import write_byte_tokenizer
    from backends.weights.tokenizer import Tokenizer
    from experiments.quality_text import BUILT_IN, read_text
    from workloads.folders import whole_folder

    with whole_folder(folder, "config.json") as partial:
        (partial / "config.json").write_text(json.dumps(SHAPE, indent=2) + "\n", "utf-8")
        write_byte_tokenizer(partial, SHAPE["vocab_size"])
        architecture = read_architecture(partial)
        ids = torch.tensor(Tokenizer(partial).plain(read_text(BUILT_IN, "calibration").content))
        weights = _start(architecture, how.seed)
        loss = _fit(architecture, weights, ids, how, tell)
        tensors = {name: tensor.detach() for name, tensor in weights.items()}
        save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    return loss


def _start(architecture: Architecture, seed: int) -> dict[str, Tensor]:
    """Random weights by their names in a checkpoint, that gradients are kept of."""
    import torch

    from backends.model.parameters import allocate
    from backends.weights.names import places

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, room in places(architecture, allocate(architecture, torch.float32, "cpu")).items():
        started = torch.ones(room.shape) if room.ndim == 1 else torch.randn(room.shape, generator=generator) * 0.02
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            started /= math.sqrt(2 * architecture.spec.layers)
        weights[name] = started.requires_grad_(True)
    return weights


def _fit(
    architecture: Architecture, weights: dict[str, Tensor], ids: Tensor, how: Training,
    tell: Callable[[int, float], None] | None,
) -> float:  # fmt: skip
    import torch

    from backends.quantization.make.forward import rotary

    generator = torch.Generator().manual_seed(how.seed + 1)
    matrices = [tensor for tensor in weights.values() if tensor.ndim > 1]
    others = [tensor for tensor in weights.values() if tensor.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=how.rate,
        betas=(0.9, 0.95),
    )
    turn, losses = rotary(architecture, how.length), []
    for step in range(how.steps):
        for group in optimizer.param_groups:
            group["lr"] = how.rate * _share(step, how.steps)
        starts = torch.randint(0, len(ids) - how.length, (how.batch,), generator=generator).tolist()
        loss = _loss(architecture, weights, torch.stack([ids[start : start + how.length] for start in starts]), turn)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if tell is not None:
            tell(step + 1, losses[-1])
    return sum(losses[-50:]) / len(losses[-50:])


def _share(step: int, steps: int) -> float:
    """Of the highest learning rate: up in a line, down in half a cosine to a tenth."""
    if step < _WARM:
        return (step + 1) / _WARM
    done = (step - _WARM) / max(steps - _WARM, 1)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def _loss(
    architecture: Architecture, weights: dict[str, Tensor], ids: Tensor, turn: tuple[Tensor, Tensor]
) -> torch.Tensor:
    from backends.quantization.make.forward import run_layer, token_losses

    embedding = weights["model.embed_tokens.weight"]
    hidden = embedding[ids]
    for index in range(architecture.spec.layers):
        prefix = f"model.layers.{index}."
        layer = {name[len(prefix) :]: tensor for name, tensor in weights.items() if name.startswith(prefix)}
        hidden = run_layer(architecture, index, layer, hidden, turn)
    return token_losses(architecture, hidden, weights["model.norm.weight"], embedding, ids)


def main(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", show_default=False, help="Folder to write.")],
    steps: Annotated[int, typer.Option(min=1, metavar="N")] = _DEFAULT.steps,
    seed: Annotated[int, typer.Option(min=0, metavar="N")] = _DEFAULT.seed,
) -> None:
    """Train a small model over bytes on the texts that Python ships."""
    from backends.extra import need_torch
    from experiments.cli.progress import Progress
    from workloads.errors import TwinserveError

    try:
        need_torch("training")
        with Progress("training") as progress:
            loss = train(
                out, Training(steps=steps, seed=seed), lambda done, loss: progress(done, steps, f"loss {loss:.3f}")
            )
    except TwinserveError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    typer.echo(f"{out}: {loss:.3f} nats a byte at the end of training")


if __name__ == "__main__":
    typer.run(main)
