"""A plain checkpoint made into a quantized one, a transformer layer at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from backends.model.architecture import Architecture, read_architecture
from backends.quantization.dequantise import dequantise
from backends.quantization.make.awq_scales import Factors, scale_layer
from backends.quantization.make.forward import projections, readers, rotary
from backends.quantization.make.pack_layer import Known, PackedLayer, pack_layer
from backends.quantization.make.recipes import CALIBRATED, HESSIAN, Recipe, choose_group, config_section
from backends.quantization.make.statistics import Inputs, sensitivities, through
from backends.quantization.make.writer import CheckpointWriter, copy_small_files
from backends.weights.files import weight_files
from backends.weights.names import expert_names
from backends.weights.shards import Shards
from workloads.errors import InputError, Place
from workloads.folders import whole_folder

Progress = Callable[[float, float, str], None]
_ROUTER = re.compile(r"\.(mlp|block_sparse_moe)\.gate$")
_PLAIN = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Made:
    """What became of a checkpoint.

    Attributes:
        recipe: with the group that was chosen. layers, weights: quantized linear layers and their weights.
        bits_per_weight: of these, scales and tables included. bytes: of the whole checkpoint; plain_bytes: as it was.
        gain: the method's own objective relative to round-to-nearest's, mean over layers; None: it has none.
        worst: the largest of these. notes: what could not be done as the method has it.
    """

    recipe: Recipe
    layers: int
    weights: int
    bits_per_weight: float
    bytes: int
    plain_bytes: int
    gain: float | None
    worst: float | None
    notes: tuple[str, ...] = ()


def quantize_checkpoint(
    source: Path, folder: Path, recipe: Recipe, ids: Tensor | None = None, *, overwrite: bool = False,
    progress: Progress | None = None,
) -> Made:  # fmt: skip
    """Write a quantized copy of a checkpoint.

    Args:
        folder: complete or absent afterwards.
        ids: [sequences, tokens] of text, for the modes that learn from it.

    Raises:
        InputError: a model or a shape that the mode cannot have. OutputError: the folder is there, or cannot be written.
    """
    architecture = read_architecture(source)
    _check(architecture, recipe, source, ids)
    with (
        whole_folder(folder, "config.json", overwrite=overwrite) as partial,
        Shards(weight_files(source)) as shards,
    ):
        maker = _Maker(architecture, recipe, shards, CheckpointWriter(partial), progress)
        maker.run(ids)
        ignored = ["lm_head", *(["re:.*(mlp|block_sparse_moe).gate$"] if architecture.spec.experts else [])]
        if maker.recipe.mode == "fp8-block" and architecture.spec.experts:
            ignored = ["lm_head", *sorted(maker.routers)]
        if (
            maker.recipe.mode == "awq-int4" and architecture.spec.experts
        ):  # transformers takes parts of names, no patterns
            ignored = [f"{expert_names(architecture.spec.family)[0]}.gate"]
        section = config_section(maker.recipe, ignored)
        side = {"quant_config.json": {"wbits": recipe.bits}} if recipe.mode.startswith("squeezellm") else {}
        copy_small_files(source, partial, section, side)
        return maker.made()


def _check(architecture: Architecture, recipe: Recipe, source: Path, ids: Tensor | None) -> None:
    if architecture.quantization is not None:
        raise InputError(
            f"is quantized already ({architecture.quantization.method})", place=Place(str(source)),
            hint="start from the checkpoint in 16 or 32 bits",
        )  # fmt: skip
    if recipe.mode not in CALIBRATED:
        return
    if ids is not None and ids.shape[1] > architecture.spec.max_position:
        raise InputError(
            f"sequences of {ids.shape[1]} tokens are longer than the model's {architecture.spec.max_position}",
            place=Place(key="--length"),
        )  # fmt: skip
    if ids is None:
        raise InputError(f"{recipe.mode} learns from text", place=Place(key="--calibration"), hint="name a text file")


def _kind(reader: str) -> str:
    """The kind of an input: all experts have the same ones."""
    return reader.partition(".")[0]


class _Maker:
    """Quantizes one checkpoint."""

    def __init__(
        self, architecture: Architecture, recipe: Recipe, shards: Shards, writer: CheckpointWriter, progress: Progress | None
    ) -> None:  # fmt: skip
        self.architecture, self._shards, self._writer, self._progress = architecture, shards, writer, progress
        self._projections = self._find()
        widths = {shards.get(f"{name}.weight").shape[1] for name in self._projections}
        self.recipe = replace(recipe, group=choose_group(widths, recipe.group)) if recipe.grouped else recipe
        self._check_shapes()
        self.routers = {name.removesuffix(".weight") for name in shards.names() if _ROUTER.search(name[:-7])}
        self._weights = self._packed_bytes = self._plain_bytes = 0
        self._ratios: list[float] = []
        self._readers = readers(architecture)
        self._inner = projections(architecture)
        self._unseen = 0

    def _find(self) -> list[str]:
        """Names of all linear layers inside transformer layers, routers left out."""
        found = []
        for name in self._shards.names():
            module = name.removesuffix(".weight")
            if module == name or not module.startswith("model.layers.") or _ROUTER.search(module):
                continue
            if not module.endswith("norm") and self._shards.get(name).ndim == 2:
                found.append(module)
        return found

    def _check_shapes(self) -> None:
        """Refuse what the layout of a mode cannot hold."""
        mode, bits = self.recipe.mode, self.recipe.bits
        rules = (
            (mode.startswith("gptq"), 32 // bits if 32 % bits == 0 else 32, 0, "inputs"),
            (mode.startswith("gptq"), 32 // bits if 32 % bits == 0 else 32, 1, "outputs"),
            (mode == "awq-int4", 8, 1, "outputs"), (mode.startswith("squeezellm"), 32, 0, "inputs"),
            (mode.startswith("nvfp4"), 16, 0, "inputs"), (mode == "mxfp4", 32, 0, "inputs"),
        )  # fmt: skip
        for applies, unit, which, side in rules:
            for name in self._projections if applies else ():
                shape = self._shards.get(f"{name}.weight").shape
                size = shape[1] if which == 0 else shape[0]
                if size % unit:
                    raise InputError(
                        f"{name} has {size} {side}, and {mode} needs a multiple of {unit}", place=Place(key="--mode"),
                        hint="int8 and fp8-channel take any shape",
                    )  # fmt: skip

    def run(self, ids: Tensor | None) -> None:
        """Write every tensor."""
        total = self._steps()
        for name in self._shards.names():
            if not name.startswith("model.layers."):
                self._keep(name)
        if self.recipe.mode in CALIBRATED:
            self._calibrated(ids, total)
        else:
            for number, (name, weight) in enumerate(self._plain_projections()):
                self._write(name, pack_layer(self.recipe, weight, self._largest(name, weight)), weight)
                self._tell(number + 1, len(self._projections), name)
            quantized = {f"{name}.weight" for name in self._projections}
            for name in self._shards.names():
                if name.startswith("model.layers.") and name not in quantized:
                    self._keep(name)
        self._writer.finish()

    def _steps(self) -> int:
        layers = self.architecture.spec.layers
        return 2 * layers if self.recipe.mode.startswith("squeezellm") else layers

    def _plain_projections(self) -> Iterator[tuple[str, Tensor]]:
        for name in self._projections:
            yield name, self._finite(f"{name}.weight")

    def _finite(self, name: str) -> Tensor:
        """A tensor in float32.

        Raises:
            InputError: it has NaN or infinity.
        """
        tensor = self._shards.get(name).float()
        if not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"{name} has values that are not finite numbers", place=Place(str(self._shards.file(name)))
            )
        return tensor

    def _largest(self, name: str, weight: Tensor) -> Known:
        """For NVFP4, which has one second-level scale for all that read the same input."""
        if not self.recipe.mode.startswith("nvfp4"):
            return Known()
        layer = ".".join(name.split(".")[:3])
        own = name.removeprefix(f"{layer}.")
        mates = next((names for names in self._readers.values() if own in names), ())
        most = [float(self._shards.get(f"{layer}.{mate}.weight").abs().amax()) for mate in mates]
        return Known(largest=max(most, default=float(weight.abs().amax())))

    def _keep(self, name: str) -> None:
        tensor = self._shards.get(name)
        self._plain_bytes += tensor.nbytes
        self._writer.add(name, tensor.clone())

    def _calibrated(self, ids: Tensor, total: int) -> None:
        architecture, layers = self.architecture, self.architecture.spec.layers
        turn = rotary(architecture, ids.shape[1])
        embedding = self._finite("model.embed_tokens.weight")
        gradients: list[dict[str, Tensor]] = []
        if self.recipe.mode.startswith("squeezellm"):
            head = embedding if architecture.spec.tied else self._shards.get("lm_head.weight").float()
            tops = {"embedding": embedding, "norm": self._shards.get("model.norm.weight").float(), "head": head}
            gradients = sensitivities(
                architecture, self._layer, tops, ids, turn, lambda done: self._tell(done, total, "sensitivity")
            )
        hidden = embedding[ids]
        for index in range(layers):
            weights = self._layer(index)
            hidden = self._one(index, weights, hidden, turn, gradients[index] if gradients else {})
            self._tell(total - layers + index + 1, total, f"layer {index + 1} of {layers}")

    def _layer(self, index: int) -> dict[str, Tensor]:
        """A layer's tensors by name, float32."""
        prefix = f"model.layers.{index}."
        return {
            name[len(prefix) :]: self._finite(name) for name in self._shards.names() if name.startswith(prefix)
        }  # fmt: skip

    def _one(
        self, index: int, weights: dict[str, Tensor], hidden: Tensor, turn: tuple[Tensor, Tensor],
        gradients: Mapping[str, Tensor],
    ) -> Tensor:  # fmt: skip
        """Quantise a layer, write it, and return what leaves it once it is quantized."""
        prefix = f"model.layers.{index}."
        inputs = Inputs(hessian=self.recipe.mode in HESSIAN)
        if not gradients:
            through(self.architecture, index, weights, hidden, turn, inputs)
        awq = self.recipe.mode == "awq-int4"
        factors = scale_layer(self.architecture, weights, inputs, self.recipe.group) if awq else Factors()
        sums: dict[str, list[float]] = {}
        for reader, names in self._readers.items():
            mates = {name: weights[f"{name}.weight"] for name in names}
            largest = max(float(mate.abs().amax()) for mate in mates.values())
            for name, weight in mates.items():
                sensitivity = gradients.get(f"{name}.weight")
                known = Known(
                    inputs.hessian.get(reader), inputs.largest(reader), sensitivity, largest, factors.columns.get(name),
                    factors.rows.get(name), not name.endswith(("q_proj", "k_proj")),
                )  # fmt: skip
                packed = pack_layer(self.recipe, weight, known)
                self._write(prefix + name, packed, weight)
                weights[f"{name}.weight"] = dequantise(packed.read(*weight.shape))
                both = sums.setdefault(_kind(reader) if awq else name, [0.0, 0.0])
                share = inputs.seen.get(reader, 1)
                both[0], both[1] = both[0] + share * packed.error, both[1] + share * packed.nearest
            unseen = not bool(sensitivity.any()) if gradients else reader not in inputs.seen
            self._unseen += unseen and _kind(reader) == "down"
        self._ratios += [error / nearest for error, nearest in sums.values() if nearest]
        for name, tensor in weights.items():
            if name.removesuffix(".weight") not in self._inner:
                dtype = self._shards.get(prefix + name).dtype
                self._plain_bytes += tensor.numel() * dtype.itemsize
                self._writer.add(prefix + name, tensor.to(dtype))
        return hidden if gradients else through(self.architecture, index, weights, hidden, turn)

    def _write(self, name: str, packed: PackedLayer, weight: Tensor) -> None:
        for suffix, tensor in packed.tensors.items():
            self._writer.add(f"{name}.{suffix}", tensor)
            self._packed_bytes += tensor.nbytes
        self._weights += weight.numel()
        self._plain_bytes += weight.numel() * self._shards.get(f"{name}.weight").element_size()

    def _tell(self, done: float, total: float, detail: str) -> None:
        if self._progress is not None:
            self._progress(done, total, detail)

    def _notes(self) -> tuple[str, ...]:
        if not self._unseen:
            return ()
        mode, spec = self.recipe.mode, self.architecture.spec
        instead = "rounded to the nearest values"
        if mode.startswith("squeezellm"):
            instead = "given tables without sensitivities"
        elif mode not in HESSIAN:
            instead = "given the largest inputs of the others"
        return (
            f"{self._unseen} of {spec.experts * spec.layers} experts saw no token of the text and were {instead}; "
            "--samples takes more of it",
        )  # fmt: skip

    def made(self) -> Made:
        """What was done."""
        ratios = self._ratios
        return Made(
            self.recipe, len(self._projections), self._weights, 8 * self._packed_bytes / max(self._weights, 1),
            self._writer.bytes, self._plain_bytes, sum(ratios) / len(ratios) if ratios else None, max(ratios, default=None),
            self._notes(),
        )  # fmt: skip
