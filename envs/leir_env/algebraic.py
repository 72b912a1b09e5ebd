"""Floating-point expressions as algebra sees them: sums of terms, products of factors, and rational functions.

`terms` and `factors` flatten what the binary operators of the language nest, `total` and `product` build it up
again, and `form` is equal for expressions that differ in order, parentheses or the spelling of constants only.
`Bridge` takes a sum or product to sympy and back. Whatever is not a sum, product, quotient or small whole
number becomes one opaque symbol there, so dtypes, casts, accesses and constants come back as they were.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from envs.leir_env.ir import Access, Call, Cast, Const, Expr, subexpressions, with_children
from envs.leir_env.ranges import MODERATE, Range, expression_range
from envs.leir_env.tree import map_accesses

SUM = frozenset({"add", "sub", "neg"})
PRODUCT = frozenset({"mul", "div", "neg"})

MAX_SIZE = 48
"""Nodes of an expression up to which it is rewritten: polynomial algorithms can take very long."""

MAX_WHOLE = 256
"""Constants that an algorithm makes up may be as large: exact in every float, bfloat16 included."""

F16_FACTOR = 2.0
"""In f16, values may be multiplied or divided by this and keep within the range."""

F16_DEGREE = 3
"""The growth of what keeps within the range of f16 in any order of operations."""

OPAQUE = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "floor", "floordiv", "mod"})
"""Operators that jump: what they compare or round is left alone."""

Terms = tuple[tuple[int, Expr], ...]
"""Signs (1 or -1) with what they stand before."""


@dataclass(frozen=True, slots=True)
class Factors:
    """`sign * product(above) / product(below)`."""

    sign: int
    above: tuple[Expr, ...]
    below: tuple[Expr, ...] = ()


def is_sum(expr: Expr) -> bool:
    """Is it an addition or subtraction?"""
    return isinstance(expr, Call) and expr.op in ("add", "sub")


def is_product(expr: Expr) -> bool:
    """Is it a multiplication or division?"""
    return isinstance(expr, Call) and expr.op in ("mul", "div")


@functools.lru_cache(maxsize=16384)
def terms(expr: Expr) -> Terms:
    """The terms of a sum with their signs; a lone term where `expr` is none."""
    match expr:
        case Call("add", (left, right)):
            return terms(left) + terms(right)
        case Call("sub", (left, right)):
            return terms(left) + _opposite(terms(right))
        case Call("neg", (value,)):
            return _opposite(terms(value))
    return (_unsigned(expr),)


def _unsigned(expr: Expr) -> tuple[int, Expr]:
    """Split the sign off a product, which keeps its order of operations."""
    match expr:
        case Const(value) if value < 0:
            return -1, Const(-value)
        case Call("neg", (value,)):
            sign, rest = _unsigned(value)
            return -sign, rest
        case Call("mul" | "div" as op, (left, right)):
            (a, x), (b, y) = _unsigned(left), _unsigned(right)
            return a * b, expr if (x, y) == (left, right) else Call(op, (x, y))
    return 1, expr


def _opposite(found: Terms) -> Terms:
    return tuple((-sign, term) for sign, term in found)


@functools.lru_cache(maxsize=16384)
def factors(expr: Expr) -> Factors:
    """The factors of a product or quotient; a lone factor where `expr` is none."""
    match expr:
        case Call("mul" | "div" as op, (left, right)):
            a, b = factors(left), factors(right)
            if op == "mul":
                return Factors(a.sign * b.sign, a.above + b.above, a.below + b.below)
            return Factors(a.sign * b.sign, a.above + b.below, a.below + b.above)
        case Call("neg", (value,)):
            inner = factors(value)
            return Factors(-inner.sign, inner.above, inner.below)
        case Const(value) if value < 0:
            return Factors(-1, (Const(-value),))
    return Factors(1, (expr,))


def total(found: Sequence[tuple[int, Expr]]) -> Expr:
    """The sum of signed terms in their order, but for a first one that is not subtracted."""
    ordered = list(found)
    first = next((n for n, (sign, _) in enumerate(ordered) if sign > 0), None)
    if first is None:
        return negated(total(_opposite(tuple(ordered)))) if ordered else Const(0)
    value = ordered.pop(first)[1]
    for sign, term in ordered:
        value = Call("add" if sign > 0 else "sub", (value, term))
    return value


def negated(expr: Expr) -> Expr:
    """Its opposite."""
    return Const(-expr.value) if isinstance(expr, Const) else Call("neg", (expr,))


def product(found: Factors) -> Expr:
    """A single quotient: all factors above, constants first, over all below, ones left out."""
    above = [factor for factor in found.above if factor not in _ONES] or [Const(1)]
    above.sort(key=lambda factor: not isinstance(factor, Const))
    below = [factor for factor in found.below if factor not in _ONES]
    if found.sign < 0:
        above[0] = negated(above[0])
    value = functools.reduce(_multiplied, above)
    return Call("div", (value, functools.reduce(_multiplied, below))) if below else value


_ONES = (Const(1), Const(1.0))


def _multiplied(left: Expr, right: Expr) -> Expr:
    return Call("mul", (left, right))


Form: TypeAlias = tuple[Any, ...]
"""A nested tuple of texts and numbers, compared and sorted by its `repr`."""


@functools.lru_cache(maxsize=16384)
def form(expr: Expr) -> Form:
    """A value that is equal for expressions equal up to order, parentheses, signs and spellings of constants."""
    match expr:
        case Const(value):
            return ("const", float(value))
        case Call(op) if op in SUM and len(terms(expr)) > 1:
            return ("sum", *sorted(((sign, form(term)) for sign, term in terms(expr)), key=repr))
        case Call(op) if op in SUM | PRODUCT:
            found = factors(expr)
            above, below = (sorted(map(form, part), key=repr) for part in (found.above, found.below))
            return ("product", found.sign, *above, "/", *below)
        case Call(op, args):
            return (op, *map(form, args))
        case Cast(dtype, value):
            return (str(dtype), form(value))
    return ("atom", expr)


def size(expr: Expr) -> int:
    """The nodes of an expression, subscripts left out."""
    if isinstance(expr, Call):
        return 1 + sum(map(size, expr.args))
    return 1 + size(expr.value) if isinstance(expr, Cast) else 1


def count(expr: Expr, *ops: str) -> int:
    """How often operators occur, subscripts left out."""
    if isinstance(expr, Call):
        return (expr.op in ops) + sum(count(arg, *ops) for arg in expr.args)
    return count(expr.value, *ops) if isinstance(expr, Cast) else 0


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may know besides the expression."""

    elements: tuple[Range, ...]
    """The ranges of A0, A1 ..."""
    narrow: bool
    """It is computed in f16, whose largest number is 65504."""
    never_positive: frozenset[Expr] = frozenset()
    """Differences of a value and a maximum over it."""

    def range(self, expr: Expr) -> Range:
        return expression_range(expr, lambda access: self.elements[int(access.tensor[1:])], self.never_positive)

    def partial(self, expr: Expr) -> Expr | None:
        """A part of `expr` that is not proved to have a finite value."""
        infinite = next((part for part in _parts(expr) if not self.range(part).finite), None)
        if infinite is not None:
            return infinite
        for node in subexpressions(expr):
            match node:
                case Call("div", (_, divisor)) if not self.range(divisor).nonzero:
                    return node
                case Call("log" | "rsqrt", (value,)) if not self.range(value).positive:
                    return node
                case Call("sqrt", (value,)) if self.range(value).low < 0:
                    return node
                case Call("pow", (value, exponent)) if not (self.range(value).positive or _is_natural(exponent)):
                    return node
        return None

    def has_float(self, expr: Expr) -> bool:
        """Are the exponentials and powers in it neither infinite nor zero in floating point?"""
        for node in subexpressions(expr):
            match node:
                case Call("exp", (exponent,)) if not self.range(exponent).has_exponential:
                    return False
                case Call("pow", (_, exponent)) if self.range(exponent).magnitude > MODERATE:
                    return False
        return True

    def safe(self, expr: Expr) -> bool:
        """Can products and quotients with it neither overflow nor vanish? Near one in f16, polynomial elsewhere."""
        found = self.range(expr)
        if self.narrow:
            return (found.low >= 1 / F16_FACTOR or found.high <= -1 / F16_FACTOR) and found.magnitude <= F16_FACTOR
        return found.away and found.tame

    def crowded(self, expr: Expr) -> Expr | None:
        """A term of `expr` that may overflow once its quotients are one: `a/b*c` as `a*c/b`.

        In f16 also what is of more than the third degree, in any other order.
        """
        for _, term in terms(expr):
            found = factors(term)
            if self.narrow and self.range(term).growth > F16_DEGREE:
                return term
            if not _is_single_quotient(term) and (self.narrow or any(not self.range(f).tame for f in found.above)):
                return term
        return None


def _parts(expr: Expr) -> Iterator[Expr]:
    """What sums and products are made of in an expression."""
    if isinstance(expr, Call) and expr.op in SUM | PRODUCT:
        for arg in expr.args:
            yield from _parts(arg)
    else:
        yield expr


def _is_single_quotient(expr: Expr) -> bool:
    """Is a product without divisions, or one such product over another?"""
    if isinstance(expr, Call) and expr.op == "div":
        return not any(_divides(arg) for arg in expr.args)
    return not _divides(expr)


def _divides(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op in PRODUCT and (expr.op == "div" or any(map(_divides, expr.args)))


def _is_natural(exponent: Expr) -> bool:
    return isinstance(exponent, Const) and exponent.value > 0 and float(exponent.value).is_integer()


Fact = tuple[Expr, str]
"""A subexpression and what holds for it: `(x*x+1, "is never zero")`."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rule makes of an expression, and what it had to know."""

    expr: Expr
    given: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a rule leaves an expression alone that it is made for."""

    fact: Fact


Finding = Rewritten | Blocked

Rule = Callable[[Context, Expr, str], Iterator[Finding]]
"""Yields what may replace an expression under the operator that it is an operand of ("" at the top)."""


def everywhere(
    context: Context, expr: Expr, rule: Rule, whole: frozenset[str], above: str = ""
) -> Iterator[tuple[Expr, Finding, Callable[[Expr], Expr]]]:
    """Apply a rule wherever it fits, from the top down, and yield places, findings and how to put these in place.

    A node whose operator is in `whole` is offered only where its parent's is not: a sum as a whole. Subscripts,
    casts and what is compared or rounded are left alone.
    """
    if not (isinstance(expr, Call) and expr.op in whole and above in whole):
        for found in rule(context, expr, above):
            yield expr, found, _same
    if isinstance(expr, Call) and expr.op not in OPAQUE:
        for position, child in enumerate(expr.args):
            for old, found, put in everywhere(context, child, rule, whole, expr.op):
                yield old, found, functools.partial(_put, expr, position, put)


def _same(new: Expr) -> Expr:
    return new


def _put(parent: Call, position: int, put: Callable[[Expr], Expr], new: Expr) -> Expr:
    """The parent with one operand replaced; sums within sums are flattened.

    Not so products: in another order of multiplications and divisions they may overflow.
    """
    child = put(new)
    expr = with_children(parent, (*parent.args[:position], child, *parent.args[position + 1 :]))
    if parent.op in ("add", "sub") and (is_sum(child) or factors(child).sign < 0):
        return total(terms(expr))
    return expr


@dataclass(frozen=True, slots=True)
class Skeleton:
    """An expression whose tensor elements are numbered A0, A1 ...: what algebra sees does not depend on subscripts."""

    expr: Expr
    elements: tuple[Access, ...]

    def fill(self, expr: Expr) -> Expr:
        """The actual elements in place of the numbered ones."""
        numbered = {Access(f"A{n}"): element for n, element in enumerate(self.elements)}
        return map_accesses(expr, lambda access: numbered[access])

    def strip(self, expr: Expr) -> Expr:
        """The numbered elements in place of the actual ones."""
        numbers = {element: Access(f"A{n}") for n, element in enumerate(self.elements)}
        return _numbered(expr, lambda access: numbers[access])


@functools.lru_cache(maxsize=16384)
def skeleton(expr: Expr) -> Skeleton:
    """Number the tensor elements of `expr` in the order of the text."""
    numbers: dict[Access, Access] = {}
    expression = _numbered(expr, lambda access: numbers.setdefault(access, Access(f"A{len(numbers)}")))
    return Skeleton(expression, tuple(numbers))


def _numbered(expr: Expr, number: Callable[[Access], Access]) -> Expr:
    """Replace the tensor elements, but not those within their subscripts."""
    match expr:
        case Access():
            return number(expr)
        case Call(_, args):
            return with_children(expr, tuple(_numbered(arg, number) for arg in args))
        case Cast(_, value):
            return with_children(expr, (_numbered(value, number),))
    return expr


class Unbridgeable(ValueError):
    """A result of sympy that is no sum or product of what went in."""


class Bridge:
    """Takes rational expressions to sympy and back. Symbols are numbered by first use, which fixes the order."""

    def __init__(self) -> None:
        import sympy

        self.sympy = sympy
        self.symbols: dict[Form, Any] = {}
        self.atoms: dict[Any, Expr] = {}

    def to(self, expr: Expr) -> Any:
        """The expression over the rationals and opaque symbols."""
        match expr:
            case Call("add" | "sub" | "neg") if len(terms(expr)) > 1:
                return self.sympy.Add(*(sign * self.to(term) for sign, term in terms(expr)))
            case Call("mul" | "div" | "neg"):
                found = factors(expr)
                return found.sign * self.product(found.above) / self.product(found.below)
            case Const(value) if math.isfinite(value) and float(value).is_integer() and abs(value) <= MAX_WHOLE:
                return self.sympy.Integer(int(value))
            case Const(value) if value < 0:
                return -self.symbol(Const(-value))
        return self.symbol(expr)

    def product(self, parts: Sequence[Expr]) -> Any:
        return self.sympy.Mul(*map(self.to, parts))

    def symbol(self, atom: Expr) -> Any:
        key = form(atom)
        if key not in self.symbols:
            self.symbols[key] = symbol = self.sympy.Symbol(f"x{len(self.symbols):03d}")
            self.atoms[symbol] = atom
        return self.symbols[key]

    def back(self, value: Any) -> Expr:
        """The expression that a rational function of these symbols stands for. Raises `Unbridgeable`."""
        if value.is_Add:
            return total([self._term(term) for term in sorted(value.args, key=self._place)])
        sign, term = self._term(value)
        return term if sign > 0 else negated(term)

    def _term(self, value: Any) -> tuple[int, Expr]:
        number, rest = value.as_coeff_Mul()
        if not number.is_Rational or max(abs(number.p), number.q) > MAX_WHOLE:
            raise Unbridgeable(f"{number} is no small fraction")
        above: list[Expr] = [Const(int(abs(number.p)))]
        below: list[Expr] = [Const(int(number.q))]
        for factor in sorted(self.sympy.Mul.make_args(rest), key=self._place):
            base, exponent = factor.as_base_exp()
            if not exponent.is_Integer:
                raise Unbridgeable(f"{factor} has no whole exponent")
            if base != 1:
                (above if exponent > 0 else below).extend([self._base(base)] * abs(int(exponent)))
        return (-1 if number < 0 else 1), product(Factors(1, tuple(above), tuple(below)))

    def _base(self, base: Any) -> Expr:
        if base in self.atoms:
            return self.atoms[base]
        if base.is_Add or base.is_Rational:
            return self.back(base)
        raise Unbridgeable(f"{base} is no symbol")

    def _place(self, value: Any) -> tuple[Any, ...]:
        """Sorts terms and factors as their symbols first stood in the text, plain ones first, numbers last in sums."""
        names = sorted(
            str(symbol)
            for base, exponent in value.as_powers_dict().items()
            for symbol in sorted(base.free_symbols, key=str)
            for _ in range(max(1, abs(int(exponent))))
        )
        return (not names, value.is_Add or (value.is_Pow and value.base.is_Add), names, str(value))


def constants(expr: Expr) -> Iterator[float]:
    """The constants in an expression."""
    return (float(node.value) for node in subexpressions(expr) if isinstance(node, Const))
