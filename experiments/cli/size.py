"""`bench size`: what fits into the memory of a GPU."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options

if TYPE_CHECKING:
    from sim.memory import SizeRow

GIB = 1 << 30


Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False, help="A name (`bench list models`), folder or config.json."),
]
Gpu = Annotated[str, typer.Option(metavar="NAME", show_default=False, help="A GPU (`bench list gpus`).")]
Preset = Annotated[str, typer.Option(metavar="NAME", help="Whose sizing rule and defaults.")]
KVDtype = Annotated[str, typer.Option(metavar="NAME", help="Of the KV cache.")]
Quantizations = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Of the weights; may be repeated [default: auto, fp8, awq-int4]."),
]
Tensors = Annotated[
    list[int] | None,
    typer.Option(min=1, metavar="N", help="GPUs a layer is split over; may be repeated [default: 1, 2, 4, 8]."),
]
Contexts = Annotated[
    list[int] | None,
    typer.Option(min=1, metavar="N", help="Tokens a request; may be repeated [default: 2048 … 32768]."),
]
KVMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="KV memory of a GPU, such as 40GiB, instead of sizing it."),
]
Utilization = Annotated[float | None, typer.Option(min=0.0, max=1.0, metavar="X", help="Instead of the preset's.")]
MaxModelLen = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Longest request in tokens [default: the model's limit].")
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Most requests at once, instead of the preset's: vLLM leaves room to sample for all."
    ),
]
BatchedTokens = Annotated[
    int | None,
    typer.Option(
        "--max-num-batched-tokens", min=1, metavar="N", help="Tokens of the largest step, instead of the preset's."
    ),
]


def size(
    model: Model,
    gpu: Gpu,
    preset: Preset = "vllm",
    quantization: Quantizations = None,
    kv_dtype: KVDtype = "auto",
    tensor: Tensors = None,
    context: Contexts = None,
    memory_utilization: Utilization = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: BatchedTokens = None,
    kv_memory: KVMemory = None,
    json: options.Json = False,
) -> None:
    """What fits into the memory of a GPU.

    Weights, KV pool and concurrent requests, per quantization and number of GPUs.

    \b
    Examples:
      bench size meta-llama/Meta-Llama-3-8B --gpu h100-sxm
      bench size llama-2-70b --gpu a100-sxm-80gb --kv-dtype fp8 --tensor 4 --tensor 8
      bench size ./my-model --gpu l40s --quantization fp8 --context 4096
      bench size llama-3.1-8b --gpu l4 --max-model-len 16384 --max-num-seqs 32
      bench size llama-3.1-8b --gpu a100-sxm --quantization fp16 --tensor 1 --kv-memory 40GiB
    """
    from sim.hardware import load_gpu
    from sim.memory import size_report
    from sim.models import load_model
    from sim.presets import preset_config
    from sim.quantization import load_kv_mode, load_weight_mode
    from sim.state_memory import fitted

    spec, card = load_model(model), load_gpu(gpu)
    config = preset_config(
        preset,
        device_memory=card.memory_bytes,
        is_a100=card.name.startswith("a100"),
        max_model_len=max_model_len or spec.max_position,
    )
    scheduler = replace(
        config.scheduler,
        max_num_seqs=max_num_seqs or config.scheduler.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens or config.scheduler.max_num_batched_tokens,
    )
    config = replace(config, scheduler=scheduler, max_model_len=max_model_len or 0)
    utilization = config.kv.memory_utilization if memory_utilization is None else memory_utilization
    config = replace(config, kv=replace(config.kv, dtype=kv_dtype, memory_utilization=utilization))
    if kv_dtype != "auto":
        load_kv_mode(kv_dtype)
    for name in quantization or ():
        if name != "auto":
            load_weight_mode(name)
    asked = {"quantizations": quantization, "tensors": tensor, "contexts": sorted(context or ())}
    chosen = {key: tuple(value) for key, value in asked.items() if value}
    pool = None if kv_memory is None else _bytes(kv_memory)
    rows = size_report(spec, card, fitted(spec, config), kv_bytes=pool, **chosen)
    if json:
        from experiments.cli.run import print_json

        print_json([_plain(row) for row in rows])
        return
    billions, memory = spec.params_total / 1e9, card.memory_bytes / GIB
    typer.echo(f"{spec.name} on {card.name}: {billions:.2f}e9 parameters, {memory:.1f} GiB a GPU")
    _table(rows)


def _bytes(text: str) -> int:
    from experiments.units import parse_bytes
    from workloads.errors import InputError, Place

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise InputError(str(error), place=Place(key="--kv-memory")) from None


def _plain(row: SizeRow) -> dict:
    return {
        "quantization": row.quantization,
        "tensor": row.tensor,
        "problem": row.problem,
        "budget": asdict(row.budget) if row.budget else None,
        "requests": {str(context): count for context, count in row.requests},
    }


def _table(rows: list[SizeRow]) -> None:
    """Per GPU: weights and pool; per replica: tokens and requests."""
    from rich.table import Table

    from experiments.cli.console import stdout

    table = Table()
    contexts = next((row.requests for row in rows if row.requests), ())
    for title in (
        "weights",
        "GPUs",
        "weights GiB",
        "KV pool GiB",
        "KV tokens",
        *(f"{c:,} tokens" for c, _ in contexts),
    ):
        table.add_column(title, justify="left" if title == "weights" else "right")
    problems: dict[str, None] = {}
    for row in rows:
        budget = row.budget
        if budget is None:
            problems[row.problem] = None
            table.add_row(row.quantization, str(row.tensor), "impossible")
            continue
        table.add_row(
            f"{row.quantization} ({budget.weights})" if row.quantization != budget.weights else budget.weights,
            str(row.tensor),
            f"{budget.weight_bytes / GIB:.1f}",
            *(("does not fit",) if row.problem else (f"{budget.kv_bytes / GIB:.1f}", f"{budget.kv_tokens:,}")),
            *(f"{count:,}" for _, count in row.requests),
        )
    console = stdout()
    console.print(table)
    for problem in problems:
        console.print(problem, soft_wrap=True)
    if contexts:
        console.print("Columns to the right: requests of that many tokens that fit at once. GiB are per GPU.")
