"""A router that sends a request to where its prompt has been computed before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sim.cluster.base import Incoming, Load, Rotation, Router
from workloads.traffic import Span


class Prefix(Router):
    """To the replica that was sent the longest prefix of this prompt, as long as loads are even (SGLang's `cache_aware`).

    The rule of SGLang's gateway, `sgl-model-gateway/src/policies/cache_aware.rs`, with the defaults of its command line:
    where loads are uneven (most - least > `balance_abs` and most > `balance_rel` × least requests unanswered), the least loaded
    replica; else, where more than `cache_threshold` of the prompt was sent somewhere before, the replica that has had most of
    it; else the least loaded. It knows only what it sent: of an answer nothing, and of what a replica has forgotten nothing
    either. Its memory of prompts is bounded to `tree_tokens` a replica, least recently used ones first forgotten. (The
    original counts characters, 2^26 of them.)
    """

    def __init__(
        self, replicas: int, seed: int, *, cache_threshold: float = 0.3, balance_abs: int = 64, balance_rel: float = 1.5,
        tree_tokens: int = 1 << 24,
    ) -> None:  # fmt: skip
        super().__init__(replicas, seed)
        self.cache_threshold, self.balance_abs, self.balance_rel = cache_threshold, balance_abs, balance_rel
        self._tree_tokens = tree_tokens
        self._sent = [SentPrompts(tree_tokens) for _ in range(replicas)]
        self._rotation = Rotation()

    def resize(self, replicas: int) -> None:
        """Forget those that go; new ones know nothing."""
        super().resize(replicas)
        del self._sent[replicas:]
        self._sent += [SentPrompts(self._tree_tokens) for _ in range(replicas - len(self._sent))]

    def route(self, request: Incoming, loads: Sequence[Load]) -> int:
        """By prefix or by load; the prompt is then known to be there."""
        requests = [load.requests for load in loads]
        least, most = min(requests), max(requests)
        place = -1
        if most - least <= self.balance_abs or most <= self.balance_rel * least:
            known = [sent.matched(request.prompt) for sent in self._sent]
            longest = max(known)
            if longest > self.cache_threshold * request.input_tokens:
                place = min((load, i) for i, load in enumerate(requests) if known[i] == longest)[1]
        if place < 0:
            place = self._rotation.least(requests)
        self._sent[place].add(request.prompt)
        return place


class SentPrompts:
    """A radix tree of the prompts that one replica was sent.

    A node is [tokens of the edge to it, its children, when it was last used]; children stand under the first token of their
    edge, which is a content and an offset in it.

    Args:
        limit: tokens in it beyond which the least recently used are forgotten, down to nine tenths of that.
    """

    def __init__(self, limit: int) -> None:
        self.tokens = 0
        self._limit = limit
        self._uses = 0
        self._root: dict[tuple[int, int], list[Any]] = {}

    def matched(self, prompt: Iterable[Span]) -> int:
        """Leading tokens of `prompt` that are known here."""
        node, found = self._root, 0
        for content, offset, length in prompt:
            while length:
                edge = node.get((content, offset))
                if edge is None:
                    return found
                part = min(length, edge[0])
                found, offset, length = found + part, offset + part, length - part
                node = edge[1] if part == edge[0] else {(content, offset): [edge[0] - part, edge[1], 0]}
        return found

    def add(self, prompt: Iterable[Span]) -> None:
        """Note a prompt."""
        self._uses += 1
        node, now = self._root, self._uses
        for content, offset, length in prompt:
            while length:
                edge = node.get((content, offset))
                if edge is None:
                    edge = node[content, offset] = [length, {}, now]
                    self.tokens += length
                elif length < edge[0]:  # it leaves, or ends, inside the edge: split it
                    edge[:] = [length, {(content, offset + length): [edge[0] - length, edge[1], edge[2]]}, now]
                edge[2] = now
                offset, length, node = offset + edge[0], length - edge[0], edge[1]
        if self.tokens > self._limit:
            self._forget()

    def _forget(self) -> None:
        """Drop what was not used for longest. A node was used whenever one below it was, so leaves go first."""
        nodes, stack = [], [self._root]
        while stack:
            for key, edge in (children := stack.pop()).items():
                nodes.append((edge[2], len(nodes), children, key))
                stack.append(edge[1])
        for _, _, children, key in sorted(nodes, key=lambda node: (node[0], -node[1])):
            if self.tokens <= 0.9 * self._limit:
                return
            self.tokens -= children.pop(key)[0]
