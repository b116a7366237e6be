"""Tensor against pipeline parallel, on fast and on slow links, and when splitting only slows.

Llama-3.1-8B, which fits on one GPU, and Llama-3.1-70B, which does not, on H100s with NVLink and on L40S, which have
PCIe only. Tensor parallel sums up twice a layer over the link; pipeline parallel hands activations over once a stage
but leaves stages idle when little is in flight. The cost model runs a step as one round through all stages, cut into
as many parts as there are stages, but never cuts a chunk of a prompt; engines put the next step behind it instead. So
pipelines come out too slow here where prompts are long, and the same is asked with short prompts. Llama-3.1-405B in 16 bit
needs two nodes: there the slow link is the network between them.
"""

from __future__ import annotations

from collections.abc import Iterable

from experiments.claims.base import Chart, Check, Result, Table, Verdict, more, times
from experiments.claims.simulate import Run, simulate

NAME, TITLE = "parallelism", "Tensor or pipeline parallel, fast and slow links"
WORKLOAD = """
name: splitting a model
model: meta-llama/Llama-3.1-8B
backend: {name: sim, gpu: h100-sxm}
engine: {preset: vllm, max_model_len: 8192}
traffic:
  max_tokens: exact
  synthetic: {requests: 400, input_tokens: 1024, output_tokens: 256}
load: {mode: closed, concurrency: 1}
"""
CARDS = {"NVLink (H100)": "h100-sxm", "PCIe (L40S)": "l40s"}
SPLITS = {"1 GPU": (1, 1), "TP 2": (2, 1), "PP 2": (1, 2), "TP 4": (4, 1), "PP 4": (1, 4)}
SHORT = 64  # tokens of a prompt, for a round that is all decodes
BIG = {"TP 8": (8, 1), "TP 2 x PP 4": (2, 4), "PP 8": (1, 8)}
MODELS = {"8B": ("meta-llama/Llama-3.1-8B", SPLITS), "70B": ("meta-llama/Llama-3.1-70B", BIG)}
LOADS = (1, 64, 512)
NODES = {"TP 16": (16, 1), "TP 8 x PP 2": (8, 2)}
NETWORKS = {"InfiniBand NDR": "infiniband-ndr", "100 Gbit/s Ethernet": "ethernet-100g"}


def _one(
    model: str,
    card: str,
    split: tuple[int, int],
    load: int,
    requests: int,
    prompt: int = 1024,
    network: str = "infiniband-ndr",
) -> Run:
    tensor, pipeline = split
    return simulate(
        WORKLOAD,
        {
            "model": model,
            "backend": {"name": "sim", "gpu": card, "network": network},
            "engine.parallel": {"tensor": tensor, "pipeline": pipeline},
            "load.concurrency": load,
            "traffic.synthetic.input_tokens": prompt,
            "traffic.synthetic.requests": 8 if load == 1 else max(requests, 2 * load),
        },
    )


def _nodes(requests: int) -> dict[tuple, Run]:
    """Two nodes of eight, by network, split and load."""
    return {
        ("405B", f"two nodes, {said}", name, load): _one(
            "meta-llama/Llama-3.1-405B", "h100-sxm", split, load, requests, network=network
        )
        for said, network in NETWORKS.items()
        for name, split in NODES.items()
        for load in LOADS[:2]
    }  # fmt: skip


def run(small: bool = False) -> Result:
    """The experiment; `small` takes fewer requests where few are in flight."""
    requests = 64 if small else 400
    found: dict[tuple, Run] = {}
    for link, card in CARDS.items():
        for size, (model, splits) in MODELS.items():
            for name, split in splits.items():
                for load in LOADS:
                    found[size, link, name, load] = _one(model, card, split, load, requests)
                if size == "70B":
                    found[f"70B, {SHORT} in", link, name, LOADS[-1]] = _one(
                        model, card, split, LOADS[-1], requests, SHORT
                    )
    found |= _nodes(requests)
    rows = tuple(
        (*key, one["median_tpot_ms"], one["output_throughput"], one["output_throughput"] / one.data.info["gpus"])
        for key, one in found.items()
    )
    return Result(NAME, TITLE, (_table(rows),), _charts(found), (_where(found), _fits(found)), small)


def _table(rows: tuple) -> Table:
    columns = ("model", "link", "split", "in flight", "p50 TPOT ms", "output tokens/s", "a GPU")
    return Table("Llama-3.1, 1,024 in and 256 out", columns, rows)


def _charts(found: dict) -> tuple[Chart, ...]:
    return tuple(
        Chart(
            f"Llama-3.1-8B, {load} in flight: speed over one GPU", "bars", tuple(SPLITS),
            {
                link: [_speed(found["8B", link, name, load]) / _speed(found["8B", link, "1 GPU", load]) for name in SPLITS]
                for link in CARDS
            },
            "", "tokens a second over one GPU", level=(1.0, "one GPU"),
        )
        for load in LOADS
    )  # fmt: skip


def _speed(one: Run) -> float:
    return one["output_throughput"]


def _where(found: dict) -> Verdict:
    fast, slow = CARDS
    at = {
        (link, load): _speed(found["70B", link, "TP 8", load]) / _speed(found["70B", link, "PP 8", load])
        for link in CARDS
        for load in LOADS
    }
    most = LOADS[-1]
    short = {
        link: _speed(found[f"70B, {SHORT} in", link, "PP 8", most])
        / _speed(found[f"70B, {SHORT} in", link, "TP 8", most])
        for link in CARDS
    }
    across = {
        (said, load): _speed(found["405B", f"two nodes, {said}", "TP 8 x PP 2", load])
        / _speed(found["405B", f"two nodes, {said}", "TP 16", load])
        for said in NETWORKS
        for load in LOADS[:2]
    }
    both = _speed(found["70B", slow, "TP 2 x PP 4", most]) / _speed(found["70B", slow, "TP 8", most])
    return Verdict(
        "tensor parallel inside a node with fast links, pipeline across slow ones",
        "an overview of serving engines",
        (
            *(
                Check(f"70B, NVLink, {load} in flight: TP 8 over PP 8", "faster", times(at[fast, load]), at[fast, load] > 1)
                for load in LOADS
            ),
            *(
                Check(f"70B, PCIe, {load} in flight: PP 8 over TP 8", "faster", times(1 / at[slow, load]), at[slow, load] < 1)
                for load in LOADS
            ),
            Check(f"70B, PCIe, {most} in flight, prompts of {SHORT} tokens: PP 8 over TP 8", "faster", times(short[slow]),
                  short[slow] > 1),
            Check(f"70B, PCIe, {most} in flight: TP 2 in PP 4 over TP 8", "faster", times(both), both > 1),
            *(
                Check(f"405B, two nodes, {said}, {load} in flight: TP 8 in PP 2 over TP 16", "faster", times(gain), gain > 1)
                for (said, load), gain in across.items()
            ),
        ),
        f"Over NVLink TP 8 is {times(at[fast, 1])} as fast as PP 8 with one request, {times(at[fast, 64])} with 64 "
        f"and {times(at[fast, most])} with {most}; over PCIe {times(at[slow, 1])}, {times(at[slow, 64])} and "
        f"{times(at[slow, most])}. A stage reads its weights once for each of the batches that take turns in the "
        f"pipeline, so that few requests fill it badly; with {most} and short prompts PP 8 is {times(short[slow])} "
        f"as fast over PCIe and {times(short[fast])} over NVLink. A pipeline pays with large batches over slow "
        f"links, and then best around small tensor-parallel groups ({times(both)}). How long collectives take over "
        "PCIe is uncertain here (docs/validation.md), and prompts are dear in pipelines (see above). Between nodes a split of "
        f"16 ways sums up over the network twice a layer: TP 8 in PP 2 is {_span(across.values())} as fast.",
        "NVLink and PCIe inside a node; collectives between nodes are priced from data sheets, within a factor of two",
    )  # fmt: skip


def _span(gains: Iterable[float]) -> str:
    found = sorted(gains)
    return f"{times(found[0])} to {times(found[-1])}"


def _fits(found: dict) -> Verdict:
    fast, slow = CARDS
    alone = {
        load: {n: _speed(found["8B", fast, n, load]) / _speed(found["8B", fast, "1 GPU", load]) for n in SPLITS}
        for load in (1, 64)
    }
    per_gpu = {load: max(alone[load]["TP 2"] / 2, alone[load]["TP 4"] / 4) for load in alone}
    pcie = _speed(found["8B", slow, "TP 4", 64]) / _speed(found["8B", slow, "1 GPU", 64])
    return Verdict(
        "if a model fits on one GPU, splitting it only slows it",
        "an overview of serving engines",
        (
            Check("8B, NVLink, one in flight: TP 4 over one GPU", "slower", times(alone[1]["TP 4"]), alone[1]["TP 4"] < 1),
            Check("8B, NVLink, 64 in flight: TP 4 over one GPU", "slower", times(alone[64]["TP 4"]), alone[64]["TP 4"] < 1),
            Check("8B, NVLink: PP 4 over one GPU, one in flight", "no faster", times(alone[1]["PP 4"]), alone[1]["PP 4"] <= 1.01),
            Check("tokens a second and GPU, best of TP 2 and TP 4", "lower", f"{more(per_gpu[1])}, {more(per_gpu[64])}",
                  max(per_gpu.values()) < 1),
        ),
        f"A request gets faster, not slower: TP 4 over NVLink gives {times(alone[1]['TP 4'])} the speed of one GPU "
        f"alone and {times(alone[64]['TP 4'])} with 64 in flight ({times(pcie)} over PCIe), since every GPU reads a "
        f"quarter of the weights. What falls is what a GPU gives: {more(alone[64]['TP 4'] / 4)} at 64. So split for "
        "latency; for throughput run copies.",
    )  # fmt: skip
