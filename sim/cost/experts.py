"""The experts of a mixture-of-experts layer: how many are touched, how full the fullest GPU is, and what it costs."""

from __future__ import annotations

from sim.cost.constants import MoEConstants
from sim.cost.operators import US, Work, bound_of
from sim.hardware.gpu import GPUSpec
from sim.hardware.links import Link

_NARROWEST = 16  # rows of the narrowest tile of a tensor core
_CLASSES = 16  # experts of similar popularity are taken together
_EXCHANGE = {2: (5.5, 0.55), 4: (7.5, 0.68), 8: (10.5, 0.72)}
"""Of all-gathers and reduce-scatters, by the number of GPUs: microseconds of a small message, and the share of the link's
bandwidth that a large one reaches."""
_EXCHANGE_SOURCE = (
    "NVIDIA aiconfigurator-core 0.12.0 kernel tables, NCCL all-gather and reduce-scatter of 16 bit on h100-sxm"
)


class Routing:
    """How tokens choose among experts.

    With `skew` 0 every expert is equally likely. Otherwise loads follow a power law with density x^-skew between 1 and
    `_WIDEST` times the least popular expert, the shape with which NVIDIA's aiconfigurator draws its skewed routings
    (1.01 and 1.2 there); expert-parallel ranks get random experts, and the rank described is the fullest.
    """

    _WIDEST = 1000.0

    def __init__(self, experts: float, local: float, chosen: float, skew: float = 0.0) -> None:
        """Args: `experts` in all, `local` on this GPU, `chosen` per token."""
        mean = chosen / experts
        if skew:
            shares = self._shares(skew, int(min(experts, _CLASSES)))
            chances = [min(mean * share, 1.0) for share in shares]
        else:
            shares, chances = [1.0], [mean]
        self.local = local
        self._miss = [1.0 - chance for chance in chances]
        # The fullest of several ranks holds the most popular class once, and an average of the others.
        full = local / experts
        hottest = (shares[-1] + (local - 1) * (len(shares) - shares[-1]) / max(len(shares) - 1, 1)) / local
        self.share = chosen * full * (max(hottest, 1.0) if full < 1.0 and len(shares) > 1 else 1.0)
        self.chosen = chosen

    def _shares(self, skew: float, classes: int) -> list[float]:
        """Load of experts relative to the mean, ascending: quantiles of the power law."""
        raw, top = [], self._WIDEST
        for i in range(classes):
            q = (i + 0.5) / classes
            if abs(skew - 1.0) < 1e-6:
                raw.append(top**q)
            else:
                power = 1.0 - skew
                raw.append((1.0 + q * (top**power - 1.0)) ** (1.0 / power))
        mean = sum(raw) / classes
        return [value / mean for value in raw]

    def touched(self, tokens: float) -> float:
        """Experts of this GPU that at least one of `tokens` tokens chose, in expectation."""
        missed = sum(miss**tokens for miss in self._miss)
        return self.local * (1.0 - missed / len(self._miss))


def untuned(constants: MoEConstants, wide: MoEConstants) -> bool:
    """Whether 8-bit experts would need longer for a weight than `wide`, the 16-bit ones, though it is half as large.

    A kernel table may hold kernels that nobody tuned: vLLM 0.24's FP8 experts with one scale a tensor take 2.4 times as long on
    H100 there as its 16-bit ones. Where both are tuned they are faster, by 10 to 17 % (vllm-project/vllm#35457, H200). Constants
    of the user's own stand as they are.
    """
    return 2.0 * constants.bandwidth < wide.bandwidth and constants.source.startswith("fit on")


def padded_widths(ffn: int, hidden: int, gpu: GPUSpec) -> tuple[int, int]:
    """Widths of an expert with 4-bit weights on one GPU, and of the model, as kernels take them.

    vLLM and SGLang round the first up to 128 for Hopper's kernels and to 256 for FlashInfer's on Blackwell, the second to 256
    (`layers/quantization/mxfp4.py` of both); TensorRT-LLM is taken to do the same.
    """
    if gpu.arch not in ("hopper", "blackwell"):
        return ffn, hidden
    unit = 256 if gpu.arch == "blackwell" else 128
    return -(-ffn // unit) * unit, -(-hidden // 256) * 256


class Exchange:
    """Tokens of attention ranks on their way to the experts (an all-gather), or what came of them back (a reduce-scatter).

    Inside a node vLLM (`allgather_reducescatter`), SGLang (`dp_gather`, `dp_scatter`) and TensorRT-LLM (`fused_moe_*.py`) hand
    every token to every rank.
    """

    launches = 1

    def __init__(self, link: Link, ways: int, token_bytes: float) -> None:
        """Args: `ways` GPUs; `token_bytes` that each receives, or sends, for a token of a rank."""
        least_us, share = _EXCHANGE[max((d for d in _EXCHANGE if d <= ways), default=2)]
        self.source = f"{_EXCHANGE_SOURCE}; {link.name} {link.bandwidth / 1e9:g} GB/s"
        slow = max(link.latency - 2e-6, 0.0)  # the figures include a switch's latency
        self._launch, self._bytes = least_us * US + slow * (ways - 1), token_bytes
        self._token = token_bytes / (share * link.bandwidth)

    def seconds(self, m: float) -> float:
        """Duration for m tokens a rank."""
        return self._launch + self._token * m

    def work(self, m: float) -> Work:
        """Bytes over the link."""
        return Work(0.0, self._bytes * m, "link" if self._token * m > self._launch else "latency")


class GroupedGemm:
    """The experts of one layer on m tokens: routing, up and down projections, weighted sum.

    Only experts that some token chose are read. Each of them computes `pad` rows more than it has tokens (tiles are
    filled up), and what is done to rows of other ranks' tokens (sorting, activation, summing) costs a share `passing`.

    Attributes:
        most: the same layer in other kernels, which it never takes longer than; None for no such bound.
    """

    most: GroupedGemm | None = None

    def __init__(
        self, constants: MoEConstants, gpu: GPUSpec, compute: str, *, experts: float, local: float, chosen: float,
        hidden: float, up: float, down: float, expert_bytes: float, activation_bytes: float, tokens_factor: float = 1.0,
        skew: float = 0.0,
    ) -> None:  # fmt: skip
        """Args: `experts` in all, `local` on this GPU, `chosen` per token; `up` rows of the first matrix and `down`
        columns of the second; `expert_bytes` of one expert; `tokens_factor`, tokens arriving here per token of ours;
        `skew` of the routing.
        """
        self.source = f"{constants.source}; tokens choose experts by a power law of exponent {skew:g}"
        self.launches = round(constants.operations)
        self.routing, self._factor = Routing(experts, local, chosen, skew), tokens_factor
        self._expert, self._pad, self._passing = expert_bytes, constants.pad, constants.passing
        rate, bandwidth = constants.compute * gpu.flops(compute), constants.bandwidth * gpu.bandwidth
        self._flops = 2.0 * hidden * (up + down)
        self._compute = self._flops / rate
        self._touch = expert_bytes / bandwidth + constants.expert_us * US
        self._moved = 4.0 * hidden + (hidden + down) * (activation_bytes + 2.0) + 2.0 * up
        self._stream = self._moved / (constants.activation * gpu.bandwidth)
        self._norm, self._inverse, self._launch = (
            constants.norm,
            1.0 / constants.norm,
            constants.launch_us * US,
        )

    def touched(self, m: float) -> float:
        """Experts of this GPU that at least one of m tokens chose, in expectation."""
        return self.routing.touched(m * self._factor)

    def _parts(self, m: float) -> tuple[float, float, float, float]:
        """(experts touched, rows computed here, seconds of arithmetic, seconds of streaming rows)."""
        touched, tokens = self.touched(m), m * self._factor
        rows = tokens * self.routing.share
        return touched, rows, *self._work_of(touched, rows, tokens)

    def _work_of(self, touched: float, rows: float, tokens: float) -> tuple[float, float]:
        """(seconds of arithmetic, seconds of streaming rows) of `rows` rows of `tokens` tokens."""
        # Kernels take narrower tiles where experts have few rows, so what is filled up is not much more than what is there.
        pad = min(self._pad, _NARROWEST + rows / touched) if touched else 0.0
        streamed = rows + self._passing * max(tokens * self.routing.chosen - rows, 0.0)
        return (rows + pad * touched) * self._compute, streamed * self._stream

    def seconds(self, m: float) -> float:
        """Duration for m tokens."""
        touched, _, compute, stream = self._parts(m)
        memory = touched * self._touch
        own = (compute**self._norm + memory**self._norm) ** self._inverse + self._launch + stream
        return own if self.most is None else min(own, self.most.seconds(m))

    def seconds_of(self, touched: float, rows: float, tokens: float) -> float:
        """Duration where it is known that `touched` experts of this GPU have `rows` rows of `tokens` tokens."""
        compute, stream = self._work_of(touched, rows, tokens)
        memory = touched * self._touch
        return (compute**self._norm + memory**self._norm) ** self._inverse + self._launch + stream

    def work(self, m: float) -> Work:
        """Operations of the chosen experts; bytes of those touched and of the rows that pass through."""
        touched, rows, compute, stream = self._parts(m)
        moved = touched * self._expert + rows * self._moved
        return Work(rows * self._flops, moved, bound_of(compute, touched * self._touch + stream, self._launch))
