"""Weight modes: how many bytes a linear layer takes, and at which rate it multiplies.

A mode says what the checkpoint holds; `WeightMode.on(gpu)` says what becomes of it on a device that lacks the tensor
cores it was made for. Embeddings, LM head, norms, biases and routers stay in the model's dtype in every mode, as the
usual quantisation tools leave them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sim.quantization.names import find_mode
from workloads.errors import InputError

if TYPE_CHECKING:
    from sim.hardware.gpu import GPUSpec
    from sim.models.linears import Linear
    from sim.models.spec import ModelSpec

ALL_LINEARS = frozenset({"attention", "mlp", "expert", "shared"})
EXPERTS_ONLY = frozenset({"expert"})
_DENSE_BITS = {"bf16": 16, "fp16": 16, "fp32": 32}


@dataclass(frozen=True, slots=True)
class WeightMode:
    """One way of storing and multiplying the weights of linear layers.

    Attributes:
        name: as in `quantization:`.
        bits: of one weight, without scales.
        group: weights along K that share a scale (0 = a whole row, -1 = the whole matrix, -128 = 128×128 blocks).
        scale_bits, zero_bits: of one scale and one zero point.
        table_bits: of a look-up table per output channel (SqueezeLLM).
        activation: what enters the matmul: `model` (the model's dtype), `int8`, `fp8`, `fp4`.
        compute: tensor-core type of the matmul: `bf16` (also for fp16), `int8`, `fp8`, `fp4`.
        dynamic: activation scales are computed on the fly for every token or group; False = from the checkpoint.
        quantized: kinds of linear layers in this mode; the others stay in the model's dtype.
        dtype: for unquantised modes the dtype itself; "" = the model's.
        about: one line for lists.
    """

    name: str
    bits: int
    group: int = 0
    scale_bits: int = 0
    zero_bits: int = 0
    table_bits: int = 0
    activation: str = "model"
    compute: str = "bf16"
    dynamic: bool = False
    quantized: frozenset[str] = ALL_LINEARS
    dtype: str = ""
    about: str = ""

    @property
    def weight_only(self) -> bool:
        """Weights are expanded to the model's dtype before they are multiplied."""
        return self.bits < 16 and self.activation == "model"

    @property
    def plain(self) -> bool:
        """Nothing is quantised."""
        return self.bits >= 16

    def covers(self, kind: str) -> bool:
        """Whether linear layers of this kind are quantised."""
        return not self.plain and kind in self.quantized

    def matrix_bytes(self, n: int, k: int) -> float:
        """Bytes of one [n, k] matrix in this mode, with its scales, zero points and tables."""
        if self.group == 0:
            scales = n
        elif self.group == -1:
            scales = 1
        elif self.group < 0:
            scales = -(-n // -self.group) * -(-k // -self.group)
        else:
            scales = n * -(-k // self.group)
        return (n * k * self.bits + scales * (self.scale_bits + self.zero_bits) + n * self.table_bits) / 8

    def linear_bytes(self, linear: Linear, model_dtype: str) -> float:
        """Bytes of one copy of a linear layer, in this mode or, where it is not covered, in the model's dtype."""
        if self.covers(linear.kind):
            return self.matrix_bytes(linear.n, linear.k)
        return linear.n * linear.k * _DENSE_BITS[self.dtype or model_dtype] / 8

    def on(self, gpu: GPUSpec) -> tuple[WeightMode, str]:
        """This mode as `gpu` can run it, and a sentence where that differs ("" where it does not).

        Floating-point modes without tensor cores for them become weight-only (what vLLM's Marlin kernels do).

        Raises:
            InputError: INT8 matrix products on a device without INT8 tensor cores.
        """
        if self.compute == "bf16" or gpu.flops(self.compute) > 0:
            return self, ""
        if self.compute == "int8":
            raise InputError(
                f"{self.name} needs INT8 tensor cores, which {gpu.name} lacks",
                hint="int8-w8a16 keeps the small weights",
            )
        runnable = replace(self, activation="model", compute="bf16", dynamic=False)
        return runnable, (
            f"{gpu.name} has no {self.compute.upper()} tensor cores: {self.name} runs weight-only, "
            "smaller in memory but multiplied in 16 bit"
        )


def _modes(*modes: WeightMode) -> dict[str, WeightMode]:
    return {mode.name: mode for mode in modes}


WEIGHT_MODES: dict[str, WeightMode] = _modes(
    WeightMode("fp16", 16, dtype="fp16", about="16-bit floats, 10-bit mantissa"),
    WeightMode("bf16", 16, dtype="bf16", about="16-bit floats, 8-bit exponent"),
    WeightMode("int8-w8a16", 8, scale_bits=16, about="INT8 weights per output channel, 16-bit activations"),
    WeightMode(
        "int8-w8a8", 8, scale_bits=32, activation="int8", compute="int8", dynamic=True,
        about="INT8 weights per channel, INT8 activations per token",
    ),
    WeightMode("gptq-int4", 4, group=128, scale_bits=16, zero_bits=4, about="GPTQ (arXiv 2210.17323), groups of 128"),
    WeightMode("gptq-int3", 3, group=128, scale_bits=16, zero_bits=3, about="GPTQ, 3 bits, groups of 128"),
    WeightMode("gptq-int8", 8, group=128, scale_bits=16, zero_bits=8, about="GPTQ, 8 bits, groups of 128"),
    WeightMode("awq-int4", 4, group=128, scale_bits=16, zero_bits=4, about="AWQ (arXiv 2306.00978), groups of 128"),
    WeightMode("squeezellm-3bit", 3, table_bits=8 * 16, about="SqueezeLLM (2306.07629), dense part, 8 centroids"),
    WeightMode("squeezellm-4bit", 4, table_bits=16 * 16, about="SqueezeLLM (2306.07629), dense part, 16 centroids"),
    WeightMode(
        "fp8", 8, group=-1, scale_bits=32, activation="fp8", compute="fp8",
        about="FP8 E4M3, one static scale per tensor for weights and activations",
    ),
    WeightMode(
        "fp8-dynamic", 8, group=-1, scale_bits=32, activation="fp8", compute="fp8", dynamic=True,
        about="FP8 E4M3, weights per tensor, activation scales computed per token",
    ),
    WeightMode(
        "fp8-channel", 8, scale_bits=32, activation="fp8", compute="fp8", dynamic=True,
        about="FP8 E4M3, weights per output channel, activation scales computed per token",
    ),
    WeightMode(
        "fp8-block", 8, group=-128, scale_bits=32, activation="fp8", compute="fp8", dynamic=True,
        about="FP8 E4M3 in 128×128 blocks, activations in groups of 128 (DeepSeek-V3, arXiv 2412.19437)",
    ),
    WeightMode(
        "nvfp4", 4, group=16, scale_bits=8, activation="fp4", compute="fp4",
        about="FP4 E2M1, an FP8 scale for every 16 and one FP32 scale per tensor",
    ),
    WeightMode(
        "mxfp4", 4, group=32, scale_bits=8, activation="model", quantized=EXPERTS_ONLY,
        about="OCP MXFP4 experts with a shared exponent for every 32 (gpt-oss); everything else 16 bit",
    ),
)  # fmt: skip

ALIASES = {
    "int8": "int8-w8a8", "w8a8": "int8-w8a8", "w8a16": "int8-w8a16", "gptq": "gptq-int4", "awq": "awq-int4",
    "squeezellm": "squeezellm-4bit", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "none": "auto",
}  # fmt: skip


def load_weight_mode(name: str) -> WeightMode:
    """A weight mode by name, alias, entry point (`twinserve.quantizations`) or `module:OBJECT`.

    Raises:
        InputError: no such mode, with the nearest names.
    """
    return find_mode("quantization", name, WEIGHT_MODES, ALIASES, WeightMode)


def list_weight_modes() -> list[WeightMode]:
    """The built-in weight modes, in the order of the documentation."""
    return list(WEIGHT_MODES.values())


def weight_mode_for(name: str | WeightMode, model: ModelSpec) -> WeightMode:
    """The mode meant by an engine's `quantization`: `auto` is what the checkpoint ships in."""
    if isinstance(name, WeightMode):
        return name
    if name.lower() in ("auto", "none", ""):
        name = model.native_quantization or {"fp32": "bf16"}.get(model.dtype, model.dtype)
    mode = load_weight_mode(name)
    if mode.name == "mxfp4" and not model.experts and model.native_quantization != mode.name:
        raise InputError(f"mxfp4 quantises experts, and {model.name} has none", hint="use nvfp4, fp8 or awq-int4")
    return covering(mode, model)


def covering(mode: WeightMode, model: ModelSpec) -> WeightMode:
    """The mode with the kinds of layers that it quantises in this model: MXFP4 of a model without experts, all of them; NVFP4 of
    one with latent attention, all others (NVIDIA's checkpoints of DeepSeek keep attention in 16 bit, but for the last
    projection of the second edition: hf_quant_config.json)."""
    if mode.name == "nvfp4" and model.mla is not None:
        return replace(mode, quantized=ALL_LINEARS - {"attention"})
    if mode.quantized == EXPERTS_ONLY and not model.experts:
        return replace(mode, quantized=ALL_LINEARS)
    return mode
