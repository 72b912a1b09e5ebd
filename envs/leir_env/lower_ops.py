"""The operators of LEIR in TIR: one table entry for each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tvm import tirx

from envs.leir_env import elementary, intrinsics
from envs.leir_env.ir import DType

Scalar: TypeAlias = tirx.Expr

NAMES: Mapping[DType, str] = {
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F32: "float32",
    DType.F64: "float64",
    DType.I8: "int8",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.BOOL: "bool",
}
"""LEIR dtypes as TVM spells them."""


def apply(op: str, args: list[Scalar], dtype: DType, target: str) -> Scalar:
    """Apply an operator of `OPS` to operands of one dtype."""
    if op in _ACROSS:
        return _ACROSS[op](*args)
    table = _VECTORISABLE if target == "llvm" and dtype is not DType.F64 else _LIBRARY
    if dtype in (DType.F16, DType.BF16):
        wide = [tirx.Cast("float32", arg) for arg in args]
        return tirx.Cast(NAMES[dtype], table[op](*wide))
    return table[op](*args)


def _negative(x: Scalar) -> Scalar:
    dtype = x.ty.dtype
    return tirx.Mul(x, tirx.const(-1, dtype))


def _guarded_division(operator: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Scalar, Scalar], Scalar]:
    """Integer division by zero gives zero, as in NumPy, instead of a trap."""

    def divide(a: Scalar, b: Scalar) -> Scalar:
        if isinstance(b, tirx.IntImm) and b.value != 0:
            return operator(a, b)
        zero = tirx.const(0, b.ty.dtype)
        return tirx.Select(tirx.EQ(b, zero), zero, operator(a, intrinsics.divisor(b)))

    return divide


_ACROSS: Mapping[str, Callable[..., Scalar]] = {
    "or": tirx.Or,
    "and": tirx.And,
    "not": tirx.Not,
    "lt": tirx.LT,
    "le": tirx.LE,
    "gt": tirx.GT,
    "ge": tirx.GE,
    "eq": tirx.EQ,
    "ne": tirx.NE,
    "add": tirx.Add,
    "sub": tirx.Sub,
    "mul": tirx.Mul,
    "div": tirx.Div,
    "floordiv": _guarded_division(tirx.FloorDiv),
    "mod": _guarded_division(tirx.FloorMod),
    "neg": _negative,
    "abs": tirx.abs,
    "min": tirx.Min,
    "max": tirx.Max,
    "sqrt": tirx.sqrt,
    "floor": tirx.floor,
}
"""Operators whose TIR spelling serves every dtype and target."""


def _one(x: Scalar) -> Scalar:
    return tirx.FloatImm(x.ty.dtype, 1.0)


_LIBRARY: Mapping[str, Callable[..., Scalar]] = {
    "pow": tirx.pow,
    "exp": tirx.exp,
    "log": tirx.log,
    "rsqrt": lambda x: tirx.Div(_one(x), tirx.sqrt(x)),
    "tanh": tirx.tanh,
    "erf": tirx.erf,
    "sigmoid": lambda x: tirx.Div(_one(x), tirx.Add(_one(x), tirx.exp(_negative(x)))),
    "sin": tirx.sin,
    "cos": tirx.cos,
}
"""Functions of the target's mathematical library."""

_LIBRARY = {**_LIBRARY, **{f"fast_{name}": _LIBRARY[name] for name in ("exp", "tanh", "erf", "sigmoid")}}

_VECTORISABLE: Mapping[str, Callable[..., Scalar]] = {
    **_LIBRARY,
    **{name: functools.partial(elementary.call, name) for name in elementary.FUNCTIONS},
}
"""The same for float32 on a CPU, where the library would be called lane by lane."""
