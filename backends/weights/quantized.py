"""Weights of a quantized checkpoint, kept packed: one layer at a time, so that no second copy of the model is ever in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from backends.model.architecture import Architecture
from backends.model.parameters import Experts, GatedMLP, Layer, Linear, Parameters
from backends.ops.base import Dense
from backends.quantization.base import QuantizedLinear, QuantizedWeight
from backends.quantization.dequantise import dequantise
from backends.quantization.formats.fp8 import KV_SCALES
from backends.quantization.formats.raw import Raw
from backends.quantization.scheme import Scheme
from backends.quantization.stack import as_banks, moved, stacked
from backends.weights.names import IGNORED, expert_names
from backends.weights.shards import Shards
from workloads.errors import InputError, Place

Progress = Callable[[int, int], None]
_PLAIN = (torch.float16, torch.bfloat16, torch.float32)


def load_quantized(
    architecture: Architecture, scheme: Scheme, files: list[Path], dtype: torch.dtype, device: torch.device | str,
    progress: Progress | None = None,
) -> Parameters:  # fmt: skip
    """All weights; linear layers that the checkpoint has packed stay packed, everything else is in `dtype`.

    Args:
        progress: called with (bytes read, bytes in all), about.

    Raises:
        InputError: a damaged file, a tensor that is missing, unknown, or not as the checkpoint's format has it.
    """
    with Shards(files) as shards:
        reader = _Reader(architecture, scheme, shards, dtype, device)
        spec = architecture.spec
        embedding = reader.plain("model.embed_tokens.weight", (spec.vocab, spec.hidden))
        layers, size = [], sum(file.stat().st_size for file in files)
        for index in range(spec.layers):
            layers.append(reader.layer(f"model.layers.{index}"))
            if progress is not None:
                progress(size * (index + 1) // spec.layers, size)
        norm = reader.plain("model.norm.weight", (spec.hidden,))
        head = Dense(embedding) if spec.tied else reader.dense("lm_head", spec.vocab, spec.hidden)
        reader.check()
    return Parameters(embedding, tuple(layers), norm, head)


class _Reader:
    """Reads layers of one checkpoint."""

    def __init__(
        self, architecture: Architecture, scheme: Scheme, shards: Shards, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._architecture, self._scheme, self._shards = architecture, scheme, shards
        self._dtype, self._device = dtype, device
        self._packed = 0

    def plain(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor that is not quantized, in the model's dtype."""
        found = self._shards.get(name)
        file = Place(str(self._shards.file(name)))
        if found.dtype not in _PLAIN:
            raise InputError(f"{name} holds {str(found.dtype)[6:]}, where it is never quantized", place=file)
        if tuple(found.shape) != shape:
            raise InputError(
                f"{name} has shape {list(found.shape)}, the architecture needs {list(shape)}", place=file,
                hint="config.json and the weights must come from the same checkpoint",
            )  # fmt: skip
        return torch.empty(shape, dtype=self._dtype, device=self._device).copy_(found)

    def part(self, name: str, outputs: int, inputs: int) -> QuantizedWeight | Dense:
        """One linear layer of the checkpoint, without its bias.

        Raises:
            InputError: neither packed as the checkpoint's format is, nor plain; or packed although it says it is not.
        """
        tensors = {suffix: tensor for suffix, tensor in self._shards.beneath(name).items() if suffix != "bias"}
        if not tensors:
            self._shards.get(f"{name}.{self._scheme.format.packed}")  # complains
        suffix = self._scheme.format.packed
        found = tensors.get(suffix)
        if "weight" in tensors and tensors["weight"].dtype in _PLAIN:
            for other in sorted(set(tensors) - {"weight", *KV_SCALES}):
                raise self._odd(name, other, "is beside a weight that is not quantized")
            return Dense(self.plain(f"{name}.weight", (outputs, inputs)))
        file = str(self._shards.file(f"{name}.{min(tensors)}"))
        if self._scheme.leaves_out(name) and found is not None:
            raise self._odd(name, suffix, f"is quantized, and {Path(self._scheme.section.file).name} says it is not")
        raw = Raw(name, file, tensors)
        packed = self._scheme.format.load(raw, outputs, inputs)
        for other in raw.unknown():
            raise self._odd(name, other, f"has no place in a layer of {self._scheme.section.method}")
        self._packed += 1
        return moved(packed, self._device)

    def linear(self, names: Sequence[str], sizes: Sequence[int], inputs: int, bias: bool) -> Linear:
        """Layers of the same input as one."""
        parts = [self.part(name, size, inputs) for name, size in zip(names, sizes, strict=True)]
        biases = [self.plain(f"{name}.bias", (size,)) for name, size in zip(names, sizes, strict=True)] if bias else []
        whole = torch.cat(biases) if biases else None
        if all(isinstance(part, Dense) for part in parts):
            return Dense(torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight, whole)
        if not bias:
            self._zero_biases(names, sizes)
        return stacked(parts, whole, self._scheme.mode)

    def _zero_biases(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        """Some tools write biases of zeros to layers that have none."""
        for name in names:
            if f"{name}.bias" in self._shards and bool((self._shards.get(f"{name}.bias") != 0).any()):
                raise self._odd(name, "bias", f"has no place in a {self._architecture.spec.family}")

    def dense(self, name: str, outputs: int, inputs: int, bias: bool = False) -> Dense:
        """A layer that runs unquantized whatever the checkpoint has (LM head, router)."""
        part = self.part(name, outputs, inputs)
        weight = part.weight if isinstance(part, Dense) else dequantise(part, self._dtype)
        return Dense(weight, self.plain(f"{name}.bias", (outputs,)) if bias else None)

    def layer(self, prefix: str) -> Layer:
        """One transformer layer."""
        spec, attention = self._architecture.spec, f"{prefix}.self_attn"
        queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        names = [f"{attention}.{part}_proj" for part in "qkv"]

        def norm(name: str, width: int) -> Tensor:
            return self.plain(f"{prefix}.{name}.weight", (width,))

        return Layer(
            input_norm=norm("input_layernorm", spec.hidden),
            qkv=self.linear(names, (queries, keys, keys), spec.hidden, spec.qkv_bias),
            out=self.linear([f"{attention}.o_proj"], [spec.hidden], queries, spec.o_bias),
            post_norm=norm("post_attention_layernorm", spec.hidden),
            mlp=self._experts(prefix) if spec.experts else self._mlp(f"{prefix}.mlp", spec.ffn, spec.mlp_bias),
            q_norm=norm("self_attn.q_norm", spec.head_dim) if spec.qk_norm else None,
            k_norm=norm("self_attn.k_norm", spec.head_dim) if spec.qk_norm else None,
            kv_scales=self._kv_scales(attention),
        )

    def _mlp(self, prefix: str, width: int, bias: bool) -> GatedMLP:
        hidden = self._architecture.spec.hidden
        gate_up = self.linear([f"{prefix}.gate_proj", f"{prefix}.up_proj"], (width, width), hidden, bias)
        return GatedMLP(gate_up, self.linear([f"{prefix}.down_proj"], [hidden], width, bias))

    def _experts(self, prefix: str) -> Experts:
        spec = self._architecture.spec
        block, gate, up, down = expert_names(spec.family)
        block = f"{prefix}.{block}"
        width, hidden = spec.expert_ffn, spec.hidden
        router = self.dense(f"{block}.gate", spec.experts, hidden)
        wide, narrow = [], []
        for index in range(spec.experts):
            one = f"{block}.experts.{index}"
            wide.append(self.linear([f"{one}.{gate}", f"{one}.{up}"], (width, width), hidden, False))
            narrow.append(self.linear([f"{one}.{down}"], [hidden], width, False))
        if not any(isinstance(each, QuantizedLinear) for each in (*wide, *narrow)):
            return Experts(router, torch.stack([each.weight for each in wide]), torch.stack([e.weight for e in narrow]))
        return Experts(router, *as_banks(wide, narrow))

    def _kv_scales(self, attention: str) -> tuple[float, float]:
        """What keys and values in fp8 are divided by, wherever the checkpoint's tool keeps it; 1 where it says nothing."""
        self._shards.ask(f"{attention}.q_scale")
        return self._kv_scale(attention, "k"), self._kv_scale(attention, "v")

    def _kv_scale(self, attention: str, part: str) -> float:
        names = (f"{part}_scale", f"{part}_proj.{part}_scale", f"{part}_proj.output_scale", "kv_scale")
        found = 1.0
        for name in reversed([f"{attention}.{name}" for name in names]):
            if name in self._shards:
                value = self._shards.get(name).float()
                if value.numel() != 1 or not 0 < float(value) < float("inf"):
                    module, _, suffix = name.rpartition(".")
                    raise self._odd(module, suffix, "is not one number above 0")
                found = float(value)
        return found

    def _odd(self, name: str, suffix: str, message: str) -> InputError:
        whole = f"{name}.{suffix}"
        return InputError(f"{whole} {message}", place=Place(str(self._shards.file(whole))))

    def check(self) -> None:
        """See that something was packed and that nothing was left over.

        Raises:
            InputError: naming the first tensor that has no place.
        """
        section = self._scheme.section
        if not self._packed:
            raise section.error("quant_method", f"is {section.method}, but no layer of the checkpoint is packed",
                                "remove the section: these weights are not quantized")  # fmt: skip
        spec = self._architecture.spec
        for name in self._shards.unasked():
            tied_head = spec.tied and name.startswith("lm_head.")
            if not tied_head and not name.endswith(IGNORED):
                raise InputError(
                    f"tensor {name} has no place in a {spec.family} of {spec.layers} layers",
                    place=Place(str(self._shards.file(name))),
                    hint="config.json and the weights must come from the same checkpoint",
                )  # fmt: skip
