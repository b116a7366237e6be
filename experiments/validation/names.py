"""Finding the GPU, the model and the engine's version that a table's free text means."""

from __future__ import annotations

import re
from functools import cache

from sim.hardware import GPUSpec, load_gpu
from sim.hardware.gpu import list_gpus
from sim.models import ModelSpec, load_model
from workloads.errors import InputError

# Words that make another card of a name; a name that has one of them means no card without it.
_VARIANTS = {"nvl", "pcie", "pcap", "maxq", "laptop", "mig", "virtualized", "ti", "super", "mobile", "1gcd"}
_FORMS = {"sxm", "sxm4", "sxm5", "sxm6", "hgx", "dgx", "oam"}  # the usual form of a data-centre card
_NOISE = {"nvidia", "amd", "gpu", "server", "edition", "tensor", "core", "instinct", "geforce", "accelerator", "oam"}


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9.]+", text.lower()) if word and word not in _NOISE]


@cache
def find_gpu(text: str) -> GPUSpec | None:
    """The GPU of the table that `text` means (`B200-180GB`, `NVIDIA H200-SXM-141GB`); None where none or no certain one.

    A memory size must agree with the card's within 7 %, and a variant (PCIe, NVL, power-capped) must be the card's own.
    """
    try:
        return load_gpu(text)
    except InputError:
        pass
    words = _words(text)
    sizes = [float(found.group(1)) for word in words if (found := re.fullmatch(r"(\d+)gb", word))]
    plain = {word for word in words if not re.fullmatch(r"\d+gb", word)}
    best: tuple[int, GPUSpec] | None = None
    for spec in list_gpus():
        for name in (spec.name, *spec.aliases):
            own = set(_words(name))
            must = {word for word in own if word not in _FORMS and not re.fullmatch(r"\d+gb", word)}
            if not must <= plain or (plain & _VARIANTS) - own:
                continue
            if any(abs(size - spec.nominal_gb) > 0.07 * spec.nominal_gb for size in sizes):
                continue
            if best is None or len(must) > best[0]:
                best = (len(must), spec)
    return best[1] if best else None


@cache
def find_model(text: str) -> ModelSpec | None:
    """The model of the table that `text` means, or None."""
    try:
        return load_model(text)
    except InputError:
        return None


def version_of(text: str) -> tuple[int, ...] | None:
    """`0.12.0` → (0, 12, 0), `1.2.0rc6.post2` → (1, 2, 0); None where there is no version in it."""
    found = re.match(r"\s*v?(\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in found.group(1).split(".")) if found else None


def date_of(text: str) -> tuple[int, ...] | None:
    """`2025-11` → (2025, 11); None where there is none."""
    found = re.match(r"\s*(\d{4})(?:-(\d{2}))?(?:-(\d{2}))?", text)
    return tuple(int(part) for part in found.groups() if part) if found else None
