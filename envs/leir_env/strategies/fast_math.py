"""Faster, less exact elementary functions, for those who ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from envs.leir_env.algebraic import OPAQUE, count
from envs.leir_env.ir import Call, DType, Equation, Expr, Program, with_children
from envs.leir_env.strategies.algebra import operators
from envs.leir_env.strategies.base import Exactness, Level, Outcome, Parameter, Refusal, Strategy, counted, register
from envs.leir_env.strategies.identities import equation_at
from envs.leir_env.strategies.loops import Args, Site
from envs.leir_env.tree import declarations, sites, splice


@dataclass(frozen=True, slots=True)
class Fast:
    """What a fast function costs and gains, against the default one in float32."""

    ulps: int
    """Its error stays below so many units in the last place, subnormal results apart."""
    gain: float
    """How many times faster a vectorised loop over a million elements was, in one run (AMD EPYC, AVX2)."""


FAST = {"exp": Fast(4, 1.4), "tanh": Fast(8, 2.3), "erf": Fast(8, 3.1), "sigmoid": Fast(6, 1.3)}
"""The functions with a fast form. A logarithm gains little, a division by the reciprocal nothing."""


@register
class FastMath(Strategy):
    """Use a faster form of an elementary function, a few units in the last place off.

    The fast exp has a shorter polynomial and flushes subnormal results to zero; tanh and erf are one quotient of
    polynomials. Errors stay below 4 ulp (exp), 6 (sigmoid) and 8 (tanh, erf) in float32.

    Requires:
        1. Approximate arithmetic is asked for.
        2. The equation calls the function, outside of what is compared or rounded to a whole number.
        3. Its target is f32, f16 or bf16: float64 has no fast form.

    Rewrite:
        L_i C[i] = exp(A[i])          ->    L_i C[i] = fast_exp(A[i])
    """

    name = "fast_math"
    level = Level.MATH
    approximate = True
    local = True
    targets = ("llvm",)
    site_kinds = ("equation",)
    parameters = (Parameter("function", "the function to speed up", tuple(FAST)),)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node in sites(program).items():
            if isinstance(node.statement, Equation):
                present = operators(node.statement.value)
                yield from (((site,), (function,)) for function in FAST if function in present)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        _, equation = equation_at(program, site[0])
        dtype = declarations(program)[equation.target.tensor][0].dtype
        if not dtype.is_float or dtype is DType.F64:
            return Refusal("kind", f"fast {args[0]} in {site[0]}: it is {dtype}, and only f32, f16 and bf16 have one")
        if _faster(equation.value, args[0]) == equation.value:
            return Refusal("structure", f"fast {args[0]} in {site[0]}: no {args[0]} there can be replaced")
        return None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node, equation = equation_at(program, site[0])
        new = replace(equation, value=_faster(equation.value, args[0]))
        return Outcome(splice(program, node.path, (new,)), Exactness.APPROXIMATE)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        node, equation = equation_at(program, site[0])
        function, times = FAST[args[0]], 1
        for loop in node.loops:
            times *= loop.extent
        before, after = (count(value, args[0]) for value in (equation.value, _faster(equation.value, args[0])))
        return (
            f"Use the fast {args[0]} in {site[0]}: {counted(before - after, 'call')} in each of {times} iterations, "
            f"about {function.gain:g} times faster in float32 vectors, with an error below {function.ulps} ulp."
        )


def _faster(expr: Expr, function: str) -> Expr:
    if not isinstance(expr, Call) or expr.op in OPAQUE:
        return expr
    args = tuple(_faster(arg, function) for arg in expr.args)
    return Call(f"fast_{function}", args) if expr.op == function else with_children(expr, args)


__all__ = ["FAST", "Fast", "FastMath"]
