"""The names that may stand in a workload file, checked by the floors that own them.

Each kind is a plain dict of built-ins, entry points of installed packages and, where a kind can be plugged in,
`module:Class` paths of your own; errors carry the nearest names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workloads.errors import InputError, unknown_name

AUTO = "auto"

BACKENDS = {
    "sim": "the simulator: virtual time, steps priced by the cost model",
    "torch": "a real model on plain torch operators, on the wall clock",
    "triton": "the same model on our Triton kernels",
    "http": "somebody's server with OpenAI's interface: vLLM, SGLang, TensorRT-LLM, ours, any",
}
"""Ways to run a workload, and what each is."""

REAL = ("torch", "triton")
"""Backends that run a model here, on the wall clock."""

REMOTE = "http"
WALL = (*REAL, REMOTE)
"""Backends on the wall clock: a run is never quite like the one before."""

NEEDS = {
    "sim": "nothing more",
    "torch": "pip install 'twinserve[engine]'; a CPU or a GPU",
    "triton": "pip install 'twinserve[engine]'; a GPU",
    "http": "pip install 'twinserve[http]'; a server",
}


def is_hub_id(name: str) -> bool:
    """Whether a model's name can be one of the Hugging Face hub: `organisation/name`."""
    import re

    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) is not None and not name.endswith(".json")


def check(kind: str, name: str) -> None:
    """Accept a name, or say why not.

    Raises:
        InputError: unknown, with the nearest valid names, or a dotted path that cannot be loaded.
    """
    CHECKS[kind](name)


def _scheduler(name: str) -> Any:
    from sim.schedulers import SCHEDULERS
    from sim.schedulers.base import Scheduler
    from workloads.registry import resolve

    found = resolve("scheduler", name, SCHEDULERS, "twinserve.schedulers")
    if not (isinstance(found, type) and callable(getattr(found, "plan", None))):
        raise InputError(f"{name!r} is not a scheduler", hint="expected a class with a method plan(step)")
    if found.plan is Scheduler.plan:
        raise InputError(f"scheduler {name!r} does not say what to do", hint="write its method plan(step)")
    _takes(f"scheduler {name!r}: plan", found.plan, ("self", "step"))
    _takes(f"scheduler {name!r}", found, ("config",))
    return found


def _allocator(name: str) -> Any:
    from sim.kv import ALLOCATORS
    from workloads.registry import resolve

    found = resolve("allocator", name, ALLOCATORS, "twinserve.allocators")
    if not (isinstance(found, type) and hasattr(found, "admit")):
        raise InputError(f"{name!r} is not a KV allocator", hint="expected a class with the methods of KVAllocator")
    if name not in ALLOCATORS:
        _check_allocator(name, found)
    return found


def _check_allocator(name: str, found: type) -> None:
    """Refuse an allocator of a user's own that lacks a method or wants arguments that nobody gives."""
    import inspect

    from sim.kv.base import KVAllocator, PrivateAllocator

    asked = [n for n, value in vars(KVAllocator).items() if not n.startswith("_") and n != "check" and callable(value)]
    missing = [n for n in asked if getattr(found, n, None) in (None, getattr(KVAllocator, n))]
    if not hasattr(found, "table"):  # it is for real backends, which say so where it lacks
        missing.remove("table")
    if missing:
        raise InputError(
            f"KV allocator {name!r} lacks {', '.join(missing)}",
            hint="write the methods of KVAllocator, or derive from twinserve.PrivateAllocator",
        )
    if getattr(found, "footprint", None) is PrivateAllocator.footprint:
        raise InputError(
            f"KV allocator {name!r} does not say how much memory a sequence takes",
            hint="write its method footprint(tokens)",
        )
    given = ("capacity", "block_size", "prefix_caching", "config")
    wanted = [
        each.name
        for each in inspect.signature(found).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    if strange := [each for each in wanted if each not in given]:
        hint = f"it may take {', '.join(given)}"
        raise InputError(f"KV allocator {name!r} wants {', '.join(strange)}, which nobody gives", hint=hint)


def _takes(what: str, made: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    """Refuse what cannot be called with as many arguments as it will be given.

    Raises:
        InputError: naming what it is called with, and what it takes.
    """
    import inspect

    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):  # a built-in that does not tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        hint = f"it takes {signature}, and is called with ({', '.join(arguments)})"
        raise InputError(f"{what} cannot be called: {error}", hint=hint) from None


def _router(name: str) -> Any:
    from sim.cluster import GROUP, ROUTERS, Router
    from workloads.registry import resolve

    found = resolve("router", name, ROUTERS, GROUP)
    if not (isinstance(found, type) and callable(getattr(found, "route", None))):
        raise InputError(f"{name!r} is not a router", hint="expected a class with a method route(request, loads)")
    if found.route is Router.route:
        raise InputError(f"router {name!r} does not say what to do", hint="write its method route(request, loads)")
    _takes(f"router {name!r}: route", found.route, ("self", "request", "loads"))
    _takes(f"router {name!r}", found, ("replicas", "seed"))
    return found


def _autoscaler(name: str) -> Any:
    from sim.cluster import AUTOSCALERS, SCALERS, Autoscaler
    from workloads.registry import resolve

    found = resolve("autoscaler", name, AUTOSCALERS, SCALERS)
    if not (isinstance(found, type) and callable(getattr(found, "desired", None))):
        raise InputError(f"{name!r} is not an autoscaler", hint="expected a class with a method desired(seen)")
    if found.desired is Autoscaler.desired:
        raise InputError(f"autoscaler {name!r} does not say what to do", hint="write its method desired(seen)")
    _takes(f"autoscaler {name!r}: desired", found.desired, ("self", "seen"))
    _takes(f"autoscaler {name!r}", found, ("least", "most"))
    return found


def _policy(name: str) -> None:
    from sim.schedulers import POLICIES

    _known("policy", name, POLICIES)


def _gate(name: str) -> None:
    from sim.schedulers import GATES

    _known("gate", name, GATES)


def _victim(name: str) -> None:
    from sim.schedulers import VICTIMS

    _known("victim rule", name, VICTIMS)


def _kv_dtype(name: str) -> Any:
    from sim.quantization import load_kv_mode

    return None if name == AUTO else load_kv_mode(name)


def _quantization(name: str) -> Any:
    from sim.quantization import load_weight_mode

    return None if name == AUTO else load_weight_mode(name)


def _gpu(name: str) -> Any:
    from sim.hardware import load_gpu

    return load_gpu(name)


def _trace(name: str) -> Any:
    from workloads.readers import find_reader

    return find_reader(name)


def _preset(name: str) -> Any:
    from sim.presets import find_preset

    return find_preset(name)


def _backend(name: str) -> None:
    _known("backend", name, BACKENDS)


def _known(kind: str, name: str, known: Any) -> None:
    if name not in known:
        raise unknown_name(kind, name, known)


CHECKS: dict[str, Callable[[str], Any]] = {
    "scheduler": _scheduler,
    "allocator": _allocator,
    "router": _router,
    "autoscaler": _autoscaler,
    "policy": _policy,
    "gate": _gate,
    "victim": _victim,
    "kv_dtype": _kv_dtype,
    "quantization": _quantization,
    "gpu": _gpu,
    "trace": _trace,
    "preset": _preset,
    "backend": _backend,
}
