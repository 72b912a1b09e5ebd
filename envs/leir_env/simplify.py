"""Normal form of integer index expressions, for rewriting: sums of integer multiples of atoms.

Atoms are expressions: loop indices, `x//c`, `x%c` that do not reduce further, and whatever is not arithmetic.
So every expression has a form and every form an expression, its terms in the order of the text. All rules hold
for every integer within the given extents, so that a rewriting stays exact. To ask what an expression can be
(dependences, bounds), see `affine`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass

from envs.leir_env.affine import Interval
from envs.leir_env.ir import (
    Access,
    Block,
    Call,
    Const,
    Equation,
    Expr,
    Index,
    Loop,
    Statement,
    children,
    with_children,
)
from envs.leir_env.tree import indices, substitute

_ARITHMETIC = frozenset({"add", "sub", "mul", "neg", "floordiv", "mod"})
_COMPARE = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}

Extents = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Linear:
    """`constant` plus the sum of each atom times its coefficient (none of them zero)."""

    terms: tuple[tuple[Expr, int], ...] = ()
    constant: int = 0

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """Return `self + factor * other`, with the terms in order of first appearance."""
        total = dict(self.terms)
        for atom, coefficient in other.terms:
            total[atom] = total.get(atom, 0) + factor * coefficient
        kept = tuple((atom, c) for atom, c in total.items() if c)
        return Linear(kept, self.constant + factor * other.constant)

    def times(self, factor: int) -> Linear:
        return Linear().plus(self, factor)

    def interval(self, extents: Extents) -> Interval | None:
        """The least and greatest value within the extents, or None if an atom is unbounded."""
        low = high = self.constant
        for atom, coefficient in self.terms:
            bounds = _atom_interval(atom, extents)
            if bounds is None:
                return None
            ends = (coefficient * bounds[0], coefficient * bounds[1])
            low, high = low + min(ends), high + max(ends)
        return low, high

    def expression(self) -> Expr:
        """Return it as an expression: positive terms, negative terms, constant."""
        ordered = sorted(self.terms, key=lambda term: term[1] < 0)
        value: Expr | None = None
        for atom, coefficient in ordered:
            size = abs(coefficient)
            term = atom if size == 1 else Call("mul", (Const(size), atom))
            if value is None and coefficient < 0 and self.constant > 0:
                value = Call("sub", (Const(self.constant), term))
                return Linear(tuple(ordered[1:]), 0)._onto(value)
            if value is None:
                value = term if coefficient > 0 else Call("neg", (term,))
            else:
                value = Call("add" if coefficient > 0 else "sub", (value, term))
        if value is None:
            return Const(self.constant)
        if self.constant:
            op = "add" if self.constant > 0 else "sub"
            value = Call(op, (value, Const(abs(self.constant))))
        return value

    def _onto(self, value: Expr) -> Expr:
        for atom, coefficient in self.terms:
            size = abs(coefficient)
            value = Call("sub", (value, atom if size == 1 else Call("mul", (Const(size), atom))))
        return value


@functools.lru_cache(maxsize=65536)
def is_index_expression(expr: Expr) -> bool:
    """Is it integer arithmetic over loop indices and integer constants alone?"""
    match expr:
        case Index():
            return True
        case Const(value):
            return isinstance(value, int) and not isinstance(value, bool)
        case Call(op, args):
            return op in _ARITHMETIC and all(is_index_expression(arg) for arg in args)
    return False


def linear(expr: Expr, extents: Extents) -> Linear:
    """Return the normal form of an integer expression."""
    plain = _plain(expr)
    return _linear(expr, extents) if plain is None else plain


@functools.lru_cache(maxsize=65536)
def _plain(expr: Expr) -> Linear | None:
    """The normal form where it is a sum of multiples of indices, which needs no extents."""
    match expr:
        case Index():
            return Linear(((expr, 1),))
        case Const(int(value)):
            return Linear((), value)
        case Call("add" | "sub" as op, (left, right)):
            a, b = _plain(left), _plain(right)
            return None if a is None or b is None else a.plus(b, 1 if op == "add" else -1)
        case Call("mul", (Const(int(factor)), value)):
            inner = _plain(value)
            return None if inner is None else inner.times(factor)
    return None


def _linear(expr: Expr, extents: Extents) -> Linear:
    match expr:
        case Call("add", (left, right)):
            return _recombine(linear(left, extents).plus(linear(right, extents)))
        case Call("sub", (left, right)):
            return _recombine(linear(left, extents).plus(linear(right, extents), -1))
        case Const(int(value)):
            return Linear((), value)
        case Call("neg", (value,)):
            return linear(value, extents).times(-1)
        case Call("mul", (left, right)):
            a, b = linear(left, extents), linear(right, extents)
            if not a.terms:
                return b.times(a.constant)
            if not b.terms:
                return a.times(b.constant)
            return Linear(((Call("mul", (a.expression(), b.expression())), 1),))
        case Call("floordiv" | "mod" as op, (value, Const(int(divisor)))) if divisor > 0:
            return _divided(op, linear(value, extents), divisor, extents)
        case Call(op, args) if op in _ARITHMETIC:
            return Linear(((Call(op, tuple(simplify(arg, extents) for arg in args)), 1),))
    return Linear(((expr, 1),))


def _divided(op: str, value: Linear, divisor: int, extents: Extents) -> Linear:
    """Split off the multiples of the divisor; what is left may vanish by its bounds."""
    multiples = Linear(
        tuple((atom, c // divisor) for atom, c in value.terms if c % divisor == 0), value.constant // divisor
    )
    rest = Linear(tuple((atom, c) for atom, c in value.terms if c % divisor), value.constant % divisor)
    bounds = rest.interval(extents)
    if bounds and bounds[0] // divisor == bounds[1] // divisor:
        quotient = bounds[0] // divisor
        if op == "floordiv":
            return multiples.plus(Linear((), quotient))
        return rest.plus(Linear((), -quotient * divisor))
    stepped = _by_step(op, rest, divisor, extents)
    if stepped is not None:
        return multiples.plus(stepped) if op == "floordiv" else stepped
    if op == "mod":
        return Linear(((Call("mod", (rest.expression(), Const(divisor))), 1),))
    match rest.expression():
        case Call("floordiv", (value_below, Const(int(below)))):
            quotient_of = Call("floordiv", (value_below, Const(below * divisor)))
        case other:
            quotient_of = Call("floordiv", (other, Const(divisor)))
    return multiples.plus(Linear(((quotient_of, 1),)))


def _by_step(op: str, value: Linear, divisor: int, extents: Extents) -> Linear | None:
    """Apply `(s*x + y) // (s*d) = x // d` and `(s*x + y) % (s*d) = s*(x % d) + y` where `0 <= y < s`."""
    for step in sorted({math.gcd(divisor, coefficient) for _, coefficient in value.terms} - {1}, reverse=True):
        small = Linear(tuple((atom, c) for atom, c in value.terms if c % step), value.constant % step)
        ends = small.interval(extents)
        if ends and ends[0] >= 0 and ends[1] < step:
            large = tuple((atom, c // step) for atom, c in value.terms if c % step == 0)
            inner = _divided(op, Linear(large, value.constant // step), divisor // step, extents)
            return inner if op == "floordiv" else inner.times(step).plus(small)
    return None


def _recombine(value: Linear) -> Linear:
    """Apply `c*(x//c) + x%c = x`, for any multiple of it."""
    terms = dict(value.terms)
    for atom, coefficient in value.terms:
        match atom:
            case Call("mod", (base, Const(int(divisor)))):
                pass
            case _:
                continue
        inner, outer = base, divisor
        if isinstance(base, Call) and base.op == "floordiv" and isinstance(base.args[1], Const):
            inner, outer = base.args[0], int(base.args[1].value) * divisor
        quotient = Call("floordiv", (inner, Const(outer)))
        if terms.get(quotient) == coefficient * divisor:
            rest = Linear(tuple((a, c) for a, c in value.terms if a not in (atom, quotient)), value.constant)
            return _recombine(rest.plus(linear(base, {}), coefficient))
    return value


def _atom_interval(atom: Expr, extents: Extents) -> Interval | None:
    match atom:
        case Index(name):
            return (0, extents[name] - 1) if name in extents else None
        case Call("mod", (value, Const(int(divisor)))):
            inner = linear(value, extents).interval(extents)
            return inner if inner and inner[0] >= 0 and inner[1] < divisor else (0, divisor - 1)
        case Call("floordiv", (value, Const(int(divisor)))):
            inner = linear(value, extents).interval(extents)
            return (inner[0] // divisor, inner[1] // divisor) if inner else None
    return None


def simplify(expr: Expr, extents: Extents) -> Expr:
    """Normalise every integer index expression in `expr`; decide comparisons that bounds settle."""
    return _Rewriting({}, extents).of(expr)


class _Rewriting:
    """Replaces indices by expressions and simplifies, below loops of the given extents; each expression once."""

    __slots__ = ("extents", "known", "values")

    def __init__(self, values: Mapping[str, Expr], extents: Extents) -> None:
        self.values, self.extents = values, extents
        self.known: dict[Expr, Expr] = {}

    def of(self, expr: Expr) -> Expr:
        found = self.known.get(expr)
        if found is None:
            found = self.known[expr] = self._rewritten(expr)
        return found

    def _rewritten(self, expr: Expr) -> Expr:
        if is_index_expression(expr):
            moved = substitute(expr, self.values)
            if is_index_expression(moved):
                return moved if isinstance(moved, Index | Const) else linear(moved, self.extents).expression()
            return simplify(moved, self.extents)
        below = children(expr)
        new = tuple([self.of(child) for child in below])
        if isinstance(expr, Call):
            if expr.op in _COMPARE and all(map(is_index_expression, new)):
                decided = _decide(expr.op, new, self.extents)
                if decided is not None:
                    return Const(decided)
            if expr.op == "select" and isinstance(new[0], Const):
                return new[1] if new[0].value else new[2]
            if expr.op in ("and", "or") and any(isinstance(arg, Const) for arg in new):
                absorbing = expr.op == "or"
                if any(isinstance(arg, Const) and arg.value == absorbing for arg in new):
                    return Const(absorbing)
                others = [arg for arg in new if not isinstance(arg, Const)]
                return others[0] if others else Const(not absorbing)
        return expr if new == below else with_children(expr, new)


def _decide(op: str, sides: tuple[Expr, ...], extents: Extents) -> bool | None:
    difference = linear(sides[0], extents).plus(linear(sides[1], extents), -1)
    ends = difference.interval(extents)
    if ends is None:
        return None
    compare = _COMPARE[op]
    if op in ("eq", "ne"):
        if ends[0] > 0 or ends[1] < 0:
            return op == "ne"
        return compare(0, 0) if ends == (0, 0) else None
    verdicts = {bool(compare(end, 0)) for end in ends}
    return verdicts.pop() if len(verdicts) == 1 else None


def rewrite(statement: Statement, values: Mapping[str, Expr], extents: Extents) -> Statement:
    """Replace indices by expressions in every equation below, simplify, and drop guards that always hold.

    `extents` are those of the loops around `statement`; the loops within add their own. Without `values`,
    everything is simplified.
    """
    return _rewrite(statement, _Rewriting(values, extents))


def _rewrite(statement: Statement, rewriting: _Rewriting) -> Statement:
    values = rewriting.values
    if isinstance(statement, Loop):
        inner = _Rewriting(values, {**rewriting.extents, statement.index: statement.extent})
        block = Block(tuple([_rewrite(child, inner) for child in statement.block.body]), statement.block.tensors)
        return Loop(statement.kind, statement.index, statement.extent, block, statement.axis)

    def change(expr: Expr) -> Expr:
        return expr if values and indices(expr).isdisjoint(values) else rewriting.of(expr)

    target = Access(statement.target.tensor, tuple([change(subscript) for subscript in statement.target.subscripts]))
    guard = tuple([g for g in map(change, statement.guard) if g != _TRUE])
    return Equation(target, statement.assign, change(statement.value), guard)


_TRUE = Const(True)
