"""A place for every sequence that computes: its latest token and its block table on the device, and how its tokens are drawn.

Latest tokens and tables stay on the device from step to step. A step sends what tables gained, never whole tables, and a token
that was drawn there need not have come to the host to be the input of the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from backends.torch.sampling import SamplingParams
from sim.engine.sequence import Sequence

NOBODY = 0
"""The place of rows that are computed for nothing: its table names the page that nobody has."""
_FIRST = 64
_WRAP = 1 << 64


@dataclass(frozen=True, slots=True)
class Knobs:
    """How tokens are drawn, by place: arrays that are indexed by place before they are sent.

    Attributes:
        reals: [4, places] float64: temperature, top_p, min_p, penalty.
        whole: [4, places] int64: top_k, seed, request, sample.
    """

    reals: np.ndarray
    whole: np.ndarray

    @classmethod
    def of(cls, places: int) -> Knobs:
        """For so many places, all zero."""
        return cls(np.zeros((4, places)), np.zeros((4, places), np.int64))

    def turn(self, place: int, seq: Sequence, how: SamplingParams, seed: int) -> None:
        """Set those of a place; `seed` is for requests that have none of their own."""
        self.reals[:, place] = how.temperature, how.top_p, how.min_p, how.repetition_penalty
        own = how.seed is not None
        self.whole[:, place] = how.top_k, _signed(how.seed if own else seed), 0 if own else seq.row + 1, seq.sample


class Places:
    """Places are handed out when a sequence first computes and come back when it is gone.

    Args:
        nobodys: a page that no sequence has.
        count, width: places and pages a table to begin with; both grow as needed.

    Attributes:
        latest: [places] int64 on the device: the last token of each sequence.
        tables: [places, width] int64 on the device; `host` is the same on the host, with what was laid last.
        laid: [places] int64: pages of each table that are known.
        knobs: how tokens are drawn.
        moves: how often `latest` and `tables` were replaced by larger ones; who keeps their addresses must know.
    """

    def __init__(self, device: torch.device, nobodys: int, count: int = _FIRST, width: int = 1) -> None:
        self.device = device
        self.nobodys = nobodys
        self.latest = torch.zeros(count, dtype=torch.int64, device=device)
        self.host = np.full((count, width), nobodys, np.int64)
        self.tables = torch.from_numpy(self.host).to(device, copy=True)
        self.laid = np.zeros(count, np.int64)
        self.knobs = Knobs.of(count)
        self.moves = 0
        self._free = list(range(count - 1, NOBODY, -1))
        self._news: list[
            tuple[int | np.ndarray, np.ndarray]
        ] = []  # places and columns, alike in number or one of a kind

    def take(self, seq: Sequence, how: SamplingParams, seed: int) -> int:
        """A place for a sequence whose tokens are drawn so."""
        if not self._free:
            self._resize(2 * len(self.latest), self.host.shape[1])
        place = self._free.pop()
        self.laid[place] = 0
        self.knobs.turn(place, seq, how, seed)
        return place

    def give_back(self, place: int) -> None:
        """The sequence there is gone."""
        self._free.append(place)

    def lay(self, place: int, first: int, pages: np.ndarray) -> None:
        """The table's pages from number `first` on are these; once a step for a place."""
        end = first + len(pages)
        self.widen(end)
        row = self.host[place]
        changed = first + np.flatnonzero(row[first:end] != pages)
        if len(changed):
            row[first:end] = pages
            self._news.append((place, changed))
        self.laid[place] = end

    def append(self, places: np.ndarray, pages: np.ndarray) -> None:
        """The next page of each of these tables, which are different ones; once a step for a place."""
        ends = self.laid[places]
        self.widen(int(ends.max()) + 1)
        self.host[places, ends] = pages
        self._news.append((places, ends))
        self.laid[places] = ends + 1

    def widen(self, width: int) -> None:
        """Have room for tables of so many pages."""
        if width > self.host.shape[1]:
            self._resize(len(self.latest), max(width, 2 * self.host.shape[1]))

    def news(self) -> tuple[np.ndarray, np.ndarray]:
        """What the device's tables lack: numbers of entries, counted through all tables, and pages. They count as sent."""
        if not self._news:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        width = self.host.shape[1]
        index = np.concatenate([place * width + columns for place, columns in self._news])
        self._news.clear()
        return index, self.host.ravel()[index]

    def _resize(self, count: int, width: int) -> None:
        """More of either; rare, so all is sent again."""
        before, old = len(self.latest), self.host
        self.host = np.full((count, width), self.nobodys, np.int64)
        self.host[:before, : old.shape[1]] = old
        self.tables = torch.from_numpy(self.host).to(self.device, copy=True)
        self._news.clear()
        self.moves += 1
        if count > before:
            self.latest = torch.cat((self.latest, torch.zeros(count - before, dtype=torch.int64, device=self.device)))
            self.laid = np.concatenate((self.laid, np.zeros(count - before, np.int64)))
            knobs, self.knobs = self.knobs, Knobs.of(count)
            self.knobs.reals[:, :before], self.knobs.whole[:, :before] = knobs.reals, knobs.whole
            self._free += range(count - 1, before - 1, -1)


def _signed(seed: int) -> int:
    """A seed as 64 bits with a sign."""
    seed %= _WRAP
    return seed - _WRAP if seed >= _WRAP // 2 else seed
