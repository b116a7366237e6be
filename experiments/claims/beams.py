"""Copy-on-write in beam search: how much memory beams share.

Which beams survive decides how much they share, so it is not assumed but recorded: a real beam search (our engine,
SmolLM2-135M, sixteen instructions, widths 2, 4 and 6 as in the PagedAttention paper, 128 tokens) left the parent of
every beam at every step in `data/beams.json`; `record_beams.py` makes it again. Here the record is replayed in the
paged allocator, which shares blocks of 16 tokens and copies the last one when beams part. Saved is what block tables
would take if nothing were shared, less what is held. The longer the prompt, the more is shared, so that lengths are those
of the paper's data sets, on average: Alpaca 19 in and 58 out (the first 58 recorded), ShareGPT 161 in (all 128 recorded, of
338 out).
"""

from __future__ import annotations

import itertools

from experiments.claims.base import Chart, Check, Result, Table, Verdict, per_cent
from experiments.claims.beam_record import BeamRun, Sharing, read_record, replay

NAME, TITLE = "beam-search", "Copy-on-write sharing in beam search"
WORKLOAD = ""
PAPER = {"Alpaca": (0.376, 0.552), "ShareGPT": (0.443, 0.663)}
PROMPTS = {"Alpaca": (19, 58), "ShareGPT": (161, 0)}  # mean tokens of prompts, and of answers (0: all 128 recorded)
LENGTHS = (0, 16, 64, 161, 512, 1024)
BLOCKS = (1, 8, 16, 32, 128)


def saving(runs: list[BeamRun], width: int, prompt: int = 0, steps: int = 0, block: int = 16) -> Sharing:
    """Sharing over all searches of a width, summed."""
    found = [replay(run, prompt, block, steps) for run in runs if run.width == width]
    return Sharing(sum(one.held for one in found), sum(one.apart for one in found), sum(one.copies for one in found))


def common(runs: list[BeamRun], width: int) -> float:
    """How many of the latest tokens of a search's beams are not common to all of them, on average over steps."""
    apart = steps = 0
    for run in runs:
        if run.width != width:
            continue
        for end in range(1, len(run.parents) + 1):
            alive, back = set(range(len(run.parents[end - 1]))), 0
            while len(alive) > 1 and back < end:
                back += 1
                alive = {run.parents[end - back][beam] for beam in alive}
            apart += back
            steps += 1
    return apart / steps


def run(small: bool = False) -> Result:
    """The experiment; `small` replays the first searches of each width only."""
    about, runs = read_record()
    widths = sorted({one.width for one in runs})
    if small:
        runs = [one for width in widths for one in [each for each in runs if each.width == width][:4]]
    found = {(width, name): saving(runs, width, *lengths) for width in widths for name, lengths in PROMPTS.items()}
    recorded = {width: saving(runs, width) for width in widths}
    tail = {width: common(runs, width) for width in widths}
    tables = (
        Table(
            f"Memory saved by sharing ({about['model']}, {about['steps']} tokens, blocks of 16)",
            ("beams", "lengths as recorded", "as Alpaca's", "as ShareGPT's", "copies a search", "tokens apart"),
            tuple(
                (width, per_cent(recorded[width].saved, 1), per_cent(found[width, "Alpaca"].saved, 1),
                 per_cent(found[width, "ShareGPT"].saved, 1),
                 recorded[width].copies / sum(one.width == width for one in runs), tail[width])
                for width in widths
            ),
        ),
    )  # fmt: skip
    charts = (
        Chart(
            "Memory saved, by length of the prompt", "lines", LENGTHS[1:],
            {f"{width} beams": [saving(runs, width, n).saved * 100 for n in LENGTHS[1:]] for width in widths},
            "tokens of the prompt", "saved (%)", log_x=True,
        ),
        Chart(
            "Memory saved, by size of block (prompts of 19 tokens)", "lines", BLOCKS,
            {f"{width} beams": [saving(runs, width, 19, block=n).saved * 100 for n in BLOCKS] for width in widths},
            "tokens of a block", "saved (%)", log_x=True,
        ),
    )  # fmt: skip
    return Result(NAME, TITLE, tables, charts, (_verdict(found, widths, tail, about),), small)


def _verdict(found: dict, widths: list[int], tail: dict, about: dict) -> Verdict:
    ours = {name: [found[width, name].saved for width in widths] for name in PROMPTS}
    best = max(ours["Alpaca"])
    rising = all(a < b for each in ours.values() for a, b in itertools.pairwise(each))

    def inside(name: str) -> bool:
        low, high = PAPER[name]
        return low - 0.05 <= min(ours[name]) and max(ours[name]) <= high + 0.05

    def words(values: tuple[float, ...] | list[float]) -> str:
        return f"{per_cent(min(values), 1)} to {per_cent(max(values), 1)}"

    return Verdict(
        "copy-on-write sharing saves up to 55 % of memory in beam search",
        "Kwon et al. 2023, section 6.3 (OPT-13B; widths 2, 4 and 6)",
        (
            Check("up to 55 % on short prompts (at least that, within 5 points)", ">= 50.2 %", per_cent(best, 1), best >= 0.502),
            *(
                Check(f"{name}: range over the widths (± 5 points)", words(PAPER[name]), words(ours[name]), inside(name))
                for name in PROMPTS
            ),
            Check("wider beams share more", "yes", "yes" if rising else "no", rising),
        ),
        f"At most (w - 1)/w can be saved with w beams: {', '.join(per_cent(1 - 1 / width) for width in widths)}. "
        f"How near one comes depends on how far back beams part: the last "
        f"{', '.join(f'{tail[width]:.0f}' for width in widths)} tokens on average here for "
        f"{', '.join(map(str, widths))} beams. {about['model']} is a small model; in a larger one beams may part earlier. "
        f"ShareGPT's answers are 338 tokens on average and only {about['steps']} were recorded, so that the shared prompt weighs "
        "more here than there.",
    )  # fmt: skip
