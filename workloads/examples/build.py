"""Make the bundled traces again: `python -m workloads.examples.build [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from workloads.examples import TRACES, make, synth_path, trace_path
from workloads.write import write_jsonl


def main(folder: Path | None = None) -> None:
    """Write every trace into `folder`, or in its place in the package."""
    for name in TRACES:
        target = trace_path(name) if folder is None else folder / trace_path(name).name
        write_jsonl(make(synth_path(name)), target)
        print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
