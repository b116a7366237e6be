"""Operators: one kind of kernel each, priced from its size.

An operator is built for one place in the model (its shapes and rates are fixed) and asked for different sizes. All of
them are instances of one roofline: time on the tensor cores and time on memory joined by a p-norm, plus a fixed launch.
Measured tables (`sim.cost.tables`) stand behind the same interface.

Times of the constants are microseconds; everything given back is seconds, FLOP and bytes, per GPU and call.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple, Protocol

from sim.cost.carried import EarlyKernels
from sim.cost.constants import (
    AllReduceConstants,
    AmongConstants,
    DecodeConstants,
    ElementwiseConstants,
    GemmConstants,
    LatentConstants,
    PrefillConstants,
)
from sim.hardware.gpu import GPUSpec
from sim.hardware.links import SWITCH, Link

US = 1e-6
_TILE = 128
_TILE_AMONG = 64  # queries of a tile of FlashAttention 2 where keys and values lie in pages
_TILES = ((256, 128), (128, 128), (64, 64))
"""Rows and columns of the tiles of a matrix product, the largest first: that is the one which `compute` is a share for."""
_NARROWEST = 64  # columns of the narrowest tile, which products of few rows are given
_PIECE = 512  # of the inner dimension: the shortest piece that is computed apart


class Work(NamedTuple):
    """What one call does: floating-point operations, bytes moved, and what limits it."""

    flops: float
    bytes: float
    bound: str


class Operator(Protocol):
    """One kernel at one place of the model.

    `size` is what varies: tokens for everything that runs on the flattened batch; (rows, context) for decode attention;
    (tokens, pairs, keys, tiles) for prefill attention (see `PrefillAttention`).

    Attributes:
        source: where its efficiency comes from.
        launches: operations of the framework that a call is made of, where no CUDA graph holds them.
    """

    source: str
    launches: int

    def seconds(self, *size: float) -> float:
        """Duration of one call."""

    def work(self, *size: float) -> Work:
        """What one call does, for explanations."""


def bound_of(compute: float, memory: float, launch: float) -> str:
    """What limits an operator, from its seconds of arithmetic, of memory and of launching."""
    if launch > max(compute, memory):
        return "latency"
    return "compute" if compute > memory else "memory"


class Gemm:
    """A linear layer [n, k] on m tokens: roofline with a soft corner and quantised waves (form F2b with waves).

    Weights are read once, activations once, results written once. `weight_bytes` is the whole matrix with its scales;
    `activation_bytes` one input value. Arithmetic is done tile by tile, in the size among `_TILES` that takes least; a share
    `wave` of it in whole waves of one tile a multiprocessor, so that few tiles leave the rest of the device idle. Kernels that
    do not choose (CUTLASS's of FP8: pairs of 128 rows) take large tiles from some number of tokens on. A column
    of tiles reads its weights at a share `unit` of the bandwidth at most: matrices of few columns do not use all of it.
    Where there are fewer tiles than multiprocessors, the inner dimension is cut into pieces (split-K), whose results are added
    up in `split_us` more, if that is faster (0: never).
    Narrow weights that are unpacked to 16 bit cost a constant time an element, once for every tile of rows and beside the
    rest: few rows are slowed down the more, the fewer bytes a weight has.
    """

    launches = 1

    def __init__(
        self,
        constants: GemmConstants,
        gpu: GPUSpec,
        compute: str,
        n: int,
        k: int,
        weight_bytes: float,
        activation_bytes: float,
        early: EarlyKernels | None = None,
    ) -> None:
        self.source = constants.source
        self.n, self.k = n, k
        self._pass, self._most = (early.pass_rows, early.pass_most) if early else (1.0, 0.0)
        self._weight, self._in = weight_bytes, activation_bytes
        rate, bandwidth = constants.compute * gpu.flops(compute), constants.bandwidth * gpu.bandwidth
        self._wave, self._edge, self._sms = constants.wave, constants.edge, gpu.sms
        self._large = constants.large_rows or float("inf")
        element = 2.0 * (k + constants.extra_k) / rate
        self._tiles = tuple(self._tile(size, element, constants.faster) for size in _TILES)
        self._fixed = weight_bytes / bandwidth + constants.memory_us * US
        self._token = (activation_bytes * k + 2.0 * n) / bandwidth
        column = _NARROWEST * weight_bytes / n / (constants.unit * gpu.bandwidth) if constants.unit else 0.0
        self._unpack = constants.unpack_ns * 1e-12 * n * k / gpu.sms
        self._norm, self._inverse, self._launch = (
            constants.norm,
            1.0 / constants.norm,
            constants.launch_us * US,
        )
        self._column = column
        self._split, self._extra_k = constants.split_us * US, constants.extra_k

    def _tile(self, size: tuple[int, int], element: float, faster: float) -> tuple[int, int, float, float]:
        """(rows, columns of tiles, seconds of a row of one tile in a wave, seconds of the tile besides) for tiles of a size.

        What a tile takes more than its results is told in `element`s of a multiprocessor that is not `faster`.

        Args:
            element: seconds of one result, were the whole device busy with tiles of the largest size.
        """
        (most, wide), (rows, columns) = _TILES[0], size
        best = most * wide / ((most + self._edge) * (wide + self._edge))
        row = faster * best * (columns + self._edge)
        unit = element * self._sms
        return rows, ceil(self.n / columns), unit * ((1.0 - faster) * columns + row), unit * row * self._edge

    def seconds(self, m: float) -> float:
        """Duration for m tokens."""
        norm, (arithmetic, column, piecewise) = self._norm, self._tiled(m)
        memory = self._memory(m) ** norm
        seconds = (arithmetic**norm + memory + column**norm) ** self._inverse + self._launch
        if piecewise:
            seconds = min(seconds, (piecewise + memory) ** self._inverse + self._launch + self._split)
        return seconds + self._unpack * ceil(m / _TILE) if self._unpack else seconds

    def _memory(self, m: float) -> float:
        """Seconds of memory traffic; kernels that were not tuned for small batches read the weights several times."""
        if self._most:
            return self._fixed * max(min(m, self._most) / self._pass, 1.0) + self._token * m
        return self._fixed + self._token * m

    def _arithmetic(self, m: float) -> float:
        """Seconds of arithmetic alone."""
        return self._tiled(m)[0]

    def _tiled(self, m: float) -> tuple[float, float, float]:
        """Seconds of arithmetic in the tiles that take least, and of reading a column of them; both in pieces, joined to the
        power of `norm`, or 0 where there are none."""
        filled, sms, wave, norm, column = 16 * ceil(m / 16), self._sms, self._wave, self._norm, self._column
        least, joined, tiles = 0.0, 0.0, self._tiles
        if m > self._large:
            tiles, filled = tiles[:1], tiles[0][0]
        for rows, columns, row, besides in tiles:
            count = columns * ceil(m / rows)
            tile = row * (filled if filled < rows else rows) + besides
            seconds = ((1.0 - wave) * count / sms + wave * ceil(count / sms)) * tile
            if not least or seconds < least:
                least = seconds
            if self._split and (pieces := min(sms // count, self.k // _PIECE)) > 1:
                share = (self.k / pieces + self._extra_k) / (self.k + self._extra_k)
                seconds = ((1.0 - wave) * count * pieces / sms + wave) * tile * share
                together = seconds**norm + (column / pieces) ** norm
                if not joined or together < joined:
                    joined = together
        return least, column, joined

    def work(self, m: float) -> Work:
        """2mnk operations; weights, inputs and outputs."""
        moved = self._weight + m * (self._in * self.k + 2.0 * self.n)
        return Work(
            2.0 * m * self.n * self.k,
            moved,
            bound_of(self._arithmetic(m), self._memory(m), self._launch),
        )


class DecodeAttention:
    """One new token for each of `rows` sequences over `context` cached tokens in all (form G3 with limited splitting).

    A kernel splits long sequences over thread blocks, but only so far: a KV head is read by `max(rows, splits)` blocks,
    each of which reaches a share `unit` of the device's bandwidth. Few KV heads a GPU (tensor parallelism) or kernels
    that do not split at all cannot use the whole memory. What a key costs besides its bytes (its exponential) is told in
    bytes as well: narrow heads reach less of the bandwidth.
    """

    launches = 1

    def __init__(
        self,
        constants: DecodeConstants,
        gpu: GPUSpec,
        heads: int,
        kv_heads: int,
        vector_bytes: float,
        head_dim: int,
    ) -> None:
        self.source = constants.source
        self._bytes = 2.0 * kv_heads * vector_bytes
        self._flops = 4.0 * heads * head_dim
        timed = self._bytes + 2.0 * kv_heads * constants.extra_bytes
        self._read = timed / (constants.bandwidth * gpu.bandwidth)
        head_us = (
            constants.head_us + constants.head_dim_us * head_dim / 128.0
        )  # a first tile of keys is loaded however few
        self._head = US * (head_us * kv_heads + constants.query_us * heads + constants.row_us) / gpu.sms
        self._block = timed / (constants.unit * kv_heads * gpu.bandwidth) if constants.unit else 0.0
        self._splits = max(constants.splits, 1.0)
        self._extra, self._knee = constants.extra_us * US, constants.knee_us * US
        wide = constants.wide_us * max(head_dim / 64.0 - 1.0, 0.0) + constants.narrow_us * max(
            2.0 - head_dim / 64.0, 0.0
        )
        self._launch = US * (constants.launch_us + wide)
        self._norm, self._inverse = constants.norm, 1.0 / constants.norm

    def seconds(self, rows: float, context: float) -> float:
        """Duration; short reads do not reach the full bandwidth, many short sequences pay per head."""
        read = self._read * context
        memory = read * (1.0 + self._extra / (read + self._knee)) if self._knee else read + self._extra
        parts = memory**self._norm + (self._head * rows) ** self._norm
        if self._block:
            parts += (self._block * context / max(rows, self._splits)) ** self._norm
        return parts**self._inverse + self._launch

    def work(self, rows: float, context: float) -> Work:
        """Every cached key and value once."""
        read = self._read * context
        bound = "memory" if read > max(self._launch, self._head * rows) else "latency"
        return Work(self._flops * context, self._bytes * context, bound)


class LatentAttention:
    """Decode attention with absorbed projections over a latent cache (MLA): all heads share one vector a token."""

    launches = 1

    def __init__(
        self,
        constants: LatentConstants,
        gpu: GPUSpec,
        heads: int,
        cached: int,
        latent: int,
        vector_bytes: float,
    ) -> None:
        self.source = constants.source
        self._flops, self._bytes = 2.0 * heads * (cached + latent), vector_bytes
        self._compute = self._flops / (constants.compute * gpu.bf16)
        self._read = vector_bytes / (constants.bandwidth * gpu.bandwidth)
        self._norm, self._inverse, self._launch = (
            constants.norm,
            1.0 / constants.norm,
            constants.launch_us * US,
        )

    def seconds(self, rows: float, context: float, queries: float = 1.0) -> float:
        """Duration with so many queries a sequence; the number of sequences matters only through their context."""
        compute = queries * self._compute
        return context * (compute**self._norm + self._read**self._norm) ** self._inverse + self._launch

    def work(self, rows: float, context: float, queries: float = 1.0) -> Work:
        """Scores against `cached` values, sums over `latent` of them."""
        bound = bound_of(context * queries * self._compute, context * self._read, self._launch)
        return Work(context * queries * self._flops, context * self._bytes, bound)


class DecodeAmongPrompts:
    """What decoding rows add to the launch of a prompt's chunks, where one kernel takes both (FlashAttention 2 in vLLM).

    The kernel gives every sequence and query head a thread block for each `_TILE_AMONG` queries of the longest chunk. A decoding
    row fills one query of one tile: its block still walks through all keys, none of which heads of a group share, while its
    other blocks begin and end idle.
    """

    launches = 0

    def __init__(self, constants: AmongConstants, gpu: GPUSpec, heads: int, head_dim: float, kv_token_bytes: float,
                 resident: int) -> None:  # fmt: skip
        """Args: resident, thread blocks that a multiprocessor holds."""
        self.source = constants.source
        wide = head_dim / 128.0 * 1e-9  # the constants are of heads 128 wide
        self._flops, self._bytes = 4.0 * heads * head_dim, kv_token_bytes
        self._key, self._path = heads * constants.key_ns * wide / (gpu.sms * resident), constants.path_ns * wide
        self._block = heads * constants.block_us * US / gpu.sms

    def seconds(self, rows: float, context: float, among: float, longest: float) -> float:
        """Seconds more than the `among` seconds of the chunks alone, of which the longest has `longest` tokens."""
        if not rows:
            return 0.0
        together = among + context * self._key + rows * -(-longest // _TILE_AMONG) * self._block
        path = context / rows * self._path
        return (together**4 + path**4) ** 0.25 - among

    def work(self, rows: float, context: float, among: float, longest: float) -> Work:
        """Attended pairs only, keys and values once."""
        return Work(context * self._flops, context * self._bytes, "compute" if context else "latency")


class PrefillAttention:
    """Causal attention of prompt chunks over their own tokens and their past, all in one launch (form C2).

    Sizes are sums over the chunks (n new tokens after m cached ones): `tokens` Σn, `pairs` Σn(n+2m) which is twice the
    attended pairs, `keys` Σ(n+m), `tiles` Σmax(n, least)/128, where `least` are the tokens that fill a tile of queries (fewer,
    where the heads of a group share one).

    Tiles take a time each besides their pairs. Less than one tile a multiprocessor takes as long as one; the last tile of a
    causal prompt looks back at all of it, and a share `path` of what it takes more than a mean tile is waited for.

    Attributes:
        least: see above.
    """

    launches = 1

    def __init__(
        self,
        constants: PrefillConstants,
        gpu: GPUSpec,
        compute: str,
        heads: int,
        head_dim: float,
        kv_token_bytes: float,
        kv_heads: float = 0,
    ) -> None:
        """Args: kv_heads, as many as heads by default."""
        self.source = constants.source
        kv_heads = kv_heads or heads
        rate, bandwidth = constants.compute * gpu.flops(compute), constants.bandwidth * gpu.bandwidth
        self._flops = 2.0 * heads * head_dim
        wide = head_dim + constants.extra_dim  # exponentials cost the same whatever the head's width
        self._pair, self._extra = 2.0 * heads * wide / rate, constants.extra_tokens
        self._tile = constants.tile
        self.least = self._tile * (kv_heads / heads) ** constants.packed
        self._row, self._key = 4.0 * heads * head_dim, kv_token_bytes
        written = min(constants.cache_ns * kv_heads, constants.cache_most_ns) * 1e-9
        self._written, self._row_time, self._key_time = written, self._row / bandwidth, kv_token_bytes / bandwidth
        self._path, self._alone = constants.path, 2.0 * self._tile * self._pair * gpu.sms / heads
        self._waves = heads / gpu.sms * _TILE / self._tile
        self._norm, self._inverse, self._launch = (
            constants.norm,
            1.0 / constants.norm,
            constants.launch_us * US,
        )

    def _parts(self, tokens: float, pairs: float, keys: float, tiles: float) -> tuple[float, float]:
        """Seconds of arithmetic and of memory traffic."""
        if not tokens:
            return 0.0, 0.0
        busy = self._pair * (pairs + _TILE * tiles * self._extra)
        mean = busy / (self._waves * tiles)
        back = keys / tokens
        seen = pairs / tokens * back / (2.0 * back - 1.0)
        longest = self._alone * ((seen if seen > self._tile else self._tile) + 0.5 * self._extra)
        compute = busy if busy > mean else mean
        if longest > mean:
            compute += self._path * (longest - mean)
        return compute, self._row_time * tokens + self._key_time * keys

    def seconds(self, tokens: float, pairs: float, keys: float, tiles: float) -> float:
        """Duration of the launch."""
        compute, memory = self._parts(tokens, pairs, keys, tiles)
        return (compute**self._norm + memory**self._norm) ** self._inverse + self._launch + self._written * tokens

    def work(self, tokens: float, pairs: float, keys: float, tiles: float) -> Work:
        """Attended pairs only (the masked half is not counted); queries, results, keys and values once."""
        compute, memory = self._parts(tokens, pairs, keys, tiles)
        return Work(self._flops * pairs, self._row * tokens + self._key * keys, bound_of(compute, memory, self._launch))


class AllReduce:
    """Sum of `token_bytes` a token over `ways` GPUs: the cheaper of one-shot and two-shot; the library's for long messages.

    In two shots, and around the library's ring, a GPU sends and receives 2 (ways - 1) / ways of the message. Where a switch adds
    up, it sends its shares once and receives one sum: 1 + 1 / ways. The ring works on pieces, each of which takes `ring_chunk_us`
    besides its bytes; with the best number of pieces that costs twice the geometric mean of the two.
    """

    launches = 1

    def __init__(self, constants: AllReduceConstants, link: Link, ways: int, token_bytes: float) -> None:
        self.source = f"{constants.source}; {link.name} {link.bandwidth / 1e9:g} GB/s"
        slow = max(link.latency - 2e-6, 0.0)  # the fitted launch times include a switch's latency
        rank, around = constants.rank_us * US * (ways - 2), 2.0 * (ways - 1) / ways
        added = 1.0 + 1.0 / ways if ways > 2 and link.name == SWITCH else 0.0
        self._moved, self._token = around * token_bytes, token_bytes / link.bandwidth
        self._one = constants.one_shot_us * US + rank + slow * (ways - 1)
        self._two = constants.two_shot_us * US + rank + 2 * slow * (ways - 1)
        self._one_token = (ways - 1) * self._token / constants.one_shot
        self._two_token = ((constants.switch and added) or around) * self._token / constants.two_shot
        self._most = constants.one_shot_kb * 1024.0 / token_bytes if constants.one_shot_kb else float("inf")
        self._limit = constants.ring_mb * 1e6 / token_bytes if constants.ring_mb else float("inf")
        if constants.ring_mb:
            self._ring = (constants.ring_us + constants.ring_rank_us * (ways - 2)) * US + 2 * slow * (ways - 1)
            self._ring_token = around * self._token / constants.ring
            self._ring_root = 2.0 * (constants.ring_chunk_us * US * self._ring_token) ** 0.5
            self._switched = float("inf")
            if constants.ring_switch and added:
                self._switched = (constants.ring_switch_us + constants.ring_switch_rank_us * (ways - 2)) * US
                self._switched_token = added * self._token / constants.ring_switch

    def seconds(self, m: float) -> float:
        """Duration for m tokens."""
        if m > self._limit:
            ring = self._ring + self._ring_token * m + self._ring_root * m**0.5
            return ring if self._switched > ring else min(ring, self._switched + self._switched_token * m)
        two = self._two + self._two_token * m
        return two if m >= self._most else min(self._one + self._one_token * m, two)

    def work(self, m: float) -> Work:
        """Bytes that leave one GPU in the two-shot algorithm."""
        bound = "link" if self._one_token * m > self._one else "latency"
        return Work(0.0, self._moved * m, bound)


class Elementwise:
    """A kernel that reads and writes `token_bytes` a token: norms, activations, embedding, quantisation, sampling."""

    launches = 1

    def __init__(self, constants: ElementwiseConstants, gpu: GPUSpec, token_bytes: float) -> None:
        self.source = constants.source
        self._bytes = token_bytes
        self._token, self._launch = (
            token_bytes / (constants.bandwidth * gpu.bandwidth),
            constants.launch_us * US,
        )

    def seconds(self, m: float) -> float:
        """Duration for m tokens."""
        return self._launch + self._token * m

    def work(self, m: float) -> Work:
        """Bytes in and out."""
        return Work(0.0, self._bytes * m, "memory" if self._token * m > self._launch else "latency")


class Transfer:
    """`token_bytes` a token over a link: pipeline stages, expert dispatch, swapping to the host."""

    launches = 1

    def __init__(self, link: Link, token_bytes: float, source: str) -> None:
        self.source = source
        self._bytes, self._latency, self._token = token_bytes, link.latency, token_bytes / link.bandwidth

    def seconds(self, m: float) -> float:
        """Duration for m tokens."""
        return self._latency + self._token * m

    def work(self, m: float) -> Work:
        """Bytes over the link."""
        return Work(0.0, self._bytes * m, "link" if self._token * m > self._latency else "latency")


class Wait:
    """A fixed time a call that no data explains: ranks of a group that wait for each other."""

    launches = 0

    def __init__(self, seconds: float, source: str) -> None:
        self.source = source
        self._seconds = seconds

    def seconds(self, m: float) -> float:
        """The same for any number of tokens."""
        return self._seconds

    def work(self, m: float) -> Work:
        """None."""
        return Work(0.0, 0.0, "latency")
