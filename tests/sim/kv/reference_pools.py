"""KV memory written the plain way: token by token, block by block, every question answered by looking at everything.

`BlockReference` is vLLM's block pool (`vllm/v1/core/block_pool.py`): a queue of free blocks in LRU order, a table from the
content of a prefix to a block. It follows the two differences that `sim.kv.paged` states: blocks filled by decoding are named
when their sequence gives them back, and content that is in the table already is not entered again. `TreeReference` is SGLang's
radix tree with pages of one token.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict

from sim.engine.sequence import Sequence
from workloads.traffic import answer_content


def content(seq: Sequence, tokens: int) -> list[tuple]:
    """The first tokens of a sequence, each with a name of its own."""
    named = [(span.content, span.offset + k) for span in seq.prompt for k in range(span.length)]
    answer = answer_content(seq.row) if seq.sample == 0 else (answer_content(seq.row), seq.sample)
    return (named + [(answer, k) for k in range(tokens)])[:tokens]


class BlockReference:
    """Blocks one by one."""

    def __init__(self, capacity: int, block: int, shares: bool) -> None:
        self.block, self.shares = block, shares
        self.queue: OrderedDict[int, None] = OrderedDict((number, None) for number in range(capacity // block))
        self.named: dict[tuple, int] = {}
        self.name_of: dict[int, tuple] = {}
        self.count: dict[int, int] = {}
        self.table: dict[Sequence, list[int]] = {}
        self.done: dict[Sequence, int] = {}  # blocks whose naming is settled

    @property
    def free(self) -> int:
        return len(self.queue) * self.block

    @property
    def cached(self) -> int:
        return sum(number in self.name_of for number in self.queue) * self.block

    def _name(self, seq: Sequence, index: int) -> tuple:
        return tuple(content(seq, (index + 1) * self.block))

    def lookup(self, seq: Sequence) -> int:
        blocks = 0
        while blocks < (seq.known - 1) // self.block and self._name(seq, blocks) in self.named:
            blocks += 1
        return blocks * self.block

    def admit(self, seq: Sequence, hit: int, tokens: int) -> bool:
        hits = [self.named[self._name(seq, index)] for index in range(hit // self.block)]
        need = -(-tokens // self.block) - len(hits)
        if need > sum(number not in hits for number in self.queue):
            return False
        for number in hits:
            self.queue.pop(number, None)
            self.count[number] = self.count.get(number, 0) + 1
        self.table[seq] = hits + [self._take() for _ in range(need)]
        self.done[seq] = len(hits)
        return True

    def _take(self) -> int:
        number, _ = self.queue.popitem(last=False)
        if number in self.name_of:
            del self.named[self.name_of.pop(number)]
        self.count[number] = 1
        return number

    def grow(self, seq: Sequence, tokens: int) -> bool:
        need = max(0, -(-tokens // self.block) - len(self.table[seq]))
        if need > len(self.queue):
            return False
        self.table[seq] += [self._take() for _ in range(need)]
        return True

    def grow_all(self, sequences: list[Sequence]) -> bool:
        needy = [seq for seq in sequences if seq.known > len(self.table[seq]) * self.block]
        if len(needy) > len(self.queue):
            return False
        return all(self.grow(seq, seq.known) for seq in needy)

    def computed(self, seq: Sequence, tokens: int) -> None:
        if not self.shares:
            return
        table = self.table[seq]
        for index in range(self.done[seq], tokens // self.block):
            name = self._name(seq, index)
            own_chain = self._begins_run(seq, index) or self.name_of.get(table[index - 1]) is not None
            if name not in self.named and own_chain:
                self.named[name] = table[index]
                self.name_of[table[index]] = name
            self.done[seq] = index + 1

    def _begins_run(self, seq: Sequence, index: int) -> bool:
        """Whether a block does not merely go on with the content that the block before it lies wholly inside."""
        if index == 0:
            return True
        two = content(seq, (index + 1) * self.block)[(index - 1) * self.block :]
        return any(b[0] != a[0] or b[1] != a[1] + 1 for a, b in itertools.pairwise(two))

    def release(self, seq: Sequence) -> None:
        self.computed(seq, seq.computed)
        for number in reversed(self.table.pop(seq)):
            self.count[number] -= 1
            if not self.count[number]:
                self.queue[number] = None

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        full, rest = divmod(parent.computed, self.block)
        if rest and not self.queue:
            return False
        shared = self.table[parent][:full]
        for number in shared:
            self.count[number] += 1
        self.table[child] = shared + ([self._take()] if rest else [])
        self.done[parent] = self.done[child] = full
        return True


class Leaf:
    """A node of the tree: some tokens after those of its parent."""

    def __init__(self, tokens: list[tuple], parent: Leaf | None, stamp: int) -> None:
        self.tokens, self.parent, self.stamp = tokens, parent, stamp
        self.children: list[Leaf] = []


class TreeReference:
    """Tokens one by one."""

    def __init__(self, capacity: int, shares: bool) -> None:
        self.capacity, self.shares = capacity, shares
        self.root = Leaf([], None, 0)
        self.clock = 0
        self.anchor: dict[Sequence, Leaf] = {}  # the deepest node it uses
        self.private: dict[Sequence, int] = {}  # tokens it holds outside the tree

    def nodes(self) -> list[Leaf]:
        found, stack = [], [self.root]
        while stack:
            node = stack.pop()
            found.append(node)
            stack += node.children
        return found[1:]

    def path(self, node: Leaf) -> list[Leaf]:
        found = []
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def used(self) -> set[Leaf]:
        return {node for anchor in self.anchor.values() for node in self.path(anchor)}

    @property
    def cached(self) -> int:
        used = self.used()
        return sum(len(node.tokens) for node in self.nodes() if node not in used)

    @property
    def empty(self) -> int:
        return self.capacity - sum(len(node.tokens) for node in self.nodes()) - sum(self.private.values())

    @property
    def free(self) -> int:
        return self.empty + self.cached

    def _walk(self, tokens: list[tuple]) -> tuple[Leaf, int, int]:
        """The deepest node that agrees, how far into it, and how far in all."""
        node, inside, length = self.root, 0, 0
        while True:
            child = next((c for c in node.children if tokens[length : length + 1] == c.tokens[:1]), None)
            if child is None:
                return node, inside, length
            inside = 0
            while inside < len(child.tokens) and tokens[length : length + 1] == child.tokens[inside : inside + 1]:
                inside += 1
                length += 1
            node = child
            if inside < len(child.tokens):
                return node, inside, length

    def lookup(self, seq: Sequence) -> int:
        return self._walk(content(seq, seq.known - 1))[2]

    def _split(self, node: Leaf, at: int) -> Leaf:
        upper = Leaf(node.tokens[:at], node.parent, node.stamp)
        upper.children = [node]
        node.parent.children[node.parent.children.index(node)] = upper
        node.tokens, node.parent = node.tokens[at:], upper
        return upper

    def _touch(self, node: Leaf) -> None:
        self.clock += 1
        for each in self.path(node):
            each.stamp = self.clock

    def _room(self, tokens: int) -> bool:
        """Make so many slots empty, dropping the leaves that were used longest ago."""
        if tokens > self.free:
            return False
        while self.empty < tokens:
            used = self.used()
            leaves = [node for node in self.nodes() if not node.children and node not in used]
            oldest = min(leaves, key=lambda node: node.stamp)
            oldest.parent.children.remove(oldest)
        return True

    def admit(self, seq: Sequence, hit: int, tokens: int) -> bool:
        node, inside, _ = self._walk(content(seq, hit))
        mine = set(self.path(node))
        idle = hit - sum(len(n.tokens) for n in mine & self.used() if n is not node)
        idle -= inside if node in self.used() else 0
        if tokens - hit + idle > self.free:
            return False
        if hit and inside < len(node.tokens):
            node = self._split(node, inside)
        if hit:
            self.anchor[seq] = node
            self._touch(node)
        assert self._room(tokens - hit)
        self.private[seq] = tokens - hit
        return True

    def _shared(self, seq: Sequence) -> int:
        return sum(len(node.tokens) for node in self.path(self.anchor.get(seq, self.root)))

    def grow(self, seq: Sequence, tokens: int) -> bool:
        need = max(0, tokens - self._shared(seq) - self.private[seq])
        if not self._room(need):
            return False
        self.private[seq] += need
        return True

    def grow_all(self, sequences: list[Sequence]) -> bool:
        if len(sequences) > self.free:
            return False
        return all(self.grow(seq, seq.known) for seq in sequences)

    def computed(self, seq: Sequence, tokens: int) -> None:
        already = self._shared(seq)
        if not self.shares or tokens <= already:
            return
        words = content(seq, tokens)
        node, inside, length = self._walk(words)
        if inside < len(node.tokens):
            node = self._split(node, inside)
        self._touch(node)
        if length < tokens:
            self.clock += 1
            leaf = Leaf(words[length:], node, self.clock)
            node.children.append(leaf)
            node = leaf
        self.anchor[seq] = node
        self.private[seq] -= tokens - already

    def release(self, seq: Sequence) -> None:
        self.computed(seq, seq.computed)
        if seq in self.anchor:
            self._touch(self.anchor.pop(seq))
        del self.private[seq]

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        own = parent.computed - self._shared(parent)
        if not self._room(own):
            return False
        if parent in self.anchor:
            self.anchor[child] = self.anchor[parent]
            self._touch(self.anchor[child])
        self.private[child] = own
        return True
