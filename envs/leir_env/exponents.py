"""Rules for exponentials, powers, roots and logarithms: combine them and take them apart.

An exponential is split only where no part can overflow: `exp(a-m)` with m the largest a must stay whole, since
exp(a) alone is infinite for a moderate a. Logarithms and fractional powers need arguments proved positive.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from envs.leir_env.algebraic import (
    Blocked,
    Context,
    Fact,
    Factors,
    Finding,
    Form,
    Rewritten,
    factors,
    form,
    is_product,
    is_sum,
    product,
    terms,
    total,
)
from envs.leir_env.ir import Call, Const, Expr
from envs.leir_env.ranges import MODERATE, Range

LARGEST_POWER = 4
"""Powers up to this are written as products."""

F16_LARGEST = 2.0**14
"""A product of arguments may reach this in f16."""

_ROOTS = {"sqrt": Fraction(1, 2), "rsqrt": Fraction(-1, 2)}


def combine_powers(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """A product of exponentials as one; a product of powers of one base as one."""
    if not is_product(expr):
        return
    found = factors(expr)
    parts = [(1, f) for f in found.above] + [(-1, f) for f in found.below]
    exponentials = [n for n, (_, f) in enumerate(parts) if isinstance(f, Call) and f.op == "exp"]
    if len(exponentials) > 1 or (exponentials and parts[exponentials[0]][0] < 0):
        exponents = [(sign, f.args[0]) for n in exponentials for sign, f in [parts[n]] if isinstance(f, Call)]
        sum_of_all = _summed(exponents)
        wild = next((e for _, e in exponents if not context.range(e).has_exponential), None)
        if wild is not None:
            yield Blocked((Call("exp", (wild,)), "may leave the range of floats, and the product be no number"))
        elif sum_of_all is not None:
            yield Rewritten(_replaced(found.sign, parts, exponentials, Call("exp", (sum_of_all,))))
    bases: dict[Form, list[int]] = {}
    for n, (_, f) in enumerate(parts):
        base, exponent = _as_power(f)
        if exponent is not None:
            bases.setdefault(form(base), []).append(n)
    for members in bases.values():
        if len(members) > 1 and any(_is_power(parts[n][1]) for n in members):
            yield _one_power(context, found.sign, parts, members)


def _summed(exponents: list[tuple[int, Expr]]) -> Expr | None:
    """The sum of exponents, equal terms as multiples and opposite ones left out; None where nothing is left."""
    counted: dict[Form, tuple[int, Expr]] = {}
    for sign, exponent in exponents:
        for inner, term in terms(exponent):
            times, _ = counted.get(form(term), (0, term))
            counted[form(term)] = (times + sign * inner, term)
    left = [
        (1 if times > 0 else -1, term if abs(times) == 1 else product(Factors(1, (Const(abs(times)), term))))
        for times, term in counted.values()
        if times
    ]
    return total(left) if left else None


def _replaced(sign: int, parts: list[tuple[int, Expr]], members: list[int], new: Expr) -> Expr:
    """The product with `new`, itself a quotient perhaps, in place of the first of the members."""
    inserted = factors(new)
    above: list[Expr] = []
    below: list[Expr] = []
    for n, (side, f) in enumerate(parts):
        if n == members[0]:
            above += inserted.above
            below += inserted.below
        elif n not in members:
            (above if side > 0 else below).append(f)
    return product(Factors(sign * inserted.sign, tuple(above), tuple(below)))


def _as_power(expr: Expr) -> tuple[Expr, Expr | Fraction | None]:
    """Base and exponent; a factor that is no power has exponent one, a constant none."""
    match expr:
        case Call("sqrt" | "rsqrt" as op, (base,)):
            return base, _ROOTS[op]
        case Call("pow", (base, Const(value))) if float(2 * value).is_integer() and abs(value) <= LARGEST_POWER:
            return base, Fraction(value)
        case Call("pow", (base, exponent)):
            return base, exponent
        case Const() | Call("exp"):
            return expr, None
    return expr, Fraction(1)


def _is_power(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op in ("sqrt", "rsqrt", "pow")


def _one_power(context: Context, sign: int, parts: list[tuple[int, Expr]], members: list[int]) -> Finding:
    base = _as_power(parts[members[0]][1])[0]
    bounds = context.range(base)
    number = Fraction(0)
    others: list[tuple[int, Expr]] = []
    fractions = 0
    for n in members:
        side, (_, exponent) = parts[n][0], _as_power(parts[n][1])
        if isinstance(exponent, Fraction):
            number += side * exponent
            fractions += side * exponent < 0
        elif exponent is not None:
            others.append((side, exponent))
    fact: Fact = (base, "is positive")
    if bounds.low >= 0 and not others and not fractions:
        fact = (base, "is not negative")
    elif not bounds.positive:
        return Blocked((base, "is not proved to be positive"))
    large = next((exponent for _, exponent in others if context.range(exponent).magnitude > MODERATE), None)
    if large is not None:
        return Blocked((Call("pow", (base, large)), "may leave the range of floats, and the product be no number"))
    if not others:
        return Rewritten(_replaced(sign, parts, members, _power(base, number)), (fact,))
    constant = [(1 if number > 0 else -1, _number(abs(number)))] if number else []
    power = Call("pow", (base, total([*others, *constant])))
    return Rewritten(_replaced(sign, parts, members, power), (fact,))


def _number(value: Fraction) -> Const:
    return Const(int(value) if value.denominator == 1 else float(value))


def _power(base: Expr, exponent: Fraction) -> Expr:
    """A power with a constant exponent, by products and roots where it is a simple one."""
    simple = {
        Fraction(0): Const(1),
        Fraction(1): base,
        Fraction(1, 2): Call("sqrt", (base,)),
        Fraction(-1, 2): Call("rsqrt", (base,)),
    }
    if exponent in simple:
        return simple[exponent]
    if exponent.denominator == 1 and abs(exponent) <= LARGEST_POWER:
        repeated = (base,) * abs(int(exponent))
        return product(Factors(1, repeated) if exponent > 0 else Factors(1, (), repeated))
    return Call("pow", (base, _number(exponent)))


def split_powers(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """The exponential of a sum as a product, a power with a simple exponent by products and roots."""
    match expr:
        case Call("exp", (argument,)) if len(terms(argument)) > 1:
            parts = [total([part]) for part in terms(argument)]
            ranges = [context.range(part) for part in parts]
            if all(r.high <= 0 for r in ranges):
                yield Rewritten(_exponentials(parts), tuple((part, "is never positive") for part in parts))
            elif sum(r.magnitude for r in ranges) <= MODERATE:
                yield Rewritten(_exponentials(parts), ((argument, f"stays within {MODERATE:g} of zero, part by part"),))
            else:
                part = next(p for p, r in zip(parts, ranges, strict=True) if r.high > 0)
                yield Blocked((Call("exp", (part,)), "may overflow where the whole does not"))
        case Call("pow", (base, Const())):
            exponent = _as_power(expr)[1]
            if isinstance(exponent, Fraction) and exponent:
                yield _without_pow(context, base, exponent)


def _exponentials(parts: list[Expr]) -> Expr:
    return product(Factors(1, tuple(Call("exp", (part,)) for part in parts)))


def _without_pow(context: Context, base: Expr, exponent: Fraction) -> Finding:
    if exponent.denominator == 1:
        return Rewritten(_power(base, exponent))
    if context.range(base).low < 0:
        return Blocked((base, "is not proved to be positive"))
    whole, half = int(exponent), Fraction(1 if exponent > 0 else -1, 2)
    parts = [factors(_power(base, part)) for part in (Fraction(whole), half)]
    new = Factors(1, parts[0].above + parts[1].above, parts[0].below + parts[1].below)
    return Rewritten(product(new), ((base, "is not negative"),))


def split_log(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """The logarithm of a product as a sum, of a quotient as a difference, of a power as a multiple."""
    if not isinstance(expr, Call) or expr.op != "log":
        return
    found = factors(expr.args[0])
    parts = [(1, f) for f in found.above if f not in (Const(1), Const(1.0))] + [(-1, f) for f in found.below]
    simple = len(parts) == 1 and parts[0][0] > 0 and _log(parts[0][1]) == Call("log", (parts[0][1],))
    if simple or not parts:
        return
    negative = next((f for _, f in parts if not context.range(f).positive), None)
    if negative is not None or found.sign < 0:
        yield Blocked((expr.args[0] if negative is None else negative, "is not proved to be positive"))
        return
    wild = next((f for _, f in parts if not context.has_float(f)), None)
    if wild is not None:
        yield Blocked((wild, "may leave the range of floats, and its logarithm be infinite"))
        return
    facts = tuple((f, "is positive") for _, f in parts if not isinstance(f, Const))
    yield Rewritten(total([(sign, _log(f)) for sign, f in parts]), facts)


def _log(expr: Expr) -> Expr:
    match expr:
        case Call("exp", (exponent,)):
            return exponent
        case Call("pow", (base, exponent)):
            return product(Factors(1, (exponent, Call("log", (base,)))))
        case Call("sqrt" | "rsqrt" as op, (base,)):
            return product(Factors(1, (Const(float(_ROOTS[op])), Call("log", (base,)))))
    return Call("log", (expr,))


def combine_logs(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """Logarithms of a sum as one."""
    if not is_sum(expr):
        return
    parts = terms(expr)
    logs = [n for n, (_, term) in enumerate(parts) if isinstance(term, Call) and term.op == "log"][:4]
    if len(logs) < 2:
        return
    arguments = [(sign, term.args[0]) for n in logs for sign, term in [parts[n]] if isinstance(term, Call)]
    for _, argument in arguments:
        found = context.range(argument)
        if not found.positive:
            yield Blocked((argument, "is not proved to be positive"))
            return
        if not (found.away and found.tame):
            yield Blocked((argument, "may be so small or large that a product with it leaves the range of floats"))
            return
    if context.narrow and not _moderate([context.range(argument) for _, argument in arguments]):
        yield Blocked((arguments[0][1], "may be so large that a product with it leaves the range of f16"))
        return
    sign = 1 if any(s > 0 for s, _ in arguments) else -1
    sides = [tuple(f for s, f in arguments if s == side * sign) for side in (1, -1)]
    joined = product(Factors(1, *_flat(*sides)))
    new = [
        (sign, Call("log", (joined,))) if n == logs[0] else part for n, part in enumerate(parts) if n not in logs[1:]
    ]
    yield Rewritten(total(new), tuple((argument, "is positive") for _, argument in arguments))


def _flat(above: tuple[Expr, ...], below: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    found = factors(product(Factors(1, above, below)))
    return found.above, found.below


def _moderate(ranges: list[Range]) -> bool:
    high = 1.0
    for found in ranges:
        high *= max(found.magnitude, 1.0)
    return high <= F16_LARGEST
