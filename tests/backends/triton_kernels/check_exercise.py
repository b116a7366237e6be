"""What is run on a GPU where there is one, here in the interpreter."""

from __future__ import annotations

import interpreter  # noqa: F401 (first)
import pytest
import torch
from exercise import exercise

from backends.triton.operators import TritonOperators


@pytest.mark.parametrize("pages", [torch.bfloat16, torch.float8_e4m3fn])
def test_one_round(pages) -> None:
    exercise(TritonOperators("cpu"), "cpu", torch.bfloat16, pages, vocabulary=900)
