"""What makes two runs comparable: a digest of their traffic, and their settings as flat keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from reports.run_data import RunData


def traffic_fingerprint(data: RunData) -> str:
    """Hex digest of what was asked of the engine: lengths, limits, priorities, sessions, and, in an open loop, when.

    Only what the traffic says goes in, nothing that the engine decided: later turns of a session and requests of a
    closed loop are sent when something finishes, so their times are left out.
    """
    r = data.requests
    digest = hashlib.sha256()
    for name in ("request", "session", "turn", "priority", "input_tokens", "max_tokens", "target_tokens"):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(getattr(r, name), "<i8").tobytes())
    if data.info["load"].get("mode") != "closed":
        planned = np.where(r.turn == 0, r.scheduled, 0.0)
        digest.update(np.round(np.nan_to_num(planned) * 1e6).astype("<i8").tobytes())
    digest.update(repr(sorted(data.info["load"].items())).encode())
    return digest.hexdigest()[:16]


def settings(config: dict) -> dict[str, Any]:
    """Every leaf of a resolved configuration by dotted key, without where it came from."""
    return {key: value for key, value, _ in leaves(config)}


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """(dotted key, value, source) of every leaf of a resolved configuration, in its own order.

    A leaf is `{"value": …, "source": …}`; anything else that is not a dict is a leaf without a source ("").
    """
    if isinstance(config, dict) and set(config) == {"value", "source"}:
        yield prefix, config["value"], str(config["source"])
    elif isinstance(config, dict):
        for key, item in config.items():
            yield from leaves(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, config, ""
