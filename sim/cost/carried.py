"""What a device reaches of shares that were measured on another: factors by GPU or architecture (`sim/data/carried.toml`).

The data sheet's peaks carry constants from one device to the next. Where it is known that a device keeps less of them (its
power limit, its software), the borrowed shares are scaled down here, each factor with its source.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sim.hardware.gpu import GPUSpec

if TYPE_CHECKING:
    from sim.cost.constants import Constants

TIMES_AS_LONG = "times as long"
"""In the source of constants that were slowed down by a factor."""


@dataclass(frozen=True, slots=True)
class EarlyKernels:
    """Kernels of an engine's older generation, not tuned for small batches.

    Attributes:
        pass_rows, pass_most: weights are read once for every `pass_rows` tokens, up to `pass_most` tokens.
        gemm_bandwidth, decode_bandwidth: shares of the data sheet's bandwidth.
        ungrouped: every query head reads its keys and values by itself.
        source: where that is from.
    """

    pass_rows: float
    pass_most: float
    gemm_bandwidth: float
    decode_bandwidth: float
    ungrouped: bool
    source: str


@dataclass(frozen=True, slots=True)
class SlowKernels:
    """Kernels that take longer on this device than shares and data sheets say.

    Attributes:
        experts: times as long as borrowed constants say, without the launch. experts_launch: the same of the launch.
        blocks: of products of FP8 in blocks. host_launch: of an operation that the host launches outside of a graph.
        unsure: standard deviation of the logarithm of these factors.
        source: where they are from.
    """

    experts: float
    experts_launch: float
    blocks: float
    host_launch: float
    unsure: float
    source: str


@dataclass(frozen=True, slots=True)
class Carried:
    """Factors on borrowed shares of the peak and on borrowed launch times, `tile` queries of a tile of prefill attention (0: as
    borrowed), kernels that are slower than those, and kernels of older engines. `served`: a factor on all shares that holds in
    steps of an engine alone, and not for kernels timed by themselves. `even`: products reach the same share of the peak in every
    precision, that of 16 bit, whatever the device does that they are borrowed from."""

    compute: float
    bandwidth: float
    source: str
    launch: float = 1.0
    tile: float = 0.0
    served: float = 1.0
    even: bool = False
    slow: SlowKernels | None = None
    early: EarlyKernels | None = None


@cache
def _table() -> dict[str, Carried]:
    raw = tomllib.loads((files("sim") / "data" / "carried.toml").read_text(encoding="utf-8"))
    found = {}
    for name in raw:
        body = dict(raw[name])
        while like := body.pop("like", None):
            body = raw[like] | body
        slow, early = body.pop("slow", None), body.pop("early", None)
        found[name] = Carried(
            **body, slow=SlowKernels(**slow) if slow else None, early=EarlyKernels(**early) if early else None
        )
    return found


def carried(gpu: GPUSpec) -> Carried | None:
    """What is known of this device, or of its architecture; of workstations' Blackwell apart."""
    arch = "blackwell-rtx" if gpu.arch == "blackwell" and not gpu.has_fast_link else gpu.arch
    return _table().get(gpu.name) or _table().get(arch)


def in_time(section: Any, faster: float) -> Any:
    """Constants of products on multiprocessors whose tensor cores are `faster`, by data sheet and by what is reached of it.

    Filling the pipeline of a tile takes the time in which memory answers, and beginning and ending it that of some instructions,
    which is about the same everywhere: the faster the tensor cores, the longer the stretch of the inner dimension that it is
    worth, and slow ones slow down full tiles alone.
    """
    if not hasattr(section, "extra_k"):
        return section
    return replace(section, extra_k=section.extra_k * faster, faster=section.faster * faster)


def slowed(section: Any, gpu: GPUSpec, name: str, kind: str = "") -> Any:
    """Borrowed constants of experts (section `moe`), of products of FP8 in blocks and of the host, where these are slow."""
    found = carried(gpu)
    slow = found.slow if found else None
    if slow is None or not (name in ("moe", "host") or (name, kind) == ("gemm", "fp8-block")):
        return section
    if name == "host":
        note = f"{section.source}; launches {slow.host_launch:g} {TIMES_AS_LONG} ({slow.source})"
        return replace(section, source=note, kernel_launch_us=section.kernel_launch_us * slow.host_launch)
    factor = slow.experts if name == "moe" else slow.blocks
    values = {share: getattr(section, share) / factor for share in ("compute", "bandwidth")}
    if name == "moe":
        values["activation"] = section.activation / factor
        values |= {"expert_us": section.expert_us * factor, "launch_us": section.launch_us * slow.experts_launch}
    note = f"{section.source}; {factor:g} {TIMES_AS_LONG} on {gpu.name} ({slow.source})"
    return replace(section, source=note, **values)


_FLASH_2 = 0.57


def flash_2(section: Any) -> Any:
    """FlashAttention 3's constants of prompts on Hopper for kernels of FlashAttention 2, which are 1.5 to 2.0 times slower there
    (arXiv 2407.08608)."""
    note = f"{section.source}; {_FLASH_2:g} of its arithmetic, with FlashAttention 2 (1.5 to 2.0 times slower: arXiv 2407.08608)"
    return replace(section, compute=_FLASH_2 * section.compute, source=note)


def reached(gpu: GPUSpec, section: Any, wide: Any) -> float:
    """Factor on the compute share of products; `wide` are those of 16 bit on the device that they are borrowed from."""
    found = carried(gpu)
    if found is None:
        return 1.0
    return found.compute * (wide.compute / section.compute if found.even else 1.0)


def scaled(section: Any, gpu: GPUSpec, compute: float | None = None) -> Any:
    """A borrowed section of constants with what this device reaches of its shares; `compute`: of products, see `reached`."""
    found = carried(gpu)
    if found is None or not hasattr(section, "bandwidth"):
        return section
    shares = {
        "compute": found.compute if compute is None else compute,
        "bandwidth": found.bandwidth,
        "launch_us": found.launch,
    }
    kept = {"compute": "of its compute", "bandwidth": "of its bandwidth", "launch_us": "of its launch times"}
    changed = {name: factor for name, factor in shares.items() if factor != 1.0 and hasattr(section, name)}
    if found.tile and hasattr(section, "tile"):
        section = replace(section, tile=found.tile, source=f"{section.source}; in tiles of {found.tile:g} queries")
    if not changed:
        return section
    told = " and ".join(f"{factor:.3g} {kept[name]}" for name, factor in changed.items())
    values = {name: getattr(section, name) * factor for name, factor in changed.items()}
    return replace(section, source=f"{section.source}; {told} ({found.source})", **values)


_IN_SERVICE = "of its shares in steps of an engine"


def in_service(constants: Constants, gpu: GPUSpec) -> Constants:
    """Constants with what this device reaches of borrowed shares in steps of an engine; the same where nothing is known."""
    found = carried(gpu)
    if found is None or found.served == 1.0:
        return constants

    def kept(section: Any) -> Any:
        if isinstance(section, dict):
            return {kind: kept(each) for kind, each in section.items()}
        source = getattr(section, "source", "")
        if not hasattr(section, "bandwidth") or "taken from" not in source or _IN_SERVICE in source:
            return section
        shares = [name for name in ("compute", "bandwidth") if hasattr(section, name)]
        told = f"{source}; {found.served:g} {_IN_SERVICE} ({found.source})"
        return replace(section, source=told, **{name: getattr(section, name) * found.served for name in shares})

    return replace(constants, **{each.name: kept(getattr(constants, each.name)) for each in fields(constants)})
