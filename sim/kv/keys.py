"""Names for blocks of content, so that equal prefixes have equal names.

A block's key stands for *everything up to and including* that block: two sequences have the same key at a position exactly
when they agree on all tokens up to its end. In simulation the content comes as spans, so whole *runs* of blocks are named at
once: a run is the blocks that lie inside one span, and a prompt of ten thousand tokens costs a few hashes, not hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from workloads.traffic import Span, answer_content

_ROOT = 0x5EED
_ENDLESS = 1 << 50
_made = tuple.__new__  # of a named tuple, without the call that its own constructor costs


class KeyRun(NamedTuple):
    """Blocks `first … end − 1` of a sequence lie inside one content; `key` names the first of them, given all before it."""

    first: int
    end: int
    key: int


def key_runs(prompt: Seq[Span], answer: int, block: int) -> list[KeyRun]:
    """The runs of a sequence: its prompt, then its answer without end.

    Args:
        prompt: spans of the prompt.
        answer: content id of the answer.
        block: tokens a block.
    """
    if len(prompt) == 1:
        return _of_one_span(prompt[0], answer, block)
    runs: list[KeyRun] = []
    previous, done = _ROOT, 0  # name of the run before, and how many blocks it has
    position = 0  # blocks done
    pieces: list[tuple[int, int, int]] = []  # of the block under way, when it straddles spans
    filled = 0
    for content, offset, length in (*merged(prompt), (answer, 0, _ENDLESS)):
        content = 2 * content + 1  # Python hashes -1 and -2, the ids of the first two shared prompts, alike
        if filled:
            take = min(length, block - filled)
            pieces.append((content, offset, take))
            filled += take
            offset += take
            length -= take
            if filled < block:
                continue
            previous, done = hash((previous, done, *pieces)), 1
            runs.append(KeyRun(position, position + 1, previous))
            position += 1
            pieces, filled = [], 0
        count = length // block
        if count:
            previous, done = hash((previous, done, content, offset)), count
            runs.append(KeyRun(position, position + count, previous))
            position += count
        if rest := length - count * block:
            pieces, filled = [(content, offset + count * block, rest)], rest
    return runs


def _of_one_span(span: Span, answer: int, block: int) -> list[KeyRun]:
    """What `key_runs` makes of the commonest prompt, without its loop."""
    content, offset, length = span
    content, answer = 2 * content + 1, 2 * answer + 1
    count = length // block
    rest = length - count * block
    runs: list[KeyRun] = []
    previous = _ROOT
    if count:
        previous = hash((_ROOT, 0, content, offset))
        runs.append(_made(KeyRun, (0, count, previous)))
    done, taken = count, 0
    if rest:  # a block with the end of the prompt and the beginning of the answer
        taken = block - rest
        previous = hash((previous, count, (content, offset + count * block, rest), (answer, 0, taken)))
        runs.append(_made(KeyRun, (count, count + 1, previous)))
        done, count = 1, count + 1
    after = hash((previous, done, answer, taken))
    runs.append(_made(KeyRun, (count, count + (_ENDLESS - taken) // block, after)))
    return runs


def merged(spans: Seq[Span]) -> Seq[Span]:
    """The same content with adjoining pieces of one span put together, since how it was cut must not matter."""
    if len(spans) < 2:
        return spans
    merged: list[Span] = [spans[0]]
    for span in spans[1:]:
        last = merged[-1]
        if last.content == span.content and last.offset + last.length == span.offset:
            merged[-1] = Span(span.content, last.offset, last.length + span.length)
        else:
            merged.append(span)
    return merged


def sequence_keys(row: int, sample: int, prompt: Seq[Span], block: int) -> list[KeyRun]:
    """Key runs of sample `sample` of request `row`. Only sample 0 is what later turns of a session refer to."""
    answer = answer_content(row)
    return key_runs(prompt, answer if sample == 0 else hash((answer, sample)) | (1 << 61), block)
