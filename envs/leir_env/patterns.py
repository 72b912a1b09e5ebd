"""Small programs with one pattern each, in any size and dtype: a suite for what the other suites never show.

`leir://patterns/log_sum?n=16&dtype=f64` is a workload like any other. The property tests and the random walks
of `leirgym bench actions` start from patterns of random size, so that every strategy finds its prey.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Value = int | str

DTYPES = ("f32", "f64", "f16")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A family of programs by size and dtype."""

    make: Callable[..., str]
    """LEIR text for given parameters."""
    defaults: Mapping[str, Value]
    """Parameters by name: extents, and `dtype`."""

    def text(self, **parameters: Value) -> str:
        """The program with these parameters in place of the defaults."""
        return self.make(**{**self.defaults, **parameters})

    def draw(self, rng: np.random.Generator) -> str:
        """The program at a random small size, odd ones included, in a random dtype."""
        drawn: dict[str, Value] = {
            name: str(rng.choice(DTYPES)) if name == "dtype" else int(rng.integers(1, 10)) for name in self.defaults
        }
        return self.make(**drawn)


PATTERNS: dict[str, Pattern] = {}
"""Every pattern by name."""


def _pattern(make: Callable[..., str]) -> Callable[..., str]:
    parameters = inspect.signature(make).parameters
    PATTERNS[make.__name__] = Pattern(make, {name: parameter.default for name, parameter in parameters.items()})
    return make


@_pattern
def softmax_rows(m: int = 8, n: int = 96, dtype: str = "f32") -> str:
    return (
        f"i:{m} j:{n}\nA:{dtype}[i,j] -> C:{dtype}[i,j]; D,E:{dtype}[i]\n"
        "L_i L_j D_i max= A_{i,j}\n"
        "L_i L_j E_i += exp(A_{i,j}-D_i)\n"
        "L_i L_j C_{i,j} = exp(A_{i,j}-D_i)/E_i\n"
    )


@_pattern
def twin_maps(m: int = 12, n: int = 20, dtype: str = "f32") -> str:
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,D:{dtype}[i,j]\n"
        "L_i L_j C_{i,j} = tanh(A_{i,j})\n"
        "L_i L_j D_{i,j} = tanh(B_{i,j})\n"
    )
