"""A plan as what starts it: launch commands of vLLM, SGLang and TensorRT-LLM, and a Kubernetes manifest."""

from __future__ import annotations

from experiments.planner.commands import command, script
from experiments.planner.deployment import PLACE, Deployment
from workloads.errors import InputError

__all__ = ["TARGETS", "Deployment", "command", "emit"]

TARGETS = ("vllm", "sglang", "tensorrt-llm", "kubernetes")


def emit(deployment: Deployment, target: str) -> str:
    """The command or manifest for a target.

    Raises:
        InputError: the target is another engine than the plan's, or cannot do what the plan asks for.
    """
    if target == "kubernetes":
        from experiments.planner.kubernetes import manifest

        return manifest(deployment)
    if target != deployment.engine:
        raise InputError(
            f"the plan is for {deployment.engine}, not for {target}", place=PLACE, hint=f"add --engine {target}"
        )
    return script(deployment)
