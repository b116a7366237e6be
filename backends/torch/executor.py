"""Runs plans on a real model, on any device that torch knows.

Plans are carried out in the order they come: block copies, what goes to the host, what comes back, then all prompt pieces and
decoding sequences in one forward pass. With two plans in flight the second is packed before the tokens of the first are known
here; they are on the device, in a list of every sequence's latest token, and never make the way through the host.

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
from backends.torch.kv import TokenPagedAllocator, TokenRadixAllocator, page_ids
from backends.torch.pack import Draw, Row, pack
from backends.torch.pool import KVPool
from backends.torch.sampling import SamplingParams
from backends.torch.tokens import Decode, TokenBook, Tokens, Vocabulary
from sim.engine.plan import StepOutcome, StepPlan
from sim.engine.sequence import Sequence
from sim.engine.step import PlanError
from sim.kv.base import KVAllocator
from workloads.errors import InputError, Place

_FIRST_PLACES = 64
_NOBODY = Tokens(array("i"), 0, 0, frozenset(), SamplingParams())


@dataclass(slots=True)
class Flight:
    """A plan on its way: the drawn tokens, in the order of `draws`, and on a GPU the event after which they are here.

    `logprobs`, where anybody wants them: of each drawn token [R], and the likeliest and their ids [R, most that is wanted].
    """

    draws: list[Draw]
    drawn: Tensor | None
    event: torch.cuda.Event | None
    end: float
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

    Attributes:
        book: token ids of all sequences.
        pool: keys and values, once an allocator is attached.
        on_end: called with a sequence and its tokens when it has ended or was dropped.
        logits: of the last step, if `keep_logits` is set; for tests and logprobs.
    """

    def __init__(
        self, model: Model, *, seed: int = 0, forced_lengths: bool = False, sampling: SamplingParams | None = None,
        decode: Decode | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.knows_lengths = forced_lengths
        architecture = model.architecture
        self.book = TokenBook(Vocabulary(architecture.spec.vocab, seed, architecture.special_ids))
        self.pool: KVPool | None = None
        self.on_end: Callable[[Sequence, Tokens], None] | None = None
        self.keep_logits = False
        self.logits: Tensor | None = None
        self._sampling = sampling or SamplingParams()
        self._decode = decode
        self._seed = seed
        self._given: dict[int, tuple[array[int] | None, SamplingParams]] = {}
        self._latest = torch.zeros(_FIRST_PLACES, dtype=torch.int64, device=model.device)
        self._free_places = list(range(_FIRST_PLACES - 1, -1, -1))
        self._zero = time.perf_counter()
        self._ahead = False
        self._said: dict[Sequence, int] = {}  # tokens of the last outcome

    def attach(self, allocator: KVAllocator, depth: int = 1) -> None:
        """Make room for the keys and values that `allocator` shares out, and read its block tables from now on.

        Args:
            depth: plans that may be in flight.
        """
        spec = self.model.architecture.spec
        size = allocator.block_size
        self._allocator, self._ahead = allocator, depth > 1
        pages = allocator.capacity // size
        self.pool = KVPool(spec, pages + 1, size, self.model.dtype, self.model.device)
        self.pool.cache[:, :, pages] = 0.0
        self._nobodys = pages
        if isinstance(allocator, TokenPagedAllocator | TokenRadixAllocator):
            allocator.book = self.book

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
        if tokens.last >= 0:
            self._free_places.append(tokens.last)
            tokens.last = -1
        if not seq.sample:
            self._given.pop(seq.row, None)

    # --- plans

    def submit(self, plan: StepPlan, now: float, until: float) -> Flight:
        self._move(plan)
        rows = self._rows(plan)
        if not rows:
            return Flight([], None, None, self.clock())
        packed = pack(rows, self.pool.page_size, self._latest, self._seed)
        logits = self.model.forward(packed.batch, self.pool.cache)
        if self.keep_logits:
            self.logits = logits
        if not packed.draws:
            return self._sent([], None)
        drawn = self.model.operators.sample(logits, packed.sampling)
        self._latest[packed.places] = drawn
        flight = self._sent(packed.draws, drawn)
        wanted = [draw.tokens.sampling.logprobs for draw in packed.draws]
        if any(each is not None for each in wanted):
            flight.logprobs = _logprobs(logits, drawn, max(each or 0 for each in wanted))
        return flight

    def collect(self, ticket: Flight) -> StepOutcome:
        """Wait for a plan. With one plan in flight, first tokens of parallel samples join `tokens` when the plan has landed:
        only then is it known which of them found memory."""
        if ticket.event is not None:
            ticket.event.synchronize()
            ticket.end = self.clock()
        ended: list[Sequence] = []
        tokens = self._said = {}
        ids = [] if ticket.drawn is None else ticket.drawn.tolist()
        if ticket.logprobs is not None:
            _note_logprobs(ticket, ids)
        for (seq, mine, _, guest), token in zip(ticket.draws, ids, strict=True):
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
        return StepOutcome((ticket.end,), ended, tokens=tokens)

    def _sent(self, draws: list[Draw], drawn: Tensor | None) -> Flight:
        if self.model.device.type != "cuda":
            return Flight(draws, drawn, None, self.clock())
        if drawn is not None:
            drawn = torch.empty(drawn.shape, dtype=drawn.dtype, pin_memory=True).copy_(drawn, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return Flight(draws, drawn, event, 0.0)

    def _move(self, plan: StepPlan) -> None:
        """Carry keys and values about. Copies were asked for before anything of this plan, so they come first; pages that
        are taken from one sequence may go to another in the same plan, so what leaves comes before what returns."""
        if plan.copies:
            self.pool.copy(plan.copies)
        size = self.pool.page_size
        for seq, tokens in plan.swapped_out:
            mine = self.book[seq]
            pages = mine.pages if mine.released is None else mine.released
            mine.host = self.pool.take_out(pages[: -(-tokens // size)])
        for seq, tokens in plan.swapped_in:
            mine = self.book[seq]
            self.pool.put_back(page_ids(self._allocator, seq)[: -(-tokens // size)], mine.host)
            mine.host = None

    # --- rows

    def _rows(self, plan: StepPlan) -> list[Row]:
        """What is computed: prompt pieces first, as their tables may change until they decode."""
        rows = []
        for chunk in plan.chunks:
            seq, past, count = chunk.seq, chunk.past, chunk.tokens
            draws = []
            if chunk.samples:
                draws = [self._draw(each, past + count, each is not seq) for each in (seq, *seq.siblings)]
            pages = self._pages(seq, past + count, -1)
            rows.append(Row(self.book[seq], past, count, pages, draws))
            if chunk.width > count:
                rows.append(self._dead(past + count, chunk.width - count))
        for seq in plan.decoding():
            known = seq.known
            pages = self._pages(seq, known, seq.join_tick)
            rows.append(Row(self.book[seq], known - 1, 1, pages, [self._draw(seq, known)]))
        if plan.cohort is not None and plan.rows > plan.cohort.size:
            width = plan.context // plan.rows
            rows += [self._dead(width - 1, 1) for _ in range(plan.rows - plan.cohort.size)]
        return rows

    def _dead(self, past: int, count: int) -> Row:
        """Tokens that are nobody's."""
        pages = np.full(-(-(past + count) // self.pool.page_size), self._nobodys)
        return Row(_NOBODY, past, count, pages, dead=True)

    def _draw(self, seq: Sequence, position: int, guest: bool = False) -> Draw:
        tokens = self.book[seq]
        if tokens.last < 0:
            if not self._free_places:
                count = len(self._latest)
                self._latest = torch.cat((self._latest, torch.zeros_like(self._latest)))
                self._free_places = list(range(2 * count - 1, count - 1, -1))
            tokens.last = self._free_places.pop()
        return Draw(seq, tokens, position, guest)

    def _pages(self, seq: Sequence, tokens: int, stay: int) -> np.ndarray:
        """Pages for the first `tokens` tokens. While a sequence decodes they only become more, so they are kept for a stay."""
        mine = self.book[seq]
        need = -(-tokens // self.pool.page_size)
        if stay < 0 or mine.stay != stay or len(mine.pages) < need:
            mine.pages, mine.stay = page_ids(self._allocator, seq), stay
        if len(mine.pages) < need:
            raise PlanError(f"{seq} has {len(mine.pages)} pages of KV for {tokens} tokens, {need} are needed")
        return mine.pages


def _logprobs(logits: Tensor, drawn: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `Flight.logprobs`."""
    all_ = torch.log_softmax(logits.float(), dim=-1)
    top = all_.topk(min(most, all_.shape[-1]), dim=-1)
    return all_.gather(1, drawn[:, None])[:, 0], top.values, top.indices


def _note_logprobs(ticket: Flight, ids: list[int]) -> None:
    own, values, names = (tensor.tolist() for tensor in ticket.logprobs)
    for index, (draw, token) in enumerate(zip(ticket.draws, ids, strict=True)):
        most = draw.tokens.sampling.logprobs
        if most is not None and not draw.tokens.over:
            found = dict(zip(names[index][:most], values[index][:most], strict=True))
            draw.tokens.logprobs[draw.position] = {token: own[index], **found}
