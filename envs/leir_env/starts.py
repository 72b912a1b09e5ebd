"""Where a reduction that starts implicitly is given its initial value.

The meaning of LEIR writes it when the block that declares the tensor is entered. That costs a pass over
the whole tensor, so the write sinks into the loops around the first use, as long as each iteration of such a
loop touches only its own slice of the tensor: in `L_i,j,k C[i,j] += ...` to just before `L_k`. Later
statements find every slice written.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envs.leir_env.affine import Affine, affine
from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Const,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Statement,
    Tensor,
    subexpressions,
)
from envs.leir_env.tree import Path, accesses, equations, expressions, loops_below


@dataclass(frozen=True, slots=True)
class Start:
    """The initial value of `tensor`, written over `loops` to `subscripts`; outer loops fix the rest."""

    tensor: Tensor
    assign: Assign
    """The accumulation whose identity is written."""
    loops: tuple[Loop, ...] = ()
    """Loops of the first accumulation that enumerate the elements still free (their bodies are ignored)."""
    subscripts: tuple[Expr, ...] | None = None
    """None: every element of the tensor, in order."""
    guard: tuple[Expr, ...] = ()
    """Keeps ragged digits within the shape."""


@dataclass(frozen=True, slots=True)
class _Digit:
    """A loop index within a subscript: it counts in steps of `weight`, `extent` times."""

    dimension: int
    weight: int
    extent: int


@functools.lru_cache(maxsize=1024)
def starts(program: Program) -> Mapping[Path, tuple[Start, ...]]:
    """What to write just before the statement at each path, in order of declaration."""
    found: dict[Path, list[Start]] = {}

    def visit(block: Block, path: Path) -> None:
        for tensor in block.tensors:
            if tensor.role in (Role.OUTPUT, Role.TEMPORARY):
                first = _first_equation(block, path, tensor.name)
                if first is not None and first[0].assign is not Assign.SET:
                    place, start = _sink(block, path, tensor, *first)
                    found.setdefault(place, []).append(start)
        for position, child in enumerate(block.body):
            if isinstance(child, Loop):
                visit(child.block, (*path, position))

    visit(program.block, ())
    return {path: tuple(entries) for path, entries in found.items()}


def _first_equation(block: Block, path: Path, name: str) -> tuple[Equation, tuple[Loop, ...]] | None:
    """The first equation that assigns the tensor, and the loops around it inside the block."""

    def visit(statement: Statement, loops: tuple[Loop, ...]) -> Iterator[tuple[Equation, tuple[Loop, ...]]]:
        if isinstance(statement, Loop):
            for child in statement.block.body:
                yield from visit(child, (*loops, statement))
        elif statement.target.tensor == name:
            yield statement, loops

    return next((found for statement in block.body for found in visit(statement, ())), None)


def _sink(block: Block, path: Path, tensor: Tensor, equation: Equation, loops: tuple[Loop, ...]) -> tuple[Path, Start]:
    """Find the innermost legal place for the initial value of `tensor`, declared in `block` at `path`."""
    digits = _digits(equation.target, tensor, {loop.index: loop.extent for loop in loops})
    if digits is None:
        return (*path, _first_user(block, tensor.name)), Start(tensor, equation.assign)
    fixed: set[str] = set()
    while True:
        position = _first_user(block, tensor.name)
        statement = block.body[position]
        path = (*path, position)
        if not isinstance(statement, Loop) or _may_be_cut(statement):
            break
        if statement.extent > 1 and not _private(statement, tensor.name, digits.get(statement.index)):
            break
        fixed.add(statement.index)
        block = statement.block
    free = tuple(loop for loop in loops if loop.index in digits and loop.index not in fixed)
    return path, Start(
        tensor, equation.assign, free, equation.target.subscripts, _ragged(equation.target, tensor, digits)
    )


def _may_be_cut(loop: Loop) -> bool:
    """Do guards name its lanes? Then lanes that they exclude may never be run (`tails`), and write no start."""
    return loop.kind in (Kind.VECTOR, Kind.UNROLLED) and any(
        Index(loop.index) in subexpressions(condition) for equation in equations(loop) for condition in equation.guard
    )


def _first_user(block: Block, name: str) -> int:
    """The position of the first statement of the block that touches the tensor."""
    touches = (any(True for _ in _accesses(statement, name)) for statement in block.body)
    return next(position for position, touched in enumerate(touches) if touched)


def _accesses(statement: Statement, name: str) -> Iterator[Access]:
    for equation in equations(statement):
        for expr in expressions(equation):
            for access in accesses(expr):
                if access.tensor == name:
                    yield access


def _digits(target: Access, tensor: Tensor, extents: Mapping[str, int]) -> dict[str, _Digit] | None:
    """Read the subscripts as numbers in mixed radix, the digits loop indices, which cover the shape."""
    digits: dict[str, _Digit] = {}
    for dimension, (subscript, size) in enumerate(zip(target.subscripts, tensor.shape, strict=True)):
        form = affine(subscript)
        if form is None or form.constant:
            return None
        radix = 1
        for name, weight in sorted(form.terms, key=lambda term: (term[1], extents.get(term[0], 0))):
            if weight != radix or name not in extents or name in digits:
                return None
            digits[name] = _Digit(dimension, weight, extents[name])
            radix *= extents[name]
        if radix < size:
            return None
    return digits


def _ragged(target: Access, tensor: Tensor, digits: Mapping[str, _Digit]) -> tuple[Expr, ...]:
    """Conditions for the dimensions whose digits count beyond the extent."""
    reach = [1] * len(tensor.shape)
    for digit in digits.values():
        reach[digit.dimension] *= digit.extent
    return tuple(
        Call("lt", (subscript, Const(size)))
        for subscript, size, most in zip(target.subscripts, tensor.shape, reach, strict=True)
        if most > size
    )


def _private(loop: Loop, name: str, digit: _Digit | None) -> bool:
    """Does each iteration of the loop touch only the elements whose digit is its own index?"""
    extents = {inner.index: inner.extent for inner in loops_below(loop)}
    return digit is not None and all(_digit_is(access, loop.index, digit, extents) for access in _accesses(loop, name))


def _digit_is(access: Access, index: str, digit: _Digit, extents: Mapping[str, int]) -> bool:
    form = affine(access.subscripts[digit.dimension])
    if form is None or form.coefficient(index) != digit.weight:
        return False
    span = digit.weight * digit.extent
    rest = tuple((name, weight) for name, weight in form.terms if name != index and weight % span)
    lower = Affine(rest, form.constant)
    if not lower.names <= extents.keys():
        return False
    low, high = lower.interval(extents)
    return low >= 0 and high < digit.weight
