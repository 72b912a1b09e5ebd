"""Affine forms of integer expressions, for analysis: coefficients, intervals, and mixed-radix digits.

What the dependence tests, the proofs and the lowering know about a subscript. An expression is affine over
loop indices, quasi-affine when it also divides by constants (`//`, `%`) or takes a minimum or maximum, and
opaque otherwise (an indirect subscript, a product of two indices). Fused loops divide one index into digits
(`f//64`, `f%64`); a digital form is affine over indices and such digits.

Forms here are keyed by names, sorted, independent of extents, and None for what is not affine: equal forms
are equal functions. To rewrite an expression and print it again, see `simplify`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.leir_env.ir import Access, Call, Cast, Const, DType, Expr, Index

Interval = tuple[int, int]
"""The least and the greatest value."""


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum(coefficient * index) + constant`. `terms` are sorted by name; no coefficient is zero.

    In a digital form a name may also spell a digit of an index.
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.terms)

    def coefficient(self, name: str) -> int:
        """The factor of an index, 0 where it does not occur."""
        return dict(self.terms).get(name, 0)

    def __add__(self, other: Affine) -> Affine:
        total = dict(self.terms)
        for name, factor in other.terms:
            total[name] = total.get(name, 0) + factor
        terms = tuple(sorted((name, factor) for name, factor in total.items() if factor))
        return Affine(terms, self.constant + other.constant)

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Affine:
        """The form times a constant."""
        if not factor:
            return Affine()
        terms = tuple((name, factor * coefficient) for name, coefficient in self.terms)
        return Affine(terms, factor * self.constant)

    def part(self, names: Iterable[str]) -> Affine:
        """The terms over `names`, without the constant."""
        return Affine(tuple(term for term in self.terms if term[0] in names))

    def interval(self, extents: Mapping[str, int]) -> Interval:
        """The range over the box of loop extents (1 or more each); both ends are reached."""
        low = high = self.constant
        for name, factor in self.terms:
            reach = factor * (extent_of(name, extents) - 1)
            if reach < 0:
                low += reach
            else:
                high += reach
        return low, high


def extent_of(name: str, extents: Mapping[str, int]) -> int:
    """How many values an index, or a digit of one, has at most."""
    return extents[name] if name in extents else digit(name).extent(extents)


@dataclass(frozen=True, slots=True)
class Digit:
    """`index // divisor % modulus`; a modulus of 0 is none. Spelled `f/64%0` as a name in a form."""

    index: str
    divisor: int = 1
    modulus: int = 0

    @property
    def name(self) -> str:
        return f"{self.index}/{self.divisor}%{self.modulus}" if (self.divisor, self.modulus) != (1, 0) else self.index

    def extent(self, extents: Mapping[str, int]) -> int:
        """How many values it has at most."""
        quotients = -(-extents[self.index] // self.divisor)
        return min(quotients, self.modulus) if self.modulus else quotients


@functools.lru_cache(maxsize=16384)
def digit(name: str) -> Digit:
    """The digit that a name in a form spells; an index is its own only digit."""
    index, _, rest = name.partition("/")
    divisor, _, modulus = rest.partition("%")
    return Digit(index, int(divisor), int(modulus)) if rest else Digit(index)


@functools.lru_cache(maxsize=65536)
def digital(expr: Expr) -> Affine | None:
    """Return the form of `expr` that is affine over indices and digits of indices, or None if it has none."""
    match expr:
        case Const(value):
            return Affine((), value) if type(value) is int else None
        case Index(name):
            return Affine(((name, 1),))
        case Cast(DType.I64, value):
            return digital(value)
        case Call("neg", (value,)):
            form = digital(value)
            return form and form.scaled(-1)
        case Call("add" | "sub" | "mul" as op, (left, right)):
            a, b = digital(left), digital(right)
            if a is None or b is None:
                return None
            if op == "mul":
                return b.scaled(a.constant) if not a.terms else a.scaled(b.constant) if not b.terms else None
            return a + b if op == "add" else a - b
        case Call("floordiv" | "mod" as op, (value, Const(divisor))) if type(divisor) is int and divisor > 0:
            match digital(value):
                case Affine(((name, 1),), 0):
                    found = _divided(digit(name), op, divisor)
                    return None if found is None else Affine(((found.name, 1),))
    return None


def _divided(number: Digit, op: str, divisor: int) -> Digit | None:
    if number.modulus % divisor:
        return None
    if op == "mod":
        return Digit(number.index, number.divisor, divisor)
    return Digit(number.index, number.divisor * divisor, number.modulus // divisor)


def affine(expr: Expr) -> Affine | None:
    """Return the affine form of `expr` over loop indices, or None where it has none."""
    form = digital(expr)
    return None if form is None or any("/" in name for name, _ in form.terms) else form


def composed(digits: Iterable[Digit], extent: int) -> bool:
    """Whether some digits of one index of this extent determine it: `f//8` and `f%8` do."""
    reach = 1
    for number in sorted(digits, key=lambda number: number.divisor):
        if number.divisor > reach:
            return False
        reach = max(reach, number.divisor * number.modulus if number.modulus else extent)
    return reach >= extent


def independent(digits: Iterable[Digit], extent: int) -> bool:
    """Whether some digits of one index of this extent take all combinations of their values."""
    reach = 1
    for number in sorted(digits, key=lambda number: number.divisor):
        top = number.divisor * number.modulus if number.modulus else extent
        if number.divisor < reach or top > extent or (extent % number.divisor and not number.modulus):
            return False
        reach = top
    return True


_QUASI_AFFINE = frozenset({"add", "sub", "neg", "min", "max"})
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_LOGIC = frozenset({"and", "or", "not"})


@functools.lru_cache(maxsize=65536)
def is_quasi_affine(expr: Expr) -> bool:
    """Whether Presburger arithmetic can express an integer `expr` over loop indices."""
    match expr:
        case Const(value):
            return type(value) is int
        case Index():
            return True
        case Cast(DType.I64, value):
            return is_quasi_affine(value)
        case Call("mul", (left, right)):
            constant = isinstance(left, Const) or isinstance(right, Const)
            return affine(expr) is not None or (constant and is_quasi_affine(left) and is_quasi_affine(right))
        case Call("floordiv" | "mod", (value, Const(divisor))):
            return type(divisor) is int and divisor > 0 and is_quasi_affine(value)
        case Call(op, args):
            return op in _QUASI_AFFINE and all(is_quasi_affine(arg) for arg in args)
    return False


@functools.lru_cache(maxsize=65536)
def is_affine_condition(expr: Expr) -> bool:
    """Whether Presburger arithmetic can express a boolean `expr` over loop indices."""
    match expr:
        case Const(value):
            return isinstance(value, bool)
        case Call(op, args) if op in _COMPARISONS:
            return all(is_quasi_affine(arg) for arg in args)
        case Call(op, args) if op in _LOGIC:
            return all(is_affine_condition(arg) for arg in args)
    return False


def interval(expr: Expr, extents: Mapping[str, int]) -> Interval | None:
    """Return bounds of an integer expression under loop extents, or None where nothing is known.

    Exact for affine expressions; an enclosure for `//`, `%`, `min`, `max`, `abs` and `select`.
    """
    form = affine(expr)
    if form is not None:
        return form.interval(extents)
    match expr:
        case Call("mod", (value, Const(int(divisor)))) if divisor > 0:
            bounds = interval(value, extents)
            if bounds is None or bounds[0] // divisor != bounds[1] // divisor:
                return 0, divisor - 1
            return bounds[0] % divisor, bounds[1] % divisor
        case Call("select", (_, *arms)):
            ranges = [interval(arm, extents) for arm in arms]
        case Call(_, args):
            ranges = [interval(arg, extents) for arg in args]
        case _:
            return None
    known = [bounds for bounds in ranges if bounds is not None]
    rule = _INTERVALS.get(expr.op)
    return rule(*known) if rule and len(known) == len(ranges) else None


def _product(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _quotient(a: Interval, b: Interval) -> Interval | None:
    return (a[0] // b[0], a[1] // b[0]) if b[0] == b[1] > 0 else None


def _magnitude(a: Interval) -> Interval:
    return (0 if a[0] <= 0 <= a[1] else min(map(abs, a))), max(map(abs, a))


_INTERVALS: dict[str, Callable[..., Interval | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "neg": lambda a: (-a[1], -a[0]),
    "mul": _product,
    "floordiv": _quotient,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "select": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "abs": _magnitude,
}


def unique(terms: Sequence[tuple[str, int]], extents: Mapping[str, int]) -> bool:
    """Whether the sum of the terms determines every index in it: 32io+ii does if ii has extent <= 32."""
    if len(terms) == 1:
        return True
    reach = 0
    for name, factor in sorted(terms, key=_magnitude_of_factor):
        span = abs(factor) * (extent_of(name, extents) - 1)
        if span and abs(factor) <= reach:
            return False
        reach += span
    return True


def _magnitude_of_factor(term: tuple[str, int]) -> int:
    return abs(term[1])


def strides(access: Access, shape: tuple[int, ...]) -> Mapping[str, int] | None:
    """Return by how many elements of a row-major tensor one step of each index moves; None if not affine."""
    total = Affine()
    step = 1
    for subscript, extent in zip(reversed(access.subscripts), reversed(shape), strict=True):
        form = affine(subscript)
        if form is None:
            return None
        total, step = total + form.scaled(step), step * extent
    return dict(total.terms)


def evaluate(expr: Expr, point: Mapping[str, int]) -> int:
    """Return the value of a quasi-affine expression, or of an affine condition (0 or 1), at a point."""
    match expr:
        case Const(value):
            return int(value)
        case Index(name):
            return point[name]
        case Cast(_, value):
            return evaluate(value, point)
        case Call(op, args):
            return int(_MEANING[op](*[evaluate(arg, point) for arg in args]))
    raise ValueError(f"not quasi-affine: {expr}")


_MEANING: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "floordiv", "mod")},
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "not": operator.not_,
}
