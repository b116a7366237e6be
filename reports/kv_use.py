"""Where the KV pool went: live, cached, reserved, wasted, free.

The words are those of the PagedAttention paper (Kwon et al. 2023, §3): *reserved* slots will be used later by the same
request, *internal* waste never will be, *external* waste lies in holes too small to use.
"""

from __future__ import annotations

import numpy as np

from reports.buckets import bucket_widths
from reports.run_data import RunData

KINDS = ("used", "cached", "reserved", "internal", "external", "free")


def kv_use(data: RunData) -> dict:
    """Shares of the pool, averaged over the run and at their peak (of the bucket means), and the bytes they stand for.

    Returns:
        `kv_pool_tokens`, `kv_pool_bytes`, and for every kind `kv_<kind>_mean`, `kv_<kind>_peak` (shares, 0 … 1) and
        `kv_<kind>_mean_bytes`; None where there is no pool or no timeline, or nobody saw that kind.
    """
    pool = int(data.info.get("kv_pool_tokens") or 0)
    size = data.info.get("kv_bytes_per_token") or 0
    summary: dict = {"kv_pool_tokens": pool or None, "kv_pool_bytes": int(pool * size) or None}
    width = bucket_widths(data)
    for kind in KINDS:
        tokens = getattr(data.timeline, f"kv_{kind}")
        known = bool(pool and len(width) and np.isfinite(tokens).all())
        mean = float(np.dot(tokens, width) / width.sum()) if known else None
        summary[f"kv_{kind}_mean"] = mean / pool if known else None
        summary[f"kv_{kind}_peak"] = float(tokens.max()) / pool if known else None
        summary[f"kv_{kind}_mean_bytes"] = mean * size if known and size else None
    return summary
