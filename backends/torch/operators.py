"""Which operators a backend's name stands for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from workloads.errors import InputError, Place

if TYPE_CHECKING:
    from backends.ops.base import Operators


def check_operators(name: str, device: torch.device) -> None:
    """Refuse operators that cannot run on a device.

    Raises:
        InputError: `triton` without a GPU or without the package.
    """
    if name != "triton":
        return
    place = Place(key="backend.name")
    if find_spec("triton") is None:
        raise InputError("backend triton needs the package triton", place=place, hint="pip install triton (Linux only)")
    if device.type != "cuda":
        raise InputError("backend triton needs a GPU; torch sees none, or device: cpu is asked for", place=place,
                         hint="backend torch runs on the CPU")  # fmt: skip


def make_operators(name: str, device: torch.device) -> Operators:
    """The operators of backend `torch` or `triton`.

    Raises:
        InputError: see `check_operators`.
    """
    check_operators(name, device)
    if name == "triton":
        from backends.triton.operators import TritonOperators

        return TritonOperators(device)
    from backends.ops.reference import ReferenceOperators

    return ReferenceOperators()
