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
MAX_EXTENT = 65536


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

    def read(self, given: Mapping[str, str]) -> dict[str, Value]:
        """Parameters as they are spelled in a URI. Raises ValueError."""
        found: dict[str, Value] = {}
        for name, text in given.items():
            if name not in self.defaults:
                raise ValueError(f"there is no parameter {name[:40]}, but {', '.join(self.defaults)}")
            if name == "dtype":
                if text not in DTYPES:
                    raise ValueError(f"dtype is one of {', '.join(DTYPES)}, not {text[:40]}")
                found[name] = text
            elif not text.isdecimal() or not 0 < int(text[:9]) <= MAX_EXTENT or len(text) > 9:
                raise ValueError(f"{name} is an integer from 1 to {MAX_EXTENT}, not {text[:40]}")
            else:
                found[name] = int(text)
        return found

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
    """Softmax of short rows."""
    return (
        f"i:{m} j:{n}\nA:{dtype}[i,j] -> C:{dtype}[i,j]; D,E:{dtype}[i]\n"
        "L_i L_j D_i max= A_{i,j}\n"
        "L_i L_j E_i += exp(A_{i,j}-D_i)\n"
        "L_i L_j C_{i,j} = exp(A_{i,j}-D_i)/E_i\n"
    )


@_pattern
def twin_maps(m: int = 12, n: int = 20, dtype: str = "f32") -> str:
    """The same function of two inputs."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,D:{dtype}[i,j]\n"
        "L_i L_j C_{i,j} = tanh(A_{i,j})\n"
        "L_i L_j D_{i,j} = tanh(B_{i,j})\n"
    )


@_pattern
def transposed_batches(b: int = 4, m: int = 24, n: int = 20, k: int = 28, dtype: str = "f32") -> str:
    """A product of batches of matrices, the first of them stored transposed."""
    return (
        f"h:{b} i:{m} j:{n} k:{k}\nA:{dtype}[h,k,i] B:{dtype}[h,k,j] -> C:{dtype}[h,i,j]\n"
        "L_h L_i L_j L_k C_{h,i,j} += A_{h,k,i} B_{h,k,j}\n"
    )


@_pattern
def strided_windows(m: int = 24, n: int = 16, p: int = 3, dtype: str = "f32") -> str:
    """Sums over windows that overlap."""
    return f"i:{m} j:{n} k:{p}\nA:{dtype}[{2 * m + p - 2},j] -> C:{dtype}[i,j]\nL_i L_j L_k C_{{i,j}} += A_{{2i+k,j}}\n"
