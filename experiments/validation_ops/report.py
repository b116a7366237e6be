"""How far operator prices are off: as shipped, refitted on a half, from a table of that half, and carried over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

from experiments.validation_ops.constants import fit_group
from experiments.validation_ops.rows import Group, Rows, halves, load
from sim.cost.constants import ENGINES, Constants, load_constants
from sim.cost.fit import Errors, log_errors
from sim.cost.forms import kind_of, predict, section_of
from sim.cost.operators import Work
from sim.cost.tables import MeasuredTable
from sim.cost.timings import Timing
from sim.hardware.gpu import load_gpu

MOST_HELD = 600  # rows of a group that are held out at most; dense tables have thousands alike


@dataclass(frozen=True, slots=True)
class GroupErrors:
    """Errors of one group of rows on its held-out half.

    Attributes:
        group: what was measured. rows: how many timings it has.
        shipped: of the constants in force. source: where those are from.
        refitted: of the same form with its constants fitted to the other half; None where that was not asked for.
        table: of a table of the other half; None where the table has no form for it.
    """

    group: Group
    rows: int
    shipped: Errors
    source: str
    refitted: Errors | None
    table: Errors | None


def validate_operators(
    paths: Iterable[str | Path],
    *,
    refit: bool = True,
    tables: bool = True,
    starts: int = 2,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Rows, list[GroupErrors]]:
    """Errors of every group in files and folders of kernel times.

    Args:
        refit: also fit each group's constants to one half, from `starts` starting points.
        tables: also make a table of that half.
        tell: called with a line for every group as it begins.

    Raises:
        InputError: nothing to read, or a wrong value.
    """
    rows = load(paths)
    found = []
    for group, timings in rows.groups.items():
        tell(f"{group.op} {group.kind} of {group.engine} on {group.gpu}")
        found.append(_group_errors(group, timings, refit, tables, starts, _beside(group, rows)))
    return rows, found


def _beside(group: Group, rows: Rows) -> list[Timing]:
    """All-reduces of the same engine and source among other numbers of GPUs."""
    if group.op != "all_reduce":
        return []
    return [t for g, ts in rows.groups.items() if g != group and g == group._replace(kind=g.kind) for t in ts]


def _group_errors(
    group: Group, timings: Sequence[Timing], refit: bool, tables: bool, starts: int, beside: Sequence[Timing] = ()
) -> GroupErrors:
    gpu = load_gpu(group.gpu)
    constants = load_constants(gpu, group.engine if group.engine in ENGINES else "vllm")
    section = section_of(constants, *kind_of(timings[0]))
    first, held = halves(timings)
    random.Random(1).shuffle(held)
    held = held[:MOST_HELD]
    shipped = Errors.of(log_errors(held, section, gpu, constants.quantize))
    refitted = (
        fit_group([timings], gpu, constants, starts=starts, beside=beside)[1][0] if refit and len(first) >= 8 else None
    )
    table = table_errors(first, held, constants) if tables else None
    return GroupErrors(group, len(timings), shipped, section.source, refitted, table)


class _Fixed:
    """The analytic price of a timing's shape, as an operator: what a table falls back on."""

    source = "analytic form"

    def __init__(self, price: Callable[..., float]) -> None:
        self._price = price

    def seconds(self, *size: float) -> float:
        return self._price(*size)

    def work(self, *_: float) -> Work:
        return Work(0.0, 0.0, "memory")


def table_errors(first: Sequence[Timing], held: Sequence[Timing], constants: Constants) -> Errors | None:
    """Errors on `held` of a table made of `first`; None for operators that tables do not replace."""
    if not first or not held or first[0].op not in ("gemm", "attn_decode", "attn_prefill", "all_reduce"):
        return None
    gpu = load_gpu(first[0].gpu)
    table = MeasuredTable(first, "half", gpu)
    operators: dict[tuple, object] = {}
    logs = []
    for timing in held:
        operator, size, extra = _from_table(table, timing, constants, operators)
        logs.append(log((operator.seconds(*size) * 1e6 + extra) / timing.us))
    return Errors.of(logs)


def _from_table(table: MeasuredTable, timing: Timing, constants: Constants, known: dict) -> tuple:
    """(operator, sizes it is asked for, microseconds priced apart) for a timing's shape."""
    from dataclasses import replace

    from sim.cost.forms import ACTIVATION_BYTES, quantise_seconds

    gpu, section = load_gpu(timing.gpu), section_of(constants, *kind_of(timing))
    shape = dict(timing.shape)

    def analytic(**size: float) -> float:
        return predict(replace(timing, shape=shape | size), section, gpu) * 1e-6

    if timing.op == "gemm":
        m, n, k = timing.size
        quantised = ACTIVATION_BYTES[timing.dtype] < 2
        key, size = (n, k), (m,)
        if key not in known:
            known[key] = table.gemm(
                _Fixed(lambda m: analytic(m=m)), timing.dtype, n, k, section, constants.quantize if quantised else None
            )
        return known[key], size, 1e6 * quantise_seconds(constants.quantize, gpu, m, k) if quantised else 0.0
    if timing.op == "all_reduce":
        ways, size = timing.size
        if ways not in known:
            known[ways] = table.all_reduce(_Fixed(lambda b: analytic(bytes=b)), ways, 1.0)
        return known[ways], (size,), 0.0
    batch, seq, *heads = timing.size
    if timing.op == "attn_decode":
        fixed = _Fixed(lambda rows, context: analytic(batch=rows, seq=context / rows))
        make, size = table.decode, (batch, batch * seq)
    else:
        fixed = _Fixed(lambda tokens, pairs, *_: analytic(batch=tokens * tokens / pairs, seq=pairs / tokens))
        make, size = table.prefill, (batch * seq, batch * seq * seq, batch * seq, batch * max(seq, 128) / 128)
    key = tuple(heads)
    if key not in known:
        known[key] = make(fixed, timing.dtype, timing.kv_dtype, *heads, section)
    return known[key], size, 0.0
