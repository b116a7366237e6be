"""This machine as the cost model wants it: a folder with kernel times, a device, and what steps take beside them.

kernels.csv         median times of single calls, as `cost.tables` reads them
gpu.toml            the device, as `backend.gpu` reads it; its peaks are the best that was measured
calibration.toml    host time of a step, and time per token between the operators, as `cost.calibration` reads it
"""

from __future__ import annotations

import csv
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.config import EngineConfig
from sim.cost.base import StepShape
from sim.cost.build import build_cost
from sim.cost.constants import Constants, ElementwiseConstants, FrontEndConstants, HostConstants, load_constants
from sim.cost.tables import MeasuredTable
from sim.cost.write import write_constants
from sim.hardware import GPUSpec
from workloads.folders import whole_folder

if TYPE_CHECKING:
    from backends.model.model import Model
    from backends.torch.profile import OperatorTiming, StepTiming

KERNELS, GPU, CALIBRATION = "kernels.csv", "gpu.toml", "calibration.toml"
_COLUMNS = (
    "op", "dtype", "m", "n", "k", "batch", "seq", "heads", "kv_heads", "head_dim", "tokens", "hidden", "ffn", "topk", "experts",
    "tp", "ep", "kv_dtype", "us", "computed_in", "machine", "torch_version", "date",
)  # fmt: skip
_SERIAL = EngineConfig(depth=1)  # the form's host time is fitted on steps that nothing overlaps


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of one model on one machine.

    Attributes:
        gpu: the machine as a device of the table. operators, steps: timings.
        constants: host and element-wise sections. error: median |log(predicted / measured)| of the steps.
    """

    gpu: GPUSpec
    operators: list[OperatorTiming]
    steps: list[StepTiming]
    constants: Constants
    error: float


def fit(model: Model, operators: list[OperatorTiming], steps: list[StepTiming], kv: str = "auto") -> Profile:
    """Device, host and element-wise constants from timings of operators and of whole steps, with keys and values in `kv`."""
    gpu = _device(model, operators)
    serial = replace(_SERIAL, quantization=_mode(model), kv=replace(_SERIAL.kv, dtype=kv))
    spec = replace(model.architecture.spec, dtype=_dtype(model))
    table = MeasuredTable(_timings(operators), "this profile", gpu)
    source = f"`bench profile` of {spec.name} on {gpu.name}: {len(steps)} engine steps"
    front = FrontEndConstants(0.0, 0.0, 0.0, "backend torch has no front end")

    def cost(exposed: float, bandwidth: float) -> Any:
        host = HostConstants({"1": exposed * 1e3}, 0.0, 0.0, 0.0, source)
        made = replace(
            load_constants(gpu, "vllm"),
            host=host,
            front_end=front,
            elementwise=ElementwiseConstants(0.0, bandwidth, source),
        )
        return build_cost(spec, gpu, serial, made, table=table), made

    shapes = [StepShape(step.rows, step.context, step.chunks, step.sampled) for step in steps]
    measured = np.array([step.seconds for step in steps])
    bare = np.array([cost(0.0, 1e9)[0].step_seconds(shape) for shape in shapes])
    moved = np.array([cost(0.0, 1.0)[0].step_seconds(shape) for shape in shapes]) - bare
    exposed, share = _two(measured - bare, moved, measured)
    priced, constants = cost(exposed, 1.0 / max(share, 1e-9))
    off = [abs(np.log(priced.step_seconds(shape) / seconds)) for shape, seconds in zip(shapes, measured, strict=True)]
    error = float(np.median(off))
    constants = replace(constants, host=replace(constants.host, error=round(error, 4)))
    return Profile(gpu, operators, steps, constants, error)


def _two(rest: np.ndarray, moved: np.ndarray, measured: np.ndarray) -> tuple[float, float]:
    """`rest ≈ a + b × moved` with a and b not negative, least squares of relative errors."""
    weight = 1.0 / measured
    design = np.stack([weight, moved * weight], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, rest * weight, rcond=None)
    if a < 0:
        a, b = 0.0, float(design[:, 1] @ (rest * weight) / max(design[:, 1] @ design[:, 1], 1e-30))
    elif b < 0:
        a, b = float(design[:, 0] @ (rest * weight) / (design[:, 0] @ design[:, 0])), 0.0
    return max(float(a), 0.0), max(float(b), 0.0)


def _mode(model: Model) -> str:
    """What most of its linear layers are in."""
    modes = [getattr(layer.out, "mode", "") for layer in model.parameters.layers]
    return max(set(modes), key=modes.count) or "auto"


def _dtype(model: Model) -> str:
    from backends.weights.load import DTYPES

    return next(name for name, dtype in DTYPES.items() if dtype == model.dtype)


def _device(model: Model, operators: list[OperatorTiming]) -> GPUSpec:
    """The machine as a GPU: memory as it is, peaks as the best that any timing reached."""
    from backends.weights.device import device_name, memory

    name = re.sub(r"[^a-z0-9]+", "-", device_name(model.device).lower()).strip("-") or "this-machine"
    size = model.dtype.itemsize
    bandwidth = 1.0
    flops = {
        "bf16": 1.0,
        "fp8": 0.0,
        "int8": 0.0,
        "fp4": 0.0,
    }  # a type without tensor cores here is expanded, if anything
    for op, shape, seconds, kind, kv in operators:
        if op == "gemm":
            m, n, k = shape["m"], shape["n"], shape["k"]
            multiplied = kind.removesuffix("-block") if kind.removesuffix("-block") in flops else "bf16"
            flops[multiplied] = max(flops[multiplied], 2 * m * n * k / seconds)
            if kind == "bf16":
                bandwidth = max(bandwidth, size * (n * k + m * (n + k)) / seconds)
        elif op == "attn_decode":
            width = size if kv == "bf16" else 1
            read = 2 * shape["batch"] * shape["seq"] * shape["kv_heads"] * shape["head_dim"] * width
            bandwidth = max(bandwidth, read / seconds)
    total = memory(model.device).total
    return GPUSpec(
        name=name, aliases=(), vendor=platform.machine(), arch="cpu" if model.device.type == "cpu" else "", memory_bytes=total,
        nominal_gb=total / 1e9, bandwidth=bandwidth, **flops, sms=1, link="", link_bandwidth=0.0,
        gpus_per_node=1, pcie=bandwidth, tdp_watts=0.0, usd_per_hour=0.0, price_source="",
        source=f"bench profile, {time.strftime('%Y-%m-%d')}: the best rates that a timing reached",
        notes="bf16 stands for the type that the model was computed in",
    )  # fmt: skip


def _timings(operators: Sequence[OperatorTiming]) -> list:
    """As the cost model reads them: `bf16` stands for the model's own type, whatever that is."""
    from sim.cost.timings import Timing
    from workloads.errors import Place

    return [
        Timing(op, kind, kv, shape, seconds * 1e6, "", "", "", "", Place())
        for op, shape, seconds, kind, kv in operators
    ]


def write_profile(profile: Profile, model: Model, folder: Path, *, overwrite: bool = False) -> None:
    """Write the three files, all of them or none.

    Raises:
        OutputError: the folder is there already, or cannot be written.
    """
    import torch

    about = {"computed_in": _dtype(model), "machine": profile.gpu.name, "torch_version": torch.__version__}
    about["date"] = time.strftime("%Y-%m-%d")
    with whole_folder(folder, KERNELS, overwrite=overwrite) as partial:
        with (partial / KERNELS).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, _COLUMNS)
            writer.writeheader()
            for op, shape, seconds, kind, kv in profile.operators:
                writer.writerow(
                    {"op": op, "dtype": kind, "kv_dtype": kv, **shape, "us": f"{seconds * 1e6:.4g}", **about}
                )
        (partial / GPU).write_text(_gpu_text(profile.gpu), "utf-8")
        head = f"# What steps take beside their operators; median error on the steps it was fitted to: {profile.error:.1%}\n"
        sections = {name: getattr(profile.constants, name) for name in ("elementwise", "host", "front_end")}
        write_constants(partial / CALIBRATION, "", "", sections, head)


def _gpu_text(gpu: GPUSpec) -> str:
    lines = [
        "# A device of one's own: `backend: {name: sim, gpu: this-file.toml}`. Bytes, bytes a second, operations a second."
    ]
    for each in fields(gpu):
        value = getattr(gpu, each.name)
        if isinstance(value, str):
            value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        elif isinstance(value, tuple):
            value = "[]"
        lines.append(f"{each.name} = {value}")
    return "\n".join(lines) + "\n"
