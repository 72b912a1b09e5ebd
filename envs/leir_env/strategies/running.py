"""Reductions that compute a whole tensor, and maxima that carry their running value.

The form that online reductions build on and recognise is a maximum with an explicit start and update,

    D[i] = -inf
    L_j D[i] = max(D[i],A[i,j])

Its *rows* are the loops around the start, its *steps* the loops from there down to the update.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Const,
    Equation,
    Expr,
    Kind,
    Loop,
    Program,
    Role,
    Scope,
    Tensor,
)
from envs.leir_env.region import Use, covers, region, visited_once
from envs.leir_env.strategies.base import Refusal
from envs.leir_env.strategies.boxes import box_in, localised, outer_extents
from envs.leir_env.strategies.graph import drop_tensor
from envs.leir_env.tree import (
    Node,
    Path,
    accesses,
    at,
    declarations,
    indices,
    loops_below,
    nest,
    reads,
    splice,
    walk,
)

LOWEST = Const(float("-inf"))
"""The maximum of nothing."""


@functools.lru_cache(maxsize=1024)
def equations_of(program: Program) -> tuple[tuple[Node, Equation], ...]:
    """Every equation with its place."""
    return tuple((node, node.statement) for node in walk(program) if isinstance(node.statement, Equation))


@functools.lru_cache(maxsize=4096)
def writers(program: Program, name: str) -> tuple[tuple[Node, Equation], ...]:
    """The equations that assign a tensor."""
    return tuple((node, equation) for node, equation in equations_of(program) if equation.target.tensor == name)


def readers(program: Program, name: str) -> Iterator[tuple[Node, Access]]:
    """Every element of a tensor that is read, and where."""
    for node, equation in equations_of(program):
        for access in reads(equation):
            if access.tensor == name:
                yield node, access


@dataclass(frozen=True, slots=True)
class Reduction:
    """A tensor that one equation accumulates from the identity on, each element within one run of its steps."""

    node: Node
    equation: Equation
    home: int
    """How many loops stand around the declaration."""

    @property
    def summed(self) -> frozenset[str]:
        """The loops over which an element is accumulated."""
        inside = (loop.index for loop in self.node.loops[self.home :] if loop.extent > 1)
        return frozenset(inside) - indices(self.equation.target)


def reduction(program: Program, name: str, assign: Assign) -> Reduction | str:
    """The reduction that computes a tensor, all of it, before anything reads it; or why it is none."""
    found = writers(program, name)
    if len(found) != 1:
        return f"{len(found)} equations assign {name}, need exactly one"
    ((node, equation),) = found
    if equation.assign is not assign:
        return f"{name} is not accumulated by {assign}"
    tensor, home = declarations(program)[name]
    spatial = tuple(loop for loop in node.loops[len(home) :] if loop.index in indices(equation.target))
    outer = {loop.index: loop.extent for loop in (*node.loops[: len(home)], *spatial)}
    box = region(tensor, (Use(equation.target, equation, True, node.extents),), outer)
    if isinstance(box, str) or not visited_once(box, spatial) or not covers(box, spatial):
        return f"its subscripts do not run over the whole of {name}, each element once"
    for other, access in readers(program, name):
        if other.path <= node.path:
            return f"{name} is read before it is complete"
        shared = {loop.index for loop in node.loops[len(home) : common(node.path, other.path)]}
        for mine, theirs in zip(equation.target.subscripts, access.subscripts, strict=True):
            if mine != theirs and not shared.isdisjoint(indices(mine)):
                return f"{name} is read in another iteration than the one that computes it"
    return Reduction(node, equation, len(home))


def common(first: Path, second: Path) -> int:
    """How many loops stand around both statements."""
    depth = 0
    while depth < min(len(first), len(second)) - 1 and first[depth] == second[depth]:
        depth += 1
    return depth


@dataclass(frozen=True, slots=True)
class Running:
    """A maximum with an explicit start and an update in the loops below it."""

    maximum: Access
    term: Expr
    """What the maximum is taken of."""
    guard: tuple[Expr, ...]
    block: Path
    """The loop whose block holds the start (empty: the header's block)."""
    position: int
    """Where the outermost of the steps stands in that block."""
    update: Node
    previous: Access | None
    """A copy of the maximum before the update, where the steps keep one."""

    @property
    def rows(self) -> tuple[Loop, ...]:
        return self.update.loops[: len(self.block)]

    @property
    def steps(self) -> tuple[Loop, ...]:
        return self.update.loops[len(self.block) :]

    @property
    def inner(self) -> Path:
        """The innermost of the steps."""
        return self.update.path[:-1]


@functools.lru_cache(maxsize=4096)
def running(program: Program, name: str) -> Running | None:
    """The running maximum that computes a tensor, or None if it is computed in another way."""
    found = writers(program, name)
    if len(found) != 2:
        return None
    (start, first), (update, second) = found
    block, target = start.path[:-1], first.target
    if (first.assign, first.value, second.assign) != (Assign.SET, LOWEST, Assign.SET):
        return None
    if first.guard != tails(program, target, second.guard):
        return None
    match second.value:
        case Call("max", (old, term)) if old == target == second.target and name not in {
            a.tensor for a in accesses(term)
        }:
            pass
        case _:
            return None
    inside = update.path[: len(block)] == block and update.path[len(block)] > start.path[-1]
    steps = update.loops[len(block) :]
    if not inside or not steps or any(len(s.block.body) != 1 or s.block.tensors for s in steps[:-1]):
        return None
    private = {tensor.name for tensor in steps[-1].block.tensors}
    previous = next(
        (
            s.target
            for s in steps[-1].block.body[: update.path[-1]]
            if isinstance(s, Equation) and s.assign is Assign.SET and s.value == target and s.target.tensor in private
        ),
        None,
    )
    return Running(target, term, second.guard, block, update.path[len(block)], update, previous)


def is_maximum(program: Program, name: str) -> bool:
    """Is a tensor computed as a maximum, plain or running?"""
    return [e.assign for _, e in writers(program, name)] == [Assign.MAX] or running(program, name) is not None


def explicit(program: Program, name: str) -> Program | Refusal:
    """Give a maximum that starts implicitly an explicit start and update."""
    what = f"the maximum {name}"
    found = reduction(program, name, Assign.MAX)
    if isinstance(found, str):
        return Refusal("structure", f"{what}: {found}")
    node, equation = found.node, found.equation
    if not declarations(program)[name][0].dtype.is_float:
        return Refusal("structure", f"{what}: its elements are not floats")
    depth = len(node.loops)
    while depth > found.home and node.loops[depth - 1].index not in indices(equation.target):
        depth -= 1
    steps = node.loops[depth:]
    alone = all(len(step.block.body) == 1 and not step.block.tensors for step in steps)
    if not steps or not alone or not found.summed <= {step.index for step in steps}:
        return Refusal("structure", f"{what}: its equation is not alone in reduction loops inside all others")
    wrong = wrong_kind(what, node.loops[:depth], steps)
    if wrong is not None:
        return wrong
    start = Equation(equation.target, Assign.SET, LOWEST, tails(program, equation.target, equation.guard))
    update = Equation(equation.target, Assign.SET, Call("max", (equation.target, equation.value)), equation.guard)
    return splice(program, node.path[: depth + 1], (start, nest(steps, Block((update,)))))


def tails(program: Program, access: Access, guard: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The conditions without which an element would lie beyond the end of its tensor."""
    shape = declarations(program)[access.tensor][0].shape
    ends = {Call("lt", (s, Const(extent))) for s, extent in zip(access.subscripts, shape, strict=True)}
    return tuple(condition for condition in guard if condition in ends)


def wrong_kind(what: str, rows: tuple[Loop, ...], steps: tuple[Loop, ...]) -> Refusal | None:
    """Steps run in order, and rows can hold statements and private tensors."""
    for loop in steps:
        if loop.kind is not Kind.SERIAL:
            return Refusal("kind", f"{what}: {loop.kind}_{loop.index} must be serial to carry a running value")
    for loop in rows:
        if loop.kind in (Kind.VECTOR, Kind.UNROLLED):
            return Refusal("kind", f"{what}: {loop.kind}_{loop.index} can't hold a running value and its loop")
    return None


def private(program: Program, name: str) -> Program:
    """Declare what one row of a running maximum keeps in the row's block, as a scalar, if nothing else uses it."""
    tensor, home = declarations(program)[name]
    start = writers(program, name)[0][0].path
    block = start[:-1]
    if tensor.role is not Role.TEMPORARY or len(home) == len(block) or not block:
        return program
    touching = [node for node, _ in writers(program, name)] + [node for node, _ in readers(program, name)]
    loop, node = at(program, block), next(node for node in walk(program) if node.path == block)
    assert isinstance(loop, Loop)
    bound = any(other.axis is not None for other in (*node.loops, *loops_below(loop)))
    box = box_in(loop, tensor, node)
    if bound or isinstance(box, str) or box.size > 1 or any(other.path[: len(block)] != block for other in touching):
        return program
    scalar = Tensor(name, tensor.dtype, (), Scope.LOCAL)
    body = localised(loop.block, name, name, box, outer_extents(node, loop))
    inside = replace(loop, block=Block(body, (*loop.block.tensors, scalar)))
    return splice(drop_tensor(program, name), block, (inside,))
