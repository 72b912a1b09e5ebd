"""Strategies on the range of a loop: cut an operator in two, pad a loop."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from envs.leir_env.affine import affine
from envs.leir_env.ir import (
    Access,
    Block,
    Call,
    Const,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Statement,
    subexpressions,
)
from envs.leir_env.legality import written
from envs.leir_env.limits import VECTOR_WIDTHS
from envs.leir_env.parts import no_room
from envs.leir_env.simplify import rewrite
from envs.leir_env.strategies.base import Level, Outcome, Parameter, Refusal, Strategy, counted, nests, register
from envs.leir_env.strategies.loops import Args, Site, loop_at, loop_sites, reordered, stray_guard
from envs.leir_env.tree import (
    Node,
    Path,
    equations,
    expressions,
    fresh_index,
    fresh_tensor,
    loops_below,
    map_accesses,
    map_expressions,
    nest,
    splice,
    walk,
)
from envs.leir_env.verify import RULES, flops_of

MENU_CUTS = 4
"""Places at which the menu offers to cut a loop."""


def _part(program: Program, node: Node, loop: Loop, start: int, extent: int) -> Loop:
    """The iterations of a loop from `start` on, `extent` of them, as a loop from 0 on.

    It keeps its name where no other loop of `program` uses it for another extent.
    """
    aside = replace(loop, index="e0")
    name = fresh_index(program, loop.index, extent, Node(node.path, aside, node.loops))
    value: Expr = Call("add", (Const(start), Index(name))) if start else Index(name)
    around = {**node.extents, name: extent}
    body = tuple(rewrite(child, {loop.index: value}, around) for child in loop.block.body)
    return replace(loop, index=name, extent=extent, block=Block(body, loop.block.tensors))


def _without(program: Program, node: Node, loop: Loop, *parts: Loop) -> Program:
    """The program with a loop under a name that clashes with nothing, after `parts` of it."""
    return splice(program, node.path, (*parts, replace(loop, index="e0")))


@register
class TensorSplit(Strategy):
    """Cut an operator in two along a loop: one for the first `at` iterations, one for the rest.

    Each works on its slice of the tensors where they are, so nothing is copied. Along a spatial loop the two are
    independent; along a reduction the second goes on accumulating where the first stopped.

    Requires:
        1. 1 <= at < extent; both parts of a vector loop have a vector width, and no equation drops out of one.
        2. The loops that hold nothing but this one are repeated around both parts: every dependence still points
           forward. If any of them is bound, these are all the loops around.

    Rewrite:
        L_i,j C[i,j] = A[i,j]   ->   L_i,j C[i,j] = A[i,j]
                                     L_i,j2 C[i,j2+16] = A[i,j2+16]
    """

    name = "tensor_split_to_decouple_operators"
    level = Level.GRAPH
    menu = 128
    site_kinds = ("loop",)
    parameters = (Parameter("at", "iterations of the first operator"),)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node, loop in loop_sites(program):
            for cut in _cuts(loop, not node.loops):
                yield (site,), (str(cut),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node, loop = loop_at(program, site[0])
        cut = int(args[0])
        where = f"cut {site[0]} at {cut}"
        if cut >= loop.extent:
            return Refusal("extent", f"{where}: it has {counted(loop.extent, 'iteration')}")
        verdict = _judged(nests(program)[node.path[0]], (0, *node.path[1:]), cut)
        if verdict is not None:
            return replace(verdict, sentence=f"{where}: {verdict.sentence}")
        reason = no_room(program, sum(1 for _ in equations(loop)))
        return None if reason is None else Refusal("size", f"{where}: {reason}")

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        before, after = _cut(program, *loop_at(program, site[0]), int(args[0]))
        exactness = reordered(before, after)
        assert not isinstance(exactness, Refusal)
        return Outcome(after, exactness)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        _, loop = loop_at(program, site[0])
        names = ", ".join(sorted(written(loop)))
        return (
            f"Cut {site[0]} of {loop.extent} iterations at {args[0]}: the operators for {names} over {args[0]} and "
            f"{loop.extent - int(args[0])} iterations can be scheduled apart, with tiles and conditions of their own."
        )


def _cut(program: Program, node: Node, loop: Loop, at: int) -> tuple[Program, Program]:
    """The program with the loop cut where it stands, which changes no order, and with two nests of it."""
    first = _part(_without(program, node, loop), node, loop, 0, at)
    second = _part(_without(program, node, loop, first), node, loop, at, loop.extent - at)
    parts = (first, _with_own_tensors(program, second))
    around = _around(node)
    path = node.path[: len(node.path) - len(around)]
    apart = tuple(nest((*around, part), part.block) for part in parts)
    return splice(program, node.path, parts), splice(program, path, apart)


@functools.lru_cache(maxsize=16384)
def _judged(alone: Program, path: Path, cut: int) -> Refusal | None:
    """Why the loop at `path` in the only nest of a program can't be cut."""
    node = next(node for node in walk(alone) if node.path == path)
    loop = node.statement
    assert isinstance(loop, Loop)
    rest = loop.extent - cut
    if loop.kind is Kind.VECTOR and not {cut, rest} <= set(VECTOR_WIDTHS):
        return Refusal("kind", f"{cut} and {rest} are not both vector widths")
    around = _around(node)
    for outer in (*around, loop):
        if outer.kind is Kind.BOUND and len(around) < len(node.loops):
            return Refusal("kind", f"{outer.index}, bound to {outer.axis}, is part of a larger kernel")
    before, after = _cut(alone, node, loop, cut)
    idle = next((e for statement in after.body for e in equations(statement) if Const(False) in e.guard), None)
    if idle is not None:
        return Refusal("no_effect", f"one part would never assign {idle.target.tensor}")
    verdict = reordered(before, after)
    if isinstance(verdict, Refusal):
        return verdict
    broken = next(RULES["kind"].check(after, "cuda"), None)
    return None if broken is None else Refusal("size", broken[0])


@functools.lru_cache(maxsize=4096)
def _cuts(loop: Loop, outermost: bool) -> tuple[int, ...]:
    """Where cutting may pay: where a condition changes, where vectors cease to fit, an outermost loop in the middle."""
    extent = loop.extent
    tail = next((extent - extent % width for width in (16, 8, 4) if extent > width and extent % width), 0)
    middle = extent // 2 // 8 * 8 if extent >= 32 else extent // 2 if extent >= 4 else 0
    found = dict.fromkeys((*_bounds(loop), *([middle] if outermost else []), tail))
    cuts = [cut for cut in found if 0 < cut < extent]
    if loop.kind is Kind.VECTOR:
        cuts = [cut for cut in cuts if {cut, extent - cut} <= set(VECTOR_WIDTHS)]
    return tuple(cuts[:MENU_CUTS])


def _bounds(loop: Loop) -> Iterator[int]:
    """The values of the index at which a comparison with a constant changes."""
    for expr in dict.fromkeys(expr for equation in equations(loop) for expr in _comparisons(equation)):
        left, right = (affine(arg) for arg in expr.args)
        if left and right and (left - right).terms == ((loop.index, 1),):
            value = -(left - right).constant
            yield value + (expr.op in ("le", "gt"))


@functools.lru_cache(maxsize=16384)
def _comparisons(equation: Equation) -> tuple[Call, ...]:
    """The inequalities in an equation."""
    every = (expr for top in expressions(equation) for expr in subexpressions(top))
    return tuple(expr for expr in every if isinstance(expr, Call) and expr.op in ("lt", "le", "gt", "ge"))


def _around(node: Node) -> tuple[Loop, ...]:
    """The loops directly around a loop that hold nothing but the next, from the outside in."""
    found: list[Loop] = []
    for loop in reversed(node.loops):
        if len(loop.block.body) > 1 or loop.block.tensors:
            break
        found.append(loop)
    return tuple(reversed(found))


def _with_own_tensors(program: Program, loop: Loop) -> Loop:
    """Name the tensors declared in a second copy of a loop apart from those of the first."""
    names: dict[str, str] = {}
    for inner in loops_below(loop):
        for tensor in inner.block.tensors:
            names[tensor.name] = fresh_tensor(program, set(names.values()))

    def use(access: Access) -> Expr:
        return Access(names.get(access.tensor, access.tensor), access.subscripts)

    def visit(statement: Statement) -> Statement:
        return visit_loop(statement) if isinstance(statement, Loop) else map_expressions(statement, rename)

    def rename(expr: Expr) -> Expr:
        return map_accesses(expr, use)

    def visit_loop(inner: Loop) -> Loop:
        tensors = tuple(replace(tensor, name=names[tensor.name]) for tensor in inner.block.tensors)
        return replace(inner, block=Block(tuple(map(visit, inner.block.body)), tensors))

    return visit_loop(loop) if names else loop


@register
class LoopPadding(Strategy):
    """Extend a loop to a multiple of some number, with a guard, so that splitting it leaves no tail.

    Requires:
        1. The loop is serial or parallel, and the number does not divide its extent.
        2. Fewer iterations are added than there were.
        3. What guards below read exists in the added iterations too, where they are evaluated: inputs at places
           that the loop does not move.

    Rewrite:
        L_i C[i] = A[i] (30 iterations)   ->   L_i C[i] = A[i] if i<30 (32 iterations)
    """

    name = "loop_padding"
    level = Level.OPERATOR
    menu = 128
    site_kinds = ("loop",)
    parameters = (Parameter("multiple", "what shall divide the number of iterations"),)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, _, loop in loop_sites(program):
            if loop.kind in (Kind.SERIAL, Kind.PARALLEL):
                padded = {_padded(loop.extent, multiple): multiple for multiple in (16, 8, 4)}
                for extent, multiple in padded.items():
                    if loop.extent < extent < 2 * loop.extent:
                        yield (site,), (str(multiple),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node, loop = loop_at(program, site[0])
        extent, multiple = loop.extent, int(args[0])
        where = f"pad {site[0]} to a multiple of {multiple}"
        if loop.kind not in (Kind.SERIAL, Kind.PARALLEL):
            return Refusal("kind", f"{where}: a loop of kind {loop.kind} is not padded, only L and P")
        if extent % multiple == 0:
            return Refusal("no_effect", f"{where}: its extent {extent} is one")
        added = _padded(extent, multiple) - extent
        if added >= extent:
            return Refusal("size", f"{where}: {added} idle iterations would be added to {extent}")
        stray = stray_guard(program, loop)
        if stray is not None:
            return Refusal("structure", f"{where}: a guard would read {stray} where it may not exist")
        runs = math.prod(outer.extent for outer in node.loops) * added
        reason = no_room(program, operations=sum(runs * operations for operations in _operations(loop)))
        return None if reason is None else Refusal("size", f"{where}: {reason}")

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node, loop = loop_at(program, site[0])
        wide = _part(_without(program, node, loop), node, loop, 0, _padded(loop.extent, int(args[0])))
        body = tuple(_bounded(child, wide.index, loop.extent) for child in wide.block.body)
        return Outcome(splice(program, node.path, (replace(wide, block=replace(wide.block, body=body)),)))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        _, loop = loop_at(program, site[0])
        extent = _padded(loop.extent, int(args[0]))
        idle = counted(extent - loop.extent, "idle one")
        return (
            f"Pad {site[0]} from {loop.extent} to {extent} iterations, {idle}: as a multiple of {args[0]} it splits "
            f"evenly, so that the inner loop can be vectorised or unrolled."
        )


def _operations(loop: Loop) -> Iterator[int]:
    """Those of each equation in one iteration of a loop, its new guard included."""
    for child in loop.block.body:
        if isinstance(child, Loop):
            yield from (child.extent * operations for operations in _operations(child))
        else:
            yield flops_of(child) + 1


def _padded(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple


def _bounded(statement: Statement, index: str, extent: int) -> Statement:
    """Guard every equation at or below a statement by `index < extent`, unless its guard says so already."""
    if isinstance(statement, Loop):
        body = tuple(_bounded(child, index, extent) for child in statement.block.body)
        return replace(statement, block=replace(statement.block, body=body))
    for condition in statement.guard:
        match condition:
            case Call("lt", (Index(name), Const(bound))) if name == index and bound <= extent:
                return statement
    return replace(statement, guard=(*statement.guard, Call("lt", (Index(index), Const(extent)))))


__all__ = ["LoopPadding", "TensorSplit"]
