"""The questions that strategies and `verify` ask about a program, decided by its dependences.

A loop may be parallel, vectorised or bound if it carries no dependence. A new order of the same equations is
legal if every dependence still points forward; where only dependences of a reduction turn round, the result
is re-associated. Answers are cached by nest: a step changes one nest, and the rest are look-ups.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from envs.leir_env import dependence
from envs.leir_env.dependence import Dependence, Meeting, Schedule, analysed
from envs.leir_env.ir import Assign, Block, Equation, Kind, Loop, Program, Statement
from envs.leir_env.printer import show_equation
from envs.leir_env.tree import (
    Path,
    at,
    band,
    declarations,
    equations,
    loops_below,
    reads,
    splice,
    walk,
)
from envs.leir_env.tree import nest as stack


class Order(Enum):
    """The verdict on a new order of a program's equations."""

    EXACT = "exact"
    """Every dependence points forward: the same values, bit for bit.

    Maxima, minima and integers may be taken in any order (signs of zeros and NaN payloads apart).
    """
    REASSOCIATES = "reassociates"
    """Only sums and products of floats are taken in another order."""


@functools.lru_cache(maxsize=16384)
def written(statement: Statement) -> frozenset[str]:
    """Return the names of the tensors that equations at or below `statement` assign."""
    if isinstance(statement, Equation):
        return frozenset((statement.target.tensor,))
    return frozenset().union(*map(written, statement.block.body))


@functools.lru_cache(maxsize=16384)
def read(statement: Statement) -> frozenset[str]:
    """Return the names of the tensors read at or below `statement`, accumulators by accumulation excepted."""
    if isinstance(statement, Equation):
        return frozenset(access.tensor for access in reads(statement))
    return frozenset().union(*map(read, statement.block.body))


@functools.lru_cache(maxsize=16384)
def touched(statement: Statement) -> frozenset[str]:
    """Return the names of the tensors that equations at or below `statement` assign or read."""
    return read(statement) | written(statement)


def carried(program: Program, path: Path) -> tuple[Dependence, ...]:
    """Return the dependences between iterations of the loop at `path`, within one of the loops around it."""
    return dependence.carried(program.body[path[0]]).get(path[1:], ())


def parallel_refusal(program: Program, path: Path) -> str | None:
    """Say why the iterations of the loop at `path` must run in order; None if they may run at once."""
    found = carried(program, path)
    if not found:
        return None
    loop = at(program, path)
    assert isinstance(loop, Loop)
    return _sentence(loop.index, found[0])


@functools.lru_cache(maxsize=16384)
def broken_promise(nest: Statement) -> str | None:
    """Say which parallel, vector or bound loop of a nest carries a dependence."""
    if not promised(nest):
        return None
    found = dependence.carried(nest)
    for node in walk(Program(Block((nest,)))):
        loop = node.statement
        if isinstance(loop, Loop) and loop.kind not in _UNPROMISED and node.path[1:] in found:
            return _sentence(loop.index, found[node.path[1:]][0])
    return None


_UNPROMISED = (Kind.SERIAL, Kind.UNROLLED)


@functools.lru_cache(maxsize=16384)
def promised(nest: Statement) -> frozenset[Kind]:
    """The kinds of the loops of a nest that promise to carry nothing: parallel, vector, bound."""
    return frozenset(loop.kind for loop in loops_below(nest)).difference(_UNPROMISED)


@functools.lru_cache(maxsize=4096)
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


@functools.lru_cache(maxsize=16384)
def order(before: Program, after: Program) -> Order | str:
    """Say whether `after` runs the equations of `before` in an order that gives the same values.

    `after` holds the same equations, each under loops with the same index names, anywhere in the tree: loops
    permuted, nests fused or split up, statements moved. An instance of an equation is known by the values of
    its indices (so fusion renames the second loop before it asks). Returns a sentence when a dependence would
    turn round. Kinds of loops are not looked at: ask `parallel_refusal` of the promises in `after`. Raises
    ValueError when the equations don't correspond.
    """
    old, new = _changed(before.body, after.body)
    verdict = _compare(old, new)
    if isinstance(verdict, str):
        return verdict
    if [s.equation for s in analysed(old).statements] != [s.equation for s in analysed(new).statements]:
        was, now = starts(before), starts(after)
        for name in sorted(frozenset().union(*map(written, old))):
            if was.get(name) is not now.get(name):
                return f"{name} would start differently: its first assignment in its block would be another"
    where = declarations(before)
    return Order.REASSOCIATES if any(where[name][0].dtype.is_float for name in verdict) else Order.EXACT


Body = tuple[Statement, ...]


def _changed(old: Body, new: Body) -> tuple[Body, Body]:
    """Narrow two bodies to the nests in which they differ."""
    shorter = min(len(old), len(new))
    first = 0
    while first < shorter and _same(old[first], new[first]):
        first += 1
    last = 0
    while last < shorter - first and _same(old[-1 - last], new[-1 - last]):
        last += 1
    return old[first : len(old) - last], new[first : len(new) - last]


def _same(a: Statement, b: Statement) -> bool:
    return a is b or (hash(a) == hash(b) and a == b)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a statement of the old body stands in both."""

    old: int
    new: int
    statement: dependence.Statement
    """In the new body."""


@functools.lru_cache(maxsize=16384)
def _compare(old: Body, new: Body) -> frozenset[str] | str:
    """Return the tensors whose sums and products are re-associated, or a refusal."""
    was_body = analysed(old)
    places = _correspondence(was_body.statements, analysed(new).statements)
    for statement, place in places.items():
        for name in dict.fromkeys(r.access.tensor for r in dependence.references(statement.equation)):
            mine, theirs = _private(statement, name), _private(place.statement, name)
            if mine != theirs:
                return f"{name} is private to each ({_list(mine)}), and would be to each ({_list(theirs)})"
    reassociated: set[str] = set()
    for meeting in was_body.meetings:
        s, t = places[meeting.s], places[meeting.t]
        was = Schedule(dependence.common_loops(meeting.s, meeting.t), s.old < t.old)
        now = Schedule(dependence.common_loops(s.statement, t.statement), s.new < t.new)
        if was.textual == now.textual and (was.common == now.common or was.free(meeting) == now.free(meeting)):
            continue
        reason = _turned(meeting, was, now, reassociated)
        if reason is not None:
            return reason
    return frozenset(reassociated)


def _turned(meeting: Meeting, was: Schedule, now: Schedule, reassociated: set[str]) -> str | None:
    """Say which dependence turns round; note instead the tensor of a sum or product that is re-associated."""
    for m, old_order, new_order in _directions(meeting, was, now):
        if not dependence.turns(m, old_order, new_order):
            continue
        if m.kind != "reduction":
            return (
                f"{show_equation(m.t.equation)} must come after {show_equation(m.s.equation)}: "
                f"{m.kind} dependence of {m.tensor}"
            )
        if m.a.assign in (Assign.ADD, Assign.MUL):
            reassociated.add(m.tensor)
    return None


def _directions(meeting: Meeting, was: Schedule, now: Schedule) -> Iterator[tuple[Meeting, Schedule, Schedule]]:
    yield meeting, was, now
    for mirrored in meeting.directions[1:]:
        apart = meeting.s is not meeting.t
        yield (
            mirrored,
            Schedule(was.common, apart and not was.textual),
            Schedule(now.common, apart and not now.textual),
        )


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _private(statement: dependence.Statement, tensor: str) -> frozenset[str]:
    return frozenset(statement.names[: statement.private.get(tensor, 0)])


def _correspondence(
    old: Sequence[dependence.Statement], new: Sequence[dependence.Statement]
) -> dict[dependence.Statement, _Place]:
    """Match the statements of two bodies: equal equations under equal sets of loops, in program order."""
    waiting: dict[tuple[Equation, frozenset[tuple[str, int]]], list[int]] = {}
    for position in range(len(new) - 1, -1, -1):
        waiting.setdefault((new[position].equation, frozenset(new[position].loops)), []).append(position)
    places: dict[dependence.Statement, _Place] = {}
    for position, statement in enumerate(old):
        matching = waiting.get((statement.equation, frozenset(statement.loops)))
        if not matching:
            raise ValueError(f"{show_equation(statement.equation)} has no counterpart under the same loops")
        twin = matching.pop()
        places[statement] = _Place(position, twin, new[twin])
    if len(old) != len(new):
        extra = next(equation for (equation, _), left in waiting.items() if left)
        raise ValueError(f"{show_equation(extra)} has no counterpart under the same loops")
    return places


@functools.lru_cache(maxsize=4096)
def _crossing(nest: Loop) -> tuple[tuple[tuple[Meeting, Schedule, list[str]], ...], bool]:
    """The meetings of a nest that may differ in two loops or more, and whether any differs in a promised loop."""
    kept = {loop.index for loop in loops_below(nest) if loop.kind not in _UNPROMISED}
    found = []
    may_break = False
    for meeting in dependence.loop_meetings(nest):
        was = Schedule(dependence.common_loops(meeting.s, meeting.t), meeting.s is not meeting.t)
        free = was.free(meeting)
        may_break = may_break or not kept.isdisjoint(free)
        if len(free) > 1:
            found.append((meeting, was, free))
    return tuple(found), may_break


@functools.lru_cache(maxsize=16384)
def exchange(nest: Loop, path: Path, depth: int) -> frozenset[str] | str:
    """Judge swapping the loop at `path` below `nest` with the one `depth` levels below it in its perfect nest.

    Returns the tensors whose accumulations are re-associated, or a sentence when a dependence would turn
    round or a promised kind no longer hold. The same verdict as `order`, without building the program.
    """
    upper, lower = len(path), len(path) + depth
    reassociated: set[str] = set()
    crossing, may_break = _crossing(nest)
    if may_break:
        reason = _promise_broken(nest, path, depth)
        if reason is not None:
            return reason
    for meeting, was, free in crossing:
        common = was.common
        if lower >= len(common) or meeting.s.path[1 : upper + 1] != path:
            continue
        swapped = list(common)
        swapped[upper], swapped[lower] = swapped[lower], swapped[upper]
        now = Schedule(tuple(swapped), was.textual)
        if now.free(meeting) == free:
            continue
        reason = _turned(meeting, was, now, reassociated)
        if reason is not None:
            return reason
    return frozenset(reassociated)


def exchanged(program: Program, path: Path, depth: int) -> Program:
    """Swap the loop at `path` with the one `depth` levels below it in its perfect nest."""
    loop = at(program, path)
    assert isinstance(loop, Loop)
    loops = band(loop)[: depth + 1]
    return splice(program, path, (stack((loops[-1], *loops[1:-1], loops[0]), loops[-1].block),))


def _promise_broken(nest: Loop, path: Path, depth: int) -> str | None:
    """Say which promised loop of a nest would carry a dependence after the swap."""
    (after,) = exchanged(Program(Block((nest,))), (0, *path), depth).body
    for place, found in dependence.carried(after).items():
        loop = after
        for position in place:
            assert isinstance(loop, Loop)
            loop = loop.block.body[position]
        assert isinstance(loop, Loop)
        if loop.kind not in _UNPROMISED:
            return _sentence(loop.index, found[0])
    return None
