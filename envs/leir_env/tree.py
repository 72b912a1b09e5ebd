"""Places in a program: paths, names of sites, and rewriting at a place.

A path is the tuple of child positions from the program's body down. A site is the name by which
actions, traces and people call a loop or an equation: loop `j` is the first loop over index j in
program order, `j.2` the second; equation `C` is the first that assigns C, `C.2` the second.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from envs.leir_env.ir import (
    Access,
    Block,
    Const,
    Equation,
    Expr,
    Index,
    Loop,
    Program,
    Statement,
    Tensor,
    children,
    subexpressions,
    with_block,
    with_body,
    with_children,
)
from envs.leir_env.ops import RESERVED

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A statement, where it stands, and the loops around it from the outside in."""

    path: Path
    statement: Statement
    loops: tuple[Loop, ...]

    @property
    def extents(self) -> dict[str, int]:
        """Extents of the enclosing loops by index name."""
        return {loop.index: loop.extent for loop in self.loops}


@functools.lru_cache(maxsize=4096)
def walk(program: Program) -> tuple[Node, ...]:
    """All statements in program order, loops before their bodies."""
    found: list[Node] = []
    for position, statement in enumerate(program.body):
        found += _nodes(statement, position)
    return tuple(found)


@functools.lru_cache(maxsize=8192)
def _nodes(statement: Statement, position: int) -> tuple[Node, ...]:
    """The statements of the nest at a position of a program."""
    found: list[Node] = []

    def visit(statement: Statement, path: Path, loops: tuple[Loop, ...]) -> None:
        found.append(Node(path, statement, loops))
        if isinstance(statement, Loop):
            inner = (*loops, statement)
            for position, child in enumerate(statement.block.body):
                visit(child, (*path, position), inner)

    visit(statement, (position,), ())
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def sites(program: Program) -> Mapping[str, Node]:
    """Every loop and equation by the name that actions call it."""
    named: dict[str, Node] = {}
    seen: dict[str, int] = {}
    for node in walk(program):
        base = node.statement.index if isinstance(node.statement, Loop) else node.statement.target.tensor
        seen[base] = count = seen.get(base, 0) + 1
        named[base if count == 1 else f"{base}.{count}"] = node
    return named


@functools.lru_cache(maxsize=4096)
def sites_by_path(program: Program) -> Mapping[Path, str]:
    """The name of every loop and equation by its path."""
    return {node.path: name for name, node in sites(program).items()}


def site_of(program: Program, path: Path) -> str:
    """The name of the statement at `path`."""
    return sites_by_path(program)[path]


def node_at(program: Program, path: Path) -> Node:
    """The statement at `path`, with the loops around it."""
    block, loops = program.block, list[Loop]()
    for position in path[:-1]:
        loop = block.body[position]
        assert isinstance(loop, Loop)
        loops.append(loop)
        block = loop.block
    return Node(path, block.body[path[-1]], tuple(loops))


def at(program: Program, path: Path) -> Statement:
    """The statement at `path`."""
    block = program.block
    for position in path[:-1]:
        loop = block.body[position]
        assert isinstance(loop, Loop)
        block = loop.block
    return block.body[path[-1]]


def block_at(program: Program, path: Path) -> Block:
    """The block whose body the statement at `path` stands in."""
    if len(path) == 1:
        return program.block
    loop = at(program, path[:-1])
    assert isinstance(loop, Loop)
    return loop.block


def update_block(program: Program, path: Path, change: Callable[[Block], Block]) -> Program:
    """Replace the block inside the loop at `path` (the header's block for the empty path)."""

    def rebuild(block: Block, rest: Path) -> Block:
        if not rest:
            return change(block)
        loop = block.body[rest[0]]
        assert isinstance(loop, Loop)
        new = with_block(loop, rebuild(loop.block, rest[1:]))
        return Block((*block.body[: rest[0]], new, *block.body[rest[0] + 1 :]), block.tensors)

    return Program(rebuild(program.block, path))


def splice(program: Program, path: Path, new: tuple[Statement, ...]) -> Program:
    """Replace the statement at `path` by `new` (none or more). Loops left empty are dropped."""
    if not new and len(path) > 1 and len(block_at(program, path).body) == 1:
        return splice(program, path[:-1], ())

    def change(block: Block) -> Block:
        position = path[-1]
        return Block((*block.body[:position], *new, *block.body[position + 1 :]), block.tensors)

    return update_block(program, path[:-1], change)


@functools.lru_cache(maxsize=4096)
def declarations(program: Program) -> Mapping[str, tuple[Tensor, Path]]:
    """Each tensor by name, with the path of the loop whose block declares it (the header: empty)."""
    found: dict[str, tuple[Tensor, Path]] = {tensor.name: (tensor, ()) for tensor in program.tensors}
    for position, statement in enumerate(program.body):
        found.update(_private(statement, position))
    return found


@functools.lru_cache(maxsize=8192)
def _private(statement: Statement, position: int) -> tuple[tuple[str, tuple[Tensor, Path]], ...]:
    """What the blocks of the nest at a position of a program declare."""
    return tuple(
        (tensor.name, (tensor, node.path))
        for node in _nodes(statement, position)
        if isinstance(node.statement, Loop)
        for tensor in node.statement.block.tensors
    )


def expressions(equation: Equation) -> tuple[Expr, ...]:
    """The target, the value and the guard."""
    return (equation.target, equation.value, *equation.guard)


def map_expressions(statement: Statement, change: Callable[[Expr], Expr]) -> Statement:
    """Apply `change` to the target, value and guards of every equation below `statement`."""
    if isinstance(statement, Loop):
        body = tuple([map_expressions(child, change) for child in statement.block.body])
        return with_body(statement, body)
    target = change(statement.target)
    assert isinstance(target, Access)
    return Equation(target, statement.assign, change(statement.value), tuple([change(g) for g in statement.guard]))


@functools.lru_cache(maxsize=65536)
def indices(expr: Expr) -> frozenset[str]:
    """The loop indices that occur in `expr`."""
    if isinstance(expr, Index):
        return frozenset((expr.name,))
    below = children(expr)
    return indices(below[0]) if len(below) == 1 else frozenset().union(*map(indices, below))


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace indices by expressions."""
    if isinstance(expr, Index):
        return values.get(expr.name, expr)
    if indices(expr).isdisjoint(values):
        return expr
    return with_children(expr, tuple([substitute(child, values) for child in children(expr)]))


def map_accesses(expr: Expr, change: Callable[[Access], Expr]) -> Expr:
    """Replace every tensor element, innermost first."""
    if isinstance(expr, Index | Const):
        return expr
    below = children(expr)
    new = tuple([map_accesses(child, change) for child in below])
    expr = expr if new == below else with_children(expr, new)
    return change(expr) if isinstance(expr, Access) else expr


@functools.lru_cache(maxsize=32768)
def accesses(expr: Expr) -> tuple[Access, ...]:
    """Every tensor element read in `expr`, indirect subscripts included."""
    return tuple([node for node in subexpressions(expr) if isinstance(node, Access)])


@functools.lru_cache(maxsize=16384)
def reads(equation: Equation) -> tuple[Access, ...]:
    """Every element that one execution may read, its own accumulator excepted, each once."""
    found = [accesses(expr) for expr in (*equation.target.subscripts, equation.value, *equation.guard)]
    return tuple(dict.fromkeys(itertools.chain.from_iterable(found)))


def equations(statement: Statement) -> Iterator[Equation]:
    """The equations at or below `statement`, in order."""
    if isinstance(statement, Equation):
        yield statement
    else:
        for child in statement.block.body:
            yield from equations(child)


@functools.lru_cache(maxsize=16384)
def loops_below(statement: Statement) -> tuple[Loop, ...]:
    """The loops at or below `statement`, in order."""
    if isinstance(statement, Equation):
        return ()
    return (statement, *(loop for child in statement.block.body for loop in loops_below(child)))


@functools.lru_cache(maxsize=1024)
def names(program: Program) -> frozenset[str]:
    """Every index and tensor name in use."""
    return frozenset(declarations(program)) | {loop.index for s in program.body for loop in loops_below(s)}


def fresh_index(program: Program, base: str, extent: int, around: Node) -> str:
    """Return a name for a new loop at `around`: `base`, or `base` with the first number from 2 on that fits.

    A name that other loops use is shared when they have the same extent and neither contain `around`
    nor stand below it, so that texts stay short.
    """
    tensors = declarations(program)
    extents = {loop.index: loop.extent for statement in program.body for loop in loops_below(statement)}
    near = {loop.index for loop in (*around.loops, *loops_below(around.statement))}
    for number in range(1, 10**6):
        name = base if number == 1 else f"{base}{number}"
        free = name not in near and extents.get(name, extent) == extent
        if free and name not in tensors and name not in RESERVED and not re.fullmatch(r"e[0-9]+", name):
            return name
    raise AssertionError("names are exhausted")


def fresh_tensor(program: Program, taken: frozenset[str] | set[str] = frozenset()) -> str:
    """Return the first unused of A, C, D ... Z, A2, A3 ... (letters that mean loop kinds are left out)."""
    used = names(program) | taken
    letters = [letter for letter in "ACDEFGHJKMNOQRSWXYZ" if letter not in used]
    return letters[0] if letters else next(name for n in range(2, 10**6) if (name := f"A{n}") not in used)


@functools.lru_cache(maxsize=16384)
def band(loop: Loop) -> tuple[Loop, ...]:
    """The perfect nest from `loop` down: each contains the next and nothing else."""
    found = [loop]
    while not found[-1].block.tensors and len(found[-1].block.body) == 1:
        inner = found[-1].block.body[0]
        if not isinstance(inner, Loop):
            break
        found.append(inner)
    return tuple(found)


def nest(loops: Iterable[Loop], block: Block) -> Statement:
    """Stack loops, the outermost first, over `block` (their own blocks are ignored)."""
    for loop in reversed(tuple(loops)):
        block = Block((with_block(loop, block),))
    return block.body[0]


def freshen(program: Program, statement: Statement, around: frozenset[str]) -> Statement:
    """Rename the loops at or below `statement` whose index is among `around`, where it is to be moved."""
    if isinstance(statement, Equation):
        return statement
    name, body = statement.index, statement.block.body
    if name in around:
        node = Node((), replace(statement, index="e0"), tuple(replace(statement, index=n) for n in around))
        name = fresh_index(program, statement.index, statement.extent, node)
        values: dict[str, Expr] = {statement.index: Index(name)}
        body = tuple(map_expressions(child, lambda expr: substitute(expr, values)) for child in body)
    inner = tuple(freshen(program, child, around | {name}) for child in body)
    return replace(statement, index=name, block=replace(statement.block, body=inner))
