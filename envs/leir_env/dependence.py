"""Dependences: which iterations touch the same element, and in which order they do.

Memory-based dependences over reads, writes and accumulations. A tensor is private to each execution of the
block that declares it, so two touches of it agree in the loops around that block. A question about two
references is first put to a fast engine: it proves "never" by digits (equal subscripts force equal indices)
and "some time" by a witness, a pair of iterations that it checks. What it can't decide goes to islpy; both
have one meaning. Opaque subscripts may be any element, opaque conditions may hold.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from envs.leir_env import polyhedral
from envs.leir_env.affine import (
    Affine,
    Digit,
    composed,
    digit,
    digital,
    evaluate,
    is_affine_condition,
    is_quasi_affine,
    unique,
)
from envs.leir_env.ir import Access, Assign, Call, Const, Equation, Expr, Index, Loop, children
from envs.leir_env.tree import Path, indices, substitute

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
        parts = [part for condition in conditions for part in _conjuncts(condition)]
        known = tuple(part for part in parts if is_affine_condition(part))
        return _Conditions(self.affine + known, self.opaque or len(known) < len(parts))

    def reference(self, access: Access, assign: Assign | None = None) -> Reference:
        return Reference(access, self.affine, assign, self.opaque)


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    """The conditions that hold together where `condition` holds: what one says of data does not hide the others."""
    match condition:
        case Call("and", args):
            for arg in args:
                yield from _conjuncts(arg)
        case Call("not", (Call("or", args),)):
            for arg in args:
                yield from _conjuncts(Call("not", (arg,)))
        case Call("not", (Call("not", (inner,)),)):
            yield from _conjuncts(inner)
        case _:
            yield condition


def _reads(expr: Expr, conditions: _Conditions) -> Iterator[Reference]:
    if isinstance(expr, Index | Const):
        return
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


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """An equation in a sequence of nests, and the loops around it there."""

    equation: Equation
    path: Path
    loops: Extents
    private: Mapping[str, int]
    """For each tensor declared around it inside a loop, how many of `loops` stand around the declaration."""
    names: tuple[str, ...]
    """The indices of `loops`."""


class Body:
    """The equations of a body and which of them meet. The meetings hold the very statements listed here."""

    def __init__(self, body: tuple[Equation | Loop, ...]) -> None:
        self.statements = _statements(body)

    @functools.cached_property
    def meetings(self) -> tuple[Meeting, ...]:
        """Every two references that may touch the same element, at least one of them a write."""
        touched: dict[str, _Group] = {}
        for statement in self.statements:
            for reference in references(statement.equation):
                touched.setdefault(reference.access.tensor, []).append((statement, reference))
        return tuple(meeting for group in touched.values() for meeting in _meet(group))


@functools.lru_cache(maxsize=16384)
def analysed(body: tuple[Equation | Loop, ...]) -> Body:
    """The analysis of a body, remembered."""
    return Body(body)


def _statements(body: tuple[Equation | Loop, ...]) -> tuple[Statement, ...]:
    found: list[Statement] = []

    def visit(statement: Equation | Loop, path: Path, loops: Extents, private: Mapping[str, int]) -> None:
        if isinstance(statement, Equation):
            names = tuple(name for name, _ in loops)
            found.append(Statement(statement, path, loops, private, names))
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
    """The loops that two statements of one sequence both stand in, from the outside in."""
    if s is t:
        return s.names
    depth = 0
    limit = min(len(s.loops), len(t.loops))
    while depth < limit and s.path[depth] == t.path[depth]:
        depth += 1
    return s.names[:depth]


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """Two references to one tensor, at least one a write, that may touch the same element."""

    s: Statement
    a: Reference
    t: Statement
    b: Reference
    private: int
    """How many of their common loops stand around the tensor's declaration: these agree in both."""
    agree: frozenset[str]
    """Loops whose indices agree whenever both touch the same element (`pinned`)."""

    @property
    def tensor(self) -> str:
        return self.a.access.tensor

    @property
    def equal(self) -> frozenset[str]:
        """The loops around the tensor's declaration."""
        return frozenset(self.s.names[: self.private])

    @property
    def mirrored(self) -> Meeting:
        """The same with the references exchanged."""
        return Meeting(self.t, self.b, self.s, self.a, self.private, self.agree)

    @property
    def directions(self) -> tuple[Meeting, ...]:
        """This and its mirror image, which is the same for a reference that meets itself."""
        return (self,) if self.s is self.t and self.a is self.b else (self, self.mirrored)

    @property
    def extents(self) -> dict[str, int]:
        return dict(self.s.loops + self.t.loops)

    @property
    def kind(self) -> str:
        """The kind of a dependence from the first reference to the second."""
        if self.a.accumulates and self.a.assign is self.b.assign:
            return "reduction"
        return "output" if self.a.writes and self.b.writes else "flow" if self.a.writes else "anti"


_Group = list[tuple[Statement, Reference]]


@functools.lru_cache(maxsize=16384)
def loop_meetings(nest: Equation | Loop) -> tuple[Meeting, ...]:
    """The meetings in a nest, but for those that differ from another one in their place in the text only.

    Enough for questions about loops; few even where a block holds hundreds of similar equations.
    """
    touched: dict[str, dict[tuple[Path, Reference], tuple[Statement, Reference]]] = {}
    for statement in analysed((nest,)).statements:
        for reference in references(statement.equation):
            key = statement.path[:-1], reference
            touched.setdefault(reference.access.tensor, {}).setdefault(key, (statement, reference))
    return tuple(meeting for group in touched.values() for meeting in _meet(list(group.values())))


def _meet(group: _Group) -> Iterator[Meeting]:
    if not any(reference.writes for _, reference in group):
        return
    for n, (s, a) in enumerate(group):
        private = s.private.get(a.access.tensor, 0)
        for t, b in group[n:]:
            if a.writes or b.writes:
                agree = pinned(a.access, b.access, s.names[:private], dict(s.loops + t.loops))
                if agree is not None:
                    yield Meeting(s, a, t, b, private, agree)


@functools.lru_cache(maxsize=65536)
def _forms(a: Access, b: Access) -> tuple[tuple[Affine, Affine], ...]:
    """The dimensions in which both subscripts are affine over digits."""
    forms = [(digital(s), digital(t)) for s, t in zip(a.subscripts, b.subscripts, strict=True)]
    return tuple((s, t) for s, t in forms if s is not None and t is not None)


def pinned(a: Access, b: Access, equal: Iterable[str], extents: Mapping[str, int]) -> frozenset[str] | None:
    """Return the indices that agree whenever both touch the same element; None if they never do.

    Those in `equal` agree anyway. Never claims too much: an index left out may agree all the same.
    """
    agree = set(equal)
    digits: dict[str, set[Digit]] = {}

    def free(form: Affine) -> list[tuple[str, int]]:
        return [term for term in form.terms if term[0] not in agree and digit(term[0]).index not in agree]

    forms = _forms(a, b)
    again = True
    while again:
        again = False
        for one, two in forms:
            if one != two:
                loose = free(one)
                same = {term[0] for term in one.terms if term not in loose and term in two.terms}
                one, two = one - one.part(same), two - two.part(same)
            if one == two:
                loose = free(one)
                if loose and unique(loose, extents):
                    again = len(forms) > 1
                    for name, _ in loose:
                        agree.add(name)
                        number = digit(name)
                        found = digits.setdefault(number.index, set())
                        found.add(number)
                        if composed(found, extents[number.index]):
                            agree.add(number.index)
                continue
            (low, high), (least, most) = one.interval(extents), two.interval(extents)
            if high < least or most < low:
                return None
    return frozenset(agree)


PRIME = "'"
"""Marks an index of the second instance; no index name of a program contains it."""


def touches(meeting: Meeting, x: Mapping[str, int], y: Mapping[str, int]) -> bool:
    """Whether the references touch the same element in iterations x and y, opaque subscripts apart."""
    a, b = meeting.a, meeting.b
    return (
        all(
            not (is_quasi_affine(s) and is_quasi_affine(t)) or evaluate(s, x) == evaluate(t, y)
            for s, t in zip(a.access.subscripts, b.access.subscripts, strict=True)
        )
        and all(evaluate(condition, x) for condition in a.conditions)
        and all(evaluate(condition, y) for condition in b.conditions)
    )


def exists(meeting: Meeting, equal: frozenset[str], order: tuple[Expr, ...]) -> bool:
    """Ask islpy whether two iterations touch the same element, in an order given as conditions.

    Indices in `equal` have one value in both; the others of the second iteration are primed. True also
    where islpy gives up.
    """
    renaming: dict[str, Expr] = {name: Index(name + PRIME) for name in meeting.t.names if name not in equal}
    meet = tuple(
        Call("eq", (s, substitute(t, renaming)))
        for s, t in zip(meeting.a.access.subscripts, meeting.b.access.subscripts, strict=True)
        if is_quasi_affine(s) and is_quasi_affine(t)
    )
    there = tuple(substitute(condition, renaming) for condition in meeting.b.conditions)
    conditions = meet + meeting.a.conditions + there + order
    used = frozenset().union(*(indices(condition) for condition in conditions))
    variables = dict(meeting.s.loops)
    for name, extent in meeting.t.loops:
        variables[name if name in equal else name + PRIME] = extent
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


MAX_QUESTIONS = 256
"""Questions to islpy about one nest; beyond these its loops are taken to carry what they may."""


@functools.lru_cache(maxsize=16384)
def carried(nest: Equation | Loop) -> Mapping[Path, tuple[Dependence, ...]]:
    """Return, for each loop of a nest that has any, the dependences between its iterations.

    Within one iteration of the loops around it; one for each tensor and kind. Paths are relative: the nest
    itself is the empty path.
    """
    found: dict[Path, dict[tuple[str, str], Dependence]] = {}
    questions = 0
    for meeting in loop_meetings(nest):
        common = common_loops(meeting.s, meeting.t)
        for depth in range(meeting.private, len(common)):
            if common[depth] in meeting.agree or meeting.s.loops[depth][1] == 1:
                continue
            here = found.setdefault(meeting.s.path[1 : depth + 1], {})
            for m in meeting.directions:
                if (m.tensor, m.kind) in here:
                    continue
                answer = carries_fast(m, depth)
                if answer is None:
                    questions += 1
                    outer = frozenset(common[:depth])
                    answer = questions > MAX_QUESTIONS or exists(m, outer, carried_order(common[depth]))
                if answer:
                    here[m.tensor, m.kind] = Dependence(m.tensor, m.kind, m.s.equation, m.t.equation)
    return {path: tuple(here.values()) for path, here in found.items() if here}


def carried_order(index: str) -> tuple[Expr, ...]:
    """The condition that the first iteration is earlier in loop `index`."""
    return (Call("lt", (Index(index), Index(index + PRIME))),)


def carries_fast(meeting: Meeting, depth: int) -> bool | None:
    """Whether the second can touch what the first did in an earlier iteration; None if not clear.

    An iteration is one of their common loop at `depth`, within one iteration of the loops around that.
    """
    extents, outer, index = meeting.extents, meeting.s.names[:depth], meeting.s.names[depth]
    agree = pinned(meeting.a.access, meeting.b.access, outer, extents)
    if agree is None or index in agree or extents[index] == 1:
        return False
    x = dict.fromkeys(extents, 0)
    return any(touches(meeting, x, {**x, index: step}) for step in _steps(meeting, index)) or None


def _steps(meeting: Meeting, index: str) -> Iterator[int]:
    """Distances at which some digits of an index return to their value: 1, and where its digits carry over."""
    yield 1
    for form in {form for pair in _forms(meeting.a.access, meeting.b.access) for form in pair}:
        for name, _ in form.terms:
            number = digit(name)
            step = number.divisor * max(1, number.modulus)
            if number.index == index and 1 < step < meeting.extents[index]:
                yield step


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

    def free(self, meeting: Meeting) -> list[str]:
        """The common loops in which two touches of one element may differ."""
        agree, extents = meeting.agree, meeting.extents
        return [name for name in self.common if name not in agree and extents[name] > 1]


def turns(meeting: Meeting, was: Schedule, now: Schedule) -> bool:
    """Whether two touches of one element, the first before the second in one schedule, turn in another."""
    fast = turns_fast(meeting, was, now)
    return exists(meeting, meeting.agree, turned_order(meeting, was, now)) if fast is None else fast


def turned_order(meeting: Meeting, was: Schedule, now: Schedule) -> tuple[Expr, ...]:
    """The condition that the first iteration ran before the second, and now runs after it."""
    return was.before(meeting.agree), now.after(meeting.agree, meeting.s is meeting.t)


def turns_fast(meeting: Meeting, was: Schedule, now: Schedule) -> bool | None:
    """Whether they turn, as far as digits and a witness can tell; None if not clear.

    Only loops in which the two touches may differ count. While the outermost of these is the same loop in
    both schedules, touches that differ there keep their order; where they part, each loop's sign is free.
    """
    old, new = was.free(meeting), now.free(meeting)
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    same = meeting.s is meeting.t
    if (not old and not was.textual) or (not new and (now.textual or same)):
        return False
    start = dict.fromkeys(meeting.extents, 0)
    later = [{**start, old[0]: step} for step in _steps(meeting, old[0])] if old else [start]
    earlier = [{**start, new[0]: step} for step in _steps(meeting, new[0])] if new else [start]
    return any(touches(meeting, x, y) for x in earlier for y in later) or None
