"""Dtypes that the published form leaves to promotion: casts where operands meet and where values are stored."""

from __future__ import annotations

from collections.abc import Sequence

from envs.leir_env.ir import Call, Cast, Const, DType, Expr
from envs.leir_env.ops import OPS
from envs.leir_env.types import Type, Weak, takes, unify

Typed = tuple[Expr, Type]
"""An expression and its type."""


def applied(op: str, *args: Typed) -> Typed:
    """An operator applied to operands of one type; what can't be brought to one is left to `verify`."""
    typing = OPS[op].typing
    if typing == "logic":
        return Call(op, tuple(map(truth, args))), DType.BOOL
    if typing == "select":
        values, kind = _met(args[1:])
        return Call(op, (truth(args[0]), *values)), kind
    values, kind = _met(args)
    result = DType.BOOL if typing == "compare" else kind
    return Call(op, values), Weak.FRACTION if typing == "float" and kind is Weak.WHOLE else result


def _met(args: Sequence[Typed]) -> tuple[tuple[Expr, ...], Type]:
    """Operands cast to the type in which they meet."""
    kind = args[0][1]
    for _, other in args[1:]:
        kind = _common(kind, other)
    return tuple(fitted(value, own, kind) if isinstance(kind, DType) else value for value, own in args), kind


def _common(a: Type, b: Type) -> Type:
    """The type in which two meet: floats before integers, the wider before the narrower."""
    found = unify(a, b)
    if found is not None:
        return found
    strong = [kind for kind in (a, b) if isinstance(kind, DType)]
    if len(strong) == 1:  # A literal that does not fit: a fraction and an integer, or a number and a condition.
        strong.append(DType.F32 if Weak.FRACTION in (a, b) else DType.I32)
    if set(strong) == {DType.F16, DType.BF16}:
        return DType.F32
    return max(strong, key=lambda kind: (kind.is_float, kind is not DType.BOOL, kind.itemsize))


def fitted(value: Expr, kind: Type, dtype: DType) -> Expr:
    """The value as `dtype`; literals and indices adapt by themselves."""
    if takes(dtype, kind) or (isinstance(kind, Weak) and dtype is not DType.BOOL):
        return value
    return truth((value, kind)) if dtype is DType.BOOL else Cast(dtype, value)


def truth(value: Typed) -> Expr:
    """A condition; a number holds where it is not zero."""
    expr, kind = value
    if kind is DType.BOOL:
        return expr
    return Const(bool(expr.value)) if isinstance(expr, Const) else Call("ne", (expr, Const(0)))


def negated(value: Typed) -> Typed:
    """The opposite number."""
    expr, kind = value
    return Const(-expr.value) if isinstance(expr, Const) else Call("neg", (expr,)), kind
