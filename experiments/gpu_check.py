"""What a GPU really does: every kernel checked against plain torch, then speeds of a model's steps and of serving it, held
against the card's own. Run as `python -m experiments.gpu_check --out DIR`; with `--dry-run` it goes through all of that with a
tiny model on a CPU.

Written for a GPU that is lent for minutes: results are printed and written as they come, and what there is no time for is left
out by name. Each of the phases has a process of its own, so that one that crashes, hangs, or leaves the device unusable takes
nothing of the others with it.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from backends.extra import need_torch
from experiments.gpu_findings import Findings, Row
from workloads.errors import InputError

if TYPE_CHECKING:
    import torch

    from backends.model.model import Model
    from backends.ops.selfcheck import Check
    from experiments.resolve import Resolved

PHASES = {"kernels": 0.35, "speeds": 0.35, "packed": 0.5, "serving": 1.0}
"""Phases in the order of their worth, and which part of the time that is left then they may take."""
_STARTING = 20.0
"""Seconds that a phase's process may take beyond its time, to end what it has begun."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done.

    Attributes:
        model: a bundled name or a folder; its weights are made up. backend, device, dtype: as in a workload.
        copy_bytes, square: sizes of the copy and of the matrix product that stand for the card; packed layers are as wide.
        batches, context: of decode steps. prompts: lengths of prompts.
        clients, prompt, answer: of serving: so many requests at once, of these lengths.
        seats: most sequences of a step.
        modes, rows: of packed layers, and their tokens; "": not packed.
        many: tokens at which expanding once is held against expanding on the way.
        packed: (weights, KV, batch, context) of decode steps of whole packed models; "auto": not packed.
    """

    model: str
    backend: str
    device: str
    dtype: str
    copy_bytes: int
    square: int
    batches: tuple[int, ...]
    context: int
    prompts: tuple[int, ...]
    clients: tuple[int, ...]
    prompt: int
    answer: int
    seats: int
    modes: tuple[str, ...]
    rows: tuple[int, ...]
    many: tuple[int, ...]
    packed: tuple[tuple[str, str, int, int], ...]


ON_A_GPU = Plan(
    "meta-llama/Llama-3.1-8B", "triton", "cuda", "bf16", 4 << 30, 8192, (1, 4, 16, 64, 128, 256), 1024, (512, 2048, 8192),
    (1, 16, 64), 512, 128, 64,
    ("", "gptq-int4", "int8-w8a16", "awq-int4", "fp8-channel", "int8-w8a8", "fp8-block", "nvfp4", "mxfp4", "squeezellm-4bit"),
    (1, 16, 64), (512, 1024, 2048),
    (
        ("auto", "auto", 1, 1024), ("gptq-int4", "auto", 1, 1024), ("awq-int4", "auto", 1, 1024), ("int8-w8a16", "auto", 1, 1024),
        ("auto", "auto", 64, 2048), ("fp8-channel", "fp8-e4m3", 64, 2048), ("auto", "fp8-e4m3", 64, 2048),
        ("gptq-int4", "auto", 64, 2048), ("int8-w8a8", "int8", 64, 2048),
    ),
)  # fmt: skip


def dry_plan(folder: Path) -> Plan:
    """The same on a CPU in seconds, with a tiny model that is written into `folder`."""
    from backends.weights.tiny import make_tiny

    model = str(make_tiny("tiny-llama", folder))
    packed = (
        ("auto", "auto", 1, 32),
        ("int8-w8a16", "auto", 1, 32),
        ("auto", "auto", 2, 32),
        ("fp8-channel", "fp8-e4m3", 2, 32),
    )
    modes = ("", "gptq-int4")
    return Plan(
        model, "torch", "cpu", "fp32", 1 << 22, 128, (1, 2), 32, (16, 64), (1, 2), 12, 4, 4, modes, (1, 2), (), packed
    )


def machine(device: torch.device) -> Row:
    """Card, driver, versions and date."""
    import torch

    from backends.weights.device import GIB, device_name, memory
    from reports.run_folder import versions

    facts: Row = {"card": device_name(device), "memory, GiB": round(memory(device).total / GIB, 1)}
    if device.type == "cuda":
        asked = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
        try:
            said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()
            facts["driver, clock, power limit"] = said[0]
        except (OSError, subprocess.SubprocessError, IndexError):
            facts["driver, clock, power limit"] = "unknown"
        facts["CUDA"] = torch.version.cuda or torch.version.hip
    named = {name: each for name, each in versions().items() if each}
    named |= {"torch": torch.__version__, "Python": platform.python_version()}
    for package in ("triton", "transformers"):
        try:
            named[package] = version(package)
        except PackageNotFoundError:
            named[package] = "absent"
    return facts | named | {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}


def check_kernels(found: Findings, plan: Plan, device: torch.device) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every operator of the backend against plain torch in float32, by the types of activations and of pages."""
    import torch

    from backends.ops.selfcheck import GROUPS, check_round
    from backends.ops.selfcheck_packed import EXPERTS, check_packed, check_packed_experts
    from backends.torch.operators import make_operators
    from backends.weights.dummy_packed import RUNNABLE

    operators = make_operators(plan.backend, device)
    fp8 = torch.float8_e4m3fn
    if device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) < (8, 9):
        fp8 = torch.float8_e5m2

    def add(checks: Iterable[Check]) -> None:
        for check in checks:
            found.wrong |= not check.holds
            row = {"operator": check.operator, "of": check.case, "error / allowed": check.error, "holds": check.holds}
            found.add("Kernels against plain torch", row)

    def one(dtype: torch.dtype, pages: torch.dtype, group: str) -> Callable[[], None]:
        return lambda: add(check_round(operators, device, dtype, pages, groups=(group,)))

    def packed(check: Callable[..., Iterable[Check]], dtype: torch.dtype, mode: str) -> Callable[[], None]:
        return lambda: add(check(operators, device, dtype, (mode,)))

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for group in GROUPS:
            yield f"{group}, {dtype}", one(dtype, dtype, group)
        for pages in (fp8, torch.int8):
            yield f"attention, {dtype} with pages of {pages}", one(dtype, pages, "attention")
        modes = RUNNABLE if dtype == torch.bfloat16 else ("gptq-int4", "int8-w8a8", "fp8-block")
        for mode in modes:
            yield f"packed weights, {dtype}, {mode}", packed(check_packed, dtype, mode)
        for mode in EXPERTS if dtype == torch.bfloat16 else ():
            yield f"packed experts, {dtype}, {mode}", packed(check_packed_experts, dtype, mode)


@dataclass(frozen=True, slots=True)
class Card:
    """Bytes and operations a second that the card reached."""

    bandwidth: float
    rate: float


def time_card(plan: Plan, device: torch.device) -> Card:
    """A large copy and a large matrix product."""
    from backends.torch.speed import copy_bandwidth, matmul_rate
    from backends.weights.load import DTYPES

    card = Card(copy_bandwidth(device, plan.copy_bytes), matmul_rate(device, DTYPES[plan.dtype], plan.square))
    free_memory()
    return card


def time_decode(found: Findings, plan: Plan, model: Model, card: Card) -> Iterator[tuple[str, Callable[[], None]]]:
    """A decode step at each batch size: what it must read, by the time it takes."""
    from backends.torch.speed import decode_bytes, decode_time
    from backends.weights.device import memory

    def one(batch: int) -> None:
        _, cached = decode_bytes(model, batch, plan.context)
        context = plan.context
        if cached > 0.8 * memory(model.device).free:
            context = int(0.8 * memory(model.device).free / cached * context) // 16 * 16
        took = decode_time(model, batch, context)
        weights, cached = decode_bytes(model, batch, context)
        best = took.step if math.isnan(took.recorded) else took.recorded
        layers = model.architecture.spec.layers
        found.add("Decode steps", {
            "batch": batch, "context": context, "step, ms": took.step * 1e3, "recorded, ms": took.recorded * 1e3,
            "GB/s": (weights + cached) / best / 1e9, "of copy": (weights + cached) / best / card.bandwidth,
            "attention of a layer, µs": took.attention * 1e6,
            "attention, of copy": cached / layers / took.attention / card.bandwidth,
            "tokens/s": batch / best,
        })  # fmt: skip
        free_memory()

    for batch in plan.batches:
        yield f"decode, batch {batch}", lambda batch=batch: one(batch)


def time_prefill(found: Findings, plan: Plan, model: Model, card: Card) -> Iterator[tuple[str, Callable[[], None]]]:
    """Prompts of each length: operations a second."""
    from backends.torch.speed import prefill_operations, prefill_time

    def one(tokens: int) -> None:
        took = prefill_time(model, tokens)
        dense, attention = prefill_operations(model, tokens)
        layers = model.architecture.spec.layers
        found.add("Prefill", {
            "tokens": tokens, "step, ms": took.step * 1e3, "TFLOP/s": (dense + attention) / took.step / 1e12,
            "of product": (dense + attention) / took.step / card.rate, "attention of a layer, µs": took.attention * 1e6,
            "attention, of product": attention / layers / took.attention / card.rate, "tokens/s": tokens / took.step,
        })  # fmt: skip
        free_memory()

    for tokens in plan.prompts:
        yield f"prefill of {tokens}", lambda tokens=tokens: one(tokens)


def workload_of(plan: Plan, clients: int) -> Row:
    """So many requests at once, as a workload."""
    fixed = {"distribution": "fixed"}
    return {
        "name": f"gpu check, {clients} at once",
        "model": plan.model,
        "backend": {"name": plan.backend, "device": plan.device, "dtype": plan.dtype, "load": "dummy"},
        "engine": {
            "preset": "vllm", "max_model_len": plan.prompt + plan.answer,
            "scheduler": {"max_num_seqs": plan.seats, "max_num_batched_tokens": max(plan.prompt * 8, plan.seats)},
            "kv": {"capacity_tokens": plan.seats * 2 * (plan.prompt + plan.answer) // 16 * 16},
        },
        "traffic": {
            "max_tokens": "exact",
            "synthetic": {
                "requests": clients, "arrivals": {"process": "constant", "rate": 1000},
                "input_tokens": fixed | {"value": plan.prompt}, "output_tokens": fixed | {"value": plan.answer},
            },
        },
        "load": {"mode": "closed", "concurrency": clients},
    }  # fmt: skip


def with_clients(resolved: Resolved, plan: Plan, clients: int) -> Resolved:
    """The same model with the workload of so many clients: weights are not made again."""
    from experiments.traffic import make_traffic
    from experiments.workload_file import Source, build_workload

    workload = build_workload(Source(json.dumps(workload_of(plan, clients)), "gpu_check.yaml"))
    load = resolved.info["load"] | {"concurrency": clients}
    return replace(
        resolved, workload=workload, info=resolved.info | {"name": workload.name, "load": load},
        _traffic=make_traffic(workload, resolved.budget.max_model_len),
    )  # fmt: skip


def roofline(model: Model, card: Card, clients: int, prompt: int, answer: int) -> float:
    """Tokens a second if prompts went at the card's product and every decode step at its copy, and nothing else took time."""
    from backends.torch.speed import decode_bytes, prefill_operations

    seconds = clients * sum(prefill_operations(model, prompt)) / card.rate
    for length in range(prompt + 1, prompt + answer):
        seconds += sum(decode_bytes(model, clients, length)) / card.bandwidth
    return clients * answer / seconds


def serve(found: Findings, plan: Plan, clients: int, resolved: Resolved, card: Card) -> None:
    """The workload through the engine, twice: the first time compiles."""
    from experiments.runner import run
    from reports.metrics import summarize
    from reports.run_folder import write_run

    run(resolved)
    data = run(resolved)
    write_run(data, found.folder / f"run-{clients}", overwrite=True)
    summary = summarize(data, with_intervals=False)
    line, model = data.timeline, resolved.real.model
    steps = max(int(line.steps.sum()), 1)
    best = roofline(model, card, clients, plan.prompt, plan.answer)
    found.add("Serving", {
        "engine": f"ours, {plan.backend}", "requests at once": clients, "tokens/s": summary["output_throughput"],
        "of roofline": summary["output_throughput"] / best, "TTFT, ms": summary["mean_ttft_ms"],
        "TPOT, ms": summary["mean_tpot_ms"], "device a step, ms": float(line.device_seconds.sum()) / steps * 1e3,
        "host a step, ms": float(line.host_seconds.sum()) / steps * 1e3,
    })  # fmt: skip


def serve_with_transformers(found: Findings, plan: Plan, model: Model, card: Card) -> None:
    """The same requests as one batch of `generate`, on a random model of the same shape."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    spec, device, dtype = model.architecture.spec, model.device, model.dtype
    config = LlamaConfig(
        vocab_size=spec.vocab, hidden_size=spec.hidden, intermediate_size=spec.ffn, num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads, num_key_value_heads=spec.kv_heads, max_position_embeddings=spec.max_position,
        tie_word_embeddings=spec.tied,
    )  # fmt: skip
    with torch.device(device):
        theirs = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for clients in plan.clients:
        ids = torch.randint(3, spec.vocab, (clients, plan.prompt), device=device)

        def answer(ids: torch.Tensor = ids, tokens: int = plan.answer) -> float:
            began = time.perf_counter()
            out = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                pad_token_id=0,
            )  # fmt: skip
            out.cpu()
            return time.perf_counter() - began

        answer(tokens=2)
        rate = clients * plan.answer / answer()
        best = roofline(model, card, clients, plan.prompt, plan.answer)
        found.add("Serving", {
            "engine": "transformers generate", "requests at once": clients, "tokens/s": rate, "of roofline": rate / best,
        })  # fmt: skip


def free_memory() -> None:
    """Give the device back what nothing holds any more."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def load(plan: Plan, device: torch.device, quantization: str = "auto") -> Model:
    """The plan's model with weights that are made up."""
    from backends.torch.operators import make_operators
    from backends.weights.load import load_model
    from backends.weights.source import find_source

    return load_model(
        find_source(plan.model, "dummy"), device=device, dtype=plan.dtype, load="dummy", quantization=quantization,
        operators=make_operators(plan.backend, device),
    )  # fmt: skip


def kernels(found: Findings, plan: Plan, device: torch.device) -> None:
    """Whether they are right."""
    for title, work in check_kernels(found, plan, device):
        found.part(title, work, least=5)


def speeds(found: Findings, plan: Plan, device: torch.device) -> None:
    """The card, and a model's steps on it."""
    card = time_card(plan, device)
    found.add("The card", {"copy, GB/s": card.bandwidth / 1e9, f"product in {plan.dtype}, TFLOP/s": card.rate / 1e12})
    model = load(plan, device)
    for title, work in time_decode(found, plan, model, card):
        found.part(title, work, least=10)
    for title, work in time_prefill(found, plan, model, card):
        found.part(title, work, least=10)


def packed(found: Findings, plan: Plan, device: torch.device) -> None:
    """The same of packed weights."""
    from experiments.gpu_packed import compare_expanding, time_packed_layers, time_packed_models

    card = time_card(plan, device)
    for title, work in time_packed_layers(found, plan, device, card.bandwidth):
        found.part(title, work, least=5)
    for title, work in time_packed_models(found, plan, lambda mode: load(plan, device, mode), free_memory):
        found.part(title, work, least=15)
    for title, work in compare_expanding(found, plan, device):
        found.part(title, work, least=5)


def serving(found: Findings, plan: Plan, device: torch.device) -> None:
    """Requests through the engine, and through another's."""
    from experiments.runner import resolve
    from experiments.workload_file import Source, build_workload

    card = time_card(plan, device)
    resolved = resolve(build_workload(Source(json.dumps(workload_of(plan, plan.clients[0])), "gpu_check.yaml")))
    model = resolved.real.model
    for clients in plan.clients:
        mine = with_clients(resolved, plan, clients)
        found.part(f"serving {clients}", lambda c=clients, r=mine: serve(found, plan, c, r, card), least=25)
    found.part("transformers", lambda: serve_with_transformers(found, plan, model, card), least=30)


_WORK = {"kernels": kernels, "speeds": speeds, "packed": packed, "serving": serving}


def run_phase(phase: str, plan: Plan, folder: Path, minutes: float) -> Findings:
    """One of `PHASES`, in this process; results go to files of its name."""
    from backends.weights.device import pick_device

    end = time.monotonic() + 60 * minutes
    device = pick_device(plan.device)
    folder.mkdir(parents=True, exist_ok=True)
    found = Findings(folder, machine(device) | {"model": plan.model, "plan": asdict(plan)}, end, name=f"phase-{phase}")
    found.write()
    found.part(phase, lambda: _WORK[phase](found, plan, device), least=0)
    return found


def check(plan: Plan, folder: Path, minutes: float, options: Sequence[str] = ()) -> Findings:
    """All phases, each in a process of its own, which is ended if it takes too long."""
    from backends.weights.device import pick_device

    pick_device(plan.device)  # complains where there is none
    folder.mkdir(parents=True, exist_ok=True)
    found = Findings(folder, {}, time.monotonic() + 60 * minutes)
    for phase, share in PHASES.items():
        seconds = share * (found.end - time.monotonic())
        if seconds < _STARTING:
            found.miss(f"{phase}: no time left")
            continue
        command = [sys.executable, "-m", "experiments.gpu_check", "--out", str(folder), "--phase", phase]
        code = _watched([*command, "--minutes", str(seconds / 60), *options], seconds + _STARTING)
        found.take(f"phase-{phase}")
        found.wrong |= code != 0
        if code not in (0, 1):
            found.miss(f"{phase}: {'ended for taking too long' if code is None else f'its process ended with {code}'}")
    return found


def _watched(command: Sequence[str], seconds: float) -> int | None:
    """The exit code of a process whose output is passed on; None: it was ended after so many seconds."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
        code = process.wait()
    finally:
        timer.cancel()
        process.kill()
    return None if late.is_set() else code


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: 0 if all is well, 1 if a kernel is wrong or a part failed, 2 if it cannot be run here."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results.json and results.md go")
    parser.add_argument("--minutes", type=float, default=7.5, help="begin nothing new after so many")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on a CPU")
    parser.add_argument("--phase", choices=PHASES, help="this phase alone, in this process")
    options = parser.parse_args(arguments)
    try:
        need_torch("gpu_check")
        plan = dry_plan(options.out / "model") if options.dry_run else ON_A_GPU
        if options.phase:
            found = run_phase(options.phase, plan, options.out, options.minutes)
        else:
            found = check(plan, options.out, options.minutes, ["--dry-run"] if options.dry_run else [])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.out / found.name}.md: " + ("something is wrong" if found.wrong else "all is well"))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
