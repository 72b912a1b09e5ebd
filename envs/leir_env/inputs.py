"""Input sets: what programs are run on, drawn from a seed. Worker and oracle draw the same values.

Each distribution is there for a class of wrong programs: `normal` for most, `large` for lost stability (an
exponential without its maximum), `ties` for order and comparisons, `special` for signed zeros and denormals,
`ramp` for wrong places, `zeros` for divisions and invented constants.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from envs.leir_env.interp import Array, numpy_dtype
from envs.leir_env.ir import (
    Access,
    Call,
    Cast,
    Const,
    DType,
    Equation,
    Expr,
    Program,
    Role,
    Tensor,
    subexpressions,
)
from envs.leir_env.tree import accesses, declarations, expressions, walk

Rng = np.random.Generator

SPECIAL = (-0.0, 0.0, 1e-40, -3e-41, 1e-30, -1e-7, 0.5, -1.0, 1.0, 3.0, -7.0, 60.0)
"""Signed zeros, numbers that are denormal in f32 or small anywhere, and plain ones."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """How values are drawn, by kind of tensor; functions take the generator and the number of elements."""

    floats: Callable[[Rng, int, float], Array]
    """Its last argument is the magnitude that is large, and harmless, in the tensor's dtype."""
    integers: Callable[[Rng, int], Array]
    places: Callable[[Rng, int, int], Array]
    """Its last argument is the extent that the values index."""
    booleans: Callable[[Rng, int], Array]


def _ramp(count: int) -> Array:
    return np.arange(count) / max(count, 1)


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": Distribution(
        lambda rng, n, _: rng.standard_normal(n),
        lambda rng, n: rng.integers(-8, 9, n),
        lambda rng, n, extent: rng.integers(0, extent, n),
        lambda rng, n: rng.random(n) < 0.75,
    ),
    "large": Distribution(
        lambda rng, n, large: large * rng.standard_normal(n),
        lambda rng, n: rng.integers(-100, 101, n),
        lambda rng, n, extent: rng.choice([0, extent - 1], n),
        lambda rng, n: rng.random(n) < 0.25,
    ),
    "ramp": Distribution(
        lambda rng, n, _: rng.uniform(0.5, 1.5) + 2 * _ramp(n) - rng.random(n) / 4,
        lambda _, n: np.arange(n) % 17 - 8,
        lambda _, n, extent: np.arange(n) % extent,
        lambda _, n: np.arange(n) < (n + 1) // 2,
    ),
    "ties": Distribution(
        lambda rng, n, _: rng.integers(-2, 3, n).astype(np.float64),
        lambda rng, n: rng.integers(-2, 3, n),
        lambda rng, n, extent: rng.integers(0, min(extent, 3), n),
        lambda _, n: np.ones(n, bool),
    ),
    "special": Distribution(
        lambda rng, n, _: rng.choice(SPECIAL, n),
        lambda rng, n: rng.choice([-128, -1, 0, 1, 127], n),
        lambda rng, n, extent: rng.integers(0, extent, n),
        lambda rng, n: rng.random(n) < 0.5,
    ),
    "zeros": Distribution(
        lambda _, n, __: np.zeros(n),
        lambda _, n: np.zeros(n, np.int64),
        lambda _, n, __: np.zeros(n, np.int64),
        lambda _, n: np.zeros(n, bool),
    ),
}


WEIGHED = ("normal", "large", "ramp")
"""Distributions in which weights shrink with the number of terms that they add up, as when networks are initialised:
deep chains would saturate otherwise, and say nothing of their beginnings."""


def draw(program: Program, name: str, seed: int) -> dict[str, Array]:
    """Return every input and parameter by name, drawn from the distribution `name`.

    The values depend on positions, not on names. Integers that index something stay within it, booleans
    are masks, and what a square root or a logarithm is taken of is not negative.
    """
    places = index_extents(program)
    positive = nonnegative(program)
    drawn = {}
    for position, tensor in enumerate(program.inputs):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), position])
        values = _values(DISTRIBUTIONS[name], tensor, rng, places.get(tensor.name))
        values = np.abs(values) if tensor.name in positive else values
        if name in WEIGHED and tensor.role is Role.PARAMETER and tensor.dtype.is_float:
            values = values / math.sqrt(math.prod(tensor.shape[1:]))
        drawn[tensor.name] = values.astype(numpy_dtype(tensor.dtype)).reshape(tensor.shape)
    return drawn


def _values(distribution: Distribution, tensor: Tensor, rng: Rng, extent: int | None) -> Array:
    if extent is not None:
        return distribution.places(rng, tensor.size, extent)
    if tensor.dtype is DType.BOOL:
        return distribution.booleans(rng, tensor.size)
    if tensor.dtype.is_int:
        return distribution.integers(rng, tensor.size)
    return distribution.floats(rng, tensor.size, 10.0 if tensor.dtype is DType.F16 else 100.0)


def index_extents(program: Program) -> dict[str, int]:
    """Return, for each integer input that is a subscript somewhere, the smallest extent it indexes."""
    inputs = {tensor.name for tensor in program.inputs}
    shapes = {name: tensor.shape for name, (tensor, _) in declarations(program).items()}
    found: dict[str, int] = {}
    for equation in _equations(program):
        for expr in expressions(equation):
            for access in accesses(expr):
                for subscript, extent in zip(access.subscripts, shapes[access.tensor], strict=True):
                    for inner in accesses(subscript):
                        if inner.tensor in inputs:
                            found[inner.tensor] = min(extent, found.get(inner.tensor, extent))
    return found


def nonnegative(program: Program) -> frozenset[str]:
    """Return the inputs that must not be negative for a root, logarithm or power in the program to be real.

    Follows definitions backwards through sums, scalings and temporaries; a square asks nothing of its root.
    """
    definitions: dict[str, list[Expr]] = {}
    pending: list[Expr] = []
    for equation in _equations(program):
        definitions.setdefault(equation.target.tensor, []).append(equation.value)
        for node in subexpressions(equation.value):
            if isinstance(node, Call) and node.op in ("sqrt", "rsqrt", "log"):
                pending.append(node.args[0])
            if isinstance(node, Call) and node.op == "pow" and not _whole(node.args[1]):
                pending.append(node.args[0])
    found: set[str] = set()
    while pending:
        match pending.pop():
            case Access(name) if name not in found:
                found.add(name)
                pending += definitions.get(name, [])
            case Call("add", (left, right)):
                pending += [left, right]
            case Call("mul" | "div", (left, right)) if left != right:
                pending += [left, right]
            case Call("sub", (left, _)):
                pending.append(left)
            case Cast(_, value):
                pending.append(value)
    return frozenset(found & {tensor.name for tensor in program.inputs})


def _whole(exponent: Expr) -> bool:
    return isinstance(exponent, Const) and float(exponent.value).is_integer()


def _equations(program: Program) -> list[Equation]:
    return [node.statement for node in walk(program) if isinstance(node.statement, Equation)]
