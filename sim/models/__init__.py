"""Models: shapes, parameter counts, and bytes of weights and KV."""

from sim.models.linears import Linear, expert_tensor_ways, lm_head
from sim.models.spec import UNKNOWN_FAMILY, MLADims, ModelSpec
from sim.models.table import find_model, hub_id, list_models, load_model

__all__ = [
    "UNKNOWN_FAMILY",
    "Linear",
    "MLADims",
    "ModelSpec",
    "expert_tensor_ways",
    "find_model",
    "hub_id",
    "list_models",
    "lm_head",
    "load_model",
]
