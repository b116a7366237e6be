"""What is run on a GPU where there is one, here in the interpreter."""

from __future__ import annotations

import interpreter  # noqa: F401 (first)
import torch
from exercise import exercise

from backends.triton.operators import TritonOperators


def test_one_round() -> None:
    exercise(TritonOperators("cpu"), "cpu", torch.bfloat16, torch.float8_e4m3fn, vocabulary=900)
