"""Proofs about single elements: subscripts within bounds, reads after writes, outputs complete.

Intervals and digits settle the common cases; islpy the rest, with guards and the conditions of selects as
constraints. What depends on data can't be proved either way and is let pass.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

from envs.leir_env import polyhedral
from envs.leir_env.affine import (
    Affine,
    Digit,
    Interval,
    affine,
    digit,
    digital,
    evaluate,
    extent_of,
    independent,
    interval,
    is_quasi_affine,
)
from envs.leir_env.dependence import (
    PRIME,
    Extents,
    Reference,
    Schedule,
    Statement,
    analysed,
    common_loops,
    references,
)
from envs.leir_env.ir import Access, Call, Const, Equation, Expr, Index, Program, Role, Tensor
from envs.leir_env.printer import show_equation, show_expression
from envs.leir_env.tree import Path, indices, substitute

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@functools.lru_cache(maxsize=16384)
def out_of_bounds(equation: Equation, loops: Extents, shapes: Shapes) -> tuple[tuple[str, str], ...]:
    """Return a sentence and the tensor for each subscript of an equation that leaves its tensor.

    `loops` are those whose indices it uses, `shapes` those of its tensors.
    """
    known = dict(shapes)
    return tuple(
        (sentence, reference.access.tensor)
        for reference in dict.fromkeys(references(equation))
        for position, extent in enumerate(known[reference.access.tensor])
        if (sentence := _beyond(reference, position, extent, loops)) is not None
    )


def _beyond(reference: Reference, position: int, extent: int, loops: Extents) -> str | None:
    subscript = reference.access.subscripts[position]
    reach = _under(interval(subscript, dict(loops)), affine(subscript), reference.conditions)
    if reach is None or (reach[0] >= 0 and reach[1] < extent):
        return None
    there = f"but {reference.access.tensor} has extent {extent} there"
    head = f"{show_expression(reference.access)}: subscript {position + 1}"
    value = reach[1] if reach[1] >= extent else reach[0]
    if not is_quasi_affine(subscript):
        return f"{head} may reach {value}, {there}"
    if affine(subscript) is not None and not reference.conditions:
        domain = [f"{name}<{size}" for name, size in loops if name in indices(subscript)]
        return f"{head} reaches {value}, {there}" + (f" ({', '.join(domain)})" if domain else "")
    outside = Call("or", (Call("lt", (subscript, Const(0))), Call("ge", (subscript, Const(extent)))))
    conditions = (*reference.conditions, outside)
    box = _box(loops, conditions)
    found = polyhedral.satisfiable(box, conditions)
    if found is False:
        return None
    if found is None:
        return f"{head} is not proved to stay below {extent}, the extent of {reference.access.tensor} there"
    point = polyhedral.sample(box, conditions)
    return f"{head} reaches {evaluate(subscript, point)}, {there} ({_point(point)})"


def _under(reach: Interval | None, form: Affine | None, conditions: Sequence[Expr]) -> Interval | None:
    """Tighten an interval by conditions that bound the same form: `32io+ii<100` bounds 32io+ii+1 by 100."""
    if reach is None or form is None:
        return reach
    low, high = reach
    for condition in conditions:
        match condition:
            case Call("lt" | "le" | "gt" | "ge" as op, (left, right)):
                a, b = affine(left), affine(right)
                if a is None or b is None:
                    continue
                # The condition as `difference <= 0` or `< 0`.
                difference = a - b if op in ("lt", "le") else b - a
                most = -1 if op in ("lt", "gt") else 0
                if difference.terms == form.terms:
                    high = min(high, form.constant - difference.constant + most)
                elif difference.terms == form.scaled(-1).terms:
                    low = max(low, form.constant + difference.constant - most)
    return low, high


def _box(loops: Extents, conditions: Sequence[Expr]) -> Extents:
    used = frozenset().union(*(indices(condition) for condition in conditions))
    return tuple((name, extent) for name, extent in loops if name in used)


def _point(point: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.items())


Touch = tuple[int, Statement, Reference]
"""A place in the text, the statement there, and one of its references."""


MAX_WRITES = 64
"""Writes of one tensor up to which a read is compared with them element by element."""


def undefined(program: Program, started: frozenset[str]) -> Iterator[tuple[str, Path, str]]:
    """Yield a sentence, the path and the tensor for each read of an element that nothing has written.

    `started` are the tensors that begin with an identity, so that every element of them is written.
    """
    given = frozenset(tensor.name for tensor in program.inputs)
    body = analysed(program.body).statements
    writes: dict[str, list[Touch]] = {}
    reads: list[Touch] = []
    for place, statement in enumerate(body):
        for reference in references(statement.equation):
            if reference.access.tensor in given | started:
                continue
            if reference.writes:
                writes.setdefault(reference.access.tensor, []).append((place, statement, reference))
            if not reference.writes or reference.accumulates:
                reads.append((place, statement, reference))
    for touch in reads:
        _, statement, reference = touch
        name = reference.access.tensor
        sentence = _unwritten(touch, writes.get(name, []))
        if sentence is not None:
            yield f"{show_equation(statement.equation)}: {sentence}", statement.path, name
    for tensor in program.with_role(Role.OUTPUT):
        if tensor.name not in started:
            sentence = _incomplete(tensor, writes.get(tensor.name, []))
            if sentence is not None:
                yield sentence, (), tensor.name


def _unwritten(read: Touch, writes: Sequence[Touch]) -> str | None:
    """Say that some element is read before it is written, if that can be proved."""
    _, statement, reference = read
    name = reference.access.tensor
    if any(_fills(write, read) for write in writes):
        return None
    earlier = [write for write in writes if _may_precede(write, read)]
    if not earlier and polyhedral.satisfiable(statement.loops, reference.conditions) is not False:
        return f"{name} is read before anything writes it" if writes else f"{name} is read, but nothing writes it"
    if len(earlier) > MAX_WRITES or reference.opaque or not all(map(is_quasi_affine, reference.access.subscripts)):
        return None
    if not all(_exact(write[2]) for write in earlier):
        return None
    covers = tuple(_cover(write, read) for write in earlier)
    box = statement.loops
    if polyhedral.satisfiable(box, reference.conditions, covers) is not True:
        return None
    point = polyhedral.sample(box, reference.conditions, covers)
    element = Access(name, tuple(Const(evaluate(subscript, point)) for subscript in reference.access.subscripts))
    where = f" at {_point(point)}" if point else ""
    return f"{show_expression(element)} is read{where} before it is written"


def _may_precede(write: Touch, read: Touch) -> bool:
    """Whether the write stands before the read, or around a loop that its declaration stands outside of."""
    (place, statement, reference), (other, reader, _) = write, read
    shared = len(common_loops(statement, reader))
    return place < other or shared > statement.private.get(reference.access.tensor, 0)


def _exact(write: Reference) -> bool:
    return not write.opaque and all(map(is_quasi_affine, write.access.subscripts))


def _fills(write: Touch, read: Touch) -> bool:
    """Whether the write comes first in each iteration of the common loops, and covers what is read there."""
    (place, statement, reference), (other, reader, wanted) = write, read
    if place >= other or reference.conditions or reference.opaque:
        return False
    common = frozenset(common_loops(statement, reader))
    own = {name: extent for name, extent in statement.loops if name not in common}
    spans = _spans(reference.access, own)
    if spans is None:
        return False
    extents = dict(reader.loops)
    for (fixed, (low, high)), subscript in zip(spans, wanted.access.subscripts, strict=True):
        form = digital(subscript)
        if form is not None:
            least, most = (form - fixed).interval(extents)
        else:
            bounds = None if fixed.terms else interval(subscript, extents)
            if bounds is None:
                return False
            least, most = bounds[0] - fixed.constant, bounds[1] - fixed.constant
        if least < low or most > high:
            return False
    return True


def _spans(access: Access, own: Mapping[str, int]) -> list[tuple[Affine, Interval]] | None:
    """Split each subscript into a part that outer loops fix and a gap-free range that `own` loops run over.

    None where the ranges of two dimensions are not independent, or have gaps.
    """
    spans: list[tuple[Affine, Interval]] = []
    digits: dict[str, list[Digit]] = {}
    for subscript in access.subscripts:
        form = digital(subscript)
        if form is None:
            return None
        moving = Affine(tuple(term for term in form.terms if digit(term[0]).index in own))
        reach = 0
        for name, factor in sorted(moving.terms, key=lambda term: abs(term[1])):
            if abs(factor) > reach + 1:
                return None
            reach += abs(factor) * (extent_of(name, own) - 1)
            digits.setdefault(digit(name).index, []).append(digit(name))
        spans.append((form - moving, moving.interval(own)))
    if all(independent(numbers, own[index]) for index, numbers in digits.items()):
        return spans
    return None


def _cover(write: Touch, read: Touch) -> tuple[Extents, tuple[Expr, ...]]:
    """The condition, at an instance of the read, that an earlier instance of the write wrote its element."""
    (place, statement, reference), (other, reader, wanted) = write, read
    depth = statement.private.get(reference.access.tensor, 0)
    equal = frozenset(statement.names[:depth])
    renaming: dict[str, Expr] = {name: Index(name + PRIME) for name in statement.names if name not in equal}
    meet = tuple(
        Call("eq", (s, substitute(t, renaming)))
        for s, t in zip(wanted.access.subscripts, reference.access.subscripts, strict=True)
    )
    there = tuple(substitute(condition, renaming) for condition in reference.conditions)
    schedule = Schedule(common_loops(statement, reader), other < place)
    before = schedule.after(equal, other == place)
    conditions = (*meet, *there, before)
    own = tuple((name + PRIME, extent) for name, extent in statement.loops if name not in equal)
    return _box(own, conditions), conditions


def _incomplete(tensor: Tensor, writes: Sequence[Touch]) -> str | None:
    """Say which element of an output nothing writes, if that can be proved."""
    for _, statement, reference in writes:
        spans = _spans(reference.access, dict(statement.loops))
        plain = spans is not None and not reference.conditions and not reference.opaque
        if plain and all(
            fixed.constant + low <= 0 and fixed.constant + high >= extent - 1
            for (fixed, (low, high)), extent in zip(spans or (), tensor.shape, strict=True)
        ):
            return None
    if not writes:
        return f"output {tensor.name} is never written"
    if len(writes) > MAX_WRITES or not all(_exact(reference) for _, _, reference in writes):
        return None
    element = tuple((f"{PRIME}{position}", extent) for position, extent in enumerate(tensor.shape))
    covers = tuple((statement.loops, _meets(element, reference)) for _, statement, reference in writes)
    if polyhedral.satisfiable(element, (), covers) is not True:
        return None
    missing = Access(tensor.name, tuple(map(Const, polyhedral.sample(element, (), covers).values())))
    return f"output {tensor.name}: element {show_expression(missing)} is never written"


def _meets(element: Extents, reference: Reference) -> tuple[Expr, ...]:
    equal = tuple(
        Call("eq", (Index(name), subscript))
        for (name, _), subscript in zip(element, reference.access.subscripts, strict=True)
    )
    return equal + reference.conditions
