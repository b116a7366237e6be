"""What calibration learns of a layer's inputs, and of its weights' sensitivity."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from backends.model.architecture import Architecture
from backends.quantization.make.forward import projections, run_layer, token_losses

_AT_ONCE = 4096
"""Tokens of calibration that go through a layer together."""


class Inputs:
    """Statistics of what enters the linear layers of one transformer layer.

    Attributes:
        hessian: input's name → [K, K] mean of x x' in float32. magnitude: → [K] mean |x|. most: → largest |x|.
        seen: → tokens. What no token entered (an expert whom none visits) has no entry.
    """

    def __init__(self, *, hessian: bool) -> None:
        self._wanted = hessian
        self.hessian: dict[str, Tensor] = {}
        self.magnitude: dict[str, Tensor] = {}
        self.most: dict[str, float] = {}
        self.seen: dict[str, int] = {}

    def largest(self, name: str) -> float:
        """The largest |x| of an input; of an expert whom no token visited, of all experts'."""
        kind = name.partition(".")[0]
        same = (most for other, most in self.most.items() if other.partition(".")[0] == kind)
        return self.most[name] if name in self.most else max(same, default=0.0)

    def __call__(self, name: str, x: Tensor) -> None:
        """Take [tokens, K] into account."""
        x = x.detach()
        seen, new = self.seen.get(name, 0), len(x)
        self.seen[name] = seen + new
        size = x.abs()
        self.most[name] = max(self.most.get(name, 0.0), float(size.amax()))
        old = self.magnitude.get(name, torch.zeros(()))
        self.magnitude[name] = (old * seen + size.sum(0)) / (seen + new)
        if self._wanted:
            old = self.hessian.get(name, torch.zeros(()))
            self.hessian[name] = (old * seen + x.T @ x) / (seen + new)


def through(
    architecture: Architecture, index: int, weights: Mapping[str, Tensor], hidden: Tensor, rotary: tuple[Tensor, Tensor],
    watch: Inputs | None = None,
) -> Tensor:  # fmt: skip
    """`hidden` [sequences, tokens, width] after a layer; a few sequences at a time."""
    step = max(1, _AT_ONCE // hidden.shape[1])
    with torch.inference_mode():
        return torch.cat([run_layer(architecture, index, weights, part, rotary, watch) for part in hidden.split(step)])


def sensitivities(
    architecture: Architecture, layer: Callable[[int], Mapping[str, Tensor]], tops: Mapping[str, Tensor], ids: Tensor,
    rotary: tuple[Tensor, Tensor], tell: Callable[[int], None],
) -> list[dict[str, Tensor]]:  # fmt: skip
    """The squared gradient of the loss by every weight of every projection, summed over sequences `ids` [sequences, tokens].

    Gradients go back one layer at a time, of which the inputs were kept: there is one layer in memory, and the result in
    float16 once it is scaled (as only its proportions within a matrix matter).

    Args:
        layer: gives the weights of layer number i, float32.
        tops: `embedding`, `norm` and `head`.
        tell: called with the number of layers done.
    """
    count = architecture.spec.layers
    entered: list[Tensor] = []
    hidden = tops["embedding"][ids]
    for index in range(count):
        entered.append(hidden)
        hidden = through(architecture, index, layer(index), hidden, rotary)
    gradients = _loss_gradients(architecture, hidden, tops, ids)
    found: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for index in reversed(range(count)):
        found[index], gradients = _backward(architecture, index, layer(index), entered.pop(), gradients, rotary)
        tell(count - index)
    return found


def _loss_gradients(architecture: Architecture, hidden: Tensor, tops: Mapping[str, Tensor], ids: Tensor) -> Tensor:
    gradients = torch.empty(hidden.shape)
    for number in range(len(ids)):
        one = hidden[number : number + 1].clone().requires_grad_(True)
        token_losses(architecture, one, tops["norm"], tops["head"], ids[number : number + 1]).backward()
        gradients[number] = one.grad[0]
    return gradients


def _backward(
    architecture: Architecture, index: int, weights: Mapping[str, Tensor], entered: Tensor, gradients: Tensor,
    rotary: tuple[Tensor, Tensor],
) -> tuple[dict[str, Tensor], Tensor]:  # fmt: skip
    """Squared gradients of one layer's projections, and the gradients by its inputs."""
    live = dict(weights)
    names = [f"{name}.weight" for name in projections(architecture)]
    for name in names:
        live[name] = weights[name].detach().clone().requires_grad_(True)
    squares = {name: torch.zeros(weights[name].shape) for name in names}
    before = torch.empty(entered.shape)
    for number in range(len(entered)):
        one = entered[number : number + 1].clone().requires_grad_(True)
        run_layer(architecture, index, live, one, rotary).backward(gradients[number : number + 1])
        before[number] = one.grad[0]
        for name in names:
            if live[name].grad is not None:  # None: of an expert that no token visits
                squares[name] += live[name].grad.square()
                live[name].grad = None
    scaled = {name: (each / each.amax().clamp(min=1e-38) * 60_000).half() for name, each in squares.items()}
    return scaled, before
