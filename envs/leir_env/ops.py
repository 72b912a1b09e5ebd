"""The operators of LEIR expressions: one table that the parser, printer, interpreter and lowering share.

Types: `arith` takes numbers of one dtype and returns it, `float` the same but floats only, `integer`
integers only, `compare` numbers to bool, `logic` bool to bool, `select` (bool, T, T) to T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Op:
    """One operator."""

    name: str
    arity: int
    typing: str
    numpy: Callable[..., Any]
    """Its meaning, elementwise on arrays of the program's dtype."""
    symbol: str = ""
    """The infix or prefix spelling; functions have none and are written by name."""
    precedence: int = 0
    """Binding strength of an infix spelling, higher binds tighter."""
    flops: int = 1
    """Rough cost of one evaluation in floating-point operations, for the cost model."""


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluate in float64 and round once: NumPy has no such function, or none for small floats."""

    def wrapped(x: Any) -> Any:
        array = np.asarray(x)
        return function(array.astype(np.float64)).astype(array.dtype)

    return wrapped


def _sigmoid(x: Any) -> Any:
    array = np.asarray(x)
    return (1 / (1 + np.exp(-array))).astype(array.dtype)


_TABLE = (
    Op("or", 2, "logic", np.logical_or, "or", 1),
    Op("and", 2, "logic", np.logical_and, "and", 2),
    Op("not", 1, "logic", np.logical_not, "not", 3),
    Op("lt", 2, "compare", np.less, "<", 4),
    Op("le", 2, "compare", np.less_equal, "<=", 4),
    Op("gt", 2, "compare", np.greater, ">", 4),
    Op("ge", 2, "compare", np.greater_equal, ">=", 4),
    Op("eq", 2, "compare", np.equal, "==", 4),
    Op("ne", 2, "compare", np.not_equal, "!=", 4),
    Op("add", 2, "arith", np.add, "+", 5),
    Op("sub", 2, "arith", np.subtract, "-", 5),
    Op("mul", 2, "arith", np.multiply, "*", 6),
    Op("div", 2, "float", np.divide, "/", 6, flops=4),
    Op("floordiv", 2, "integer", np.floor_divide, "//", 6, flops=4),
    Op("mod", 2, "integer", np.mod, "%", 6, flops=4),
    Op("neg", 1, "arith", np.negative, "-", 7),
    Op("pow", 2, "float", np.power, flops=20),
    Op("exp", 1, "float", np.exp, flops=12),
    Op("log", 1, "float", np.log, flops=12),
    Op("sqrt", 1, "float", np.sqrt, flops=4),
    Op("rsqrt", 1, "float", lambda x: (1 / np.sqrt(x)).astype(np.asarray(x).dtype), flops=8),
    Op("tanh", 1, "float", np.tanh, flops=16),
    Op("erf", 1, "float", _in_double(_erf), flops=16),
    Op("sigmoid", 1, "float", _sigmoid, flops=16),
    Op("fast_exp", 1, "float", np.exp, flops=8),
    Op("fast_tanh", 1, "float", np.tanh, flops=10),
    Op("fast_erf", 1, "float", _in_double(_erf), flops=10),
    Op("fast_sigmoid", 1, "float", _sigmoid, flops=10),
    Op("sin", 1, "float", np.sin, flops=12),
    Op("cos", 1, "float", np.cos, flops=12),
    Op("floor", 1, "float", np.floor),
    Op("abs", 1, "arith", np.abs),
    Op("min", 2, "arith", np.minimum),
    Op("max", 2, "arith", np.maximum),
    Op("select", 3, "select", np.where),
)

OPS: dict[str, Op] = {op.name: op for op in _TABLE}

FUNCTIONS: tuple[str, ...] = tuple(op.name for op in _TABLE if not op.symbol)
"""Operators written as a call: `exp(x)`, `select(c,a,b)`."""

INFIX: dict[str, Op] = {op.symbol: op for op in _TABLE if op.symbol and op.arity == 2}
"""Binary operators by their spelling."""

RESERVED: frozenset[str] = frozenset(
    {*FUNCTIONS, "if", "and", "or", "not", "inf", "true", "false"}
    | {"f16", "bf16", "f32", "f64", "i8", "i32", "i64", "bool"}
)
"""Words that can't be index names."""
