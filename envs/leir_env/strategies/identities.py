"""Identities that prepare a program for others: split an exponential, or multiply and divide by the same element.

Each takes the equation and the tensor whose element it brings in: the one that the equation already reads, or the
one at the place that it writes. That element must have its final value when the equation runs.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from envs.leir_env.affine import interval
from envs.leir_env.algebraic import F16_FACTOR, OPAQUE, factors, form, terms
from envs.leir_env.ir import Access, Call, DType, Equation, Expr, Kind, Program, Scope, Tensor, with_children
from envs.leir_env.printer import show_expression
from envs.leir_env.ranges import AWAY, Range, element_range, expression_range, finished_range
from envs.leir_env.settled import is_finished, partial_maximum, shifted, writers
from envs.leir_env.strategies.algebra import float_equations, operators
from envs.leir_env.strategies.base import Exactness, Level, Outcome, Refusal, Strategy, register
from envs.leir_env.strategies.loops import Args, Site
from envs.leir_env.tree import Node, accesses, declarations, loops_below, reads, sites, splice


class Identity(Strategy):
    """A strategy that brings an element of another tensor into an equation, without changing its value."""

    level = Level.MATH
    site_kinds = ("equation", "tensor")

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node, equation = equation_at(program, site[0])
        tensor, home = declarations(program)[site[1]]
        what = f"{self.name} {site[0]}, {site[1]}"
        own = declarations(program)[equation.target.tensor][0].dtype
        if not own.is_float or tensor.dtype is not own:
            return Refusal("kind", f"{what}: {site[0]} is {own} and {site[1]} {tensor.dtype}, need the same float")
        if node.path[: len(home)] != home or tensor.scope is not Scope.GLOBAL or site[1] == equation.target.tensor:
            return Refusal("scope", f"{what}: {site[1]} is not a global tensor that {site[0]} can read")
        found = self._new_value(program, node, equation, tensor)
        if isinstance(found, tuple):
            return Refusal(found[0], f"{what}: {found[1]}")
        if _meets_bound_loops(program, node, site[1]):
            return Refusal("dependence", f"{what}: other threads of the same kernel write {site[1]}")
        # No promise of a loop breaks: an iteration reads what it wrote itself, or what no other iteration writes.
        return None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node, equation = equation_at(program, site[0])
        found = self._new_value(program, node, equation, declarations(program)[site[1]][0])
        assert not isinstance(found, tuple)
        return Outcome(splice(program, node.path, (replace(equation, value=found),)), Exactness.REASSOCIATES)

    @abstractmethod
    def _new_value(self, program: Program, node: Node, equation: Equation, tensor: Tensor) -> Expr | tuple[str, str]:
        """The new right side, or code and reason of a refusal."""


def equation_at(program: Program, site: str) -> tuple[Node, Equation]:
    """The equation that a site names."""
    node = sites(program)[site]
    assert isinstance(node.statement, Equation)
    return node, node.statement


def _meets_bound_loops(program: Program, node: Node, tensor: str) -> bool:
    """Is the tensor written in the same nest, and the nest a kernel?"""
    nest = program.body[node.path[0]]
    kernel = any(loop.kind is Kind.BOUND for loop in loops_below(nest))
    return kernel and any(writer.path[0] == node.path[0] for writer in writers(program).get(tensor, ()))


def element(program: Program, node: Node, equation: Equation, tensor: Tensor) -> Access | None:
    """The element of a tensor that goes with an equation: one that it reads, or the one at its own place.

    A tensor with fewer dimensions goes with the leading ones of the target. None where it has no such element, or
    not its final value yet.
    """
    read = (access for access in reads(equation) if access.tensor == tensor.name)
    inside = (access for access in read if _is_inside(access, tensor, node))
    shape = declarations(program)[equation.target.tensor][0].shape
    found = next(inside, None)
    if found is None and tensor.shape == shape[: len(tensor.shape)]:
        found = Access(tensor.name, equation.target.subscripts[: len(tensor.shape)])
    return found if found is not None and is_finished(program, found, node) else None


def _is_inside(access: Access, tensor: Tensor, node: Node) -> bool:
    """Is it within its tensor in every iteration, whatever conditions stand around it?"""
    reaches = [interval(subscript, node.extents) for subscript in access.subscripts]
    indirect = any(True for subscript in access.subscripts for _ in accesses(subscript))
    return not indirect and all(
        reach is not None and reach[0] >= 0 and reach[1] < extent
        for reach, extent in zip(reaches, tensor.shape, strict=True)
    )


def _value_range(program: Program, node: Node, expr: Expr) -> Range:
    return expression_range(expr, lambda access: element_range(program, access, node), shifted(program, node))


@register
class ExponentialSplit(Identity):
    """Split the exponential of a difference at a value in between: a maximum over part of what is subtracted.

    Requires:
        1. The equation has `exp(x-m)` where m is a maximum over values such as x.
        2. The tensor is a maximum over some of them, x included, so that `x <= y <= m`: neither part can overflow.
        3. It is finished when the equation runs.

    Rewrite:
        L_i,j,k C[i,j,k] = exp(A[i,j,k]-D[i])
            ->    L_i,j,k C[i,j,k] = exp(A[i,j,k]-E[i,j])*exp(E[i,j]-D[i])
    """

    name = "exponential_split"

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        maxima = _maxima(program)
        for site, _, value in float_equations(program) if len(maxima) > 1 else ():
            if {"exp", "sub"} <= operators(value):
                for name in maxima:
                    yield (site, name), ()

    def _new_value(self, program: Program, node: Node, equation: Equation, tensor: Tensor) -> Expr | tuple[str, str]:
        def split(expr: Expr) -> Expr:
            match expr:
                case Call("exp", (Call("sub", (value, Access() as bound)),)):
                    between = partial_maximum(program, tensor.name, value, bound, node)
                    if between is not None:
                        parts = (Call("sub", (value, between)), Call("sub", (between, bound)))
                        return Call("mul", (Call("exp", (parts[0],)), Call("exp", (parts[1],))))
                case Call(op, args) if op not in OPAQUE:
                    return with_children(expr, tuple(map(split, args)))
            return expr

        new = split(equation.value)
        if new != equation.value:
            return new
        return (
            "domain",
            f"no exponential of a difference has {tensor.name} in between as a finished partial maximum, "
            f"and any other split may overflow",
        )

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        node, equation = equation_at(program, site[0])
        new = self._new_value(program, node, equation, declarations(program)[site[1]][0])
        assert not isinstance(new, tuple)
        return (
            f"Split the exponential in {site[0]} at {site[1]}, a maximum over part of the values: it becomes "
            f"{show_expression(new)}, whose second factor is the same for all values under one element of {site[1]}."
        )


def _maxima(program: Program) -> list[str]:
    """The tensors that one equation writes, as a maximum."""
    return [
        name
        for name, nodes in writers(program).items()
        if len(nodes) == 1 and isinstance(nodes[0].statement, Equation) and nodes[0].statement.assign == "max="
    ]


class _Pair(Identity):
    """Brings in an operation with an element and its inverse."""

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        names = [name for name in writers(program) if self._fits(finished_range(program, name))]
        for site, node, _ in float_equations(program) if names else ():
            for name in names:
                if writers(program)[name][-1].path < node.path:
                    yield (site, name), ()

    @abstractmethod
    def _fits(self, found: Range) -> bool:
        """May an element of this range be brought in?"""


@register
class MultiplicativeSplit(_Pair):
    """Divide the right side by an element of a tensor and multiply by it again.

    Requires:
        1. The equation reads an element of the tensor, or the tensor has the target's shape or its leading part.
        2. That element is finished when the equation runs.
        3. It is at least 1/16 in magnitude and of polynomial growth (in f16: from 1/2 to 2); at least 1 where the
           right side grows like an exponential.

    Rewrite:
        L_i C[i] = A[i]               ->    L_i C[i] = A[i]/D[i]*D[i]
    """

    name = "multiplicative_split"

    def _fits(self, found: Range) -> bool:
        return found.away and found.tame

    def _new_value(self, program: Program, node: Node, equation: Equation, tensor: Tensor) -> Expr | tuple[str, str]:
        y = element(program, node, equation, tensor)
        if y is None:
            return "scope", f"no element of {tensor.name} goes with it, or not with its final value yet"
        found = element_range(program, y, node)
        least = F16_FACTOR if tensor.dtype is DType.F16 else 1 / AWAY
        most = F16_FACTOR if tensor.dtype is DType.F16 else math.inf
        if not found.tame or max(found.low, -found.high) < 1 / least or found.magnitude > most:
            return "domain", f"{show_expression(y)} is not proved to be well away from zero and from overflow"
        if not _value_range(program, node, equation.value).tame and max(found.low, -found.high) < 1:
            return "domain", f"{show_expression(equation.value)} may overflow when divided by less than one"
        present = factors(equation.value)
        if form(y) in map(form, present.below):
            return "no_effect", f"it is divided by {show_expression(y)} already"
        return Call("mul", (Call("div", (equation.value, y)), y))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        node, equation = equation_at(program, site[0])
        y = element(program, node, equation, declarations(program)[site[1]][0])
        assert y is not None
        low = element_range(program, y, node)
        return (
            f"Divide {show_expression(equation.value)} in {site[0]} by {show_expression(y)} and multiply by it again: "
            f"{site[1]} lies between {low.low:.3g} and {low.high:.3g}, and the quotient can be scaled by itself."
        )


@register
class AdditiveSplit(_Pair):
    """Add an element of a tensor to the right side and subtract it again.

    Requires:
        1. The equation reads an element of the tensor, or the tensor has the target's shape or its leading part.
        2. That element is finished when the equation runs.
        3. It is at most as large in magnitude as the right side, which keeps all but the last bit of its value.

    Rewrite:
        L_i C[i] = A[i]               ->    L_i C[i] = A[i] + D[i] - D[i]
    """

    name = "additive_split"

    def _fits(self, found: Range) -> bool:
        return found.growth == 0

    def _new_value(self, program: Program, node: Node, equation: Equation, tensor: Tensor) -> Expr | tuple[str, str]:
        y = element(program, node, equation, tensor)
        if y is None:
            return "scope", f"no element of {tensor.name} goes with it, or not with its final value yet"
        mine, found = _value_range(program, node, equation.value), element_range(program, y, node)
        if found.magnitude > max(mine.low, -mine.high):
            return (
                "domain",
                f"{show_expression(y)} may be larger than {show_expression(equation.value)}, and take its last bits",
            )
        if form(y) in [form(term) for _, term in terms(equation.value)]:
            return "no_effect", f"{show_expression(y)} is a term of it already"
        return Call("sub", (Call("add", (equation.value, y)), y))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        node, equation = equation_at(program, site[0])
        y = element(program, node, equation, declarations(program)[site[1]][0])
        assert y is not None
        found = element_range(program, y, node)
        return (
            f"Add {show_expression(y)} in {site[0]} and subtract it again: {site[1]} stays within "
            f"{found.magnitude:.3g} of zero, no more than {show_expression(equation.value)}."
        )


__all__ = ["AdditiveSplit", "ExponentialSplit", "MultiplicativeSplit", "element"]
