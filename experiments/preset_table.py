"""Every preset's settings as a page of the documentation: `python -m experiments.preset_table > docs/presets.md`."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.conflicts import DEFAULT, DERIVED
from experiments.resolve import resolve_engine
from experiments.workload_file import Source, build_workload
from reports.wording import setting
from sim.hardware import load_gpu
from sim.models import load_model
from sim.presets import NEWEST, PRESETS, SINCE, Preset

GPU, MODEL = "h100-sxm", "meta-llama/Meta-Llama-3-8B"
_NO_LIMIT = 1_000_000  # settings of this size and more stand for none
_WORKLOAD = """\
model: {model}
backend: {{name: sim, gpu: {gpu}}}
engine: {{preset: "{preset}"}}
traffic: {{synthetic: {{requests: 1, input_tokens: 1, output_tokens: 1}}}}
"""
_HEAD = f"""\
# Presets

What `engine.preset` stands for. A preset is a bundle of scheduler, gate, victim rule, KV allocator and sizing rule; every
value can be overridden in the workload file. A name with a version (`vllm@0.33`) keeps its meaning; a bare one is the newest.
Any version of an engine may be named (`vllm@0.12.0`, `sglang@0.5.6`): it is simulated as the preset that holds for it.

The tables show all settings that have an effect, as they are resolved on one {GPU} with {MODEL}.
Settings that depend on the GPU or on the model say so. `bench explain FILE` shows the same for a workload of yours, and
`sim/config.py` says what each setting means.

This page is generated: `python -m experiments.preset_table > docs/presets.md`. A test holds it and the code together.
"""


def page() -> str:
    """The whole page, Markdown."""
    parts = [_HEAD, *_names(), *(part for name, preset in PRESETS.items() for part in _section(name, preset))]
    return "\n".join(parts)


def _names() -> Iterator[str]:
    yield "| name | what it is |"
    yield "|---|---|"
    for name, full in NEWEST.items():
        yield f"| `{name}` | `{full}` |"
    for name, preset in PRESETS.items():
        yield f"| `{name}` | {preset.summary} |"
    yield ""
    for engine, steps in SINCE.items():
        yield f"* {engine}: " + ", ".join(f"from {since} on `{preset}`" for since, preset in steps)
    yield ""


def _section(name: str, preset: Preset) -> Iterator[str]:
    workload = build_workload(Source(_WORKLOAD.format(model=MODEL, gpu=GPU, preset=name), "preset.yaml"))
    _, draft = resolve_engine(workload, load_model(MODEL), load_gpu(GPU))
    yield f"## {name}\n"
    yield f"{preset.summary}.\n"
    yield "| setting | value | from |"
    yield "|---|---|---|"
    for key, value in draft.values.items():
        neutral = value in ("auto", 0) or key.startswith("parallel.")
        if key in draft.idle or key == "preset" or (neutral and draft.sources[key] == DEFAULT):
            continue
        yield f"| `{key}` | {_value(value)} | {_from(key, draft.sources[key], preset)} |"
    for key, values in preset.refuses.items():
        for value, reason in values.items():
            yield f"\n`{key}: {setting(value)}` is refused: {reason}."
    yield ""


def _value(value: object) -> str:
    unlimited = isinstance(value, int) and not isinstance(value, bool) and value >= _NO_LIMIT
    return "no limit" if unlimited else setting(value)


def _from(key: str, source: str, preset: Preset) -> str:
    """Where a value is from, in words."""
    if source == DEFAULT:
        return "default"
    if key == "host":
        return "the host-time constants that apply; `bench explain` names their source"
    named = preset.sources.get(key) or preset.sources.get("*", "")
    return f"{named}; depends on GPU and model" if source == DERIVED else named


if __name__ == "__main__":
    print(page(), end="")
