"""Rules for sums, products and quotients: factor, expand, cancel, combine and split fractions, collect.

Each yields what may replace a sum or product, or why not. Expanding never adds a subtraction: `(a-b)*c` computed
as `a*c-b*c` loses what a and b have in common, so a factor that subtracts stays whole. A denominator disappears
only if it is never zero over the reals, and appears, or comes to stand under other terms, only if it is well away
from zero: where every value on the way stays within the range of floats, old and new agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from envs.leir_env.algebraic import (
    MAX_WHOLE,
    Blocked,
    Bridge,
    Context,
    Factors,
    Finding,
    Form,
    Rewritten,
    Terms,
    Unbridgeable,
    constants,
    count,
    factors,
    form,
    is_product,
    is_sum,
    product,
    terms,
    total,
)
from envs.leir_env.ir import Call, Const, Expr, subexpressions

MAX_TERMS = 8
"""Terms that an expansion may have."""


def products(expr: Expr) -> int:
    """Multiplications and divisions."""
    return count(expr, "mul", "div")


def factor(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """A sum as a product, if that takes fewer multiplications."""
    if not is_sum(expr) or products(expr) < 2 or not _may_factor(expr):
        return
    bridge = Bridge()
    found = bridge.sympy.factor(bridge.to(expr))
    if found.is_Add:
        return
    new = _back(bridge, found)
    if new is not None and products(new) < products(expr) and _denominators(new) == _denominators(expr):
        yield Rewritten(new)


def _may_factor(expr: Expr) -> bool:
    """Do two terms share a factor, or are two divisible by a square? Nothing else takes fewer multiplications."""
    split = [list(map(form, (*found.above, *found.below))) for _, term in terms(expr) for found in [factors(term)]]
    squares = sum(len(set(parts)) < len(parts) for parts in split)
    distinct = [part for parts in split for part in set(parts)]
    return squares > 1 or len(set(distinct)) < len(distinct)


def expand(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """A product of sums as a sum of products."""
    found = factors(expr)
    sums = [f for f in found.above if is_sum(f)]
    if not sums or len(found.above) < 2 or (above in ("add", "sub") and len(sums) < 2):
        return
    subtracting = next((f for f in sums if any(sign < 0 for sign, _ in terms(f))), None)
    if subtracting is not None:
        yield Blocked((subtracting, "subtracts, and its difference would be taken after rounding larger products"))
        return
    square = next((f for f in sums if sums.count(f) > 1 and not _one_sign(context, f)), None)
    if square is not None:
        yield Blocked((square, "is squared, and its terms may cancel: their squares would not"))
        return
    wild = _wild(context, found)
    if wild is not None:
        yield wild
        return
    expanded = _expanded(found.above)
    if expanded is not None:
        yield Rewritten(product(Factors(found.sign, (total(expanded),), found.below)))


def _expanded(parts: Sequence[Expr]) -> Terms | None:
    """The terms of a product, equal ones as multiples; None if they are too many."""
    expanded = [Factors(1, ())]
    for part in parts:
        split = [(sign, factors(term)) for sign, term in terms(part)]
        if len(expanded) * len(split) > 2 * MAX_TERMS:
            return None
        expanded = [
            Factors(a.sign * sign * b.sign, a.above + b.above, a.below + b.below) for a in expanded for sign, b in split
        ]
    counted: dict[Form, tuple[int, Expr]] = {}
    for found in expanded:
        term = product(Factors(1, found.above, found.below))
        times, _ = counted.get(form(term), (0, term))
        counted[form(term)] = (times + found.sign, term)
    left = tuple(
        (1 if times > 0 else -1, term if abs(times) == 1 else product(Factors(1, (Const(abs(times)), term))))
        for times, term in counted.values()
        if times
    )
    return left if 1 < len(left) <= MAX_TERMS else None


def _one_sign(context: Context, expr: Expr) -> bool:
    """Can no two terms of a sum cancel?"""
    return all(context.range(term).low >= 0 for _, term in terms(expr))


def collect(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """Some terms of a sum grouped by a factor that they share."""
    if not is_sum(expr):
        return
    parts = terms(expr)
    split = [factors(term) for _, term in parts]
    shared: dict[Form, Expr] = {}
    for found in split:
        for candidate in found.above:
            shared.setdefault(form(candidate), candidate)
    for key, candidate in shared.items():
        members = [n for n, found in enumerate(split) if key in map(form, found.above)]
        if not 2 <= len(members) < len(parts) or candidate in (Const(1), Const(1.0)):
            continue
        rest = [(parts[n][0], _without(split[n], key)) for n in members]
        if all(isinstance(term, Const) for _, term in rest):
            continue  # x-x is nothing to group
        grouped = (1, product(Factors(1, (candidate, total(rest)))))
        new = [grouped if n == members[0] else part for n, part in enumerate(parts) if n not in members[1:]]
        yield Rewritten(total(new))


def _without(found: Factors, key: Form) -> Expr:
    """A product without the first factor of this form."""
    position = next(n for n, f in enumerate(found.above) if form(f) == key)
    return product(Factors(1, found.above[:position] + found.above[position + 1 :], found.below))


def distribute(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """One term of a sum that is a multiple of a sum, multiplied out."""
    if not is_sum(expr):
        return
    parts = terms(expr)
    for position, (sign, term) in enumerate(parts):
        found = factors(term)
        for which, inner in enumerate(found.above):
            others = Factors(1, found.above[:which] + found.above[which + 1 :], found.below)
            if not is_sum(inner) or product(others) == Const(1):
                continue
            if any(s < 0 for s, _ in terms(inner)):
                yield Blocked((inner, "subtracts, and its difference would be taken after rounding larger products"))
                continue
            wild = _wild(context, found)
            if wild is not None:
                yield wild
                continue
            yield Rewritten(total((*parts[:position], *_multiplied(sign, others, inner), *parts[position + 1 :])))


def _wild(context: Context, found: Factors) -> Blocked | None:
    """The factor of a product that may be so large that a part of it overflows though the whole does not."""
    wild = next((f for f in found.above if not context.range(f).tame), None)
    return None if wild is None else Blocked((wild, "may be so large that a part overflows where the whole does not"))


def _multiplied(sign: int, others: Factors, inner: Expr) -> Terms:
    return tuple(
        (sign * s, product(Factors(1, (*others.above, *factors(t).above), (*others.below, *factors(t).below))))
        for s, t in terms(inner)
    )


def cancel(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """A fraction without its common factors, or a sum without terms that cancel."""
    if is_sum(expr):
        yield from _cancel_terms(expr)
    elif is_product(expr) and factors(expr).below:
        yield from _cancel_factors(context, factors(expr))


def _cancel_terms(expr: Expr) -> Iterator[Finding]:
    left: list[tuple[int, Expr]] = []
    gone: list[Expr] = []
    for sign, term in terms(expr):
        twin = next((n for n, (s, t) in enumerate(left) if s == -sign and form(t) == form(term)), None)
        if twin is None:
            left.append((sign, term))
        else:
            gone.append(left.pop(twin)[1])
    if gone:
        yield Rewritten(total(left))


def _cancel_factors(context: Context, found: Factors) -> Iterator[Finding]:
    kept_above, kept_below, gone = list(found.above), list(found.below), list[Expr]()
    for f in found.above:
        twin = next((d for d in kept_below if form(d) == form(f)), None)
        if twin is not None and not isinstance(f, Const):
            kept_above.remove(f)
            kept_below.remove(twin)
            gone.append(f)
    if not gone:
        both = (*found.above, *found.below)
        if any(count(f, "div") for f in both) or not any(map(is_sum, both)):
            return  # no polynomials, or nothing hidden in a sum
        bridge = Bridge()
        pairs = [bridge.sympy.factor_list(bridge.product(part)) for part in (found.above, found.below)]
        (number, above), (divisor, below) = ((coefficient, dict(powers)) for coefficient, powers in pairs)
        common = {base: min(times, below[base]) for base, times in above.items() if base in below}
        bases = [_back(bridge, base) for base in common]
        if not common or None in bases:
            return
        gone = [base for base in bases if base is not None]
        rest = [_rest(bridge, *side, common) for side in ((number, above), (divisor, below))]
        if rest[0] is None or rest[1] is None:
            return
        kept_above, kept_below = [rest[0]], [rest[1]]
    zero = next((f for f in gone if not context.range(f).nonzero), None)
    if zero is not None:
        yield Blocked((zero, "may be zero"))
        return
    wild = next((f for f in gone if not context.has_float(f)), None)
    if wild is not None:
        yield Blocked((wild, "may leave the range of floats, and the fraction be no number"))
        return
    new = product(Factors(found.sign, tuple(kept_above), tuple(kept_below)))
    yield Rewritten(new, tuple((f, "is never zero") for f in gone))


def _rest(bridge: Bridge, number: Any, powers: dict[Any, int], common: dict[Any, int]) -> Expr | None:
    left = (base ** (times - common.get(base, 0)) for base, times in powers.items())
    return _back(bridge, bridge.sympy.Mul(number, *left, evaluate=False))


def extend(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """A fraction with both sides multiplied by one of its factors."""
    found = factors(expr)
    if not is_product(expr) or not found.below:
        return
    wild = _wild(context, found)
    if wild is not None:
        yield wild
        return
    seen: set[Form] = set()
    for candidate in (*found.below, *found.above):
        if isinstance(candidate, Const) or form(candidate) in seen:
            continue
        seen.add(form(candidate))
        if context.safe(candidate):
            new = Factors(found.sign, (*found.above, candidate), (*found.below, candidate))
            yield Rewritten(product(new), ((candidate, "is well away from zero"),))
        else:
            yield Blocked((candidate, "is not proved to be well away from zero and from overflow"))


def combine(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """Fractions of a sum over one denominator."""
    if not is_sum(expr):
        return
    parts = terms(expr)
    split = [factors(term) for _, term in parts]
    groups: dict[Form, list[int]] = {}
    for n, found in enumerate(split):
        if found.below:
            groups.setdefault(tuple(sorted(map(form, found.below), key=repr)), []).append(n)
    for members in groups.values():
        if len(members) > 1:
            yield _over_one(context, parts, split, members)
    if len(groups) > 1 or (groups and len(parts) > len(next(iter(groups.values())))):
        yield from _over_product(context, expr, split)


def _over_one(context: Context, parts: Terms, split: Sequence[Factors], members: Sequence[int]) -> Finding:
    below = split[members[0]].below
    zero = next((d for d in below if not context.range(d).nonzero), None)
    if zero is not None:
        return Blocked((zero, "may be zero"))
    numerator = total([(parts[n][0], product(Factors(1, split[n].above))) for n in members])
    fraction = (1, product(Factors(1, (numerator,), below)))
    new = [fraction if n == members[0] else part for n, part in enumerate(parts) if n not in members[1:]]
    return Rewritten(total(new), tuple((d, "is never zero") for d in below if not isinstance(d, Const)))


def _over_product(context: Context, expr: Expr, parts: Sequence[Factors]) -> Iterator[Finding]:
    below = [d for found in parts for d in found.below]
    wild = next((wild for found in parts if (wild := _wild(context, found))), None)
    if wild is not None:
        yield wild
        return
    unsafe = next((d for d in below if not context.safe(d)), None)
    if unsafe is not None:
        yield Blocked((unsafe, "is not proved to be well away from zero and from overflow"))
        return
    bridge = Bridge()
    new = _back(bridge, bridge.sympy.together(bridge.to(expr)))
    if new is not None and is_product(new) and factors(new).below:
        yield Rewritten(new, tuple((d, "is well away from zero") for d in dict.fromkeys(below)))


def split(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
    """A fraction of a sum as a sum of fractions, or as partial fractions."""
    found = factors(expr)
    if not is_product(expr) or not found.below:
        return
    small = next((d for d in found.below if not context.range(d).away), None)
    if small is not None:
        yield Blocked((small, "is not proved to be well away from zero"))
        return
    sums = [n for n, f in enumerate(found.above) if is_sum(f)]
    if len(sums) == 1:
        inner = found.above[sums[0]]
        others = Factors(1, found.above[: sums[0]] + found.above[sums[0] + 1 :], found.below)
        if any(sign < 0 for sign, _ in terms(inner)):
            yield Blocked((inner, "subtracts, and its difference would be taken after rounding larger quotients"))
        else:
            yield Rewritten(total(_multiplied(found.sign, others, inner)))
    if any(map(is_sum, found.below)):
        yield from _partial_fractions(context, found)


def _partial_fractions(context: Context, found: Factors) -> Iterator[Finding]:
    if len({part for f in (*found.above, *found.below) for part in _variables(f)}) != 1:
        return
    bridge = Bridge()
    fraction = bridge.product(found.above) / bridge.product(found.below)
    if len(fraction.free_symbols) != 1:
        return  # constants that are no whole numbers are symbols, too
    apart = bridge.sympy.apart(fraction, *fraction.free_symbols)
    new = _back(bridge, apart) if apart.is_Add else None
    if new is None:
        return
    if any(sign < 0 for node in subexpressions(new) for sign, _ in terms(node)):
        yield Blocked((new, "subtracts fractions that may be nearly equal"))
    elif all(context.range(d).away for _, term in terms(new) for d in factors(term).below):
        yield Rewritten(product(Factors(found.sign, (new,))))


def _variables(expr: Expr) -> frozenset[Form]:
    """What is neither a sum, a product nor a constant in an expression."""
    match expr:
        case Const():
            return frozenset()
        case Call("add" | "sub" | "neg" | "mul" | "div", args):
            return frozenset().union(*map(_variables, args))
    return frozenset((form(expr),))


def _back(bridge: Bridge, value: Any) -> Expr | None:
    """The expression of a sympy result, or None where it is not one that a person would write."""
    try:
        return bridge.back(value)
    except Unbridgeable:
        return None


def _denominators(expr: Expr) -> frozenset[Form]:
    """What the divisions in an expression are by, as forms."""
    found = {
        form(d)
        for node in subexpressions(expr)
        if isinstance(node, Call) and node.op == "div"
        for d in factors(node).below
    }
    return frozenset(found)


def whole_constants(new: Expr, old: Expr) -> bool:
    """Are the constants of `new` those of `old`, or small whole numbers and halves?"""
    known = set(map(abs, constants(old)))
    return all(abs(c) in known or ((2 * c).is_integer() and abs(c) <= MAX_WHOLE) for c in constants(new))
