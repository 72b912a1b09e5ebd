"""Strategies that rewrite the right side of an equation by the laws of algebra.

All twelve rewrite one equation in place; `which` numbers the forms that a rule finds in it, in the order of the
text. The rules are in `rational` and `exponents`; what they may assume of signs comes from `ranges`. Results are
equal over the reals, and no rule brings in an overflow, a zero divisor or a cancellation that was not there.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from envs.leir_env import exponents, rational
from envs.leir_env.algebraic import (
    MAX_SIZE,
    PRODUCT,
    SUM,
    Blocked,
    Context,
    Fact,
    Finding,
    Rewritten,
    Rule,
    Skeleton,
    count,
    everywhere,
    form,
    size,
    skeleton,
)
from envs.leir_env.ir import Call, DType, Equation, Expr, Program
from envs.leir_env.printer import show_expression
from envs.leir_env.ranges import element_range
from envs.leir_env.settled import shifted
from envs.leir_env.strategies.base import Exactness, Level, Outcome, Parameter, Refusal, Strategy, register
from envs.leir_env.strategies.loops import Args, Site
from envs.leir_env.tree import Node, declarations, sites, splice

MAX_FORMS = 4
"""Forms of one equation that a strategy offers."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to rewrite an expression: the part that changes, what it becomes, and the whole."""

    old: Expr
    found: Rewritten
    whole: Expr


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule finds in an expression."""

    forms: tuple[Alternative, ...]
    blocked: Fact | None
    """Why a place that the rule is made for was left alone."""


@functools.lru_cache(maxsize=16384)
def operators(expr: Expr) -> frozenset[str]:
    """The operators in an expression, subscripts and casts left out."""
    if isinstance(expr, Call):
        return frozenset((expr.op,)).union(*map(operators, expr.args))
    return frozenset()


@functools.lru_cache(maxsize=16384)
def _has(expr: Expr, needs: tuple[frozenset[str], ...]) -> bool:
    """Does it have an operator of each kind?"""
    present = operators(expr)
    return not any(present.isdisjoint(wanted) for wanted in needs)


@functools.lru_cache(maxsize=1024)
def float_equations(program: Program) -> tuple[tuple[str, Node, Expr], ...]:
    """The equations over floats that are no larger than what is rewritten: site, node and right side."""
    declared = declarations(program)
    return tuple(
        (site, node, node.statement.value)
        for site, node in sites(program).items()
        if isinstance(node.statement, Equation)
        and declared[node.statement.target.tensor][0].dtype.is_float
        and _is_small(node.statement.value)
    )


@functools.lru_cache(maxsize=16384)
def _is_small(expr: Expr) -> bool:
    return size(expr) <= MAX_SIZE


@functools.lru_cache(maxsize=16384)
def find(rule: Rule, whole: frozenset[str], expr: Expr, context: Context) -> Found:
    """What `rule` makes of the skeleton `expr`, the first few forms.

    A mere re-print is none, and what may be infinite or undefined is left alone: `a/0-a/0` is no number, 0 is one.
    """
    forms: dict[object, Alternative] = {}
    blocked: Fact | None = None
    for old, finding, put in everywhere(context, expr, rule, whole):
        if isinstance(finding, Blocked):
            blocked = blocked or finding.fact
            continue
        partial = context.partial(old)
        if partial is not None:
            blocked = blocked or (partial, "may be infinite or undefined")
            continue
        crowded = context.crowded(old)
        if crowded is not None:
            blocked = blocked or (crowded, "may overflow in another order of multiplications and divisions")
            continue
        new = put(finding.expr)
        shape = form(new)
        if shape != form(expr) and rational.whole_constants(new, expr) and len(forms) < MAX_FORMS:
            forms.setdefault(shape, Alternative(old, finding, new))
    return Found(tuple(forms.values()), blocked)


@functools.lru_cache(maxsize=8192)
def context_of(program: Program, node: Node) -> Context:
    """What is known of the skeleton of the equation at `node`."""
    equation = node.statement
    assert isinstance(equation, Equation)
    bones = skeleton(equation.value)
    return Context(
        tuple(element_range(program, element, node) for element in bones.elements),
        declarations(program)[equation.target.tensor][0].dtype is DType.F16,
        frozenset(map(bones.strip, shifted(program, node))),
    )


class Algebra(Strategy):
    """A strategy that rewrites the right side of a floating-point equation by a rule."""

    level = Level.MATH
    site_kinds = ("equation",)
    parameters = (Parameter("which", "which of the places or forms that it finds, from 1 on"),)
    whole: ClassVar[frozenset[str]]
    """Operators whose nests the rule is offered as a whole."""
    needs: ClassVar[tuple[frozenset[str], ...]]
    """Operators without one of each of which there is nothing to find."""
    prey: ClassVar[str]
    """What it looks for, for the refusal."""
    verb: ClassVar[str]

    @staticmethod
    @abstractmethod
    def rule(context: Context, expr: Expr, above: str) -> Iterator[Finding]:
        """The law: see `algebraic.Rule`."""

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node, value in float_equations(program):
            if _has(value, self.needs):
                for number in range(len(self._find(program, node).forms)):
                    yield (site,), (str(number + 1),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node = sites(program)[site[0]]
        assert isinstance(node.statement, Equation)
        unfit = self._unfit(program, site[0], node.statement)
        if unfit is not None:
            return unfit
        found = self._find(program, node)
        if int(args[0]) <= len(found.forms):
            return None
        if found.forms:
            return Refusal("structure", f"{self.name} {site[0]}: it has {len(found.forms)} forms, not {args[0]}")
        if found.blocked is not None:
            return Refusal("domain", f"{self.name} {site[0]}: {_fact(found.blocked, skeleton(node.statement.value))}")
        return Refusal("structure", f"{self.name} {site[0]}: {self.prey} is not found in it")

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node = sites(program)[site[0]]
        equation = node.statement
        assert isinstance(equation, Equation)
        chosen = self._find(program, node).forms[int(args[0]) - 1]
        value = skeleton(equation.value).fill(chosen.whole)
        return Outcome(splice(program, node.path, (replace(equation, value=value),)), Exactness.REASSOCIATES)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        node = sites(program)[site[0]]
        assert isinstance(node.statement, Equation)
        bones = skeleton(node.statement.value)
        chosen = self._find(program, node).forms[int(args[0]) - 1]
        old, new = (show_expression(bones.fill(part)) for part in (chosen.old, chosen.found.expr))
        times = 1
        for loop in node.loops:
            times *= loop.extent
        facts = "".join(f"; {_fact(fact, bones)}" for fact in dict.fromkeys(chosen.found.given))
        return (
            f"{self.verb} in {site[0]} (form {args[0]}): {old} becomes {new}, {_costs(chosen)} "
            f"in each of {times} iterations{facts}."
        )

    def _unfit(self, program: Program, site: str, equation: Equation) -> Refusal | None:
        if not declarations(program)[equation.target.tensor][0].dtype.is_float:
            return Refusal("kind", f"{self.name} {site}: {equation.target.tensor} holds no floating-point numbers")
        if not _has(equation.value, self.needs):
            return Refusal("structure", f"{self.name} {site}: {self.prey} is not found in it")
        if not _is_small(equation.value):
            return Refusal(
                "size", f"{self.name} {site}: its right side has {size(equation.value)} nodes, the limit is {MAX_SIZE}"
            )
        return None

    def _find(self, program: Program, node: Node) -> Found:
        equation = node.statement
        assert isinstance(equation, Equation)
        bones = skeleton(equation.value)
        return find(type(self).rule, self.whole, bones.expr, context_of(program, node))


def _fact(fact: Fact, bones: Skeleton) -> str:
    return f"{show_expression(bones.fill(fact[0]))} {fact[1]}"


_COSTLY = (
    (("add", "sub"), "addition"),
    (("mul",), "multiplication"),
    (("div",), "division"),
    (("exp",), "exponential"),
    (("log",), "logarithm"),
    (("pow", "sqrt", "rsqrt"), "power or root"),
)


def _costs(chosen: Alternative) -> str:
    """What becomes more or less: `2 multiplications instead of 3`."""
    changes = []
    for ops, noun in _COSTLY:
        before, after = count(chosen.old, *ops), count(chosen.found.expr, *ops)
        if before != after:
            plural = {"power or root": "powers or roots"}.get(noun, f"{noun}s")
            changes.append(f"{after} {noun if after == 1 else plural} instead of {before}")
    return ", ".join(changes) or "with as many operations"


_ADDITIVE = frozenset({"add", "sub"})
_DIVISION = frozenset({"div"})
_MULTIPLICATIVE = frozenset({"mul", "div"})


@register
class Factorization(Algebra):
    """Write a sum as a product, with fewer multiplications.

    Requires:
        1. Polynomial factorisation over the rationals turns the sum into a product with fewer multiplications.
        2. The denominators stay the same, and constants whole or as they were.

    Rewrite:
        L_i C[i] = A[i]*B[i] + A[i]*D[i]        ->    L_i C[i] = A[i]*(B[i] + D[i])
    """

    name = "factorization"
    rule = staticmethod(rational.factor)
    whole = SUM
    needs = (_ADDITIVE, _MULTIPLICATIVE)
    prey = "a sum with a common factor"
    verb = "Factor a sum"


@register
class ExpandFactorization(Algebra):
    """Multiply a product of sums out; undoes `factorization`.

    Requires:
        1. A product has a factor that is a sum; of two if the product is a term of a sum (`expand_collect` has one).
        2. No such factor subtracts: `(a-b)*c` keeps the digits that `a*c-b*c` cancels; nor is one squared whose terms
           may cancel.
        3. No factor may overflow where the product does not: none grows like an exponential.
        4. At most 8 terms result.

    Rewrite:
        L_i C[i] = A[i]*(B[i] + D[i])          ->    L_i C[i] = A[i]*B[i] + A[i]*D[i]
    """

    name = "expand_factorization"
    rule = staticmethod(rational.expand)
    whole = PRODUCT
    needs = (_ADDITIVE, frozenset({"mul"}))
    prey = "a product with a sum among its factors"
    verb = "Expand a product"


@register
class Cancellation(Algebra):
    """Cancel common factors of a fraction, or opposite terms of a sum.

    Requires:
        1. Numerator and denominator have a common factor, or a sum has a term and its opposite.
        2. The factor is never zero; the term is defined everywhere.

    Rewrite:
        L_i C[i] = A[i]*exp(B[i])/exp(B[i])    ->    L_i C[i] = A[i]
    """

    name = "cancellation"
    rule = staticmethod(rational.cancel)
    whole = SUM | PRODUCT
    needs = (_ADDITIVE | _DIVISION,)
    prey = "a fraction with a common factor or a sum with opposite terms"
    verb = "Cancel"


@register
class ExpandCancellation(Algebra):
    """Multiply numerator and denominator by one of their factors; undoes `cancellation`.

    Requires:
        1. The right side has a fraction with a factor that is no constant.
        2. The factor is at least 1/16 in magnitude, and of polynomial growth, and so is the numerator (in f16: from
           1/2 to 2).

    Rewrite:
        L_i C[i] = A[i]/(B[i]*B[i] + 1)        ->    L_i C[i] = A[i]*(B[i]*B[i] + 1)/((B[i]*B[i] + 1)*(B[i]*B[i] + 1))
    """

    name = "expand_cancellation"
    rule = staticmethod(rational.extend)
    whole = PRODUCT
    needs = (_DIVISION,)
    prey = "a fraction with a factor to extend by"
    verb = "Extend a fraction"


@register
class Together(Algebra):
    """Write fractions of a sum over one denominator.

    Requires:
        1. Terms with the same denominator, which is never zero; or
        2. terms with several, each at least 1/16 in magnitude and of polynomial growth, and so are the numerators (in
           f16: denominators from 1/2 to 2).

    Rewrite:
        L_i C[i] = A[i]/exp(D[i]) + B[i]/exp(D[i])    ->    L_i C[i] = (A[i] + B[i])/exp(D[i])
    """

    name = "together"
    rule = staticmethod(rational.combine)
    whole = SUM
    needs = (_ADDITIVE, _DIVISION)
    prey = "a sum of fractions"
    verb = "Combine fractions"


@register
class Apart(Algebra):
    """Split a fraction whose numerator is a sum, or into partial fractions; undoes `together`.

    Requires:
        1. The denominator is at least 1/16 in magnitude.
        2. No term of the numerator, and no partial fraction, is subtracted.
        3. Partial fractions: the fraction has a single variable.

    Rewrite:
        L_i C[i] = (A[i] + B[i])/(abs(D[i]) + 1)     ->    L_i C[i] = A[i]/(abs(D[i]) + 1) + B[i]/(abs(D[i]) + 1)
    """

    name = "apart"
    rule = staticmethod(rational.split)
    whole = PRODUCT
    needs = (_ADDITIVE, _DIVISION)
    prey = "a fraction of a sum"
    verb = "Split a fraction"


@register
class Powsimp(Algebra):
    """Combine exponentials, or powers and roots of one base.

    Requires:
        1. A product has several exponentials, a divisor that is one, or several powers of one base.
        2. The base is positive, or not negative where no exponent is.

    Rewrite:
        L_i C[i] = exp(A[i])*exp(B[i])        ->    L_i C[i] = exp(A[i] + B[i])
    """

    name = "powsimp"
    rule = staticmethod(exponents.combine_powers)
    whole = PRODUCT
    needs = (_MULTIPLICATIVE, frozenset({"exp", "pow", "sqrt", "rsqrt"}))
    prey = "a product of exponentials or powers of one base"
    verb = "Combine powers"


@register
class ExpandPowsimp(Algebra):
    """Take the exponential of a sum apart, or a power by a simple constant; undoes `powsimp`.

    Requires:
        1. An exponential whose terms are never positive, or all stay within 8 of zero together, so that no part
           overflows: `exp(a-m)` under a maximum m stays whole. Or:
        2. a power with a constant exponent, whole or half, up to 4; half only of what is not negative.

    Rewrite:
        L_i C[i] = exp(-A[i]*A[i] - abs(B[i]))    ->    L_i C[i] = exp(-(A[i]*A[i]))*exp(-abs(B[i]))
    """

    name = "expand_powsimp"
    rule = staticmethod(exponents.split_powers)
    whole = PRODUCT
    needs = (frozenset({"exp", "pow"}),)
    prey = "an exponential of a sum or a power with a simple exponent"
    verb = "Take a power apart"


@register
class ExpandLog(Algebra):
    """Write the logarithm of a product, quotient, power or exponential by those of its parts.

    Requires:
        1. The argument is a product, quotient, power, root or exponential.
        2. Every factor is positive.

    Rewrite:
        L_i C[i] = log(exp(A[i])*sigmoid(B[i]))    ->    L_i C[i] = A[i] + log(sigmoid(B[i]))
    """

    name = "expand_log"
    rule = staticmethod(exponents.split_log)
    whole = PRODUCT
    needs = (frozenset({"log"}),)
    prey = "a logarithm of a product"
    verb = "Expand a logarithm"


@register
class Logsimp(Algebra):
    """Combine the logarithms of a sum; undoes `expand_log`.

    Requires:
        1. A sum has at least two logarithms among its terms.
        2. Their arguments are at least 1/16 and of polynomial growth (in f16: bounded, with a product up to 16384).

    Rewrite:
        L_i C[i] = log(A[i]*A[i] + 1) + log(B[i]*B[i] + 1)    ->    L_i C[i] = log((A[i]*A[i] + 1)*(B[i]*B[i] + 1))
    """

    name = "logsimp"
    rule = staticmethod(exponents.combine_logs)
    whole = SUM
    needs = (_ADDITIVE, frozenset({"log"}))
    prey = "a sum of logarithms"
    verb = "Combine logarithms"


@register
class Collect(Algebra):
    """Group some terms of a sum by a factor that they share.

    Requires:
        1. At least two terms share the factor, and at least one does not (`factorization` has the rest).

    Rewrite:
        L_i C[i] = A[i]*B[i] + A[i]*D[i] + E[i]        ->    L_i C[i] = A[i]*(B[i] + D[i]) + E[i]
    """

    name = "collect"
    rule = staticmethod(rational.collect)
    whole = SUM
    needs = (_ADDITIVE, frozenset({"mul"}))
    prey = "a factor that some terms of a sum share"
    verb = "Collect terms"


@register
class ExpandCollect(Algebra):
    """Multiply out one term of a sum; undoes `collect`.

    Requires:
        1. A term of the sum is a multiple of a sum.
        2. That sum does not subtract: `(a-b)*c` keeps the digits that `a*c-b*c` cancels.
        3. No factor grows like an exponential.

    Rewrite:
        L_i C[i] = A[i]*(B[i] + D[i]) + E[i]          ->    L_i C[i] = A[i]*B[i] + A[i]*D[i] + E[i]
    """

    name = "expand_collect"
    rule = staticmethod(rational.distribute)
    whole = SUM
    needs = (_ADDITIVE, _MULTIPLICATIVE)
    prey = "a sum with a multiple of a sum among its terms"
    verb = "Multiply a term out"


__all__ = ["Algebra", "find", "operators"]
