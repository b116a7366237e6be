"""Another `sim` or `reports` on the path in place of ours.

Our top-level packages have plain names on purpose, so a folder of the same name beside a notebook may be imported
instead. That must be said, not guessed from a strange AttributeError.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("workloads", "sim", "reports", "backends", "experiments")


def shadowed() -> list[str]:
    """One sentence for each of our packages that the import system finds somewhere else than beside this one."""
    home = Path(__file__).resolve().parents[1]
    sentences = []
    for package in PACKAGES:
        places = _places(package)
        if not places:
            sentences.append(f"the package {package} is missing; install twinserve again")
        elif home / package not in places:
            sentences.append(
                f"another {package!r} at {places[0]} hides Twinserve's; rename it, or start Python from another folder"
            )
    return sentences


def _places(package: str) -> list[Path]:
    """Folders that `import package` would use, resolved."""
    loaded = sys.modules.get(package)
    spec = getattr(loaded, "__spec__", None) if loaded is not None else None
    if spec is None:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            return []
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(place).resolve() for place in spec.submodule_search_locations]
    return [Path(spec.origin).resolve()] if spec.origin else []
