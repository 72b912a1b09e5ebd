"""What workloads are put together from: functions as modules, chains, residuals, tensors of parameters."""

# mypy: disable-error-code="misc"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Step = Callable[[Tensor], Tensor]
"""A module, or any function of the tensor before it."""


class Function(nn.Module):
    """A function of tensors as a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


def chain(*steps: Step) -> nn.Sequential:
    """Steps one after another."""
    return nn.Sequential(*(step if isinstance(step, nn.Module) else Function(step) for step in steps))


class Residual(nn.Module):
    """`x + f(x)` for a chain f."""

    def __init__(self, *steps: Step) -> None:
        super().__init__()
        self.steps = chain(*steps)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.steps(x)


class Plus(nn.Module):
    """Add a tensor of parameters."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class Minus(Plus):
    """Subtract a tensor of parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return x - self.weight


class Times(Plus):
    """Multiply by a tensor of parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the channels, the second dimension (arXiv 1910.07467)."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5)


class Twin(nn.Module):
    """`f(x) + f(y)` with the same parameters on both sides."""

    def __init__(self, operator: nn.Module) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.operator(x) + self.operator(y)


# Steps of chains: functions of a tensor whose second dimension holds channels or features.


def total(*dims: int) -> Step:
    """The sum over dimensions, which stay."""
    return lambda x: x.sum(dims, keepdim=True)


def mean(*dims: int) -> Step:
    """The mean over dimensions, which stay."""
    return lambda x: x.mean(dims, keepdim=True)


def times(factor: float) -> Step:
    """Multiply by a number."""
    return lambda x: factor * x


def minus(number: float) -> Step:
    """Subtract a number."""
    return lambda x: x - number


def over(divisor: float) -> Step:
    """Divide by a number."""
    return lambda x: x / divisor


def clamp(low: float, high: float) -> Step:
    """Cut off at both ends."""
    return lambda x: x.clamp(low, high)


def leaky(slope: float) -> Step:
    """The leaky rectifier."""
    return lambda x: F.leaky_relu(x, slope)


def split(*groups: int) -> Step:
    """The features as several dimensions."""
    return lambda x: x.unflatten(1, (-1, *groups))


def softmax(x: Tensor) -> Tensor:
    """Softmax over the channels or features."""
    return torch.softmax(x, 1)


def least(x: Tensor) -> Tensor:
    """The minimum over them."""
    return x.amin(1, keepdim=True)


def logsumexp(x: Tensor) -> Tensor:
    """The logarithm of the sum of exponentials over them."""
    return torch.logsumexp(x, 1, keepdim=True)


def pooled(pool: Any) -> Step:
    """A pooling of features: they are a row of one channel."""
    return lambda x: pool(x[:, None])[:, 0]
