"""From a workload file to an engine that a server can put requests to: what `bench serve` runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.registries import REAL
from experiments.schema import Workload
from experiments.workload_file import Override, build_workload
from workloads.errors import InputError, Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.server.desk import Served
    from backends.server.words import Words
    from experiments.resolve import Resolved

ANSWER = 128
"""Tokens of a simulated answer where neither the client nor the file says."""

_PLACEHOLDER = {
    "requests": 1,
    "arrivals": {"process": "constant", "rate": 1},
    "input_tokens": 1,
    "output_tokens": ANSWER,
}


@dataclass(slots=True)
class Plan:
    """A workload as far as a server needs it.

    Attributes:
        workload: with traffic of one request that nobody sends, and without load and sweep.
        lengths: the file's `traffic.synthetic.output_tokens`, if it has one.
        notices: what of the file has no effect.
    """

    workload: Workload
    lengths: Any = None
    notices: list[str] = field(default_factory=list)


def plan_of(file: Path, overrides: list[Override]) -> Plan:
    """Read a workload file whose traffic and load do not matter and may be missing.

    Raises:
        InputError: (or `WorkloadErrors`) everything that is wrong with the rest of it.
    """
    from experiments.workload_file import Source
    from experiments.yaml_tree import read_text

    source = Source(read_text(file), str(file), tuple(overrides))
    data = source.tree().data
    lengths = _lengths(data)
    ignored = [key for key in ("traffic", "load", "slo", "sweep") if data.get(key) is not None]
    place = Place(file="bench serve")
    synthetic = {**_PLACEHOLDER, **({"output_tokens": lengths} if lengths is not None else {})}
    own = [
        Override(("traffic",), {"max_tokens": "exact", "synthetic": synthetic}, source.place("traffic")),
        *(Override((key,), None, place) for key in ("load", "slo", "sweep") if key in data),
    ]
    if isinstance(data.get("backend"), dict) and data["backend"].get("name") in REAL:
        own.append(Override(("sampling", "ignore_eos"), False, place))  # a client says so for each request
    workload = build_workload(replace(source, overrides=(*source.overrides, *own)))
    notices = []
    if ignored:
        verb = "has" if len(ignored) == 1 else "have"
        besides = " (but for the lengths of answers)" if lengths is not None else ""
        notices.append(f"{' and '.join(ignored)} {verb} no effect{besides}: clients bring the load")
    return Plan(workload, lengths, notices)


def _lengths(data: dict[str, Any]) -> Any:
    """The law of answer lengths, where the file has synthetic traffic."""
    traffic = data.get("traffic")
    synthetic = traffic.get("synthetic") if isinstance(traffic, dict) else None
    return synthetic.get("output_tokens") if isinstance(synthetic, dict) else None


def make_served(plan: Plan, resolved: Resolved, *, speed: float = 1.0, name: str | None = None, max_waiting: int = 0
                ) -> Served:  # fmt: skip
    """An engine, ready to serve.

    Args:
        speed: seconds of a simulated engine a second of the wall.
        name: of the model, for clients; None: as the file has it.
        max_waiting: most requests that may wait; 0: any number.

    Raises:
        InputError: the tokenizer cannot be read, or parts cannot work together.
    """
    from backends.server.clock import ServerClock
    from backends.server.desk import Served
    from backends.server.meter import Meter
    from experiments.runner import Looks
    from workloads.registry import plugins_from

    workload = plan.workload
    clock = ServerClock(speed)
    with plugins_from(workload.folder):
        engine, side, words = _real(resolved, clock) if resolved.real is not None else _simulated(resolved)
    allocator = engine.state.allocator
    meter = Meter(engine.max_len, allocator.capacity, allocator.shares)
    engine.recorder = meter.tally
    simulated = resolved.real is None
    return Served(
        model=name or workload.model, engine=engine, side=side, looks=Looks(engine), clock=clock,
        front=resolved.cost.front_end if simulated else None, meter=meter, words=words, max_len=engine.max_len,
        simulated=simulated, answer_length=_drawer(plan) if simulated else None, max_waiting=max_waiting,
        version=version("twinserve"),
    )  # fmt: skip


def _drawer(plan: Plan) -> Callable[[], int]:
    """Draws the length of an answer whose client set no limit."""
    if plan.lengths is None:
        return lambda: ANSWER
    import numpy as np

    from workloads.synthetic.lengths import Reading, parse_law

    law = parse_law(plan.lengths, "output_tokens", Reading(plan.workload.folder, "output"))
    random = np.random.default_rng(plan.workload.seed)
    return lambda: int(law.sample(random, 1)[0])


def _simulated(resolved: Resolved) -> tuple[Any, Any, Words]:
    from backends.server.simulated import make_simulated

    if resolved.engine.speculation.active:
        raise resolved.workload.error(
            "engine.speculation", "the stand-in server hands out one token of each sequence a step", "remove it"
        )
    words = _words(resolved)
    budget = resolved.budget
    host_tokens = int(resolved.engine.kv.swap_gib * (1 << 30) // max(budget.bytes_per_token, 1))
    engine, side = make_simulated(
        resolved.engine, resolved.cost, words, capacity=budget.kv_tokens, max_len=budget.max_model_len,
        host_tokens=host_tokens, state_tokens=budget.state_tokens, kept_states=budget.kept_states,
    )  # fmt: skip
    return engine, side, words


def _words(resolved: Resolved) -> Words:
    """The tokenizer of the model's folder, where there is one and it can be read; else the rule of bytes."""
    from backends.server.words import CountedWords, ModelWords

    folder = Path(resolved.workload.model_source).expanduser()
    if not folder.is_dir():
        return CountedWords()
    from importlib.util import find_spec

    from backends.weights.tokenizer import Tokenizer, has_tokenizer

    if not has_tokenizer(folder) or find_spec("transformers") is None:
        return CountedWords()
    return ModelWords(Tokenizer(folder), resolved.model.vocab)


def _real(resolved: Resolved, clock: Any) -> tuple[Any, Any, Words]:
    from backends.server.real import RealSide
    from backends.server.words import ModelWords, NoWords
    from backends.torch.build import make_torch_engine
    from backends.torch.executor import TorchExecutor
    from backends.weights.tokenizer import Tokenizer, has_tokenizer

    real, workload = resolved.real, resolved.workload
    folder = Path(workload.model_source).expanduser()
    vocab = resolved.model.vocab
    words: Words = ModelWords(Tokenizer(folder), vocab) if folder.is_dir() and has_tokenizer(folder) else NoWords(vocab)
    executor = TorchExecutor(
        real.model, seed=workload.seed % (1 << 63), decode=words.decode if isinstance(words, ModelWords) else None
    )
    engine = make_torch_engine(
        resolved.engine, executor, capacity=real.room.tokens, max_len=resolved.budget.max_model_len,
        host_tokens=int(resolved.engine.kv.swap_gib * (1 << 30) // real.room.per_token),
    )  # fmt: skip
    executor.begin(clock.zero)
    written = {key: value for key, value in workload.sampling.plain().items() if key != "ignore_eos"}
    return engine, RealSide(executor, {"temperature": 1.0, **written}), words


def check_backend(workload: Workload, speed: float) -> None:
    """What cannot be served, or not at that speed.

    Raises:
        InputError: it was asked for.
    """
    name = workload.backend.name
    if name != "sim" and name not in REAL:
        raise workload.error(
            "backend.name", f"backend {name} has no engine of ours to serve", "use sim, torch or triton"
        )
    if workload.cluster.apart:
        message = "one engine is served here, and cluster.prefill and cluster.decode are several"
        raise workload.error("cluster.prefill", message, "remove cluster, or add --set cluster=null")
    if speed != 1.0 and name in REAL:
        hint = "leave --speed out"
        raise InputError(f"backend {name} runs at its own speed", place=Place(file="--speed"), hint=hint)
