"""Launch commands and manifests say what the plan says, in each engine's own flags."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from experiments.planner.candidates import Candidate
from experiments.planner.deployment import deployment_of
from experiments.planner.emit import TARGETS, Deployment, command, emit
from experiments.planner.kubernetes import VERSIONS
from experiments.planner.plan import Plan
from experiments.planner.question import Question
from experiments.planner.search import Found, resolved
from sim.presets import NEWEST
from workloads.errors import InputError

MODEL = "meta-llama/Meta-Llama-3-8B"


@pytest.fixture
def deployment(question: Callable[..., Question]) -> Callable[..., Deployment]:
    """`deployment(preset="sglang", tensor=2, …)`: three replicas."""

    def make(model: str = MODEL, gpu: str = "h100-sxm", settings: tuple[str, ...] = (), **parts: object) -> Deployment:
        defaults = {"tensor": 1, "pipeline": 1, "preset": "vllm", "quantization": "auto", "kv_dtype": "auto"}
        candidate = Candidate(gpu, **(defaults | parts))
        return Deployment(model, resolved(question(settings=settings), candidate, 3072), 3)

    return make


def flags(words: list[str]) -> dict[str, str]:
    """Each flag's value; "" of a switch."""
    found = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "" if after.startswith("--") else after
    return found


def test_vllm(deployment: Callable[..., Deployment]) -> None:
    knobs = (("scheduler.max_num_batched_tokens", 1024), ("scheduler.max_num_seqs", 77))
    words = command(deployment(tensor=2, quantization="fp8", kv_dtype="fp8-e4m3", knobs=knobs))
    assert words[:3] == ["vllm", "serve", MODEL]
    assert flags(words) == {
        "--tensor-parallel-size": "2", "--max-model-len": "3072", "--max-num-seqs": "77", "--max-num-batched-tokens": "1024",
        "--gpu-memory-utilization": "0.92", "--block-size": "16", "--quantization": "fp8", "--kv-cache-dtype": "fp8_e4m3",
    }  # fmt: skip
    plain = flags(command(deployment(settings=("engine.kv.prefix_caching=false",))))
    assert "--no-enable-prefix-caching" in plain
    tree = command(deployment(preset="sglang", settings=("engine.kv.prefix_caching=false",)))
    assert "--disable-radix-cache" in tree and tree[-4:] == ["--host", "0.0.0.0", "--port", "8000"]
    assert not {"--quantization", "--kv-cache-dtype", "--tensor-parallel-size", "--pipeline-parallel-size"} & set(plain)


def test_sglang(deployment: Callable[..., Deployment]) -> None:
    made = deployment(preset="sglang", tensor=4, kv_dtype="fp8-e5m2")
    found = flags(command(made))
    assert found["--model-path"] == MODEL and found["--tp-size"] == "4" and found["--context-length"] == "3072"
    assert found["--kv-cache-dtype"] == "fp8_e5m2" and found["--page-size"] == "1"
    assert found["--chunked-prefill-size"] == "8192"
    assert float(found["--mem-fraction-static"]) == pytest.approx(made.resolved.budget.utilization, rel=1e-2)


def test_tensorrt_llm(deployment: Callable[..., Deployment]) -> None:
    made = deployment(preset="tensorrt-llm", quantization="fp8", kv_dtype="fp8-e4m3", tensor=2)
    found = flags(command(made))
    assert command(made)[:2] == ["trtllm-serve", f"YOUR-ORG/{MODEL.rpartition('/')[2]}-fp8"], "not the 16-bit model"
    assert (found["--tp_size"], found["--max_seq_len"], found["--max_batch_size"]) == ("2", "3072", "2048")
    script = emit(made, "tensorrt-llm")
    options = script.split("<<'EOF'\n")[1].split("EOF\n")[0]
    assert YAML(typ="safe").load(options) == {
        "enable_chunked_prefill": False,
        "kv_cache_config": {"dtype": "fp8", "enable_block_reuse": True, "tokens_per_block": 32},
    }
    assert "a checkpoint in fp8 has to be found or made beforehand" in script, "TensorRT-LLM makes none by itself"
    assert "put the name of that checkpoint in place of YOUR-ORG/" in script


def test_replicas_on_several_nodes(deployment: Callable[..., Deployment]) -> None:
    """Each node is told how many there are, which it is and where the first is; only the first answers requests."""
    large = {"tensor": 8, "pipeline": 2}
    vllm = deployment(**large)
    head, worker = (flags(command(vllm, node)) for node in range(2))
    joined = {"--nnodes": "2", "--node-rank": "0", "--master-addr": "HEAD-ADDRESS", "--master-port": "29500"}
    assert joined.items() <= head.items() and "--headless" not in head
    assert worker == {**head, "--node-rank": "1", "--headless": ""}
    script = emit(vllm, "vllm")
    assert script.count("vllm serve") == 2 and "put the address of node 0 in place of HEAD-ADDRESS" in script
    assert "# one replica spans 2 nodes of 8 GPUs" in script

    sglang = deployment(preset="sglang", settings=("backend.gpus_per_node=2",), tensor=2, pipeline=4)
    ranks = [flags(command(sglang, node)) for node in range(4)]
    assert [each["--node-rank"] for each in ranks] == ["0", "1", "2", "3"]
    assert {(each["--nnodes"], each["--dist-init-addr"]) for each in ranks} == {("4", "HEAD-ADDRESS:29500")}
    assert emit(sglang, "sglang").count("sglang.launch_server") == 4

    mpi = emit(deployment(preset="tensorrt-llm", **large), "tensorrt-llm")
    words = shlex.split(mpi.split("EOF\n")[-1].replace("\\\n", " "))
    assert words[: words.index("trtllm-serve")] == [
        "srun", "--nodes", "2", "--ntasks", "16", "--ntasks-per-node", "8", "--mpi=pmix", "trtllm-llmapi-launch",
    ]  # fmt: skip
    assert mpi.count("trtllm-serve") == 1 and "a folder that the nodes share" in mpi
    for preset in ("vllm", "sglang", "tensorrt-llm"):
        one = emit(deployment(preset=preset, tensor=8), preset)
        assert not any(word in one for word in ("HEAD-ADDRESS", "nnodes", "srun", "# node")), (
            "one node needs none of it"
        )


def test_scripts_are_for_a_shell(deployment: Callable[..., Deployment]) -> None:
    hostile = "/models/my model; rm -rf $HOME/'x'"
    script = emit(deployment(model=hostile, quantization="awq-int4"), "vllm")
    remarks = [line for line in script.splitlines() if line.startswith("# ")]
    assert remarks[0] == "# 3 replicas of 1 x h100-sxm"
    assert remarks[1].startswith(
        "# in front of them a router that hands out sessions in turn and keeps each on its replica"
    )
    assert "a checkpoint in awq-int4" in remarks[2]
    words = shlex.split(
        "\n".join(line for line in script.splitlines() if not line.startswith("# ")).replace("\\\n", " ")
    )
    assert words[2] == "YOUR-ORG/'x'-awq-int4", "served by the 16-bit name it would be another deployment"
    assert "--quantization" not in words, "vLLM reads it from the checkpoint"


def test_kubernetes(deployment: Callable[..., Deployment]) -> None:
    for preset in ("vllm", "sglang", "tensorrt-llm"):
        made = deployment(preset=preset, tensor=2)
        text = emit(made, "kubernetes")
        workload, service, claim = YAML(typ="safe").load_all(text)
        kinds = ("Deployment", "Service", "PersistentVolumeClaim")
        assert (workload["kind"], service["kind"], claim["kind"]) == kinds
        spec = workload["spec"]
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert spec["replicas"] == 3 and container["resources"]["limits"]["nvidia.com/gpu"] == 2
        assert container["image"].endswith(VERSIONS[preset][1]) and "latest" not in text
        assert "&id" not in text and "*id" not in text
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == service["spec"]["selector"]
        assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        port = container["ports"][0]["containerPort"]
        assert service["spec"]["ports"][0]["targetPort"] == port == container["readinessProbe"]["httpGet"]["port"]
        said = " ".join(container["command"])
        assert all(word in said for word in command(made))
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        held = {volume["name"]: volume for volume in pod["volumes"]}
        assert mounted.keys() == held.keys() == {"shm", "cache"} and mounted["shm"] == "/dev/shm"
        assert held["cache"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert {"name": "HF_HOME", "value": mounted["cache"]} in container["env"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/health", "port": port}
        waits = container["startupProbe"]
        assert waits["periodSeconds"] * waits["failureThreshold"] >= 1200, "large models load for long"
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}, "no GPUs are to spare"
    amd = emit(deployment(gpu="mi300x"), "kubernetes")
    assert "amd.com/gpu: 1" in amd and "nodeSelector" not in amd.split("apiVersion")[1]
    assert "# choose the nodes with mi300x yourself" in amd


def test_names_that_kubernetes_does_not_take(deployment: Callable[..., Deployment], tmp_path: Path) -> None:
    for model in ("x/Ünïcode Model!!" + "y" * 300, "***", "/a/b/<script>"):
        text = emit(deployment(model=model), "kubernetes")
        workload, *_ = YAML(typ="safe").load_all(text)
        name = workload["metadata"]["name"]
        assert "mount it into the pods" in text and "PersistentVolumeClaim" not in text and "HF_TOKEN" not in text
        assert 0 < len(name) <= 63 and name.replace("-", "a").isalnum() and name[0].isalnum() and name.isascii()
        assert workload["spec"]["template"]["spec"]["containers"][0]["command"][2] == model


def test_images_are_of_the_release_that_the_newest_preset_describes() -> None:
    for engine, (preset, release) in VERSIONS.items():
        assert NEWEST[engine] == preset, "a newer preset wants a newer image"
        assert release.startswith(preset.partition("@")[2] + ".")


def test_room_for_the_checkpoint(deployment: Callable[..., Deployment]) -> None:
    def parts(**options: object) -> tuple[int, int, str]:
        workload, _, claim = YAML(typ="safe").load_all(emit(deployment(**options), "kubernetes"))
        resources = workload["spec"]["template"]["spec"]["containers"][0]["resources"]
        asked, most = (int(resources[kind]["memory"].removesuffix("Gi")) for kind in ("requests", "limits"))
        assert 16 < asked < most
        room = claim["spec"]["resources"]["requests"]["storage"]
        return most, int(room.removesuffix("Gi")), claim["spec"]["accessModes"][0]

    plain, online, ready = (parts(quantization=mode) for mode in ("auto", "fp8", "awq-int4"))
    assert plain == online, "FP8 weights are made of the 16-bit checkpoint"
    assert plain[1] >= 16 * 1.2 and ready[1] < 0.7 * plain[1] and ready[0] < plain[0]
    assert plain[2] == "ReadWriteMany", "three replicas, on three nodes perhaps"


def test_where_quantized_weights_come_from(
    deployment: Callable[..., Deployment], question: Callable[..., Question]
) -> None:
    assert deployment().about_weights() == ""
    online = deployment(quantization="fp8")
    assert online.online and "vLLM makes fp8 of the 16-bit checkpoint while it loads" in online.about_weights()
    assert "# weights: vLLM makes fp8" in emit(online, "vllm") and not online.needs_checkpoint
    asked = question(model="llama-3-70b", slo="ttft_p95=9s")
    tight = Candidate("h100-sxm", tensor=1, pipeline=1, preset="vllm", quantization="fp8", kv_dtype="auto")
    large = Deployment("meta-llama/Meta-Llama-3-70B", resolved(asked, tight, 1024), 1)
    assert large.needs_checkpoint and "--quantization" not in command(large), "140 GB do not load into 80"
    assert "does not hold its share of the 16-bit weights" in large.about_weights()
    native = Deployment("x/y", deployment(quantization="fp8").resolved, 1, native="fp8")
    assert native.about_weights() == "" and native.served == "x/y"


def test_the_model_that_was_asked_for(question: Callable[..., Question]) -> None:
    def start(model: str) -> tuple[str, str]:
        asked = question(model=model, slo="ttft_p95=9s")
        each = Candidate("h100-sxm", tensor=4, pipeline=1, preset="vllm", quantization="auto", kv_dtype="auto")
        made = deployment_of(Plan(asked, 3072, []), Found(each, replicas=1))
        return command(made)[2], emit(made, "vllm")

    for model in ("Qwen/Qwen2.5-32B-Instruct", "Qwen/QwQ-32B"):
        assert start(model)[0] == model, "its shape is the base model's, its weights are not"
    assert start("qwen2.5-32b")[0] == "Qwen/Qwen2.5-32B"
    served, script = start("qwq-32b")
    assert served == "YOUR-ORG/qwq-32b" and "put the model's id on the Hugging Face hub in place of" in script


def test_what_cannot_be_emitted(deployment: Callable[..., Deployment]) -> None:
    with pytest.raises(InputError, match="the plan is for vllm, not for sglang"):
        emit(deployment(), "sglang")
    for preset, says in (
        ("vllm", "vLLM has no int8 KV"),
        ("sglang", "SGLang has no int8 KV"),
        ("tensorrt-llm", "has no int8 KV"),
    ):
        with pytest.raises(InputError, match=says):
            emit(deployment(preset=preset, kv_dtype="int8"), preset)
    with pytest.raises(InputError, match="no image of SGLang is known for mi300x"):
        emit(deployment(gpu="mi300x", preset="sglang"), "kubernetes")
    with pytest.raises(InputError, match="a replica of 16 GPUs spans nodes of 8"):
        emit(deployment(tensor=8, pipeline=2), "kubernetes")
    assert set(TARGETS) == {"vllm", "sglang", "tensorrt-llm", "kubernetes"}


@pytest.mark.parametrize(
    ("preset", "setting", "words"),
    [
        ("vllm", "scheduler.policy=priority", ["--scheduling-policy", "priority"]),
        ("vllm", "scheduler.long_prefill_token_threshold=512", ["--long-prefill-token-threshold", "512"]),
        ("vllm", "cuda_graphs=false", ["--enforce-eager"]),
        ("vllm", "depth=1", ["--no-async-scheduling"]),
        ("vllm", "kv.capacity_tokens=64000", ["--num-gpu-blocks-override", "4000"]),
        ("sglang", "scheduler.policy=lpm", ["--schedule-policy", "lpm"]),
        ("sglang", "kv.capacity_tokens=64000", ["--max-total-tokens", "64000"]),
        ("sglang", "depth=1", ["--disable-overlap-schedule"]),
    ],
)
def test_what_was_simulated_is_said(
    deployment: Callable[..., Deployment], preset: str, setting: str, words: list[str]
) -> None:
    said = command(deployment(preset=preset, settings=(f"engine.{setting}",)))
    at = said.index(words[0])
    assert said[at : at + len(words)] == words


@pytest.mark.parametrize(
    ("preset", "setting"),
    [("vllm", "kv.allocator=contiguous"), ("vllm", "scheduler.name=continuous"), ("tensorrt-llm", "depth=1")],
)
def test_what_no_flag_says_is_refused(deployment: Callable[..., Deployment], preset: str, setting: str) -> None:
    with pytest.raises(InputError, match=f"no flag for engine.{setting.partition('=')[0]}"):
        command(deployment(preset=preset, settings=(f"engine.{setting}",)))


def test_cards_without_bf16_are_told_to_do_without(deployment: Callable[..., Deployment]) -> None:
    assert flags(command(deployment(gpu="v100-sxm")))["--dtype"] == "float16"


def drafts(method: str, *more: str) -> tuple[str, ...]:
    settings = {"method": method, "num_speculative_tokens": 3, "acceptance": 0.7}
    return (*(f"engine.speculation.{key}={value}" for key, value in settings.items()), *more)


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("ngram", {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}),
        ("eagle3", {"method": "eagle3", "model": "CHECKPOINT-OF-THE-HEADS", "num_speculative_tokens": 3}),
        ("mtp", {"method": "mtp", "num_speculative_tokens": 3}),
    ],
)
def test_vllm_is_told_of_drafts_in_json(deployment: Callable[..., Deployment], method: str, config: dict) -> None:
    made = deployment(settings=drafts(method))
    assert json.loads(flags(command(made))["--speculative-config"]) == config
    script = emit(made, "vllm")
    words = shlex.split(script.split("#")[-1].partition("\n")[2].replace("\\\n", " "))
    assert json.loads(words[words.index("--speculative-config") + 1]) == config, "a shell leaves the JSON whole"
    assert "of which 0.7, 0.7, 0.7 hold" in script
    assert ("in place of CHECKPOINT-OF-THE-HEADS" in script) == ("model" in config)


def test_vllm_is_told_of_a_draft_model_and_of_the_batch_above_which_there_are_none(
    deployment: Callable[..., Deployment],
) -> None:
    more = ("engine.speculation.draft_model=meta-llama/Llama-3.2-1B", "engine.speculation.disable_by_batch_size=32")
    found = json.loads(flags(command(deployment(settings=drafts("draft-model", *more))))["--speculative-config"])
    assert found == {
        "method": "draft_model", "model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 3, "disable_by_batch_size": 32,
    }  # fmt: skip


def test_sglang_is_told_of_a_chain_of_drafts(deployment: Callable[..., Deployment]) -> None:
    found = flags(command(deployment(preset="sglang", settings=drafts("eagle3"))))
    assert {key: value for key, value in found.items() if "speculative" in key} == {
        "--speculative-algorithm": "EAGLE3", "--speculative-num-steps": "3", "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4", "--speculative-draft-model-path": "CHECKPOINT-OF-THE-HEADS",
    }  # fmt: skip


def test_tensorrt_llm_reads_of_drafts_in_its_file(deployment: Callable[..., Deployment]) -> None:
    script = emit(deployment(preset="tensorrt-llm", settings=drafts("mtp")), "tensorrt-llm")
    options = YAML(typ="safe").load(script.split("<<'EOF'\n")[1].split("EOF\n")[0])
    assert options["speculative_config"] == {"decoding_type": "MTP", "num_nextn_predict_layers": 3}


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("sglang", drafts("medusa")),
        ("sglang", drafts("ngram", "engine.speculation.disable_by_batch_size=9")),
        ("tensorrt-llm", drafts("eagle3")),
    ],
)
def test_speculation_without_a_known_command_is_refused(
    deployment: Callable[..., Deployment], preset: str, settings: tuple[str, ...]
) -> None:
    with pytest.raises(InputError, match=r"no command of .* is known here for speculation by"):
        emit(deployment(preset=preset, settings=settings), preset)


def test_speculation_that_is_off_is_not_said(deployment: Callable[..., Deployment]) -> None:
    assert "speculative" not in emit(deployment(settings=drafts("none")), "vllm")
