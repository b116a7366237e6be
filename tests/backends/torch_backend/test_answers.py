"""When answers end, how tokens are drawn, and that nobody's tokens depend on who else is served."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
pytest.importorskip("transformers")

from real_engine import Served, check_against, engine_config, traffic_of  # noqa: E402

from backends.torch.sampling import SamplingParams  # noqa: E402
from backends.weights.load import load_model  # noqa: E402
from backends.weights.tiny import make_tiny  # noqa: E402
from workloads.errors import InputError  # noqa: E402
from workloads.traffic import Span  # noqa: E402

PROMPT = list(range(40, 75))
BOTH = pytest.mark.parametrize("depth", [1, 2])
WARM = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, min_p=0.01)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny("tiny-qwen3", tmp_path_factory.mktemp("qwen3"), seed=8)


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


def one(output: int = 40, **row) -> dict:
    return {"prompt": len(PROMPT), "output": output, **row}


def answer(model, how: SamplingParams | None = None, depth: int = 1, **options) -> list[int]:
    given = {0: (PROMPT, how)}
    return Served(model, traffic_of([one()]), engine_config(depth=depth), forced=False, given=given, **options).tokens[
        0, 0
    ]


@pytest.fixture(scope="module")
def whole(model) -> list[int]:
    """The greedy answer of forty tokens, whatever ends it otherwise."""
    return answer(model, SamplingParams(ignore_eos=True))


@BOTH
def test_a_stop_token_ends_the_answer_and_is_its_last(model, folder, whole, depth) -> None:
    stop = whole[9]
    first = whole.index(stop)
    got = answer(model, SamplingParams(stop_token_ids=(stop, 511), ignore_eos=True), depth)
    assert got == whole[: first + 1]
    check_against(folder, PROMPT, got)


@BOTH
def test_the_models_own_end_of_text_token(folder, whole, depth, tmp_path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stop = whole[6]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop]}))
    model = load_model(tmp_path)
    assert answer(model, None, depth) == whole[: whole.index(stop) + 1]
    assert answer(model, SamplingParams(ignore_eos=True), depth) == whole
    forced = Served(model, traffic_of([one(17)]), engine_config(depth=depth), given={0: (PROMPT, None)})
    assert forced.tokens[0, 0] == whole[:17], "a forced length is a forced length"


@BOTH
def test_the_declared_limit_cuts_an_answer(model, whole, depth) -> None:
    for late in (True, False):
        config = engine_config(depth=depth, stops_ahead=late)
        served = Served(model, traffic_of([one(40, declared=11)]), config, given={0: (PROMPT, None)})
        assert served.tokens[0, 0] == whole[:11]


def test_an_answer_ended_by_its_first_token(model, whole) -> None:
    how = SamplingParams(stop_token_ids=(whole[0],))
    for depth, samples in product((1, 2), (1, 3)):
        given = {0: (PROMPT, how), 1: (PROMPT[:20], SamplingParams(ignore_eos=True))}
        rows = [one(n=samples), {"prompt": 20, "output": 12}]
        served = Served(model, traffic_of(rows), engine_config(depth=depth), forced=False, given=given)
        assert [served.tokens[0, sample] for sample in range(samples)] == [whole[:1]] * samples
        assert len(served.tokens[1, 0]) == 12 and sorted(served.finished) == [0, 1]


# --- drawing


def crowd(how: dict[int, SamplingParams]) -> tuple[list[dict], dict]:
    rows = [{"prompt": 12 + 9 * i, "output": 15 + i, "at": 0, "n": 1 + (i == 2)} for i in range(7)]
    return rows, {row: (None, params) for row, params in how.items()}


def test_a_requests_tokens_do_not_depend_on_its_neighbours(model) -> None:
    """Alone and in a crowd, in any memory, with chunks, preemption and two plans in flight: the same draws."""
    how = {row: WARM if row % 2 else SamplingParams(temperature=1.3) for row in range(7)}
    rows, given = crowd(how)
    alone: dict = {}
    for row in range(7):
        only = [{**each, "at": 0} if i == row else {"prompt": 400, "output": 1} for i, each in enumerate(rows)]
        served = Served(model, traffic_of(only), engine_config(), max_len=150, given=given)
        alone |= {key: tokens for key, tokens in served.tokens.items() if key[0] == row}
    ways = [
        {"depth": 1}, {"depth": 2}, {"allocator": "radix", "max_num_batched_tokens": 16, "depth": 2},
        {"name": "continuous", "preemption": "swap", "depth": 2},
        {"max_num_batched_tokens": 32, "prefix_caching": False, "depth": 1},
    ]  # fmt: skip
    for way in ways:
        served = Served(
            model, traffic_of(rows), engine_config(max_num_seqs=9, **way), capacity=144, max_len=150, given=given,
            capture=(lambda work: work) if way["depth"] == 2 else None,  # recorded: filled up with dead rows
        )  # fmt: skip
        assert served.preemptions and served.tokens == alone, way


def test_equal_seeds_give_equal_answers_and_others_do_not(model) -> None:
    how = [SamplingParams(temperature=1.0, seed=seed) for seed in (5, 5, 6)]
    how += [SamplingParams(temperature=1.0), SamplingParams(temperature=1.0)]
    given = {row: (PROMPT, params) for row, params in enumerate(how)}

    def serve(seed: int) -> list[tuple[int, ...]]:
        served = Served(model, traffic_of([one(20) for _ in how]), engine_config(), given=given, seed=seed)
        return [tuple(served.tokens[row, 0]) for row in range(len(how))]

    first, again, other = serve(0), serve(0), serve(1)
    assert first == again
    assert first[0] == first[1] and len(set(first)) == 4
    assert first[:3] == other[:3], "a request's own seed is all that counts"
    assert first[3] != other[3]


def test_samples_of_one_request_differ_and_are_drawn_from_the_first_token_on(model) -> None:
    given = {0: (PROMPT, SamplingParams(temperature=2.0))}
    for depth in (1, 2):
        served = Served(model, traffic_of([one(10, n=6)]), engine_config(depth=depth), given=given)
        samples = [tuple(served.tokens[0, sample]) for sample in range(6)]
        assert len(set(samples)) == 6 and len({sample[0] for sample in samples}) > 2


# --- what is refused


@pytest.mark.parametrize(
    "values",
    [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": 2}, {"temperature": float("nan")}],
)
def test_senseless_sampling_is_refused(values) -> None:
    with pytest.raises(InputError) as caught:
        SamplingParams(**values)
    assert caught.value.place.key in values


def test_token_ids_that_do_not_exist_and_prompts_of_another_length(model) -> None:
    with pytest.raises(InputError, match="0 to 511, found 3 to 512"):
        Served(model, traffic_of([one()]), engine_config(), given={0: ([3, 512], None)})
    with pytest.raises(InputError, match="2 token ids, but says 35"):
        Served(model, traffic_of([one()]), engine_config(), given={0: ([3, 4], None)})


# --- cancelling


@pytest.mark.parametrize("allocator", ["paged", "radix"])
def test_cancelling_frees_memory_at_once_and_disturbs_nobody(model, folder, allocator) -> None:
    rows = [{"prompt": 30 + i, "output": 25} for i in range(5)] + [{"prompt": [Span(-1, 0, 50)], "output": 10, "n": 2}]

    def cancel(served: Served, plans: int) -> None:
        if plans in (4, 9):
            free = served.engine.state.allocator.available
            assert served.engine.cancel({4: 1, 9: 5}[plans], float(plans))
            assert served.engine.state.allocator.available > free

    config = engine_config(depth=2, allocator=allocator)
    served = Served(model, traffic_of(rows), config, after=cancel)
    assert sorted(served.finished) == [0, 2, 3, 4]
    for row in served.finished:
        assert len(served.tokens[row, 0]) == 25
        check_against(folder, served.prompts[row], served.tokens[row, 0])
    assert len(served.tokens[1, 0]) < 10 and len(served.tokens[5, 1]) < 10
