"""What a language model is, as far as serving cost and memory are concerned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.models.states import StateDims
from workloads.errors import InputError

if TYPE_CHECKING:
    from sim.models.linears import Linear
    from sim.quantization.kv import KVMode
    from sim.quantization.weights import WeightMode

UNKNOWN_FAMILY = "the architecture"
"""How the notes of a model begin whose family is not known."""

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class MLADims:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): ranks and head parts, in values.

    Attributes:
        q_lora: rank of the query down-projection; 0 = queries are projected directly.
        kv_lora: rank of the latent that is cached. rope: width of the shared rotary key, cached beside it.
        nope: width of a head's part without rotation. v: width of a value head.
    """

    q_lora: int
    kv_lora: int
    rope: int
    nope: int
    v: int

    @property
    def cached(self) -> int:
        """Values cached per token and layer."""
        return self.kv_lora + self.rope


@dataclass(frozen=True, slots=True)
class IndexerDims:
    """The choice of keys of DeepSeek Sparse Attention (DeepSeek-V3.2): a small attention that scores every cached token.

    Attributes:
        heads, dim: of its queries; its one key a token has `dim` values. topk: tokens that attention then sees at most.
        layers: how many layers choose for themselves; the others take the choice of the one before.
    """

    heads: int
    dim: int
    topk: int
    layers: int

    @property
    def cached_bytes(self) -> int:
        """Bytes cached per token and layer: FP8 and a 32-bit scale for every 128 (vLLM's and SGLang's indexer cache)."""
        return self.dim + 4 * -(-self.dim // 128)


@dataclass(frozen=True, slots=True)
class FullDims:
    """Heads of layers that attend to everything, where windowed layers have others (Gemma 4).

    Attributes:
        kv_heads, head_dim: as in `ModelSpec`. shared: keys serve as values too, so that there is one projection for both; they
            are cached apart.
    """

    kv_heads: int
    head_dim: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape of a decoder-only transformer. Counts are of values (weights, heads, layers), never bytes.

    Attributes:
        name, hf_id: short name and Hugging Face id. family: config `model_type` (`llama`, `qwen3`, …).
        layers, hidden, heads, kv_heads, head_dim: as in the HF config; `head_dim` is the query/key width.
        ffn: width of the dense MLP. gated: SwiGLU-like (three matrices) rather than two.
        vocab, tied: vocabulary, and whether the LM head is the embedding.
        max_position: context length the model was made for, tokens.
        dtype: dtype of the checkpoint: `bf16`, `fp16` or `fp32`.
        experts, experts_per_token, expert_ffn: routed experts of a MoE layer (0: dense model).
        shared_experts: experts that every token visits, of the same width unless `shared_ffn` is that of all of them together.
        expert_hidden: width at which routed experts see a token, where that is narrower than the model (0: it is not).
        dense_first_layers: leading layers with a dense MLP instead of experts.
        window, window_layers: sliding window in tokens, and how many layers have it (0: none).
        mla: dimensions of multi-head latent attention; None for ordinary attention.
        state: layers with a recurrent state instead of a cache (Mamba, linear attention); None: there are none.
        full: heads of layers without the window, where these are others than `kv_heads` of `head_dim`.
        indexer: the choice of keys of sparse attention; None: attention sees all of them.
        attention_layers, mlp_layers: how many layers attend, and have an MLP or experts; None: all but the recurrent ones,
            and all.
        attn_gate: every attention head has a gate of its width, projected beside the queries.
        shared_gate: shared experts have a gate of one value.
        qkv_bias, o_bias, mlp_bias, head_bias, norm_bias, router_bias: which parts carry biases.
        norms: norms per layer (1 in parallel blocks, 4 in Gemma 2). qk_norm: q and k are normalised per head.
        sinks: one learned attention sink a head. embedding_norm: a norm after the embedding.
        parallel_block: attention and MLP read the same input, so one all-reduce a layer suffices.
        learned_positions: rows of a learned position table (0: rotary or ALiBi).
        native_quantization: weight mode the checkpoint ships in (`mxfp4`, `fp8-block`, …); "" = `dtype`.
        published_params: parameter count on the model's page; 0 = not published or not comparable.
        notes: what a reader should know.
    """

    name: str
    hf_id: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    tied: bool = False
    max_position: int = 4096
    dtype: str = "bf16"
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    shared_ffn: int = 0
    expert_hidden: int = 0
    dense_first_layers: int = 0
    window: int = 0
    window_layers: int = 0
    mla: MLADims | None = None
    state: StateDims | None = None
    indexer: IndexerDims | None = None
    full: FullDims | None = None
    attention_layers: int | None = None
    mlp_layers: int | None = None
    attn_gate: bool = False
    shared_gate: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    norm_bias: bool = False
    router_bias: bool = False
    norms: int = 2
    qk_norm: bool = False
    sinks: bool = False
    embedding_norm: bool = False
    parallel_block: bool = False
    learned_positions: int = 0
    native_quantization: str = ""
    published_params: int = 0
    notes: str = ""

    @property
    def attention(self) -> str:
        """`MHA`, `MQA`, `GQA` or `MLA`."""
        if self.mla is not None:
            return "MLA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def state_layers(self) -> int:
        """Layers with a recurrent state."""
        return self.state.layers if self.state else 0

    @property
    def attending_layers(self) -> int:
        """Layers with attention, which cache keys and values."""
        return self.layers - self.state_layers if self.attention_layers is None else self.attention_layers

    @property
    def near_layers(self) -> int:
        """Attending layers with a sliding window."""
        return min(self.window_layers, self.attending_layers) if self.window else 0

    @property
    def _with_mlp(self) -> int:
        return self.layers if self.mlp_layers is None else self.mlp_layers

    @property
    def mixing_layers(self) -> int:
        """Sums over a tensor-parallel group that attention and recurrent layers need, one each."""
        return self.attending_layers + self.state_layers

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self._with_mlp - self.dense_first_layers if self.experts else 0

    @property
    def dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return self._with_mlp - self.moe_layers

    @property
    def shared_width(self) -> int:
        """Width of all shared experts together."""
        return self.shared_ffn or self.shared_experts * self.expert_ffn

    @property
    def expert_input(self) -> int:
        """Width of what routed experts read and write."""
        return self.expert_hidden or self.hidden

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one unquantised weight."""
        return DTYPE_BYTES[self.dtype]

    @property
    def params_total(self) -> int:
        """Every weight of the model, embeddings, norms and biases included."""
        layer_weights = sum(linear.layers * linear.copies * linear.n * linear.k for linear in self.linears())
        return layer_weights + self.other_params

    @property
    def params_active(self) -> int:
        """Weights that one token touches: the total less the experts it does not visit (embeddings count in full)."""
        per_expert = (3 if self.gated else 2) * self.expert_input * self.expert_ffn
        if self.mlp_bias:
            per_expert += (2 if self.gated else 1) * self.expert_ffn + self.hidden
        return self.params_total - self.moe_layers * (self.experts - self.experts_per_token) * per_expert

    @property
    def other_params(self) -> int:
        """Weights outside the linear layers: embeddings, norms, biases, sinks."""
        return self.embedding_params + self._small_layers() + self._small_once()

    @property
    def embedding_params(self) -> int:
        """Token and position embeddings."""
        return (self.vocab + self.learned_positions) * self.hidden

    def _small_once(self) -> int:
        norm = self.hidden * (2 if self.norm_bias else 1)
        return norm * (2 if self.embedding_norm else 1) + (self.vocab if self.head_bias else 0)

    def _small_layers(self) -> int:
        """Norms, biases, sinks and what recurrent layers have besides, of all layers together."""
        width = self.heads * self.head_dim
        norms = self.norms * self.hidden * (2 if self.norm_bias else 1)
        attention = 2 * self.head_dim if self.qk_norm and self.full is None else 0
        attention += self.heads if self.sinks else 0
        attention += width + 2 * self.kv_heads * self.head_dim if self.qkv_bias else 0
        attention += self.hidden if self.o_bias else 0
        if self.mla is not None:
            attention += self.mla.q_lora + self.mla.kv_lora
        dense = (2 if self.gated else 1) * self.ffn + self.hidden if self.mlp_bias else 0
        sparse = 0
        if self.experts:
            sparse = self.experts * ((2 if self.gated else 1) * self.expert_ffn + self.hidden) if self.mlp_bias else 0
            sparse += self.experts if self.router_bias else 0
            sparse += self.hidden if self.shared_gate else 0
        total = self.layers * norms + self.attending_layers * attention
        if self.full is not None and self.qk_norm:
            far = self.attending_layers - self.near_layers
            total += 2 * (self.near_layers * self.head_dim + far * self.full.head_dim)
        total += self.state.layers * self.state.small_weights() if self.state else 0
        total += self.indexer.layers * 2 * self.indexer.dim if self.indexer else 0
        return total + self.moe_layers * sparse + self.dense_layers * dense

    def linears(self, tp: int = 1, ep: int = 1) -> tuple[Linear, ...]:
        """The linear layers as one GPU of a tensor-parallel group holds them (see `sim.models.linears`)."""
        from sim.models.linears import linears

        return linears(self, tp, ep)

    def check_parallel(self, tp: int = 1, pp: int = 1, ep: int = 1, dp: int = 1) -> None:
        """Whether the model can be split that way: `ep` must span a part of, or whole, tensor-parallel groups.

        Raises:
            InputError: heads, layers or experts do not divide.
        """
        if tp < 1 or pp < 1 or ep < 1 or dp < 1:
            raise InputError("degrees of parallelism must be at least 1")
        if self.heads % tp:
            ways = [t for t in (1, 2, 3, 4, 5, 6, 8, 16) if self.heads % t == 0]
            raise InputError(
                f"{self.name} has {self.heads} attention heads, which {tp} GPUs cannot share evenly",
                hint=f"tensor may be {', '.join(map(str, ways))}",
            )
        if pp > self.layers:
            raise InputError(f"{self.name} has {self.layers} layers, too few for pipeline: {pp}")
        if ep > 1 and not self.experts:
            raise InputError(f"{self.name} has no experts to split", hint="set expert: 1")
        if ep > 1 and self.experts % ep:
            raise InputError(f"{self.name} has {self.experts} experts, which {ep} GPUs cannot share evenly")
        if ep > tp * dp or (ep % tp and tp % ep):
            raise InputError(
                f"expert: {ep} does not fit tensor: {tp} × data: {dp}",
                hint="it must divide `tensor`, or be a multiple of it up to tensor × data",
            )

    def latent_bytes(self, mode: KVMode) -> int:
        """Bytes that latent attention caches of one token in one layer, without an indexer's key.

        With an indexer an 8-bit cache has a 32-bit scale for every 128 values of the latent and keeps the rotary key in 16 bit:
        656 bytes in DeepSeek-V3.2 (`fp8_ds_mla` of vLLM and FlashMLA; SGLang's `calculate_mla_kv_cache_dim`).
        """
        if self.indexer is not None and mode.bits == 8:
            return self.mla.kv_lora + 4 * -(-self.mla.kv_lora // 128) + 2 * self.mla.rope
        return mode.vector_bytes(self.mla.cached)

    def local_kv_heads(self, tp: int = 1) -> int:
        """KV heads on one GPU; replicated where there are fewer heads than GPUs (Megatron-LM's rule)."""
        return max(-(-self.kv_heads // tp), 1)

    def kv_bytes_per_token(self, kv_dtype: str | KVMode = "auto", tp: int = 1, pp: int = 1) -> int:
        """Bytes of KV cache that one token takes on one GPU, scales included; sliding windows are not subtracted.

        `2 × layers × KV heads × head dim × bytes`; with MLA `layers × (latent + rotary key) × bytes`, which tensor
        parallelism does not divide; with an indexer its keys besides. Recurrent layers cache nothing by token. With pipeline
        stages, of the stage with most layers.
        """
        from sim.quantization.kv import kv_mode_for

        mode = kv_mode_for(kv_dtype, self.dtype)
        layers = -(-self.attending_layers // pp)
        if self.mla is not None:
            index = -(-self.indexer.layers // pp) * self.indexer.cached_bytes if self.indexer else 0
            return layers * self.latent_bytes(mode) + index
        if self.full is not None:
            near, far = self.near_token_bytes(mode, tp, pp), -(-(self.attending_layers - self.near_layers) // pp)
            return near + 2 * far * max(-(-self.full.kv_heads // tp), 1) * mode.vector_bytes(self.full.head_dim)
        return 2 * layers * self.local_kv_heads(tp) * mode.vector_bytes(self.head_dim)

    def near_token_bytes(self, mode: KVMode, tp: int = 1, pp: int = 1) -> int:
        """The part of `kv_bytes_per_token` that layers with a sliding window take."""
        layers = -(-self.near_layers // pp)
        if self.mla is not None:
            return layers * self.latent_bytes(mode)
        return 2 * layers * self.local_kv_heads(tp) * mode.vector_bytes(self.head_dim)

    def weight_bytes(self, mode: str | WeightMode = "auto", tp: int = 1, pp: int = 1, ep: int = 1) -> int:
        """Bytes of weights on the fullest GPU, scales and zero points included.

        Embeddings, LM head, norms, biases and routers stay in the model's dtype. With pipeline stages the fullest is
        the last (LM head) or the first (embedding), whichever is larger.
        """
        from sim.quantization.weights import weight_mode_for

        chosen = weight_mode_for(mode, self)
        per_layer, head = 0.0, 0.0
        for linear in self.linears(tp, ep):
            size = linear.copies * chosen.linear_bytes(linear, self.dtype)
            if linear.kind == "head":
                head += size
            else:
                per_layer += size * linear.layers / self.layers
        per_layer += self._small_layers() * self.dtype_bytes / self.layers
        embedding = (-(-self.vocab // tp) + self.learned_positions) * self.hidden * self.dtype_bytes
        layers = -(-self.layers // pp)
        if self.tied:
            head = embedding if pp > 1 else 0.0
        ends = embedding + head if pp == 1 else max(embedding, head)
        return int(layers * per_layer + ends + self._small_once() * self.dtype_bytes)
