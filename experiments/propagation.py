"""How errors of operator classes become errors of steps: a cost model that errs, and what its steps are made of.

Whatever tells how far a prediction may be off (`experiments.intervals` for a run, `experiments.validation.spread` for a measured
cell) goes through here.

Kernels timed on one machine do not say all about another. What served runs of one GPU and engine differ by when machine,
drivers, build and settings that nobody states change is the error of the *deployment*: one factor on all steps of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, hypot
from typing import TYPE_CHECKING, Any

from reports.uncertainty import Z
from sim.cost.base import DecodeLine, StepShape
from sim.cost.coverage import class_of

if TYPE_CHECKING:
    from collections.abc import Sequence

FRONT, DEPLOYMENT = "front end", "deployment"
ELSEWHERE = 0.2
"""Standard deviation of the logarithm of a step's time between deployments. An estimate: of 98 throughputs and TPOTs in 14 public
reports of vLLM, SGLang and TensorRT-LLM that nothing was calibrated on, the median error is 10 % and a fifth are off by 40 % or
more; operators alone, whose usual deviation is a tenth, would make 7 % and 13 %."""
_TO_DEVIATION = 1.4826  # median of absolute values to standard deviation, for a normal distribution
_SURE = 0.02  # what a few loads held out cannot rule out

Rule = Callable[[Mapping[str, float]], float]
"""From the shares of the operator classes in a step to the factor that its time takes."""


class Mix:
    """What steps are made of: the share of each operator class in a step, and how uncertain each class is.

    Shares change slowly with the sizes of a step, so they are worked out once for all steps whose sizes have the same
    number of binary digits.

    Attributes:
        deviations: class → standard deviation of the logarithm of its time, the front end included.
    """

    def __init__(self, cost: Any, typical: StepShape | None = None, elsewhere: float = ELSEWHERE) -> None:
        """Args:
        typical: a decode step of the run, whose deviation the loads held out of a calibration bound.
        elsewhere: deviation between deployments, until one is calibrated on a served run. That of an engine older than the
            kernels it is priced with adds to it.
        """
        self.cost = cost
        self._known: dict[tuple[int, ...], dict[str, float]] = {}
        self.deviations = dict(cost.uncertainty) | {DEPLOYMENT: hypot(elsewhere, getattr(cost, "older", 0.0))}
        front = self.deviations.get("host", 0.0)
        left = _TO_DEVIATION * getattr(cost.front_end, "error", 0.0)
        served = _TO_DEVIATION * getattr(getattr(cost, "host", None), "error", 0.0)
        if served and typical is not None:
            now = self.deviation(self.of(typical))
            scale = min(max(served, _SURE) / now, 1.0) if now else 1.0
            self.deviations = {kind: value * scale for kind, value in self.deviations.items()}
        self.deviations[FRONT] = min(front, max(left, _SURE)) if left else front

    def shares(
        self, rows: int, context: int, chunks: int = 0, tokens: int = 0, past: int = 0, drafts: int = 0
    ) -> dict[str, float]:
        """Share of each class in a step of `rows` decoding rows over `context` tokens, and `chunks` chunks of `tokens`
        prompt tokens each, after `past` that are cached; with `drafts` drafts a row."""
        sizes = (rows.bit_length(), context.bit_length(), chunks.bit_length(), tokens.bit_length(), past.bit_length())
        found = self._known.get((*sizes, drafts))
        if found is None:
            found = self._known[*sizes, drafts] = self._shares(*map(_middle, sizes), drafts)
        return found

    def of(self, shape: StepShape) -> dict[str, float]:
        """Share of each class in a step."""
        rows, context = shape.decode_rows + shape.padding_tokens, shape.decode_context + shape.padding_context
        count, drafts = len(shape.chunks), shape.passes
        if not count:
            return self.shares(rows, context, drafts=drafts)
        tokens = past = 0
        for new, before in shape.chunks:
            tokens += new
            past += before
        return self.shares(rows, context, count, tokens // count, past // count, drafts)

    def _shares(self, rows: int, context: int, chunks: int, tokens: int, past: int, drafts: int) -> dict[str, float]:
        verified = rows * drafts
        shape = StepShape(
            rows, max(context, rows), ((tokens, past),) * chunks, rows + chunks + verified, drafts=verified, passes=drafts
        )  # fmt: skip
        seconds: dict[str, float] = {}
        for operator in self.cost.explain(shape):
            kind = class_of(operator.name)
            seconds[kind] = seconds.get(kind, 0.0) + operator.seconds
        total = sum(seconds.values())
        return {kind: value / total for kind, value in seconds.items()} if total > 0 else {}

    def deviation(self, shares: Mapping[str, float]) -> float:
        """Of a step, or of time in the front end, with these shares: classes err independently of each other."""
        return hypot(*self.parts(shares).values())

    def parts(self, shares: Mapping[str, float]) -> dict[str, float]:
        """What each class, and the deployment, adds to the deviation of time with these shares."""
        found = {kind: share * self.deviations.get(kind, 0.0) for kind, share in shares.items()}
        found[DEPLOYMENT] = self.deviations[DEPLOYMENT] * (sum(shares.values()) - shares.get(FRONT, 0.0))
        return found

    @staticmethod
    def weighted(shares: Mapping[str, float], factors: Mapping[str, float]) -> float:
        """The factor of time with these shares where each class takes a factor of its own."""
        return sum(
            share * factors[kind] * (factors[DEPLOYMENT] if kind != FRONT else 1.0) for kind, share in shares.items()
        )

    def erring(self, rule: Rule) -> ErringCost:
        """The cost model with every step's time changed by a rule."""
        return ErringCost(self, rule)

    def both_ends(self) -> Sequence[ErringCost]:
        """The cost model with faster steps, and with slower ones: the ends of 80 % of what errors make of each step."""
        return [self.erring(lambda shares, side=side: exp(side * Z * self.deviation(shares))) for side in (-1, 1)]


class ErringCost:
    """A cost model whose steps take other times, by a factor that depends on what they are made of."""

    def __init__(self, mix: Mix, rule: Rule) -> None:
        self._mix, self._rule = mix, rule
        self._factors: dict[int, float] = {}
        self._lines: dict[tuple[int, int], DecodeLine] = {}
        self.front_end = mix.cost.front_end.scaled(rule({FRONT: 1.0}))

    def _factor(self, shares: dict[str, float]) -> float:
        factor = self._factors.get(id(shares))  # the mix keeps them
        if factor is None:
            factor = self._factors[id(shares)] = self._rule(shares) if shares else 1.0
        return factor

    def step_seconds(self, shape: StepShape) -> float:
        """As the cost model under it has it, times the factor."""
        return self._mix.cost.step_seconds(shape) * self._factor(self._mix.of(shape))

    def decode_line(self, rows: int, context: int) -> DecodeLine:
        """The line of the cost model under it, times the factor at its lower end."""
        line = self._mix.cost.decode_line(rows, context)
        key = (rows, line.low)
        found = self._lines.get(key)
        if found is None:
            factor = self._factor(self._mix.shares(rows, line.low))
            found = self._lines[key] = DecodeLine(line.low, line.high, line.intercept * factor, line.slope * factor)
        return found


def _middle(digits: int) -> int:
    """The middle of the numbers with so many binary digits."""
    return 3 << digits - 2 if digits > 1 else digits
