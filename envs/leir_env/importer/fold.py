"""Value-level clean-up of imported expressions: constants fold, identities and casts without effect go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from envs.leir_env.ir import Access, Call, Cast, Const, DType, Expr, Tensor, children, with_children
from envs.leir_env.simplify import is_index_expression, linear, simplify

_CONSTANT: dict[str, Callable[..., float | int | bool]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "neg": lambda a: -a,
    "max": max,
    "min": min,
    "abs": abs,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "exp": math.exp,
    "log": math.log,
    "pow": math.pow,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_NEUTRAL = {"min": math.inf, "max": -math.inf}
_POSITIVE = frozenset({"sqrt", "rsqrt", "log"})


def fold(expr: Expr, extents: Mapping[str, int], tensors: Mapping[str, Tensor]) -> Expr:
    """Return an equal expression without arithmetic on constants, identities and idle casts."""
    below = children(expr)
    if below:
        expr = with_children(expr, tuple(fold(child, extents, tensors) for child in below))
    match expr:
        case Cast(dtype, value):
            return _cast(dtype, value, tensors)
        case Call(op, args) if op in _CONSTANT and all(isinstance(arg, Const) for arg in args):
            return _constant(op, args) or expr
        case Call():
            return _identity(_index_form(expr, extents), tensors)
        case Access(tensor, subscripts):
            return Access(tensor, tuple(simplify(subscript, extents) for subscript in subscripts))
    return expr


def polish(expr: Expr, tensors: Mapping[str, Tensor]) -> Expr:
    """Write float constants without fraction as integers where they meet a tensor."""
    below = tuple(polish(child, tensors) for child in children(expr))
    expr = with_children(expr, below) if below else expr
    if not isinstance(expr, Call):
        return expr
    meeting = expr.args[1:] if expr.op == "select" else expr.args
    if any(dtype_of(arg, tensors) is not None for arg in meeting):
        return Call(expr.op, tuple(_short(arg) if arg in meeting else arg for arg in expr.args))
    return expr


def dtype_of(expr: Expr, tensors: Mapping[str, Tensor]) -> DType | None:
    """The dtype of an expression, or None where literals and indices leave it to the context."""
    match expr:
        case Access(tensor):
            return tensors[tensor].dtype
        case Cast(dtype):
            return dtype
        case Call(op, args):
            if op in _MIRRORED or op in ("and", "or", "not"):
                return DType.BOOL
            found = (dtype_of(arg, tensors) for arg in (args[1:] if op == "select" else args))
            return next((dtype for dtype in found if dtype is not None), None)
    return None


def _short(expr: Expr) -> Expr:
    if isinstance(expr, Const) and isinstance(expr.value, float) and abs(expr.value) < 1e9:
        value = expr.value
        if value == int(value) and math.copysign(1, value) == math.copysign(1, value or 1.0):
            return Const(int(value))
    return expr


def _constant(op: str, args: tuple[Expr, ...]) -> Const | None:
    values = [arg.value for arg in args if isinstance(arg, Const)]
    if (op in ("div", "floordiv", "mod") and not values[1]) or (op in _POSITIVE and values[0] <= 0):
        return None
    value = _CONSTANT[op](*values)
    return Const(value) if value == value else None


def _cast(dtype: DType, value: Expr, tensors: Mapping[str, Tensor]) -> Expr:
    if isinstance(value, Const) and dtype is not DType.BOOL:
        return Const(float(value.value)) if dtype.is_float else Const(int(value.value))
    if dtype_of(value, tensors) is dtype or (dtype.is_int and is_index_expression(value)):
        return value
    return Cast(dtype, value)


def _index_form(expr: Call, extents: Mapping[str, int]) -> Expr:
    """Normal form where indices are compared or computed: `j-i<=0` becomes `j<=i`."""
    if expr.op in _MIRRORED and all(map(is_index_expression, expr.args)):
        decided = simplify(expr, extents)
        if isinstance(decided, Const):
            return decided
        form = linear(expr.args[0], extents).plus(linear(expr.args[1], extents), -1)
        op = expr.op
        if form.terms[0][1] < 0:
            form, op = form.times(-1), _MIRRORED[op]
        left = type(form)(tuple(term for term in form.terms if term[1] > 0))
        right = type(form)(tuple((a, -c) for a, c in form.terms if c < 0), -form.constant)
        return Call(op, (left.expression(), right.expression()))
    if expr.op in _NEUTRAL and all(map(is_index_expression, expr.args)):
        first, second = expr.args
        low, high = linear(first, extents).plus(linear(second, extents), -1).interval(extents) or (-1, 1)
        if high <= 0 or low >= 0:
            return first if (high <= 0) == (expr.op == "min") else second
    return simplify(expr, extents) if is_index_expression(expr) else expr


def _identity(expr: Expr, tensors: Mapping[str, Tensor]) -> Expr:
    """Apply the first algebraic identity that fits; all hold bit for bit, but for the sign of zero."""
    match expr:
        # TVM's `where` tests a bool by `0 < i64(condition)`.
        case Call("lt", (Const(0), Cast(_, value))) | Call("ne", (Cast(_, value), Const(0))) if (
            dtype_of(value, tensors) is DType.BOOL
        ):
            return value
        case Call("mul", (Const(one), other)) | Call("mul", (other, Const(one))) if _is(one, 1):
            return other
        case Call("mul", (Const(-1.0), other)):
            return Call("neg", (other,))
        case Call("sub", (Const(zero), other)) if _is(zero, 0) and isinstance(zero, float):
            return Call("neg", (other,))
        case Call("div", (other, Const(one))) if _is(one, 1):
            return other
        case Call("min" | "max" as op, (other, Const(bound))) if bound == _NEUTRAL[op]:
            return other
        case Call("mul", (Call("abs", (left,)), Call("abs", (right,)))) if left == right:
            return Call("mul", (left, right))
        case Call("add", (Const(zero), other)) | Call("add" | "sub", (other, Const(zero))) if _is(zero, 0):
            return other
        case Call("mul", (other, Const() as factor)) if not isinstance(other, Const):
            return _identity(Call("mul", (factor, other)), tensors)
        case Call("mul", (Const(a), Call("mul", (Const(b), other)))):
            return Call("mul", (Const(a * b), other))
        case Call("div", (Const(one), Call("sqrt", (value,)))) if _is(one, 1):
            return Call("rsqrt", (value,))
        case Call("pow", (value, Const(power))):
            return _power(value, power)
        case Call("lt" | "le" | "gt" | "ge" | "eq" | "ne" as op, (Const() as left, right)):
            return Call(_MIRRORED[op], (right, left))
        case Call("and", (Const(True), other)) | Call("and", (other, Const(True))):
            return other
        case Call("or", (Const(False), other)) | Call("or", (other, Const(False))):
            return other
        case Call("select", (Const(condition), yes, no)):
            return yes if condition else no
        case Call("select", (Call("not", (condition,)), yes, no)):
            return Call("select", (condition, no, yes))
        case Call("not", (Call("eq" | "ne" as op, args),)):
            return Call({"eq": "ne", "ne": "eq"}[op], args)
        case Call("neg", (Call("neg", (value,)),)):
            return value
        case Call("add", (left, Call("neg", (right,)))):
            return Call("sub", (left, right))
        case Call("sub", (left, Const(value))) if isinstance(value, float) and value < 0:
            return Call("add", (left, Const(-value)))
        case Call("add", (left, Const(value))) if isinstance(value, float) and value < 0:
            return Call("sub", (left, Const(-value)))
    return expr


def _power(value: Expr, power: float) -> Expr:
    if power == 0.5:
        return Call("sqrt", (value,))
    if power == -0.5:
        return Call("rsqrt", (value,))
    if power == -1:
        return Call("div", (Const(1.0), value))
    return value if power == 1 else Call("pow", (value, Const(power)))


def _is(value: float | int | bool, number: int) -> bool:
    return not isinstance(value, bool) and value == number and math.copysign(1, value) > 0
