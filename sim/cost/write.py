"""Writing constants files: small readable TOML that `sim.cost.constants` reads back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

_HEAD = """# {title}: efficiencies of the operator forms in sim/cost/operators.py. Shares are of the data-sheet
# peak; times in the unit of their name, without the host. `error` is the median of |log(predicted / measured)| on
# timings held out of the fit.
"""
_ORDER = (
    "gemm", "decode", "prefill", "mla", "all_reduce", "moe", "quantize", "elementwise", "host", "host_v0", "front_end",
    "front_end_v0", "among",
)  # fmt: skip


def constants_text(gpu: str, engine: str, sections: Mapping[str, Any], head: str = "") -> str:
    """The text of a constants file; `sections` as `load_constants` has them (dicts by kind, or one section)."""
    lines = [head or _HEAD.format(title=f"{engine} on {gpu}")]
    if gpu or engine:
        lines += [f'engine = "{engine}"', f'gpu = "{gpu}"', ""]
    for name in _ORDER:
        if name not in sections:
            continue
        body = sections[name]
        kinds = body.items() if isinstance(body, Mapping) else [("", body)]
        for kind, section in kinds:
            lines += [f"[{name}.{kind}]" if kind else f"[{name}]", *_body(section), ""]
    return "\n".join(lines)


def write_constants(path: Path, gpu: str, engine: str, sections: Mapping[str, Any], head: str = "") -> None:
    """Writes `constants_text` to a file."""
    path.write_text(constants_text(gpu, engine, sections, head), encoding="utf-8")


def _body(section: Any) -> list[str]:
    lines = []
    for each in fields(section):
        value = getattr(section, each.name)
        if value == (each.default_factory() if each.default_factory is not MISSING else each.default):
            continue
        lines.append(f"{each.name} = {_value(value)}")
    return lines


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f'"{k}" = {_value(v)}' for k, v in value.items()) + " }"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{value:.4g}" if "." in f"{value:.4g}" or "e" in f"{value:.4g}" else f"{value:.4g}.0"
