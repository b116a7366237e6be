"""Quantisation modes of weights and of the KV cache: one registry for the simulator and the real engine."""

from sim.quantization.kv import KV_MODES, KVMode, kv_mode_for, list_kv_modes, load_kv_mode
from sim.quantization.weights import (
    WEIGHT_MODES,
    WeightMode,
    list_weight_modes,
    load_weight_mode,
    weight_mode_for,
)

__all__ = [
    "KV_MODES",
    "WEIGHT_MODES",
    "KVMode",
    "WeightMode",
    "kv_mode_for",
    "list_kv_modes",
    "list_weight_modes",
    "load_kv_mode",
    "load_weight_mode",
    "weight_mode_for",
]
