"""The questions that strategies and `verify` ask about a program, decided by its dependences.

A loop may be parallel, vectorised or bound if it carries no dependence. A new order of the same equations is
legal if every dependence still points forward; where only dependences of a reduction turn round, the result
is re-associated. Answers are cached by nest: a step changes one nest, and the rest are look-ups.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from envs.leir_env import dependence
from envs.leir_env.affine import index_names
from envs.leir_env.dependence import Dependence, Extents, Pair, Reference, Schedule
from envs.leir_env.ir import Assign, Block, Equation, Index, Loop, Program, Statement
from envs.leir_env.printer import show_equation
from envs.leir_env.tree import (
    Path,
    at,
    declarations,
    equations,
    map_expressions,
    reads,
    substitute,
    update_block,
    walk,
)


class Order(Enum):
    """The verdict on a new order of a program's equations."""

    EXACT = "exact"
    """Every dependence points forward: the same values, bit for bit."""
    REASSOCIATES = "reassociates"
    """Only sums and products of floats are taken in another order."""


@functools.lru_cache(maxsize=16384)
def written(statement: Statement) -> frozenset[str]:
    """Return the names of the tensors that equations at or below `statement` assign."""
    return frozenset(equation.target.tensor for equation in equations(statement))


@functools.lru_cache(maxsize=16384)
def read(statement: Statement) -> frozenset[str]:
    """Return the names of the tensors read at or below `statement`, accumulators by accumulation excepted."""
    return frozenset(access.tensor for equation in equations(statement) for access in reads(equation))


def around(program: Program, path: Path) -> Extents:
    """Return the loops that stand around the statement at `path`, with their extents."""
    found: list[tuple[str, int]] = []
    block = program.block
    for position in path[:-1]:
        loop = block.body[position]
        assert isinstance(loop, Loop)
        found.append((loop.index, loop.extent))
        block = loop.block
    return tuple(found)


def carried(program: Program, path: Path) -> tuple[Dependence, ...]:
    """Return the dependences between different iterations of the loop at `path`."""
    loop = at(program, path)
    assert isinstance(loop, Loop)
    return dependence.carried(loop, around(program, path))


def parallel_refusal(program: Program, path: Path) -> str | None:
    """Say why the iterations of the loop at `path` must run in order; None if they may run at once."""
    found = carried(program, path)
    if not found:
        return None
    loop = at(program, path)
    assert isinstance(loop, Loop)
    return _sentence(loop.index, found[0])


def _sentence(index: str, found: Dependence) -> str:
    source, target = show_equation(found.source), show_equation(found.target)
    if found.kind == "reduction":
        return f"{index} carries the reduction of {found.tensor} ({source})"
    does = {
        "flow": f"{target} reads {found.tensor} that {source} wrote",
        "anti": f"{target} overwrites {found.tensor} that {source} read",
        "output": f"{target} overwrites {found.tensor} that {source} wrote",
    }[found.kind]
    return f"{index} carries a dependence of {found.tensor}: {does} in an earlier iteration"


@functools.lru_cache(maxsize=4096)
def reduction_loops(program: Program) -> frozenset[Path]:
    """Return the loops over which an accumulation below them runs: their index is not in its target."""
    found: set[Path] = set()
    where = declarations(program)
    for node in walk(program):
        if isinstance(node.statement, Equation) and node.statement.assign is not Assign.SET:
            target = node.statement.target
            used = frozenset().union(*map(index_names, target.subscripts))
            declared = len(where[target.tensor][1]) if target.tensor in where else 0
            found.update(
                node.path[: depth + 1]
                for depth, loop in enumerate(node.loops)
                if depth >= declared and loop.index not in used
            )
    return frozenset(found)


@functools.lru_cache(maxsize=4096)
def starts(program: Program) -> Mapping[str, Assign]:
    """Return the tensors that start from an identity, with the assignment whose identity it is."""
    found: dict[str, Assign] = {}

    def visit(block: Block) -> None:
        for tensor in block.tensors:
            first = _first(block.body, tensor.name)
            if first not in (None, Assign.SET):
                found[tensor.name] = first
        for statement in block.body:
            if isinstance(statement, Loop):
                visit(statement.block)

    visit(program.block)
    return found


@functools.lru_cache(maxsize=16384)
def _assignments(statement: Statement) -> Mapping[str, Assign]:
    found: dict[str, Assign] = {}
    for equation in equations(statement):
        found.setdefault(equation.target.tensor, equation.assign)
    return found


def _first(body: Sequence[Statement], tensor: str) -> Assign | None:
    return next((a for s in body if (a := _assignments(s).get(tensor)) is not None), None)


def rename_loop(program: Program, path: Path, name: str) -> Program:
    """Give the loop at `path` another index name, throughout its body. The name must be free there."""
    old = at(program, path)
    assert isinstance(old, Loop)
    index = Index(name)

    def change(block: Block) -> Block:
        body = tuple(map_expressions(s, lambda e: substitute(e, {old.index: index})) for s in block.body)
        return replace(block, body=body)

    renamed = update_block(program, path, change)
    position = path[-1]

    def rename(block: Block) -> Block:
        loop = block.body[position]
        assert isinstance(loop, Loop)
        body = (*block.body[:position], replace(loop, index=name), *block.body[position + 1 :])
        return replace(block, body=body)

    return update_block(renamed, path[:-1], rename)


def order(before: Program, after: Program, renamed: Mapping[Path, str] | None = None) -> Order | str:
    """Say whether `after` runs the equations of `before` in an order that gives the same values.

    `after` holds the same equations, each under loops with the same index names, anywhere in the tree: loops
    permuted, nests fused or split up, statements moved. An instance of an equation is known by the values of
    its indices. `renamed` gives loops of `before` new names first, as fusion does with the second loop.
    Returns a sentence when a dependence would turn round. Kinds of loops are not looked at: ask
    `parallel_refusal` of the promises in `after`. Raises ValueError when the equations don't correspond.
    """
    for path, name in (renamed or {}).items():
        before = rename_loop(before, path, name)
    return _order(before, after)


@functools.lru_cache(maxsize=16384)
def _order(before: Program, after: Program) -> Order | str:
    old, new, outer = _changed(before.block, after.block)
    verdict = _compare(old.body, new.body, outer)
    if isinstance(verdict, str):
        return verdict
    was, now = starts(before), starts(after)
    for name in sorted(frozenset().union(*map(written, old.body))):
        if was.get(name) is not now.get(name):
            return f"{name} would start differently: its first assignment in its block would be another"
    where = declarations(before)
    return Order.REASSOCIATES if any(where[name][0].dtype.is_float for name in verdict) else Order.EXACT


def _changed(old: Block, new: Block) -> tuple[Block, Block, Extents]:
    """Narrow two blocks to the statements in which they differ, and give the loops around these."""
    outer: list[tuple[str, int]] = []
    while True:
        a, b = list(old.body), list(new.body)
        while a and b and a[0] == b[0]:
            del a[0], b[0]
        while a and b and a[-1] == b[-1]:
            del a[-1], b[-1]
        old, new = replace(old, body=tuple(a)), replace(new, body=tuple(b))
        match a, b:
            case [Loop() as one], [Loop() as two] if (one.index, one.extent) == (two.index, two.extent) and (
                one.block.tensors == two.block.tensors
            ):
                outer.append((one.index, one.extent))
                old, new = one.block, two.block
            case _:
                return old, new, tuple(outer)


@dataclass(frozen=True, slots=True)
class _Moved:
    """A statement in both programs, with its places in the text."""

    old: dependence.Statement
    new: dependence.Statement
    old_place: int
    new_place: int


@functools.lru_cache(maxsize=16384)
def _compare(old: tuple[Statement, ...], new: tuple[Statement, ...], outer: Extents) -> frozenset[str] | str:
    """Return the tensors whose sums and products are re-associated, or a refusal."""
    moved = _correspondence(dependence.statements(old), dependence.statements(new))
    place = {id(m.old): m for m in moved}
    reassociated: set[str] = set()
    for m in moved:
        for name in dict.fromkeys(r.access.tensor for r in dependence.references(m.old.equation)):
            was, now = _private(m.old, name), _private(m.new, name)
            if was != now:
                return f"{name} is private to each ({_list(was)}) now, and would be to each ({_list(now)})"
    for s, a, t, b in dependence.meetings([m.old for m in moved]):
        for one, first, two, second in ((s, a, t, b), (t, b, s, a)):
            if not _turns(place[id(one)], first, place[id(two)], second, outer):
                continue
            kind = dependence.kind(first, second)
            if kind != "reduction":
                return (
                    f"{show_equation(two.equation)} must come after {show_equation(one.equation)}: "
                    f"{kind} dependence of {first.access.tensor}"
                )
            if first.assign in (Assign.ADD, Assign.MUL):
                reassociated.add(first.access.tensor)
    return frozenset(reassociated)


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _private(statement: dependence.Statement, tensor: str) -> frozenset[str]:
    return frozenset(statement.names[: statement.private.get(tensor, 0)])


def _correspondence(old: Sequence[dependence.Statement], new: Sequence[dependence.Statement]) -> list[_Moved]:
    waiting: dict[tuple[Equation, frozenset[tuple[str, int]]], list[tuple[int, dependence.Statement]]] = {}
    for place, statement in reversed(list(enumerate(new))):
        waiting.setdefault((statement.equation, frozenset(statement.loops)), []).append((place, statement))
    found: list[_Moved] = []
    for place, statement in enumerate(old):
        matching = waiting.get((statement.equation, frozenset(statement.loops)))
        if not matching:
            raise ValueError(f"{show_equation(statement.equation)} has no counterpart under the same loops")
        new_place, twin = matching.pop()
        found.append(_Moved(statement, twin, place, new_place))
    if len(old) != len(new):
        extra = Counter(s.equation for s in new) - Counter(s.equation for s in old)
        raise ValueError(f"{show_equation(next(iter(extra)))} is new")
    return found


def _turns(s: _Moved, a: Reference, t: _Moved, b: Reference, outer: Extents) -> bool:
    """Whether some touch by `a` that comes before one by `b` would come after it."""
    equal = frozenset(name for name, _ in outer) | _private(s.old, a.access.tensor)
    pair = Pair(a, b, s.old.loops, t.old.loops, equal, outer)
    agree = dependence.pinned(pair)
    if agree is None:
        return False
    was = Schedule(dependence.common_loops(s.old, t.old), s.old_place < t.old_place)
    now = Schedule(dependence.common_loops(s.new, t.new), s.new_place < t.new_place)
    fast = dependence.turns_fast(pair, was, now, s is t)
    if fast is not None:
        return fast
    pair = replace(pair, equal=agree)
    return dependence.exists(pair, dependence.turned_order(pair, was, now, s is t))
