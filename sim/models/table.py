"""The bundled table of models, and finding a model by the names people use for it."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from sim.models.spec import FullDims, IndexerDims, MLADims, ModelSpec
from sim.models.states import StateDims
from workloads.errors import InputError

_FLAGS = (
    "tied", "qkv_bias", "o_bias", "mlp_bias", "head_bias", "norm_bias", "router_bias", "qk_norm", "sinks",
    "embedding_norm", "parallel_block", "attn_gate", "shared_gate",
)  # fmt: skip
_INTEGERS = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "max_position", "experts", "experts_per_token",
    "expert_ffn", "shared_experts", "dense_first_layers", "window", "window_layers", "norms", "learned_positions",
    "published_params", "attention_layers", "mlp_layers", "shared_ffn", "expert_hidden",
)  # fmt: skip
_VARIANTS = re.compile(r"-(instruct|thinking|think|chat|it|pt|hf|base|latest|(?<=[a-z])\d{4})$")
_QUANTIZED = (
    ("-fp8-dynamic", "fp8-dynamic"), ("-fp8-block", "fp8-block"), ("-fp8", "fp8"), ("-nvfp4", "nvfp4"),
    ("-fp4", "nvfp4"), ("-gptq-int4", "gptq-int4"), ("-gptq", "gptq-int4"), ("-awq-int4", "awq-int4"),
    ("-awq", "awq-int4"), ("-nvfp4-v2", "nvfp4"), ("-fp4-v2", "nvfp4"), ("-quantized.w8a8", "int8-w8a8"),
    ("-quantized.w8a16", "int8-w8a16"), ("-quantized.w4a16", "gptq-int4"), ("-w4a16-g128", "gptq-int4"),
    ("-w4a16", "gptq-int4"), ("-w8a8", "int8-w8a8"), ("-mxfp4", "mxfp4"), ("-awq-4bit", "awq-int4"),
    ("-gptq-4bit", "gptq-int4"), ("-gptq-int8", "gptq-int8"), ("-int4", "gptq-int4"), ("-int8", "int8-w8a8"),
    ("-bf16", "bf16"), ("-fp16", "fp16"), ("-w4afp8", "gptq-int4"), ("-fp8-kv", "fp8"),
)  # fmt: skip


@cache
def _table() -> tuple[tuple[ModelSpec, tuple[str, ...]], ...]:
    text = (files("sim") / "data" / "models.csv").read_text(encoding="utf-8")
    return tuple((_spec(row), tuple(row["aliases"].split())) for row in csv.DictReader(text.splitlines()))


def _spec(row: dict[str, str]) -> ModelSpec:
    features = row["features"].split()
    values: dict = {key: int(row[key]) for key in _INTEGERS if row[key]}
    values |= {flag: True for flag in _FLAGS if flag in features}
    for key in ("name", "hf_id", "family", "dtype", "native_quantization", "notes"):
        values[key] = row[key]
    values["mla"] = MLADims(*map(int, row["mla"].split("/"))) if row["mla"] else None
    values["indexer"] = IndexerDims(*map(int, row["indexer"].split("/"))) if row["indexer"] else None
    values["full"] = FullDims(*map(int, row["full"].split("/"))) if row["full"] else None
    values["state"] = _state(row["state"]) if row["state"] else None
    return ModelSpec(**values, gated="ungated" not in features)


def _state(text: str) -> StateDims:
    """`kind/layers/heads/groups/key_dim/value_dim/conv/rank/dtype`, and `/bare` where nothing is normalised."""
    kind, *numbers = text.split("/")
    dtype, norm = numbers[7], numbers[8:] != ["bare"]
    return StateDims(kind, *map(int, numbers[:7]), dtype=dtype, norm=norm)


def list_models() -> list[ModelSpec]:
    """Every bundled model, in the order of the table."""
    return [spec for spec, _ in _table()]


@cache
def _index() -> dict[str, ModelSpec]:
    """Names as they are written in the table, then without what does not change a shape, then without hyphens."""
    written = [(name, spec) for spec, aliases in _table() for name in (spec.name, spec.hf_id, *aliases)]
    found: dict[str, ModelSpec] = {}
    for form in (_bare, _plain, _packed):
        for name, spec in written:
            found.setdefault(form(name), spec)
    return found


def _lookup(name: str) -> ModelSpec | None:
    """The model of a name as it is written, or with `3_3` read as 3.3."""
    index = _index()
    dotted = re.sub(r"(?<=\d)_(?=\d)", ".", name)
    keys = (form(each) for each in (name, dotted) for form in (_bare, _plain, _packed))
    return next((index[key] for key in keys if key in index), None)


@cache
def _contexts() -> dict[str, int]:
    """Fine-tunes whose context is another than that of the row whose shape they have."""
    text = (files("sim") / "data" / "contexts.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {name: int(row["max_position"]) for row in rows for name in row["names"].split()}


def _bare(name: str) -> str:
    """A name in lower case, without organisation; `llama3.1:8b` as `llama3.1-8b`."""
    return name.lower().rstrip("/").rsplit("/", 1)[-1].replace("_", "-").replace(":", "-")


def _plain(name: str) -> str:
    """A name as it is compared: lower case, without organisation, without the words that do not change the shape."""
    name = _bare(name).removeprefix("meta-")
    while (shorter := _VARIANTS.sub("", name)) != name:
        name = shorter
    return name


def _packed(name: str) -> str:
    """A plain name without hyphens: `llama3.1-8b` and `llama-3.1-8b` are one."""
    return _plain(name).replace("-", "")


def _split_quantization(name: str) -> tuple[str, str]:
    """`llama-3.1-8b-instruct-fp8` → (`llama-3.1-8b-instruct`, `fp8`)."""
    for suffix, mode in _QUANTIZED:
        if name.endswith(suffix):
            block = mode == "fp8" and name.startswith(
                ("qwen3", "glm-5")
            )  # their own FP8 checkpoints have 128×128 blocks
            return name.removesuffix(suffix), "fp8-block" if block else mode
    return name, ""


def find_model(name: str) -> ModelSpec:
    """A bundled model by short name, Hugging Face id (with or without organisation) or variant (`-Instruct`, `-FP8`).

    Raises:
        InputError: unknown, with the nearest names.
    """
    plain = _plain(name)
    if (spec := _lookup(name)) is not None:
        return _in_context(spec, _bare(name))
    base, mode = _split_quantization(plain)
    if mode and (spec := _lookup(base)) is not None:
        spec = _in_context(spec, base)
        return replace(spec, name=f"{spec.name}-{mode}", hf_id=name, native_quantization=mode)
    if "/" not in name and (spec := _only(plain)) is not None:
        return spec
    raise _unknown(name, plain, (spec.name for spec in list_models()))


def _only(plain: str) -> ModelSpec | None:
    """The only model whose name goes on where this one ends (`qwen3-235b`)."""
    found = [spec for spec in list_models() if _packed(spec.name).startswith(plain.replace("-", "") + "a")]
    sized = re.search(r"\d+b$", plain)
    return found[0] if sized and len(found) == 1 else None


def _in_context(spec: ModelSpec, name: str) -> ModelSpec:
    context = _contexts().get(name, spec.max_position)
    return spec if context == spec.max_position else replace(spec, max_position=context)


def hub_id(written: str) -> str:
    """The Hugging Face id of the model that somebody means by a bundled name; "" where only its shape is known.

    A name with an organisation is the id: many fine-tunes share a row of the table, and none of them is the row's model.
    Without one it is the row's id where it is the row's name or the id's own, and may else be anybody's.

    Raises:
        InputError: unknown, with the nearest names.
    """
    spec = find_model(written)
    name = written.strip("/")
    if "/" in name:
        return name
    own = (spec.name, spec.hf_id.rpartition("/")[2])
    known = "/" in spec.hf_id and name.lower().replace("_", "-") in [each.lower().replace("_", "-") for each in own]
    return spec.hf_id if known else ""


def _unknown(name: str, plain: str, known: Iterable[str]) -> InputError:
    names = list(known)
    by_plain = {_plain(n): n for n in names}
    close = difflib.get_close_matches(plain, list(by_plain), n=3, cutoff=0.5)
    nearest = " or ".join(by_plain[c] for c in close)
    hint = f"did you mean {nearest}?" if nearest else "`bench list models` shows the bundled ones."
    other = "for any other model save the config.json of its page, and give the folder (model: ./folder)"
    return InputError(f"unknown model {name!r}", hint=f"{hint} Or {other}")


def load_model(name_or_path: str | Path) -> ModelSpec:
    """A model: a bundled name, a local Hugging Face folder, or the path of a `config.json`.

    Raises:
        InputError: no such model (with the nearest names), or a config that cannot be read (naming file and key).
    """
    from sim.models.hf_config import read_config

    text = str(name_or_path)
    path = Path(text).expanduser()
    if path.is_dir() or path.suffix == ".json":
        return read_config(path / "config.json" if path.is_dir() else path)
    if isinstance(name_or_path, Path) or text.startswith((".", "/", "~")):
        raise InputError(f"no model folder at {text}", hint="expected a folder with a config.json, or a bundled name")
    return find_model(text)
