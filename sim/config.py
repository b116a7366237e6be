"""What can be set on an engine: plain frozen values, filled by a preset and overridden by the user.

`sim.presets` has the presets, each with the source of its defaults. The front door reads YAML into these.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How batches are chosen.

    Attributes:
        name: `static`, `continuous` or `chunked-prefill`, or `module:Class` of your own.
        max_num_seqs: most sequences that may hold KV at once.
        max_num_batched_tokens: token budget of a step.
        policy: order of the waiting queue: `fcfs`, `priority`, `lpm` (longest prefix match), `shortest-job` (an oracle).
        gate: admission rule: `optimistic`, `watermark`, `full-prompt`, `ratio`, `reserve-output`, `max-length`, `future-peak`.
        watermark: share of the pool that admission leaves free (gates `watermark`, `full-prompt`).
        victim: who gives memory back: `last-admitted`, `lowest-priority`, `fewest-outputs`, `none` (never preempt).
        preemption: `recompute` or `swap`.
        requeue: where a victim returns: `head`, `tail` or `arrival` order.
        prefill: `mixed` (beside decodes) or `first` (a step of its own).
        long_prefill_token_threshold: longest chunk a prompt may take in one step; 0 = no limit.
        chunk_unit: chunks that do not end a prompt are rounded down to this many tokens.
        max_partial_prefills: how many prompts may be part-way at once.
        admit_after_preemption: whether a step that preempted may still admit.
        hold_shared: a sequence waits while another computes the block that it would compute next (TensorRT-LLM).
        conservativeness: SGLang's `schedule_conservativeness` (gate `ratio`).
        batch_wait: static batching waits this many seconds for a batch to fill; `max_num_seqs` is its size.
        prefill_wait_steps: decode steps between two prefills when requests wait (LightLLM's `router_max_wait_tokens`).
        poll_interval: engine steps between two looks for new requests while something runs (SGLang's
            `scheduler_recv_interval`); a step with prompts is always followed by one.
        streaming: static batching hands tokens out as they come rather than at the end of the batch.
        pad: static batching pads prompts to the longest of the batch and computes finished rows to its end.
    """

    name: str = "chunked-prefill"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    policy: str = "fcfs"
    gate: str = "full-prompt"
    watermark: float = 0.0
    victim: str = "last-admitted"
    preemption: str = "recompute"
    requeue: str = "head"
    prefill: str = "mixed"
    long_prefill_token_threshold: int = 0
    chunk_unit: int = 1
    max_partial_prefills: int = 1_000_000
    admit_after_preemption: bool = False
    hold_shared: bool = False
    conservativeness: float = 1.0
    batch_wait: float = 0.0
    prefill_wait_steps: int = 0
    poll_interval: int = 1
    streaming: bool = True
    pad: bool = True


@dataclass(frozen=True, slots=True)
class KVConfig:
    """Where keys and values live.

    Attributes:
        allocator: `contiguous`, `paged` or `radix`, or `module:Class` of your own.
        block_size: tokens a block (`paged`) or page (`radix`).
        prefix_caching: whether computed blocks are kept and shared (`radix` always may).
        register: when a block may first be hit: `scheduled` (vLLM), `computed` (after its step; SGLang, TensorRT-LLM).
        slab: contiguous only: `max-length`, `power-of-two` (buddy) or `exact` (an oracle).
        dtype: KV dtype by name of the quantization registry; `auto` = the model's.
        memory_utilization: share of device memory for weights, activations and KV, in the preset's own sense; with
            `static`, 0 = the engine's automatic share.
        memory_rule: sizing formula: `total` (vLLM), `static` (SGLang), `free` (TensorRT-LLM).
        capacity_tokens: tokens of KV on the device, overriding the sizing; 0 = size from memory.
        swap_gib: host memory for swapped sequences.
    """

    allocator: str = "paged"
    block_size: int = 16
    prefix_caching: bool = True
    register: str = "scheduled"
    slab: str = "max-length"
    dtype: str = "auto"
    memory_utilization: float = 0.9
    memory_rule: str = "total"
    capacity_tokens: int = 0
    swap_gib: float = 4.0


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """Degrees of parallelism; `tensor × pipeline × data` GPUs serve one model."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Speculative decoding: tokens are guessed cheaply, and verified together by the model.

    Attributes:
        method: who guesses: `none`, `ngram` (prompt lookup on the host), `draft-model` (a smaller model), `eagle` and `eagle3`
            (one layer over the model's hidden states), `mtp` (a layer that came with the model), `medusa` (a head a token).
        num_speculative_tokens: drafts of a sequence and step.
        acceptance: how likely a draft holds if all before it in its step did: of every draft alike, or one rate for each.
        draft_model: the smaller model, by name or folder (`draft-model`).
        disable_by_batch_size: no drafts in steps in which more sequences than this decode; 0 = always.
    """

    method: str = "none"
    num_speculative_tokens: int = 0
    acceptance: float | tuple[float, ...] | None = None
    draft_model: str = ""
    disable_by_batch_size: int = 0

    @property
    def active(self) -> bool:
        """Whether anything is guessed at all."""
        return self.method != "none"

    @property
    def tokens_a_step(self) -> float:
        """Tokens that a step gives a sequence on average: all drafts up to the first that does not hold, and one more."""
        total = held = 1.0
        for rate in self.rates if self.active else ():
            held *= rate
            total += held
        return total

    @property
    def rates(self) -> tuple[float, ...]:
        """`acceptance` of each of the drafts."""
        if isinstance(self.acceptance, tuple):
            return self.acceptance
        return (self.acceptance or 0.0,) * self.num_speculative_tokens


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """A whole engine.

    Attributes:
        preset: the name it was made from, with its date (`vllm@0.33`).
        version: the engine's version that was named, where the preset is of another (`sglang@0.4.4`: 0.4.4, simulated as 0.5);
            else "".
        max_model_len: longest prompt plus answer; 0 = the model's own limit.
        quantization: weight mode by name of the registry; `auto` = the model's.
        depth: plans in flight at once: 1, or 2 where host and device overlap.
        stops_ahead: with several plans in flight, sequences sure to stop at their declared limit are not planned again (vLLM);
            otherwise every sequence is computed once too often.
        cuda_graphs: whether steps are captured beforehand; without, every operation is launched by itself.
        cuda_graph_padding: whether a batch runs in the graph of the next larger size; without, one of a size that was not
            captured is launched operation by operation (TensorRT-LLM's enable_padding, SGLang's disable_cuda_graph_padding).
        host: name of the host-time constants (`vllm`, `sglang`, `tensorrt-llm`, `none`).
    """

    preset: str = "vllm"
    version: str = ""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    kv: KVConfig = field(default_factory=KVConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    quantization: str = "auto"
    max_model_len: int = 0
    depth: int = 1
    stops_ahead: bool = True
    cuda_graphs: bool = True
    cuda_graph_padding: bool = True
    host: str = "vllm"

    @property
    def built_ahead(self) -> bool:
        """Whether TensorRT-LLM is meant in its C++ runtime, which plans a step when the last is done.

        The PyTorch runtime of 1.0 and later does so too where its overlap scheduler is switched off.
        """
        return self.depth == 1 and not self.preset.startswith("tensorrt-llm@1.")
