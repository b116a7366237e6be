"""The `cluster:` section: several replicas of the engine behind a router, or a pool for prompts and one for answers."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

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
                _check_option(key, value, known, f"router {self.router_name}")
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


def _number(value: Any) -> Any:
    """Whole numbers are numbers too."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


_HPA = ("signal", "target", "tolerance", "up_window", "down_window")


class AutoscaleSection(Section):
    """`cluster.autoscale`: replicas come and go with the load.

    Attributes:
        min, max: replicas at least and at most; those that serve what they have before they go are not counted.
        policy: `hpa`, after Kubernetes' horizontal pod autoscaler, or `module:Class` of your own.
        signal: of `hpa`: what is held at its target, for each replica: `requests` in flight, those that wait (`queue`), the share
            of the KV pool in use (`kv`), or requests a second (`rate`).
        target: of `hpa`: of the signal.
        tolerance: of `hpa`: how far off the target nothing is done; 0.1 if nothing is said, a tenth of it.
        up_window, down_window: of `hpa`: for how long more, or fewer, must have been asked for; 0 s and 5 min if nothing is said.
        interval: between two looks; 15 s if nothing is said.
        start_up: from when a replica is asked for until it takes requests; 2 min if nothing is said.
        options: of a policy of your own: keyword-only arguments of its constructor.
    """

    min: Replicas = 1
    max: Replicas
    policy: Annotated[str, registered("autoscaler")] = "hpa"
    signal: Literal["requests", "queue", "kv", "rate"] | None = None
    target: Annotated[float, BeforeValidator(_number), Field(gt=0)] | None = None
    tolerance: Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)] | None = None
    up_window: Seconds | None = None
    down_window: Seconds | None = None
    interval: Annotated[Seconds, Field(gt=0)] = 15.0
    start_up: Seconds = 120.0
    options: dict[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What the policy is told."""
        own = {key: getattr(self, key) for key in _HPA}
        return {key: value for key, value in {**own, **(self.options or {})}.items() if value is not None}

    @model_validator(mode="after")
    def _fits_together(self) -> AutoscaleSection:
        if self.max <= self.min:
            raise Wrong(f"nothing to scale from {self.min} to {self.max} replicas", f"at least {self.min + 1}", "max")
        if self.policy == "hpa":
            for key in ("signal", "target"):
                if getattr(self, key) is None:
                    raise Wrong(
                        f"hpa needs a {key}", "such as {signal: requests, target: 32}: in flight at a replica", key
                    )
            if self.options:
                raise Wrong("hpa has no options beside its keys", "remove it", "options")
            if self.signal == "kv" and self.target >= 1:
                raise Wrong(f"{self.target:g} of the KV pool is never in use", "a share, such as 0.7", "target")
            return self
        from sim.cluster import options_of

        for key in _HPA:
            if getattr(self, key) is not None:
                raise Wrong(f"a setting of hpa, and the policy is {self.policy}", "write it under options", key)
        known = options_of(registries.CHECKS["autoscaler"](self.policy))
        for key, value in (self.options or {}).items():
            _check_option(key, value, known, f"autoscaler {self.policy}")
        return self


class ClusterSection(_Routed):
    """`cluster`: several replicas of the engine behind a router; simulation only.

    Attributes:
        replicas: how many engines there are, each on GPUs of its own, as many as `engine.parallel` says; with `autoscale` how
            many at the start.
        router: who gets which request (`bench list routers`), or `module:Class` of your own; `round-robin` if nothing is said.
        options: settings of the router, such as `{cache_threshold: 0.5}` of `prefix`.
        autoscale: let replicas come and go with the load.
        prefill, decode: instead: engines for prompts and engines for answers (disaggregated serving).
        transfer: with these: how KV goes from the first to the second.
    """

    prefill: PoolSection | None = None
    decode: PoolSection | None = None
    transfer: TransferSection = TransferSection()
    autoscale: AutoscaleSection | None = None

    @property
    def started(self) -> int:
        """Replicas at the start."""
        least = self.autoscale.min if self.autoscale else 1
        return self.replicas if "replicas" in self.model_fields_set else least

    @property
    def most(self) -> int:
        """Replicas that there may be at once."""
        return self.autoscale.max if self.autoscale else self.replicas

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
            if self.autoscale is not None:
                raise Wrong(
                    "prefill and decode engines are not scaled here: their replicas are fixed", "remove it", "autoscale"
                )
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
        scale = self.autoscale
        if scale is not None and not scale.min <= self.started <= scale.max:
            message = f"{self.started} replicas at the start, and from {scale.min} to {scale.max} are allowed"
            raise Wrong(message, "put it between cluster.autoscale.min and max", "replicas")
        return self


def _check_option(key: str, value: Any, known: dict[str, Any], whose: str) -> None:
    """An option must be one of the router's or autoscaler's, and of its default's type.

    Raises:
        Wrong: at the option, with the nearest name.
    """
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        expected = f"expected one of {', '.join(known)}" if known else "remove it"
        hint = f"did you mean {close[0]}?" if close else expected
        what = "has no such option" if known else "has no options"
        raise Wrong(f"unknown key {key!r} in cluster.options: {whose} {what}", hint, f"options.{key}")
    expected = type(known[key])
    if expected in _KINDS and value is not None:
        kind, words = _KINDS[expected]
        number = not isinstance(value, bool) and isinstance(value, int | float)
        if not isinstance(value, kind) or (isinstance(value, bool) and expected is not bool):
            raise Wrong(f"expected {words}, got {value!r}", key=f"options.{key}")
        if number and not value >= 0:
            raise Wrong(f"expected {words} of at least 0, got {value!r}", key=f"options.{key}")
