"""Launch commands of vLLM, SGLang and TensorRT-LLM.

Flags as in docs.vllm.ai (engine arguments), docs.sglang.io (server arguments) and nvidia.github.io/TensorRT-LLM
(trtllm-serve, LLM API); those for several nodes as in docs.vllm.ai (parallelism and scaling, multiprocessing), docs.sglang.io
(multi-node deployment) and TensorRT-LLM's documentation of trtllm-serve (multi-node with Slurm). What the engine takes from the
checkpoint itself has no flag.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from experiments.planner.deployment import ONLINE, PLACE, TITLES, Deployment, notes
from experiments.planner.settings import further_flags
from experiments.planner.speculation import about_drafts, speculation_options
from workloads.errors import InputError

PORT = 8000
OPTIONS_FILE = "extra-llm-api-options.yaml"
HEAD, HEAD_PORT = "HEAD-ADDRESS", 29500
"""Stands for the address of a replica's first node, and the port at which the others find it."""
_ADDRESS = ("--host", "0.0.0.0", "--port", str(PORT))


@dataclass(frozen=True, slots=True)
class _Flags:
    """How an engine is started.

    Attributes:
        program: the words before the model.   tensor … memory: flags of what every engine is told.
        block: flag of the block size; "" where it stands in a file.
        no_caching: switch that turns the prefix cache off.   tail: the last words.
    """

    program: tuple[str, ...]
    tensor: str
    pipeline: str
    context: str
    sequences: str
    tokens: str
    memory: str
    block: str = ""
    no_caching: str = ""
    tail: tuple[str, ...] = ()


_FLAGS = {
    "vllm": _Flags(
        ("vllm", "serve"), "--tensor-parallel-size", "--pipeline-parallel-size", "--max-model-len", "--max-num-seqs",
        "--max-num-batched-tokens", "--gpu-memory-utilization", "--block-size", "--no-enable-prefix-caching",
    ),
    "sglang": _Flags(
        ("python", "-m", "sglang.launch_server", "--model-path"), "--tp-size", "--pp-size", "--context-length",
        "--max-running-requests", "--chunked-prefill-size", "--mem-fraction-static", "--page-size", "--disable-radix-cache",
        _ADDRESS,
    ),
    "tensorrt-llm": _Flags(
        ("trtllm-serve",), "--tp_size", "--pp_size", "--max_seq_len", "--max_batch_size", "--max_num_tokens",
        "--kv_cache_free_gpu_memory_fraction", tail=(*_ADDRESS, "--extra_llm_api_options", OPTIONS_FILE),
    ),
}  # fmt: skip


def command(d: Deployment, node: int = 0) -> list[str]:
    """The words of the launch command of one replica, on one of its nodes; MPI starts TensorRT-LLM on all of them.

    Raises:
        InputError: the engine cannot do what the plan asks for.
    """
    flags, engine, budget = _FLAGS[d.engine], d.resolved.engine, d.resolved.budget
    words = [*flags.program, d.served]
    for flag, degree in ((flags.tensor, engine.parallel.tensor), (flags.pipeline, engine.parallel.pipeline)):
        words += [flag, str(degree)] if degree > 1 else []
    words += [flags.context, str(budget.max_model_len)]
    words += [flags.sequences, str(engine.scheduler.max_num_seqs)]
    words += [flags.tokens, str(engine.scheduler.max_num_batched_tokens)]
    words += [flags.memory, f"{budget.utilization:.3g}"]
    if flags.block:
        words += [flags.block, str(budget.block_size)]
    if d.online:
        words += ["--quantization", ONLINE[d.weights]]
    cache = kv_flag(d)
    if flags.block and cache:
        words += ["--kv-cache-dtype", cache]
    if flags.no_caching and not engine.kv.prefix_caching:
        words.append(flags.no_caching)
    if d.preset == "sglang-mixed":
        words.append("--enable-mixed-chunk")
    return [*_launcher(d), *words, *further_flags(d), *flags.tail, *_of_node(d, node)]


def _launcher(d: Deployment) -> list[str]:
    """What a TensorRT-LLM on several nodes is started by: a process a GPU."""
    if d.nodes == 1 or d.engine != "tensorrt-llm":
        return []
    processes = ["--ntasks", str(d.gpus), "--ntasks-per-node", str(-(-d.gpus // d.nodes))]
    return ["srun", "--nodes", str(d.nodes), *processes, "--mpi=pmix", "trtllm-llmapi-launch"]


def _of_node(d: Deployment, node: int) -> list[str]:
    """Flags that join the nodes of a replica."""
    if d.nodes == 1 or d.engine == "tensorrt-llm":
        return []
    words = ["--nnodes", str(d.nodes), "--node-rank", str(node)]
    if d.engine == "sglang":
        return [*words, "--dist-init-addr", f"{HEAD}:{HEAD_PORT}"]
    words += ["--master-addr", HEAD, "--master-port", str(HEAD_PORT)]
    return [*words, "--headless"] if node else words


def kv_flag(d: Deployment) -> str:
    """What an engine calls the KV cache's type; "" of one as wide as the model.

    Raises:
        InputError: it has no such cache.
    """
    dtype = d.resolved.budget.kv_dtype
    if dtype in ("fp16", "bf16"):
        return ""
    known = ("fp8-e4m3",) if d.engine == "tensorrt-llm" else ("fp8-e4m3", "fp8-e5m2")
    if dtype not in known:
        raise InputError(f"{TITLES[d.engine]} has no {dtype} KV cache", place=PLACE, hint="--kv-dtype fp8")
    return "fp8" if d.engine == "tensorrt-llm" else dtype.replace("-", "_")


def script(d: Deployment) -> str:
    """Remarks, files that the command reads, and the command, a flag a line; where nodes are started one by one, a command
    for each."""
    head = "".join(f"# {note}\n" for note in [*notes(d), *about_drafts(d), *_about_nodes(d)])
    files = f"cat > {OPTIONS_FILE} <<'EOF'\n{options_file(d)}EOF\n" if d.engine == "tensorrt-llm" else ""
    if d.nodes == 1 or d.engine == "tensorrt-llm":
        return f"{head}{files}{_lines(command(d))}"
    parts = [f"# node {node}\n{_lines(command(d, node))}" for node in range(d.nodes)]
    return head + files + "\n".join(parts)


def _lines(words: list[str]) -> str:
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return " \\\n    ".join(shlex.join(group) for group in groups) + "\n"


def _about_nodes(d: Deployment) -> list[str]:
    """What to know before a replica is started on several nodes."""
    if d.nodes == 1:
        return []
    if d.engine == "tensorrt-llm":
        return [
            f"run it in a folder that the nodes share, for {OPTIONS_FILE}; without Slurm mpirun with as many processes takes the "
            "place of srun"
        ]
    return [
        "start each command on its node; node 0 answers requests",
        f"put the address of node 0 in place of {HEAD}, and keep port {HEAD_PORT} open between the nodes",
    ]


def options_file(d: Deployment) -> str:
    """What TensorRT-LLM reads from a file rather than from flags."""
    kv = d.resolved.engine.kv
    chunked = str(d.resolved.engine.scheduler.name == "chunked-prefill").lower()
    return (
        f"enable_chunked_prefill: {chunked}\nkv_cache_config:\n  dtype: {kv_flag(d) or 'auto'}\n"
        f"  enable_block_reuse: {str(kv.prefix_caching).lower()}\n  tokens_per_block: {kv.block_size}\n"
        + speculation_options(d)
    )
