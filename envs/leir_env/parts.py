"""Parts of equations: the sub-expressions of right sides, when they are evaluated, and stages that compute one apart.

Parts are numbered in the order of the text, parents first; subscripts are left alone, and so is what has no
numeric dtype of its own (a literal adapts to what it meets, a condition chooses).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from envs.leir_env.affine import is_quasi_affine
from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Cast,
    Const,
    DType,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Scope,
    Tensor,
    children,
    with_children,
)
from envs.leir_env.limits import MAX_EQUATIONS, MAX_FLOPS, MAX_PROGRAM_BYTES, MAX_TEMPORARY_BYTES
from envs.leir_env.ops import OPS
from envs.leir_env.proofs import out_of_bounds
from envs.leir_env.simplify import is_index_expression
from envs.leir_env.tree import Node, Path, accesses, declarations, indices, nest, reads, substitute, update_block, walk
from envs.leir_env.verify import flops_of

Conditions = tuple[Expr, ...]
Dtypes = tuple[tuple[str, DType], ...]
Tensors = Mapping[str, tuple[Tensor, Path]]
"""The declarations of a program."""

_GIVEN = (Role.INPUT, Role.PARAMETER)
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def dtype_of(expr: Expr, dtypes: Mapping[str, DType]) -> DType | None:
    """The dtype of a well-typed expression; None if it only adapts to what it meets."""
    match expr:
        case Access(tensor):
            return dtypes[tensor]
        case Cast(dtype):
            return dtype
        case Call(op, args):
            if OPS[op].typing in ("compare", "logic"):
                return DType.BOOL
            operands = args[1:] if op == "select" else args
            return next((found for arg in operands if (found := dtype_of(arg, dtypes)) is not None), None)
    return None


def equation_of(node: Node) -> Equation:
    """The equation at a node that holds one."""
    assert isinstance(node.statement, Equation)
    return node.statement


def parts(declared: Tensors, equation: Equation) -> tuple[Expr, ...]:
    """The parts of a right side, the whole included, each once."""
    used = dict.fromkeys(access.tensor for access in reads(equation))
    return _parts(equation.value, tuple((name, declared[name][0].dtype) for name in used))


@functools.lru_cache(maxsize=16384)
def _parts(value: Expr, dtypes: Dtypes) -> tuple[Expr, ...]:
    known = dict(dtypes)
    return tuple(
        part
        for part in dict.fromkeys(evaluated(value))
        if isinstance(part, Call | Cast) and dtype_of(part, known) not in (None, DType.BOOL)
    )


def evaluated(expr: Expr) -> Iterator[Expr]:
    """Yield `expr` and what it is computed from, parents first, without subscripts."""
    yield expr
    for child in () if isinstance(expr, Access) else children(expr):
        yield from evaluated(child)


@functools.lru_cache(maxsize=16384)
def flops(expr: Expr) -> int:
    """Operations of one evaluation, by the table of operators."""
    return sum(OPS[e.op].flops for e in evaluated(expr) if isinstance(e, Call))


@functools.lru_cache(maxsize=16384)
def skeleton(expr: Expr) -> Expr:
    """An expression with all its indices alike."""
    return substitute(expr, dict.fromkeys(indices(expr), Index("e")))


def replaced(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """Replace parts of an expression."""
    if expr in values:
        return values[expr]
    if isinstance(expr, Access):
        return expr
    below = children(expr)
    new = tuple(replaced(child, values) for child in below)
    return expr if new == below else with_children(expr, new)


@functools.lru_cache(maxsize=16384)
def evaluations(equation: Equation, part: Expr) -> tuple[Conditions, ...]:
    """The conditions under which each occurrence of `part` in a right side is evaluated: guard and selects."""
    return tuple(_evaluations(equation.value, part, equation.guard))


def _evaluations(expr: Expr, part: Expr, known: Conditions) -> Iterator[Conditions]:
    if expr == part:
        yield known
    elif isinstance(expr, Call) and expr.op == "select":
        condition, chosen, other = expr.args
        yield from _evaluations(condition, part, known)
        yield from _evaluations(chosen, part, (*known, *_conjuncts(condition)))
        yield from _evaluations(other, part, (*known, *_refuted(condition)))
    elif not isinstance(expr, Access):
        for child in children(expr):
            yield from _evaluations(child, part, known)


def _conjuncts(condition: Expr) -> Conditions:
    if isinstance(condition, Call) and condition.op == "and":
        return tuple(part for arg in condition.args for part in _conjuncts(arg))
    return (condition,)


def _refuted(condition: Expr) -> Conditions:
    """What holds where `condition` does not. Comparisons of floats are not turned round: both fail for nan."""
    match condition:
        case Call("or", args):
            return tuple(part for arg in args for part in _refuted(arg))
        case Call("not", (inner,)):
            return _conjuncts(inner)
        case Call(op, args) if op in _NEGATED and all(map(is_index_expression, args)):
            return (Call(_NEGATED[op], args),)
    return (Call("not", (condition,)),)


def contracted(equation: Equation, part: Expr) -> bool:
    """Is `part` the product in `x += a*b`, which is rounded together with the sum where it stands?"""
    if equation.assign is not Assign.ADD:
        return False
    value = equation.value
    inner = value.args[0] if isinstance(value, Call) and value.op == "neg" else value
    return part in (value, inner) and isinstance(inner, Call) and inner.op == "mul"


@functools.lru_cache(maxsize=4096)
def _totals(program: Program) -> tuple[int, int, int]:
    """Equations, bytes of all tensors and operations of one run."""
    placed = [(node, equation_of(node)) for node in walk(program) if isinstance(node.statement, Equation)]
    nbytes = sum(tensor.nbytes for tensor, _ in declarations(program).values())
    return len(placed), nbytes, sum(flops_of(e) * math.prod(node.extents.values()) for node, e in placed)


def no_room(program: Program, equations: int = 0, nbytes: int = 0, operations: int = 0) -> str | None:
    """Say which limit of a program's size is exceeded with so much more in it; the bytes are those of one temporary."""
    if nbytes > MAX_TEMPORARY_BYTES:
        return f"a temporary of {nbytes:,} bytes is needed; the limit is {MAX_TEMPORARY_BYTES:,}"
    more = (equations, nbytes, operations)
    for now, new, most, noun in zip(_totals(program), more, _LIMITS, _COUNTED, strict=True):
        if now + new > most:
            return f"the program would have {now + new:,} {noun}; the limit is {most:,.0f}"
    return None


_LIMITS = (MAX_EQUATIONS, MAX_PROGRAM_BYTES, MAX_FLOPS)
_COUNTED = ("equations", "bytes of tensors", "operations")


@dataclass(frozen=True, slots=True)
class Stage:
    """A part computed by itself: `loops` around `target = part if guard`, before the statement at `path`."""

    path: Path
    loops: tuple[Loop, ...]
    tensor: Tensor
    """The temporary for its values, still without a name."""
    part: Expr
    guard: Conditions

    @property
    def needs(self) -> frozenset[str]:
        """The tensors that it reads."""
        return frozenset(access.tensor for expr in (self.part, *self.guard) for access in accesses(expr))

    def element(self, name: str) -> Access:
        """The value at the current iteration."""
        return Access(name, tuple(Index(loop.index) for loop in self.loops))

    @property
    def operations(self) -> int:
        """Those of one execution of the block it stands in."""
        return self.tensor.size * max(1, sum(flops(expr) for expr in (self.part, *self.guard)))

    def inserted(self, program: Program, name: str) -> Program:
        """The program with the stage and its tensor, called `name`, added."""
        equation = Equation(self.element(name), Assign.SET, self.part, self.guard)
        position = self.path[-1]

        def change(block: Block) -> Block:
            body = (*block.body[:position], nest(self.loops, Block((equation,))), *block.body[position:])
            return Block(body, (*block.tensors, replace(self.tensor, name=name)))

        return update_block(program, self.path[:-1], change)


def stage(declared: Tensors, node: Node, depth: int, part: Expr) -> Stage | str:
    """Plan to compute a part of the equation at `node` before the statement `depth` loops in, or say why not.

    The stage runs over the loops that the part depends on. It is guarded where the part can't be evaluated
    for all their iterations. Whether what it reads is the same there is for the caller to ask.
    """
    for loop in node.loops[:depth]:
        if loop.kind is Kind.VECTOR:
            return f"a tensor declared inside V_{loop.index} would be shared by its lanes"
    guard = _guard(declared, node, part)
    if guard is None:
        return "without the conditions around it, it may read what does not exist"
    used = frozenset().union(*map(indices, (part, *guard)))
    loops = tuple(
        replace(loop, kind=Kind.SERIAL) if loop.kind is Kind.UNROLLED else loop
        for loop in node.loops[depth:]
        if loop.index in used
    )
    for loop in node.loops[depth:]:
        if loop.kind is Kind.BOUND and (depth or loop.index not in used):
            return f"its stage would stand outside {loop.index}, which is bound to {loop.axis}"
    dtype = dtype_of(part, {name: tensor.dtype for name, (tensor, _) in declared.items()})
    assert dtype is not None
    scope = Scope.LOCAL if depth else Scope.GLOBAL
    tensor = Tensor("", dtype, tuple(loop.extent for loop in loops), scope)
    return Stage(node.path[: depth + 1], loops, tensor, part, guard)


def _guard(declared: Tensors, node: Node, part: Expr) -> Conditions | None:
    """A guard under which `part` can be evaluated: none if possible, or what holds wherever it is evaluated now."""
    equation = equation_of(node)
    now = evaluations(equation, part)
    common = tuple(condition for condition in now[0] if all(condition in known for known in now))
    if not common and common in now:
        return ()
    total = not _partial(part) and _given(declared, part)
    if total and _in_bounds(declared, node, part, ()):
        return ()
    # A condition of a guard is evaluated whatever the others say; these are so already.
    free = equation.guard or now[0][:1]
    plain = all(condition in free or _given(declared, condition) for condition in common)
    return common if plain and (total or common in now) and _in_bounds(declared, node, part, common) else None


def _given(declared: Tensors, expr: Expr) -> bool:
    """Is all that an expression reads passed in by the caller, and so defined everywhere?"""
    return all(declared[access.tensor][0].role in _GIVEN for access in accesses(expr))


def _partial(part: Expr) -> bool:
    """May its evaluation fail for values of data: a division of integers, an indirect subscript?"""
    return any(
        (isinstance(e, Call) and e.op in ("floordiv", "mod") and not (isinstance(e.args[1], Const) and e.args[1].value))
        or (isinstance(e, Access) and not all(map(is_quasi_affine, e.subscripts)))
        for e in evaluated(part)
    )


def _in_bounds(declared: Tensors, node: Node, part: Expr, guard: Conditions) -> bool:
    equation = Equation(Access(""), Assign.SET, part, guard)
    used = frozenset().union(*map(indices, (part, *guard)))
    loops = tuple(sorted((name, extent) for name, extent in node.extents.items() if name in used))
    shapes = tuple((access.tensor, declared[access.tensor][0].shape) for access in reads(equation))
    return not out_of_bounds(equation, loops, (*shapes, ("", ())))
