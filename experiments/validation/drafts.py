"""Measurements with speculative decoding: what of it a row states, and what is assumed where it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sim.models import ModelSpec

_KEY = "speculation.method"
# DeepSeek-V3's technical report (arXiv 2412.19437, 5.4.3): the second token of its MTP layer holds in 85 to 90 %.
_MTP: Mapping[str, Any] = {_KEY: "mtp", "speculation.num_speculative_tokens": 1, "speculation.acceptance": 0.87}


def speculates(notes: str, mapped: str = "") -> bool:
    """Whether a row's notes, or the rules of `mapping.toml`, say that draft tokens were used."""
    off = re.search(r"(spec_decoding|mtp|speculative)\s*=\s*(none|0|off|false)", notes, re.IGNORECASE)
    said = not off and re.search(r"speculat|\bmtp\b|eagle|medusa", notes, re.IGNORECASE) is not None
    return said or mapped == "on"


def states(settings: Mapping[str, Any]) -> bool:
    """Whether a richer file says with which settings, acceptance among them."""
    return _KEY in settings


def assumed(model: ModelSpec) -> Mapping[str, Any]:
    """Settings for a model of which it is public how often drafts hold; empty for others."""
    return _MTP if model.family == "deepseek_v3" else {}
