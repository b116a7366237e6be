"""Operators of layers that are not plain attention: recurrent states, and the indexer of sparse attention.

No public timings of their kernels were fitted. They are rooflines with shares that their structure suggests, and the cost
model says so: their class carries a large uncertainty.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from sim.cost.constants import ElementwiseConstants
from sim.cost.operators import US, Work, bound_of
from sim.hardware.gpu import GPUSpec
from sim.models.spec import IndexerDims
from sim.models.states import StateDims

CHUNK = {"gated-delta": 64, "kda": 64, "mamba2": 256, "lightning": 256, "mamba1": 1}
"""Tokens that are computed together as matrix products (flash-linear-attention; Mamba-2's default; one by one in Mamba)."""
_TENSOR_SHARE = 0.25
"""Of the tensor cores' peak: products of 64 × 128 tiles, in kernels that hand their results on through memory."""
_CHUNK_STEP_US = 1.2
"""Of the kernel that carries the state from chunk to chunk: two dependent products of one tile, and their loads."""
_KERNELS = {"gated-delta": (2, 8), "kda": (3, 10), "mamba2": (2, 6), "lightning": (2, 5), "mamba1": (3, 3)}
"""Kernels of a layer beside its projections, (of decoding rows, of prompts): convolution, gates, the rule itself, the norm."""


class Mix(NamedTuple):
    """Sizes of a step, as operators of this module take them.

    Attributes:
        rows, context: that decode, and the tokens they attend to in all.
        tokens, pairs, keys: of the chunks, as in `sim.cost.operators.PrefillAttention`.
        chunks, longest: how many there are, and the tokens of the longest.
    """

    rows: float = 0.0
    context: float = 0.0
    tokens: float = 0.0
    pairs: float = 0.0
    keys: float = 0.0
    chunks: float = 0.0
    longest: float = 0.0


class RecurrentLayer:
    """Convolution, gates and the recurrent rule of one layer, without its projections.

    A decoding row reads and writes its whole state. A prompt is computed in chunks, inside of which the rule is a few matrix
    products; the state passes through memory at every chunk, and once more for every prompt. However few heads a GPU has, chunks
    follow one after another, so that a long prompt takes a time that more GPUs do not shorten.
    """

    def __init__(
        self, constants: ElementwiseConstants, gpu: GPUSpec, state: StateDims, tp: int, recurrent_bytes: int
    ) -> None:
        """Args: recurrent_bytes, of one value of the recurrent state."""
        self.source = (
            f"{constants.source}: kernels and share of the bandwidth; the algorithm's structure (no timings fitted)"
        )
        decode, prompt = _KERNELS[state.kind]
        self.launches = decode
        heads, groups = state.local(tp)
        key, value, self._chunk = state.key_dim, state.value_dim, CHUNK[state.kind]
        inner, keys = heads * value, groups * key
        self._state = 2.0 * (state.recurrent_values(tp) * recurrent_bytes + state.conv_values(tp) * 2)
        self._token = 2.0 * (
            4.0 * inner + 4.0 * keys
        )  # values, gate, result and queries, keys; in and out of the convolution
        self._flops_row = 6.0 * heads * key * value
        self._flops = heads * self._per_head(state.kind, key, value)
        self._bytes = 2.0 * self._streamed(state.kind, heads, groups, key, value)
        self._bandwidth = constants.bandwidth * gpu.bandwidth
        self._rate = _TENSOR_SHARE * gpu.bf16
        if state.kind == "mamba1":  # a scan on the ordinary cores, whose rate is a small share of the tensor cores'
            self._rate = 0.06 * gpu.bf16
        self._decode, self._prompt = decode * constants.launch_us * US, prompt * constants.launch_us * US

    def _per_head(self, kind: str, key: int, value: int) -> float:
        """Operations of a token of a prompt in one head."""
        chunk, state = self._chunk, 2.0 * key * value
        if kind == "mamba1":
            return 4.5 * state
        if kind in (
            "gated-delta",
            "kda",
        ):  # also what the delta rule takes back: products of keys, inverted, times both
            return 3 * state + 2.0 * chunk * (3 * key + 2 * value) + 2.0 * chunk * chunk / 3
        return 2 * state + chunk * (key + value)

    def _streamed(self, kind: str, heads: int, groups: int, key: int, value: int) -> float:
        """Values that the kernels read and write for a token of a prompt."""
        inner, keys = heads * value, groups * key
        basic = 6.0 * inner + 6.0 * keys
        if kind == "mamba1":
            return basic
        states = 2.0 * heads * key * value / self._chunk
        if kind in ("gated-delta", "kda"):  # corrected keys and values, the inverse, and decayed keys
            return basic + states + heads * (4.0 * key + 4.0 * value + 2.0 * self._chunk)
        return basic + states

    def _parts(self, mix: Mix) -> tuple[float, float, float]:
        """Seconds of decoding rows, of arithmetic of prompts, and of what these stream."""
        decode = mix.rows * (self._state + self._token) / self._bandwidth
        streamed = (mix.tokens * self._bytes + mix.chunks * self._state) / self._bandwidth
        return decode, mix.tokens * self._flops / self._rate, streamed

    def seconds(self, *size: float) -> float:
        """Duration in a step of that `Mix`."""
        mix = Mix(*size)
        decode, compute, streamed = self._parts(mix)
        total = decode + self._decode if mix.rows else 0.0
        if mix.tokens:
            path = ceil(mix.longest / self._chunk) * _CHUNK_STEP_US * US if self._chunk > 1 else 0.0
            total += max(compute + streamed, path) + self._prompt
        return total

    def work(self, *size: float) -> Work:
        """Operations of the rule; states and streamed values."""
        mix = Mix(*size)
        decode, compute, streamed = self._parts(mix)
        moved = mix.rows * (self._state + self._token) + mix.tokens * self._bytes + mix.chunks * self._state
        launch = (self._decode if mix.rows else 0.0) + (self._prompt if mix.tokens else 0.0)
        flops = mix.rows * self._flops_row + mix.tokens * self._flops
        return Work(flops, moved, bound_of(compute, decode + streamed, launch))


class Indexer:
    """Scores of all cached tokens and the choice of the best, for one layer of DeepSeek Sparse Attention.

    Every query is multiplied with the index key of every token before it, in FP8 where the device has it; the scores, of 32
    bits, are written and then read twice to find the best.
    """

    launches = 4  # rotary embedding and quantisation of queries, writing the key, scores, choice

    def __init__(
        self, constants: ElementwiseConstants, gpu: GPUSpec, index: IndexerDims, bandwidth: float, compute: float
    ) -> None:
        """Args: bandwidth, compute: shares of the device's that attention kernels reach."""
        self.source = f"{constants.source}: launches; shares of attention kernels for scores (no timings were fitted)"
        self._pair = 2.0 * index.heads * index.dim
        self._key = float(index.cached_bytes)
        self._score = 4.0 * 3
        self._rate = compute * (gpu.fp8 or gpu.bf16)
        self._bandwidth = bandwidth * gpu.bandwidth
        self._launch = self.launches * constants.launch_us * US

    def _amounts(self, mix: Mix) -> tuple[float, float]:
        pairs = mix.context + mix.pairs / 2.0
        return pairs * self._pair, (mix.context + mix.keys) * self._key + pairs * self._score

    def seconds(self, *size: float) -> float:
        """Duration in a step of that `Mix`."""
        flops, moved = self._amounts(Mix(*size))
        return max(flops / self._rate, moved / self._bandwidth) + self._launch

    def work(self, *size: float) -> Work:
        """Every pair of a query and an earlier token."""
        flops, moved = self._amounts(Mix(*size))
        return Work(flops, moved, bound_of(flops / self._rate, moved / self._bandwidth, self._launch))
