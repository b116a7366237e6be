"""The `cluster:` section: several replicas of the engine behind a router, or a pool for prompts and one for answers."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from experiments import registries
from experiments.schema.base import Bandwidth, Seconds, Section, Wrong, registered, wrong_from
from experiments.schema.engine import EngineSection
from workloads.errors import InputError

_KINDS = {bool: (bool, "true or false"), int: (int, "a whole number"), float: (int | float, "a number")}
DEFAULT_ROUTER = "round-robin"
Replicas = Annotated[int, Field(ge=1, le=1024)]


class _Routed(Section):
    """What has replicas and a router."""

    replicas: Replicas = 1
    router: Annotated[str, registered("router")] | None = None
    options: dict[str, Any] | None = None

    @property
    def router_name(self) -> str:
        """The router, also where none is written."""
        return self.router or DEFAULT_ROUTER

    @property
    def router_options(self) -> dict[str, Any]:
        """What the router is told; an option with nothing after it is unset."""
        return {key: value for key, value in (self.options or {}).items() if value is not None}

    @model_validator(mode="after")
    def _options_of_router(self) -> _Routed:
        if self.options:
            from sim.cluster import options_of

            known = options_of(registries.CHECKS["router"](self.router_name))
            for key, value in self.options.items():
                _check_option(key, value, known, self.router_name)
        return self


class PoolSection(_Routed):
    """`cluster.prefill`, `cluster.decode`: the engines that compute prompts, and those that compute answers.

    Attributes:
        replicas: how many engines there are (workers, instances), each on GPUs of its own.
        router: who of them gets which request (`bench list routers`); `round-robin` if nothing is said.
        options: settings of that router.
        engine: what is different from `engine`, key by key.
    """

    engine: EngineSection = EngineSection()


def _link(name: str) -> str:
    from sim.hardware.links import load_link

    try:
        load_link(name)
    except InputError as error:
        raise wrong_from(error, "") from None
    return name


class TransferSection(Section):
    """`cluster.transfer`: how KV goes from the engine that computed a prompt to the one that continues it.

    Attributes:
        link: between two GPUs of the pools (`bench list links`), of which 70 % is reached; `backend.network` if nothing is said,
            and InfiniBand NDR if that is not either.
        bandwidth: instead: what is reached from GPU to GPU, such as `40GB/s`.
        latency: of one transfer, beside its bytes; that of the link if nothing is said.
        protocol: `pull`: a decode engine is asked when the prompt is computed, and fetches the KV once it has memory for it
            (vLLM, TensorRT-LLM). `push`: it is asked at the start; the prompt is computed once it has set memory aside, and
            KV is sent as it is made (SGLang). As the preset does, if nothing is said.
        overlap: `push` only: what is sent while the rest is being computed: `chunks` of the prompt (if nothing is said),
            `layers`, or `none`.
        first_token: `prefill`: the first token comes with the KV (SGLang, TensorRT-LLM); `decode`: the decode engine computes the
            last token of the prompt again, and samples (vLLM). As the preset does, if nothing is said.
    """

    link: Annotated[str, AfterValidator(_link)] | None = None
    bandwidth: Annotated[Bandwidth, Field(gt=0)] | None = None
    latency: Seconds | None = None
    protocol: Literal["pull", "push"] | None = None
    overlap: Literal["none", "chunks", "layers"] | None = None
    first_token: Literal["prefill", "decode"] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> TransferSection:
        if self.link is not None and self.bandwidth is not None:
            raise Wrong("the link has a bandwidth of its own", "remove one of link and bandwidth", "bandwidth")
        return self


class ClusterSection(_Routed):
    """`cluster`: several replicas of the engine behind a router; simulation only.

    Attributes:
        replicas: how many engines there are, each on GPUs of its own, as many as `engine.parallel` says.
        router: who gets which request (`bench list routers`), or `module:Class` of your own; `round-robin` if nothing is said.
        options: settings of the router, such as `{cache_threshold: 0.5}` of `prefix`.
        prefill, decode: instead: engines for prompts and engines for answers (disaggregated serving).
        transfer: with these: how KV goes from the first to the second.
    """

    prefill: PoolSection | None = None
    decode: PoolSection | None = None
    transfer: TransferSection = TransferSection()

    @property
    def apart(self) -> bool:
        """Whether prompts and answers are computed by different engines."""
        return self.prefill is not None

    @model_validator(mode="after")
    def _pools(self) -> ClusterSection:
        there = {name for name in ("prefill", "decode") if getattr(self, name) is not None}
        if len(there) == 1:
            (one,) = there
            other = "decode" if one == "prefill" else "prefill"
            raise Wrong(f"engines for {one} alone serve nobody", f"write {other}: {{replicas: 1}} beside it", one)
        if there:
            for key in sorted(self.model_fields_set & {"replicas", "router", "options"}):
                if getattr(self, key) is not None:
                    raise Wrong(
                        f"with prefill and decode apart, each has {key} of its own",
                        f"write it as cluster.prefill.{key} or cluster.decode.{key}", key,
                    )  # fmt: skip
        elif self.transfer.written():
            raise Wrong(
                "nothing is transferred: cluster.prefill and cluster.decode are not set", "remove it", "transfer"
            )
        return self


def _check_option(key: str, value: Any, known: dict[str, Any], router: str) -> None:
    """An option must be one of the router's, and of its default's type.

    Raises:
        Wrong: at the option, with the nearest name.
    """
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        expected = f"expected one of {', '.join(known)}" if known else "remove it"
        hint = f"did you mean {close[0]}?" if close else expected
        what = "has no such option" if known else "has no options"
        raise Wrong(f"unknown key {key!r} in cluster.options: router {router} {what}", hint, f"options.{key}")
    expected = type(known[key])
    if expected in _KINDS and value is not None:
        kind, words = _KINDS[expected]
        number = not isinstance(value, bool) and isinstance(value, int | float)
        if not isinstance(value, kind) or (isinstance(value, bool) and expected is not bool):
            raise Wrong(f"expected {words}, got {value!r}", key=f"options.{key}")
        if number and not value >= 0:
            raise Wrong(f"expected {words} of at least 0, got {value!r}", key=f"options.{key}")
