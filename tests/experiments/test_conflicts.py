"""Settings that exclude each other: errors where the user wrote them, notices where the preset did."""

from __future__ import annotations

import pytest
from simulate import run, workload

from experiments.conflicts import DERIVED, PRESET, USER, Draft, settle, shown
from experiments.resolve import resolve, resolve_engine
from sim.config import EngineConfig
from sim.presets import PRESETS
from workloads.errors import InputError

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.7}
SMALL = {"traffic.synthetic.requests": 5}


def settled(changes: dict | None = None) -> tuple[EngineConfig, Draft]:
    resolved = resolve(workload(changes))
    return resolve_engine(resolved.workload, resolved.model, resolved.gpu)


def refusal(changes: dict) -> str:
    with pytest.raises(InputError) as caught:
        settled(changes)
    assert caught.value.place.line == 1 and caught.value.hint, "says where and how to mend it"
    return str(caught.value)


def engine(**sections: dict) -> dict:
    return {f"engine.{key}": value for key, value in sections.items()}


# --- what a preset brought gives way, with a notice


@pytest.mark.parametrize(
    ("changes", "became"),
    [
        (engine(kv={"allocator": "contiguous"}), {"kv.prefix_caching": False, "scheduler.gate": "optimistic",
                                                 "scheduler.victim": "none"}),
        (engine(preset="vllm-v0", kv={"allocator": "contiguous"}), {"scheduler.gate": "optimistic",
                                                                    "scheduler.victim": "none"}),
        (engine(kv={"allocator": "radix"}), {"kv.block_size": 1}),
        (engine(preset="sglang", kv={"allocator": "paged"}), {"kv.block_size": 16}),
        (engine(scheduler={"name": "static"}), {"kv.prefix_caching": False, "depth": 1, "scheduler.victim": "none",
                                                "scheduler.max_num_seqs": 32, "scheduler.gate": "max-length"}),
        (engine(scheduler={"max_num_batched_tokens": 100}), {"scheduler.max_num_seqs": 100}),
        (engine(scheduler={"victim": "none"}), {"scheduler.gate": "max-length"}),
        (engine(preset="tensorrt-llm", scheduler={"gate": "optimistic"}), {"scheduler.victim": "last-admitted"}),
        (engine(preset="tensorrt-llm", scheduler={"gate": "optimistic", "policy": "priority"}),
         {"scheduler.victim": "lowest-priority"}),
        (engine(scheduler={"policy": "priority"}), {"scheduler.victim": "lowest-priority"}),
    ],
)  # fmt: skip
def test_values_of_the_preset_give_way_with_a_notice(changes: dict, became: dict) -> None:
    config, draft = settled(changes)
    assert {key: draft[key] for key in became} == became
    assert all(draft.sources[key] == DERIVED for key in became)
    assert len(draft.notices) == len(became)
    for key, value in became.items():
        assert any(
            notice.startswith(f"engine.{key}: ") and f"became {shown(value)}: " in notice for notice in draft.notices
        )
    assert config.scheduler.gate == draft["scheduler.gate"]
    assert run({**changes, **SMALL}).requests.status.tolist() == ["finished"] * 5


def test_nothing_is_said_where_nothing_conflicts() -> None:
    for preset in PRESETS:
        config, draft = settled({"engine.preset": preset})
        assert draft.notices == [], preset
        assert draft.sources["preset"] == USER and draft.sources["scheduler.name"] == PRESET
        assert config.preset == preset


# --- what the user wrote does not


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        (engine(kv={"allocator": "contiguous", "prefix_caching": True}), "kv.prefix_caching", "slabs share no prefixes"),
        (engine(kv={"allocator": "contiguous", "block_size": 16}), "kv.block_size", "slabs have no blocks"),
        (engine(kv={"allocator": "contiguous"}, scheduler={"gate": "ratio"}), "scheduler.gate", "is the reservation"),
        (engine(preset="vllm-v0", kv={"allocator": "contiguous"}, scheduler={"preemption": "swap"}),
         "scheduler.preemption", "slabs are not swapped"),
        (engine(kv={"allocator": "contiguous"}, scheduler={"victim": "last-admitted"}), "scheduler.victim",
         "nobody is preempted"),
        (engine(kv={"slab": "exact"}), "kv.slab", "belong to the contiguous allocator, not to paged"),
        (engine(kv={"allocator": "radix", "block_size": 16}), "kv.block_size", "keeps single tokens"),
        (engine(kv={"prefix_caching": False, "register": "computed"}), "kv.register", "prefix caching is off"),
        (engine(kv={"prefix_caching": False}, scheduler={"policy": "lpm"}), "scheduler.policy", "no prefix is ever longest"),
        (engine(preset="static", kv={"prefix_caching": True}), "kv.prefix_caching", "a static batch shares no prefixes"),
        (engine(preset="orca", kv={"prefix_caching": True}), "kv.prefix_caching", "no prefix cache"),
        (engine(scheduler={"name": "static"}, depth=2), "depth", "runs one step at a time"),
        (engine(scheduler={"name": "static", "victim": "last-admitted"}), "scheduler.victim", "never preempted"),
        (engine(preset="vllm-v0", scheduler={"name": "static", "preemption": "swap"}), "scheduler.preemption",
         "never preempted"),
        (engine(scheduler={"name": "static", "prefill": "first"}), "scheduler.prefill", "takes all its prompts at once"),
        (engine(scheduler={"name": "static", "max_num_batched_tokens": 9}), "scheduler.max_num_batched_tokens",
         "takes all its prompts at once"),
        (engine(scheduler={"batch_wait": "1s"}), "scheduler.batch_wait", "belongs to the static scheduler"),
        (engine(scheduler={"streaming": False}), "scheduler.streaming", "belongs to the static scheduler"),
        (engine(scheduler={"pad": True}), "scheduler.pad", "belongs to the static scheduler"),
        (engine(scheduler={"name": "continuous", "chunk_unit": 8}), "scheduler.chunk_unit", "does not cut prompts"),
        (engine(scheduler={"name": "continuous", "long_prefill_token_threshold": 8}),
         "scheduler.long_prefill_token_threshold", "does not cut prompts"),
        (engine(scheduler={"prefill_wait_steps": 3}), "scheduler.prefill_wait_steps", "belongs to prefill: first"),
        (engine(scheduler={"prefill": "first", "admit_after_preemption": True}), "scheduler.admit_after_preemption",
         "never admits"),
        (engine(scheduler={"max_num_batched_tokens": 64, "max_num_seqs": 65}), "scheduler.max_num_seqs", "65 is too many"),
        (engine(scheduler={"victim": "none", "gate": "ratio"}), "scheduler.gate", "whole answers must be reserved"),
        (engine(scheduler={"name": "static", "gate": "optimistic"}), "scheduler.gate", "whole answers must be reserved"),
        (engine(scheduler={"gate": "ratio", "watermark": 0.1}), "scheduler.watermark", "leaves no watermark"),
        (engine(scheduler={"conservativeness": 0.4}), "scheduler.conservativeness", "belongs to gate ratio"),
        (engine(preset="tensorrt-llm", scheduler={"requeue": "tail"}), "scheduler.requeue", "nobody is ever preempted"),
        (engine(preset="orca", scheduler={"admit_after_preemption": True}), "scheduler.admit_after_preemption",
         "nobody is ever preempted"),
        (engine(preset="vllm-v0", scheduler={"victim": "none", "preemption": "swap"}), "scheduler.preemption",
         "nobody is ever preempted"),
        (engine(scheduler={"policy": "priority", "requeue": "tail"}), "scheduler.requeue", "ranks preempted sequences itself"),
        (engine(preset="vllm-v0", kv={"swap_gib": 1}), "kv.swap_gib", "nothing is swapped"),
        (engine(preset="vllm@0.8", stops_ahead=True), "stops_ahead", "several plans in flight"),
        (engine(kv={"capacity_tokens": 9000, "memory_utilization": 0.5}), "kv.memory_utilization", "sets the pool"),
        (engine(kv={"capacity_tokens": 9000, "memory_rule": "free"}), "kv.memory_rule", "sets the pool"),
        (engine(preset="vllm", scheduler={"preemption": "swap"}), "scheduler.preemption", "recompute only"),
        (engine(preset="sglang", scheduler={"preemption": "swap"}), "scheduler.preemption", "recompute only"),
        (engine(preset="tensorrt-llm", scheduler={"preemption": "swap"}), "scheduler.preemption", "recompute only"),
        (engine(speculation={"method": "ngram", "acceptance": 0.7}), "speculation.method", "how many tokens are guessed"),
        (engine(speculation={"method": "ngram", "num_speculative_tokens": 3}), "speculation.method", "how likely a guess holds"),
        (engine(speculation=DRAFTS | {"method": "draft-model"}), "speculation.method", "who guesses"),
        (engine(speculation=DRAFTS | {"acceptance": [0.7, 0.5]}), "speculation.acceptance", "2 rates for 3 drafts"),
        (engine(speculation=DRAFTS | {"draft_model": "meta-llama/Llama-3.2-1B"}), "speculation.draft_model",
         "ngram has no model of its own"),
        (engine(speculation={"acceptance": 0.7}), "speculation.acceptance", "nothing is guessed"),
        (engine(scheduler={"name": "static"}, speculation=DRAFTS), "speculation.method", "a static batch"),
        (engine(parallel={"pipeline": 2}, speculation=DRAFTS), "speculation.method", "pipeline stages"),
        (engine(scheduler={"max_num_seqs": 8}, speculation=DRAFTS | {"disable_by_batch_size": 8}),
         "speculation.disable_by_batch_size", "no more than 8 sequences"),
    ],
)  # fmt: skip
def test_what_the_user_wrote_and_cannot_be_is_an_error(changes: dict, key: str, says: str) -> None:
    told = refusal(changes)
    assert f"engine.{key}: " in told and says in told


def test_speculation_that_is_switched_off_may_keep_its_settings() -> None:
    """So that a sweep can hold `none` against a method."""
    config, draft = settled(engine(speculation=DRAFTS | {"method": "none"}))
    assert not config.speculation.active
    assert {"speculation.acceptance", "speculation.num_speculative_tokens"} <= set(draft.idle)


@pytest.mark.parametrize(
    "changes",
    [
        engine(
            kv={"allocator": "contiguous", "prefix_caching": False}, scheduler={"gate": "optimistic", "victim": "none"}
        ),
        engine(scheduler={"name": "static", "victim": "none", "preemption": "recompute"}, depth=1),
        engine(kv={"allocator": "radix", "block_size": 1}),
        engine(preset="vllm-v0", scheduler={"preemption": "swap"}, kv={"swap_gib": 1}),
        engine(preset="lightllm", scheduler={"name": "continuous", "prefill_wait_steps": 3}),
    ],
)
def test_writing_the_only_value_that_is_possible_is_no_mistake(changes: dict) -> None:
    settled(changes)


def test_policy_priority_leaves_a_victim_that_the_user_named() -> None:
    for victim in ("last-admitted", "fewest-outputs"):
        config, draft = settled(engine(scheduler={"policy": "priority", "victim": victim}))
        assert config.scheduler.victim == victim and not draft.notices
    config, draft = settled(engine(preset="orca", scheduler={"policy": "priority"}))
    assert config.scheduler.victim == "none" and not draft.notices, "nobody is ever preempted"
    told = resolve(workload(engine(scheduler={"policy": "priority"}))).config["engine"]["scheduler"]["victim"]
    assert told == {"value": "lowest-priority", "source": DERIVED}


def test_what_does_nothing_is_not_in_the_resolved_configuration() -> None:
    config = resolve(workload({"engine.preset": "static"})).config["engine"]
    assert "max_num_batched_tokens" not in config["scheduler"] and "block_size" not in config["kv"]
    assert {"slab", "allocator"} <= set(config["kv"]) and "pad" in config["scheduler"]
    config = resolve(workload()).config["engine"]
    assert "slab" not in config["kv"] and "pad" not in config["scheduler"] and "swap_gib" not in config["kv"]


def test_a_scheduler_of_the_users_own_may_read_any_setting(tmp_path, monkeypatch) -> None:
    (tmp_path / "my_own.py").write_text(
        "from sim.schedulers import ChunkedPrefill\n\n\nclass Mine(ChunkedPrefill):\n    '''Mine.'''\n"
    )
    monkeypatch.chdir(tmp_path)
    settled(engine(scheduler={"name": "my_own:Mine", "batch_wait": "1s", "chunk_unit": 8, "pad": True}))


def test_every_scheduler_runs_with_every_allocator() -> None:
    for scheduler in ("static", "continuous", "chunked-prefill"):
        for allocator in ("contiguous", "paged", "radix"):
            for preset in PRESETS:
                changes = engine(preset=preset, scheduler={"name": scheduler}, kv={"allocator": allocator})
                assert set(run({**changes, **SMALL}).requests.status) == {"finished"}, (preset, scheduler, allocator)


def test_settle_names_the_preset_that_refuses() -> None:
    def error(key: str, message: str, hint: str | None) -> InputError:
        return InputError(f"{key}: {message}", hint=hint)

    draft = Draft({"scheduler.preemption": "swap", "preset": "vllm@0.33"}, {"scheduler.preemption": USER}, error)
    with pytest.raises(InputError, match=r"choose another preset than vllm@0\.33, or remove it"):
        settle(draft, PRESETS["vllm@0.33"])
