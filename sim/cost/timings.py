"""Measured kernel times: one row of any of the files that tools write, as one value.

Columns are recognised under the names that the tools use (`bench profile` and our own tables, NVIDIA aiconfigurator's
databases, Vidur's profiles, InferSim's tables), so that a file can be used as it is. What the columns do not say (the
GPU, the engine, which attention) is looked for in the file's name and folders.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.errors import InputError, Place

SHAPES: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attn_decode": ("batch", "seq", "heads", "kv_heads", "head_dim"),
    "attn_prefill": ("batch", "seq", "heads", "kv_heads", "head_dim"),
    "mla_decode": ("batch", "seq", "heads"),
    "all_reduce": ("ways", "bytes"),
    "moe": ("tokens", "hidden", "ffn", "topk", "experts", "tp", "ep"),
}
"""What a timing of each operator is measured at. Heads are per GPU; prefill has no past."""

_ALIASES = {
    "dtype": ("dtype", "gemm_dtype", "attn_dtype", "allreduce_dtype", "nccl_dtype", "moe_dtype", "mla_dtype"),
    "kv_dtype": ("kv_dtype", "kv_cache_dtype"),
    "batch": ("batch", "batch_size", "batchsize"),
    "seq": ("seq", "isl", "context", "kv_len", "seq_len", "s"),
    "heads": ("heads", "num_heads", "n_q_heads", "n_heads"),
    "kv_heads": ("kv_heads", "num_key_value_heads", "n_kv_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "head_size"),
    "ways": ("ways", "tp", "num_gpus", "num_workers"),
    "bytes": ("bytes", "size"),
    "elements": ("elements", "message_size"),
    "tokens": ("tokens", "num_tokens"),
    "hidden": ("hidden", "hidden_size"),
    "ffn": ("ffn", "inter_size", "intermediate_size"),
    "topk": ("topk", "top_k"),
    "experts": ("experts", "num_experts"),
    "ep": ("ep", "moe_ep_size"),
    "us": ("us", "time_us", "latency_us"),
    "ms": ("ms", "latency_ms", "latency", "median_ms"),
    "engine": ("engine", "framework", "backend"),
    "gpu": ("gpu", "device", "device_name"),
    "op": ("op", "op_name", "operator", "collective"),
    "launch": ("launch", "kernel_source"),
    "distribution": ("distribution", "routing"),
}
_OPS = {
    "gemm": "gemm", "attn_decode": "attn_decode", "attn_prefill": "attn_prefill", "all_reduce": "all_reduce",
    "allreduce": "all_reduce", "custom_allreduce": "all_reduce", "moe": "moe", "mla_decode": "mla_decode",
    "generation_attention": "attn_decode", "context_attention": "attn_prefill", "decode_attention": "attn_decode",
    "prefill_attention": "attn_prefill", "attention_decode": "attn_decode", "attention_prefill": "attn_prefill",
    "mha_decode": "attn_decode", "mha_prefill": "attn_prefill",
}  # fmt: skip
_KNOWN_OTHERS = {
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "all_to_all",
    "send_recv",
    "broadcast",
    "logits",
    "element",
}
_DTYPES = {
    "bfloat16": "bf16", "float16": "bf16", "fp16": "bf16", "half": "bf16", "bf16": "bf16", "fp8_e4m3": "fp8",
    "float8_e4m3fn": "fp8", "fp8_block": "fp8-block", "fp8-e4m3": "fp8", "int8_wo": "w8a16", "int4_wo": "w4a16",
}  # fmt: skip
_ENGINES = (
    ("tensorrt-llm", ("tensorrt-llm", "tensorrt_llm", "trtllm", "trt-llm")),
    ("vllm", ("vllm",)),
    ("sglang", ("sglang",)),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured call.

    Attributes:
        op: a key of `SHAPES`.
        dtype: of the matrix product (`bf16`, `fp8`, `fp8-block`, …). kv_dtype: of the cache, for attention.
        shape: the values of `SHAPES[op]`.
        us: microseconds of one call on one GPU.
        engine, gpu: our names, or "" where nothing says.
        launch: `graph`, `eager`, `across nodes`, or "" where the file makes no difference.
        distribution: how tokens were routed to experts (`balanced`, `power_law_1.2`), or "".
        place: where it was read.
    """

    op: str
    dtype: str
    kv_dtype: str
    shape: Mapping[str, float]
    us: float
    engine: str
    gpu: str
    launch: str
    distribution: str
    place: Place

    @property
    def size(self) -> tuple[float, ...]:
        """The shape as a tuple, in the order of `SHAPES`."""
        return tuple(self.shape[name] for name in SHAPES[self.op])


def read_timings(path: str | Path, *, gpu: str = "", engine: str = "") -> list[Timing]:
    """All timings of a CSV (also gzipped) or Parquet file.

    Args:
        gpu, engine: what to take where neither the columns nor the path say.

    Raises:
        InputError: unreadable; columns that are no operator's; a missing or unusable value (file, line and column).
    """
    path = Path(path)
    named_gpu, named_engine = _from_path(path)
    default = (gpu or named_gpu, engine or named_engine)
    found: list[Timing] = []
    known: dict[tuple, _Columns] = {}  # more than one where each operator spreads its shape into columns of its own
    for line, row in table_rows(path):
        row = _spread(row, path, line)
        names = tuple(row)
        columns = known.get(names)
        if columns is None:
            columns = known[names] = _Columns(row, path)
        if columns.vidur:
            found += _vidur(row, path, line, default[0])
        elif (timing := columns.timing(row, line, *default)) is not None:
            found.append(timing)
    if not found:
        raise InputError("has no rows", place=Place(file=str(path)))
    return found


def table_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row) of a CSV, gzipped CSV or Parquet file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as parquet

            yield from enumerate(parquet.read_table(path).to_pylist(), start=1)
        else:
            opener = gzip.open if path.suffix == ".gz" else open
            with opener(path, "rt", newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                from workloads.readers.files import distinct_columns  # brings numpy, which prices do not need

                distinct_columns(reader.fieldnames, str(path))
                yield from enumerate(reader, start=2)
    except (OSError, ValueError, EOFError, csv.Error) as error:
        raise InputError(f"cannot read it: {error}", place=Place(file=str(path))) from None


def _spread(row: dict[str, Any], path: Path, line: int) -> dict[str, Any]:
    """A row whose shape stands in one column (`16x4096x4096`, or `m=16 n=4096 k=4096`), with a column for each part."""
    text = row.get("shape")
    said = next((str(row[name]).lower() for name in _ALIASES["op"] if row.get(name)), "")
    if not isinstance(text, str) or said not in _OPS:  # an unknown operator is told by its own column
        return row
    names = SHAPES.get(_OPS.get(said, ""), ())
    where = Place(str(path), line, "shape")
    if "=" in text:
        parts = dict(part.split("=", 1) for part in re.split(r"[\s,;]+", text.strip()) if "=" in part)
        if missing := [name for name in names if name not in parts]:
            raise InputError(f"lacks {', '.join(missing)}", place=where, hint=f"of {said}: {', '.join(names)}")
    else:
        values = re.split(r"[x×,;\s]+", text.strip())
        if not names or len(values) != len(names):
            raise InputError(
                f"expected {len(names)} numbers, found {text!r}", place=where, hint=f"of {said}: {' x '.join(names)}"
            )
        parts = dict(zip(names, values, strict=True))
    return {**row, **parts}


class _Columns:
    """Which column of one file means what."""

    def __init__(self, row: Mapping[str, Any], path: Path) -> None:
        self.path = path
        self.vidur = {"num_tensor_parallel_workers", "n_embd"} <= set(row)
        self.at = {name: next((a for a in aliases if a in row), None) for name, aliases in _ALIASES.items()}
        self.steps = "step" if "step" in row else None
        self.moe_ways = "moe_tp_size" if "moe_tp_size" in row else ("tp" if "tp" in row else None)
        if self.vidur:
            return
        self.op = None if self._says_op() else self._op_of(row)
        if not (self.at["us"] or self.at["ms"]):
            raise InputError("has no column with times", place=Place(str(path), 1), hint="us or latency_ms")

    def _says_op(self) -> bool:
        return self.at["op"] is not None

    def _op_of(self, row: Mapping[str, Any]) -> str:
        """From the columns, or, for the two attentions, the file's name."""
        has, name = set(row), self.path.name.lower()
        if {"m", "n", "k"} <= has:
            return "gemm"
        if self.at["topk"] and self.at["ffn"] and "up_proj_us" not in has:
            return "moe"
        if self.at["ways"] and (self.at["bytes"] or self.at["elements"]):
            return "all_reduce"
        if "mla" in name and self.at["seq"] and "decode" in name:
            return "mla_decode"
        if self.at["heads"] or re.search(r"mha_(decode|prefill)", name):
            if self.steps or "context" in has or re.search(r"decode|generation", name):
                return "attn_decode"
            if re.search(r"prefill|context", name) or "isl" in has:
                return "attn_prefill"
        raise InputError(
            f"cannot tell which operator was timed from the columns {', '.join(map(str, row))}",
            place=Place(str(self.path), 1), hint=f"add a column op: {', '.join(SHAPES)}",
        )  # fmt: skip

    def timing(self, row: Mapping[str, Any], line: int, gpu: str, engine: str) -> Timing | None:
        """The timing of one row; None for operators that the cost model has no form for."""
        op = self.op
        if op is None:
            said = str(row[self.at["op"]] or "").lower()
            op = _OPS.get(said)
            if op is None:
                if said in _KNOWN_OTHERS:
                    return None
                raise InputError(
                    f"unknown op {said!r}, expected {', '.join(SHAPES)}", place=Place(str(self.path), line, self.at["op"])
                )  # fmt: skip
        place = Place(str(self.path), line)
        shape = self._shape(op, row, line)
        dtype, kv = self._dtypes(op, row, line)
        us = self._number(row, line, "us") if self.at["us"] else 1e3 * self._number(row, line, "ms")
        launch = str(self._text(row, "launch")).lower()
        if op == "all_reduce" and float(row.get("devices_per_node") or shape["ways"]) < shape["ways"]:
            launch = "across nodes"
        said_gpu, said_engine = self._text(row, "gpu"), self._text(row, "engine")
        return Timing(
            op, dtype, kv, shape, us, _engine_of(said_engine) or engine, _gpu_of(said_gpu) or gpu,
            next((each for each in ("eager", "graph", "across nodes") if each in launch), ""),
            str(self._text(row, "distribution")),
            place,
        )  # fmt: skip

    def _text(self, row: Mapping[str, Any], name: str) -> str:
        column = self.at[name]
        return str(row.get(column) or "") if column else ""

    def _dtypes(self, op: str, row: Mapping[str, Any], line: int) -> tuple[str, str]:
        raw, kv = self._text(row, "dtype").lower(), self._text(row, "kv_dtype").lower()
        if not raw and self.at["dtype"] and op != "all_reduce":
            raise InputError("is empty", place=Place(str(self.path), line, self.at["dtype"]))
        dtype = _DTYPES.get(raw, raw) or ("fp8-block" if op == "gemm" and "h800" in self.path.name else "bf16")
        kv = _DTYPES.get(kv, kv) or (dtype if op.startswith(("attn", "mla")) else "")
        return dtype, kv

    def _shape(self, op: str, row: Mapping[str, Any], line: int) -> dict[str, float]:
        shape: dict[str, float] = {}
        for name in SHAPES[op]:
            if op == "moe" and name == "tp":
                shape[name] = float(row.get(self.moe_ways) or 1) if self.moe_ways else 1.0
            elif op == "moe" and name == "ep" and not self.at["ep"]:
                shape[name] = 1.0
            elif name == "bytes" and not self.at["bytes"]:
                width = 1.0 if re.search(r"8(?!\d)", self._text(row, "dtype")) else 2.0
                shape[name] = width * self._number(row, line, "elements")
            elif name in ("heads", "kv_heads", "head_dim") and not self.at[name]:
                shape[name] = self._named_heads(name)
            else:
                shape[name] = self._number(row, line, name, zero=name == "kv_heads")
        if op == "attn_decode" and self.steps:
            shape["seq"] += float(row[self.steps] or 0)
        if shape.get("kv_heads") == 0:  # aiconfigurator writes 0 where there are as many as query heads
            shape["kv_heads"] = shape["heads"]
        return shape

    def _named_heads(self, name: str) -> float:
        """InferSim names its files by heads, KV heads and head dim."""
        found = re.search(r"(\d+)-(\d+)-(\d+)", self.path.name)
        if not found:
            raise InputError(f"has no column {name}", place=Place(str(self.path), 1))
        return float(found.group(("heads", "kv_heads", "head_dim").index(name) + 1))

    def _number(self, row: Mapping[str, Any], line: int, name: str, *, zero: bool = False) -> float:
        column = self.at.get(name) or (name if name in row else None)
        if column is None:
            raise InputError(f"has no column {name}", place=Place(str(self.path), 1))
        value, where = row.get(column), Place(str(self.path), line, column)
        if value in (None, ""):
            raise InputError("is empty", place=where)
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise InputError(f"expected a number, found {value!r}", place=where) from None
        if not (0 < number < float("inf") or (zero and number == 0)):
            raise InputError(f"must be above 0, found {value}", place=where)
        return number


def _vidur(row: Mapping[str, Any], path: Path, line: int, gpu: str) -> Iterable[Timing]:
    """The four linear layers of one row of Vidur's `mlp.csv` (times in ms, 16 bit)."""

    def number(column: str) -> float:
        try:
            return float(row[column])
        except (KeyError, TypeError, ValueError):
            raise InputError("expected a number", place=Place(str(path), line, column)) from None

    tp, m, hidden = number("num_tensor_parallel_workers"), number("num_tokens"), number("n_embd")
    heads, kv_heads, ffn = number("n_head"), number("n_kv_head"), number("n_expanded_embd")
    head_dim, wide = hidden / heads, 2 if str(row.get("use_gated_mlp")).lower() == "true" else 1
    layers = {
        "attn_pre_proj": ((heads / tp + 2 * max(kv_heads / tp, 1)) * head_dim, hidden),
        "attn_post_proj": (hidden, hidden / tp),
        "mlp_up_proj": (wide * ffn / tp, hidden),
        "mlp_down_proj": (hidden, ffn / tp),
    }
    for name, (n, k) in layers.items():
        column = next((c for c in (f"{name}_ms", f"time_stats.{name}.median") if c in row), f"{name}_ms")
        us = 1e3 * number(column)
        if us > 0:
            shape = {"m": m, "n": n, "k": k}
            yield Timing("gemm", "bf16", "", shape, us, "vidur", gpu, "", "", Place(str(path), line, column))


def _engine_of(text: str) -> str:
    text = text.lower()
    return next((name for name, spellings in _ENGINES if any(s in text for s in spellings)), "")


def _gpu_of(text: str) -> str:
    """Our name of the GPU that a text mentions; the longest name wins."""
    from sim.hardware.gpu import list_gpus

    if not text:
        return ""
    plain = re.sub(r"[_ ]", "-", text.lower())
    best = ""
    hit = ""
    for spec in list_gpus():
        for name in (spec.name, *spec.aliases):
            if len(name) > len(best) and re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", plain):
                best, hit = name, spec.name
    return hit


def _from_path(path: Path) -> tuple[str, str]:
    """(GPU, engine) that the file's name or else its folders mention."""
    gpu = engine = ""
    for part in (path.name, *(p.name for p in path.parents)):
        gpu = gpu or _gpu_of(part.split(".csv")[0].replace(".", "-"))
        engine = engine or _engine_of(part)
    return gpu, engine
