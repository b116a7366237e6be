"""Runs plans on a real model, on any device that torch knows.

Plans are carried out in the order they come: block copies, what goes to the host, what comes back, then all prompt pieces and
decoding sequences in one forward pass. With two plans in flight the second is packed before the tokens of the first are known
here; they are on the device, by the sequences' places, and never make the way through the host.

What a static batch pads, and rows of it that have ended, are computed too, on a page that nobody has.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backends.model.model import Model
from backends.torch.graphs import Capture, CudaCapture, DecodeGraphs
from backends.torch.kv import TokenPagedAllocator, TokenRadixAllocator
from backends.torch.pack import Draw, Packed, pack
from backends.torch.places import Places
from backends.torch.pool import KVPool
from backends.torch.rows import RowMaker
from backends.torch.sampling import SamplingParams
from backends.torch.timing import StepTimes, Stopwatch
from backends.torch.tokens import Decode, TokenBook, Tokens, Vocabulary
from sim.engine.plan import StepOutcome, StepPlan
from sim.engine.sequence import Sequence
from sim.kv.base import KVAllocator
from workloads.errors import InputError, Place


@dataclass(slots=True)
class Flight:
    """A plan on its way: the drawn tokens, in the order of `draws`; they are here when `watch` has been waited for.

    `positions` are the tokens' numbers in their sequences. `logprobs`, where anybody wants them: of each drawn token [R], and
    the likeliest and their ids [R, most that is wanted].
    """

    watch: Stopwatch
    draws: list[Draw]
    positions: np.ndarray
    drawn: Tensor | None = None
    steps: int = 1
    logprobs: tuple[Tensor, Tensor, Tensor] | None = None


class TorchExecutor:
    """An executor with weights.

    Args:
        model: what to run.
        seed: of made-up prompts and of draws.
        forced_lengths: answers have exactly as many tokens as their request says, for benchmarks: nothing else ends them.
        sampling: for requests that were given none of their own.
        decode: from token ids to text; needed where texts end answers.
        capture: how decode steps are recorded; by default as CUDA graphs on a GPU whose operators allow it, else not at all.

    Attributes:
        book: token ids of all sequences.
        pool, places: keys and values, and what the device keeps of each sequence, once an allocator is attached.
        graphs: recorded decode steps, if there are any. times: what steps took.
        on_end: called with a sequence and its tokens when it has ended or was dropped.
        logits: of the last step, if `keep_logits` is set; for tests and logprobs.
    """

    def __init__(
        self, model: Model, *, seed: int = 0, forced_lengths: bool = False, sampling: SamplingParams | None = None,
        decode: Decode | None = None, capture: Capture | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.knows_lengths = forced_lengths
        architecture = model.architecture
        self.book = TokenBook(Vocabulary(architecture.spec.vocab, seed, architecture.special_ids))
        self.pool: KVPool | None = None
        self.graphs: DecodeGraphs | None = None
        self.times = StepTimes()
        self.on_end: Callable[[Sequence, Tokens], None] | None = None
        self.keep_logits = False
        self.logits: Tensor | None = None
        self._sampling = sampling or SamplingParams()
        self._decode = decode
        self._seed = seed
        self._capture = capture
        self._given: dict[int, tuple[array[int] | None, SamplingParams]] = {}
        self._zero = time.perf_counter()
        self._ahead = False
        self._said: dict[Sequence, int] = {}  # tokens of the last outcome

    def attach(
        self, allocator: KVAllocator, depth: int = 1, *, rows: int = 0, max_len: int = 0, stored: torch.dtype | None = None
    ) -> None:  # fmt: skip
        """Make room for the keys and values that `allocator` shares out, and read its block tables from now on.

        Args:
            depth: plans that may be in flight.
            rows, max_len: sequences of a step and tokens of one, at most, where that is known: it saves growing later.
            stored: type of keys and values; None: the model's.
        """
        spec = self.model.architecture.spec
        size = allocator.block_size
        self._ahead = depth > 1
        pages = allocator.capacity // size
        self.pool = KVPool(spec, pages + 1, size, stored or self.model.dtype, self.model.device)
        self.pool.clear(pages)
        self.places = Places(self.model.device, pages, rows + 64, -(-max_len // size) or 1)
        self._rows = RowMaker(self.book, self.places, allocator, self._seed)
        if isinstance(allocator, TokenPagedAllocator | TokenRadixAllocator):
            allocator.book = self.book
        capture = self._capture
        if capture is None and self.model.device.type == "cuda" and self.model.recordable:
            capture = CudaCapture()
        if capture is not None and rows:
            self.graphs = DecodeGraphs(self.model, self.pool, self.places, rows, capture)
            if self._capture is None:
                self.graphs.record_all(max_len)

    def begin(self, zero: float) -> None:
        """Times are told from this value of `time.perf_counter()` on."""
        self._zero = zero

    def clock(self) -> float:
        """Seconds since `begin`."""
        return time.perf_counter() - self._zero

    # --- requests

    def give(self, row: int, prompt: Iterable[int] | None = None, sampling: SamplingParams | None = None) -> None:
        """Say what request `row` really contains, before the engine gets it.

        Args:
            prompt: token ids; None: they are made up from its spans.
            sampling: how its tokens are chosen; None: as all others.

        Raises:
            InputError: a token id that the model does not have.
        """
        ids = None if prompt is None else array("i", prompt)
        vocabulary = self.model.architecture.spec.vocab
        if sampling is not None and sampling.stop and self._decode is None:
            raise InputError("texts that stop an answer need the model's tokenizer", place=Place(key="stop"))
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            raise InputError(f"request {row}: token ids must be 0 to {vocabulary - 1}, found {min(ids)} to {max(ids)}")
        self._given[row] = ids, sampling or self._sampling

    def start(self, seq: Sequence, output_tokens: int) -> None:
        given, sampling = self._given.get(seq.row, (None, self._sampling))
        ids = self.book.spell(seq.prompt) if given is None else given[:]
        if len(ids) != seq.prompt_tokens:
            raise InputError(f"request {seq.row} has {len(ids)} token ids, but says {seq.prompt_tokens}")
        stops: set[int] = set()
        decode = None if self.knows_lengths else self._decode
        if not self.knows_lengths:
            stops.update(sampling.stop_token_ids)
            if not sampling.ignore_eos:
                stops.update(self.model.architecture.stop_ids)
        self.book[seq] = Tokens(ids, len(ids), output_tokens, frozenset(stops), sampling, decode)

    def length(self, seq: Sequence) -> int:
        """The length of an answer, where lengths are forced."""
        return self.book[seq].most

    def forked(self, child: Sequence, tick: int) -> None:
        mine = self.book[child]
        mine.split = True
        if mine.pending is not None:
            self._said[child] = mine.pending
            mine.add(mine.pending)
            mine.pending = None

    def forget(self, seq: Sequence) -> None:
        tokens = self.book[seq]
        if self.on_end is not None:
            self.on_end(seq, tokens)
        tokens.over = True
        tokens.host = None
        if tokens.place >= 0:
            self.places.give_back(tokens.place)
            tokens.place = -1
        if not seq.sample:
            self._given.pop(seq.row, None)

    # --- plans

    def submit(self, plan: StepPlan, now: float, until: float) -> Flight:
        watch = Stopwatch(self.model.device)
        with watch.device():
            self._move(plan)
        rows = self._rows.of(plan)
        flight = Flight(watch, rows.draws, rows.positions)
        if not len(rows.places):
            watch.stop()
            return flight
        recorded = self._recorded(plan, len(rows.places))
        if recorded:
            rows = rows.padded(recorded)
        packed = pack(rows, self.places, self.pool.page_size, every_row=bool(recorded))
        with watch.device():
            logits = self._logits(packed, len(rows.draws), bool(recorded))
            if rows.draws:
                self._draw(flight, packed, logits)
        watch.stop()
        return flight

    def collect(self, ticket: Flight) -> StepOutcome:
        """Wait for a plan. With one plan in flight, first tokens of parallel samples join `tokens` when the plan has landed:
        only then is it known which of them found memory."""
        ticket.watch.wait()
        end = self.clock()
        ended: list[Sequence] = []
        tokens = self._said = {}
        ids = [] if ticket.drawn is None else ticket.drawn.tolist()
        if ticket.logprobs is not None:
            _note_logprobs(ticket, ids)
        for (seq, mine, guest), token in zip(ticket.draws, ids, strict=True):
            if mine.over:  # it ended or was dropped meanwhile
                continue
            if guest and not mine.split:
                if self._ahead:  # it found no memory, and draws this token again when it has computed the prompt itself
                    continue
                mine.pending = token
                if mine.ends_with(token):
                    ended.append(seq)
                continue
            tokens[seq] = token
            if mine.add(token):
                ended.append(seq)
                self.book.bind(seq)
        self.times.add(end, *ticket.watch.seconds())
        return StepOutcome((end,), ended, tokens=tokens)

    def _recorded(self, plan: StepPlan, rows: int) -> int:
        """To how many rows a step is filled up to be replayed; 0: it is run as it is."""
        return self.graphs.rows(rows) if self.graphs is not None and not plan.chunks else 0

    def _logits(self, packed: Packed, draws: int, recorded: bool) -> Tensor:
        """[draws, vocabulary]; who is drawn from comes before dead rows."""
        logits = (
            self.graphs.run(packed)[:draws]
            if recorded
            else self.model.forward(packed.batch(self.places), self.pool.cache, self.pool.scales)
        )
        if self.keep_logits:
            self.logits = logits.clone()
        return logits

    def _draw(self, flight: Flight, packed: Packed, logits: Tensor) -> None:
        """Draw tokens, keep them on the device, and send them here."""
        drawn = self.model.operators.sample(logits, packed.sampling)
        self.places.latest[packed.spots] = drawn
        wanted = [draw.tokens.sampling.logprobs for draw in flight.draws]
        if any(each is not None for each in wanted):
            flight.logprobs = _logprobs(logits, drawn, max(each or 0 for each in wanted))
        if drawn.is_cuda:
            drawn = torch.empty(drawn.shape, dtype=drawn.dtype, pin_memory=True).copy_(drawn, non_blocking=True)
        flight.drawn = drawn

    def _move(self, plan: StepPlan) -> None:
        """Carry keys and values about. Copies were asked for before anything of this plan, so they come first; pages that
        are taken from one sequence may go to another in the same plan, so what leaves comes before what returns."""
        if plan.copies:
            self.pool.copy(plan.copies)
        for move in plan.swapped_out:
            self.book[move.seq].host = self.pool.take_out(move.blocks)
        for move in plan.swapped_in:
            mine = self.book[move.seq]
            self.pool.put_back(move.blocks, mine.host)
            mine.host = None


def _logprobs(logits: Tensor, drawn: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `Flight.logprobs`."""
    all_ = torch.log_softmax(logits.float(), dim=-1)
    top = all_.topk(min(most, all_.shape[-1]), dim=-1)
    return all_.gather(1, drawn[:, None])[:, 0], top.values, top.indices


def _note_logprobs(ticket: Flight, ids: list[int]) -> None:
    own, values, names = (tensor.tolist() for tensor in ticket.logprobs)
    for index, (draw, position, token) in enumerate(zip(ticket.draws, ticket.positions.tolist(), ids, strict=True)):
        most = draw.tokens.sampling.logprobs
        if most is not None and not draw.tokens.over:
            found = dict(zip(names[index][:most], values[index][:most], strict=True))
            draw.tokens.logprobs[position] = {token: own[index], **found}
