"""The typing of expressions: which dtype each has, and which combinations are refused.

Two different dtypes never meet without a cast. Literals and loop indices are weak: a whole number takes any
numeric dtype, a fraction (or inf) any float; what meets nothing strong stays weak and takes the dtype of the
tensor it is assigned to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from envs.leir_env.ir import Access, Assign, Call, Cast, Const, DType, Equation, Expr, Index
from envs.leir_env.ops import OPS
from envs.leir_env.printer import show_expression


class Weak(Enum):
    """A number without a dtype of its own."""

    WHOLE = "a whole number"
    FRACTION = "a fraction"

    def __str__(self) -> str:
        return self.value


Type = DType | Weak


def takes(dtype: DType, value: Type) -> bool:
    """Whether a tensor or operand of `dtype` accepts a value of this type as it is."""
    if isinstance(value, DType):
        return value is dtype
    return dtype.is_float or (value is Weak.WHOLE and dtype.is_int)


def unify(a: Type, b: Type) -> Type | None:
    """Return the type in which two operands meet, or None where they need a cast."""
    match a, b:
        case Weak(), Weak():
            return Weak.FRACTION if Weak.FRACTION in (a, b) else Weak.WHOLE
        case DType(), _:
            return a if takes(a, b) else None
        case Weak(), DType():
            return b if takes(b, a) else None
    return None


@dataclass(frozen=True, slots=True)
class TypeProblem:
    """A sentence about an ill-typed expression, and a name in it that stands in the text."""

    sentence: str
    token: str = ""


def is_float(value: Type) -> bool:
    """Whether floating-point operators take it; a whole number without a dtype adapts."""
    return isinstance(value, Weak) or value.is_float


def is_integer(value: Type) -> bool:
    """Whether it can be divided with `//` and `%`, and stand in a subscript."""
    return value is Weak.WHOLE or (isinstance(value, DType) and value.is_int)


def is_number(value: Type) -> bool:
    """Whether arithmetic takes it."""
    return value is not DType.BOOL


_OPERANDS: dict[str, tuple[Callable[[Type], bool], str]] = {
    "arith": (is_number, "numbers"),
    "float": (is_float, "floats"),
    "integer": (is_integer, "integers"),
    "compare": (is_number, "numbers"),
    "logic": (lambda value: value is DType.BOOL, "conditions"),
}
"""What the operands of each typing of `ops.Op` must be."""


class _Inference:
    """Types one expression from the leaves up and collects what is wrong with it."""

    def __init__(self, dtypes: Mapping[str, DType]) -> None:
        self.dtypes = dtypes
        self.problems: list[TypeProblem] = []

    def refuse(self, expr: Expr, sentence: str) -> None:
        self.problems.append(TypeProblem(f"{show_expression(expr)}: {sentence}", _token(expr)))

    def type(self, expr: Expr) -> Type | None:
        """The type of `expr`, or None where it has none; why is in `problems`."""
        match expr:
            case Const(bool()):
                return DType.BOOL
            case Const(value):
                return Weak.WHOLE if isinstance(value, int) else Weak.FRACTION
            case Index():
                return Weak.WHOLE
            case Access(tensor, subscripts):
                self.subscripts(expr, subscripts)
                return self.dtypes.get(tensor)
            case Cast(dtype, value):
                return dtype if self.type(value) is not None else None
            case Call():
                return self.call(expr)

    def subscripts(self, access: Access, subscripts: tuple[Expr, ...]) -> None:
        for position, subscript in enumerate(subscripts, 1):
            kind = self.type(subscript)
            if kind is not None and not is_integer(kind):
                self.refuse(access, f"subscript {position} is {kind}, but a subscript is an integer")
            if kind is DType.I8 and isinstance(subscript, Call):
                # Bounds are proved over the integers, and i8 arithmetic wraps at 128.
                self.refuse(access, f"subscript {position} computes in i8, which wraps; cast to i32 or i64 first")

    def call(self, expr: Call) -> Type | None:
        typing = OPS[expr.op].typing
        types = [self.type(arg) for arg in expr.args]
        known = [kind for kind in types if kind is not None]
        if len(known) < len(types):
            return None
        if typing == "select":
            if known[0] is not DType.BOOL:
                self.refuse(expr, f"select chooses by a condition, not by {known[0]}")
            known = known[1:]
        else:
            accepts, wanted = _OPERANDS[typing]
            wrong = next((kind for kind in known if not accepts(kind)), None)
            if wrong is not None:
                self.refuse(expr, f"{OPS[expr.op].symbol or expr.op} takes {wanted}, not {wrong}")
                return None
        result = unify(known[0], known[-1])
        if result is None:
            self.refuse(expr, f"{known[0]} meets {known[1]}; cast one of them")
            return None
        if typing == "compare":
            return DType.BOOL
        return Weak.FRACTION if typing == "float" and result is Weak.WHOLE else result


def _token(expr: Expr) -> str:
    match expr:
        case Access(tensor):
            return tensor
        case Index(name):
            return name
        case Call(_, args):
            return next((token for arg in args if (token := _token(arg))), "")
        case Cast(_, value):
            return _token(value)
    return ""


@functools.lru_cache(maxsize=16384)
def type_problems(equation: Equation, dtypes: tuple[tuple[str, DType], ...]) -> tuple[TypeProblem, ...]:
    """Return what is ill-typed in an equation. `dtypes` has those of its tensors that are declared."""
    inference = _Inference(dict(dtypes))
    target, value = inference.type(equation.target), inference.type(equation.value)
    name = equation.target.tensor
    if isinstance(target, DType):
        if target is DType.BOOL and equation.assign is not Assign.SET:
            sentence = f"{equation.assign} accumulates numbers, but {name} is bool"
            inference.problems.append(TypeProblem(sentence, name))
        elif value is not None and not takes(target, value):
            sentence = f"{name} is {target}, but the right side is {value}; cast it"
            inference.problems.append(TypeProblem(sentence, name))
    for condition in equation.guard:
        kind = inference.type(condition)
        if kind is not None and kind is not DType.BOOL:
            inference.refuse(condition, f"a guard is a condition, not {kind}")
    return tuple(inference.problems)
