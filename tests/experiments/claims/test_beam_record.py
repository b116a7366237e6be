"""The recorded beams are replayed rightly: blocks against a count by hand and by lineage."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.claims.beam_record import DATA, BeamRun, read_record, replay
from experiments.claims.record_beams import INSTRUCTIONS, WIDTHS, parents_of, record
from workloads.errors import InputError


def by_lineage(run: BeamRun, block: int) -> tuple[int, int]:
    """Blocks held and blocks of tables, summed over steps, by who computed the last token of each block.

    A full block belongs to all beams that descend from the one that filled it; one that is not full to its beam alone.
    """
    held = apart = 0
    history: list[list[tuple]] = [[()]]
    for step, parents in enumerate(run.parents):
        history.append([(*history[-1][parent], (step, beam)) for beam, parent in enumerate(parents)])
        blocks = set()
        for beam, line in enumerate(history[-1]):
            tokens = run.prompt_tokens + len(line)
            for index in range(-(-tokens // block)):
                last = (index + 1) * block - 1  # token that fills it
                if last >= tokens:
                    blocks.add((index, "open", beam))
                elif last < run.prompt_tokens:
                    blocks.add((index, "prompt"))
                else:
                    blocks.add((index, line[: last - run.prompt_tokens + 1]))
            apart += -(-tokens // block)
        held += len(blocks)
    return held, apart


def test_two_beams_by_hand() -> None:
    """Prompt 16, blocks of 16. The first beam forks at once: nothing to copy, then each has a block of its own."""
    found = replay(BeamRun(2, 16, ((0, 0), (0, 1), (0, 1))))
    assert (found.held, found.apart, found.copies) == (3 * 3, 3 * 4, 0)
    assert found.saved == pytest.approx(0.25)
    # prompt 20: the open block of 4 tokens is copied once, when they part; both children then go on alone
    found = replay(BeamRun(2, 20, ((0, 0), (0, 1))))
    assert (found.held, found.apart, found.copies) == (2 * 3, 2 * 4, 1)
    # both beams descend from the second: its open block is copied, the first's is given back
    found = replay(BeamRun(2, 20, ((0, 0), (1, 1))))
    assert (found.held, found.copies) == (2 * 3, 2)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_search_shares_what_its_lineage_shares(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 5))
    parents: list[tuple[int, ...]] = []
    before = 1
    for _ in range(data.draw(st.integers(1, 30))):
        now = data.draw(st.integers(1, width))  # beams that ended are not replaced at once
        parents.append(tuple(data.draw(st.integers(0, before - 1)) for _ in range(now)))
        before = now
    run = BeamRun(width, data.draw(st.integers(1, 40)), tuple(parents))
    block = data.draw(st.sampled_from([1, 4, 16]))
    found = replay(run, block_size=block)
    assert (found.held, found.apart) == by_lineage(run, block)


def test_fewer_steps_and_other_prompts() -> None:
    run = BeamRun(2, 16, ((0, 0), (0, 1), (1, 1), (0, 1)))
    assert replay(run, steps=2) == replay(BeamRun(2, 16, run.parents[:2]))
    assert replay(run, 64).saved > replay(run).saved


def test_the_committed_record_is_whole() -> None:
    about, runs = read_record()
    assert about["model"] and about["made_by"] and about["instructions"] == list(INSTRUCTIONS)
    assert {run.width for run in runs} == set(WIDTHS)
    assert len(runs) == len(WIDTHS) * len(INSTRUCTIONS)
    for run in runs:
        assert run.prompt_tokens > 10 and 1 <= len(run.parents) <= about["steps"]
        before = 1
        for parents in run.parents:
            assert all(0 <= parent < before for parent in parents) and len(parents) <= run.width
            before = len(parents)
    assert sum(len(run.parents) == about["steps"] - 1 for run in runs) > len(runs) / 2, "most searches run to the end"
    assert DATA.stat().st_size < 100_000


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"about": {}, "runs": [{"width": 2}]}', '{"about": {}, "runs": 3}'])
def test_what_is_no_record_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "beams.json").write_text(text)
    with pytest.raises(InputError, match="no record of beam searches"):
        read_record(tmp_path / "beams.json")
    with pytest.raises(InputError, match="cannot read"):
        read_record(tmp_path / "missing.json")


def test_the_recorder_finds_the_parents_of_a_real_search() -> None:
    """A made-up model whose likelihoods depend on the last token: two prompts in one call keep their own beams."""
    pytest.importorskip("torch")

    def generate(asked: list[list[int]], wish: object) -> list[SimpleNamespace]:
        outputs = []
        for tokens in asked:
            scores = {
                token: -float((tokens[-1] * 7 + token * 3 + len(tokens)) % 11) - token * 1e-3 for token in range(1, 9)
            }
            best = dict(sorted(scores.items(), key=lambda item: -item[1])[: wish.logprobs])
            entry = {token: SimpleNamespace(logprob=value) for token, value in best.items()}
            outputs.append(SimpleNamespace(outputs=[SimpleNamespace(logprobs=[entry])]))
        return outputs

    llm = SimpleNamespace(generate=generate, _model=SimpleNamespace(architecture=SimpleNamespace(stop_ids=())))
    found = record(llm, [[1, 2, 3], [1, 2, 4, 5]], 3, 6)
    assert [len(steps) for steps in found] == [5, 5], (
        "the first step has one beam, each later one the parents of its own"
    )
    for steps in found:
        assert steps[0] == [0, 0, 0] and all(len(step) == 3 for step in steps)
    alone = record(llm, [[1, 2, 4, 5]], 3, 6)
    assert alone[0] == found[1]


def test_parents_by_tokens() -> None:
    assert parents_of([(1,), (2,)], [(2, 5), (1, 5), (2, 6)]) == [1, 0, 1]
    assert json.loads(DATA.read_text("utf-8"))["runs"]
