"""KV modes: how keys and values are stored in the cache. Independent of the weights."""

from __future__ import annotations

from dataclasses import dataclass

from sim.quantization.names import find_mode


@dataclass(frozen=True, slots=True)
class KVMode:
    """One way of storing keys and values.

    Attributes:
        name: as in `kv: {dtype: …}`. bits: of one value.
        scale_bits: of the scale kept with every vector (one head of one token); 0 = scales per tensor, not counted.
        about: one line for lists.
    """

    name: str
    bits: int
    scale_bits: int = 0
    about: str = ""

    def vector_bytes(self, width: int) -> int:
        """Bytes of one head's key or value of one token, `width` values wide, its scale included."""
        return (width * self.bits + self.scale_bits + 7) // 8


KV_MODES: dict[str, KVMode] = {
    mode.name: mode
    for mode in (
        KVMode("fp16", 16, about="16-bit floats"),
        KVMode("bf16", 16, about="16-bit floats, 8-bit exponent"),
        KVMode("fp8-e4m3", 8, about="FP8 E4M3 with one scale per layer for K and for V"),
        KVMode("fp8-e5m2", 8, about="FP8 E5M2, no scales"),
        KVMode("int8", 8, scale_bits=16, about="INT8, a 16-bit scale for every head of every token"),
    )
}
ALIASES = {"fp8": "fp8-e4m3", "e4m3": "fp8-e4m3", "e5m2": "fp8-e5m2", "float16": "fp16", "bfloat16": "bf16"}


def load_kv_mode(name: str) -> KVMode:
    """A KV mode by name, alias, entry point (`twinserve.quantizations`) or `module:OBJECT`.

    Raises:
        InputError: no such mode, with the nearest names.
    """
    return find_mode("KV dtype", name, KV_MODES, ALIASES, KVMode)


def list_kv_modes() -> list[KVMode]:
    """The built-in KV modes."""
    return list(KV_MODES.values())


def kv_mode_for(name: str | KVMode, model_dtype: str) -> KVMode:
    """The mode meant by an engine's `kv.dtype`: `auto` is the model's own 16-bit dtype, whatever its weights are in."""
    if isinstance(name, KVMode):
        return name
    if name.lower() in ("auto", ""):
        name = "fp16" if model_dtype == "fp16" else "bf16"
    return load_kv_mode(name)
