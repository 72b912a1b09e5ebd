"""The record of a workload: a PyTorch module in any size and float dtype."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from datagen.workloads.parts import Function

Size = Mapping[str, int]
"""Extents by name, such as `{"m": 16, "n": 16384}`."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that a workload is known in."""

    small: Size
    """For comparisons with PyTorch and interpreted runs: odd extents, all loops short."""
    default: Size
    """What ships."""
    large: Size


Triple = tuple[int, int, int]
"""An extent in the small, the default and the large size."""


def sizes(**extents: Triple) -> Sizes:
    """Sizes by the names of their extents."""
    small, default, large = ({name: triple[at] for name, triple in extents.items()} for at in range(3))
    return Sizes(small, default, large)


@dataclass(frozen=True, slots=True)
class Definition:
    """One workload."""

    family: str
    """What it is held out with in a train/test split."""
    inputs: str
    """Dtypes and shapes of the inputs in names of extents: `f[m,k] f[k,n] i64[m]`; `f` is the float dtype."""
    sizes: Sizes
    make: Callable[..., nn.Module]
    """The module; its parameters are names of extents."""
    remark: str = ""
    """Where it departs from the chain that its name states, and why."""

    def module(self, size: Size) -> nn.Module:
        """The module in a size, in evaluation mode: weights of seed 0, normalisations with drawn weights too."""
        torch.manual_seed(0)
        wanted = inspect.signature(self.make).parameters
        made = self.make(**{name: extent for name, extent in size.items() if name in wanted})
        for part in made.modules():
            if isinstance(part, _NORMALISATIONS):
                _draw(part)
        return made.eval()


_NORMALISATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)


def _draw(norm: nn.Module) -> None:
    """Weights and running statistics that differ: with ones and zeros the mean of a group norm is constant."""
    for tensor in (*norm.parameters(), *norm.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)


def function(call: Callable[..., Any]) -> Callable[[], nn.Module]:
    """The `make` of a workload without parameters: a function of its inputs."""
    return lambda: Function(call)
