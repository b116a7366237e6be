"""Traffic that was served before: run folders of ours, and result files of vLLM's benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import InputError, Place
from workloads.json_file import read_object
from workloads.readers.columns import Rows, real_numbers, whole_numbers
from workloads.readers.files import existing, stem
from workloads.readers.times import in_order
from workloads.traffic import Traffic

RUN, REQUESTS = "run.json", "requests.parquet"
COLUMNS = ("session", "turn", "priority", "scheduled", "sent", "finish", "input_tokens", "target_tokens")
LISTS = ("input_lens", "output_lens", "start_times")
_PRIVATE = "prompts share nothing here: which words they had in common is not recorded"
_UNTIMED = "no arrival times: every request arrives at 0; give arrivals, or run a closed loop"


def read_served(path: Path) -> Traffic:
    """Requests of a run folder, or its requests.parquet, as they were scheduled; later turns keep their think time.

    Declared limits, parallel samples and shared words are not read: a run does not keep them as the traffic had them.

    Args:
        path: the folder, or a file in it.
    """
    path = existing(path)
    folder = path if path.is_dir() else path.parent
    columns = _columns(path if path.suffix == ".parquet" else folder / REQUESTS)
    name, notes = folder.resolve().name, [_PRIVATE]
    info = _info(folder)
    if info.get("sent_seen") is False:
        notes.append(_UNTIMED)
    elif (info.get("load") or {}).get("mode") == "closed":
        notes.append("served in a closed loop: requests arrive when its clients sent them, not when users would")
    sent, finish = columns["sent"], columns["finish"]
    came = np.where(np.isfinite(columns["scheduled"]), columns["scheduled"], sent)
    keep = np.isfinite(came) & np.isfinite(sent) & (columns["input_tokens"] > 0) & (columns["target_tokens"] > 0)
    rows = _kept(keep, path, notes)
    parent, think = _turns(columns["session"][rows], columns["turn"][rows], sent[rows], finish[rows])
    return in_order(
        Traffic(
            came[rows] - came[rows].min(), columns["input_tokens"][rows], columns["target_tokens"][rows], parent=parent,
            think=think, priority=columns["priority"][rows], name=name, notes=notes,
        )
    )  # fmt: skip


def read_vllm(path: Path) -> Traffic:
    """Requests of a result file of `vllm bench serve --save-result --save-detailed`, when they were sent.

    Args:
        path: the JSON file.
    """
    raw = read_object(existing(path))
    given = {key: raw[key] for key in LISTS if raw.get(key) is not None}
    for key in LISTS[:2]:
        if not isinstance(given.get(key), list) or not given[key]:
            raise InputError("holds no requests", place=Place(str(path), key=key), hint="--save-detailed keeps them")
    size = len(given["input_lens"])
    for key, values in given.items():
        if not isinstance(values, list) or len(values) != size:
            raise InputError(f"expected a list of {size} numbers, as input_lens is", place=Place(str(path), key=key))
    rows = Rows(str(path), lambda row: None)
    inputs, outputs = (whole_numbers(rows, key, given[key], 0) for key in LISTS[:2])
    notes = [_PRIVATE]
    if "start_times" in given:
        came = real_numbers(rows, "start_times", given["start_times"], None)
    else:
        came = np.zeros(size)
        notes.append(_UNTIMED)
    kept = _kept((inputs > 0) & (outputs > 0), path, notes)
    return in_order(Traffic(came[kept] - came[kept].min(), inputs[kept], outputs[kept], name=stem(path), notes=notes))


def is_vllm(head: str) -> bool:
    """Whether a JSON file that begins so is a result of vLLM's benchmark."""
    return head.startswith("{") and '"total_token_throughput"' in head and '"mean_ttft_ms"' in head


def _kept(keep: np.ndarray, path: Path, notes: list[str]) -> np.ndarray:
    rows = np.flatnonzero(keep)
    if not len(rows):
        raise InputError("no request of it was sent and has a length", place=Place(str(path)))
    if len(rows) < len(keep):
        notes.append(f"left out {len(keep) - len(rows):,} requests that were not sent or have no answer's length")
    return rows


def _turns(
    session: np.ndarray, turn: np.ndarray, sent: np.ndarray, finish: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The row of each row's turn before, -1 for none, and the seconds since that was answered."""
    parent, think = np.full(len(session), -1, np.int64), np.zeros(len(session))
    order = np.lexsort((turn, session))
    before, after = order[:-1], order[1:]
    linked = (session[before] == session[after]) & np.isfinite(finish[before]) & (before < after)
    before, after = before[linked], after[linked]
    parent[after] = before
    think[after] = np.maximum(sent[after] - finish[before], 0.0)
    return parent, think


def _info(folder: Path) -> dict[str, Any]:
    """What run.json tells of the run; nothing where it lies elsewhere."""
    info = read_object(folder / RUN).get("info") if (folder / RUN).is_file() else None
    return info if isinstance(info, dict) else {}


def _columns(file: Path) -> dict[str, np.ndarray]:
    import pyarrow
    import pyarrow.parquet

    place = Place(str(existing(file)))
    try:
        there = pyarrow.parquet.read_schema(file).names
        lacks = [name for name in COLUMNS if name not in there]
        if lacks:
            raise InputError(f"is not a run's requests: lacks {', '.join(lacks)}", place=place)
        table = pyarrow.parquet.read_table(file, columns=list(COLUMNS))
        return {
            name: table[name].to_numpy().astype(np.float64 if name in ("scheduled", "sent", "finish") else np.int64)
            for name in COLUMNS
        }
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        raise InputError(f"is not a run's requests: {str(error).splitlines()[0]}", place=place) from None
