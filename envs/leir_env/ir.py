"""The records of a LEIR program: immutable values, compared and hashed by content.

A program is a header of tensors and a tree of loops and equations. The text form is in
`grammar.lark`; `parse` and `show` convert. Single nodes are checked here, whole programs in
`verify`. After Step-TP (arXiv 2605.25954).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, cast

from envs.leir_env.ops import OPS

MAX_EXPRESSION_DEPTH = 150
"""Deeper expressions are refused at construction, so that no walk over one can exhaust the stack."""

INDEX_NAME = re.compile(r"[a-z][a-z0-9]*")
TENSOR_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")


class Kind(StrEnum):
    """How the iterations of a loop are run. A kind is a promise, never a change of meaning."""

    SERIAL = "L"
    PARALLEL = "P"
    VECTOR = "V"
    UNROLLED = "U"
    BOUND = "B"


class Axis(StrEnum):
    """A GPU axis that a bound loop is mapped to."""

    BX = "bx"
    BY = "by"
    BZ = "bz"
    TX = "tx"
    TY = "ty"
    TZ = "tz"

    @property
    def is_block(self) -> bool:
        return self.value[0] == "b"


class DType(StrEnum):
    """Element types, spelled as in the text."""

    itemsize: int
    """Bytes of one element."""
    is_float: bool
    is_int: bool

    def __new__(cls, value: str) -> DType:
        member = str.__new__(cls, value)
        member._value_ = value
        member.is_float, member.is_int = "f" in value, value[0] == "i"
        member.itemsize = 1 if value == "bool" else int(value.lstrip("bfi")) // 8
        return member

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    I8 = "i8"
    I32 = "i32"
    I64 = "i64"
    BOOL = "bool"


class Scope(StrEnum):
    """Where a tensor lives. The value is the suffix of its dtype in the text."""

    GLOBAL = ""
    SHARED = ".s"
    LOCAL = ".l"


class Role(StrEnum):
    """What a tensor is to the caller; the header lists them in this order."""

    INPUT = "input"
    PARAMETER = "parameter"
    OUTPUT = "output"
    TEMPORARY = "temporary"


_ORDER = {role: position for position, role in enumerate(Role)}


class Assign(StrEnum):
    """The assignment of an equation; all but SET accumulate."""

    SET = "="
    ADD = "+="
    MUL = "*="
    MAX = "max="
    MIN = "min="

    @property
    def op(self) -> str:
        """The binary operator (a key of OPS) that an accumulation repeats."""
        return {"+=": "add", "*=": "mul", "max=": "max", "min=": "min"}[self.value]


IDENTITY: dict[Assign, float] = {
    Assign.ADD: 0.0,
    Assign.MUL: 1.0,
    Assign.MAX: float("-inf"),
    Assign.MIN: float("inf"),
}
"""What an implicitly started reduction holds before its first term."""


def identity(assign: Assign, dtype: DType) -> float | int | bool:
    """Return the identity of an accumulation in `dtype` (integers use their own extremes)."""
    value = IDENTITY[assign]
    if dtype is DType.BOOL:
        return value > 0
    if dtype.is_int:
        bits = 8 * dtype.itemsize - 1
        return int(max(-(2.0**bits), min(value, 2.0**bits))) - (value == float("inf"))
    return value


class ExpressionTooDeep(ValueError):
    """An expression is nested beyond MAX_EXPRESSION_DEPTH."""


class _Hashed:
    """Pickles by its fields: Python salts the hash of a text, so a cached one is good in one process only."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        names = (item.name for item in fields(cast(Any, self)) if item.init)
        return type(self), tuple(getattr(self, name) for name in names)


@dataclass(frozen=True, slots=True)
class Const:
    """A literal. Python `int` and `float` are weak: they take the dtype of what they meet."""

    value: int | float | bool

    depth = 1

    def __post_init__(self) -> None:
        if self.value != self.value:
            raise ValueError("a constant can't be nan")

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and True are different constants, and so are 0.0 and -0.0.
        if not isinstance(other, Const) or type(self.value) is not type(other.value):
            return False
        return bool(self.value and self.value == other.value) or repr(self.value) == repr(other.value)


@dataclass(frozen=True, slots=True)
class Index:
    """A loop index, in a subscript or as an integer value."""

    name: str

    depth = 1


@dataclass(frozen=True, slots=True)
class Access(_Hashed):
    """An element of a tensor. `subscripts` has one integer expression for each dimension."""

    tensor: str
    subscripts: tuple[Expr, ...] = ()
    depth: int = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _seal(self, self.subscripts, hash((self.tensor, self.subscripts)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Call(_Hashed):
    """An operator of `OPS` applied to its arguments."""

    op: str
    args: tuple[Expr, ...]
    depth: int = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if OPS[self.op].arity != len(self.args):
            raise ValueError(f"{self.op} takes {OPS[self.op].arity} arguments, got {len(self.args)}")
        if self.op == "neg" and isinstance(self.args[0], Const):
            raise ValueError("a negated constant is a constant")
        _seal(self, self.args, hash((self.op, self.args)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Cast(_Hashed):
    """A value converted to `dtype` (float to integer truncates)."""

    dtype: DType
    value: Expr
    depth: int = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _seal(self, (self.value,), hash((self.dtype, self.value)))

    def __hash__(self) -> int:
        return self._hash


Expr = Const | Index | Access | Call | Cast


def _seal(node: Access | Call | Cast, children: tuple[Expr, ...], digest: int) -> None:
    depth = 1 + max([child.depth for child in children], default=0)
    if depth > MAX_EXPRESSION_DEPTH:
        raise ExpressionTooDeep(f"an expression is nested more than {MAX_EXPRESSION_DEPTH} deep")
    object.__setattr__(node, "depth", depth)
    object.__setattr__(node, "_hash", digest)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A declaration: dtype, shape (elements), scope and role."""

    name: str
    dtype: DType
    shape: tuple[int, ...] = ()
    scope: Scope = Scope.GLOBAL
    role: Role = Role.TEMPORARY

    @property
    def size(self) -> int:
        """Elements."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Equation(_Hashed):
    """`target assign value if guard`: the guard is a conjunction, and must hold for the equation to run."""

    target: Access
    assign: Assign
    value: Expr
    guard: tuple[Expr, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if any(isinstance(condition, Call) and condition.op == "and" for condition in self.guard):
            raise ValueError("a guard is a tuple of conditions, none of them an 'and'")
        object.__setattr__(self, "_hash", hash((self.target, self.assign, self.value, self.guard)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Block(_Hashed):
    """Statements in order, and the temporaries that live as long as one execution of them."""

    body: tuple[Statement, ...]
    tensors: tuple[Tensor, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.body, self.tensors)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Loop(_Hashed):
    """`index` runs from 0 to `extent - 1`."""

    kind: Kind
    index: str
    extent: int
    block: Block
    axis: Axis | None = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.kind is Kind.BOUND) != (self.axis is not None):
            raise ValueError(f"loop {self.index}: a bound loop, and no other, names a GPU axis")
        object.__setattr__(self, "_hash", hash((self.kind, self.index, self.extent, self.block, self.axis)))

    def __hash__(self) -> int:
        return self._hash


Statement = Loop | Equation


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program; `block.tensors` holds its inputs, parameters, outputs and top-level temporaries."""

    block: Block

    def __hash__(self) -> int:
        return self.block._hash

    def __post_init__(self) -> None:
        order = [_ORDER[tensor.role] for tensor in self.block.tensors]
        if order != sorted(order):
            raise ValueError("the header declares inputs, parameters, outputs, temporaries, in this order")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The header's tensors, in the order of the text."""
        return self.block.tensors

    @property
    def body(self) -> tuple[Statement, ...]:
        return self.block.body

    def with_role(self, *roles: Role) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role in roles)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Inputs, then parameters: what a caller passes."""
        return self.with_role(Role.INPUT) + self.with_role(Role.PARAMETER)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self.with_role(Role.OUTPUT)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions."""
    return _CHILDREN[type(expr)](expr)


_CHILDREN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    Const: lambda expr: (),
    Index: lambda expr: (),
    Access: attrgetter("subscripts"),
    Call: attrgetter("args"),
    Cast: lambda expr: (expr.value,),
}


def subexpressions(expr: Expr) -> list[Expr]:
    """Return `expr` and everything below it, parents first, left to right."""
    found, stack = [], [expr]
    while stack:
        node = stack.pop()
        found.append(node)
        if type(node) is not Index and type(node) is not Const:
            stack += children(node)[::-1]
    return found


def with_children(expr: Expr, new: tuple[Expr, ...]) -> Expr:
    """Return `expr` with its direct sub-expressions replaced."""
    match expr:
        case Access():
            return Access(expr.tensor, new)
        case Call("neg") if isinstance(new[0], Const):
            return Const(-new[0].value)
        case Call():
            return Call(expr.op, new)
        case Cast():
            return Cast(expr.dtype, new[0])
    return expr


def with_block(loop: Loop, block: Block) -> Loop:
    """Return `loop` with another block."""
    return Loop(loop.kind, loop.index, loop.extent, block, loop.axis)


def with_body(loop: Loop, body: tuple[Statement, ...]) -> Loop:
    """Return `loop` with other statements in its block."""
    return with_block(loop, Block(body, loop.block.tensors))


def with_kind(loop: Loop, kind: Kind) -> Loop:
    """Return `loop` as one of another kind that is bound to no axis."""
    return Loop(kind, loop.index, loop.extent, loop.block)
