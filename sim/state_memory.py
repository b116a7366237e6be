"""Where recurrent states of sequences are kept, and what of the KV pool that leaves, as each engine has it.

* `blocks` (vLLM since its v1 engine runs such models): one pool for both. The block of an attention layer is enlarged until its
  bytes are no fewer than a layer's state, which is padded to as many; layers form groups of equal size, and a sequence takes a
  block for its state in every recurrent group (`vllm/platforms/interface.py`, `_align_hybrid_block_size`;
  `vllm/v1/core/kv_cache_utils.py`). Prefix caching is off unless it is asked for; with it a state more is kept, which then lies
  at the end of a block (`mamba_cache_mode: align`).
* `ratio` (SGLang): a pool of their own, `mamba_full_memory_ratio` 0.9 the size of the KV pool. A sequence that runs takes one
  slot; with the radix cache five are counted for each, for states that prefixes keep and that are being written
  (`model_executor`, `_calculate_mamba_ratio`), which bounds how many run.
* `reserved` (TensorRT-LLM, vLLM v0, contiguous slabs): states of the largest batch are set aside before the KV pool is sized
  (`MambaCacheManager` of both).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from sim.config import EngineConfig
from sim.models.spec import ModelSpec
from sim.models.states import STATE_BYTES
from sim.quantization.kv import kv_mode_for

_ALIGN, _ALIGN_LATENT = 16, 64  # tokens of the smallest block that vLLM's attention kernels take
_RATIO = 0.9  # SGLang, mamba_full_memory_ratio
_SLOTS = 5  # SGLang, of a running sequence with the radix cache and overlapped scheduling
_RUNNING_SLOTS = 3  # of these, what it uses itself: its state, and two that are being written
_SIMILAR = 1.25  # vLLM: groups of the larger kind's size, where the smaller has nearly as many layers
_MOST_RESERVED = 0.5  # of what states and KV share, where nobody said how many sequences run


def state_rule(config: EngineConfig) -> str:
    """`blocks`, `ratio` or `reserved`: see above."""
    family, _, _ = config.preset.partition("@")
    if family.startswith("sglang"):
        return "ratio"
    return "blocks" if family in ("vllm", "vllm-v1") and config.kv.allocator == "paged" else "reserved"


def fitted(model: ModelSpec, config: EngineConfig) -> EngineConfig:
    """The configuration as the engine starts with it for this model, where nobody asked for prefix caching."""
    if model.state is None or state_rule(config) == "ratio":
        return config
    return replace(config, kv=replace(config.kv, prefix_caching=False))


def recurrent_dtype(model: ModelSpec, engine: str) -> str:
    """Dtype of the recurrent state: the checkpoint's wish, else 32 bits in SGLang (`mamba_ssm_dtype`), else the model's."""
    state = model.state
    if state.kind == "kda":
        return "fp32"
    return state.dtype or ("fp32" if engine.startswith("sglang") else model.dtype)


def recurrent_value_bytes(model: ModelSpec, engine: str) -> int:
    """Bytes of one value of the recurrent state."""
    return STATE_BYTES[recurrent_dtype(model, engine)]


def state_bytes(model: ModelSpec, config: EngineConfig) -> int:
    """Bytes that the states of one sequence take on one GPU, in all layers (of the fullest pipeline stage)."""
    if model.state is None:
        return 0
    return -(-model.state.layers // config.parallel.pipeline) * _layer_bytes(model, config)


def _layer_bytes(model: ModelSpec, config: EngineConfig) -> int:
    dtype = recurrent_dtype(model, config.preset)
    return model.state.layer_bytes(config.parallel.tensor, dtype, model.dtype)


class Blocks(NamedTuple):
    """How rule `blocks` divides the pool.

    Attributes:
        tokens: of a block. bytes_per_token: of a token in the pool, on one GPU. per_sequence: blocks that the states of a
            sequence take.
    """

    tokens: int
    bytes_per_token: int
    per_sequence: int


def blocks(model: ModelSpec, config: EngineConfig) -> Blocks:
    """Blocks of a model with recurrent layers, under rule `blocks`."""
    tensor, pipeline = config.parallel.tensor, config.parallel.pipeline
    attending, recurrent = -(-model.attending_layers // pipeline), -(-model.state.layers // pipeline)
    token = model.kv_bytes_per_token(kv_mode_for(config.kv.dtype, model.dtype), tensor, pipeline) / attending
    unit = max(_ALIGN if model.mla is None else _ALIGN_LATENT, config.kv.block_size)
    size = unit * -(-_layer_bytes(model, config) // int(unit * token))
    few, many = sorted((attending, recurrent))
    group = many if many < _SIMILAR * few else few
    groups = -(-attending // group)
    states = -(-recurrent // group) * (2 if config.kv.prefix_caching else 1)
    return Blocks(size, int(token * group * groups), -(-states // groups))


class StatePool(NamedTuple):
    """States outside of the KV pool, on one GPU.

    Attributes:
        bytes: of all of them. slots: sequences that may run at once. kept: states that prefixes may keep beside those of a full
            batch.
    """

    bytes: int
    slots: int
    kept: int = 0


def state_pool(model: ModelSpec, config: EngineConfig, rest: int) -> StatePool:
    """The pool of states under rules `ratio` and `reserved`.

    Args:
        rest: bytes that states and KV share.
    """
    each, most = state_bytes(model, config), config.scheduler.max_num_seqs
    if rest <= 0:
        return StatePool(0, 0)
    if state_rule(config) == "ratio":
        held = int(rest * _RATIO / (1 + _RATIO)) // each
        if config.kv.prefix_caching:
            running = held // _SLOTS
            return StatePool(held * each, running, held - _RUNNING_SLOTS * running)
        return StatePool(min(held, most) * each, min(held, most))
    slots = min(most, int(rest * _MOST_RESERVED) // each)
    return StatePool(slots * each, slots)
