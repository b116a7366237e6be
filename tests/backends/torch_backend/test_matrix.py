"""The real engine against `transformers` through every pair of settings: architecture, scheduler, memory, size of steps, shared
prefixes, preemption, parallel samples, beams, plans in flight, and recorded decode steps."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")

from all_pairs import all_pairs, pairs_of  # noqa: E402
from real_engine import Served, busy, check_all, engine_config, reference_model, traffic_of  # noqa: E402

from backends.torch.beams import BeamSearchParams, search  # noqa: E402
from backends.torch.sampling import SamplingParams  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import TINY, make_tiny  # noqa: E402

SCHEDULERS = {
    "chunked": {"name": "chunked-prefill"},
    "chunked first": {"name": "chunked-prefill", "prefill": "first", "max_partial_prefills": 1},
    "sorted": {"name": "chunked-prefill", "policy": "lpm"},
    "continuous": {"name": "continuous", "prefill": "mixed"},
    "continuous first": {"name": "continuous", "prefill": "first", "gate": "watermark", "watermark": 0.01},
}
MEMORY = {
    "paged 16": {"allocator": "paged"},
    "paged 4 computed": {"allocator": "paged", "block_size": 4, "register": "computed"},
    "paged plain": {"allocator": "paged", "block_size": 8, "prefix_caching": False},
    "radix": {"allocator": "radix", "block_size": 1, "register": "computed"},
    "radix scheduled": {"allocator": "radix", "block_size": 1, "register": "scheduled"},
    "slots": {"allocator": "radix", "block_size": 1, "prefix_caching": False},
    "slabs": {"allocator": "contiguous", "prefix_caching": False},
}
FACTORS = {
    "kind": list(TINY), "scheduler": list(SCHEDULERS), "memory": list(MEMORY), "step": ["24", "96"],
    "prompts": ["own", "shared"], "preemption": ["none", "recompute", "swap"], "samples": ["1", "2"], "beams": ["0", "2"],
    "depth": ["1", "2", "2 late"], "recorded": ["no", "yes"],
}  # fmt: skip
CACHING = ("paged 16", "paged 4 computed", "radix", "radix scheduled")


def senseless(case: dict[str, str]) -> bool:
    whole = case.get("scheduler", "").startswith("continuous")  # prompts are not cut, whatever the step
    slabs = case.get("memory") == "slabs"  # hold all that their sequences may come to
    return (whole and case.get("step") == "24") or (slabs and case.get("preemption", "none") != "none")


CASES = all_pairs(FACTORS, senseless)


@cache
def ready(kind: str, root):
    folder = make_tiny(kind, root / kind, seed=3)
    return folder, load_model(folder)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def rerun(work):
    """Stands in for a CUDA graph."""
    work()
    return work


def beams(model, folder, config, capture) -> None:
    """The engine's beams of two prompts are those of the same search on transformers' log-probabilities."""
    how = BeamSearchParams(2, 3, ignore_eos=True)
    prompts = [[5, 6, 7, 8, 9] * 4, [11, 300, 22]]

    def ours(asked, count):
        given = {row: (ids, SamplingParams(logprobs=count, ignore_eos=True)) for row, ids in enumerate(asked)}
        rows = [{"prompt": len(ids), "output": 1} for ids in asked]
        said: dict[int, dict[int, float]] = {}

        def listen(served) -> None:
            served.executor.on_end = lambda seq, tokens: said.update({seq.row: tokens.logprobs[tokens.prompt]})

        Served(model, traffic_of(rows), config, given=given, max_len=96, capture=capture, before=listen)
        return [dict(sorted(said[row].items(), key=lambda each: -each[1])[:count]) for row in range(len(asked))]

    @torch.inference_mode()
    def theirs(asked, count):
        found = []
        for ids in asked:
            top = reference_model(folder)(torch.tensor([ids])).logits[0, -1].log_softmax(-1).topk(count)
            found.append(dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)))
        return found

    got, want = (search(prompts, how, frozenset(), best) for best in (ours, theirs))
    for mine, other in zip(got, want, strict=True):
        assert [beam.cum_logprob for beam in mine] == pytest.approx([b.cum_logprob for b in other], abs=1e-3)
        assert [beam.tokens for beam in mine] == [beam.tokens for beam in other]


@pytest.mark.parametrize(("number", "case"), list(enumerate(CASES)), ids=[", ".join(case.values()) for case in CASES])
def test_every_pair_of_settings(number, case, root) -> None:
    folder, model = ready(case["kind"], root)
    swaps = {"preemption": "swap"} if case["preemption"] == "swap" else {}
    config = engine_config(
        depth=int(case["depth"][0]), stops_ahead=case["depth"] != "2 late", max_num_seqs=10,
        max_num_batched_tokens=int(case["step"]), **SCHEDULERS[case["scheduler"]], **MEMORY[case["memory"]], **swaps,
    )  # fmt: skip
    rows = busy(number, 6, 0.3, samples=case["samples"] == "2", prompts=(1, 30), answers=(12, 20))
    if case["prompts"] == "own":
        rows = [row | {"prompt": sum(span.length for span in row["prompt"])} for row in rows]
    capture = rerun if case["recorded"] == "yes" else None
    tight = case["preemption"] != "none"
    if tight:  # the first two fit together, and outgrow the pool
        rows = [{"prompt": 20, "output": 40}, {"prompt": 20, "output": 40}, *rows]
    capacity = 96 if tight else 10 * 96
    served = Served(model, traffic_of(rows), config, capacity=capacity, max_len=96, capture=capture)
    check_all(served, folder)
    assert not served.refused and (served.preemptions > 0) >= tight
    assert case["preemption"] != "swap" or served.swaps
    if case["prompts"] == "shared" and case["memory"] in CACHING and not tight:
        assert sum(served.cached.values()) > 0
    assert (served.executor.graphs is not None) == (case["recorded"] == "yes")
    if case["beams"] == "2":
        beams(model, folder, config, capture)


def test_every_pair_is_there() -> None:
    met = set().union(*map(pairs_of, CASES))
    names = list(FACTORS)
    for index, a in enumerate(names):
        for b in names[index + 1 :]:
            for x in FACTORS[a]:
                for y in FACTORS[b]:
                    assert senseless({a: x, b: y}) != (frozenset(((a, x), (b, y))) in met), (a, x, b, y)
    assert not any(map(senseless, CASES)) and len(CASES) < 70


@pytest.mark.parametrize("allocator", ["paged", "radix"])
def test_everything_at_once(allocator, root) -> None:
    """Prompts in pieces beside decoding, prefix hits, preemption, parallel samples, two plans in flight, recorded steps."""
    folder, model = ready("tiny-qwen3", root)
    config = engine_config(depth=2, allocator=allocator, max_num_batched_tokens=48, max_num_seqs=12)
    served = Served(model, traffic_of(busy(1)), config, capacity=320, capture=rerun)
    check_all(served, folder)
    assert not served.refused and served.mixed and served.chunks > 20
    assert served.preemptions and sum(served.cached.values()) > 60 and served.executor.graphs.replayed > 20
    assert served.copies or allocator == "radix"  # slots of one token are never half full
