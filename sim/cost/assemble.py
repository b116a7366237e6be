"""Which operators a step of a model is made of, with their shapes under parallelism and quantisation.

Three groups, by what their size is: operators of the flattened tokens of the step, operators of the rows that sample,
and the two attentions. Everything is per GPU; `count` is how often an operator runs in a whole pass through the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import hypot
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.config import EngineConfig
from sim.cost.carried import carried, flash_2, in_time
from sim.cost.constants import Constants
from sim.cost.coverage import ACROSS_NODES, FIXED, THROUGH_HOST, calibrated, deviation, outside, sentence
from sim.cost.experts import Exchange, GroupedGemm, padded_widths, untuned
from sim.cost.forms import quantise, section_of
from sim.cost.host import host_section
from sim.cost.operators import (
    AllReduce,
    DecodeAmongPrompts,
    DecodeAttention,
    Elementwise,
    Gemm,
    LatentAttention,
    Operator,
    PrefillAttention,
    Transfer,
    Wait,
)
from sim.cost.recurrent import beside
from sim.hardware.gpu import GPUSpec
from sim.models.linears import Linear, expert_tensor_ways, lm_head
from sim.models.spec import FullDims, ModelSpec
from sim.quantization.kv import KVMode, kv_mode_for
from sim.quantization.weights import WeightMode, weight_mode_for
from sim.versions import before_flash_3, behind, unpacks_fp4

if TYPE_CHECKING:
    from sim.cost.tables import MeasuredTable

_WIDE = (
    "the 16-bit kernels for the same shape, since those in the table are not tuned (FP8 is 10 to 17 % faster where both are: "
    "vllm-project/vllm#35457)"
)
_ACTIVATION_BYTES = {"model": 2.0, "int8": 1.0, "fp8": 1.0, "fp4": 0.5625}
_SHEET = "data sheet bandwidth and a nominal latency"


class Placed(NamedTuple):
    """An operator at its place: it runs `count` times in a step."""

    name: str
    operator: Operator
    count: int


@dataclass(frozen=True, slots=True)
class StepOperators:
    """All operators of a step.

    Attributes:
        token: sized by the tokens of the step. sample: by rows whose logits are computed. swap: by swapped tokens.
        decode, prefill: attention of one layer. among: decode attention in a step with prompts, where that is another; see
            `sim.cost.operators.DecodeAmongPrompts`. full_layers, windowed_layers, window: which of them see how far.
        near_decode, near_prefill: attention of layers with a window, where their heads are others; None: as of the rest.
        near: how layers that do not see everything are called: `windowed`, or `sparse` where an indexer chooses the keys.
        extra: operators that are sized by all of these (see `sim.cost.recurrent.Mix`).
        launches: operations of the framework in a step, for the time of launching them one by one.
        notes: what the user should know (fallbacks, and what was not validated).
        uncertainty: operator class → standard deviation of the log of its time (see `sim.cost.coverage`).
        older: the same of the whole step, for the kernels of an engine that is older than those timed.
    """

    token: tuple[Placed, ...]
    sample: tuple[Placed, ...]
    swap: Placed
    decode: Operator
    prefill: Operator
    among: Operator | None
    full_layers: int
    windowed_layers: int
    window: int
    launches: int
    notes: tuple[str, ...]
    uncertainty: Mapping[str, float]
    near: str = "windowed"
    near_decode: Operator | None = None
    near_prefill: Operator | None = None
    extra: tuple[Placed, ...] = ()
    older: float = 0.0


class Assembler:
    """Builds the operators of one model on one GPU under one configuration."""

    def __init__(
        self,
        model: ModelSpec,
        gpu: GPUSpec,
        config: EngineConfig,
        constants: Constants,
        table: MeasuredTable | None = None,
        skew: float = 0.0,
    ) -> None:
        parallel = config.parallel
        model.check_parallel(parallel.tensor, parallel.pipeline, parallel.expert, parallel.data)
        self.model, self.gpu, self.constants, self.table, self.skew = model, gpu, constants, table, skew
        self.tp, self.pp, self.ep = parallel.tensor, parallel.pipeline, parallel.expert
        self.built_ahead = config.built_ahead
        own = getattr(constants, host_section(config, constants.engine, constants))
        self.host = own if own.wait_us else constants.host
        self.mode, note = weight_mode_for(config.quantization, model).on(gpu)
        self.kv: KVMode = kv_mode_for(config.kv.dtype, model.dtype)
        unsure = outside(model, gpu, config, self.mode, table is not None or calibrated(constants))
        self.notes = ((note,) if note else ()) + sentence(unsure) + tuple(table.notes if table is not None else ())
        self.uncertainty: dict[str, float] = dict(FIXED)
        self.older, self.young = behind(config, self.mode.name if model.experts else "")
        self.unpacks_fp4 = unpacks_fp4(config)
        self._flash_2 = gpu.arch == "hopper" and before_flash_3(config)
        self.v0 = config.preset.startswith("vllm-v0")
        found = carried(gpu) if self.v0 else None
        self._early = found.early if found else None

    def build(self) -> StepOperators:
        """The operators of a step."""
        model, constants = self.model, self.constants
        token = [*self._embedding(), *self._linears(), *self._elementwise(), *self._collectives()]
        swap_bytes = float(model.kv_bytes_per_token(self.kv, self.tp, self.pp))
        attending = model.attending_layers
        windowed, window = model.near_layers, model.window
        if model.indexer:
            windowed, window = attending, model.indexer.topk
        extra = tuple(
            Placed(*each) for each in beside(model, self.gpu, constants, self.tp, self.prefill_constants()[1])
        )
        return StepOperators(
            token=tuple(token),
            sample=tuple(self._sampling()),
            swap=Placed("kv_swap", Transfer(self.gpu.host_link, swap_bytes, f"PCIe: {_SHEET}"), 1),
            decode=self._decode(model.full or model),
            prefill=self._prefill(model.full or model),
            near_decode=self._decode(model) if model.full else None,
            near_prefill=self._prefill(model) if model.full else None,
            among=self._among(),
            full_layers=attending - windowed,
            windowed_layers=windowed,
            window=window,
            near="sparse" if model.indexer else "windowed",
            extra=extra,
            launches=sum(placed.count * self._launches(placed) for placed in (*token, *extra))
            + self._attention_launches()
            + self._shared_launches(),
            notes=self.notes,
            uncertainty=self.uncertainty,
            older=self.older,
        )

    def _launches(self, placed: Placed) -> int:
        """Operations of one call: a static scale is applied by the kernel before, computed scales take one of their own, and on
        Blackwell those of blocks another, which lays them out for DeepGEMM."""
        if placed.name.endswith("_quantize") and not self.mode.dynamic and self.mode.compute != "fp4":
            return 0
        if placed.name.endswith("_quantize") and self._in_blocks and self.gpu.arch == "blackwell":
            return 2
        return getattr(placed.operator, "launches", 1)

    def _attention_launches(self) -> int:
        """Operations of attention in all layers: rotary embedding, writing the cache, and the kernel itself; with a latent
        cache also two norms on two streams (an event each way, noted and waited for), and splitting, expanding, joining and
        copying queries, keys and values."""
        return (3 if self.model.mla is None else 3 + 14 + 4) * self.model.attending_layers

    def _shared_launches(self) -> int:
        """Operations beside those of shared experts: they run on a stream of their own, and what comes of them is added."""
        return (4 + 1) * self.model.moe_layers if self.model.shared_experts else 0

    # Linear layers

    def _linears(self) -> list[Placed]:
        placed: list[Placed] = []
        for linear in _joined(self.model.linears(self.tp, self.ep)):
            if linear.kind not in ("head", "expert"):
                placed += self._linear(linear)
        if self.model.experts:
            placed.append(self._experts())
        return placed

    def _linear(self, linear: Linear) -> list[Placed]:
        gemm = self.gemm(linear, self.mode)
        if not self.mode.covers(linear.kind) or self.mode.weight_only:
            return [Placed(linear.name, gemm, linear.layers)]
        return [
            Placed(f"{linear.name}_quantize", self._quantize(linear.k), linear.layers),
            Placed(linear.name, gemm, linear.layers),
        ]

    def gemm(self, linear: Linear, mode: WeightMode) -> Operator:
        """One dense linear layer, from the measured table where it has this shape."""
        covered = mode.covers(linear.kind)
        size = mode.linear_bytes(linear, self.model.dtype)
        compute = mode.compute if covered else "bf16"
        wanted = compute
        if covered and mode.weight_only:
            wanted = "weight-only"
        elif covered and compute == "fp8" and mode.group < -1:
            wanted = "fp8-block"
        constants = self._taken("gemm", wanted)
        if self._early:
            constants = replace(constants, bandwidth=self._early.gemm_bandwidth, source=self._early.source)
        activation = _ACTIVATION_BYTES[mode.activation] if covered else 2.0
        analytic = Gemm(constants, self.gpu, compute, linear.n, linear.k, size, activation, self._early)
        if self.table is None:
            return analytic
        rows = {"weight-only": "w8a16" if mode.bits == 8 else "w4a16"}.get(wanted, wanted)
        quantize = self.constants.quantize if covered and not mode.weight_only else None
        return self.table.gemm(analytic, rows, linear.n, linear.k, constants, quantize)

    def _taken(self, section: str, kind: str) -> Any:
        """Constants of a kind, or of the nearest kind that was measured, which their source then says."""
        found = section_of(self.constants, section, kind)
        if kind not in getattr(self.constants, section):
            found = replace(found, source=f"{found.source}; taken over for {kind}")
            if kind == "fp4":
                found = self._halved_again(found)
        self._unsure(section, found)
        return found

    def _halved_again(self, found: Any) -> Any:
        """FP8 constants for FP4: going from 16 to 8 bit lost a part of the share of the peak, and so does 8 to 4."""
        table = self.constants.gemm
        lost = min(table["fp8"].compute / table["bf16"].compute, 1.0)
        note = f"{found.source}, with {lost:.2f} of their share of the peak (as FP8 has of 16-bit ones)"
        found = replace(found, compute=found.compute * lost, source=note)
        return in_time(found, self.gpu.fp4 / self.gpu.fp8) if self.gpu.fp8 else found

    def _unsure(self, section: str, constants: Any) -> None:
        """Remember how far off prices from these constants may be; of several kinds the worst."""
        name = {"gemm": "linear", "decode": "attention_decode", "prefill": "attention_prefill", "moe": "experts",
                "mla": "attention_decode"}.get(section, section)  # fmt: skip
        spread = deviation(constants, self.gpu)
        if section in ("moe", "mla"):
            spread = hypot(spread, self.young)
        self.uncertainty[name] = max(self.uncertainty.get(name, 0.0), spread)

    def _quantize(self, width: int) -> Operator:
        blocks = self.mode.compute == "fp4"  # whose scales are computed even where the tensor's is static
        grouped = blocks or self.mode.group < -1
        return quantise(self.constants.quantize, self.gpu, width, self.mode.dynamic or blocks, grouped)

    def _experts(self) -> Placed:
        model, mode = self.model, self.mode
        local = model.experts // self.ep
        ffn = -(-model.expert_ffn // expert_tensor_ways(self.tp, self.ep))
        wide, hidden = 2 if model.gated else 1, model.expert_input
        if mode.name == "mxfp4":
            ffn, hidden = padded_widths(ffn, hidden, self.gpu)
        up = Linear("up", "expert", wide * ffn, hidden, model.moe_layers)
        down = Linear("down", "expert", hidden, ffn, model.moe_layers)
        covered = mode.covers("expert")
        compute = mode.compute if covered else "bf16"
        kind = "fp8-block" if compute == "fp8" and mode.group < -1 else compute
        if covered and mode.weight_only:
            # Devices with FP4 tensor cores multiply MXFP4 experts with 8-bit activations. Others unpack them to 16 bit, and so
            # do all with integers (AWQ, GPTQ), whose values those tensor cores do not know.
            narrow = mode.name == "mxfp4" and self.gpu.fp4 > 0 and not self.unpacks_fp4
            kind, compute = ("mxfp4", "fp8") if narrow else ("weight-only", "bf16")
        constants = self._taken("moe", kind)
        if covered and mode.weight_only and "taken over" not in constants.source:
            constants = replace(constants, source=f"{constants.source}; taken over for {mode.name}")
        shapes: dict[str, Any] = {
            "experts": model.experts, "local": local, "chosen": model.experts_per_token, "hidden": hidden,
            "up": up.n, "down": down.k, "tokens_factor": max(self.ep // self.tp, 1), "skew": self.skew,
        }  # fmt: skip
        size = mode.linear_bytes(up, model.dtype) + mode.linear_bytes(down, model.dtype)
        activation = _ACTIVATION_BYTES[mode.activation] if covered else 2.0
        wide = self.constants.moe.get("bf16") if covered and mode.bits == 8 and not mode.weight_only else None
        slow = wide is not None and untuned(constants, wide)
        if slow:
            constants = replace(constants, source=f"{constants.source}; never slower than {_WIDE}")
        operator = GroupedGemm(constants, self.gpu, compute, expert_bytes=size, activation_bytes=activation, **shapes)
        if slow:
            bytes16 = 2.0 * (up.n * up.k + down.n * down.k)
            operator.most = GroupedGemm(wide, self.gpu, "bf16", expert_bytes=bytes16, activation_bytes=2.0, **shapes)
        if self.table is not None:
            rows = ("w8a16" if mode.bits == 8 else "w4a16") if covered and mode.weight_only else kind
            shape = (model.expert_input, model.expert_ffn, model.experts_per_token, model.experts)
            ways = (expert_tensor_ways(self.tp, self.ep), self.ep)
            operator = self.table.experts(operator, rows, self.skew, *shape, *ways)
        return Placed("experts", operator, model.moe_layers)

    # Everything between the linear layers

    def _embedding(self) -> list[Placed]:
        return [Placed("embedding", Elementwise(self.constants.elementwise, self.gpu, 4.0 * self.model.hidden), 1)]

    def _elementwise(self) -> list[Placed]:
        model, constants = self.model, self.constants.elementwise
        width = 8.0 * model.hidden  # residual and input in, residual and output out
        norms = model.norms * model.layers + 1
        fused = min(self._all_reduces(), norms) if self._fuses_norms() else 0
        placed = [Placed("norm", Elementwise(constants, self.gpu, width), norms - fused)] if norms > fused else []
        if fused:
            within = Elementwise(replace(constants, launch_us=0.0), self.gpu, width)
            within.launches = 0
            placed.append(Placed("norm_in_all_reduce", within, fused))
        if model.dense_layers:
            width = (6.0 if model.gated else 4.0) * -(-model.ffn // self.tp)
            placed.append(Placed("activation", Elementwise(constants, self.gpu, width), model.dense_layers))
        if model.moe_layers and model.shared_experts:
            width = (6.0 if model.gated else 4.0) * -(-model.shared_width // self.tp)
            placed.append(Placed("shared_activation", Elementwise(constants, self.gpu, width), model.moe_layers))
        if model.qk_norm:
            width = 4.0 * (model.heads // self.tp + model.local_kv_heads(self.tp)) * model.head_dim
            placed.append(Placed("qk_norm", Elementwise(constants, self.gpu, width), model.attending_layers))
        if model.attn_gate:
            width = 6.0 * (model.heads // self.tp) * model.head_dim
            placed.append(Placed("attention_gate", Elementwise(constants, self.gpu, width), model.attending_layers))
        return placed

    @property
    def _spread(self) -> bool:
        """Whether experts span several replicas: tokens then travel instead of being summed."""
        return self.ep > self.tp

    def _all_reduces(self) -> int:
        """How many of them a step has."""
        if self.tp == 1:
            return 0
        model = self.model
        sums = model.layers if model.parallel_block else model.mixing_layers + model.dense_layers + model.moe_layers
        return sums + 1 - (model.moe_layers if self._spread else 0)

    def _fuses_norms(self) -> bool:
        """Whether the norm after an all-reduce is a part of its kernel: so in TensorRT-LLM's PyTorch runtime (its C++ runtime,
        of depth 1, makes it an option), and with FlashInfer's, which SGLang switches on by itself on Blackwell
        (server_args.py)."""
        engine = self.constants.engine
        return (engine == "tensorrt-llm" and not self.built_ahead) or (
            engine == "sglang" and self.gpu.arch == "blackwell"
        )

    def _collectives(self) -> list[Placed]:
        model, placed = self.model, []
        if self.tp > 1:
            count, host = self._all_reduces(), self.host
            placed.append(Placed("all_reduce", self.all_reduce(), count))
            if waiting := host.wait(self.tp):
                placed.append(Placed("all_reduce_wait", Wait(waiting, host.source), count))
        if self._spread:
            placed += self._exchange()
        if self.pp > 1:
            link = self.gpu.group_link(2 if self.tp * self.pp <= self.gpu.gpus_per_node else self.tp * self.pp)
            hop = Transfer(link, 4.0 * model.hidden, f"{link.name}: {_SHEET}, hidden state and residual")
            placed.append(Placed("pipeline_send", hop, self.pp))
        return placed

    def _exchange(self) -> list[Placed]:
        """How tokens reach the experts of other ranks, and what came of them returns."""
        model, link = self.model, self.gpu.group_link(self.ep)
        narrow = self.mode.covers("expert") and not self._in_blocks
        sent = _ACTIVATION_BYTES[self.mode.activation if narrow else "model"]
        others = (self.ep - 1) / self.ep * model.expert_input / self.tp
        if self.ep > self.gpu.gpus_per_node:
            note = f"{link.name}: {_SHEET}, dispatch and combine"
            there = Transfer(link, others * model.experts_per_token * (2.0 + sent), note)
            return [Placed("all_to_all", there, model.moe_layers)]
        gathered = others * (self.ep // self.tp)
        placed = [
            Placed("dispatch", Exchange(link, self.ep, gathered * sent), model.moe_layers),
            Placed("combine", Exchange(link, self.ep, gathered * 2.0), model.moe_layers),
        ]
        if waiting := self.host.wait(self.ep):
            placed.append(Placed("exchange_wait", Wait(waiting, self.host.source), 2 * model.moe_layers))
        return placed

    @property
    def _in_blocks(self) -> bool:
        """FP8 in blocks is quantised once the tokens are there."""
        return self.mode.compute == "fp8" and self.mode.group < -1

    def all_reduce(self) -> Operator:
        """The all-reduce of one hidden state over the tensor-parallel group."""
        table = self.constants.all_reduce
        degrees = sorted(map(int, table))
        degree = next((d for d in degrees if d >= self.tp), degrees[-1])
        self._unsure("all_reduce", table[str(degree)])
        link = self.gpu.ring_link(self.tp)
        if self.tp > self.gpu.gpus_per_node:
            self.uncertainty["all_reduce"] = ACROSS_NODES
        if self.gpu.through_host(self.tp):
            self.uncertainty["all_reduce"] = THROUGH_HOST
        analytic = AllReduce(table[str(degree)], link, self.tp, 2.0 * self.model.hidden)
        return self.table.all_reduce(analytic, self.tp, 2.0 * self.model.hidden) if self.table else analytic

    def _sampling(self) -> list[Placed]:
        head = lm_head(self.model, self.tp)
        local = -(-self.model.vocab // self.tp)
        placed = [Placed("lm_head", self.gemm(head, self.mode), 1)]
        if self.tp > 1:
            link = self.gpu.ring_link(self.tp)
            gather = Transfer(link, 2.0 * local * (self.tp - 1), f"{link.name}: {_SHEET}, all-gather")
            placed.append(Placed("logits_gather", gather, 1))
        # Logits are read in 16 bit, written in 32, and read again by the sampler.
        sample = Elementwise(self.constants.elementwise, self.gpu, 10.0 * self.model.vocab)
        return [*placed, Placed("sampling", sample, 1)]

    # Attention

    def _decode(self, of: ModelSpec | FullDims) -> Operator:
        """Args: of, whose KV heads they are."""
        model, heads = self.model, self.model.heads // self.tp
        if model.mla is not None:
            size = float(model.latent_bytes(self.kv))
            self._unsure("mla", self.constants.mla)
            return LatentAttention(self.constants.mla, self.gpu, heads, model.mla.cached, model.mla.kv_lora, size)
        narrow = self.kv.bits == 8
        constants = self._taken("decode", self._decode_kind())
        kv_heads, vector = max(-(-of.kv_heads // self.tp), 1), float(self.kv.vector_bytes(of.head_dim))
        if self._early:
            kv_heads = heads if self._early.ungrouped else kv_heads
            constants = replace(constants, bandwidth=self._early.decode_bandwidth, source=self._early.source)
        analytic = DecodeAttention(constants, self.gpu, heads, kv_heads, vector, of.head_dim)
        if self.table is None:
            return analytic
        cache = self.table.cache(self.kv.name) if narrow else "bf16"
        return self.table.decode(analytic, "bf16", cache, heads, kv_heads, of.head_dim, constants)

    def _among(self) -> Operator | None:
        """Decoding rows in the launch of a prompt's chunks: vLLM's default on Ampere, Ada and the workstation's Blackwell.

        On Hopper the same call is FlashAttention 3's, which packs the heads of a group into a tile and is bound by memory; others
        call a kernel for each, and so did vLLM's first engine. An 8-bit cache and attention sinks go to other kernels.
        """
        constants, model = self.constants.among, self.model
        older = self.v0 or self.gpu.arch in ("volta", "turing")
        if constants is None or self.constants.engine != "vllm" or older or self.kv.bits < 16:
            return None
        if model.mla is not None or model.sinks or model.full is not None:
            return None
        size = 2.0 * model.local_kv_heads(self.tp) * self.kv.vector_bytes(model.head_dim)
        # With 64 queries and 128 keys it takes 80 KB of shared memory; where prompts have tiles of 128 queries there are 164 KB.
        resident = 2 if self.prefill_constants()[1].tile >= 128 else 1
        return DecodeAmongPrompts(constants, self.gpu, model.heads // self.tp, model.head_dim, size, resident)

    def _decode_kind(self) -> str:
        narrow = self.kv.bits == 8
        return ("mha-fp8" if narrow else "mha") if self.model.attention == "MHA" else ("fp8" if narrow else "bf16")

    def prefill_constants(self) -> tuple[str, Any]:
        """Type of the arithmetic of prefill attention, and its constants."""
        narrow = self.kv.bits == 8
        fp8 = "fp8" in self.constants.prefill and self.mode.compute == "fp8" and narrow
        compute = "fp8" if fp8 else "bf16"
        found = self._taken("prefill", "bf16-kv8" if narrow and not fp8 else compute)
        return compute, flash_2(found) if self._flash_2 else found

    def _prefill(self, of: ModelSpec | FullDims) -> Operator:
        """Args: of, whose KV heads they are."""
        model, heads = self.model, self.model.heads // self.tp
        narrow = self.kv.bits == 8
        compute, constants = self.prefill_constants()
        if model.indexer is not None:  # every query has keys of its own, so in the latent space
            width = (model.mla.cached + model.mla.kv_lora) / 2
            size = float(model.latent_bytes(self.kv))
            return PrefillAttention(constants, self.gpu, compute, heads, width, size)
        if model.mla is not None:  # prompts are computed with expanded heads, not in the latent space
            width = (model.head_dim + model.mla.v) / 2
            return PrefillAttention(constants, self.gpu, compute, heads, width, 4.0 * heads * width)
        kv_heads = max(-(-of.kv_heads // self.tp), 1)
        size = 2.0 * kv_heads * self.kv.vector_bytes(of.head_dim)
        analytic = PrefillAttention(constants, self.gpu, compute, heads, of.head_dim, size, kv_heads)
        if self.table is None:
            return analytic
        cache = self.table.cache(self.kv.name) if narrow else "bf16"
        return self.table.prefill(analytic, compute, cache, heads, kv_heads, of.head_dim, constants)


def _joined(linears: Iterable[Linear]) -> list[Linear]:
    """Both first projections of a latent attention as the one product that they are in vLLM, SGLang and TensorRT-LLM
    (`fused_qkv_a_proj`; in TensorRT-LLM a wider `kv_a_proj_with_mqa`)."""
    found = list(linears)
    parts = [linear for linear in found if linear.name in ("q_a_proj", "kv_a_proj")]
    if len(parts) < 2:
        return found
    whole = parts[0]._replace(name="qkv_a_proj", n=sum(linear.n for linear in parts))
    return [whole if linear is parts[0] else linear for linear in found if linear not in parts[1:]]
