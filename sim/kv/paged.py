"""Paged KV: fixed blocks, block tables, reference counts, copy-on-write, and a hash-chain prefix cache.

Follows vLLM v1's block pool (`vllm/v1/core/block_pool.py`): full blocks are named by the chain of their contents, a freed
block keeps its contents until it is used again in LRU order, a sequence's last blocks go before its first, and a hit may
take a free block back. TensorRT-LLM's block reuse behaves the same at this level with blocks of 32.

Two things differ, and neither can be seen from outside but in a corner. Blocks filled by decoding are registered when
their sequence gives them back, not while it runs: no other prompt can contain an answer that is still being made. And when
two sequences compute the same content at once, the blocks of the second are not registered beside the first's.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable

from sim.engine.cohort import Cohort
from sim.engine.sequence import NO_BLOCKS, Sequence
from sim.kv.base import FOREVER, NO_HIT, Hit, KVUse
from sim.kv.block_pool import BlockPool, PlainPool, Run
from sim.kv.keys import KeyRun, sequence_keys

_FEW = 4096
"""Stretches longer than this many steps are cut; looking further ahead would cost more than it saves."""


class PagedAllocator:
    """Blocks of `block_size` tokens in `capacity // block_size` places.

    A sequence's table is its `runs` (leading parts of runs that others may use too), then its own `blocks`.

    Args:
        capacity: tokens in all; what does not fill a block is left out.
        block_size: tokens a block.
        prefix_caching: keep and share what was computed.
        state_blocks: blocks that every sequence takes besides those of its tokens, for recurrent states.
    """

    def __init__(self, capacity: int, block_size: int = 16, prefix_caching: bool = True, state_blocks: int = 0) -> None:
        self.block_size = block_size
        self.total = capacity // block_size
        self.capacity = self.total * block_size
        self.shares = prefix_caching
        self.state_blocks = state_blocks
        self.roomy = self.capacity - state_blocks * block_size
        self._states: dict[Sequence, array[int]] = {}
        self.pool = BlockPool(self.total) if prefix_caching else PlainPool(self.total)
        self._held = 0  # sum of the lengths of all block tables
        self._spare = array("i")  # taken for decoding sequences, not yet assigned to one
        self._grown_tick = -1  # counter at which the cohort's next tokens were last granted

    @property
    def available(self) -> int:
        return self.pool.count * self.block_size

    def footprint(self, tokens: int) -> int:
        return (-(-tokens // self.block_size) + self.state_blocks) * self.block_size

    def fits(self, seq: Sequence) -> str | None:
        if seq.limit <= self.roomy:
            return None
        need = self.footprint(seq.limit - 1)
        if need <= self.capacity:
            return None
        return f"needs {need:,} tokens of KV for its {seq.limit:,} tokens; the pool has {self.capacity:,}"

    def table(self, seq: Sequence) -> list[int]:
        """Block ids of a sequence, in order."""
        self._number(seq)
        blocks: list[int] = []
        for run, depth in seq.runs:
            blocks += run.blocks[:depth]
        return [*blocks, *seq.blocks]

    # --- prefixes

    def lookup(self, seq: Sequence) -> Hit:
        index = self.pool.index
        if not index:
            return NO_HIT
        keys = seq.keys
        if keys is None:
            keys = seq.keys = self.keys_of(seq)
        run = index.get(keys[0][2])
        if run is None:
            return NO_HIT
        most = (seq._known - 1) // self.block_size
        hits: list[tuple[Run, int]] = []
        idle = reach = 0
        last = None
        for _, end, key in keys:
            run = index.get(key)
            while run is not None:
                before = reach - run.first
                depth = min(run.content_end(before), end - run.first, most - run.first)
                if depth <= before:
                    break
                if run is last:  # two contents in one run are one hit
                    hits[-1] = (run, depth)
                else:
                    hits.append((run, depth))
                    last = run
                idle += max(0, depth - max(run.used, before))
                reach = run.first + depth
                if reach == end:
                    break
                run = index.get((key, reach))
            if reach < end:
                break
        if not hits:
            return NO_HIT
        return Hit(reach * self.block_size, idle * self.block_size, hits)

    def keys_of(self, seq: Sequence) -> list[KeyRun]:
        """Key runs of a sequence; a real backend overrides this to hash token ids."""
        return sequence_keys(seq.row, seq.sample, seq.prompt, self.block_size)

    def names(self, seq: Sequence, low: int, high: int) -> list[Hashable]:
        if not self.shares:
            return []
        if seq.keys is None:
            seq.keys = self.keys_of(seq)
        low, high = low // self.block_size, high // self.block_size
        return [
            (key, block - first) for first, end, key in seq.keys for block in range(max(low, first), min(high, end))
        ]

    def computed(self, seq: Sequence, tokens: int) -> None:
        if self.shares and (full := tokens // self.block_size) > seq.registered:
            self._register(seq, full)

    def _register(self, seq: Sequence, full: int) -> None:
        """Name what its first `full` blocks hold, so that others may hit them."""
        keys = seq.keys
        if keys is None:
            keys = seq.keys = self.keys_of(seq)
        own = seq.blocks
        index = self.pool.index
        done = seq.registered
        if not done:
            _, end, key = keys[0]
            if full <= end and key not in index:  # the common case: a prompt of its own
                if full < len(own):
                    seq.blocks = own[full:]
                    del own[full:]
                else:
                    seq.blocks = NO_BLOCKS
                run = index[key] = Run(own, key)
                seq.runs = [(run, full)]
                seq.registered = full
                return
        runs = seq.runs if done else []
        for first, end, key in keys:
            if end <= done:
                continue
            if first >= full:
                break
            count = (end if end < full else full) - done
            if count == len(own):
                part, own = own, NO_BLOCKS
            else:
                part = own[:count]
                del own[:count]
            last, depth = runs[-1] if runs else (None, 0)
            follows = last is not None and last.key is not None
            name = key if done == first else (key, done)
            if name in index or (first < done and not (follows and depth == last.content_end(depth - 1))):
                runs.append((Run(part, None), count))  # somebody else computed the same content first
            elif follows and depth == len(last.blocks):
                if first == done:
                    index[key] = last
                    last.extend(part, key)
                else:
                    last.extend(part, None)
                runs[-1] = (last, depth + count)
            else:
                run = index[name] = Run(part, name)
                run.first = done
                runs.append((run, count))
            done += count
        seq.blocks = own
        seq.runs = runs
        seq.registered = done

    # --- growing

    def admit(self, seq: Sequence, hit: Hit, tokens: int) -> bool:
        pool = self.pool
        size = self.block_size
        held = need = -(-tokens // size)
        if hit.tokens:
            seq.registered = hit.tokens // size
            need -= seq.registered
            if need + self.state_blocks + hit.idle // size > pool.count:
                seq.registered = 0
                return False
            for run, depth in hit.handle:
                pool.join(run, depth)
            seq.runs = list(hit.handle)
        elif need + self.state_blocks > pool.count:
            return False
        seq.blocks = pool.take(need) if need > 0 else NO_BLOCKS
        if self.state_blocks:
            self._states[seq] = pool.take(self.state_blocks)
        self._held += held
        return True

    def grow(self, seq: Sequence, tokens: int) -> bool:
        need = -(-tokens // self.block_size) - self._blocks(seq)
        if need <= 0:
            return True
        if need > self.pool.count:
            return False
        self._spare += self.pool.take(need)
        self._held += need
        self._assign(seq, -(-tokens // self.block_size) - seq.registered - len(seq.blocks))
        return True

    def _blocks(self, seq: Sequence) -> int:
        """How many blocks a sequence has, assigned or not."""
        cohort = seq.cohort
        tokens = seq._computed if cohort is None else seq._base + cohort.tick - (self._grown_tick != cohort.tick)
        return max(-(-tokens // self.block_size), seq.registered + len(seq.blocks))

    def _assign(self, seq: Sequence, count: int) -> None:
        """Say which its next `count` blocks are; those of decoding sequences are only counted until somebody asks."""
        part = self._spare[-count:]
        del self._spare[-count:]
        if seq.blocks:
            seq.blocks += part
        else:
            seq.blocks = part

    def grow_cohort(self, cohort: Cohort) -> bool:
        need = len(cohort.crossing())
        if need:
            if need > self.pool.count:
                return False
            self._spare += self.pool.take(need)
            self._held += need
        self._grown_tick = cohort.tick
        return True

    def crossing(self, cohort: Cohort) -> Iterable[Sequence]:
        return cohort.crossing()

    def replay(self, cohort: Cohort, steps: int) -> None:
        need = cohort.crossings(1, steps)
        if need:
            self._spare += self.pool.take(need)
            self._held += need
        self._grown_tick = cohort.tick + steps

    def stable_steps(self, cohort: Cohort) -> int:
        size = cohort.size
        if not size:
            return FOREVER
        free = self.pool.count
        block = self.block_size
        laps = free // size
        if laps * block >= _FEW:
            return _FEW
        free -= laps * size
        ahead = laps * block
        for step in range(1, block + 1):
            free -= len(cohort.crossing(ahead + step))
            if free < 0:
                return ahead + step
        return ahead + block

    # --- giving back and sharing

    def settle(self, seq: Sequence) -> None:
        cohort = seq.cohort
        if cohort is None or self._grown_tick == cohort.tick:  # else how much it has is told by what it has computed
            self._number(seq)

    def _number(self, seq: Sequence) -> None:
        """Say which all its blocks are."""
        missing = self._blocks(seq) - seq.registered - len(seq.blocks)
        if missing > 0:
            self._assign(seq, missing)

    def release(self, seq: Sequence, keep: int = FOREVER) -> None:
        pool, cohort, size = self.pool, seq.cohort, self.block_size
        assigned = seq.registered + len(seq.blocks)
        if cohort is None:
            computed = granted = seq._computed
        else:
            computed = granted = seq._base + cohort.tick - 1
            if self._grown_tick == cohort.tick:
                granted += 1
                if cohort.size == 1:  # the only one to whom a token was granted is gone; the counter may stand still
                    self._grown_tick = -1
        missing = -(-granted // size) - assigned
        if missing > 0:
            assigned += missing
            self._assign(seq, missing)
        self._held -= assigned
        if self.shares and (full := (keep if keep < computed else computed) // size) > seq.registered:
            self._register(seq, full)
        loose, runs = seq.blocks, seq.runs
        if loose:
            seq.blocks = NO_BLOCKS
        if runs:
            seq.runs = ()
            seq.registered = 0
            for run, depth in reversed(runs):
                pool.give_back(run, depth, loose)
                loose = None
        elif loose:
            pool.put(loose)
        if states := self._states.pop(seq, None):
            pool.put(states)

    def fork(self, parent: Sequence, child: Sequence) -> list[tuple[int, int]] | None:
        self._number(parent)
        full = parent.computed // self.block_size
        partial = parent.computed % self.block_size
        if self.pool.count < bool(partial) + self.state_blocks:
            return None
        own = full - parent.registered
        if own > 0:  # so far the parent's alone: make it a run that two can use
            parent.runs = [*parent.runs, (Run(parent.blocks[:own], None), own)]
            del parent.blocks[:own]
            parent.registered = full
        for run, depth in parent.runs:
            self.pool.join(run, depth)
        child.runs = list(parent.runs)
        child.registered = parent.registered
        child.blocks = NO_BLOCKS
        copies = []
        if partial:
            child.blocks = self.pool.take(1)
            copies.append((parent.blocks[0], child.blocks[0]))
        if self.state_blocks:
            self._states[child] = self.pool.take(self.state_blocks)
            copies += zip(self._states[parent], self._states[child], strict=True)
        self._held += child.registered + len(child.blocks)
        return copies

    # --- accounts

    def held(self, stored: int) -> int:
        return (self._held + self.state_blocks * len(self._states)) * self.block_size

    def use(self, stored: int) -> KVUse:
        block = self.block_size
        allocated = self._held * block - stored
        cached = self.pool.cached * block
        free = self.pool.count * block
        return KVUse(self.capacity, self.capacity - free - allocated, cached, allocated, 0, free - cached)

    def check(self, sequences: Iterable[Sequence]) -> None:
        depths: dict[Run, dict[int, int]] = {}
        owned: set[int] = set()
        held = private = states = 0
        for seq in sequences:
            table = self.table(seq)
            owned.update(self._states.get(seq, ()))
            assert len(self._states.get(seq, ())) == self.state_blocks, f"{seq} has another number of states"
            states += self.state_blocks
            held += len(table)
            assert len(table) * self.block_size >= seq.computed, f"{seq} has KV outside its blocks"
            assert len(set(table)) == len(table), f"{seq} has a block twice"
            assert seq.registered == sum(depth for _, depth in seq.runs), f"{seq} miscounts its shared blocks"
            private += len(seq.blocks)
            owned.update(table)
            for run, depth in seq.runs:
                users = depths.setdefault(run, {})
                users[depth] = users.get(depth, 0) + 1
        assert not self._spare, f"{len(self._spare)} blocks were taken for nobody"
        free = self.pool.free_blocks()
        shared = {block for run, users in depths.items() for block in run.blocks[: max(users)]}
        assert len(shared) + private + states == len(owned), (
            "a block has an owner that its reference count does not know"
        )
        assert states == self.state_blocks * len(self._states), "states are kept for nobody"
        assert held == self._held, f"block tables hold {held} blocks, the allocator counts {self._held}"
        assert len(free) == self.pool.count, f"{len(free)} blocks are free, {self.pool.count} are counted"
        assert len(set(free)) == len(free), "a block is free twice"
        assert not owned & set(free), "a block in use is free"
        assert len(owned) + len(free) == self.total, f"{self.total - len(owned) - len(free)} blocks leaked"
        for run, users in depths.items():
            assert run.users == sum(users.values()), "reference counts do not match the block tables"
            assert (run.depths or {run.used: 1}) == users, "a run's shared depths do not match the block tables"
        for key, run in self.pool.index.items():
            named = {run.key: 0, **{tail: before for before, tail in run.tails}}
            assert named.get(key, FOREVER) < len(run.blocks), "the index points to blocks that are gone"
            assert run in depths or not run.users, "a cached run has users that no table shows"
