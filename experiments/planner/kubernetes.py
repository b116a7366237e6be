"""A plan as Kubernetes objects: a Deployment of as many pods as there are replicas, a Service, and a claim for the checkpoint."""

from __future__ import annotations

import io
import re
import shlex
from typing import Any

from experiments.planner.commands import OPTIONS_FILE, PORT, command, options_file
from experiments.planner.deployment import PLACE, TITLES, Deployment, notes
from workloads.errors import InputError

VERSIONS = {
    "vllm": ("vllm@0.33", "0.33.0"),
    "sglang": ("sglang@0.5", "0.5.23"),
    "tensorrt-llm": ("tensorrt-llm@1.2", "1.2.1"),
}
"""Engine → the preset that plans are made with, and the release that it describes: the newest of that line on PyPI."""
_IMAGES = {
    "vllm": "vllm/vllm-openai:v{}", "sglang": "lmsysorg/sglang:v{}", "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:{}",
}  # fmt: skip
_AMD_IMAGES = {"vllm": "vllm/vllm-openai-rocm:v{}"}
_PRODUCTS = {
    "a10g": "NVIDIA-A10G", "a100-40gb": "NVIDIA-A100-SXM4-40GB", "a100-sxm": "NVIDIA-A100-SXM4-80GB",
    "a100-pcie": "NVIDIA-A100-80GB-PCIe", "l4": "NVIDIA-L4", "l40s": "NVIDIA-L40S", "h100-sxm": "NVIDIA-H100-80GB-HBM3",
    "h100-pcie": "NVIDIA-H100-PCIe", "h200-sxm": "NVIDIA-H200", "b200-sxm": "NVIDIA-B200",
}  # fmt: skip
"""Values of the label `nvidia.com/gpu.product`, which GPU feature discovery puts on nodes: the driver's name for the card."""
_CACHE = "/hf-cache"
"""Where the claim for downloaded models is mounted in the container. `HF_HOME` names it, whatever the image's user is."""
_GIB = 1 << 30
_SHM, _PROCESS = 16, 8
"""GiB of shared memory, which the workers of a pod talk through, and of host memory for a process a GPU."""
_STARTS, _DRAINS = 1800, 120
"""Seconds in which a pod must have loaded its model, and that its last answers get when it is stopped."""


def manifest(d: Deployment) -> str:
    """The objects as YAML, under remarks.

    Raises:
        InputError: a replica does not fit a node, or no image is known for the engine on these GPUs.
    """
    if d.nodes > 1:
        raise InputError(
            f"a replica of {d.gpus} GPUs spans nodes of {d.resolved.gpu.gpus_per_node}, and a pod does not", place=PLACE,
            hint=f"--max-gpus {d.resolved.gpu.gpus_per_node}, or LeaderWorkerSet with the commands of --emit {d.engine}",
        )  # fmt: skip
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 120
    yaml.representer.ignore_aliases = lambda data: True
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    name = object_name(d.model)
    yaml.dump_all(_objects(d, name), stream)
    return "".join(f"# {note}\n" for note in [*notes(d), *_remarks(d, name)]) + stream.getvalue()


def object_name(model: str) -> str:
    """A model's name as Kubernetes takes names."""
    return re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower()).strip("-")[:50].strip("-") or "model"


def image(d: Deployment) -> str:
    """The engine's own image, of the release that the plan's preset describes.

    Raises:
        InputError: none is known for these GPUs.
    """
    known = _AMD_IMAGES if _amd(d) else _IMAGES
    if d.engine not in known:
        raise InputError(f"no image of {TITLES[d.engine]} is known for {d.resolved.gpu.name}", place=PLACE,
                         hint=f"--engine {next(iter(known))}, or the command of --emit {d.engine}")  # fmt: skip
    return known[d.engine].format(VERSIONS[d.engine][1])


def _remarks(d: Deployment, name: str) -> list[str]:
    told = []
    if d.replicas > 1:
        told.append(
            f"the Service {name} spreads connections at random: a router of sessions is to talk to the pods themselves "
            "(llm-d, the vLLM production stack, sglang-router)"
        )
    told.append(f"the image is that of the release that was planned for, {TITLES[d.engine]} {VERSIONS[d.engine][1]}")
    told.append(
        "requests of CPU and host memory are rules of thumb: the checkpoint, shared memory, and a process a GPU"
    )
    if not d.downloads:
        told.append(f"{d.served} is no name of the Hugging Face hub: mount it into the pods at that path")
    elif d.replicas > 1:
        told.append(
            f"the claim {name}-cache is written by several nodes (ReadWriteMany); without such a storage class put "
            "emptyDir: {} in its place, and every pod downloads for itself"
        )
    if d.downloads:
        told.append("gated models: kubectl create secret generic hf-token --from-literal=token=…")
    if d.resolved.gpu.name not in _PRODUCTS:
        told.append(f"choose the nodes with {d.resolved.gpu.name} yourself (nodeSelector)")
    return told


def _objects(d: Deployment, name: str) -> list[dict[str, Any]]:
    labels = {"app": name}
    meta = {"name": name, "labels": dict(labels)}
    spec = {
        "replicas": d.replicas,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},  # no spare GPUs
        "selector": {"matchLabels": dict(labels)},
        "template": {"metadata": {"labels": dict(labels)}, "spec": _pod(d, name)},
    }
    port = {"name": "http", "port": 80, "targetPort": PORT}
    service = {"selector": dict(labels), "ports": [port]}
    objects = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": dict(labels)}, "spec": service},
    ]
    if d.downloads:
        room = -(-int(d.checkpoint_bytes * 1.25) // _GIB) + 5
        claim = {
            "accessModes": ["ReadWriteMany" if d.replicas > 1 else "ReadWriteOnce"],
            "resources": {"requests": {"storage": f"{room}Gi"}},
        }
        objects.append({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"{name}-cache", "labels": dict(labels)}, "spec": claim,
        })  # fmt: skip
    return objects


def _pod(d: Deployment, name: str) -> dict[str, Any]:
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_SHM}Gi"}}]
    if d.downloads:
        mounts.append({"name": "cache", "mountPath": _CACHE})
        volumes.append({"name": "cache", "persistentVolumeClaim": {"claimName": f"{name}-cache"}})
    pod = {
        "terminationGracePeriodSeconds": _DRAINS,
        "containers": [_container(d, mounts)],
        "volumes": volumes,
    }
    if d.resolved.gpu.name in _PRODUCTS:
        pod = {"nodeSelector": {"nvidia.com/gpu.product": _PRODUCTS[d.resolved.gpu.name]}, **pod}
    return pod


def _container(d: Deployment, mounts: list[dict[str, str]]) -> dict[str, Any]:
    words = command(d)
    if d.engine == "tensorrt-llm":
        words = [
            "/bin/sh",
            "-c",
            f"printf %s {shlex.quote(options_file(d))} > {OPTIONS_FILE} && exec {shlex.join(words)}",
        ]
    env: list[dict[str, Any]] = []
    if d.downloads:
        secret = {"name": "hf-token", "key": "token", "optional": True}
        env = [{"name": "HF_HOME", "value": _CACHE}, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]
    device = "amd.com/gpu" if _amd(d) else "nvidia.com/gpu"
    memory = _SHM + _PROCESS * d.gpus
    loading = memory + -(-d.checkpoint_bytes // _GIB)  # pages of the checkpoint count while they are read
    health = {"httpGet": {"path": "/health", "port": PORT}}
    return {
        "name": d.engine,
        "image": image(d),
        "command": words,
        "ports": [{"name": "http", "containerPort": PORT}],
        **({"env": env} if env else {}),
        "resources": {
            "requests": {"cpu": str(4 * d.gpus), "memory": f"{memory}Gi", device: d.gpus},
            "limits": {"memory": f"{loading}Gi", device: d.gpus},
        },
        "startupProbe": {**health, "periodSeconds": 10, "failureThreshold": _STARTS // 10},
        "readinessProbe": {**health, "periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "volumeMounts": mounts,
    }


def _amd(d: Deployment) -> bool:
    return d.resolved.gpu.vendor == "amd"
