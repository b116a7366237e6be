"""Rotary position embeddings and how checkpoints stretch them to longer contexts.

Kinds: `default` (Su et al. 2021), `linear` (position interpolation, arXiv 2306.15595), `llama3` (Llama 3.1: by wavelength, as in
Meta's reference code) and `yarn` (arXiv 2309.00071). Frequencies are computed in float32 in the order of operations that
`transformers` uses, so that angles agree to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim.models.hf_config import Config

if TYPE_CHECKING:
    import torch

_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embeddings: base `theta`, `kind`, and the kind's own numbers by their names in `config.json`."""

    theta: float = 10_000.0
    kind: str = "default"
    numbers: Mapping[str, float] = field(default_factory=dict)

    def frequencies(self, head_dim: int) -> tuple[torch.Tensor, float]:
        """Radians a position [head_dim / 2] in float32, and the factor on cosine and sine."""
        import torch

        plain = 1.0 / (self.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
        if self.kind == "linear":
            return plain / self.numbers["factor"], 1.0
        if self.kind == "llama3":
            return _by_wavelength(plain, self.numbers), 1.0
        if self.kind == "yarn":
            return _yarn(self.theta, head_dim, self.numbers)
        return plain, 1.0


def _by_wavelength(plain: torch.Tensor, numbers: Mapping[str, float]) -> torch.Tensor:
    """Long waves are slowed by `factor`, short ones are left, those between are blended."""
    import torch

    original = numbers["original_max_position_embeddings"]
    low, high, factor = numbers["low_freq_factor"], numbers["high_freq_factor"], numbers["factor"]
    wavelength = 2 * math.pi / plain
    share = (original / wavelength - low) / (high - low)
    blended = (1 - share) * (plain / factor) + share * plain
    slowed = torch.where(wavelength > original / low, plain / factor, blended)
    return torch.where(wavelength < original / high, plain, slowed)


def _yarn(theta: float, head_dim: int, numbers: Mapping[str, float]) -> tuple[torch.Tensor, float]:
    """Dimensions that turn often within the original context are left, those that turn rarely are interpolated."""
    import torch

    factor, original = numbers["factor"], numbers["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(numbers.get("beta_fast") or 32), dimension(numbers.get("beta_slow") or 1)
    if numbers.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    powers = theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    kept = 1 - torch.clamp((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    mixed = 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept
    if numbers.get("attention_factor") is not None:
        return mixed, numbers["attention_factor"]
    both = numbers.get("mscale"), numbers.get("mscale_all_dim")
    if all(both):
        return mixed, _sharpened(factor, both[0]) / _sharpened(factor, both[1])
    return mixed, _sharpened(factor, 1.0)


def _sharpened(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def read_rope(config: Config, default_theta: float) -> Rope:
    """The rotary embeddings of a parsed `config.json`: `rope_parameters`, or `rope_theta` and `rope_scaling` before it.

    Raises:
        InputError: a kind that is not supported, or a missing or wrong number.
    """
    values = config.values
    key = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    given: Any = values.get(key) or {}
    if not isinstance(given, dict):
        raise config.error(key, f"expected an object, found {given!r}")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in _NEEDS:
        raise config.error(
            key, f"rotary embeddings of kind {kind!r} are not supported", hint=f"known: {', '.join(_NEEDS)}"
        )
    theta = given.get("rope_theta", values.get("rope_theta", default_theta))
    if given.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0)) not in (1.0, None):
        raise config.error("partial_rotary_factor", "rotating a part of a head is not supported")
    numbers = {name: value for name, value in given.items() if isinstance(value, (int, float)) and name != "rope_theta"}
    if kind == "yarn" and "original_max_position_embeddings" not in numbers:
        numbers["original_max_position_embeddings"] = config.integer("max_position_embeddings")
    for name in _NEEDS[kind]:
        if not isinstance(numbers.get(name), (int, float)) or numbers[name] <= 0:
            raise config.error(key, f"{name}: expected a number above 0, found {given.get(name)!r}")
    if not isinstance(theta, (int, float)) or theta <= 0:
        raise config.error("rope_theta", f"expected a number above 0, found {theta!r}")
    return Rope(float(theta), kind, numbers)
