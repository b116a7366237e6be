"""Norms, rotations, cache writes, activations and experts in plain torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.0")
from torch.nn import functional as F  # noqa: E402

from backends.model.rope import Rope  # noqa: E402
from backends.ops.base import Dense  # noqa: E402
from backends.ops.reference import ReferenceOperators  # noqa: E402

OPS = ReferenceOperators()


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("shape", [(5, 72), (3, 4, 32), (1, 1)])
def test_rms_norm(shape) -> None:
    x, weight = normal(*shape) * 3, normal(shape[-1], seed=1)
    torch.testing.assert_close(OPS.rms_norm(x, weight, 1e-5), F.rms_norm(x, shape[-1:], weight, 1e-5))


def test_rms_norm_of_half_precision_is_computed_in_single() -> None:
    x = normal(4, 256, dtype=torch.bfloat16) * 200  # the squares would lose most of their digits
    weight = torch.ones(256, dtype=torch.bfloat16)
    exact = F.rms_norm(x.double(), (256,), None, 1e-6)
    assert OPS.rms_norm(x, weight, 1e-6).dtype == torch.bfloat16
    torch.testing.assert_close(OPS.rms_norm(x, weight, 1e-6).double(), exact, rtol=2**-8, atol=1e-3)


def test_add_rms_norm_normalises_the_rounded_sum() -> None:
    x, residual = normal(6, 64, dtype=torch.bfloat16), normal(6, 64, seed=1, dtype=torch.bfloat16) * 50
    weight = normal(64, seed=2, dtype=torch.bfloat16)
    normed, total = OPS.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, OPS.rms_norm(total, weight, 1e-5))


def test_rope_rotates_halves_as_complex_numbers() -> None:
    frequencies, factor = Rope(10_000.0).frequencies(16)
    positions = torch.tensor([0, 3, 900, 12])
    q, k, v = normal(4, 4, 16), normal(4, 2, 16, seed=1), normal(4, 2, 16, seed=2)
    pages = [torch.full((3, 2, 2, 16), float("nan")) for _ in range(2)]
    slots = torch.tensor([5, -1, 0, 2])
    got = OPS.rope_and_cache(q, k, v, OPS.rotary(positions, frequencies, factor), *pages, slots)

    def turned(x: torch.Tensor) -> torch.Tensor:
        angle = positions.double()[:, None, None] * frequencies.double()
        z = torch.complex(*x.double().chunk(2, dim=-1)) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((z.real, z.imag), dim=-1).float()

    torch.testing.assert_close(got, turned(q), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(pages[0].flatten(0, 1)[[5, 0, 2]], turned(k)[[0, 2, 3]], rtol=1e-4, atol=1e-4)
    assert torch.equal(pages[1].flatten(0, 1)[[5, 0, 2]], v[[0, 2, 3]])
    for side in pages:
        assert side.flatten(0, 1)[[1, 3, 4]].isnan().all(), "a slot was written that nobody asked for"


def test_silu_mul_takes_the_gate_first() -> None:
    x = normal(3, 14)
    torch.testing.assert_close(OPS.silu_mul(x), F.silu(x[:, :7]) * x[:, 7:])


@pytest.mark.parametrize("renormalise", [True, False])
def test_experts_equal_a_loop_over_tokens(renormalise: bool) -> None:
    x, router = normal(9, 8), Dense(normal(5, 8, seed=1))
    gate_up, down = normal(5, 12, 8, seed=2), normal(5, 8, 6, seed=3)
    got = OPS.experts(x, router, gate_up, down, 2, renormalise)
    for token, row in enumerate(x):
        chances = torch.softmax(router.weight @ row, 0)
        chosen = chances.argsort(descending=True)[:2]
        share = chances[chosen] / (chances[chosen].sum() if renormalise else 1)
        parts = [(down[e] @ (F.silu(gate_up[e, :6] @ row) * (gate_up[e, 6:] @ row))) for e in chosen]
        torch.testing.assert_close(got[token], share[0] * parts[0] + share[1] * parts[1], rtol=1e-4, atol=1e-5)


def test_linear_gather_embed_and_logits() -> None:
    layer = Dense(normal(4, 6), normal(4, seed=1))
    x = normal(3, 6, seed=2)
    torch.testing.assert_close(OPS.linear(x, layer), x @ layer.weight.T + layer.bias)
    assert torch.equal(OPS.gather(x, torch.tensor([2, 0])), x[[2, 0]])
    assert torch.equal(OPS.embed(x, torch.tensor([1, 1])), x[[1, 1]])
    half = Dense(layer.weight.bfloat16())
    assert OPS.logits(x.bfloat16(), half).dtype == torch.float32
