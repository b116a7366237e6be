"""Prompts that begin alike: system prompts, and trees of few-shot examples.

    prefix: {kind: system-prompts, count: 8, tokens: 600, zipf: 1.0}
    prefix: {kind: system-prompts, count: 2, tokens: 600, weights: [9, 1], share: 0.8}
    prefix: {kind: tree, levels: [{branches: 4, tokens: 512}, {branches: 16, tokens: 256}], zipf: 0.8}

A set of system prompts is a tree of one level. A request takes one branch at each level; what it shares with
another is the path that both took. Prefix tokens come in front of a request's own `input_tokens` and add to
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.errors import InputError
from workloads.streams import Streams
from workloads.synthetic.fields import Section
from workloads.synthetic.laws import Law, choose
from workloads.synthetic.lengths import Reading, parse_law

MOST_NODES = 2_000_000


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a tree: how many branches, how long they are, how often each is taken."""

    branches: int
    tokens: Law
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Shared beginnings.

    Attributes:
        levels: from the root down.
        share: part of the requests (sessions) that have a prefix at all.
    """

    levels: tuple[Level, ...]
    share: float = 1.0

    def draw(self, streams: Streams, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Prefixes of `size` requests.

        Returns:
            content ids (negative) and lengths, int64 of shape (size, levels); length 0 where a request has no
            prefix.
        """
        pick = streams.get("prefix.choice")
        has = streams.get("prefix.share").random(size) < self.share
        content = np.empty((size, len(self.levels)), np.int64)
        length = np.empty_like(content)
        node, first, nodes = np.zeros(size, np.int64), 0, 1
        for number, level in enumerate(self.levels):
            nodes *= level.branches
            tokens = level.tokens.tokens(streams.get("prefix.tokens", number), nodes)
            node = node * level.branches + choose(pick, np.array(level.weights), size)
            content[:, number] = -1 - (first + node)
            length[:, number] = np.where(has, tokens[node], 0)
            first += nodes
        return content, length

    def __str__(self) -> str:
        shape = " x ".join(str(level.branches) for level in self.levels)
        return f"{shape} shared beginnings" + (f" for {self.share:.0%} of the requests" if self.share < 1 else "")


def parse_prefix(section: Section | None, reading: Reading) -> PrefixTree | None:
    """The tree of a `prefix:` section."""
    if section is None:
        return None
    kind = section.word("kind", ["system-prompts", "tree"])
    share = section.number("share", 1.0, least=0, most=1)
    zipf = section.number("zipf", 0.0, least=0)
    if kind == "system-prompts":
        levels = [_level(section, section, "count", zipf, reading)]
    else:
        listed = section.value("levels")
        if not isinstance(listed, list | tuple) or not listed:
            raise section.error("levels", "expected a list of {branches, tokens}")
        levels = []
        for number, item in enumerate(listed):
            part = Section(item, f"{section.path('levels')}[{number}]")
            levels.append(_level(part, part, "branches", part.number("zipf", zipf, least=0), reading))
            part.done()
    section.done()
    nodes = np.cumprod([float(level.branches) for level in levels]).sum()
    if nodes > MOST_NODES:
        raise InputError(f"{section.key}: {nodes:,.0f} different prefixes", hint=f"at most {MOST_NODES:,}")
    return PrefixTree(tuple(levels), share)


def _level(section: Section, weighted: Section, count_key: str, zipf: float, reading: Reading) -> Level:
    branches = section.whole(count_key, least=1, most=MOST_NODES)
    tokens = parse_law(section.value("tokens"), section.path("tokens"), reading)
    weights = weighted.value("weights", None)
    if weights is None:
        return Level(branches, tokens, tuple(np.arange(1.0, branches + 1) ** -zipf))
    good = isinstance(weights, list | tuple) and len(weights) == branches
    if not good or not all(isinstance(w, int | float) and w >= 0 for w in weights) or not sum(weights) > 0:
        raise section.error("weights", f"expected {branches} numbers that are not negative, not {weights!r}")
    return Level(branches, tokens, tuple(float(w) for w in weights))
