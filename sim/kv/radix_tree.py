"""A radix tree over tokens: which prefix lies in which slots (SGLang's RadixAttention).

A node holds a run of tokens, as spans, and the slot of each. Paths from the root spell prefixes. A node is locked while a
sequence uses it or anything below; unlocked leaves can be evicted, least recently used first. Follows SGLang's
`python/sglang/srt/mem_cache/radix_cache.py` with pages of one token.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heappop, heappush

from workloads.traffic import Span


class Node:
    """A run of tokens and their slots. `stamp` is when it was last used, on the tree's own clock; `state`, whether the recurrent
    state after its last token is kept."""

    __slots__ = ("children", "locks", "parent", "serial", "slots", "spans", "stamp", "state")

    def __init__(self, spans: list[Span], slots: array[int], parent: Node | None, stamp: int, serial: int) -> None:
        self.spans = spans
        self.slots = slots
        self.parent = parent
        self.children: dict[tuple[int, int], Node] = {}
        self.locks = 0
        self.stamp = stamp
        self.serial = serial
        self.state = False


def cut(spans: list[Span], at: int) -> tuple[list[Span], list[Span]]:
    """The first `at` tokens of `spans`, and the rest."""
    for index, (content, offset, length) in enumerate(spans):
        if at < length:
            head = spans[:index] + ([Span(content, offset, at)] if at else [])
            return head, [Span(content, offset + at, length - at), *spans[index + 1 :]]
        at -= length
    return spans, []


def agree(a: list[Span], b: list[Span]) -> int:
    """How many leading tokens two span lists have in common, however each is cut."""
    i = j = done_a = done_b = common = 0
    while i < len(a) and j < len(b):
        content, offset, length = a[i]
        other, start, size = b[j]
        if content != other or offset + done_a != start + done_b:
            break
        step = min(length - done_a, size - done_b)
        common += step
        done_a += step
        done_b += step
        if done_a == length:
            i, done_a = i + 1, 0
        if done_b == size:
            j, done_b = j + 1, 0
    return common


class RadixTree:
    """All cached prefixes.

    Attributes:
        evictable: tokens in nodes that nobody uses.
        size: tokens in all nodes.
    """

    def __init__(self) -> None:
        self._clock = 0
        self._serial = 0
        self.root = Node([], array("i"), None, 0, 0)
        self.root.locks = 1
        self.evictable = 0
        self.size = 0
        self._leaves: list[tuple[int, int, Node]] = []  # heap of (stamp, serial, node), checked when popped

    def match(self, spans: list[Span], limit: int) -> tuple[Node, int, int, int]:
        """Walk down as far as `spans`, at most `limit` tokens, agree.

        Returns:
            The deepest node touched, how many of its tokens agree, the whole length, and how much of it is unlocked.
        """
        node, length, idle, inside = self.root, 0, 0, 0
        while spans and length < limit:
            child = node.children.get((spans[0].content, spans[0].offset))
            if child is None:
                break
            common = min(agree(child.spans, spans), limit - length)
            node, inside = child, common
            length += common
            if not child.locks:
                idle += common
            if common < len(child.slots):
                break
            spans = cut(spans, common)[1]
        return node, inside, length, idle

    def split(self, node: Node, at: int) -> Node:
        """Cut a node in two; the new upper one, with the first `at` tokens, takes over its locks and stamp."""
        head, tail = cut(node.spans, at)
        upper = self._node(head, node.slots[:at], node.parent, node.stamp)
        upper.locks = node.locks
        upper.children[tail[0].content, tail[0].offset] = node
        node.parent.children[head[0].content, head[0].offset] = upper
        node.spans, node.slots, node.parent = tail, node.slots[at:], upper
        return upper

    def add(self, parent: Node, spans: list[Span], slots: array[int]) -> Node:
        """Hang a new, locked leaf with these tokens under `parent`."""
        self._clock += 1
        node = self._node(spans, slots, parent, self._clock)
        node.locks = 1
        parent.children[spans[0].content, spans[0].offset] = node
        self.size += len(slots)
        return node

    def _node(self, spans: list[Span], slots: array[int], parent: Node | None, stamp: int) -> Node:
        self._serial += 1
        return Node(spans, slots, parent, stamp, self._serial)

    def lock(self, node: Node, stop: Node | None = None) -> None:
        """Use a node and all above it, up to but without `stop` (the root by default)."""
        self._clock += 1
        stop = stop or self.root
        while node is not stop:
            if not node.locks:
                self.evictable -= len(node.slots)
            node.locks += 1
            node.stamp = self._clock
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Stop using a node and all above it; this is when they were last used."""
        self._clock += 1
        while node is not self.root:
            node.stamp = self._clock
            node.locks -= 1
            if not node.locks:
                self.evictable += len(node.slots)
                if not node.children:
                    heappush(self._leaves, (node.stamp, node.serial, node))
            node = node.parent

    def evict(self, tokens: int) -> array[int]:
        """Drop whole leaves, least recently used first, until at least `tokens` tokens are free; their slots."""
        slots = array("i")
        leaves = self._leaves
        while len(slots) < tokens and leaves:
            stamp, _, node = heappop(leaves)
            if node.locks or node.children or node.stamp != stamp or node.parent is None:
                continue
            slots += node.slots
            parent = node.parent
            first = node.spans[0]
            del parent.children[first.content, first.offset]
            node.parent = None
            if not parent.locks and not parent.children:
                heappush(leaves, (parent.stamp, parent.serial, parent))
        self.evictable -= len(slots)
        self.size -= len(slots)
        return slots

    def path_slots(self, node: Node) -> array[int]:
        """Slots of all tokens from the root to the end of `node`."""
        parts = []
        while node is not self.root:
            parts.append(node.slots)
            node = node.parent
        slots = array("i")
        for part in reversed(parts):
            slots += part
        return slots

    def nodes(self) -> Iterator[Node]:
        """Every node but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            stack += node.children.values()
            yield node
