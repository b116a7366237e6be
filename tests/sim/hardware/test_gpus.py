"""GPUs and links: units, names, and what software sees."""

import csv
from pathlib import Path

import pytest

from sim.cost.constants import load_constants
from sim.cost.operators import AllReduce
from sim.hardware import GB, GIB, list_gpus, list_links, load_gpu, load_link
from workloads.errors import InputError

SHARED = Path(__file__).parents[3].parent / "shared"


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda g: g.name)
def test_figures_are_in_si_units_and_plausible(gpu):
    assert 7 * GIB < gpu.memory_bytes <= gpu.nominal_gb * GIB
    assert gpu.memory_bytes > gpu.nominal_gb * GB * 0.94
    assert 2e11 < gpu.bandwidth < 1e13
    assert 2e13 < gpu.bf16 < 5e15
    assert gpu.fp8 in (0, pytest.approx(2 * gpu.bf16, rel=0.03))
    assert gpu.sms >= 26 and gpu.pcie >= 16e9 and gpu.source
    assert (gpu.link_bandwidth > 0) == bool(gpu.link)


def test_an_h100_shows_less_than_its_box_says():
    h100 = load_gpu("h100")
    assert h100.memory_bytes / GIB == pytest.approx(79.1, abs=0.05)
    assert h100.nominal_gb == 80
    assert h100.flops("fp8") == pytest.approx(1978.9e12)


@pytest.mark.parametrize(
    ("written", "name"),
    [("H100", "h100-sxm"), ("h100_sxm", "h100-sxm"), ("H100-SXM", "h100-sxm"), ("a100", "a100-sxm"),
     ("A100-SXM-80GB", "a100-sxm"), ("NVIDIA H200", "h200-sxm"), ("b200", "b200-sxm"),
     ("V100", "v100-sxm"), ("A6000", "rtx-a6000"), ("RTX 3090", "rtx-3090"), ("NVIDIA GeForce RTX 4090", "rtx-4090"),
     ("Tesla T4", "t4"), ("NVIDIA A10", "a10"), ("H100 NVL", "h100-nvl"), ("NVIDIA H100 80GB HBM3", "h100-sxm"),
     ("NVIDIA A100-SXM4-80GB", "a100-sxm"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"), ("NVIDIA H100 PCIe", "h100-pcie"),
     ("NVIDIA A100 80GB PCIe", "a100-pcie"), ("NVIDIA RTX A6000", "rtx-a6000"), ("AMD Instinct MI300X", "mi300x"),
     ("NVIDIA L40S", "l40s"), ("NVIDIA B200", "b200-sxm"), ("NVIDIA GH200 480GB", "gh200"),
     ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"), ("Tesla V100S-PCIE-32GB", "v100s-pcie"), ("NVIDIA GB10", "gb10"),
     ("NVIDIA GeForce RTX 4090 D", "rtx-4090-d"), ("NVIDIA RTX A5000", "rtx-a5000"),
     ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-workstation"),
     ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
     ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
     ("H20-3e", "h20-141gb"), ("AMD Instinct MI250", "mi250"), ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
     ("NVIDIA GeForce RTX 4080", "rtx-4080"), ("NVIDIA GeForce RTX 3060", "rtx-3060"), ("RTX 5070 Ti", "rtx-5070-ti"),
     ("NVIDIA RTX 5000 Ada Generation", "rtx-5000-ada"), ("NVIDIA RTX PRO 4500 Blackwell", "rtx-pro-4500"),
     ("NVIDIA RTX A2000 12GB", "rtx-a2000-12gb"), ("H100 96GB", "h100-sxm-96gb"), ("MI308X", "mi308x")],
)  # fmt: skip
def test_names(written, name):
    assert load_gpu(written).name == name


def test_amd_counts_memory_in_gibibytes():
    """ROCm's documentation gives VRAM in GiB where the boxes say GB; what software sees is a little less."""
    for name, size in (("mi300x", 192), ("mi325x", 256), ("mi350x", 288), ("mi355x", 288)):
        assert load_gpu(name).memory_bytes / GIB == pytest.approx(size, abs=0.05)


def test_dense_rates_of_cards_follow_their_multiprocessors_and_clocks():
    """16-bit products with 32-bit sums: 512 operations a multiprocessor and clock on GeForce cards, at the boost clock in GHz of
    their data sheets; sparse figures would be twice that, those with 16-bit sums too."""
    for name, ghz in (
        ("rtx-3090", 1.695), ("rtx-3080", 1.71), ("rtx-3080-ti", 1.665), ("rtx-3070", 1.725), ("rtx-3060", 1.777),
        ("rtx-4090", 2.52), ("rtx-4080", 2.505), ("rtx-4080-super", 2.55), ("rtx-4070-ti", 2.61), ("rtx-4070", 2.475),
        ("rtx-4070-super", 2.475), ("rtx-4070-ti-super", 2.61), ("rtx-4060-ti-16gb", 2.535), ("rtx-5090", 2.407),
        ("rtx-5080", 2.617), ("rtx-5070-ti", 2.452), ("rtx-5070", 2.512), ("rtx-5060-ti-16gb", 2.572),
    ):  # fmt: skip
        gpu = load_gpu(name)
        assert gpu.bf16 == pytest.approx(gpu.sms * ghz * 1e9 * 512, rel=0.01), name


def test_a_card_of_two_dies_is_two_devices():
    die, card = load_gpu("mi250x-gcd"), load_gpu("mi250x")
    for figure in ("bf16", "bandwidth", "memory_bytes", "sms", "tdp_watts"):
        assert 2 * getattr(die, figure) == pytest.approx(getattr(card, figure), rel=0.002), figure
    assert load_gpu("mi250").group_link(2).bandwidth == pytest.approx(50e9)


def test_names_are_unique():
    names = [n for g in list_gpus() for n in (g.name, *g.aliases)]
    assert len(names) == len(set(names))


def test_unknown_gpu():
    with pytest.raises(InputError, match="h100-sxm"):
        load_gpu("h100-smx")


def test_collectives_use_the_link_that_joins_the_group():
    assert load_gpu("h100").group_link(8).bandwidth == 450e9
    assert load_gpu("h100").group_link(16).name == "infiniband-ndr"
    assert load_gpu("l40s").group_link(2).bandwidth == 32e9
    assert load_gpu("a40").group_link(2).bandwidth == 56.25e9
    assert load_gpu("a40").group_link(4).bandwidth == 32e9
    assert load_gpu("mi300x").group_link(2).bandwidth == pytest.approx(64e9)
    assert load_gpu("mi300x").group_link(8).bandwidth == 448e9
    assert load_gpu("gb200").group_link(16).bandwidth == 900e9


def test_links():
    assert load_link("NVLink").name == "nvlink4"
    assert load_link("infiniband").bandwidth == 50e9
    assert load_link("pcie5").seconds(64e9) == pytest.approx(1.0, rel=1e-4)
    assert len(list_links()) > 8
    with pytest.raises(InputError, match="nvlink"):
        load_link("nvlnk")


@pytest.mark.shared
def test_agrees_with_the_recorded_table():
    path = SHARED / "measured" / "hardware.csv"
    if not path.is_file():
        pytest.skip("recorded hardware table is not here")
    checked = 0
    for row in csv.DictReader(path.open()):
        if row["gpu"].startswith("TPU"):
            continue
        gpu = load_gpu(row["gpu"])
        assert gpu.bandwidth == float(row["hbm_bw_gb_s"]) * 1e9
        assert gpu.bf16 == pytest.approx(float(row["fp16_bf16_dense_tflops"]) * 1e12)
        assert gpu.tdp_watts == float(row["tdp_w"])
        checked += 1
    assert checked > 20


def test_a_collective_leaves_a_node_through_all_its_adapters():
    gpu = load_gpu("h100")
    assert gpu.ring_link(8) == gpu.group_link(8)
    assert gpu.ring_link(16).bandwidth == pytest.approx(0.6 * 8 * 50e9)
    assert gpu.placed(gpus_per_node=2).ring_link(4).bandwidth == pytest.approx(0.6 * 2 * 50e9)
    assert gpu.placed(network="infiniband-xdr").ring_link(16).bandwidth == gpu.link_bandwidth, "no faster than inside"
    assert gpu.group_link(16).bandwidth == pytest.approx(0.7 * 50e9)


def test_the_same_gpu_in_other_machines():
    gpu = load_gpu("h100")
    assert gpu.placed() == gpu
    assert gpu.placed(link="pcie4").group_link(2).bandwidth == 32e9
    assert gpu.placed(link="nvlink5").group_link(8).bandwidth == 900e9
    bridged = load_gpu("rtx-3090").placed(link="nvlink-bridge")
    assert (bridged.group_link(2).bandwidth, bridged.group_link(4).name) == (56.25e9, "pcie")
    assert gpu.placed(network="ethernet").group_link(16).name == "ethernet-100g"


@pytest.mark.parametrize("name", ["l40s", "rtx-4090", "mi300x", "h100-sxm", "a100-sxm"])
def test_more_nodes_are_never_faster_than_one(name):
    gpu = load_gpu(name)
    constants = load_constants(gpu, "vllm").all_reduce["8"]
    for size in (8192, 1 << 20, 1 << 26):
        times = [
            AllReduce(constants, gpu.placed(gpus_per_node=each).ring_link(8), 8, size).seconds(1) for each in (8, 4, 2)
        ]
        assert times == sorted(times)


def test_links_of_a_mesh_stay_what_they_are():
    gpu = load_gpu("mi300x")
    assert gpu.placed(gpus_per_node=2).group_link(2).bandwidth == pytest.approx(gpu.group_link(2).bandwidth)


@pytest.mark.parametrize(
    ("given", "key", "said"),
    [
        ({"link": "infiniband"}, "link", "infiniband joins nodes"),
        ({"network": "pcie"}, "network", "pcie joins GPUs of one node"),
        ({"network": "ib-ndr"}, "network", "unknown link 'ib-ndr'"),
    ],
)
def test_links_of_the_other_kind_are_refused(given, key, said):
    with pytest.raises(InputError, match=said) as caught:
        load_gpu("h100").placed(**given)
    assert caught.value.place.key == key


def test_all_reduces_across_two_nodes_are_within_a_factor_of_two_of_measured_ones():
    """Between DGX A100 with 100 Gbit/s adapters, Vidur's profiling: (GPUs, of a node, bytes, measured microseconds)."""
    rows = [
        (2, 1, 67108864, 11439), (4, 2, 67108864, 8490), (8, 4, 67108864, 5239), (2, 1, 16777216, 2899), (8, 4, 16777216, 1581),
        (8, 4, 2048, 63), (16, 8, 2048, 65),
    ]  # fmt: skip
    constants = load_constants(load_gpu("a100"), "vllm").all_reduce["8"]
    for ways, per_node, size, measured in rows:
        gpu = load_gpu("a100").placed(network="infiniband-edr", gpus_per_node=per_node)
        priced = AllReduce(constants, gpu.ring_link(ways), ways, size).seconds(1) * 1e6
        assert 0.5 < priced / measured < 2, (ways, per_node, size, priced, measured)
