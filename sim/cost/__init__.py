"""What a step costs: rooflines with measured efficiency, measured tables, or a formula of your own."""

from sim.cost.base import CostModel, DecodeLine, OperatorCost, StepShape

__all__ = ["CostModel", "DecodeLine", "OperatorCost", "StepShape", "build_cost"]


def __getattr__(name: str):
    if name == "build_cost":  # late, because memory sizing needs the capture sizes from here without all the rest
        from sim.cost.build import build_cost

        return build_cost
    raise AttributeError(name)
