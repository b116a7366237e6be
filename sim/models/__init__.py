"""Models: shapes, parameter counts, and bytes of weights and KV."""

from sim.models.linears import Linear, expert_tensor_ways, lm_head
from sim.models.spec import UNKNOWN_FAMILY, FullDims, IndexerDims, MLADims, ModelSpec
from sim.models.states import StateDims
from sim.models.table import find_model, hub_id, list_models, load_model

__all__ = [
    "UNKNOWN_FAMILY",
    "FullDims",
    "IndexerDims",
    "Linear",
    "MLADims",
    "ModelSpec",
    "StateDims",
    "expert_tensor_ways",
    "find_model",
    "hub_id",
    "list_models",
    "lm_head",
    "load_model",
]
