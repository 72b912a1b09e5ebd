"""Kinds of loops and scopes of tensors: promises that the published form makes unchecked, kept where they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from envs.leir_env.ir import (
    Access,
    Block,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Scope,
    Tensor,
)
from envs.leir_env.printer import show_loop
from envs.leir_env.tree import (
    Path,
    accesses,
    at,
    declarations,
    expressions,
    map_accesses,
    map_expressions,
    splice,
    update_block,
    walk,
)
from envs.leir_env.verify import verify

_KINDS = ("kind", "axis", "promise")
"""Rules of `verify` about what a loop promises."""


def promised(program: Program, target: str) -> tuple[Program, tuple[str, ...]]:
    """Make each loop serial whose kind is not accepted."""
    notes = []
    while problem := next((p for p in verify(program, target) if p.code in _KINDS), None):
        path = _promising(program, problem.path)
        loop = at(program, path)
        assert isinstance(loop, Loop)
        notes.append(f"{show_loop(loop)} is serial here: {problem.sentence}")
        program = splice(program, path, (replace(loop, kind=Kind.SERIAL, axis=None),))
    return program, tuple(notes)


def _promising(program: Program, path: Path) -> Path:
    """The first loop at or below a path that is not serial."""
    below = (node for node in walk(program) if node.path[: len(path)] == path)
    return next(n.path for n in below if isinstance(n.statement, Loop) and n.statement.kind is not Kind.SERIAL)


def stored(program: Program, scopes: Mapping[str, Scope], target: str) -> tuple[Program, tuple[str, ...]]:
    """Move shared and local tensors to the blocks that they are private to."""
    notes = []
    for name, scope in scopes.items():
        homes = [home for home in _homes(program, name, scope) if not verify(home, target)]
        if homes:
            program = homes[-1]
        else:
            notes.append(
                f"{name} is global here: no block that it is private to can hold a {scope.name.lower()} tensor"
            )
    return program, tuple(notes)


def _homes(program: Program, name: str, scope: Scope) -> Iterator[Program]:
    """The program with a tensor declared in each block that it is private to, from the outside in.

    It is where a dimension of it is only ever subscripted by the index of each loop around: the dimension goes.
    """
    tensor, _ = declarations(program)[name]
    nodes = [
        (node, access)
        for node in walk(program)
        if isinstance(node.statement, Equation)
        for expr in expressions(node.statement)
        for access in accesses(expr)
        if access.tensor == name
    ]
    kept = list(range(len(tensor.shape)))
    around: list[Loop] = []
    for depth, loop in enumerate(nodes[0][0].loops):
        path = nodes[0][0].path[: depth + 1]
        own = [d for d in kept if all(access.subscripts[d] == Index(loop.index) for _, access in nodes)]
        if not own or any(node.path[: depth + 1] != path for node, _ in nodes) or loop.kind is Kind.VECTOR:
            return
        kept.remove(own[0])
        around.append(loop)
        axes = [outer.axis for outer in around if outer.axis]
        threaded = any(not axis.is_block for axis in axes)
        if (scope is Scope.SHARED and threaded) or (scope is Scope.LOCAL and axes and not threaded):
            continue
        own_scope = Scope.GLOBAL if scope is Scope.SHARED and not axes else scope
        moved = Tensor(name, tensor.dtype, tuple(tensor.shape[d] for d in kept), own_scope)
        yield _moved(program, path, moved, tuple(kept))


def _moved(program: Program, path: Path, tensor: Tensor, kept: tuple[int, ...]) -> Program:
    """Declare a temporary of the header in the block of the loop at `path`, with some of its dimensions."""

    def shorter(access: Access) -> Expr:
        return (
            Access(tensor.name, tuple(access.subscripts[d] for d in kept)) if access.tensor == tensor.name else access
        )

    body = tuple(map_expressions(s, lambda expr: map_accesses(expr, shorter)) for s in program.body)
    header = tuple(declared for declared in program.tensors if declared.name != tensor.name)
    shortened = Program(Block(body, header))
    return update_block(shortened, path, lambda block: Block(block.body, (*block.tensors, tensor)))
