"""A plan as what starts it: launch commands of vLLM, SGLang and TensorRT-LLM, and a Kubernetes manifest.

Flags as in docs.vllm.ai (engine arguments), docs.sglang.io (server arguments) and nvidia.github.io/TensorRT-LLM
(trtllm-serve, LLM API). What the engine takes from the checkpoint itself has no flag.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from experiments.resolve import Resolved
from sim.quantization import load_weight_mode
from workloads.errors import InputError, Place

TARGETS = ("vllm", "sglang", "tensorrt-llm", "kubernetes")
PLACE = Place(key="--emit")
_ONLINE = {
    "fp8": "fp8",
    "fp8-dynamic": "fp8",
}  # modes into which vLLM and SGLang turn a 16-bit checkpoint by themselves
_IMAGES = {
    "vllm": "vllm/vllm-openai:latest", "sglang": "lmsysorg/sglang:latest",
    "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:latest",
}  # fmt: skip
PORT = 8000
_PRODUCTS = {
    "a10g": "NVIDIA-A10G", "a100-40gb": "NVIDIA-A100-SXM4-40GB", "a100-sxm": "NVIDIA-A100-SXM4-80GB",
    "a100-pcie": "NVIDIA-A100-80GB-PCIe", "l4": "NVIDIA-L4", "l40s": "NVIDIA-L40S", "h100-sxm": "NVIDIA-H100-80GB-HBM3",
    "h100-pcie": "NVIDIA-H100-PCIe", "h200-sxm": "NVIDIA-H200", "b200-sxm": "NVIDIA-B200",
}  # fmt: skip
"""Values of the label `nvidia.com/gpu.product`, which GPU feature discovery puts on nodes: the driver's name for the card."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is to be started.

    Attributes:
        model: as the engine is to load it.   resolved: the candidate, with everything it means.   replicas: how many.
        native: the mode that the checkpoint ships in; "" = 16 bit.
    """

    model: str
    resolved: Resolved
    replicas: int
    native: str = ""

    @property
    def served(self) -> str:
        """What the engine is to load: a name to be replaced where only a checkpoint in another format will do."""
        if not self.needs_checkpoint:
            return self.model
        return f"YOUR-ORG/{self.model.rstrip('/').rpartition('/')[2]}-{self.weights}"

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the weights must be quantized beforehand."""
        return not load_weight_mode(self.weights).plain and self.weights != self.native and not _online(self)

    @property
    def engine(self) -> str:
        """`vllm`, `sglang` or `tensorrt-llm`."""
        return self.resolved.engine.preset.partition("@")[0]

    @property
    def gpus(self) -> int:
        """Of a replica."""
        return self.resolved.budget.gpus

    @property
    def weights(self) -> str:
        """Name of the mode that weights are in."""
        return self.resolved.budget.weights


def emit(deployment: Deployment, target: str) -> str:
    """The command or manifest for a target.

    Raises:
        InputError: the target is another engine than the plan's, or cannot do what the plan asks for.
    """
    if target == "kubernetes":
        return _manifest(deployment)
    if target != deployment.engine:
        raise InputError(
            f"the plan is for {deployment.engine}, not for {target}", place=PLACE, hint=f"add --engine {target}"
        )
    return _shell(deployment)


def command(deployment: Deployment) -> list[str]:
    """The words of the launch command of one replica."""
    return _COMMANDS[deployment.engine](deployment)


def notes(deployment: Deployment) -> list[str]:
    """What to know before it is started."""
    told = [
        f"{deployment.replicas} replica{'s' * (deployment.replicas > 1)} of {deployment.gpus} x {deployment.resolved.gpu.name}"
    ]
    if deployment.replicas > 1:
        told.append("in front of them a router that hands out sessions in turn")
    if deployment.needs_checkpoint:
        told.append(f"put the name of a checkpoint in {deployment.weights} in place of {deployment.served}")
    if deployment.gpus > deployment.resolved.gpu.gpus_per_node:
        told.append(f"one replica spans {-(-deployment.gpus // deployment.resolved.gpu.gpus_per_node)} nodes")
    return told


def _shell(deployment: Deployment) -> str:
    """A script: remarks, files that the command reads, and the command, a flag a line."""
    words = command(deployment)
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    lines = " \\\n    ".join(shlex.join(group) for group in groups)
    head = "".join(f"# {note}\n" for note in notes(deployment))
    return f"{head}{_files(deployment)}{lines}\n"


def _files(deployment: Deployment) -> str:
    if deployment.engine != "tensorrt-llm":
        return ""
    return "cat > extra-llm-api-options.yaml <<'EOF'\n" + _trt_options(deployment) + "EOF\n"


def _vllm(d: Deployment) -> list[str]:
    engine, budget = d.resolved.engine, d.resolved.budget
    words = ["vllm", "serve", d.served, *_degrees(d, "--tensor-parallel-size", "--pipeline-parallel-size")]
    words += ["--max-model-len", str(budget.max_model_len)]
    words += ["--max-num-seqs", str(engine.scheduler.max_num_seqs)]
    words += ["--max-num-batched-tokens", str(engine.scheduler.max_num_batched_tokens)]
    words += ["--gpu-memory-utilization", f"{budget.utilization:g}", "--block-size", str(budget.block_size)]
    if _online(d):
        words += ["--quantization", _ONLINE[d.weights]]
    if budget.kv_dtype.startswith("fp8"):
        words += ["--kv-cache-dtype", budget.kv_dtype.replace("-", "_")]
    elif budget.kv_dtype == "int8":
        raise InputError("vLLM has no int8 KV cache", place=PLACE, hint="--kv-dtype fp8")
    if not engine.kv.prefix_caching:
        words.append("--no-enable-prefix-caching")
    return words


def _sglang(d: Deployment) -> list[str]:
    engine, budget = d.resolved.engine, d.resolved.budget
    words = ["python", "-m", "sglang.launch_server", "--model-path", d.served, *_degrees(d, "--tp-size", "--pp-size")]
    words += ["--context-length", str(budget.max_model_len)]
    words += ["--max-running-requests", str(engine.scheduler.max_num_seqs)]
    words += ["--chunked-prefill-size", str(engine.scheduler.max_num_batched_tokens)]
    words += ["--mem-fraction-static", f"{budget.utilization:.3g}", "--page-size", str(budget.block_size)]
    if _online(d):
        words += ["--quantization", _ONLINE[d.weights]]
    if budget.kv_dtype.startswith("fp8"):
        words += ["--kv-cache-dtype", budget.kv_dtype.replace("-", "_")]
    elif budget.kv_dtype == "int8":
        raise InputError("SGLang has no int8 KV cache", place=PLACE, hint="--kv-dtype fp8")
    if engine.preset == "sglang-mixed":
        words.append("--enable-mixed-chunk")
    return [*words, "--host", "0.0.0.0", "--port", str(PORT)]


def _tensorrt(d: Deployment) -> list[str]:
    engine, budget = d.resolved.engine, d.resolved.budget
    words = ["trtllm-serve", d.served, *_degrees(d, "--tp_size", "--pp_size")]
    words += ["--max_batch_size", str(engine.scheduler.max_num_seqs)]
    words += ["--max_num_tokens", str(engine.scheduler.max_num_batched_tokens)]
    words += ["--max_seq_len", str(budget.max_model_len)]
    words += ["--kv_cache_free_gpu_memory_fraction", f"{budget.utilization:g}"]
    words += ["--host", "0.0.0.0", "--port", str(PORT)]
    return [*words, "--extra_llm_api_options", "extra-llm-api-options.yaml"]


def _trt_options(d: Deployment) -> str:
    kv, budget = d.resolved.engine.kv, d.resolved.budget
    dtype = "fp8" if budget.kv_dtype == "fp8-e4m3" else "auto"
    if budget.kv_dtype not in ("fp16", "bf16", "fp8-e4m3"):
        raise InputError(f"TensorRT-LLM has no {budget.kv_dtype} KV cache", place=PLACE, hint="--kv-dtype fp8")
    chunked = str(d.resolved.engine.scheduler.name == "chunked-prefill").lower()
    return (
        f"enable_chunked_prefill: {chunked}\nkv_cache_config:\n  dtype: {dtype}\n"
        f"  enable_block_reuse: {str(kv.prefix_caching).lower()}\n  tokens_per_block: {kv.block_size}\n"
    )


_COMMANDS: dict[str, Callable[[Deployment], list[str]]] = {
    "vllm": _vllm, "sglang": _sglang, "sglang-mixed": _sglang, "tensorrt-llm": _tensorrt,
}  # fmt: skip


def _online(d: Deployment) -> bool:
    """Whether the engine makes these weights itself, from a 16-bit checkpoint."""
    return d.weights in _ONLINE and d.weights != d.native and d.engine != "tensorrt-llm"


def _degrees(d: Deployment, tensor: str, pipeline: str) -> list[str]:
    parallel = d.resolved.engine.parallel
    words = [tensor, str(parallel.tensor)] if parallel.tensor > 1 else []
    return [*words, pipeline, str(parallel.pipeline)] if parallel.pipeline > 1 else words


def _manifest(d: Deployment) -> str:
    """A Deployment of as many pods as there are replicas, and the Service in front of them."""
    if d.gpus > d.resolved.gpu.gpus_per_node:
        raise InputError(
            f"a replica of {d.gpus} GPUs spans nodes of {d.resolved.gpu.gpus_per_node}, and a pod does not", place=PLACE,
            hint=f"--max-gpus {d.resolved.gpu.gpus_per_node}, or LeaderWorkerSet with the command of --emit {d.engine}",
        )  # fmt: skip
    import io

    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump_all(_objects(d), stream)
    told = notes(d)
    if d.resolved.gpu.name not in _PRODUCTS:
        told.append(f"choose the nodes with {d.resolved.gpu.name} yourself (nodeSelector)")
    return "".join(f"# {note}\n" for note in told) + stream.getvalue()


def _objects(d: Deployment) -> list[dict[str, Any]]:
    name = re.sub(r"[^a-z0-9]+", "-", d.model.rpartition("/")[2].lower()).strip("-")[:50].strip("-") or "model"
    labels = {"app": name}
    words = command(d)
    if d.engine == "tensorrt-llm":
        options = _trt_options(d)
        words = [
            "/bin/sh",
            "-c",
            f"printf %s {shlex.quote(options)} > extra-llm-api-options.yaml && exec {shlex.join(words)}",
        ]
    amd = d.resolved.gpu.vendor == "amd"
    container = {
        "name": d.engine,
        "image": "vllm/vllm-openai-rocm:latest"
        if amd and d.engine == "vllm"
        else _IMAGES[d.engine.removesuffix("-mixed")],
        "command": words,
        "ports": [{"containerPort": PORT}],
        "env": [
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}}
        ],
        "resources": {"limits": {"amd.com/gpu" if amd else "nvidia.com/gpu": d.gpus}},
        "startupProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 10, "failureThreshold": 180},
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 5},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}],
    }
    if d.resolved.gpu.name in _PRODUCTS:
        pod = {"nodeSelector": {"nvidia.com/gpu.product": _PRODUCTS[d.resolved.gpu.name]}, **pod}
    spec = {
        "replicas": d.replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
    }
    port = {"port": 80, "targetPort": PORT}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": dict(labels)},
            "spec": spec,
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": dict(labels), "ports": [port]},
        },
    ]
