"""The round of checks that a GPU is tested with: right operators pass it, wrong ones do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", minversion="2.0")

from backends.ops.reference import ReferenceOperators  # noqa: E402
from backends.ops.selfcheck import check_round  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pages", [None, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_plain_torch_passes(dtype, pages) -> None:
    checks = list(check_round(ReferenceOperators(), CPU, dtype, pages or dtype))
    assert len(checks) > 12 and all(check.holds for check in checks), [c for c in checks if not c.holds]


class ForgetsTheLastKey(ReferenceOperators):
    def attention(self, q, k_pages, v_pages, batch, **options):
        shorter = replace(batch, kv_lengths=batch.kv_lengths - (batch.kv_lengths == 17).long())
        return super().attention(q, k_pages, v_pages, shorter, **options)


class ForgetsTheWindow(ReferenceOperators):
    def attention(self, q, k_pages, v_pages, batch, *, window=0, **options):
        return super().attention(q, k_pages, v_pages, batch, **options)


class ForgetsTheWeight(ReferenceOperators):
    def rms_norm(self, x, weight, eps):
        return super().rms_norm(x, torch.ones_like(weight), eps)


class WritesOneSlotTooFar(ReferenceOperators):
    def rope_and_cache(self, q, k, v, rotary, k_pages, v_pages, slots, **options):
        return super().rope_and_cache(q, k, v, rotary, k_pages, v_pages, slots.roll(1), **options)


class SkipsFilters(ReferenceOperators):
    def sample(self, logits, how):
        return super().sample(logits, replace(how, filtered=False))


class OneExpert(ReferenceOperators):
    def experts(self, x, router, gate_up, down, top_k, renormalise):
        return super().experts(x, router, gate_up, down, 1, renormalise)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (ForgetsTheLastKey, {"attention", "attention, cap", "attention, window"}), (ForgetsTheWindow, {"attention, window"}),
        (ForgetsTheWeight, {"rms_norm", "add_rms_norm"}), (WritesOneSlotTooFar, {"cache write"}),
        (SkipsFilters, {"sampling, filtered"}), (OneExpert, {"experts, 1 tokens", "experts, 90 tokens"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_wrong_is_found(wrong, found, dtype) -> None:
    failed = {check.operator for check in check_round(wrong(), CPU, dtype, dtype) if not check.holds}
    assert failed == found
