"""Speculative decoding in launch commands: flags of vLLM and SGLang, options of TensorRT-LLM.

Names as in docs.vllm.ai (features, speculative decoding; `--speculative-config`), docs.sglang.io (advanced features, speculative
decoding) and nvidia.github.io/TensorRT-LLM (features, speculative decoding; `speculative_config` of the LLM API).
"""

from __future__ import annotations

import json

from experiments.planner.deployment import PLACE, TITLES, Deployment
from sim.config import SpeculationConfig
from workloads.errors import InputError

HEADS = "CHECKPOINT-OF-THE-HEADS"
"""Stands for a checkpoint that only the user knows."""
_WITH_HEADS = ("eagle", "eagle3", "medusa")
_SGLANG = {"ngram": "NGRAM", "draft-model": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "EAGLE"}


def speculation_flags(d: Deployment) -> list[str]:
    """Words of the command; none for TensorRT-LLM, which reads a file (`speculation_options`).

    Raises:
        InputError: the engine has no such method, or cannot switch it off by batch.
    """
    asked = d.resolved.engine.speculation
    if not asked.active:
        return []
    if d.engine != "vllm" and asked.disable_by_batch_size:
        raise _refused(d, "drafts by the size of the batch (disable_by_batch_size)")
    if d.engine == "vllm":
        return ["--speculative-config", json.dumps(_vllm(d, asked))]
    return _sglang(d, asked) if d.engine == "sglang" else []


def _vllm(d: Deployment, asked: SpeculationConfig) -> dict[str, object]:
    found: dict[str, object] = {"method": asked.method.replace("-", "_")}
    if asked.method == "draft-model":
        found["model"] = asked.draft_model
    elif asked.method in _WITH_HEADS:
        found["model"] = HEADS
    found["num_speculative_tokens"] = asked.num_speculative_tokens
    if asked.method == "ngram":
        found["prompt_lookup_max"] = 4
    if asked.disable_by_batch_size:
        found["disable_by_batch_size"] = asked.disable_by_batch_size
    return found


def _sglang(d: Deployment, asked: SpeculationConfig) -> list[str]:
    if asked.method not in _SGLANG:
        raise _refused(d, asked.method)
    tokens = asked.num_speculative_tokens
    words = ["--speculative-algorithm", _SGLANG[asked.method]]
    if asked.method != "ngram":  # a chain: one candidate at each step, and the model's own token besides
        words += ["--speculative-num-steps", str(tokens), "--speculative-eagle-topk", "1"]
    words += ["--speculative-num-draft-tokens", str(tokens + 1)]
    if asked.method in ("draft-model", "eagle", "eagle3"):
        words += ["--speculative-draft-model-path", asked.draft_model or HEADS]
    return words


def speculation_options(d: Deployment) -> str:
    """The section of TensorRT-LLM's file; "" without speculation.

    Raises:
        InputError: a method whose options differ between its versions.
    """
    asked = d.resolved.engine.speculation
    if not asked.active:
        return ""
    tokens = asked.num_speculative_tokens
    match asked.method:
        case "mtp":
            return f"speculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: {tokens}\n"
        case "ngram":
            return f"speculative_config:\n  decoding_type: NGram\n  max_draft_len: {tokens}\n  max_matching_ngram_size: 4\n"
    raise _refused(d, asked.method)


def about_drafts(d: Deployment) -> list[str]:
    """What to know before it is started."""
    asked = d.resolved.engine.speculation
    if not asked.active:
        return []
    rates = ", ".join(f"{rate:g}" for rate in asked.rates)
    found = [
        f"planned with drafts of which {rates} hold (engine.speculation.acceptance): measure it on your own requests"
    ]
    if asked.method in _WITH_HEADS and d.engine != "tensorrt-llm":
        found.append(f"put the checkpoint of the {asked.method} heads in place of {HEADS}")
    return found


def _refused(d: Deployment, what: str) -> InputError:
    return InputError(
        f"no command of {TITLES[d.engine]} is known here for speculation by {what}, with which the plan was made", place=PLACE,
        hint="leave it out of engine.speculation, or start the engine by hand",
    )  # fmt: skip
