"""Workloads on a real model here: what the file asks for, and the engine that does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from backends.extra import need_torch
from experiments.conflicts import Draft
from experiments.schema import Workload
from experiments.schema.workload import HTTP_KEYS
from experiments.traffic import make_traffic
from reports.run_data import FINISHED, Requests
from sim.config import EngineConfig
from sim.memory import MemoryBudget, context_limit
from workloads.errors import InputError
from workloads.traffic import Request, Traffic

if TYPE_CHECKING:
    from backends.model.architecture import Architecture
    from backends.model.model import Model
    from backends.torch.executor import TorchExecutor
    from backends.torch.memory import Device, Room
    from backends.torch.sampling import SamplingParams
    from backends.weights.tokenizer import Tokenizer
    from sim.engine.engine import Engine

Progress = Callable[[float, float, str], None]
_SHOWN = 3  # answers that a run keeps for people
_SHOWN_CHARACTERS = 400


@dataclass(slots=True)
class RealBackend:
    """A model that is ready to serve.

    Attributes:
        model, room: what runs, and its memory.
        sampling: of all requests. forced: whether answers have the lengths of the traffic, whatever is generated.
        tokenizer: None where nothing has words.
    """

    model: Model
    room: Room
    sampling: SamplingParams
    forced: bool
    tokenizer: Tokenizer | None
    _executor: TorchExecutor | None = None
    _traffic: Traffic | None = None

    def own(self, traffic: Traffic) -> Traffic:
        """A copy that a run may write into. Where answers end by themselves, what clients declared is all that limits them."""
        outputs = traffic.output_tokens if self.forced else traffic.max_tokens
        return replace(traffic, input_tokens=traffic.input_tokens.copy(), output_tokens=outputs.copy())

    def start(self, resolved: Any, traffic: Traffic) -> tuple[Engine, Callable[[Request], Request] | None]:
        """An engine with an executor of its own, and what makes prompts of words, if there are any."""
        from backends.torch.build import make_torch_engine
        from backends.torch.executor import TorchExecutor
        from backends.torch.prompts import PromptWriter

        decode = self.tokenizer.decode if self.tokenizer is not None else None
        self._traffic = traffic
        self._executor = executor = TorchExecutor(
            self.model, seed=resolved.workload.seed % (1 << 63), forced_lengths=self.forced, sampling=self.sampling,
            decode=decode,
        )  # fmt: skip
        host_tokens = int(resolved.engine.kv.swap_gib * (1 << 30) // self.room.per_token)
        engine = make_torch_engine(
            resolved.engine, executor, capacity=self.room.tokens, max_len=resolved.budget.max_model_len,
            host_tokens=host_tokens,
        )  # fmt: skip
        if self.tokenizer is None or not traffic.texts:
            return engine, None
        return engine, PromptWriter(traffic, self.tokenizer, executor)

    def told(self, requests: Requests) -> dict[str, Any]:
        """What a run should say of its machine, and a few answers where they are words."""
        import torch

        from backends.weights.device import device_name

        device = self.model.device
        told = {"device": device_name(device), "torch": torch.__version__, "model_dtype": str(self.model.dtype)[6:]}
        if device.type == "cpu":
            told["threads"] = torch.get_num_threads()
        if self.tokenizer is not None and self._traffic is not None and self._traffic.texts:
            done = requests.request[requests.status == FINISHED].tolist()
            told["answers"] = [self._answer(row) for row in done[:_SHOWN]]
        return told

    def _answer(self, row: int) -> dict[str, str]:
        words = self._traffic.texts[row]
        asked = words if isinstance(words, str) else words[-1]["content"] if words else ""
        said = self.tokenizer.decode(self._executor.book.answer(row) or [])
        return {"prompt": asked[:_SHOWN_CHARACTERS], "answer": said[:_SHOWN_CHARACTERS]}


@dataclass(slots=True)
class Prepared:
    """What is known before weights are read: enough to see that the rest can be."""

    source: Any
    architecture: Architecture
    device: Any
    described: Device
    sampling: SamplingParams
    forced: bool
    notices: list[str]
    load: str = "auto"


def prepare(workload: Workload) -> Prepared:
    """Find the model, the device and the operators of a workload.

    Raises:
        InputError: one of them is not here.
    """
    need_torch(f"backend {workload.backend.name}", workload.place("backend.name"))
    from backends.torch.memory import describe
    from backends.torch.operators import check_operators
    from backends.weights.device import pick_device
    from backends.weights.source import find_source, source_architecture

    backend = workload.backend
    try:
        device = pick_device(backend.device or "auto")
        check_operators(backend.name, device)
        source = find_source(workload.model_source, backend.load or "auto")
        architecture = source_architecture(source)
        sampling, forced = _sampling(workload)
    except InputError as error:
        raise _placed(workload, error) from None
    notices = [
        f"{key} has no effect on backend {backend.name}, which runs on this machine"
        for key, written in (
            ("backend.gpu", backend.gpu is not None), ("cost", bool(workload.cost.written())),
            *((f"backend.{key}", getattr(backend, key) is not None) for key in HTTP_KEYS),
        )
        if written
    ]  # fmt: skip
    load = backend.load or "auto"
    return Prepared(source, architecture, device, describe(device), sampling, forced, notices, load)


def load(workload: Workload, prepared: Prepared, engine: EngineConfig, traffic: Traffic, progress: Progress | None = None
         ) -> RealBackend:  # fmt: skip
    """Read the weights and size the KV pool.

    Args:
        progress: called with (GiB read, GiB in all, a few words).

    Raises:
        InputError: a file that cannot be used, or too little memory.
    """
    from backends.torch.memory import check_room, measure_room
    from backends.torch.operators import make_operators
    from backends.weights.device import GIB
    from backends.weights.load import DTYPES, check_weights, load_model, packed_mode, weight_bytes

    backend = workload.backend
    tokenizer = _tokenizer(workload, prepared, traffic)
    tell = None
    if progress is not None:

        def tell(done: int, total: int) -> None:
            progress(done / GIB, total / GIB, f"{total / GIB:.1f} GiB of weights")

    spec = prepared.architecture.spec
    try:
        dtype = DTYPES[spec.dtype if backend.dtype in (None, "auto") else backend.dtype]
        mode = packed_mode(prepared.architecture, engine.quantization, prepared.load)
        check_weights(prepared.architecture, dtype, prepared.device, mode)
        check_room(spec, dtype, prepared.device, engine, weight_bytes(prepared.architecture, dtype, mode))
        model = load_model(
            prepared.source, device=prepared.device, dtype=backend.dtype or "auto", load=backend.load or "auto",
            seed=workload.seed % (1 << 63), operators=make_operators(backend.name, prepared.device), progress=tell,
            quantization=engine.quantization,
        )  # fmt: skip
        room = measure_room(model, engine)
    except InputError as error:
        raise _placed(workload, error) from None
    return RealBackend(model, room, prepared.sampling, prepared.forced, tokenizer)


def real_traffic(workload: Workload, prepared: Prepared, engine: EngineConfig) -> Traffic:
    """The requests, with what clients declared.

    Raises:
        InputError: they cannot be read or made.
    """
    traffic = make_traffic(workload, context_limit(prepared.architecture.spec, engine))
    traffic.validate()
    return traffic


def check_engine(draft: Draft, prepared: Prepared) -> None:
    """Settings that a real engine cannot have here.

    Raises:
        InputError: the user asks for one of them.
    """
    from backends.torch.pool import stored_dtype
    from backends.weights.load import DTYPES, packed_mode

    spec = prepared.architecture.spec
    try:
        packed_mode(prepared.architecture, draft["quantization"], prepared.load)
    except InputError as error:
        draft.refuse("quantization", error.message, error.hint)
    try:
        stored_dtype(draft["kv.dtype"], DTYPES[spec.dtype])
    except InputError as error:
        draft.refuse("kv.dtype", error.message, error.hint)
    for key in ("parallel.tensor", "parallel.pipeline", "parallel.expert", "parallel.data"):
        if draft[key] > 1:
            draft.refuse(key, "a real model runs on one device here", "write 1, or use backend sim")
    if draft["speculation.method"] != "none":
        draft.refuse("speculation.method", "the real engine decodes one token a step", "write none, or use backend sim")
    if draft.user("host"):
        draft.notices.append("engine.host has no effect on a real engine: its host takes the time that it takes")
    draft.idle["host"] = "a real engine's host takes the time that it takes"
    if draft.user("cuda_graphs"):
        draft.notices.append("engine.cuda_graphs has no effect on a real engine: it captures what its backend can")
    draft.idle["cuda_graphs"] = draft.idle["cuda_graph_padding"] = "a real engine captures what its backend can"
    oracle = draft["kv.slab"] == "exact" and draft["kv.allocator"] == "contiguous"
    if not prepared.forced and (oracle or draft["scheduler.policy"] == "shortest-job"):
        key = "kv.slab" if oracle else "scheduler.policy"
        draft.refuse(
            key, f"{draft[key]} must know the lengths of answers beforehand", "write sampling.ignore_eos: true"
        )


def budget_of(prepared: Prepared, engine: EngineConfig, room: Room, model: Model) -> MemoryBudget:
    """Measured memory in the form that the simulator's has."""
    from backends.torch.pool import stored_dtype, stored_name
    from backends.weights.load import packed_mode

    spec = prepared.architecture.spec
    mode = packed_mode(prepared.architecture, engine.quantization, prepared.load)
    dtype = {2: spec.dtype if spec.dtype != "fp32" else "bf16", 4: "fp32"}[model.dtype.itemsize]
    stored = stored_name(stored_dtype(engine.kv.dtype, model.dtype))
    return MemoryBudget(
        model=spec.name, gpu=prepared.described.name, rule=engine.kv.memory_rule, utilization=room.fraction, gpus=1,
        total_bytes=room.total, weight_bytes=room.weights, activation_bytes=room.activations, overhead_bytes=room.others,
        kv_bytes=room.kv, unused_bytes=max(room.total - room.weights - room.activations - room.others - room.kv, 0),
        bytes_per_token=room.per_token, block_size=room.block, blocks=room.tokens // room.block, kv_tokens=room.tokens,
        max_model_len=context_limit(spec, engine), weights=mode.name if mode else dtype, kv_dtype=stored, fixed=room.fixed,
    )  # fmt: skip


def forces_lengths(workload: Workload) -> bool:
    """Whether answers have the lengths of the traffic, whatever is generated.

    Raises:
        InputError: something that ends answers is written beside it.
    """
    written = workload.sampling.plain()
    forced = written.get("ignore_eos", True)
    for key in ("stop", "stop_token_ids"):
        if forced and written.get(key):
            raise workload.error(
                f"sampling.{key}", "ends no answer while lengths are forced", "write ignore_eos: false beside it"
            )
    return forced


def _sampling(workload: Workload) -> tuple[SamplingParams, bool]:
    """How tokens are chosen, and whether lengths are forced."""
    from backends.torch.sampling import SamplingParams

    written = workload.sampling.plain()
    forced = forces_lengths(workload)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in written.items()}
    return SamplingParams(**values), forced


def _tokenizer(workload: Workload, prepared: Prepared, traffic: Traffic) -> Tokenizer | None:
    """The tokenizer, where prompts have words or texts end answers."""
    if not traffic.texts and not prepared.sampling.stop:
        return None
    from pathlib import Path

    from backends.weights.tokenizer import Tokenizer

    folder = prepared.source if isinstance(prepared.source, Path) and prepared.source.is_dir() else None
    if folder is None or (workload.backend.load == "dummy" and not prepared.sampling.stop):
        if prepared.sampling.stop:
            raise workload.error("sampling.stop", "texts need a tokenizer, and an architecture alone has none")
        prepared.notices.append(
            "prompts are made-up tokens of the lengths that the traffic says: dummy weights read no text"
        )
        return None
    tokenizer = Tokenizer(folder)
    messages = next((words for words in traffic.texts or () if isinstance(words, list)), None)
    if messages is not None:
        tokenizer.chat(messages)  # complains now rather than in the middle of the run
    return tokenizer


def _placed(workload: Workload, error: InputError) -> InputError:
    """An error of the lower floors at the key of the file that it is about."""
    if error.place.file is not None or not error.place.key:
        return error
    return InputError(
        error.message, place=replace(workload.place(error.place.key), key=error.place.key), hint=error.hint
    )
