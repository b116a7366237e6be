"""From a plan to the rows of a step: who computes what, with block tables brought up to date.

Prompt pieces come first and their tables are looked at anew, since a cache may replace pages of a prompt while it is computed.
While a sequence decodes its table only grows, so of decoding sequences only those that reach a new page are touched; where all do
in every step, pages being single slots, they are touched together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from backends.torch.kv import TokenRadixAllocator, pages_from
from backends.torch.pack import Draw, Rows
from backends.torch.places import NOBODY, Places
from backends.torch.tokens import TokenBook, Tokens
from sim.engine.plan import StepPlan
from sim.engine.sequence import Sequence
from sim.engine.step import PlanError
from sim.kv.base import KVAllocator


@dataclass(slots=True)
class _Decoding:
    """The decoding sequences as they were in the last step, and as arrays: their places, and known tokens less the counter."""

    members: list[Sequence] = field(default_factory=list)
    stays: list[int] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    places: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    base: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


class RowMaker:
    """Makes rows of plans, which come in order.

    Args:
        seed: of draws whose request has none of its own.
    """

    def __init__(self, book: TokenBook, places: Places, allocator: KVAllocator, seed: int) -> None:
        self._book, self._places, self._allocator, self._seed = book, places, allocator, seed
        self._decoding = _Decoding()

    def of(self, plan: StepPlan) -> Rows:
        """The rows of a plan: prompt pieces, each with its padding; decoding sequences; dead rows."""
        heads: list[tuple[int, int, int, bool]] = []  # place, past, count, live
        prompts: dict[int, Tokens] = {}
        draws: list[Draw] = []
        owners: list[int] = []
        positions: list[int] = []
        for seq, count, past, width, samples in plan.chunks:
            mine = self._placed(seq)
            self._lay(seq, mine.place, 0, past + count)
            prompts[len(heads)] = mine
            if samples:
                drawn = (seq, *seq.siblings)
                draws += [Draw(each, self._placed(each), each is not seq) for each in drawn]
                owners += [len(heads)] * len(drawn)
                positions += [past + count] * len(drawn)
            heads.append((mine.place, past, count, True))
            if width > count:
                heads.append((NOBODY, past + count, width - count, False))
        columns = [np.array(column, np.int64) for column in zip(*heads, strict=True)] or [np.zeros(0, np.int64)] * 4
        rows = Rows(
            *columns[:3], columns[3].astype(bool), prompts, draws, np.array(owners, np.int64),
            np.array(positions, np.int64),
        )  # fmt: skip
        return rows if plan.cohort is None else self._with_decoding(rows, plan)

    def _with_decoding(self, rows: Rows, plan: StepPlan) -> Rows:
        now = self._refresh(plan)
        known = now.base + plan.tick
        self._grow(now, known)
        count = len(now.members)
        dead = max(plan.rows - count, 0)
        width = plan.context // plan.rows if dead else 0
        columns = (
            (rows.places, now.places, NOBODY), (rows.past, known - 1, width - 1), (rows.counts, np.ones(count, np.int64), 1),
            (rows.live, np.ones(count, bool), False),
        )  # fmt: skip
        places, past, counts, live = (
            np.concatenate((first, second, np.full(dead, filler, first.dtype))) for first, second, filler in columns
        )
        owners = np.concatenate((rows.owners, len(rows.places) + np.arange(count)))
        positions = np.concatenate((rows.positions, known))
        return Rows(places, past, counts, live, rows.prompts, rows.draws + now.draws, owners, positions)

    def _refresh(self, plan: StepPlan) -> _Decoding:
        """The cohort as arrays, made anew when somebody came or left."""
        members = plan.decoding()
        stays = [seq.join_tick for seq in members]
        if members != self._decoding.members or stays != self._decoding.stays:
            draws = [Draw(seq, self._placed(seq)) for seq in members]
            for seq, mine, _ in draws:
                if mine.stay != seq.join_tick:
                    self._lay(seq, mine.place, 0, seq.known)
                    mine.stay = seq.join_tick
            places = np.array([mine.place for _, mine, _ in draws], np.int64)
            base = np.array([seq.known for seq in members], np.int64) - plan.tick
            self._decoding = _Decoding(members, stays, draws, places, base)
        return self._decoding

    def _grow(self, now: _Decoding, known: np.ndarray) -> None:
        """Tables of those whose next token is the first of a page that is not known yet."""
        laid = self._places.laid[now.places]
        grown = np.flatnonzero(-(-known // self._allocator.block_size) > laid)
        if len(grown) == len(known) and isinstance(self._allocator, TokenRadixAllocator) and (known == laid + 1).all():
            slots = self._allocator.next_slots(now.members, known)
            if slots is not None:
                self._places.append(now.places, slots)
                return
        for index in grown.tolist():
            self._lay(now.members[index], int(now.places[index]), int(laid[index]), int(known[index]))

    def _lay(self, seq: Sequence, place: int, first: int, tokens: int) -> None:
        """Note the pages of a sequence from number `first` on, which must hold its first `tokens` tokens."""
        pages = pages_from(self._allocator, seq, first)
        need = -(-tokens // self._allocator.block_size)
        if first + len(pages) < need:
            raise PlanError(f"{seq} has {first + len(pages)} pages of KV for {tokens} tokens, {need} are needed")
        self._places.lay(place, first, pages)

    def _placed(self, seq: Sequence) -> Tokens:
        """A sequence's tokens; it has a place from now on."""
        mine = self._book[seq]
        if mine.place < 0:
            mine.place = self._places.take(seq, mine.sampling, self._seed)
        return mine
