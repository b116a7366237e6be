"""The round of checks of quantized layers: right operators pass it, wrong ones do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", minversion="2.0")

from backends.ops.reference import ReferenceOperators  # noqa: E402
from backends.ops.selfcheck_packed import EXPERTS, check_packed, check_packed_experts  # noqa: E402
from backends.quantization.base import QuantizedLinear  # noqa: E402
from backends.weights.dummy_packed import RUNNABLE  # noqa: E402

CPU = torch.device("cpu")


FEW = ("int8-w8a8", "gptq-int4", "squeezellm-4bit", "fp8-block", "nvfp4")


class Wrong(ReferenceOperators):
    """Of every part, another."""

    def __init__(self, change) -> None:
        self.change = change

    def linear(self, x, layer):
        if isinstance(layer, QuantizedLinear):
            layer = replace(layer, parts=tuple(self.change(part) for part in layer.parts))
        return super().linear(x, layer)


def failed(ops: ReferenceOperators, dtype: torch.dtype) -> set[str]:
    checks = check_packed(ops, CPU, dtype, FEW)
    return {check.case.split(", ")[1] for check in checks if not check.holds}


def test_plain_torch_passes() -> None:
    checks = list(check_packed(ReferenceOperators(), CPU, torch.bfloat16))
    assert len(checks) == 4 * len(RUNNABLE) and all(check.holds for check in checks), [c for c in checks if not c.holds]


@pytest.mark.parametrize(("change", "found"), [
    (lambda part: replace(part, sparse=None), {"squeezellm-4bit"}),
    (lambda part: replace(part, zero=part.zero and part.zero + 1), {"gptq-int4"}),
    (lambda part: replace(part, outer=None), {"nvfp4"}),
    (lambda part: replace(part, codes=part.codes.roll(1, 0)), set(FEW)),
])  # fmt: skip
def test_what_is_wrong_is_found(change, found) -> None:
    assert failed(Wrong(change), torch.float32) == found


def test_experts_pass_and_one_that_is_another_is_found() -> None:
    checks = list(check_packed_experts(ReferenceOperators(), CPU, torch.bfloat16))
    assert len(checks) == 2 * len(EXPERTS) and all(check.holds for check in checks)

    class Shifted(ReferenceOperators):
        """Each expert's down projection is its neighbour's."""

        def experts(self, x, router, gate_up, down, top_k, renormalise):
            down = replace(down, weight=replace(down.weight, codes=down.weight.codes.roll(down.outputs, 0)))
            return ReferenceOperators().experts(x, router, gate_up, down, top_k, renormalise)

    assert not any(check.holds for check in check_packed_experts(Shifted(), CPU, torch.bfloat16))
