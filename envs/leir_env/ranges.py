"""What is known of the values of expressions: bounds, signs, and how fast they grow with the inputs.

A range holds for every value that an expression takes over the reals, whatever the inputs. Tensors have ranges
too: a sum of exponentials is positive once it is complete, a maximum is at least each of its terms. Algebra that
needs a sign, or a divisor that can't vanish, asks here; what isn't proved isn't used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from envs.leir_env.ir import Access, Assign, Call, Cast, Const, Equation, Expr, Index, Program
from envs.leir_env.legality import starts
from envs.leir_env.settled import attains_one, is_finished, is_whole, shifted, writers
from envs.leir_env.tree import Node, declarations

AWAY = 1 / 16
"""A divisor of at least this magnitude neither overflows a quotient nor loses its own last bits."""

LEAST = 1e-30
"""Constants that are smaller count as zero: a quotient by them overflows."""

MODERATE = 8.0
"""exp of at most this is below 2981, far from the overflow of any float."""

LINEAR = 600.0
"""What grows linearly with the inputs is taken to stay below this: its exponential is a number in float64."""

EXPONENTIAL = math.inf
"""The growth of an exponential, and of a quotient by what may be small."""


@dataclass(frozen=True, slots=True)
class Range:
    """All values lie between `low` and `high`, infinities included where nothing better is known."""

    low: float = -math.inf
    high: float = math.inf
    nonzero: bool = False
    """No value is zero; nor is one so small that float64 rounds it to zero, if `LINEAR` holds."""
    growth: float = 1.0
    """The degree of a polynomial of the inputs that bounds it: 0 is bounded, 1 linear."""
    finite: bool = True
    """No value is infinite or undefined for finite inputs, overflow apart."""

    @property
    def positive(self) -> bool:
        return self.low > 0 or (self.low >= 0 and self.nonzero)

    @property
    def negative(self) -> bool:
        return self.high < 0 or (self.high <= 0 and self.nonzero)

    @property
    def tame(self) -> bool:
        """Does it grow like a polynomial?"""
        return self.growth < EXPONENTIAL

    @property
    def away(self) -> bool:
        """Is every value at least `AWAY` from zero?"""
        return self.low >= AWAY or self.high <= -AWAY

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))

    @property
    def has_exponential(self) -> bool:
        """Is its exponential neither infinite nor zero in float64, for inputs of ordinary size?"""
        return self.growth <= 1 or self.magnitude <= LINEAR


ANY = Range()
WILD = Range(growth=EXPONENTIAL, finite=False)


def _range(low: float, high: float, nonzero: bool, growth: float) -> Range:
    bounded = max(abs(low), abs(high)) <= LINEAR
    return Range(low, high, nonzero or low >= LEAST or high <= -LEAST, 0.0 if bounded else growth)


def union(ranges: Iterable[Range]) -> Range:
    """The range of a value that lies in one of `ranges` (at least one)."""
    found = tuple(ranges)
    return Range(
        min(r.low for r in found),
        max(r.high for r in found),
        all(r.nonzero for r in found),
        max(r.growth for r in found),
        all(r.finite for r in found),
    )


def _add(a: Range, b: Range) -> Range:
    low, high = a.low + b.low, a.high + b.high
    # A bound that comes of cancellation is itself rounded.
    if a.low * b.low < 0 and math.isfinite(low):
        low -= 1e-12 * (abs(a.low) + abs(b.low))
    if a.high * b.high < 0 and math.isfinite(high):
        high += 1e-12 * (abs(a.high) + abs(b.high))
    up = a.low >= 0 and b.low >= 0 and (a.positive or b.positive)
    down = a.high <= 0 and b.high <= 0 and (a.negative or b.negative)
    return _range(low, high, up or down, max(a.growth, b.growth))


def _negated(a: Range) -> Range:
    return replace(a, low=-a.high, high=-a.low)


def _times(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y


def _multiply(a: Range, b: Range) -> Range:
    ends = [_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    growth = a.growth + b.growth + any(r.growth == 0 and r.magnitude > 4 for r in (a, b))
    return Range(min(ends), max(ends), a.nonzero and b.nonzero, 0.0 if max(map(abs, ends)) <= LINEAR else growth)


def _power(a: Range, times: int) -> Range:
    """`a` multiplied with itself: an even power is never negative."""
    found = a
    for _ in range(times - 1):
        found = _multiply(found, a)
    if times % 2 == 0:
        least = 0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
        return replace(found, low=math.prod([least] * times))
    return found


def _inverse(a: Range) -> Range:
    if a.positive:
        low, high = (1 / end if end > 0 else math.inf for end in (a.high, a.low))
        return Range(low, high, True, 0.0 if a.away else EXPONENTIAL)
    if a.negative:
        return _negated(_inverse(_negated(a)))
    return WILD


def _abs(a: Range) -> Range:
    least = 0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return Range(least, a.magnitude, a.nonzero, a.growth)


def _exp(a: Range) -> Range:
    low, high = (math.exp(end) if end < 700 else math.inf for end in (a.low, a.high))
    nonzero = a.low >= -LINEAR or a.growth <= 1
    return Range(min(low, 1e300), high, nonzero, 0.0 if a.high <= MODERATE else EXPONENTIAL)


def _log(a: Range) -> Range:
    low = math.log(a.low) if a.low > 0 else -math.inf
    high = math.log(a.high) if 0 < a.high < math.inf else math.inf
    growth = 1.0 if a.positive and a.tame else EXPONENTIAL
    return Range(low - 1e-12 * abs(low) if a.low > 0 else low, high, False, growth, a.positive)


def _sqrt(a: Range) -> Range:
    high = math.sqrt(a.high) if 0 <= a.high < math.inf else math.inf
    return Range(math.sqrt(max(a.low, 0.0)), high, a.positive, a.growth)


def _pow(a: Range, b: Range) -> Range:
    if b.low == b.high and b.low in (1.0, 2.0, 3.0, 4.0):
        return _power(a, int(b.low))
    return replace(WILD, low=0.0, nonzero=a.low >= AWAY, finite=True) if a.positive else WILD


def _monotone(function: Callable[[float], float]) -> Callable[[Range], Range]:
    """An odd function that increases up to 1."""

    def apply(a: Range) -> Range:
        return Range(function(a.low), function(a.high), a.nonzero, 0.0)

    return apply


def _sigmoid(a: Range) -> Range:
    return Range(_logistic(a.low), _logistic(a.high), a.low >= -LINEAR or a.growth <= 1, 0.0)


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _least(a: Range, b: Range) -> Range:
    nonzero = (a.positive and b.positive) or a.negative or b.negative
    return _range(min(a.low, b.low), min(a.high, b.high), nonzero, max(a.growth, b.growth))


def _greatest(a: Range, b: Range) -> Range:
    return _negated(_least(_negated(a), _negated(b)))


def _floor(a: Range) -> Range:
    low = math.floor(a.low) if math.isfinite(a.low) else a.low
    return _range(low, a.high, False, a.growth)


_RULES: Mapping[str, Callable[..., Range]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, _negated(b)),
    "div": lambda a, b: _multiply(a, _inverse(b)),
    "neg": _negated,
    "exp": _exp,
    "log": _log,
    "sqrt": _sqrt,
    "rsqrt": lambda a: _inverse(_sqrt(a)),
    "tanh": _monotone(math.tanh),
    "erf": _monotone(math.erf),
    "sigmoid": _sigmoid,
    "sin": lambda a: Range(-1.0, 1.0, False, 0.0),
    "cos": lambda a: Range(-1.0, 1.0, False, 0.0),
    "floor": _floor,
    "abs": _abs,
    "min": _least,
    "max": _greatest,
    "pow": _pow,
    "select": lambda condition, a, b: union((a, b)),
}


def expression_range(
    expr: Expr, element: Callable[[Access], Range], never_positive: frozenset[Expr] = frozenset()
) -> Range:
    """The range of a floating-point `expr`, given those of tensor elements and differences that are never positive."""

    def inner(part: Expr) -> Range:
        return expression_range(part, element, never_positive)

    match expr:
        case Const(value):
            number = float(value)
            return _range(number, number, abs(number) >= LEAST, 2.0) if math.isfinite(number) else WILD
        case Index():
            return Range(0.0)
        case Access():
            return element(expr)
        case Cast(_, value):
            found = inner(value)
            return Range(0.0 if found.low >= 0 else -math.inf, math.inf, False, found.growth, found.finite)
        case Call("mul"):
            counts: dict[Expr, int] = {}
            for factor in _factors(expr):
                counts[factor] = counts.get(factor, 0) + 1
            powers = [_power(inner(factor), times) for factor, times in counts.items()]
            return _finite_if(functools.reduce(_multiply, powers), powers)
        case Call(op, args):
            rule = _RULES.get(op)
            ranges = list(map(inner, args))
            result = rule(*ranges) if rule else WILD
            bounded = op in ("tanh", "erf", "sigmoid") or (op == "exp" and ranges[0].high <= LINEAR)
            result = result if bounded else _finite_if(result, ranges[1:] if op == "select" else ranges)
            return replace(result, high=min(result.high, 0.0)) if expr in never_positive else result


def _finite_if(result: Range, operands: Iterable[Range]) -> Range:
    return result if all(r.finite for r in operands) else replace(result, finite=False)


def _factors(expr: Expr) -> list[Expr]:
    if isinstance(expr, Call) and expr.op == "mul":
        return [factor for arg in expr.args for factor in _factors(arg)]
    return [expr]


class _Tensors:
    """The ranges of the tensors of one program, worked out on demand."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.found: dict[tuple[str, bool, bool], Range] = {}

    def element(self, access: Access, reader: Node) -> Range:
        """The range of an element that the equation at `reader` reads."""
        complete = is_finished(self.program, access, reader)
        return self.tensor(access.tensor, complete, complete and is_whole(self.program, access, reader))

    def value(self, node: Node) -> Range:
        """The range of the right side of the equation at `node`."""
        assert isinstance(node.statement, Equation)
        never_positive = shifted(self.program, node)
        return expression_range(node.statement.value, lambda access: self.element(access, node), never_positive)

    def tensor(self, name: str, complete: bool, whole: bool) -> Range:
        """The range of a tensor's elements; `complete`: after all that write them, `whole`: for the last time."""
        if not declarations(self.program)[name][0].dtype.is_float:
            return WILD
        nodes = writers(self.program).get(name)
        if not nodes:
            return ANY
        key = (name, complete, whole)
        if key not in self.found:
            self.found[key] = WILD  # what depends on itself is not known
            self.found[key] = self.written(name, nodes, complete, whole)
        return self.found[key]

    def written(self, name: str, nodes: tuple[Node, ...], complete: bool, whole: bool) -> Range:
        terms = [(node.statement.assign, self.value(node)) for node in nodes if isinstance(node.statement, Equation)]
        initial = [found for assign, found in terms if assign is Assign.SET]
        added = [found for assign, found in terms if assign is not Assign.SET]
        kinds = {assign for assign, _ in terms} - {Assign.SET}
        if not kinds:
            return union(initial)
        if len(kinds) > 1 or (name in starts(self.program)) == bool(initial):
            return WILD
        found = _ACCUMULATED[kinds.pop()](union(initial) if initial else None, union(added), complete)
        one = whole and terms[0][0] is Assign.ADD and any(attains_one(self.program, node) for node in nodes)
        return replace(found, low=max(found.low, 1.0), nonzero=True) if one and found.low >= 0 else found


def _summed(initial: Range | None, terms: Range, complete: bool) -> Range:
    growth = max(terms.growth, initial.growth if initial else 0.0) + 1
    finite = terms.finite and (initial is None or initial.finite)
    if terms.low < 0 or (initial is not None and initial.low < 0):
        if terms.high <= 0 and (initial is None or initial.high <= 0):
            return _negated(_summed(initial and _negated(initial), _negated(terms), complete))
        return Range(growth=growth, finite=finite)
    if initial is not None:
        return Range(initial.low, math.inf, initial.positive, growth, finite)
    return Range(terms.low if complete else 0.0, math.inf, complete and terms.positive, growth, finite)


def _multiplied(initial: Range | None, terms: Range, complete: bool) -> Range:
    return replace(WILD, low=0.0) if terms.low >= 0 and (initial is None or initial.low >= 0) else WILD


def _largest(initial: Range | None, terms: Range, complete: bool) -> Range:
    if initial is not None:
        growth = max(initial.growth, terms.growth)
        found = _range(initial.low, max(initial.high, terms.high), initial.positive, growth)
        return _finite_if(found, (initial, terms))
    return terms if complete else replace(WILD, high=terms.high)


def _smallest(initial: Range | None, terms: Range, complete: bool) -> Range:
    return _negated(_largest(initial and _negated(initial), _negated(terms), complete))


_ACCUMULATED: Mapping[Assign, Callable[[Range | None, Range, bool], Range]] = {
    Assign.ADD: _summed,
    Assign.MUL: _multiplied,
    Assign.MAX: _largest,
    Assign.MIN: _smallest,
}


@functools.lru_cache(maxsize=1024)
def _tensors(program: Program) -> _Tensors:
    return _Tensors(program)


def element_range(program: Program, access: Access, reader: Node) -> Range:
    """The range of the element `access` as the equation at `reader` finds it."""
    return _tensors(program).element(access, reader)


def finished_range(program: Program, tensor: str) -> Range:
    """The range of a tensor's elements once everything that writes them has."""
    return _tensors(program).tensor(tensor, True, True)


__all__ = ["ANY", "AWAY", "Range", "element_range", "expression_range", "finished_range", "union"]
