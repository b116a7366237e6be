"""Blocks in runs: who owns them, in which order free ones are used again, and which prefix lies where.

vLLM keeps one object a block: a free block stays in a list in LRU order with its contents, an allocation takes the head, a hit
takes its block out of the middle. Handling blocks one by one is what makes simulators slow, so the same order is kept here for
*runs*: blocks that hold successive pieces of one content. Of a run, whoever shares it uses a leading part, and what is freed
or evicted goes from its end, so a run is a list of blocks and a few numbers:

    blocks   0 ........ used ........ len(blocks)
             in use     free, newest first: pieces with a place each in the queue

Taking, freeing and hitting cost a few operations a run, whatever its length.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict


class Run:
    """Blocks with successive pieces of one content.

    Attributes:
        blocks: block ids, in order of content; an array, so that moving thousands touches no objects.
        key: name of the first block in the index; None: nobody can hit it.
        used: leading blocks that somebody uses.
        users: how many use any.
        depths: if they are more than one or use different parts: leading blocks used → number of such users; else None.
        pieces: its free pieces, from the end of the run to its front, so the oldest comes first.
    """

    users = 1
    depths: dict[int, int] | None = None
    pieces: list[Piece] = []  # noqa: RUF012 (replaced by the first piece)

    def __init__(self, blocks: array[int], key: int | None) -> None:
        self.blocks = blocks
        self.key = key
        self.used = len(blocks)

    def deepen(self, before: int, after: int) -> None:
        """A user that used `before` leading blocks now uses `after`, the whole run."""
        if self.depths is not None:
            self._leave(before)
            self.depths[after] = self.depths.get(after, 0) + 1
        self.used = after

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


class Piece:
    """Free blocks `low … high − 1` of a run: one place in the queue."""

    __slots__ = ("high", "low", "run")

    def __init__(self, run: Run, low: int, high: int) -> None:
        self.run = run
        self.low = low
        self.high = high


class BlockPool:
    """All blocks of a replica.

    Attributes:
        count: free blocks.
        cached: free blocks that can still be hit.
        index: key → run, for every run that can be hit.
    """

    def __init__(self, blocks: int) -> None:
        self.count = 0
        self.cached = 0
        self.index: dict[int, Run] = {}
        self._queue: OrderedDict[Piece, None] = OrderedDict()
        if blocks:
            self.give_back(Run(array("i", range(blocks - 1, -1, -1)), None), blocks)

    def take(self, count: int) -> array[int]:
        """Take the `count` free blocks that were given back longest ago, forgetting what they held. There must be as many."""
        self.count -= count
        queue = self._queue
        taken: array[int] | None = None
        while True:
            piece, _ = queue.popitem(last=False)
            run = piece.run
            have = piece.high - piece.low
            if have > count:  # the rest keeps its place
                queue[piece] = None
                queue.move_to_end(piece, last=False)
                piece.high -= count
                part = run.blocks[-count:]
                del run.blocks[-count:]
                have = count
            elif piece.low:
                part = run.blocks[-have:]
                del run.blocks[-have:]
                del run.pieces[0]
            else:  # the whole run, which nobody can reach any more
                part = run.blocks
                if run.key is not None:
                    del self.index[run.key]
            if run.key is not None:
                self.cached -= have
            if taken is None:
                taken = part
            else:
                taken += part
            if have == count:
                return taken
            count -= have

    def join(self, run: Run, depth: int) -> None:
        """Use the first `depth` blocks of a run too, taking those that are free out of the queue."""
        run.add_user(depth)
        used = run.used
        if depth <= used:
            return
        pieces = run.pieces
        while pieces and pieces[-1].low < depth:
            piece = pieces[-1]
            if piece.high > depth:
                piece.low = depth
                break
            del self._queue[piece]
            pieces.pop()
        self.count -= depth - used
        if run.key is not None:
            self.cached -= depth - used
        run.used = depth

    def give_back(self, run: Run, depth: int) -> None:
        """Stop using the first `depth` blocks of a run; those nobody else uses become free."""
        before = run.used
        if run.depths is None:
            run.users = used = 0
        else:
            used = run.drop_user(depth)
            if used >= before:
                return
        piece = Piece(run, used, before)
        if run.pieces:
            run.pieces.append(piece)
        else:
            run.pieces = [piece]
        run.used = used
        self._queue[piece] = None
        self.count += before - used
        if run.key is not None:
            self.cached += before - used

    def put(self, blocks: array[int]) -> None:
        """Blocks that hold nothing worth keeping are free."""
        self.give_back(Run(blocks, None), len(blocks))

    def free_blocks(self) -> list[int]:
        """Every free block, for checks; the next to be taken first."""
        return [block for piece in self._queue for block in reversed(piece.run.blocks[piece.low : piece.high])]


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

    def give_back(self, run: Run, depth: int) -> None:
        """Stop using the first `depth` blocks of a run; those nobody else uses become free."""
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
