"""Dependences: which iterations touch the same element, and in which order they do.

Memory-based dependences over reads, writes and accumulations. A tensor is private to each execution of the
block that declares it, so two touches of it agree in the loops around that block. A question about two
references is first put to a fast engine: it proves "never" by digits (equal subscripts force equal indices)
and "some time" by a witness, a pair of iterations that it checks. What it can't decide goes to islpy; both
have one meaning. Opaque subscripts may be any element, opaque conditions may hold.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from envs.leir_env import polyhedral
from envs.leir_env.affine import affine, evaluate, index_names, is_affine_condition, is_quasi_affine, unique
from envs.leir_env.ir import Access, Assign, Call, Const, Equation, Expr, Index, Loop, children
from envs.leir_env.tree import Path, substitute

Extents = tuple[tuple[str, int], ...]
"""Index names with their extents, from the outermost loop in."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One occurrence of a tensor in an equation: its target (with the assignment) or a read."""

    access: Access
    conditions: tuple[Expr, ...]
    """Affine conditions under which it is touched: the guard, and the selects around it."""
    assign: Assign | None = None
    """How the target is assigned; None for a read."""
    opaque: bool = False
    """Whether it is touched under a condition on data, too."""

    @property
    def writes(self) -> bool:
        return self.assign is not None

    @property
    def accumulates(self) -> bool:
        return self.assign is not None and self.assign is not Assign.SET


@functools.lru_cache(maxsize=16384)
def references(equation: Equation) -> tuple[Reference, ...]:
    """Every tensor occurrence in an equation, the target first."""
    guarded = _Conditions().and_all(equation.guard)
    found = [guarded.reference(equation.target, equation.assign)]
    for subscript in equation.target.subscripts:
        found += _reads(subscript, guarded)
    found += _reads(equation.value, guarded)
    for condition in equation.guard:
        found += _reads(condition, _Conditions())
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Conditions:
    affine: tuple[Expr, ...] = ()
    opaque: bool = False

    def and_all(self, conditions: Sequence[Expr]) -> _Conditions:
        known = tuple(condition for condition in conditions if is_affine_condition(condition))
        return _Conditions(self.affine + known, self.opaque or len(known) < len(conditions))

    def reference(self, access: Access, assign: Assign | None = None) -> Reference:
        return Reference(access, self.affine, assign, self.opaque)


def _reads(expr: Expr, conditions: _Conditions) -> Iterator[Reference]:
    if isinstance(expr, Call) and expr.op == "select":
        condition, chosen, other = expr.args
        yield from _reads(condition, conditions)
        yield from _reads(chosen, conditions.and_all((condition,)))
        yield from _reads(other, conditions.and_all((Call("not", (condition,)),)))
        return
    if isinstance(expr, Access):
        yield conditions.reference(expr)
    for child in children(expr):
        yield from _reads(child, conditions)


@dataclass(frozen=True, slots=True)
class Statement:
    """An equation in a nest: where it stands, and the loops around it within the nest."""

    equation: Equation
    path: Path
    loops: Extents
    private: Mapping[str, int]
    """For each tensor that the nest declares around it, how many of `loops` stand around the declaration."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.loops)


@functools.lru_cache(maxsize=16384)
def statements(body: tuple[Equation | Loop, ...]) -> tuple[Statement, ...]:
    """The equations of a body in order."""
    found: list[Statement] = []

    def visit(statement: Equation | Loop, path: Path, loops: Extents, private: Mapping[str, int]) -> None:
        if isinstance(statement, Equation):
            found.append(Statement(statement, path, loops, private))
            return
        inner = (*loops, (statement.index, statement.extent))
        if statement.block.tensors:
            private = {**private, **{tensor.name: len(inner) for tensor in statement.block.tensors}}
        for position, child in enumerate(statement.block.body):
            visit(child, (*path, position), inner, private)

    for position, statement in enumerate(body):
        visit(statement, (position,), (), {})
    return tuple(found)


def common_loops(s: Statement, t: Statement) -> tuple[str, ...]:
    """The loops that two statements of one nest both stand in, from the outside in."""
    depth = 0
    limit = min(len(s.loops), len(t.loops))
    while depth < limit and s.path[depth] == t.path[depth]:
        depth += 1
    return s.names[:depth]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two references to one tensor, whose instances are compared.

    Indices in `equal` have one value in both instances; the others of the second are renamed (`i'`).
    """

    first: Reference
    second: Reference
    first_loops: Extents
    second_loops: Extents
    equal: frozenset[str]
    """Includes the loops around the nest, and those around the tensor's declaration."""
    outer: Extents = ()
    """The loops around the nest."""

    @property
    def extents(self) -> dict[str, int]:
        return dict(self.outer + self.first_loops + self.second_loops)


PRIME = "'"
"""Marks an index of the second instance; no index name of a program contains it."""


@functools.lru_cache(maxsize=65536)
def pinned(pair: Pair) -> frozenset[str] | None:
    """Return the indices that agree whenever both touch the same element; None if they never do.

    Never claims too much: an index left out may agree all the same.
    """
    equal, extents = pair.equal, pair.extents
    forms = [
        (affine(a), affine(b))
        for a, b in zip(pair.first.access.subscripts, pair.second.access.subscripts, strict=True)
    ]
    again = True
    while again:
        again = False
        for a, b in forms:
            if a is None or b is None:
                continue
            if a != b:
                same = {term[0] for term in a.terms if term in b.terms and term[0] in equal}
                a, b = a - a.part(same), b - b.part(same)
            if a == b:
                free = [term for term in a.terms if term[0] not in equal]
                if free and unique(free, extents):
                    equal, again = equal.union(name for name, _ in free), len(forms) > 1
                continue
            (low, high), (least, most) = a.interval(extents), b.interval(extents)
            if high < least or most < low:
                return None
    return equal


def touches(pair: Pair, x: Mapping[str, int], y: Mapping[str, int]) -> bool:
    """Whether two given iterations really touch the same element (False where that can't be evaluated)."""
    a, b = pair.first, pair.second
    subscripts = zip(a.access.subscripts, b.access.subscripts, strict=True)
    return (
        all(
            not (is_quasi_affine(s) and is_quasi_affine(t)) or evaluate(s, x) == evaluate(t, y)
            for s, t in subscripts
        )
        and all(evaluate(condition, x) for condition in a.conditions)
        and all(evaluate(condition, y) for condition in b.conditions)
    )


def exists(pair: Pair, order: tuple[Expr, ...]) -> bool:
    """Ask islpy whether two instances touch the same element in an order given as conditions.

    True also where islpy gives up.
    """
    renaming: dict[str, Expr] = {
        name: Index(name + PRIME) for name, _ in pair.second_loops if name not in pair.equal
    }
    meet = tuple(
        Call("eq", (s, substitute(t, renaming)))
        for s, t in zip(pair.first.access.subscripts, pair.second.access.subscripts, strict=True)
        if is_quasi_affine(s) and is_quasi_affine(t)
    )
    there = tuple(substitute(condition, renaming) for condition in pair.second.conditions)
    conditions = meet + pair.first.conditions + there + order
    used = frozenset().union(*(index_names(condition) for condition in conditions))
    variables = dict(pair.outer + pair.first_loops)
    for name, extent in pair.second_loops:
        variables[name if name in pair.equal else name + PRIME] = extent
    box = tuple((name, extent) for name, extent in variables.items() if name in used)
    return polyhedral.satisfiable(box, conditions) is not False


@dataclass(frozen=True, slots=True)
class Dependence:
    """Two equations that must keep their order: both touch `tensor`, and one of them writes it."""

    tensor: str
    kind: str
    """`reduction` (both accumulate by one operator), `flow`, `anti` or `output`."""
    source: Equation
    target: Equation


def kind(first: Reference, second: Reference) -> str:
    """The kind of a dependence from the first reference to the second."""
    if first.accumulates and first.assign is second.assign:
        return "reduction"
    return "output" if first.writes and second.writes else "flow" if first.writes else "anti"


def meetings(body: Sequence[Statement]) -> Iterator[tuple[Statement, Reference, Statement, Reference]]:
    """Every two references of a body to one tensor, in program order, one of them a write."""
    touched: dict[str, list[tuple[Statement, Reference]]] = {}
    for statement in body:
        for reference in references(statement.equation):
            touched.setdefault(reference.access.tensor, []).append((statement, reference))
    for group in touched.values():
        if not any(reference.writes for _, reference in group):
            continue
        for n, (s, a) in enumerate(group):
            for t, b in group[n:]:
                if a.writes or b.writes:
                    yield s, a, t, b


@functools.lru_cache(maxsize=65536)
def carried(loop: Loop, outer: Extents) -> tuple[Dependence, ...]:
    """Return the dependences between iterations of `loop`, within one iteration of the outer loops."""
    found: dict[Dependence, None] = {}
    around = frozenset(name for name, _ in outer)
    body = statements((loop,))
    for s, a, t, b in meetings(body):
        if a.access.tensor in s.private:
            continue
        directions = ((s, a, t, b),) if a is b and s is t else ((s, a, t, b), (t, b, s, a))
        for source, first, target, second in directions:
            pair = Pair(first, second, source.loops, target.loops, around, outer)
            dependence = Dependence(
                first.access.tensor, kind(first, second), source.equation, target.equation
            )
            if dependence not in found and _carries(pair, loop.index):
                found[dependence] = None
    return tuple(found)


def _carries(pair: Pair, index: str) -> bool:
    fast = carries_fast(pair, index)
    return exists(pair, carried_order(index)) if fast is None else fast


def carried_order(index: str) -> tuple[Expr, ...]:
    """The condition that the first instance is of an earlier iteration of loop `index`."""
    return (Call("lt", (Index(index), Index(index + PRIME))),)


def carries_fast(pair: Pair, index: str) -> bool | None:
    """Whether the second can touch what the first did in an earlier iteration; None if not clear."""
    agree = pinned(pair)
    extents = pair.extents
    if agree is None or index in agree or extents[index] == 1:
        return False
    x = dict.fromkeys(extents, 0)
    return True if touches(pair, x, {**x, index: 1}) else None


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the instances of two statements follow each other."""

    common: tuple[str, ...]
    """The loops that both stand in, from the outside in."""
    textual: bool
    """Whether the first statement stands before the second in the text."""

    def before(self, equal: frozenset[str]) -> Expr:
        """The condition that the first instance runs before the second."""
        return self._lexicographic("lt", self.textual, equal)

    def after(self, equal: frozenset[str], same: bool) -> Expr:
        """The condition that the second instance runs before the first; `same`: of one statement."""
        return self._lexicographic("gt", not self.textual and not same, equal)

    def _lexicographic(self, relation: str, tie: bool, equal: frozenset[str]) -> Expr:
        order: Expr = Const(tie)
        for name in reversed(self.common):
            if name not in equal:
                here, there = Index(name), Index(name + PRIME)
                order = Call("and", (Call("eq", (here, there)), order))
                order = Call("or", (Call(relation, (here, there)), order))
        return order


def turned_order(pair: Pair, was: Schedule, now: Schedule, same: bool) -> tuple[Expr, ...]:
    """The condition that the first instance ran before the second, and now runs after it."""
    return was.before(pair.equal), now.after(pair.equal, same)


def turns_fast(pair: Pair, was: Schedule, now: Schedule, same: bool) -> bool | None:
    """Whether two touches of one element can change their order, first before second; None if not clear.

    Only loops in which the two instances may differ count. While the outermost of these is the same loop in
    both schedules, instances that differ there keep their order; where they part, each loop's sign is free.
    """
    agree = pinned(pair)
    if agree is None:
        return False
    sizes = pair.extents
    old = [name for name in was.common if name not in agree and sizes[name] > 1]
    new = [name for name in now.common if name not in agree and sizes[name] > 1]
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    if (not old and not was.textual) or (not new and (now.textual or same)):
        return False
    x = dict.fromkeys(sizes, 0)
    y = dict(x)
    if old:
        y[old[0]] = 1
    if new:
        x[new[0]] = 1
    return True if touches(pair, x, y) else None
