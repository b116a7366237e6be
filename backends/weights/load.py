"""From a model's folder to a model on a device, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from backends.model.architecture import Architecture, read_architecture
from backends.model.model import Model
from backends.model.parameters import Layer, Linear, Parameters, allocate
from backends.ops.base import Dense, Operators
from backends.ops.reference import ReferenceOperators
from backends.quantization.scheme import read_scheme
from backends.weights.device import GIB, memory
from backends.weights.dummy import fill_randomly
from backends.weights.dummy_packed import pack_randomly
from backends.weights.files import weight_files
from backends.weights.names import IGNORED, places
from backends.weights.quantized import load_quantized
from sim.quantization.weights import WEIGHT_MODES, WeightMode, covering, load_weight_mode
from workloads.errors import InputError, Place, unknown_name

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LOADS = {"auto": "the checkpoint's own weights", "dummy": "random weights of the right shapes"}

Progress = Callable[[int, int], None]
"""Called with (bytes loaded, bytes in all)."""


def load_model(
    source: Path | str | Architecture, *, device: torch.device | str = "cpu", dtype: str = "auto", load: str = "auto",
    seed: int = 0, operators: Operators | None = None, progress: Progress | None = None, quantization: str = "auto",
) -> Model:  # fmt: skip
    """A model from a local Hugging Face folder.

    Args:
        source: the folder; for `load="dummy"` a `config.json` or an architecture will do.
        dtype: of weights and activations: `bf16`, `fp16`, `fp32`, or `auto` for the checkpoint's own.
        load: `auto` reads the weights, `dummy` makes them up from `seed`.
        operators: who computes; plain torch by default.
        quantization: of weights: `auto` for the checkpoint's own, which any other name must be too; made-up ones can be in any.

    Raises:
        InputError: a missing, damaged or unsupported file, another quantization than the checkpoint's, or more weights than the
            device has memory.
    """
    if load not in LOADS:
        raise unknown_name("way to load", load, LOADS)
    known = isinstance(source, Architecture)
    architecture = source if known else read_architecture(Path(source))
    name = architecture.spec.dtype if dtype == "auto" else dtype
    if name not in DTYPES:
        raise unknown_name("dtype", name, DTYPES)
    if known and load == "auto":
        raise InputError(
            f"{architecture.spec.name} is an architecture without weights", hint="load: dummy makes them up"
        )
    mode = packed_mode(architecture, quantization, load)
    files = [] if load == "dummy" else weight_files(Path(source))  # complains before it takes the memory
    check_weights(architecture, DTYPES[name], torch.device(device), mode)
    operators = operators or ReferenceOperators()
    if load == "dummy":
        parameters = _made_up(architecture, DTYPES[name], device, mode, seed, progress)
    elif mode is not None:
        scheme = read_scheme(architecture.quantization)
        parameters = load_quantized(architecture, scheme, files, DTYPES[name], device, progress)
    else:
        parameters = allocate(architecture, DTYPES[name], device)
        load_weights(architecture, parameters, files, progress)
    return Model(architecture, parameters, operators)


def packed_mode(architecture: Architecture, quantization: str = "auto", load: str = "auto") -> WeightMode | None:
    """The mode that weights will be in; None: they are not quantized.

    Raises:
        InputError: the checkpoint is in another.
    """
    spec = architecture.spec
    native = None
    if architecture.quantization is not None:
        native = covering(WEIGHT_MODES[spec.native_quantization], spec)
    if quantization.lower() in ("auto", ""):
        return native
    wanted, place = load_weight_mode(quantization), Place(key="engine.quantization")
    if wanted.plain and (native is None or load == "dummy"):
        if wanted.name in (spec.dtype, spec.dtype.replace("fp32", "bf16")):
            return None
        raise InputError(
            f"the checkpoint is in {spec.dtype}, and {wanted.name} is asked for", place=place,
            hint=f"backend.dtype: {wanted.name} converts it",
        )  # fmt: skip
    if load == "dummy":
        return covering(wanted, spec)
    if native is None:
        raise InputError(
            f"{spec.name} is not quantized, and {wanted.name} is asked for", place=place,
            hint=f"`bench quantize MODEL --mode {wanted.name}` makes such a checkpoint; or write auto",
        )  # fmt: skip
    if wanted.name != native.name:
        raise InputError(
            f"the checkpoint is in {native.name}, and {wanted.name} is asked for", place=place,
            hint=f"write auto or {native.name}",
        )  # fmt: skip
    return native


def _made_up(
    architecture: Architecture, dtype: torch.dtype, device: torch.device | str, mode: WeightMode | None, seed: int,
    progress: Progress | None,
) -> Parameters:  # fmt: skip
    """Random weights, packed where there is a mode: what will be packed is never there in full."""
    if mode is None:
        parameters = allocate(architecture, dtype, device)
        fill_randomly(architecture, parameters, seed, progress)
        return parameters
    whole = allocate(replace(architecture, spec=replace(architecture.spec, layers=1)), dtype, device)
    one = replace(architecture, spec=replace(architecture.spec, layers=1), windows=architecture.windows[:1])
    fill_randomly(one, whole, seed)
    small = whole.layers[0]
    parameters = replace(whole, layers=(_shapes_only(small),) * architecture.spec.layers)
    return pack_randomly(architecture, parameters, mode, seed, progress)


def _shapes_only(layer: Layer) -> Layer:
    """A layer whose linear layers take no memory."""

    def shape(each: Linear | torch.Tensor) -> Linear | torch.Tensor:
        if isinstance(each, torch.Tensor):
            return each.to("meta")
        return Dense(each.weight.to("meta"), None if each.bias is None else each.bias.to("meta"))

    mlp = replace(layer.mlp, gate_up=shape(layer.mlp.gate_up), down=shape(layer.mlp.down))
    return replace(layer, qkv=shape(layer.qkv), out=shape(layer.out), mlp=mlp)


def weight_bytes(architecture: Architecture, dtype: torch.dtype, mode: WeightMode | None = None) -> int:
    """Bytes that the weights take: packed ones as their mode has them, all others in `dtype`."""
    spec = architecture.spec
    if mode is None:
        return spec.params_total * dtype.itemsize
    covered = [each for each in spec.linears() if mode.covers(each.kind)]
    packed = sum(each.layers * each.copies * mode.matrix_bytes(each.n, each.k) for each in covered)
    plain = spec.params_total - sum(each.layers * each.copies * each.n * each.k for each in covered)
    return int(packed) + plain * dtype.itemsize


def check_weights(
    architecture: Architecture, dtype: torch.dtype, device: torch.device, mode: WeightMode | None = None
) -> None:
    """See that the weights fit into the device's free memory, before any of it is taken.

    Raises:
        InputError: with what they need and what is there.
    """
    spec = architecture.spec
    need, free = weight_bytes(architecture, dtype, mode), memory(device).free
    if need > free:
        kind = str(dtype)[6:] if mode is None else mode.name
        raise InputError(
            f"{spec.name} does not fit: {spec.params_total / 1e9:.2f} billion weights in {kind} take "
            f"{need / GIB:.1f} GiB, {free / GIB:.1f} GiB are free on {device.type}",
            place=Place(key="model"), hint="take a smaller model or dtype, or another device",
        )  # fmt: skip


def load_weights(
    architecture: Architecture, parameters: Parameters, files: list[Path], progress: Progress | None = None
) -> None:
    """Fill `parameters` from safetensors files. Beside them no more than one tensor is held in memory.

    Raises:
        InputError: a damaged file, a tensor that is missing, unknown, or of another shape than the architecture says.
    """
    wanted = places(architecture, parameters)
    total = sum(tensor.nbytes for tensor in wanted.values())
    done = 0
    for file in files:
        try:
            with safe_open(file, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 (not a dict)
                    target = wanted.pop(name, None)
                    if target is None:
                        _check_unknown(name, architecture, file)
                        continue
                    _fill(target, shard.get_tensor(name), name, file)
                    done += target.nbytes
                    if progress is not None:
                        progress(done, total)
        except SafetensorError as error:
            raise InputError(f"is damaged: {error}", place=Place(str(file))) from None
    if wanted:
        names = sorted(wanted)
        raise InputError(
            f"{len(names)} tensors are missing, the first is {names[0]}", place=Place(str(files[0].parent)),
            hint="config.json and the weights must come from the same checkpoint",
        )  # fmt: skip


def _fill(target: Tensor, found: Tensor, name: str, file: Path) -> None:
    if found.shape != target.shape:
        raise InputError(
            f"{name} has shape {list(found.shape)}, the architecture needs {list(target.shape)}", place=Place(str(file)),
            hint="config.json and the weights must come from the same checkpoint",
        )  # fmt: skip
    if not found.is_floating_point() or found.dtype.itemsize < 2:
        raise InputError(
            f"{name} holds {str(found.dtype)[6:]}: a quantized weight", place=Place(str(file)),
            hint="config.json has no quantization_config that would say how it is packed",
        )  # fmt: skip
    target.copy_(found)


def _check_unknown(name: str, architecture: Architecture, file: Path) -> None:
    tied_head = name == "lm_head.weight" and architecture.spec.tied
    if tied_head or name.endswith(IGNORED):
        return
    raise InputError(
        f"tensor {name} has no place in a {architecture.spec.family} of {architecture.spec.layers} layers",
        place=Place(str(file)), hint="config.json and the weights must come from the same checkpoint",
    )  # fmt: skip
