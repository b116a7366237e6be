"""Turns pydantic's findings into errors for the person who wrote the file."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from pydantic import BaseModel

from experiments.schema.base import Wrong
from experiments.yaml_tree import Path_, Tree, dotted
from workloads.errors import InputError

# Options as other engines and benchmarks call them, and where they are said here.
ELSEWHERE = {
    "gpu_memory_utilization": "engine.kv.memory_utilization",
    "mem_fraction_static": "engine.kv.memory_utilization",
    "tensor_parallel_size": "engine.parallel.tensor",
    "tp": "engine.parallel.tensor",
    "pipeline_parallel_size": "engine.parallel.pipeline",
    "pp": "engine.parallel.pipeline",
    "data_parallel_size": "engine.parallel.data",
    "enable_prefix_caching": "engine.kv.prefix_caching",
    "kv_cache_dtype": "engine.kv.dtype",
    "swap_space": "engine.kv.swap_gib",
    "page_size": "engine.kv.block_size",
    "schedule_conservativeness": "engine.scheduler.conservativeness",
    "router_max_wait_tokens": "engine.scheduler.prefill_wait_steps",
    "scheduler_recv_interval": "engine.scheduler.poll_interval",
    "enforce_eager": "engine.cuda_graphs",
    "disable_cuda_graph_padding": "engine.cuda_graph_padding",
    "chunked_prefill_size": "engine.scheduler.max_num_batched_tokens",
    "max_running_requests": "engine.scheduler.max_num_seqs",
    "max_batch_size": "engine.scheduler.max_num_seqs",
    "max_num_tokens": "engine.scheduler.max_num_batched_tokens",
    "context_length": "engine.max_model_len",
    "speculative_config": "engine.speculation",
    "speculative_algorithm": "engine.speculation.method",
    "speculative_num_steps": "engine.speculation.num_speculative_tokens",
    "speculative_num_draft_tokens": "engine.speculation.num_speculative_tokens",
    "max_draft_len": "engine.speculation.num_speculative_tokens",
    "num_nextn_predict_layers": "engine.speculation.num_speculative_tokens",
    "speculative_draft_model_path": "engine.speculation.draft_model",
    "speculative_model": "engine.speculation.draft_model",
    "max_concurrency": "load.concurrency",
    "request_rate": "traffic.synthetic.arrivals.rate",
    "num_prompts": "traffic.synthetic.requests",
}

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
    "dict_type": "keys and values",
    "list_type": "a list",
    "tuple_type": "a list",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("above {}", "gt"),
    "greater_than_equal": ("at least {}", "ge"),
    "less_than": ("below {}", "lt"),
    "less_than_equal": ("at most {}", "le"),
}


def to_input_error(finding: dict[str, Any], tree: Tree, root: type[BaseModel]) -> InputError:
    """One entry of `ValidationError.errors()` as an `InputError` with its file, line and dotted key."""
    path: Path_ = tuple(part for part in finding["loc"] if part != "[key]")
    kind, value = finding["type"], finding.get("input")
    if kind == "extra_forbidden":
        return _unknown_key(path, tree, root)
    if kind == "invalid_key":
        return InputError(f"expected text as a key, got {shown(path[-1])}", place=tree.place(path[:-1]))
    if kind == "missing":
        hint = _example(path)
        return InputError(f"the key {path[-1]} is missing", place=tree.place(path), hint=hint)
    if kind == "value_error" and isinstance(error := finding["ctx"]["error"], Wrong):
        return InputError(error.message, place=tree.place((*path, *error.path)), hint=error.hint)
    if kind == "value_error":
        return InputError(str(finding["ctx"]["error"]), place=tree.place(path))
    if kind == "literal_error":
        return _not_a_choice(path, value, finding["ctx"]["expected"], tree)
    expected = _EXPECTED.get(kind)
    if kind in _BOUNDS:
        phrase, bound = _BOUNDS[kind]
        expected = f"a number {phrase.format(_number(finding['ctx'][bound]))}"
    message = f"expected {expected}, got {shown(value)}" if expected else f"{finding['msg']}, got {shown(value)}"
    return InputError(message, place=tree.place(path), hint=_type_hint(kind, value))


def shown(value: Any) -> str:
    """A value as the user would write it, cut short."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _unknown_key(path: Path_, tree: Tree, root: type[BaseModel]) -> InputError:
    key, section = str(path[-1]), path[:-1]
    fields = list(_fields(root, section))
    return InputError(
        f"unknown key {shown(key)} in {dotted(section) or 'the file'}",
        place=tree.place(path),
        hint=_nearest(key, section, fields, root),
    )


def _nearest(key: str, section: Path_, fields: list[str], root: type[BaseModel]) -> str:
    plain = key.replace("-", "_").lower()
    close = difflib.get_close_matches(plain, fields, n=1, cutoff=0.72)
    if close:
        return f"did you mean {close[0]}?"
    everywhere = _all_keys(root)
    exact = [full for full in everywhere if full.rsplit(".", 1)[-1] == plain and full != dotted((*section, plain))]
    if exact:
        return f"did you mean {exact[0]}?"
    if plain in ELSEWHERE:
        return f"here it is {ELSEWHERE[plain]}"
    close = difflib.get_close_matches(plain, fields, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"expected one of {', '.join(fields)}" if fields else "remove it"


def _not_a_choice(path: Path_, value: Any, expected: str, tree: Tree) -> InputError:
    choices = [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]
    close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else None
    return InputError(f"expected {' or '.join(choices)}, got {shown(value)}", place=tree.place(path), hint=hint)


def _type_hint(kind: str, value: Any) -> str | None:
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if kind == "bool_type" and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
        return f"write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return None
        return "remove the quotes"
    if kind == "string_type" and isinstance(value, int | float):
        return f'put it in quotes: "{value}"'
    return None


def _example(path: Path_) -> str | None:
    return {
        ("model",): "such as `model: meta-llama/Meta-Llama-3-8B`; see `bench list models`",
        ("name",): "such as `name: chat on one H100`",
        ("backend",): "such as `backend: {name: sim, gpu: h100-sxm}`",
        ("traffic",): "expected a trace or synthetic traffic; `bench init` writes an example",
    }.get(path)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and not value.is_integer() else f"{int(value)}"


def _section_type(annotation: Any) -> type[BaseModel] | None:
    """The section behind a field's annotation, such as `TraceSection | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in get_args(annotation):
        found = _section_type(part)
        if found is not None:
            return found
    return None


def _fields(root: type[BaseModel], section: Path_) -> dict[str, Any]:
    """The valid keys of a section."""
    model = root
    for part in section:
        field = model.model_fields.get(str(part))
        nested = _section_type(field.annotation) if field else None
        if nested is None:
            return {}
        model = nested
    return dict(model.model_fields)


def _all_keys(root: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key that a file may have, sections included."""
    keys: list[str] = []
    for name, field in root.model_fields.items():
        keys.append(f"{prefix}{name}")
        nested = _section_type(field.annotation)
        if nested is not None:
            keys += _all_keys(nested, f"{prefix}{name}.")
    return keys
