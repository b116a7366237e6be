"""Token-level KV: every token has a slot of its own, and a radix tree keeps prefixes (SGLang, LightLLM).

With slots of one token nothing is wasted inside blocks, and a prefix is shared to the token. Decoding sequences take one
slot each a step; which slot does not matter until somebody looks, so for them slots are only *counted*, and get their
numbers when the sequence is put in the tree, given back, or asked for by a real backend.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable

import numpy as np

from sim.engine.cohort import Cohort
from sim.engine.sequence import Sequence
from sim.kv.base import FOREVER, NO_HIT, Hit, KVUse
from sim.kv.radix_tree import Node, RadixTree, agree, cut
from workloads.traffic import Span, answer_content

_FEW = 4096


class RadixAllocator:
    """`capacity` slots of one token, and a tree of what they hold.

    Args:
        capacity: tokens in all.
        prefix_caching: keep and share what was computed; without it this is LightLLM's plain token pool.
        kept_states: how many recurrent states the tree may keep, for models that have them: a prefix can then only be hit as far
            as a state lies after it (SGLang's `MambaRadixCache`). 0 for other models.
    """

    block_size = 1

    def __init__(self, capacity: int, prefix_caching: bool = True, kept_states: int = 0) -> None:
        self.capacity = capacity
        self.roomy = capacity
        self.shares = prefix_caching
        self.tree = RadixTree()
        self._kept = kept_states
        self._states: dict[Node, None] = {}  # nodes with a state, the one used longest ago first
        self._free = array("i")
        self._free.frombytes(np.arange(capacity - 1, -1, -1, dtype=np.int32).tobytes())  # millions: not one by one
        self._counted = 0  # slots that cohort members own without knowing which
        self._grown_tick = -1  # tick at which the cohort's next tokens were last granted

    @property
    def available(self) -> int:
        return len(self._free) - self._counted + self.tree.evictable

    def footprint(self, tokens: int) -> int:
        return tokens

    def fits(self, seq: Sequence) -> str | None:
        if seq.limit - 1 <= self.capacity:
            return None
        return f"needs {seq.limit - 1:,} tokens of KV; the pool has {self.capacity:,}"

    def table(self, seq: Sequence) -> array[int]:
        """Slots of a sequence, in order; not to be changed."""
        self.settle(seq)
        return seq.blocks

    # --- prefixes

    def lookup(self, seq: Sequence) -> Hit:
        if not self.tree.size:
            return NO_HIT
        node, inside, length, idle = self.tree.match(self._content(seq, seq.known), seq.known - 1)
        if self._kept and length:
            return self._with_state(node, inside, length)
        return Hit(length, idle, (node, inside)) if length else NO_HIT

    def _with_state(self, node: Node, inside: int, length: int) -> Hit:
        """The part of a match up to the last token after which a state is kept."""
        if inside < len(node.slots):
            length, node = length - inside, node.parent
        while node is not self.tree.root and not node.state:
            length, node = length - len(node.slots), node.parent
        if not length:
            return NO_HIT
        path, idle = node, 0
        while path is not self.tree.root:
            idle += 0 if path.locks else len(path.slots)
            path = path.parent
        return Hit(length, idle, (node, len(node.slots)))

    def _keep_state(self, node: Node) -> None:
        """Keep the state after a node's last token, in the place of the one used longest ago if there is no other."""
        if node is self.tree.root:
            return
        node.state = True
        self._states.pop(node, None)
        self._states[node] = None
        while len(self._states) > self._kept:
            oldest = next(iter(self._states))
            del self._states[oldest]
            oldest.state = False

    def _content(self, seq: Sequence, tokens: int) -> list[Span]:
        """The first `tokens` tokens of a sequence as spans; a real backend overrides this to use token ids."""
        answer = tokens - seq.prompt_tokens
        if answer <= 0:
            return list(seq.prompt) if not answer else cut(list(seq.prompt), tokens)[0]
        content = answer_content(seq.row)
        if seq.sample:
            content = hash((content, seq.sample)) | (1 << 61)
        return [*seq.prompt, Span(content, 0, answer)]

    def names(self, seq: Sequence, low: int, high: int) -> list[Hashable]:
        return []

    def computed(self, seq: Sequence, tokens: int) -> None:
        if not self.shares or tokens <= seq.registered:
            return
        tree = self.tree
        self._number(seq, tokens)
        anchor = node = seq.node or tree.root
        done = seq.registered
        rest = cut(self._content(seq, tokens), done)[1]
        while rest:
            child = node.children.get((rest[0].content, rest[0].offset))
            if child is None:
                break
            common = agree(child.spans, rest)
            if common < len(child.slots):
                child = tree.split(child, common)
            # somebody else computed these tokens too: keep the tree's slots and give our own back
            self._free += seq.blocks[done : done + common]
            seq.blocks[done : done + common] = child.slots
            done += common
            node = child
            rest = cut(rest, common)[1]
        tree.lock(node, stop=anchor)
        if self._kept and rest and node.children:
            self._keep_state(node)  # where prompts part, as it passes
        if rest:
            node = tree.add(node, rest, seq.blocks[done:tokens])
        if self._kept:
            self._keep_state(node)
        seq.node = node
        seq.registered = tokens

    # --- growing

    def admit(self, seq: Sequence, hit: Hit, tokens: int) -> bool:
        need = tokens - hit.tokens
        if need + hit.idle > self.available:
            return False
        seq.blocks = array("i")
        if hit.tokens:
            node, inside = hit.handle
            if inside < len(node.slots):
                node = self.tree.split(node, inside)
            self.tree.lock(node)
            if self._kept:
                self._keep_state(node)
            seq.node = node
            seq.registered = hit.tokens
            seq.blocks = self.tree.path_slots(node)
        self._take(seq, need)
        return True

    def grow(self, seq: Sequence, tokens: int) -> bool:
        need = tokens - self._covered(seq)
        if need <= 0:
            return True
        if need > self.available:
            return False
        self._counted += need
        self._number(seq, tokens)
        return True

    def _take(self, seq: Sequence, count: int) -> None:
        if count <= 0:
            return
        free = self._free
        if (short := count + self._counted - len(free)) > 0:
            free += self.tree.evict(short)
        seq.blocks += free[-count:]
        del free[-count:]

    def _covered(self, seq: Sequence) -> int:
        """Tokens of a sequence that have a slot, numbered or not."""
        cohort = seq.cohort
        if cohort is None:
            return len(seq.blocks)
        granted = seq.known if self._grown_tick == cohort.tick else seq.known - 1
        return max(len(seq.blocks), granted)

    def _number(self, seq: Sequence, tokens: int) -> None:
        """Give numbers to counted slots, so that the first `tokens` tokens have one each."""
        count = tokens - len(seq.blocks)
        if count > 0:
            self._counted -= count
            self._take(seq, count)

    def grow_cohort(self, cohort: Cohort) -> bool:
        if self.available < cohort.size:
            return False
        self._count(cohort.size)
        self._grown_tick = cohort.tick
        return True

    def _count(self, slots: int) -> None:
        """Promise slots without saying which, evicting as many leaves as that takes."""
        self._counted += slots
        if (short := self._counted - len(self._free)) > 0:
            self._free += self.tree.evict(short)

    def crossing(self, cohort: Cohort) -> Iterable[Sequence]:
        return cohort.members

    def replay(self, cohort: Cohort, steps: int) -> None:
        self._count(cohort.size * steps)
        self._grown_tick = cohort.tick + steps

    def stable_steps(self, cohort: Cohort) -> int:
        return min(_FEW, 1 + self.available // cohort.size) if cohort.size else FOREVER

    # --- giving back and sharing

    def settle(self, seq: Sequence) -> None:
        self._number(seq, self._covered(seq))

    def release(self, seq: Sequence, keep: int = FOREVER) -> None:
        covered = self._covered(seq)
        if not covered:
            return
        if seq.cohort is not None and seq.cohort.size == 1:
            self._grown_tick = -1  # everybody to whom a token was granted is gone, and the counter may stand still
        self.computed(seq, min(seq.computed, covered, keep))
        self._counted -= covered - len(seq.blocks)
        self._free += seq.blocks[seq.registered :]
        if seq.node is not None:
            self.tree.unlock(seq.node)
        seq.node = None
        seq.blocks = array("i")
        seq.registered = 0

    def fork(self, parent: Sequence, child: Sequence) -> list[tuple[int, int]] | None:
        tokens, shared = parent.computed, parent.registered
        if tokens - shared > self.available:
            return None
        if parent.node is not None:
            self.tree.lock(parent.node)
            child.node = parent.node
        child.registered = shared
        child.blocks = parent.blocks[:shared]
        self._take(child, tokens - shared)
        return list(zip(parent.blocks[shared:tokens], child.blocks[shared:], strict=True))

    # --- accounts

    def held(self, stored: int) -> int:
        return stored

    def use(self, stored: int) -> KVUse:
        free = len(self._free) - self._counted
        cached = self.tree.evictable
        return KVUse(self.capacity, self.capacity - free - cached, cached, 0, 0, free)

    def check(self, sequences: Iterable[Sequence]) -> None:
        sequences = list(sequences)
        locks: dict[object, int] = {}
        private: list[int] = []
        counted = 0
        for seq in sequences:
            covered = self._covered(seq)
            assert covered >= seq.computed, f"{seq} has KV outside its slots"
            counted += covered - len(seq.blocks)
            private += seq.blocks[seq.registered :]
            node = seq.node
            assert self.tree.path_slots(node or self.tree.root) == seq.blocks[: seq.registered], (
                f"{seq} strays from the tree"
            )
            while node is not None and node is not self.tree.root:
                locks[node] = locks.get(node, 0) + 1
                node = node.parent
        held = [slot for node in self.tree.nodes() for slot in node.slots]
        everything = held + private + list(self._free)
        assert len(set(everything)) == len(everything), "a slot is in two places"
        assert len(everything) == self.capacity, f"{self.capacity - len(everything)} slots leaked"
        assert counted == self._counted, f"{counted} slots are owned uncounted, {self._counted} are noted"
        assert len(held) == self.tree.size, "the tree's size is miscounted"
        for node in self.tree.nodes():
            assert node.locks == locks.get(node, 0), "locks do not match the sequences that use a node"
        idle = sum(len(node.slots) for node in self.tree.nodes() if not node.locks)
        assert idle == self.tree.evictable, "evictable tokens are miscounted"
