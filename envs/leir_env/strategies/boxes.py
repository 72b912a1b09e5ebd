"""Boxes of tensors that loops work on, and private copies of them: what the memory strategies share."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from envs.leir_env import limits
from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Scope,
    Statement,
    Tensor,
)
from envs.leir_env.legality import written
from envs.leir_env.region import Region, Use, covers, region, uses
from envs.leir_env.simplify import linear
from envs.leir_env.strategies.base import Parameter, Refusal
from envs.leir_env.tree import (
    Node,
    Path,
    accesses,
    declarations,
    fresh_index,
    loops_below,
    map_accesses,
    nest,
)

MAX_PRIVATE_BYTES = 8 * 2**20
"""A private copy larger than this is not a cache."""

SCOPES = {"local": Scope.LOCAL, "shared": Scope.SHARED, "global": Scope.GLOBAL}
SCOPE = Parameter("scope", "where it lives", tuple(SCOPES))


def outer_extents(node: Node, loop: Loop) -> dict[str, int]:
    """Extents of the loops around a block: those around its loop, and its own."""
    return {**node.extents, loop.index: loop.extent}


def uses_in(loop: Loop, name: str, node: Node) -> tuple[Use, ...]:
    """Every use of a tensor in the body of a loop."""
    return _uses_in(loop, name, tuple(node.extents.items()))


def box_in(loop: Loop, tensor: Tensor, node: Node) -> Region | str:
    """The part of a tensor that one iteration of a loop uses."""
    return _box_in(loop, tensor, tuple(node.extents.items()))


@functools.lru_cache(maxsize=16384)
def _uses_in(loop: Loop, name: str, around: tuple[tuple[str, int], ...]) -> tuple[Use, ...]:
    outer = {**dict(around), loop.index: loop.extent}
    return tuple(use for child in loop.block.body for use in uses(child, name, outer))


@functools.lru_cache(maxsize=16384)
def _box_in(loop: Loop, tensor: Tensor, around: tuple[tuple[str, int], ...]) -> Region | str:
    box = region(tensor, _uses_in(loop, tensor.name, around), {**dict(around), loop.index: loop.extent})
    if isinstance(box, str):
        return box
    data = {access.tensor for base in box.base for atom, _ in base.terms for access in accesses(atom)}
    changing = sorted(data & written(loop))
    return f"{tensor.name} moves with {changing[0]}, which the loop itself writes" if changing else box


def lanes(node: Node, loop: Loop) -> Refusal | None:
    """Nothing may be declared where vector lanes would share it."""
    for outer in (*node.loops, loop):
        if outer.kind is Kind.VECTOR:
            return Refusal("scope", f"a tensor declared inside V_{outer.index} would be shared by its lanes")
    return None


def scope_refusal(program: Program, node: Node, loop: Loop, scope: Scope, nbytes: int, where: str) -> Refusal | None:
    """Say why a tensor of this scope can't be declared in a loop: blocks share one kind of memory, threads none."""
    around = [outer.axis for outer in (*node.loops, loop) if outer.axis]
    below = [inner for inner in loops_below(loop)[1:] if inner.axis]
    if scope is Scope.SHARED:
        thread = next((axis for axis in around if not axis.is_block), None)
        if thread or not around:
            place = f"inside a loop bound to {thread}" if thread else "outside all block loops"
            return Refusal("scope", f"{where}: {loop.index} stands {place}, where nothing is shared")
        others = sum(tensor.nbytes for tensor, path in declarations(program).values() if _shared(tensor, path, node))
        if others + nbytes > limits.MAX_SHARED_BYTES:
            return Refusal("size", f"{where}: a block would have {others + nbytes:,} bytes of shared tensors")
    block = next((inner for inner in below if inner.axis and inner.axis.is_block), None)
    if block is not None:
        return Refusal("kind", f"{where}: {block.index} is bound to {block.axis} inside, and blocks come outermost")
    if scope is Scope.LOCAL and below:
        return Refusal("scope", f"{where}: the threads of {below[0].index} inside would share it; use shared memory")
    if scope is Scope.GLOBAL and (around or below):
        return Refusal("scope", f"{where}: what a kernel declares is shared or local")
    return None


def _shared(tensor: Tensor, path: Path, node: Node) -> bool:
    return tensor.scope is Scope.SHARED and path[:1] == node.path[:1]


def localised(block: Block, name: str, copy: str, box: Region, inner: Mapping[str, int]) -> tuple[Statement, ...]:
    """The statements of `block` with every access of tensor `name` turned to its private copy."""

    def visit(statement: Statement, extents: Mapping[str, int]) -> Statement:
        if isinstance(statement, Loop):
            below = {**extents, statement.index: statement.extent}
            body = tuple(visit(child, below) for child in statement.block.body)
            return replace(statement, block=replace(statement.block, body=body))

        def change(access: Access) -> Expr:
            return Access(copy, box.local(access, extents)) if access.tensor == name else access

        target = map_accesses(statement.target, change)
        assert isinstance(target, Access)
        guard = tuple(map_accesses(condition, change) for condition in statement.guard)
        return Equation(target, statement.assign, map_accesses(statement.value, change), guard)

    return tuple(visit(statement, inner) for statement in block.body)


def copy_loops(program: Program, node: Node, box: Region, found: tuple[Use, ...]) -> tuple[Loop, ...]:
    """One serial loop for each kept dimension of a box, named after the index that runs over it where one does."""
    loops: list[Loop] = []
    assert isinstance(node.statement, Loop)
    empty, outer = Block(()), dict(box.outer)
    for d in box.kept:
        extent = box.extents[d]
        names = [
            s.name
            for use in found
            if isinstance(s := use.access.subscripts[d], Index) and use.around.get(s.name) == extent
        ]
        terms = [
            atom.name
            for use in found
            for atom, _ in linear(use.access.subscripts[d], use.around).terms
            if isinstance(atom, Index) and atom.name not in outer and use.around.get(atom.name) == extent
        ]
        base = (names or terms or ["c"])[0]
        here = replace(node.statement, block=empty)
        place = Node(node.path, here, (*node.loops, *loops))
        loops.append(Loop(Kind.SERIAL, fresh_index(program, base, extent, place), extent, empty))
    return tuple(loops)


def copy_equation(box: Region, copy: str, loops: tuple[Loop, ...], outwards: Assign | None) -> Statement:
    """The nest that fills a private copy from its tensor, or writes it back by `outwards`."""
    position: dict[int, Expr] = {d: Index(loop.index) for d, loop in zip(box.kept, loops, strict=True)}
    private = Access(copy, tuple(position.values()))
    whole = Access(box.tensor.name, box.element(position))
    guard = box.guards(position)
    if outwards is None:
        equation = Equation(private, Assign.SET, whole, guard)
    else:
        equation = Equation(whole, outwards, private, guard)
    return nest(loops, Block((equation,)))


def fills(target: Access, box: Region, inner: Mapping[str, int]) -> bool:
    """Does one sweep of the inner loops write every element of the box?"""
    sweep = tuple(Loop(Kind.SERIAL, name, extent, Block(())) for name, extent in inner.items())
    around = {**dict(box.outer), **inner}
    local = tuple(
        linear(subscript, around).plus(base, -1) for subscript, base in zip(target.subscripts, box.base, strict=True)
    )
    shape = replace(box.tensor, shape=box.extents)
    return covers(Region(local, (1,) * len(local), shape, tuple(around.items())), sweep)
