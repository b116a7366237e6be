"""Operators of layers that are not plain attention: recurrent states, and the indexer of sparse attention.

The rules of Gated DeltaNet and Mamba-2 for prompts are fitted to a few published timings of the kernels that vLLM and SGLang run
by default. All else are rooflines by the structure of the algorithm, and the cost model says so.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from sim.cost.constants import Constants, ElementwiseConstants, PrefillConstants
from sim.cost.operators import US, Operator, Work, bound_of
from sim.hardware.gpu import GPUSpec
from sim.models.spec import IndexerDims, ModelSpec
from sim.models.states import StateDims
from sim.state_memory import recurrent_value_bytes

CHUNK = {"gated-delta": 64, "kda": 64, "mamba2": 256, "lightning": 256, "mamba1": 1}
"""Tokens that are computed together as matrix products (flash-linear-attention; Mamba-2's default; one by one in Mamba)."""
_SHARES = {"blackwell": 0.036}
_USUAL_SHARE = 0.115
"""Of the tensor cores' peak, of rules that are computed in chunks by Triton kernels. A token and head of 128 × 128 of Gated
DeltaNet takes 1.5-1.6 ns on H100 (flashinfer-ai/flashinfer#3866, #3902) and 2.3 on B200 (#3001, lightseekorg/tokenspeed#331); one
of 128 × 64 of Mamba-2 takes 0.62-0.7 ns on H100 (vllm-project/vllm#27299)."""
_CARRYING = 0.3
"""Share of a rule's time that the kernel takes which carries the state from chunk to chunk."""
_STEP_US = {"blackwell": 1.6}
_USUAL_STEP_US = 1.2
"""Of that kernel, microseconds a chunk, however few heads there are: what splitting a prompt of 8,192 tokens in two saves with 8
heads on H100 (#3866), and on B200 (#3001)."""
_TIMED = ("gated-delta", "mamba2")
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
        rule = "flash-linear-attention's and Mamba-2's kernels on H100 and B200, as timed in pull requests of FlashInfer and vLLM"
        if state.kind not in _TIMED:
            rule = "the structure of the algorithm, at the rate of Gated DeltaNet's kernels (no timings of its own)"
        self.source = f"rule: {rule}; the rest: {constants.source}"
        decode, self.launches = _KERNELS[state.kind]
        heads, groups = state.local(tp)
        key, value, self._chunk = state.key_dim, state.value_dim, CHUNK[state.kind]
        inner, keys = heads * value, groups * key
        self._state = 2.0 * (state.recurrent_values(tp) * recurrent_bytes + state.conv_values(tp) * 2)
        self._token = 2.0 * (5.0 * inner + 4.0 * keys)  # through the convolution, and gate and result through the norm
        self._flops_row = 6.0 * heads * key * value
        self._flops = heads * self._per_head(state.kind, key, value)
        self._rule_bytes = 2.0 * self._streamed(state.kind, heads, groups, key, value)
        self._bandwidth = constants.bandwidth * gpu.bandwidth
        self._rate = _SHARES.get(gpu.arch, _USUAL_SHARE) * gpu.bf16
        if state.kind == "mamba1":  # a scan on the ordinary cores, whose rate is a small share of the tensor cores'
            self._rate = 0.06 * gpu.bf16
        self._step = _STEP_US.get(gpu.arch, _USUAL_STEP_US) * US if self._chunk > 1 else 0.0
        self._decode, self._prompt = decode * constants.launch_us * US, self.launches * constants.launch_us * US

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
        """Values that the rule reads and writes for a token of a prompt."""
        own = 2.0 * heads * value + 2.0 * groups * key
        if kind == "mamba1":
            return own
        own += heads * key * value / self._chunk
        return own + heads * (key + 2.0 * value + self._chunk) if kind in ("gated-delta", "kda") else own

    def rule(self, tokens: float, longest: float) -> float:
        """Seconds of the rule alone for prompts of `tokens` tokens in all, the longest of `longest`."""
        busy = max(tokens * self._flops / self._rate, tokens * self._rule_bytes / self._bandwidth)
        path = ceil(longest / self._chunk) * self._step
        return (1.0 - _CARRYING) * busy + max(_CARRYING * busy, path)

    def seconds(self, *size: float) -> float:
        """Duration in a step of that `Mix`."""
        mix = Mix(*size)
        total = mix.rows * (self._state + self._token) / self._bandwidth + self._decode if mix.rows else 0.0
        if mix.tokens:
            passing = (mix.tokens * self._token + mix.chunks * self._state) / self._bandwidth
            total += self.rule(mix.tokens, mix.longest) + passing + self._prompt
        return total

    def work(self, *size: float) -> Work:
        """Operations of the rule; states and streamed values."""
        mix = Mix(*size)
        passing = (mix.rows + mix.chunks) * self._state + (mix.rows + mix.tokens) * self._token
        moved = passing + mix.tokens * self._rule_bytes
        launch = (self._decode if mix.rows else 0.0) + (self._prompt if mix.tokens else 0.0)
        flops = mix.rows * self._flops_row + mix.tokens * self._flops
        compute = self.rule(mix.tokens, mix.longest) if mix.tokens else 0.0
        return Work(flops, moved, bound_of(compute, passing / self._bandwidth, launch))


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


def beside(
    model: ModelSpec, gpu: GPUSpec, constants: Constants, tp: int, prefill: PrefillConstants
) -> list[tuple[str, Operator, int]]:
    """What recurrent layers and an indexer do beside their projections, each with its name and how often it runs.

    Args: prefill, constants of the attention of prompts. Every GPU of a tensor-parallel group chooses all keys.
    """
    found: list[tuple[str, Operator, int]] = []
    if (state := model.state) is not None:
        size = recurrent_value_bytes(model, constants.engine)
        found.append(("recurrence", RecurrentLayer(constants.elementwise, gpu, state, tp, size), state.layers))
    if (index := model.indexer) is not None:
        shares = constants.mla.bandwidth, prefill.compute
        found.append(("indexer", Indexer(constants.elementwise, gpu, index, *shares), index.layers))
    return found
