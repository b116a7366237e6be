"""From `cluster.prefill` and `cluster.decode` to two kinds of engine and what joins them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.conflicts import DEFAULT, DERIVED, USER
from experiments.schema import Workload
from experiments.schema.base import Section
from experiments.schema.cluster import ClusterSection, PoolSection
from experiments.workload_file import Source
from reports.fingerprint import leaves
from sim.cluster.transfer import Path
from sim.hardware.links import NETWORKS, from_node_to_node, load_link
from sim.state_memory import state_bytes
from workloads.errors import InputError, Place

if TYPE_CHECKING:
    from experiments.resolve import Resolved

POOLS = ("prefill", "decode")
_DEFAULT_NETWORK = "infiniband-ndr"


@dataclass(frozen=True, slots=True)
class Pools:
    """Both kinds of engine.

    Attributes:
        prefill, decode: an engine of each kind, with the workload as if there were no other.
        path: between two of them.
        push: whether memory for an answer is set aside before its prompt is computed.
        with_token: whether the first token comes with the KV.
    """

    prefill: Resolved
    decode: Resolved
    path: Path
    push: bool
    with_token: bool


class PoolSource(NamedTuple):
    """A workload file in which what is said of a pool's engine stands under `engine`."""

    source: Source
    pool: str

    @property
    def folder(self) -> Any:
        """As of the file."""
        return self.source.folder

    def place(self, key: str) -> Place:
        """Where a key was written: in the pool, or where all engines have it."""
        if key.split(".")[0] == "engine":
            own = f"cluster.{self.pool}.{key}"
            node: Any = self.source.tree().data
            for part in own.split("."):
                node = node.get(part) if isinstance(node, dict) else None
            if node is not None:
                return self.source.place(own)
        return self.source.place(key)


def resolve_pools(workload: Workload) -> Resolved:
    """As `experiments.resolve.resolve`, of prefill and decode engines.

    Raises:
        InputError: one of them cannot be, or they cannot work together.
    """
    from experiments import resolve as whole

    _check(workload)
    prefill, decode = (_one(workload, name) for name in POOLS)
    _check_pair(workload, prefill, decode)
    family = decode.engine.preset.partition("@")[0]
    said = workload.cluster.transfer
    push = said.protocol == "push" if said.protocol else family.startswith("sglang")
    with_token = said.first_token == "prefill" if said.first_token else not family.startswith("vllm")
    if said.overlap and not push:
        message = (
            "nothing is sent before a prompt is computed whole: a decode engine is asked for memory after that (pull)"
        )
        raise workload.error("cluster.transfer.overlap", message, "write protocol: push, or remove it")
    overlap = said.overlap or ("chunks" if push else "none")
    pools = Pools(prefill, decode, _path(workload, prefill, decode, overlap), push, with_token)
    longest = min(prefill.budget.max_model_len, decode.budget.max_model_len)
    resolved = whole.Resolved(
        workload, decode.engine, decode.model, decode.gpu, replace(decode.budget, max_model_len=longest), decode.cost,
        _config(workload, pools), _info(workload, pools), _warnings(pools), pools=pools,
    )  # fmt: skip
    return resolved


def _check(workload: Workload) -> None:
    if workload.backend.name != "sim":
        message = f"prefill apart from decode is simulated only, not on backend {workload.backend.name}"
        raise workload.error(
            "cluster.prefill", message, "--backend sim --gpu NAME, or remove cluster.prefill and decode"
        )


def _one(workload: Workload, name: str) -> Resolved:
    """An engine of a pool, resolved as if it were alone."""
    from experiments.resolve import resolve

    pool: PoolSection = getattr(workload.cluster, name)
    engine = merged(workload.engine, pool.engine)
    family = (engine.preset or "vllm").partition("@")[0]
    if name == "decode" and family.startswith("sglang") and engine.kv.prefix_caching is None:
        # disable_radix_cache on a decode server, unless disaggregation_decode_enable_radix_cache (server_args.py)
        engine = engine.model_copy(update={"kv": engine.kv.model_copy(update={"prefix_caching": False})})
    alone = workload.model_copy(update={"engine": engine, "cluster": ClusterSection()})
    if workload._source is not None:
        alone._source = PoolSource(workload.source, name)
    try:
        found = resolve(alone)
    except InputError as error:
        key = error.place.key or ""
        if (key == "engine" and pool.engine.written()) or key.removeprefix("engine.") in pool.engine.written():
            error = InputError(error.message, place=replace(error.place, key=f"cluster.{name}.{key}"), hint=error.hint)
        raise error from None
    _check_engine(alone, found)
    if name == "prefill" and "stops_ahead" in pool.engine.written():
        message = "has no effect: one token is all that is asked of a prefill engine, so it knows when to stop"
        raise workload.error("cluster.prefill.engine.stops_ahead", message, "remove it")
    if name == "prefill" and found.engine.depth > 1:
        found.engine = replace(found.engine, stops_ahead=True)
    return found


def _check_engine(alone: Workload, found: Resolved) -> None:
    """Whether what an engine does can be cut between prompt and answer."""
    if found.engine.scheduler.name == "static":
        message = "a static batch computes prompts and answers in one, so they cannot be apart"
        raise alone.error("engine.scheduler.name", message, "use chunked-prefill or continuous")
    if found.engine.speculation.active:
        message = "speculative decoding with prefill apart from decode is not simulated"
        raise alone.error("engine.speculation.method", message, "write method: none, or no cluster.prefill and decode")
    if found.engine.kv.allocator == "contiguous":
        message = "slabs are set aside for prompt and answer in one, so KV of prompts cannot be handed over"
        raise alone.error("engine.kv.allocator", message, "use paged or radix")


def merged(base: Section, changes: Section) -> Any:
    """A section with what another of its kind has set on top."""
    values = {}
    for key in changes.model_fields_set:
        value, before = getattr(changes, key), getattr(base, key)
        if value is None:
            continue
        values[key] = merged(before, value) if isinstance(value, Section) and isinstance(before, Section) else value
    return base.model_copy(update=values)


def _check_pair(workload: Workload, prefill: Resolved, decode: Resolved) -> None:
    kinds = [each.budget.kv_dtype for each in (prefill, decode)]
    if kinds[0] != kinds[1]:
        message = f"KV is sent as it is, and would be {kinds[0]} in prefill and {kinds[1]} in decode"
        raise workload.error("cluster", message, "set engine.kv.dtype, for both")


def _path(workload: Workload, prefill: Resolved, decode: Resolved, overlap: str) -> Path:
    said = workload.cluster.transfer
    name = said.link or workload.backend.network or _DEFAULT_NETWORK
    link = load_link(name)
    reached = from_node_to_node(link)
    latency = reached.latency if link.name in NETWORKS else link.latency
    if said.latency is not None:
        latency = said.latency
    bandwidth = said.bandwidth or reached.bandwidth
    ranks = [each.engine.parallel.tensor * each.engine.parallel.pipeline for each in (prefill, decode)]
    size = decode.budget.bytes_per_token * ranks[1]
    states = state_bytes(decode.model, decode.engine) * ranks[1]
    return Path(bandwidth, latency, ranks[0], ranks[1], size, decode.model.layers, overlap, states)


def _config(workload: Workload, pools: Pools) -> dict[str, Any]:
    """Settings of both kinds of engine under `engine`; those in which they differ in their pools."""
    parts = {name: getattr(pools, name).config for name in POOLS}
    flat = {name: {key: leaf for key, *leaf in leaves(part["engine"])} for name, part in parts.items()}
    config = {key: value for key, value in parts["decode"].items() if key != "engine"}
    config["engine"] = {}
    said = workload.cluster
    cluster: dict[str, Any] = {name: {"replicas": _leaf(getattr(said, name), "replicas", 1)} for name in POOLS}
    for name in POOLS:
        pool = getattr(said, name)
        cluster[name]["router"] = _leaf(pool, "router", pool.router_name)
        if pool.options:
            cluster[name]["options"] = {key: {"value": v, "source": USER} for key, v in pool.router_options.items()}
    for key in [*flat["prefill"], *(key for key in flat["decode"] if key not in flat["prefill"])]:
        found = [flat[name].get(key) for name in POOLS]
        if found[0] is not None and found[1] is not None and found[0][0] == found[1][0]:
            _put(config["engine"], key, found[1])
            continue
        for name, leaf in zip(POOLS, found, strict=True):
            if leaf is not None:
                _put(cluster[name].setdefault("engine", {}), key, leaf)
    transfer = said.transfer
    path = pools.path
    name = transfer.link or workload.backend.network or _DEFAULT_NETWORK
    link = {} if transfer.bandwidth else {"link": _leaf(transfer, "link", load_link(name).name)}
    cluster["transfer"] = {
        **link, "bandwidth": _leaf(transfer, "bandwidth", path.bandwidth, DERIVED),
        "latency": _leaf(transfer, "latency", path.latency, DERIVED),
        "protocol": _leaf(transfer, "protocol", "push" if pools.push else "pull", DERIVED),
        "first_token": _leaf(transfer, "first_token", "prefill" if pools.with_token else "decode", DERIVED),
    }  # fmt: skip
    if pools.push:
        cluster["transfer"]["overlap"] = _leaf(transfer, "overlap", path.overlap, DERIVED)
    config["cluster"] = cluster
    return config


def _leaf(section: Section, key: str, value: Any, otherwise: str = DEFAULT) -> dict[str, Any]:
    said = getattr(section, key)
    return {"value": value, "source": otherwise} if said is None else {"value": said, "source": USER}


def _put(config: dict[str, Any], key: str, leaf: Any) -> None:
    *sections, last = key.split(".")
    for part in sections:
        config = config.setdefault(part, {})
    config[last] = {"value": leaf[0], "source": leaf[1]}


def _info(workload: Workload, pools: Pools) -> dict[str, Any]:
    info = dict(pools.decode.info)
    found = {}
    for name in POOLS:
        each, count = getattr(pools, name), getattr(workload.cluster, name).replicas
        own = {key: each.info[key] * count for key in ("gpus", "kv_pool_tokens", "max_num_seqs")}
        found[name] = {"replicas": count, **own}
    for key in ("gpus", "kv_pool_tokens", "max_num_seqs"):
        info[key] = sum(found[name][key] for name in POOLS)
    return {**info, "pools": found}


def _warnings(pools: Pools) -> list[str]:
    """Of both, each once; of one alone with its name."""
    told = {name: getattr(pools, name).warnings for name in POOLS}
    both = [text for text in told["prefill"] if text in told["decode"]]
    own = [f"{name} pool: {text}" for name in POOLS for text in told[name] if text not in both]
    return [text for text in (*both, *own) if "backend.network has no effect" not in text]
