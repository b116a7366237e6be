"""How much of the prompts has been seen before: what an infinite prefix cache would save.

Prompts and answers go, in order of rows, into a radix tree over spans; what a prompt has in common with the
tree is what a cache without a limit could serve. Exact to the token for any block size, since the first token
of a span says which content and where.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.traffic import Traffic, answer_content


@dataclass(frozen=True, slots=True)
class Sharing:
    """Potential of prefix caching, with an infinite cache.

    Attributes:
        block_size: tokens a block.
        blocks: all blocks of all prompts; the last of a prompt may be partial.
        seen_blocks: leading blocks that an earlier prompt (or its answer) had; a partial last block counts
            when the whole prompt was seen.
        tokens: all prompt tokens.
        seen_tokens: tokens of the seen blocks.
        requests: all requests.
        requests_hit: requests with at least one seen block.
    """

    block_size: int
    blocks: int
    seen_blocks: int
    tokens: int
    seen_tokens: int
    requests: int
    requests_hit: int

    @property
    def distinct_blocks(self) -> int:
        """Blocks that had to be computed once."""
        return self.blocks - self.seen_blocks

    @property
    def token_share(self) -> float:
        """Share of the prompt tokens that was seen before."""
        return self.seen_tokens / self.tokens

    @property
    def block_share(self) -> float:
        """Share of the prompt blocks that was seen before."""
        return self.seen_blocks / self.blocks

    @property
    def request_share(self) -> float:
        """Share of the requests with a hit."""
        return self.requests_hit / self.requests


def prefix_sharing(traffic: Traffic, block_size: int = 16) -> Sharing:
    """Potential of prefix caching at `block_size`; answers are taken to be cached too, in full length."""
    matched = matched_tokens(traffic)
    inputs = traffic.input_tokens
    blocks = -(-inputs // block_size)
    seen = np.where(matched >= inputs, blocks, matched // block_size)
    tokens = np.minimum(seen * block_size, inputs)
    return Sharing(
        block_size,
        int(blocks.sum()),
        int(seen.sum()),
        int(inputs.sum()),
        int(tokens.sum()),
        len(inputs),
        int((seen > 0).sum()),
    )


def matched_tokens(traffic: Traffic) -> np.ndarray:
    """For each row, how many leading tokens of its prompt an earlier prompt and answer had (int64)."""
    matched = np.zeros(len(traffic), np.int64)
    if traffic.spans is None:
        return matched
    root: dict = {}
    shared, quoted = _shared(traffic)
    start, output = traffic.spans.start.tolist(), traffic.output_tokens.tolist()
    columns = (traffic.spans.content, traffic.spans.offset, traffic.spans.length)
    every = list(zip(*(column.tolist() for column in columns), strict=True))
    for row in range(len(traffic)):
        part = range(start[row], start[row + 1])
        # behind what only this row has nothing can be found by another: the tree need not know it
        end = next((k for k in part if not shared[k]), part.stop)
        spans = every[part.start : end]
        if end == part.stop and quoted[row]:
            spans.append((answer_content(row), 0, output[row]))
        matched[row] = min(_insert(root, spans), int(traffic.input_tokens[row]))
    return matched


def _shared(traffic: Traffic) -> tuple[list[bool], list[bool]]:
    """For each span whether another row has its content, and for each row whether its answer is quoted."""
    assert traffic.spans is not None
    contents, which = np.unique(traffic.spans.content, return_inverse=True)
    row = np.repeat(np.arange(len(traffic)), np.diff(traffic.spans.start))
    pairs = np.unique(which * len(traffic) + row)  # a row that has a content twice counts once
    rows = np.bincount(pairs // len(traffic), minlength=len(contents))
    answers = (contents >= 0) & (contents & 1 == 1)  # the row that gave the answer has it too
    quoted = np.isin(2 * np.arange(len(traffic)) + 1, contents[answers])
    return ((rows > 1) | answers)[which].tolist(), quoted.tolist()


def _insert(node: dict, spans: list[tuple[int, int, int]]) -> int:
    """Add a sequence below `node`; how many of its leading tokens were there.

    A node maps the first token of each edge (content, offset) to [length of the edge, node below].
    """
    there, known = 0, True
    for content, offset, length in spans:
        while length:
            edge = node.get((content, offset))
            if edge is None:
                known = False
                edge = node[(content, offset)] = [length, {}]
            elif length < edge[0]:  # the sequence leaves, or ends, inside the edge: split it
                below = {(content, offset + length): [edge[0] - length, edge[1]]}
                edge[:] = [length, below]
            step = edge[0]
            there += step if known else 0
            node = edge[1]
            offset += step
            length -= step
    return there
