"""Blocks in runs: who owns them, in which order free ones are used again, and which prefix lies where.

vLLM keeps one object a block: a free block stays in a list in LRU order with its contents, an allocation takes the head, a hit
takes its block out of the middle. Handling blocks one by one is what makes simulators slow, so the same order is kept here for
*runs*: blocks that hold successive pieces of a prefix. Of a run, whoever shares it uses a leading part, and what is freed
or evicted goes from its end, so a run is a list of blocks and a few numbers:

    blocks   0 ........ used ........ len(blocks)
             in use     free, newest first: one place in the queue, or several if it was freed in parts

Taking, freeing and hitting cost a few operations a run, whatever its length.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable


class Run:
    """Blocks with successive pieces of one prefix.

    Attributes:
        blocks: block ids, in order of content; an array, so that moving thousands touches no objects.
        key: name of the first block in the index; None: nobody can hit it.
        first: how many blocks of the prefix come before it.
        tails: further contents that begin in it: (blocks of the run before that content, its name in the index), in order.
        used: leading blocks that somebody uses.
        users: how many use any.
        depths: if they are more than one or use different parts: leading blocks used → number of such users; else None.
        parts: free parts with a place of their own in the queue, from the end of the run to its front. The first part to
            become free has the run itself for a place.
        loose: blocks that were given back with that first part and hold nothing worth keeping; they go before it.
    """

    __slots__ = ("blocks", "depths", "first", "key", "loose", "parts", "tails", "used", "users")

    def __init__(self, blocks: array[int], key: Hashable | None) -> None:
        self.blocks = blocks
        self.key = key
        self.used = len(blocks)
        self.users = 1
        self.first = 0
        self.depths: dict[int, int] | None = None
        self.tails: list[tuple[int, Hashable]] | tuple[()] = ()
        self.parts: list[Part] | tuple[()] = ()
        self.loose: array[int] | None = None

    def content_end(self, depth: int) -> int:
        """Up to which block the content reaches that its block `depth` belongs to."""
        if self.tails:
            after = bisect_left(self.tails, (depth + 1,))
            if after < len(self.tails):
                return self.tails[after][0]
        return len(self.blocks)

    def extend(self, blocks: array[int], tail: Hashable | None) -> None:
        """A user of the whole run goes on with `blocks`; with another content, named `tail`, if that is not None."""
        before = self.used
        if tail is not None:
            if self.tails:
                self.tails.append((before, tail))
            else:
                self.tails = [(before, tail)]
        self.blocks += blocks
        self.used = len(self.blocks)
        if self.depths is not None:
            self._leave(before)
            self.depths[self.used] = 1

    def _leave(self, depth: int) -> None:
        depths = self.depths
        if depths[depth] == 1:
            del depths[depth]
        else:
            depths[depth] -= 1

    def add_user(self, depth: int) -> None:
        """Somebody else uses the first `depth` blocks too."""
        if self.users:
            if self.depths is None:
                self.depths = {self.used: 1}
            self.depths[depth] = self.depths.get(depth, 0) + 1
        self.users += 1

    def drop_user(self, depth: int) -> int:
        """One of several users, of the first `depth` blocks, is gone; how many leading blocks are still used."""
        self.users -= 1
        self._leave(depth)
        if not self.users:
            self.depths = None
            return 0
        return max(self.depths)


class Part:
    """A free part of a run, up to its block `high`, that became free later than what lies behind it."""

    __slots__ = ("high", "run")

    def __init__(self, run: Run, high: int) -> None:
        self.run = run
        self.high = high


class BlockPool:
    """All blocks of a replica.

    Attributes:
        count: free blocks.
        cached: free blocks that can still be hit.
        index: key → run in which that content begins, for everything that can be hit.
    """

    def __init__(self, blocks: int) -> None:
        self.count = 0
        self.cached = 0
        self.index: dict[Hashable, Run] = {}
        self._queue: OrderedDict[Run | Part, None] = OrderedDict()
        if blocks:
            self.put(array("i", range(blocks - 1, -1, -1)))

    def take(self, count: int) -> array[int]:
        """Take the `count` free blocks that were given back longest ago, forgetting what they held. There must be as many."""
        self.count -= count
        queue = self._queue
        taken: array[int] | None = None
        while True:
            place = next(iter(queue))
            if place.__class__ is Run:
                run = place
                low = run.parts[0].high if run.parts else run.used
                if run.loose:
                    part, count = self._take_loose(run, low, count)
                    if taken is None:
                        taken = part
                    else:
                        taken += part
                    if not count:
                        return taken
                    if run.loose is None and low == len(run.blocks):
                        continue
            else:
                run = place.run
                low = run.parts[1].high if len(run.parts) > 1 else run.used
            part = run.blocks
            have = len(part) - low
            if have > count:  # the rest keeps its place
                have = count
                part = part[-count:]
                del run.blocks[-count:]
            else:
                del queue[place]
                if place is not run:
                    del run.parts[0]
                if low:
                    part = part[low:]
                    del run.blocks[low:]
                elif run.key is not None:  # all of it is gone
                    del self.index[run.key]
                    run.blocks = ()
            if run.key is not None:
                self.cached -= have
                if run.tails:
                    self._forget_tails(run)
            if taken is None:
                if have == count:
                    return part
                taken = part
            else:
                taken += part
                if have == count:
                    return taken
            count -= have

    def _take_loose(self, run: Run, low: int, count: int) -> tuple[array[int], int]:
        """Up to `count` loose blocks of the run at the head of the queue, and how many are still to be taken."""
        part = run.loose
        if count < len(part):
            part = part[-count:]
            del run.loose[-count:]
            return part, 0
        run.loose = None
        if low == len(run.blocks):
            del self._queue[run]
        return part, count - len(part)

    def _forget_tails(self, run: Run) -> None:
        """Contents of which not even the first block is left cannot be hit any more."""
        length = len(run.blocks)
        while run.tails and run.tails[-1][0] >= length:
            del self.index[run.tails.pop()[1]]

    def join(self, run: Run, depth: int) -> None:
        """Use the first `depth` blocks of a run too, taking those that are free out of the queue."""
        run.add_user(depth)
        used = run.used
        if depth <= used:
            return
        queue, parts = self._queue, run.parts
        whole = depth == len(run.blocks)
        while parts and (whole or parts[-1].high <= depth):
            del queue[parts.pop()]
        if whole and not run.loose:
            queue.pop(run, None)
        self.count -= depth - used
        if run.key is not None:
            self.cached -= depth - used
        run.used = depth

    def give_back(self, run: Run, depth: int, loose: array[int] | None = None) -> None:
        """Stop using the first `depth` blocks of a run; those nobody else uses become free.

        So do `loose` blocks that followed them and hold nothing worth keeping, before those.
        """
        before = run.used
        if run.depths is None and before == len(run.blocks) and run.loose is None:
            self._queue[run] = None  # the common case: all of it is free from now on
            run.users = run.used = 0
            if run.key is not None:
                self.cached += before
            if loose:
                run.loose = loose
                before += len(loose)
            self.count += before
            return
        if loose:
            self.put(loose)
        if run.depths is None:
            run.users = used = 0
        else:
            used = run.drop_user(depth)
            if used >= before:
                return
        if before == len(run.blocks) and run.loose is None:
            place = run
        else:
            place = Part(run, before)
            run.parts = [*run.parts, place]
        self._queue[place] = None
        run.used = used
        before -= used
        self.count += before
        if run.key is not None:
            self.cached += before

    def put(self, blocks: array[int]) -> None:
        """Blocks that hold nothing worth keeping are free."""
        run = Run(blocks, None)
        self.count += run.used
        run.used = 0
        self._queue[run] = None

    def free_blocks(self) -> list[int]:
        """Every free block, for checks; the next to be taken first."""
        free: list[int] = []
        for place in self._queue:
            if isinstance(place, Run):
                run, after = place, 0
                high = len(run.blocks)
                free += reversed(run.loose or ())
            else:
                run = place.run
                high = min(place.high, len(run.blocks))
                after = run.parts.index(place) + 1
            low = run.parts[after].high if after < len(run.parts) else run.used
            free += reversed(run.blocks[low:high])
        return free


class PlainPool:
    """All blocks of a replica that keeps nothing of what they held: a stack of free ones.

    Shares `BlockPool`'s face as far as an allocator without prefix caching needs it; runs exist only between forked sequences.
    """

    cached = 0

    def __init__(self, blocks: int) -> None:
        self.count = blocks
        self.index: dict[int, Run] = {}
        self._free = array("i", range(blocks - 1, -1, -1))

    def take(self, count: int) -> array[int]:
        """Take `count` free blocks. There must be as many."""
        self.count -= count
        taken = self._free[-count:]
        del self._free[-count:]
        return taken

    def put(self, blocks: array[int]) -> None:
        """Blocks that nobody shares are free again."""
        self._free += blocks
        self.count += len(blocks)

    def join(self, run: Run, depth: int) -> None:
        """Use the first `depth` blocks of a run too."""
        run.add_user(depth)

    def give_back(self, run: Run, depth: int, loose: array[int] | None = None) -> None:
        """Stop using the first `depth` blocks of a run; those nobody else uses become free, and `loose` ones with them."""
        if loose:
            self.put(loose)
        if run.depths is None:
            run.users = used = 0
        else:
            used = run.drop_user(depth)
        if used < run.used:
            self.put(run.blocks[used:])
            del run.blocks[used:]
            run.used = used

    def free_blocks(self) -> list[int]:
        """Every free block, for checks."""
        return list(self._free)
