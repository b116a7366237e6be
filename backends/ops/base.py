"""The operators that a forward pass is written against, and the packed batch they work on.

The model code (`backends.model.model`) calls nothing but these. `backends.ops.reference` implements them in plain torch; an
implementation with kernels of its own has the same face and is tested against that one.

Keys and values lie in *pages*: `[pages, page size, KV heads, head dim]`, one such tensor for keys and one for values in every
layer. A *slot* is one token's place: page × page size + offset. Paged allocation has pages of a block; slots of single tokens
(radix trees, slabs) are pages of one. Pages in fp8 (e4m3 or e5m2) hold values divided by a scale: one for keys, one for values.
Pages in int8 hold, beside them, a scale for every head of every token: `[pages, page size, KV heads]` in float16, written with
the values it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from backends.quantization.base import QuantizedBank, QuantizedLinear


KVScales: TypeAlias = "tuple[float, float] | tuple[Tensor, Tensor]"
"""Of keys and of values: numbers for fp8 pages, tensors [pages, page size, KV heads] in float16 for int8 pages."""


@dataclass(frozen=True, slots=True)
class Dense:
    """An unquantised linear layer: `weight` [outputs, inputs], `bias` [outputs] or None."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """All tokens of a step, one after the other without padding. T tokens of S sequences, of which R positions are sampled.

    Attributes:
        ids: [T] int64, token ids. positions: [T] int64, their places in their sequences.
        slots: [T] int64, where their keys and values go; −1: nowhere.
        query_starts: [S + 1] int64, first token of every sequence, then T.
        kv_lengths: [S] int64, tokens of every sequence that are in the cache once this step's are written.
        block_tables: [S, P] int64, pages of every sequence in order; what lies beyond its length is never read.
        sample_rows: [R] int64, the tokens whose successors are wanted.
        queries, lengths: [S] on the host: tokens of this step and of the cache, as `query_starts` and `kv_lengths` have them.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    query_starts: Tensor
    kv_lengths: Tensor
    block_tables: Tensor
    sample_rows: Tensor
    queries: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How each of R tokens is chosen. All tensors [R].

    Noise is a function of `seed`, `request`, `sample` and `position` alone, so that who else is in the batch does not matter.

    Attributes:
        temperature: float32; 0: the most likely token. top_k: int64, 0: all. top_p, min_p: float32; 1 and 0: all.
        seed, request, sample, position: int64; the token's own coordinates.
        greedy: whether every temperature is 0. filtered: whether any of top_k, top_p, min_p leaves something out.
        penalty: float32, above 0: what tokens that a row has seen are made less likely by; 1: not at all. None: nobody has one.
        seen_rows, seen_ids: [N] int64, pairs (row, token id) of what was seen, prompt included, in any order, repeated or not;
            only rows with a penalty need any.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    request: Tensor
    sample: Tensor
    position: Tensor
    greedy: bool
    filtered: bool
    penalty: Tensor | None = None
    seen_rows: Tensor | None = None
    seen_ids: Tensor | None = None


class Operators(Protocol):
    """What a forward pass needs. Activations are `[T, width]` in the model's dtype; sums are accumulated in float32.

    Attributes:
        recordable: whether a decode step may be recorded as a CUDA graph: nothing waits for the device or is sent to it, and
            what is launched depends on a batch's shapes, `queries` and `lengths` alone, of which `lengths` may be too large.
    """

    recordable: bool

    def embed(self, table: Tensor, ids: Tensor) -> Tensor:
        """Rows `ids` [T] of an embedding table [vocabulary, width]."""

    def gather(self, x: Tensor, rows: Tensor) -> Tensor:
        """Rows `rows` [R] of `x` [T, width]."""

    def linear(self, x: Tensor, layer: Dense | QuantizedLinear) -> Tensor:
        """`x` times the layer's weight, plus its bias."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm over the last axis (Zhang and Sennrich 2019), times `weight`. Any leading axes."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The norm of `x + residual`, and that sum, rounded to the activations' dtype before it is normalised."""

    def rotary(self, positions: Tensor, frequencies: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Cosine and sine [T, head dim / 2] in float32 of position × frequency, both times `scale`."""

    def rope_and_cache(
        self, q: Tensor, k: Tensor, v: Tensor, rotary: tuple[Tensor, Tensor], k_pages: Tensor, v_pages: Tensor, slots: Tensor,
        *, kv_scales: KVScales = (1.0, 1.0),
    ) -> Tensor:  # fmt: skip
        """Rotate `q` [T, heads, dim] and `k` [T, KV heads, dim] (halves, not pairs: GPT-NeoX's layout), then write `k` and `v`
        to their slots; slot −1 is skipped. No slot may come twice.

        Args:
            kv_scales: of keys and of values. Used by fp8 and int8 pages alone. fp8: what is written is divided by it, and cut
                off at the largest value of the format. int8: tensors, into which the largest absolute value of a head over 127
                is written (see `backends.ops.int8_pages`).

        Returns:
            The rotated `q`.
        """

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PackedBatch, *, scale: float, window: int = 0,
        softcap: float = 0.0, kv_scales: KVScales = (1.0, 1.0),
    ) -> Tensor:  # fmt: skip
        """Causal attention of `q` [T, heads, dim] to the pages of each token's own sequence.

        Query i of the n that a sequence has in this step sees its first `length − n + i + 1` keys, of which, with a `window`,
        the last `window`. Query heads share KV heads in equal groups. A sequence of length 0 gives zeros.

        Args:
            scale: factor on the products of queries and keys.
            softcap: if set, scores become `softcap × tanh(score / softcap)`.
            kv_scales: of keys and of values, as they were written. Used by fp8 and int8 pages alone.

        Returns:
            [T, heads, dim].
        """

    def silu_mul(self, x: Tensor) -> Tensor:
        """`silu(gate) × up` of `x` [T, 2 × width], gate first; computed in float32."""

    def experts(
        self, x: Tensor, router: Dense, gate_up: Tensor | QuantizedBank, down: Tensor | QuantizedBank, top_k: int,
        renormalise: bool,
    ) -> Tensor:  # fmt: skip
        """A mixture of SwiGLU experts: each token visits the `top_k` of highest router probability.

        `out[t] = Σ_e p[t, e] × down[e] @ (silu(gate[e] @ x[t]) × up[e] @ x[t])` over the experts e that token t has chosen, where
        p is the softmax in float32 over all experts of `x` times the router. Mixtral (`renormalise`) and Qwen 3 MoE
        (`norm_topk_prob`) differ in nothing but the last step.

        Args:
            x: [T, width]. router: weight [experts, width]. T may be 0.
            gate_up: [experts, 2 × expert width, width], gate first. down: [experts, width, expert width]. Both may be packed.
            renormalise: whether the probabilities of the chosen are made to add up to 1.

        Returns:
            [T, width] in the dtype of `x`.
        """

    def logits(self, x: Tensor, head: Dense) -> Tensor:
        """The LM head; float32 whatever the model's dtype."""

    def sample(self, logits: Tensor, how: SamplingBatch) -> Tensor:
        """Choose one token a row of `logits` [R, vocabulary].

        The repetition penalty comes first (Keskar et al. 2019: positive logits of what was seen are divided by it, others
        multiplied), for greedy rows too; then temperature, min-p, top-k and top-p, each on what the one before left.

        Returns:
            [R] int64.
        """
