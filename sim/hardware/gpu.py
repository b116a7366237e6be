"""GPUs: what the data sheets say, and how much memory software really sees."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from sim.hardware.links import LINKS, NETWORKS, Link, around_nodes, from_node_to_node, load_link, through_host
from workloads.errors import InputError, Place, unknown_name

GIB = 1 << 30
GB = 10**9


@dataclass(frozen=True, slots=True)
class GPUSpec:
    """One GPU (or, where the notes say so, one package that software sees as one device).

    Memory: `memory_bytes` is what the CUDA or HIP runtime reports as total (an "80 GB" H100 shows 79.1 GiB, which is
    84.9e9 bytes), because engines size the KV cache from that number: the total that PyTorch prints when memory runs
    out, recalled from such messages. Where none was found it is the data-sheet number in GB = 1e9 bytes, which is a
    little less. `nominal_gb` is the number on the box.

    Attributes:
        name, aliases, vendor, arch: `h100-sxm`, …; architecture decides which measured efficiencies apply.
        memory_bytes, nominal_gb: see above.
        bandwidth: bytes/s of device memory.
        bf16, fp8, int8, fp4: dense FLOP/s (operations/s) of the tensor cores; 0 = not supported.
        sms: streaming multiprocessors or compute units.
        link: scale-up link: `nvswitch`, `nvlink`, `nvlink-bridge` (pairs), `mesh`, or "" for PCIe only.
        link_bandwidth: bytes/s per GPU in one direction over that link (0 without one).
        gpus_per_node: GPUs that the link joins. network: name of the link between nodes, of which each GPU has one adapter.
        pcie: bytes/s of the host link in one direction.
        tdp_watts: board power limit.
        usd_per_hour, price_source: list price of a GPU hour and where it was read; 0 = not known.
        source, notes: where the figures are from, and their traps.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    arch: str
    memory_bytes: int
    nominal_gb: float
    bandwidth: float
    bf16: float
    fp8: float
    int8: float
    fp4: float
    sms: int
    link: str
    link_bandwidth: float
    gpus_per_node: int
    pcie: float
    tdp_watts: float
    usd_per_hour: float
    price_source: str
    source: str
    notes: str
    network: str = "infiniband-ndr"

    def flops(self, compute: str) -> float:
        """Dense peak of a tensor-core type: `bf16`, `fp8`, `int8` or `fp4`; 0 where there is none."""
        return {"bf16": self.bf16, "fp16": self.bf16, "fp8": self.fp8, "int8": self.int8, "fp4": self.fp4}[compute]

    @property
    def has_fast_link(self) -> bool:
        """Whether GPUs of a node reach each other without PCIe and the host."""
        return bool(self.link) and self.link_bandwidth > 0

    def through_host(self, ways: int) -> bool:
        """Whether `ways` GPUs, as many of them as share a node, have nothing better than PCIe (a bridge joins pairs only)."""
        return not self.has_fast_link or (self.link == "nvlink-bridge" and min(ways, self.gpus_per_node) > 2)

    def placed(self, link: str = "", network: str = "", gpus_per_node: int = 0) -> GPUSpec:
        """The same GPU in other machines; what is not given stays.

        Args:
            link: between the GPUs of a node, by name. network: between nodes, by name.

        Raises:
            InputError: a link that does not exist or is of the other kind, with its key.
        """
        changes: dict[str, Any] = {}
        if gpus_per_node:
            changes["gpus_per_node"] = gpus_per_node
            if self.link == "mesh" and 1 < gpus_per_node < self.gpus_per_node:  # each link of a card stays what it is
                changes["link_bandwidth"] = self.link_bandwidth * (gpus_per_node - 1) / (self.gpus_per_node - 1)
        if network:
            changes["network"] = _of_kind("network", network, True).name
        if link:
            found = _of_kind("link", link, False)
            if found.name.startswith("pcie"):
                changes |= {"link": "", "link_bandwidth": 0.0, "pcie": found.bandwidth}
            else:
                kind = {"nvlink-bridge": "nvlink-bridge", "infinity-fabric": "mesh"}.get(found.name, "nvswitch")
                changes |= {"link": kind, "link_bandwidth": found.bandwidth}
        return replace(self, **changes)

    def group_link(self, ways: int) -> Link:
        """The link from one GPU to another of a group of `ways`.

        Inside a node the scale-up link; in a full mesh only the links towards the other members; over PCIe where
        there is nothing better (a bridge joins pairs only); the network across nodes.
        """
        if ways > self.gpus_per_node:
            return from_node_to_node(LINKS[self.network])
        if self.through_host(ways):
            return Link("pcie", self.pcie, 5e-6, "through the host")
        if self.link == "mesh":
            return Link("mesh", self.link_bandwidth * (ways - 1) / (self.gpus_per_node - 1), 3e-6, "full mesh")
        return Link(self.link, self.link_bandwidth, 2e-6, "inside the node")

    def ring_link(self, ways: int) -> Link:
        """What a collective that goes around `ways` GPUs runs on; where it leaves a node, no better than inside."""
        most = self.gpus_per_node
        inside = self.group_link(min(ways, most)) if most > 1 or not self.has_fast_link else None
        if inside is not None and inside.name == "pcie":
            inside = through_host(inside)
        return inside if ways <= most else around_nodes(LINKS[self.network], most, inside)

    @property
    def host_link(self) -> Link:
        """The link to host memory."""
        return Link("pcie", self.pcie, 5e-6, "host link")


def _of_kind(key: str, name: str, between_nodes: bool) -> Link:
    try:
        found = load_link(name)
    except InputError as error:
        raise InputError(error.message, place=Place(key=key), hint=error.hint) from None
    if (found.name in NETWORKS) is not between_nodes:
        known = [each for each in LINKS if (each in NETWORKS) is between_nodes]
        raise InputError(
            f"{name} joins {'GPUs of one node' if between_nodes else 'nodes'}",
            place=Place(key=key),
            hint=f"one of {', '.join(known)}",
        )
    return found


def _number(text: str) -> float:
    return float(text) if text else 0.0


def _spec(row: dict[str, str]) -> GPUSpec:
    nominal = float(row["memory_gb"])
    visible = round(float(row["visible_gib"]) * GIB) if row["visible_gib"] else round(nominal * GB)
    return GPUSpec(
        name=row["name"],
        aliases=tuple(row["aliases"].split()),
        vendor=row["vendor"],
        arch=row["arch"],
        memory_bytes=visible,
        nominal_gb=nominal,
        bandwidth=float(row["bandwidth_gb_s"]) * GB,
        bf16=_number(row["bf16_tflops"]) * 1e12,
        fp8=_number(row["fp8_tflops"]) * 1e12,
        int8=_number(row["int8_tops"]) * 1e12,
        fp4=_number(row["fp4_tflops"]) * 1e12,
        sms=int(row["sms"]),
        link=row["link"],
        link_bandwidth=_number(row["link_gb_s"]) * GB,
        gpus_per_node=int(row["gpus_per_node"]),
        pcie=_number(row["pcie_gb_s"]) * GB,
        tdp_watts=_number(row["tdp_w"]),
        usd_per_hour=_number(row["usd_per_hour"]),
        price_source=row["price_source"],
        source=row["source"],
        notes=row["notes"],
    )


@cache
def _table() -> tuple[GPUSpec, ...]:
    text = (files("sim") / "data" / "gpus.csv").read_text(encoding="utf-8")
    return tuple(_spec(row) for row in csv.DictReader(text.splitlines()))


def list_gpus() -> list[GPUSpec]:
    """Every GPU of the table."""
    return list(_table())


def read_gpu(path: Path) -> GPUSpec:
    """A device of one's own: a TOML file with the attributes of `GPUSpec`, as `bench profile` writes it.

    Raises:
        InputError: unreadable, or a key that is missing, unknown or of another type.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"is not a description of a device: {error}", place=Place(str(path))) from None
    known = {each.name: each.type for each in fields(GPUSpec)}
    for name in values:
        if name not in known:
            raise unknown_name("key", name, known, place=Place(str(path), key=name))
    for name, kind in known.items():
        value = values.get(name, {"aliases": [], "network": GPUSpec.network}.get(name))
        good = {"str": str, "int": int, "float": (int, float)}.get(kind, list)
        if not isinstance(value, good) or isinstance(value, bool) or (isinstance(value, (int, float)) and value < 0):
            raise InputError(f"expected {kind}, found {value!r}", place=Place(str(path), key=name))
    for name in ("memory_bytes", "bandwidth", "bf16", "sms", "gpus_per_node", "pcie"):
        if not values[name]:
            raise InputError("must be above 0", place=Place(str(path), key=name))
    return GPUSpec(**values | {"aliases": tuple(values.get("aliases", ()))})


def load_gpu(name: str) -> GPUSpec:
    """A GPU by name, alias or the name that its driver tells, case-insensitive, or the path of a `.toml` that describes one.

    Raises:
        InputError: no such GPU, with the nearest names.
    """
    if name.endswith(".toml"):
        return read_gpu(Path(name))
    key = name.lower().replace("_", "-").replace(" ", "-")
    for vendor in ("nvidia-", "geforce-", "tesla-", "amd-", "instinct-"):
        key = key.removeprefix(vendor)
    for spec in _table():
        if key == spec.name or key in spec.aliases:
            return spec
    raise unknown_name("GPU", name, (spec.name for spec in _table()))
