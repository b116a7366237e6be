"""The record of a real beam search, read back and replayed in a KV allocator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sim.engine.sequence import Sequence
from sim.kv.base import NO_HIT
from sim.kv.paged import PagedAllocator
from workloads.errors import InputError
from workloads.traffic import Span, private_content

DATA = Path(__file__).parent / "data" / "beams.json"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class BeamRun:
    """One search: `parents[step][beam]` is the place of the beam's parent among the beams of the step before."""

    width: int
    prompt_tokens: int
    parents: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Blocks, summed over the steps of a search: held with sharing, what block tables would take without; and copies made."""

    held: int
    apart: int
    copies: int

    @property
    def saved(self) -> float:
        """Share of memory that sharing saves."""
        return 1 - self.held / self.apart


def read_record(path: Path = DATA) -> tuple[dict, list[BeamRun]]:
    """What is known of the record, and its searches.

    Raises:
        InputError: no such file, or not a record.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        runs = [
            BeamRun(
                int(run["width"]), int(run["prompt_tokens"]),
                tuple(tuple(DIGITS.index(digit) for digit in step) for step in run["parents"].split()),
            )
            for run in data["runs"]
        ]  # fmt: skip
        return data["about"], runs
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no record of beam searches: {error}", hint="make it again") from error


def replay(run: BeamRun, prompt_tokens: int = 0, block_size: int = 16, steps: int = 0) -> Sharing:
    """A search in a paged allocator that copies on write.

    A beam's first child goes on in its table, further ones fork it; beams without a child give their blocks back.

    Args:
        prompt_tokens: of the prompt, in place of the recorded ones; 0 = those.
        steps: at most so many tokens of the answer; 0 = all that were recorded.
    """
    prompt = prompt_tokens or run.prompt_tokens
    recorded = run.parents[:steps] if steps else run.parents
    longest = -(-(prompt + len(recorded) + 2) // block_size)
    pool = PagedAllocator(longest * block_size * (2 * run.width + 1), block_size, prefix_caching=False)
    first = _sequence(0, prompt, len(recorded) + 2)
    if not pool.admit(first, NO_HIT, prompt):
        raise AssertionError("the pool was made for it")
    first._computed = prompt
    beams, made = [first], 1
    held = apart = copies = 0
    for parents in recorded:
        kept: list[Sequence] = []
        for parent in parents:
            seq = beams[parent]
            if seq in kept:
                child = _sequence(made, prompt, seq.max_tokens)
                made += 1
                child._known, child._computed = seq._known, seq._computed
                done = pool.fork(seq, child)
                copies += len(done or ())
                seq = child
            kept.append(seq)
        for seq in beams:
            if seq not in kept:
                pool.release(seq)
        for seq in kept:  # the token that parted it from its siblings
            if not pool.grow(seq, seq._computed + 1):
                raise AssertionError("the pool was made for it")
            seq._known += 1
            seq._computed += 1
        beams = kept
        held += pool.total - pool.pool.count
        apart += sum(-(-seq.computed // block_size) for seq in beams)
    return Sharing(held, apart, copies)


def _sequence(row: int, prompt: int, answer: int) -> Sequence:
    return Sequence(row, (Span(private_content(row), 0, prompt),), prompt, answer)
