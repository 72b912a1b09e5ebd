"""Expressions of LEIR as TIR expressions.

Weak subexpressions (literals and loop indices only) are evaluated as integers wide enough for their bounds,
or in float64, and rounded once to the dtype of what they meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx

from envs.leir_env import intrinsics
from envs.leir_env.affine import interval
from envs.leir_env.interp import numpy_dtype
from envs.leir_env.ir import Access, Call, Cast, Const, DType, Equation, Expr, Index, Tensor, subexpressions
from envs.leir_env.lower_ops import NAMES, Scalar, apply
from envs.leir_env.ops import OPS
from envs.leir_env.printer import show_expression

INT32_MAX = 2**31 - 1


class BuildError(ValueError):
    """A program that can't be built: `code` names the rule, `sentence` the thing and the number."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code, self.sentence = code, sentence


@dataclass(frozen=True, slots=True)
class Environment:
    """What names mean at a place in the program."""

    target: str
    tensors: Mapping[str, Tensor]
    buffers: Mapping[str, tirx.Var]
    indices: Mapping[str, Scalar]
    extents: Mapping[str, int]
    lanes: frozenset[str] = frozenset()
    """Indices of the vectorised and unrolled loops."""
    clamped: bool = False
    """Subscripts that may leave their tensor are kept inside: what they read is not chosen."""


def value(expr: Expr, dtype: DType, env: Environment) -> Scalar:
    """Lower `expr`; if it is weak it becomes `dtype`."""
    own = dtype_of(expr, env.tensors)
    if own is None:
        return _weak(expr, dtype, env)
    match expr:
        case Const(literal):
            return tirx.const(bool(literal), "bool")
        case Access():
            return element(expr, env)
        case Cast(to, inner):
            return cast(value(inner, dtype_of(inner, env.tensors) or to, env), to)
        case Call("select", (condition, yes, no)):
            return _select(condition, yes, no, own, env)
        case Call(op, args):
            operands = own if OPS[op].typing in ("arith", "float", "integer") else _joint(args, env)
            return apply(op, [_operand(op, arg, operands, env) for arg in args], operands, env.target)
    raise AssertionError(f"no such expression: {expr}")


def _operand(op: str, arg: Expr, dtype: DType, env: Environment) -> Scalar:
    """An operand; a product is rounded before it is added, as the interpreter does it."""
    lowered = value(arg, dtype, env)
    contracts = op in ("add", "sub") and dtype in (DType.F32, DType.F64) and env.target == "llvm"
    return intrinsics.rounded(lowered) if contracts and isinstance(arg, Call) and arg.op == "mul" else lowered


def element(access: Access, env: Environment) -> Scalar:
    """The load of one element."""
    return tirx.BufferLoad(env.buffers[access.tensor], subscripts(access, env))


def subscripts(access: Access, env: Environment) -> list[Scalar]:
    """The subscripts of an access as integers."""
    shape = env.tensors[access.tensor].shape
    found = []
    for expr, extent in zip(access.subscripts, shape, strict=True):
        lowered = subscript(expr, env)
        safe = not env.clamped or _inside(expr, extent, env)
        found.append(lowered if safe else intrinsics.inside(lowered, extent))
    return found


def _inside(subscript: Expr, extent: int, env: Environment) -> bool:
    reach = interval(subscript, env.extents) if _is_weak(subscript) else None
    return reach is not None and reach[0] >= 0 and reach[1] < extent


def subscript(expr: Expr, env: Environment) -> Scalar:
    """One subscript: int32 unless its bounds or the tensors in it are wider."""
    own = dtype_of(expr, env.tensors)
    return _integer(expr, _width(expr, env), env) if own is None else value(expr, own, env)


def condition(expr: Expr, env: Environment) -> Scalar:
    """A guard."""
    return value(expr, DType.BOOL, env)


def likely(expr: Expr, env: Environment) -> Scalar:
    """A condition at which TVM may split the serial loop that decides it.

    Only bounds on one index: with more, LoopPartition (TVM 0.27) is wrong, and loops over lanes must stay whole.
    """
    lowered = condition(expr, env)
    bound = isinstance(expr, Call) and expr.op in ("lt", "le", "gt", "ge")
    names = [node.name for node in subexpressions(expr) if isinstance(node, Index)]
    plain = bound and len(names) == 1 and names[0] not in env.lanes and _is_weak(expr)
    return tirx.likely(lowered) if plain and env.target == "llvm" else lowered


def _is_weak(expr: Expr) -> bool:
    return not any(isinstance(node, Access | Cast) for node in subexpressions(expr))


def accumulated(equation: Equation, old: Scalar, term: Scalar, dtype: DType, target: str) -> Scalar:
    """`old` and one more term of the accumulation."""
    if dtype is DType.BOOL:
        return {"add": tirx.Or, "max": tirx.Or, "mul": tirx.And, "min": tirx.And}[equation.assign.op](old, term)
    return apply(equation.assign.op, [old, term], dtype, target)


def literal(number: float | int | bool, dtype: DType) -> Scalar:
    """A constant of the given dtype."""
    if dtype is DType.BOOL:
        return tirx.const(bool(number), "bool")
    if dtype is DType.BF16:
        # TVM computes in float32 and would keep the literal's other bits.
        number = float(np.asarray(number).astype(numpy_dtype(dtype)))
    if dtype.is_float:
        return tirx.FloatImm(NAMES[dtype], float(number))
    return tirx.IntImm(NAMES[dtype], int(number))


def dtype_of(expr: Expr, tensors: Mapping[str, Tensor]) -> DType | None:
    """The dtype of an expression; None if it is weak."""
    match expr:
        case Const(literal):
            return DType.BOOL if isinstance(literal, bool) else None
        case Index():
            return None
        case Access(name):
            return tensors[name].dtype
        case Cast(dtype):
            return dtype
        case Call(op, args):
            if OPS[op].typing in ("compare", "logic"):
                return DType.BOOL
            operands = args[1:] if op == "select" else args
            found = {own for arg in operands if (own := dtype_of(arg, tensors)) is not None}
            if len(found) > 1:
                raise BuildError(
                    "mixed_dtypes",
                    f"{show_expression(expr)} mixes {' and '.join(sorted(found))}; cast one of them",
                )
            return next(iter(found), None)
    raise AssertionError(f"no such expression: {expr}")


def _width(expr: Expr, env: Environment) -> str:
    """int32 if every integer subexpression fits, int64 otherwise."""
    for node in subexpressions(expr):
        reach = interval(node, env.extents)
        if reach is not None and max(-reach[0], reach[1]) > INT32_MAX:
            return "int64"
    return "int32"


def _is_integral(expr: Expr) -> bool:
    for node in subexpressions(expr):
        match node:
            case Const(float()):
                return False
            case Call(op) if OPS[op].typing == "float":
                return False
    return True


def _weak(expr: Expr, dtype: DType, env: Environment) -> Scalar:
    """Evaluate an expression of literals and indices apart, then round to `dtype`."""
    if isinstance(expr, Const):
        if not dtype.is_float and isinstance(expr.value, float):
            raise BuildError("mixed_dtypes", f"the literal {expr.value} meets {dtype}; write an integer or a cast")
        return literal(expr.value, dtype)
    if _is_integral(expr):
        return cast(_integer(expr, _width(expr, env), env), dtype)
    if not dtype.is_float:
        raise BuildError("mixed_dtypes", f"{show_expression(expr)} is no integer but meets {dtype}; write a cast")
    return cast(_double(expr, env), dtype)


def _integer(expr: Expr, width: str, env: Environment) -> Scalar:
    match expr:
        case Const(number):
            return tirx.IntImm(width, int(number))
        case Index(name):
            index = env.indices[name]
            return index if width == "int32" else tirx.Cast(width, index)
        case Call("select", (chosen, yes, no)):
            return tirx.Select(condition(chosen, env), _integer(yes, width, env), _integer(no, width, env))
        case Call(op, args):
            return apply(op, [_integer(arg, width, env) for arg in args], DType.I64, env.target)
    raise AssertionError(f"no weak integer: {expr}")


def _double(expr: Expr, env: Environment) -> Scalar:
    match expr:
        case Const(number):
            return tirx.FloatImm("float64", float(number))
        case Call("select", (chosen, yes, no)):
            return tirx.Select(condition(chosen, env), _double(yes, env), _double(no, env))
        case Call(op, args) if not _is_integral(expr):
            return apply(op, [_double(arg, env) for arg in args], DType.F64, env.target)
    return tirx.Cast("float64", _integer(expr, _width(expr, env), env))


def _joint(args: tuple[Expr, ...], env: Environment) -> DType:
    """The dtype in which two sides are compared: of the strong one, or wide enough for two weak ones."""
    found = {own for arg in args if (own := dtype_of(arg, env.tensors)) is not None}
    if len(found) > 1:
        raise BuildError("mixed_dtypes", f"a comparison mixes {' and '.join(sorted(found))}; cast one of them")
    if found:
        return next(iter(found))
    if not all(map(_is_integral, args)):
        return DType.F64
    return DType.I64 if any(_width(arg, env) == "int64" for arg in args) else DType.I32


def cast(operand: Scalar, dtype: DType) -> Scalar:
    """Convert to `dtype`; nothing is emitted if it is that already."""
    source = operand.ty.dtype
    if source == NAMES[dtype]:
        return operand
    if dtype is DType.BOOL:
        return tirx.NE(operand, tirx.const(0, source))
    return tirx.Cast(NAMES[dtype], operand)


def _select(chosen: Expr, yes: Expr, no: Expr, dtype: DType, env: Environment) -> Scalar:
    """A selection between two values if both may be evaluated everywhere, otherwise a branch.

    Where lanes differ in their choice, a branch would part them: there the reads are kept inside instead.
    """
    if not (_is_total(yes, env) and _is_total(no, env)):
        if not any(isinstance(node, Index) and node.name in env.lanes for node in subexpressions(chosen)):
            return tirx.if_then_else(condition(chosen, env), value(yes, dtype, env), value(no, dtype, env))
        env = replace(env, clamped=True)
    return tirx.Select(condition(chosen, env), value(yes, dtype, env), value(no, dtype, env))


def _is_total(expr: Expr, env: Environment) -> bool:
    """Can it be evaluated anywhere in the iteration space? Every subscript is provably inside."""
    return env.clamped or all(
        _inside(subscript, extent, env)
        for node in subexpressions(expr)
        if isinstance(node, Access)
        for subscript, extent in zip(node.subscripts, env.tensors[node.tensor].shape, strict=True)
    )
