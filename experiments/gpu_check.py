"""What a GPU really does: every kernel checked against plain torch, then speeds of a model's steps and of serving it, held
against the card's own. Run as `python -m experiments.gpu_check --out DIR`; with `--dry-run` it goes through all of that with a
tiny model on a CPU.

Written for a GPU that is lent for minutes: results are printed and written as they come, and what there is no time for is left
out by name.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.extra import need_torch
from workloads.errors import InputError

if TYPE_CHECKING:
    import torch

    from backends.model.model import Model
    from backends.ops.selfcheck import Check
    from experiments.resolve import Resolved

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done.

    Attributes:
        model: a bundled name or a folder; its weights are made up. backend, device, dtype: as in a workload.
        copy_bytes, square: sizes of the copy and of the matrix product that stand for the card.
        batches, context: of decode steps. prompts: lengths of prompts.
        clients, prompt, answer: of serving: so many requests at once, of these lengths.
        seats: most sequences of a step.
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


ON_A_GPU = Plan(
    "meta-llama/Llama-3.1-8B", "triton", "cuda", "bf16", 4 << 30, 8192, (1, 4, 16, 64, 128, 256), 1024, (512, 2048, 8192),
    (1, 16, 64), 512, 128, 64,
)  # fmt: skip


def dry_plan(folder: Path) -> Plan:
    """The same on a CPU in seconds, with a tiny model that is written into `folder`."""
    from backends.weights.tiny import make_tiny

    model = str(make_tiny("tiny-llama", folder))
    return Plan(model, "torch", "cpu", "fp32", 1 << 22, 128, (1, 2), 32, (16, 64), (1, 2), 12, 4, 4)


@dataclass(slots=True)
class Findings:
    """What was found so far, printed and kept in `results.json` and `results.md` of a folder.

    Attributes:
        facts: of the machine. sections: title → rows. left_out: what there was no time for, or what failed and how.
        end: value of `time.monotonic()` after which nothing new is begun.
    """

    folder: Path
    facts: Row
    end: float
    sections: dict[str, list[Row]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    wrong: bool = False

    def add(self, title: str, row: Row) -> None:
        """One more row."""
        self.sections.setdefault(title, []).append(row)
        print(f"{title}: " + ", ".join(f"{name} {_shown(value)}" for name, value in row.items()), flush=True)
        self.write()

    def part(self, title: str, work: Callable[[], object], least: float = 20.0) -> None:
        """Do some work if there are `least` seconds left for it. A failure is noted, and the rest goes on."""
        if time.monotonic() + least > self.end:
            self._miss(f"{title}: no time left")
            return
        try:
            work()
        except Exception as error:  # compilers and drivers raise what they like, and time on a card is too dear to stop
            self.wrong = True
            self._miss(f"{title}: {type(error).__name__}: {error}")

    def _miss(self, words: str) -> None:
        self.left_out.append(words)
        print(f"left out: {words}", flush=True)
        self.write()

    def write(self) -> None:
        """Both files as they stand."""
        whole = {"facts": self.facts, "sections": self.sections, "left_out": self.left_out}
        (self.folder / "results.json").write_text(json.dumps(_plain(whole), indent=1) + "\n", "utf-8")
        (self.folder / "results.md").write_text(self.page(), "utf-8")

    def page(self) -> str:
        """All of it in Markdown."""
        lines = [f"# What {self.facts['card']} does", ""]
        lines += [f"* {name}: {value}" for name, value in self.facts.items()]
        for title, rows in self.sections.items():
            names = list(rows[0])
            lines += ["", f"## {title}", "", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
            lines += ["| " + " | ".join(_shown(row.get(name)) for name in names) + " |" for row in rows]
        if self.left_out:
            lines += ["", "## Left out", "", *(f"* {each}" for each in self.left_out)]
        return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)


def _plain(value: Any) -> Any:
    """Without NaN and infinity, which JSON has not."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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

    from backends.ops.selfcheck import check_round
    from backends.ops.selfcheck_packed import check_packed
    from backends.torch.operators import make_operators

    operators = make_operators(plan.backend, device)
    fp8 = torch.float8_e4m3fn
    if device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) < (8, 9):
        fp8 = torch.float8_e5m2

    def one(dtype: torch.dtype, pages: torch.dtype) -> None:
        add(check_round(operators, device, dtype, pages))

    def add(checks: Iterable[Check]) -> None:
        for check in checks:
            found.wrong |= not check.holds
            row = {"operator": check.operator, "of": check.case, "error / allowed": check.error, "holds": check.holds}
            found.add("Kernels against plain torch", row)

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for pages in (dtype, fp8, torch.int8):
            yield f"kernels, {dtype} with pages of {pages}", lambda dtype=dtype, pages=pages: one(dtype, pages)
        yield f"packed weights, {dtype}", lambda dtype=dtype: add(check_packed(operators, device, dtype))


@dataclass(frozen=True, slots=True)
class Card:
    """Bytes and operations a second that the card reached."""

    bandwidth: float
    rate: float


def time_card(found: Findings, plan: Plan, device: torch.device) -> Card:
    """A large copy and a large matrix product."""
    from backends.torch.speed import copy_bandwidth, matmul_rate
    from backends.weights.load import DTYPES

    card = Card(copy_bandwidth(device, plan.copy_bytes), matmul_rate(device, DTYPES[plan.dtype], plan.square))
    found.add("The card", {"copy, GB/s": card.bandwidth / 1e9, f"product in {plan.dtype}, TFLOP/s": card.rate / 1e12})
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
        _free()

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
        _free()

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


def _free() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def check(plan: Plan, folder: Path, minutes: float) -> Findings:
    """Everything in the order of its worth."""
    from backends.weights.device import pick_device
    from experiments.runner import resolve
    from experiments.workload_file import Source, build_workload

    device = pick_device(plan.device)
    folder.mkdir(parents=True, exist_ok=True)
    found = Findings(folder, machine(device), time.monotonic() + 60 * minutes)
    found.facts |= {"model": plan.model, "plan": asdict(plan)}
    print("\n".join(f"{name}: {value}" for name, value in found.facts.items()), flush=True)
    for title, work in check_kernels(found, plan, device):
        found.part(title, work)
    card = time_card(found, plan, device)
    resolved = resolve(build_workload(Source(json.dumps(workload_of(plan, plan.clients[0])), "gpu_check.yaml")))
    model = resolved.real.model
    for title, work in time_decode(found, plan, model, card):
        found.part(title, work)
    for title, work in time_prefill(found, plan, model, card):
        found.part(title, work)
    for clients in plan.clients:
        mine = with_clients(resolved, plan, clients)
        found.part(f"serving {clients}", lambda c=clients, r=mine: serve(found, plan, c, r, card), least=40)
    found.part("transformers", lambda: serve_with_transformers(found, plan, model, card), least=40)
    found.write()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: 0 if all is well, 1 if a kernel is wrong or a part failed, 2 if it cannot be run here."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results.json and results.md go")
    parser.add_argument("--minutes", type=float, default=8.0, help="begin nothing new after so many")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on a CPU")
    options = parser.parse_args(arguments)
    try:
        need_torch("gpu_check")
        plan = dry_plan(options.out / "model") if options.dry_run else ON_A_GPU
        found = check(plan, options.out, options.minutes)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.out / 'results.md'}: " + ("something is wrong" if found.wrong else "all is well"))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
