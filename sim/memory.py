"""How much KV cache fits: the memory of one GPU, divided the way each engine divides it.

Three rules (`kv.memory_rule`), each with its engine's own meaning of `kv.memory_utilization`:

* `total` (vLLM): utilization × total − weights − activation peak − what is allocated outside the framework.
* `static` (SGLang): the fraction covers weights and pool; everything else lives in the rest. With utilization 0 the
  fraction is automatic: it leaves a reserve of 512 MB + 1.5 MB a token of the largest chunk + 2 MB a captured batch
  row + 1 GB for every 8 GPUs of the model, and at least 10 GB on cards above 60 GB (`server_args.py`).
* `free` (TensorRT-LLM): utilization × what is free once weights and activations are placed, less 1.5 % lost to blocks. What
  its two runtimes place beside the weights is in `sim.tensorrt_memory`.

Layers with a sliding window keep no more than the window of a request where the engine's allocator tells layers apart
(`window_rule`), so that a token takes less memory the longer its request is. The pool is then counted in tokens of
requests of one typical length.

The activation peak is an estimate from shapes, not a measurement; `MemoryBudget` keeps every part for printing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sim import state_memory, tensorrt_memory
from sim.config import EngineConfig
from sim.hardware.gpu import GIB, GPUSpec
from sim.models.drafter import drafter_of
from sim.models.spec import ModelSpec
from sim.quantization.kv import kv_mode_for
from sim.quantization.weights import WeightMode, weight_mode_for
from workloads.errors import InputError, Place, unknown_name

MIB = 1 << 20
# CUDA context and library workspaces: vLLM's start-up lines give 0.10 to 0.35 GiB of "non-torch memory" on one GPU
# (vllm-project/vllm#12330, #10517, #12126).
_CONTEXT_BYTES = GIB // 4
# Buffers of collectives, as soon as several GPUs work together. Over PCIe next to nothing: 0.25-0.30 GiB in all with two L40S
# or RTX 4090 (vllm-project/vllm#15815, #13061). From Hopper on NCCL also reduces inside the switch and keeps buffers for that:
# two H100 have 1.8 GiB each more than one (vllm-project/vllm#10511), four B200 2.1 GiB in all (sgl-project/sglang#22537). Links
# of Ampere and AMD lie between: about 1 GiB, recalled.
_COLLECTIVE_BYTES = {"switch": 7 * GIB // 4, "link": GIB, "pcie": GIB // 16}
# Peak of sampling, bytes a value of the logits, of engines that measure it: sorting for top-k and top-p keeps values in 32 bit
# twice, their indices in 64, probabilities and sums; vLLM's own kernel for it (vllm-project/vllm#33538) sorts nothing. From
# peaks that were printed, or what is left beside the weights: vLLM 0.6 and 0.7 35-39 (#10511, #12330, #13882), 0.9 to 0.11
# 34-36 (#21348, #23278, #27508), 0.30 about 20 (#48037, silybench-data). Elsewhere three copies in 32 bit are assumed.
_LOGIT_BYTES = {"vllm-v0": 38, "vllm@0.8": 36, "vllm@0.14": 20, "vllm@0.33": 20}
_LOGIT_COPIES = 12
# CUDA graphs, which vLLM counts since 0.21: 0.13-0.17 GiB up to 16 rows as its start-up lines estimate them, and about half
# a GiB up to 512 rows, as left over on an H100 (0.30).
_GRAPH_BYTES = GIB // 8
_GRAPH_ROW_BYTES = 0.75 * MIB
_NO_BUDGET = 1 << 24  # a token budget of this many or more stands for none
TYPICAL_TOKENS = 2048
"""Length of request for which windowed layers are sized where nobody says another."""
_SWA_RATIO = 0.8
_SPECULATION_RESERVE = {"draft-model": 6144, "eagle": 2048, "eagle3": 2048, "mtp": 2048}
"""MiB that SGLang's automatic fraction leaves besides for a drafter (`server_args.py`)."""
_BLOCK_LOSS = 0.015  # TensorRT-LLM, as aiconfigurator's backend for it subtracts


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Where the memory of one GPU goes. All figures are bytes per GPU unless they say tokens or blocks.

    Attributes:
        model, gpu, rule, utilization: what was sized, and how; `utilization` is the fraction in effect.
        gpus: GPUs that serve one replica.
        total_bytes, weight_bytes, activation_bytes, overhead_bytes: the parts that do not depend on the rule.
        draft_bytes: weights of what guesses tokens (speculative decoding); `weight_bytes` has them too.
        kv_bytes: the KV pool. unused_bytes: left over by the rule (not an error: head room).
        bytes_per_token: KV of one token on one GPU, averaged over a request of the typical length.
        block_size, blocks, kv_tokens: the pool in blocks and in tokens (`blocks × block_size`).
        max_model_len: longest request, tokens.
        weights, kv_dtype: names of the modes in effect.
        fixed: the pool was set by `kv.capacity_tokens`, not sized.
        state_bytes: recurrent states outside of the KV pool. state_slots: sequences that may run with them at once; 0: as many
            as else. kept_states: those that prefixes may keep. state_tokens: tokens of the pool that the states of one sequence
            take; see `sim.state_memory`.
    """

    model: str
    gpu: str
    rule: str
    utilization: float
    gpus: int
    total_bytes: int
    weight_bytes: int
    activation_bytes: int
    overhead_bytes: int
    kv_bytes: int
    unused_bytes: int
    bytes_per_token: int
    block_size: int
    blocks: int
    kv_tokens: int
    max_model_len: int
    weights: str
    kv_dtype: str
    fixed: bool = False
    state_bytes: int = 0
    state_slots: int = 0
    kept_states: int = 0
    state_tokens: int = 0
    draft_bytes: int = 0

    @property
    def full_length_requests(self) -> int:
        """Requests of the longest allowed length that fit at once."""
        return self.requests(self.max_model_len)

    def batch(self, context: float) -> int:
        """Sequences of `context` tokens on average whose KV and states fit at once."""
        fits = int(self.kv_tokens / max(context + self.state_tokens, 1))
        return min(fits, self.state_slots) if self.state_slots else fits

    def requests(self, context: int) -> int:
        """Requests of `context` tokens that fit at once."""
        if self.state_tokens:  # blocks are large, so what does not fill one counts
            held = -(-context // self.block_size) * self.block_size + self.state_tokens
            return self.kv_tokens // held
        fits = concurrent_requests(self.kv_bytes, context, self.bytes_per_token)
        return min(fits, self.state_slots) if self.state_slots else fits


def concurrent_requests(kv_bytes: float, context: int, bytes_per_token: int) -> int:
    """How many requests of `context` tokens fit into `kv_bytes` of cache: the rule of thumb, rounded down."""
    return int(kv_bytes // (context * bytes_per_token))


def context_limit(model: ModelSpec, config: EngineConfig) -> int:
    """Longest request in tokens: what the user set, else the model's own limit.

    Raises:
        InputError: set beyond what learned positions allow.
    """
    limit = config.max_model_len or model.max_position
    if model.learned_positions and limit > model.max_position:
        raise InputError(
            f"{model.name} has learned positions for {model.max_position} tokens",
            place=Place(key="engine.max_model_len"), hint=f"at most {model.max_position}",
        )  # fmt: skip
    return limit


def activation_bytes(model: ModelSpec, config: EngineConfig, logit_bytes: int = _LOGIT_COPIES) -> int:
    """Peak of temporary memory in the largest step, an estimate.

    Either the widest point of a layer (the residual stream, a layer's input and output, and the MLP's or the
    projections' outputs of all tokens of the step) or sampling (`logit_bytes` for every value of the logits), whichever is
    larger: the two do not coincide. Engines without a token budget (static batching, Orca) are taken to compute the
    prompts of a step one after another where memory is concerned, so that the widest is the longest prompt.

    The first is 108 KiB a token for Llama-3.1-8B: vLLM 0.6 reports peaks of 2.07 GiB for 20,000 tokens and of 2.99 GiB for
    29,000 (vllm-project/vllm#10517).
    """
    tp, scheduler = config.parallel.tensor, config.scheduler
    longest = context_limit(model, config)
    if scheduler.max_num_batched_tokens >= _NO_BUDGET:
        tokens = max(longest, scheduler.max_num_seqs)
    else:
        tokens = min(scheduler.max_num_batched_tokens, scheduler.max_num_seqs * longest)
    size = 2  # activations are 16 bit in every mode we have
    wide = 3 if model.gated else 2
    mlp = wide * -(-model.ffn // tp) if model.dense_layers else 0
    if model.experts:
        width = -(-model.expert_ffn // max(tp // config.parallel.expert, 1))
        routed = model.experts_per_token * (wide * width + model.expert_input) // config.parallel.expert
        mlp = max(mlp, routed + wide * -(-model.shared_width // tp))
    width = max(model.head_dim, model.full.head_dim if model.full else 0)
    heads = (model.heads + 2 * model.kv_heads) // tp * width + model.heads // tp * width
    layer = tokens * size * (3 * model.hidden + max(mlp, heads))
    logits = logit_bytes * min(scheduler.max_num_seqs, tokens) * model.vocab
    return max(layer, logits)


def _engine_activations(model: ModelSpec, config: EngineConfig) -> int:
    """The peak that the engine itself would find, and so leave room for.

    vLLM v0 with chunked prefill measures a step whose prompts all end later: it samples nothing (0.06 GiB with 512 tokens of
    Llama-3.1-8B, vllm-project/vllm#10517).
    """
    if config.preset == "vllm-v0" and config.scheduler.name == "chunked-prefill":
        return activation_bytes(model, config, 0)
    if tensorrt_memory.applies(config):
        return activation_bytes(model, config, 0) + tensorrt_memory.buffer_bytes(
            model, config, context_limit(model, config)
        )
    return activation_bytes(model, config, _LOGIT_BYTES.get(config.preset, _LOGIT_COPIES))


def _overhead(gpu: GPUSpec, config: EngineConfig, gpus: int) -> int:
    """What lies outside of weights, activations and pool: context, collectives and, where the engine counts them, graphs."""
    from sim.cost.graphs import largest_graph

    size = tensorrt_memory.context_bytes(config) if tensorrt_memory.applies(config) else _CONTEXT_BYTES
    if gpus > 1:
        fast = gpu.has_fast_link and (gpu.link != "nvlink-bridge" or gpus == 2)
        switch = gpu.link == "nvswitch" and gpu.arch not in ("ampere", "volta")
        size += _COLLECTIVE_BYTES["switch" if switch else "link" if fast else "pcie"]
    if config.preset == "vllm@0.33" and config.cuda_graphs:
        size += int(_GRAPH_BYTES + _GRAPH_ROW_BYTES * largest_graph("vllm", gpu, config))
    return size


def _padding_bytes(model: ModelSpec, gpu: GPUSpec, config: EngineConfig, mode: WeightMode) -> int:
    """What engines add to MXFP4 experts on GPUs without FP4: their kernels want widths in multiples of 128 and 256.

    gpt-oss has 2,880 on both sides: 13.7 GiB loaded rather than 12.8 (20b, A100, vLLM 0.19, myoceane.fr), 66.0 rather than 60.8
    (120b, H100, vllm-project/vllm#23278). TensorRT-LLM keeps more than that (`sim.tensorrt_memory`).
    """
    tensorrt = tensorrt_memory.applies(config)
    if mode.name != "mxfp4" or not model.experts or gpu.fp4 or not (tensorrt or config.preset.startswith("vllm")):
        return 0
    parallel = config.parallel
    width = -(-model.expert_ffn // max(parallel.tensor // parallel.expert, 1))
    wide, deep = -(-width // 128) * 128, -(-model.hidden // 256) * 256
    layers = -(-model.moe_layers // parallel.pipeline)
    matrices = (3 if model.gated else 2) * layers * (model.experts // parallel.expert)
    kept = mode.matrix_bytes(wide, deep) * (1 + tensorrt_memory.REPACKING if tensorrt else 1)
    return int(matrices * (kept - mode.matrix_bytes(width, model.hidden)))


def window_rule(config: EngineConfig) -> str:
    """What the engine does with the KV of layers with a sliding window.

    * `window`: what the window has left behind is freed: vLLM's hybrid KV cache manager, on since 0.9 or 0.10
      (docs.vllm.ai, Hybrid KV Cache Manager).
    * `ratio`: a pool of their own, `swa_full_tokens_ratio` 0.8 the size of the other (SGLang, `server_args.py`).
    * `full`: whole contexts are kept. Older vLLM; TensorRT-LLM, unless `max_attention_window` is set; slabs.
    """
    family, _, version = config.preset.partition("@")
    if config.kv.allocator == "contiguous":
        return "full"
    if family in ("vllm", "vllm-v1") and version != "0.8":
        return "window"
    return "ratio" if family in ("sglang", "sglang-mixed") else "full"


def kv_token_bytes(model: ModelSpec, config: EngineConfig, typical_tokens: int = 0) -> int:
    """Bytes of KV that one token takes on one GPU, scales included, averaged over a request of `typical_tokens`.

    Only windowed layers make the length matter, and only where the engine frees what is behind the window.
    """
    mode = kv_mode_for(config.kv.dtype, model.dtype)
    full = model.kv_bytes_per_token(mode, config.parallel.tensor, config.parallel.pipeline)
    rule = window_rule(config)
    if rule == "full" or not (model.window and model.window_layers):
        return full
    kept = _SWA_RATIO
    if rule == "window":  # one that is not aligned to blocks reaches into one more
        length = typical_tokens or min(TYPICAL_TOKENS, context_limit(model, config))
        kept = min(1.0, (model.window + config.kv.block_size - 1) / length)
    if model.full is None:
        windowed = min(model.window_layers, model.layers) / model.layers
    else:
        windowed = model.near_token_bytes(mode, config.parallel.tensor, config.parallel.pipeline) / full
    return max(round(full * (1.0 - windowed * (1.0 - kept))), 1)


def memory_budget(model: ModelSpec, gpu: GPUSpec, config: EngineConfig, *, typical_tokens: int = 0) -> MemoryBudget:
    """Sizes the KV cache of one replica of `model` on GPUs of this kind.

    `typical_tokens` is the length of request for which layers with a sliding window are sized (see `kv_token_bytes`).

    With `kv.capacity_tokens` the pool has that many tokens (rounded down to blocks) and nothing is checked against
    the device: the user knows better.

    Where the pool holds less than one request of the model's own limit, vLLM does not start. SGLang (`max_req_len`,
    `srt/managers/tp_worker.py`) and TensorRT-LLM (`clamp_max_seq_len_for_mem`) start and take shorter requests, and so
    do they here unless `max_model_len` asks for the length.

    Raises:
        InputError: the model does not fit, or not one request of the longest length would; with the numbers and with
            settings that would work.
    """
    budget = _budget(model, gpu, config, typical_tokens)
    if 0 < budget.state_slots < config.scheduler.max_num_seqs:  # and so fewer rows are sampled
        fewer = replace(config.scheduler, max_num_seqs=budget.state_slots)
        return memory_budget(model, gpu, replace(config, scheduler=fewer), typical_tokens=typical_tokens)
    if budget.fixed:
        if budget.kv_tokens <= budget.state_tokens:
            raise InputError(
                f"kv.capacity_tokens {config.kv.capacity_tokens} is less than one block of {budget.block_size}"
                + (f" beside the {budget.state_tokens} tokens of a sequence's states" if budget.state_tokens else ""),
                place=Place(key="engine.kv.capacity_tokens"),
            )
        return budget
    if budget.kv_bytes <= 0 or (budget.state_bytes and not budget.state_slots):
        raise _does_not_fit(model, gpu, config, budget)
    if budget.kv_tokens < budget.max_model_len + budget.state_tokens:
        if config.max_model_len or not config.preset.startswith(("sglang", "tensorrt-llm")) or not budget.kv_tokens:
            raise _too_long(model, gpu, config, budget)
        return replace(budget, max_model_len=budget.kv_tokens)
    return budget


def _budget(model: ModelSpec, gpu: GPUSpec, config: EngineConfig, typical_tokens: int = 0) -> MemoryBudget:
    parallel, kv = config.parallel, config.kv
    model.check_parallel(parallel.tensor, parallel.pipeline, parallel.expert, parallel.data)
    mode = weight_mode_for(config.quantization, model)
    kv_mode = kv_mode_for(kv.dtype, model.dtype)
    per_token = kv_token_bytes(model, config, typical_tokens)
    weights = model.weight_bytes(mode, parallel.tensor, parallel.pipeline, parallel.expert)
    weights += _padding_bytes(model, gpu, config, mode)
    drafter = drafter_of(model, config)
    draft = drafter.weight_bytes(config) if drafter else 0
    weights += draft
    per_token += drafter.kv_bytes_per_token(config) if drafter else 0
    activations = _engine_activations(model, config)
    gpus = parallel.tensor * parallel.pipeline * parallel.data
    overhead = _overhead(gpu, config, gpus)
    fraction, pool = _pool(gpu, config, weights, activations, overhead)
    block = max(kv.block_size, 1) if kv.allocator != "contiguous" else 1
    states, state_tokens = state_memory.StatePool(0, 0), 0
    if model.state is not None and state_memory.state_rule(config) == "blocks":
        block, per_token, needed = state_memory.blocks(model, config)
        state_tokens = needed * block
    elif model.state is not None:
        states = state_memory.state_pool(model, config, pool)
        pool -= states.bytes
    if kv.capacity_tokens:
        pool, states = kv.capacity_tokens * per_token, state_memory.StatePool(0, 0)
    blocks = max(pool, 0) // (block * per_token)
    used = weights + activations + overhead + max(pool, 0) + states.bytes
    return MemoryBudget(
        model=model.name, gpu=gpu.name, rule=kv.memory_rule, utilization=fraction, gpus=gpus,
        total_bytes=gpu.memory_bytes, weight_bytes=weights, activation_bytes=activations, overhead_bytes=overhead,
        kv_bytes=pool, unused_bytes=gpu.memory_bytes - used, bytes_per_token=per_token,
        block_size=block, blocks=blocks, kv_tokens=blocks * block, max_model_len=context_limit(model, config),
        weights=mode.name, kv_dtype=kv_mode.name, fixed=kv.capacity_tokens > 0, state_bytes=states.bytes,
        state_slots=states.slots, kept_states=states.kept, state_tokens=state_tokens, draft_bytes=draft,
    )  # fmt: skip


def _pool(gpu: GPUSpec, config: EngineConfig, weights: int, activations: int, overhead: int) -> tuple[float, int]:
    """The fraction in effect and the bytes of the KV pool, which may be negative."""
    rule, fraction, total = config.kv.memory_rule, config.kv.memory_utilization, gpu.memory_bytes
    if not 0 <= fraction <= 1 or (fraction == 0 and rule != "static"):
        raise InputError(
            f"memory utilization must lie between 0 and 1, found {fraction}",
            place=Place(key="engine.kv.memory_utilization"), hint="0.9 is usual",
        )  # fmt: skip
    if rule == "total":
        return fraction, int(fraction * total) - weights - activations - overhead
    if rule == "free":
        free = total - weights - activations - overhead
        return fraction, int(free * fraction * (1 - _BLOCK_LOSS)) if free > 0 else free
    if rule == "static":
        fraction = fraction or static_fraction(gpu, config)
        return fraction, int(fraction * total) - weights - overhead
    raise unknown_name("memory rule", rule, ("total", "static", "free"), place=Place(key="engine.kv.memory_rule"))


def static_fraction(gpu: GPUSpec, config: EngineConfig) -> float:
    """SGLang's automatic `mem_fraction_static` (`python/sglang/srt/server_args.py`).

    Where prompts are not cut it counts `max_prefill_tokens`, 16,384.
    """
    from sim.cost.graphs import largest_graph

    chunk = min(max(config.scheduler.max_num_batched_tokens, 2048), 16384)
    rows = largest_graph("sglang", gpu, config)
    gpus = config.parallel.tensor * config.parallel.pipeline
    reserve = 512 + 1.5 * chunk + 2 * rows + gpus / 8 * 1024
    if gpu.memory_bytes > 60 * GIB:
        reserve = max(reserve, 10240)
    reserve += _SPECULATION_RESERVE.get(config.speculation.method, 0)
    return max(round(1 - reserve * MIB / gpu.memory_bytes, 3), 0.0)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def _alternatives(model: ModelSpec, gpu: GPUSpec, config: EngineConfig, tokens: int) -> list[str]:
    """Settings, one change at a time, under which at least `tokens` tokens of KV fit."""
    found = []
    tensor = config.parallel.tensor
    for ways in (2, 4, 8):
        if ways > tensor and model.heads % ways == 0:
            wider = replace(config, parallel=replace(config.parallel, tensor=ways))
            if _budget(model, gpu, wider).kv_tokens >= tokens:
                found.append(f"tensor: {ways}")
                break
    for mode in ("fp8", "awq-int4"):
        smaller = replace(config, quantization=mode)
        if _budget(model, gpu, smaller).kv_tokens >= tokens:
            found.append(f"quantization: {mode}")
            break
    return found


def _does_not_fit(model: ModelSpec, gpu: GPUSpec, config: EngineConfig, budget: MemoryBudget) -> InputError:
    limit = min(2048, budget.max_model_len)
    options = _alternatives(model, gpu, config, limit)
    hint = f"needs {' or '.join(options)}" if options else "needs larger GPUs or more of them"
    return InputError(
        f"{model.name} does not fit on {gpu.name}: weights take {_gib(budget.weight_bytes)} a GPU, activations "
        f"{_gib(budget.activation_bytes)} and the runtime {_gib(budget.overhead_bytes)}, of {_gib(budget.total_bytes)} "
        f"at a utilization of {budget.utilization:.2f}; nothing is left for KV",
        hint=hint,
    )


def _too_long(model: ModelSpec, gpu: GPUSpec, config: EngineConfig, budget: MemoryBudget) -> InputError:
    need = (budget.max_model_len + budget.state_tokens) * budget.bytes_per_token
    left = budget.kv_tokens - budget.state_tokens
    options = [f"max_model_len: {left}"] if left > 0 else []
    options += _alternatives(model, gpu, config, budget.max_model_len)
    return InputError(
        f"one request of {budget.max_model_len} tokens needs {_gib(need)} of KV a GPU, but {_gib(budget.kv_bytes)} "
        f"({budget.kv_tokens} tokens) are left of {_gib(budget.total_bytes)} beside {_gib(budget.weight_bytes)} of "
        "weights",
        place=Place(key="engine.max_model_len"),
        hint=f"set {' or '.join(options)}" if options else "needs larger GPUs or more of them",
    )


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One configuration of a size report: how it splits the memory, or why it does not fit."""

    quantization: str
    tensor: int
    budget: MemoryBudget | None
    requests: tuple[tuple[int, int], ...]
    problem: str = ""


def size_report(
    model: ModelSpec,
    gpu: GPUSpec,
    config: EngineConfig,
    *,
    quantizations: tuple[str, ...] = ("auto", "fp8", "awq-int4"),
    tensors: tuple[int, ...] = (1, 2, 4, 8),
    contexts: tuple[int, ...] = (2048, 4096, 8192, 32768),
    kv_bytes: int | None = None,
) -> list[SizeRow]:
    """What fits how often: every quantization × tensor degree, with the requests that fit at each context length.

    Only lengths up to the model's limit are listed. Configurations that do not fit carry the reason in `problem`;
    the length limit itself is not enforced here (a pool smaller than one longest request is still shown).
    With `kv_bytes` each GPU has that much for KV, whatever else it holds: the rule of thumb
    `KV memory / (context × bytes a token)`, recurrent states aside.
    """
    rows = []
    lengths = tuple(c for c in contexts if c <= context_limit(model, config)) or (context_limit(model, config),)
    for name in quantizations:
        for tensor in tensors:
            chosen = replace(config, quantization=name, parallel=replace(config.parallel, tensor=tensor))
            try:
                budget = _budget(model, gpu, chosen)
            except InputError as error:
                rows.append(SizeRow(name, tensor, None, (), str(error)))
                continue
            if kv_bytes is not None:
                blocks = kv_bytes // (budget.bytes_per_token * budget.block_size)
                tokens = blocks * budget.block_size
                budget = replace(budget, kv_bytes=kv_bytes, blocks=blocks, kv_tokens=tokens, unused_bytes=0)
            if budget.kv_bytes <= 0:
                problem = f"weights take {_gib(budget.weight_bytes)} of {_gib(budget.total_bytes)} a GPU"
                rows.append(SizeRow(name, tensor, budget, (), problem))
                continue
            fits = tuple((c, budget.requests(c)) for c in lengths)
            rows.append(SizeRow(name, tensor, budget, fits))
    return rows
