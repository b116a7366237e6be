"""All kernels against plain torch, on a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stored", ["as computed", "fp8", "int8"])
def test_one_round(dtype, stored) -> None:
    from backends.ops.selfcheck import check_round
    from backends.triton.operators import TritonOperators

    fp8 = torch.float8_e4m3fn if torch.cuda.get_device_capability() >= (8, 9) else torch.float8_e5m2
    pages = {"fp8": fp8, "int8": torch.int8}.get(stored, dtype)
    checks = list(check_round(TritonOperators("cuda"), torch.device("cuda"), dtype, pages, vocabulary=151_936))
    assert all(check.holds for check in checks), [check for check in checks if not check.holds]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_packed_weights(dtype) -> None:
    from backends.ops.selfcheck_packed import check_packed
    from backends.triton.operators import TritonOperators

    checks = list(check_packed(TritonOperators("cuda"), torch.device("cuda"), getattr(torch, dtype)))
    assert len(checks) > 20 and all(check.holds for check in checks), [check for check in checks if not check.holds]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_packed_experts(dtype) -> None:
    from backends.ops.selfcheck_packed import check_packed_experts
    from backends.triton.operators import TritonOperators

    checks = list(check_packed_experts(TritonOperators("cuda"), torch.device("cuda"), getattr(torch, dtype)))
    assert len(checks) >= 8 and all(check.holds for check in checks), [check for check in checks if not check.holds]
