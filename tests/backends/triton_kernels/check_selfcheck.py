"""The round of checks that is for a GPU, in the interpreter."""

from __future__ import annotations

import interpreter  # noqa: F401 (first)
import torch

from backends.ops.selfcheck import check_round
from backends.triton.operators import TritonOperators


def test_all_kernels_pass() -> None:
    checks = list(
        check_round(TritonOperators("cpu"), torch.device("cpu"), torch.bfloat16, torch.float8_e4m3fn, vocabulary=900)
    )
    assert len(checks) > 12 and all(check.holds for check in checks), [check for check in checks if not check.holds]
