"""Links between devices: bandwidth of one direction and the latency of a small message."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.errors import unknown_name


@dataclass(frozen=True, slots=True)
class Link:
    """A point-to-point link.

    Attributes:
        name: as in configurations. bandwidth: bytes/s in one direction, per GPU, as the data sheet says.
        latency: seconds before the first byte arrives, software included.
        about: one line for lists.
    """

    name: str
    bandwidth: float
    latency: float
    about: str = ""

    def seconds(self, size: float) -> float:
        """Time to move `size` bytes one way."""
        return self.latency + size / self.bandwidth


# Latencies are orders of magnitude (a kernel or verb launch and the wire), not measurements of one machine.
LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        Link("nvlink3", 300e9, 2e-6, "NVLink 3 through NVSwitch (A100)"),
        Link("nvlink4", 450e9, 2e-6, "NVLink 4 through NVSwitch (H100, H200)"),
        Link("nvlink5", 900e9, 2e-6, "NVLink 5 through NVSwitch (B200, GB200)"),
        Link("infinity-fabric", 448e9, 3e-6, "Infinity Fabric, all seven links of an MI300X"),
        Link("nvlink-bridge", 56.25e9, 2e-6, "NVLink bridge between two cards (A6000, A40, RTX 3090)"),
        Link("pcie3", 16e9, 5e-6, "PCIe 3.0 x16"),
        Link("pcie4", 32e9, 5e-6, "PCIe 4.0 x16"),
        Link("pcie5", 64e9, 5e-6, "PCIe 5.0 x16"),
        Link("infiniband-edr", 12.5e9, 5e-6, "InfiniBand EDR, 100 Gbit/s a GPU"),
        Link("infiniband-hdr", 25e9, 5e-6, "InfiniBand HDR, 200 Gbit/s a GPU"),
        Link("infiniband-ndr", 50e9, 5e-6, "InfiniBand NDR, 400 Gbit/s a GPU"),
        Link("infiniband-xdr", 100e9, 5e-6, "InfiniBand XDR, 800 Gbit/s a GPU"),
        Link("ethernet-100g", 12.5e9, 2e-5, "100 Gbit/s Ethernet, TCP"),
        Link("ethernet-400g", 50e9, 8e-6, "400 Gbit/s Ethernet with RoCE"),
    )
}
ALIASES = {
    "nvlink": "nvlink4",
    "pcie": "pcie5",
    "infiniband": "infiniband-ndr",
    "ib": "infiniband-ndr",
    "ethernet": "ethernet-100g",
}


SWITCH = "nvswitch"
"""What the links of a node go through, in the data of GPUs, where a switch joins all of them."""

NETWORKS = tuple(name for name in LINKS if name.startswith(("infiniband", "ethernet")))
"""Links between nodes; the others join the GPUs of one."""

_SENT, _SEND_LATENCY = 0.7, 17e-6
_AROUND, _HOP_LATENCY = 0.6, 6.5e-6


def from_node_to_node(network: Link) -> Link:
    """One GPU to one of another node.

    NCCL's send and receive between two H100 nodes over InfiniBand NDR take 17 us, and 1.87 ms for 64 MiB; between two A100 nodes
    24 us (Vidur's profiling).
    """
    return Link(network.name, _SENT * network.bandwidth, max(network.latency, _SEND_LATENCY), network.about)


def around_nodes(network: Link, nics: int, inside: Link | None) -> Link:
    """A collective that goes around the GPUs of several nodes, of which each has `nics` network adapters, one a GPU.

    Its rings leave a node through all of them at once. An all-reduce of 64 MiB between two A100 nodes of 1, 2 and 4 GPUs moves 6,
    12 and 22 GB/s, half of as many 100 Gbit/s adapters; 2 KiB take 63 us over 8 GPUs and 65 us over 16 (Vidur's profiling).

    Args:
        inside: what it runs on within a node, which bounds it; None where nothing is known to.
    """
    bandwidth, latency = _AROUND * network.bandwidth * nics, max(network.latency, _HOP_LATENCY)
    if inside is not None:
        bandwidth, latency = min(bandwidth, inside.bandwidth), max(latency, inside.latency)
    return Link(f"{network.name} x {nics}", bandwidth, latency, network.about)


def through_host(link: Link) -> Link:
    """A PCIe link between GPUs that have no other: data is written to host memory and read again, by a library that copies it
    through its own buffers. An estimate: two RTX PRO 6000 (vLLM 0.19, LLMServingSim's runs) take some 170 us for 1 MB; small
    messages take some 20 us between two A100 of two sockets, 27 between four RTX PRO 6000 and 95 between eight, as decode steps
    have it that are otherwise priced right (vLLM 0.19, github.com/cssnoeasy/a100-vllm-benchmark-blog; vLLM 0.11,
    github.com/cloudrift-ai/server-benchmark): 7 to 15 us a hop."""
    return Link(f"{link.name} through the host", 0.3 * link.bandwidth, link.latency + 8e-6, link.about)


def load_link(name: str) -> Link:
    """A link by name or alias.

    Raises:
        InputError: no such link, with the nearest names.
    """
    key = name.lower().replace("_", "-")
    key = ALIASES.get(key, key)
    if key not in LINKS:
        raise unknown_name("link", name, [*LINKS, *ALIASES])
    return LINKS[key]


def list_links() -> list[Link]:
    """The named links."""
    return list(LINKS.values())
