"""What guesses tokens in speculative decoding, as far as cost and memory are concerned."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sim.config import EngineConfig
from sim.models.linears import Linear
from sim.models.spec import ModelSpec
from sim.models.table import load_model
from workloads.errors import InputError, Place

EAGLE3_VOCAB = 32_000
"""Entries of the draft vocabulary that EAGLE-3 heads of Llama and Qwen have (`draft_vocab_size` of their configs)."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """Layers that propose drafts.

    Attributes:
        model: the shape that is computed for a draft: a whole model, or the one layer of a head.
        quantization: weight mode of its linear layers.
        extra: products beside the model's own: what joins embedding and hidden states, or Medusa's blocks.
        shared: whether embedding and LM head are the target's, and take no memory of their own.
        heads: heads that propose a draft each from the same hidden state, at once (Medusa); 0: one after another.
        source: what it follows.
    """

    model: ModelSpec
    quantization: str
    extra: tuple[Linear, ...] = ()
    shared: bool = True
    heads: int = 0
    source: str = ""

    def config(self, engine: EngineConfig) -> EngineConfig:
        """The engine's settings as they apply to it: a draft model that cannot be cut as finely runs whole on every GPU."""
        parallel = engine.parallel
        if self.model.heads % parallel.tensor:
            parallel = replace(parallel, tensor=1)
        if not self.model.experts:
            parallel = replace(parallel, expert=1)
        return replace(engine, quantization=self.quantization, parallel=parallel)

    def weight_bytes(self, engine: EngineConfig) -> int:
        """Bytes of its weights on one GPU."""
        parallel = self.config(engine).parallel
        size = (
            sum(linear.copies * linear.layers * linear.n * linear.k for linear in self.extra) * self.model.dtype_bytes
        )
        if self.heads:
            return size
        whole = self.model.weight_bytes(self.quantization, parallel.tensor, 1, parallel.expert)
        if self.shared:
            ends = self.model.vocab * self.model.hidden * self.model.dtype_bytes * (1 if self.model.tied else 2)
            whole -= ends // parallel.tensor
        elif self.model.vocab == EAGLE3_VOCAB:  # its embedding is the target's, its head its own
            whole -= self.model.vocab * self.model.hidden * self.model.dtype_bytes // parallel.tensor
        return max(whole, 0) + size

    def kv_bytes_per_token(self, engine: EngineConfig) -> int:
        """Bytes of its own keys and values for one token on one GPU."""
        if self.heads:
            return 0
        return self.model.kv_bytes_per_token(engine.kv.dtype, self.config(engine).parallel.tensor)


def drafter_of(model: ModelSpec, engine: EngineConfig) -> Drafter | None:
    """Who guesses for `model`; None where that costs the device nothing (`none`, `ngram`).

    Raises:
        InputError: no such draft model, or one with another vocabulary; a model with recurrent layers.
    """
    speculation = engine.speculation
    if speculation.active and model.state is not None:
        raise InputError(
            f"{model.name} has recurrent layers, whose states cannot be taken back over drafts that do not hold (not simulated)",
            place=Place(key="speculation.method"), hint="write method: none, or another model",
        )  # fmt: skip
    match speculation.method:
        case "draft-model":
            return _smaller(model, speculation.draft_model)
        case "eagle":
            fuse = Linear("fuse_proj", "draft", model.hidden, 2 * model.hidden, 1)
            return Drafter(
                _layer(model), "bf16", (fuse,), source="EAGLE (Li et al., ICML 2024): a layer over hidden states"
            )
        case "eagle3":
            layer = replace(_layer(model), vocab=min(EAGLE3_VOCAB, model.vocab), tied=False)
            width = (layer.heads + 2 * layer.kv_heads) * layer.head_dim // engine.parallel.tensor
            extra = (
                Linear("fuse_proj", "draft", model.hidden, 3 * model.hidden, 1),
                Linear("wider_qkv_proj", "draft", width, model.hidden, 1),
            )
            return Drafter(
                layer, "bf16", extra, shared=False, source="EAGLE-3 (Li et al., 2025): a layer and a small vocabulary"
            )
        case "mtp":
            layer = replace(
                model, name=f"{model.name} MTP", layers=1, dense_first_layers=0, window=0, window_layers=0, tied=False,
                published_params=0,
            )  # fmt: skip
            fuse = Linear("fuse_proj", "draft", model.hidden, 2 * model.hidden, 1)
            return Drafter(
                layer, engine.quantization, (fuse,), source="DeepSeek-V3 (2024), 2.2: one layer of the model's kind"
            )
        case "medusa":
            count = speculation.num_speculative_tokens
            heads = (
                Linear("block_proj", "draft", model.hidden, model.hidden, count),
                Linear("lm_head", "draft", -(-model.vocab // engine.parallel.tensor), model.hidden, count),
            )
            return Drafter(
                _layer(model), "bf16", heads, heads=count, source="Medusa (Cai et al., ICML 2024): a head a token"
            )
    return None


def _smaller(model: ModelSpec, name: str) -> Drafter:
    place = Place(key="speculation.draft_model")
    try:
        small = load_model(name)
    except InputError as error:
        raise InputError(error.message, place=place, hint=error.hint) from None
    # A vocabulary is padded to a round size now and then: a tenth more is no other tokenizer.
    if not 0.9 <= small.vocab / model.vocab <= 1.1:
        raise InputError(
            f"{small.name} has {small.vocab:,} tokens in its vocabulary and {model.name} {model.vocab:,}: it cannot draft for it",
            place=place, hint="a draft model needs the target's tokenizer",
        )  # fmt: skip
    return Drafter(small, "auto", shared=False, source=f"{small.name}, a model of its own")


def _layer(model: ModelSpec) -> ModelSpec:
    """One dense layer as wide as the model, in 16 bit."""
    heads, kv_heads, width = model.heads, model.kv_heads, model.head_dim
    if model.mla is not None:  # heads of EAGLE have ordinary attention
        width = 128
        heads = kv_heads = max(model.hidden // width, 1)
    ffn = model.ffn or model.experts_per_token * model.expert_ffn
    return ModelSpec(
        f"{model.name} head", "", model.family, 1, model.hidden, heads, kv_heads, width, ffn, model.vocab, gated=model.gated,
        max_position=model.max_position,
    )  # fmt: skip
