"""Compute a part of an equation in a stage of its own."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from envs.leir_env.ir import (
    Assign,
    Equation,
    Expr,
    Kind,
    Program,
    Statement,
)
from envs.leir_env.legality import written
from envs.leir_env.parts import (
    Stage,
    contracted,
    equation_of,
    flops,
    no_room,
    parts,
    replaced,
    stage,
)
from envs.leir_env.printer import show_expression
from envs.leir_env.strategies.base import (
    Exactness,
    Level,
    Outcome,
    Parameter,
    Refusal,
    Strategy,
    counted,
    nests,
    register,
)
from envs.leir_env.strategies.loops import Args, Site
from envs.leir_env.tree import (
    Node,
    Path,
    at,
    declarations,
    fresh_tensor,
    sites,
    splice,
    walk,
)
from envs.leir_env.verify import RULES

MENU_PARTS = 6
"""Parts of one equation that the menu offers."""


def oversized(program: Program) -> Refusal | None:
    """Say which limit of size or kind a rewritten program would break."""
    for rule in ("size", "kind"):
        for sentence, _, _ in RULES[rule].check(program, "llvm"):
            return Refusal("size", f"in the result, {sentence}")
    return None


def changed_by(statement: Statement, needed: frozenset[str]) -> frozenset[str]:
    """What of `needed` a statement changes before all in it is computed (an equation: nothing)."""
    return frozenset() if isinstance(statement, Equation) else needed & written(statement)


def exactness_of(equation: Equation, part: Expr) -> Exactness:
    return Exactness.REASSOCIATES if contracted(equation, part) else Exactness.EXACT


def numbered_part(program: Program, site: Site, args: Args) -> tuple[Node, Expr] | Refusal:
    """The equation and its part that an action names."""
    node = sites(program)[site[0]]
    found = parts(declarations(program), equation_of(node))
    if int(args[0]) > len(found):
        return Refusal("wrong_parameter", f"part {args[0]} of {site[0]}: it has {counted(len(found), 'part')}")
    return node, found[int(args[0]) - 1]


def equation_sites(program: Program) -> Iterator[tuple[str, Equation]]:
    for name, node in sites(program).items():
        if isinstance(node.statement, Equation):
            yield name, node.statement


def with_values(program: Program, path: Path, values: Mapping[Expr, Expr]) -> Program:
    """Replace parts of the right side of the equation at `path`."""
    equation = at(program, path)
    assert isinstance(equation, Equation)
    return splice(program, path, (replace(equation, value=replaced(equation.value, values)),))


WHICH = Parameter("which", "the part of its right side, counted from 1 in the order of the text, the whole first")


@register
class ExpressionSplitting(Strategy):
    """Compute a part of an equation in a stage of its own, over the loops that the part depends on.

    The stage stands as far out as the value allows; `compute_inline` undoes it where it needs no guard.

    Requires:
        1. The part has a numeric dtype of its own, and is not the whole right side of an `=`.
        2. What it reads does not change between the stage and the equation.
        3. It can be evaluated without the conditions around it, or under those that hold wherever it is now.

    Rewrite:
        L_i,j C[i,j] = A[i,j]*rsqrt(B[i])   ->   L_i D[i] = rsqrt(B[i])
                                                 L_i,j C[i,j] = A[i,j]*D[i]
    """

    name = "expression_splitting"
    level = Level.GRAPH
    menu = 128
    site_kinds = ("equation",)
    parameters = (WHICH,)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        declared = declarations(program)
        for site, equation in equation_sites(program):
            whole = equation.value if equation.assign is Assign.SET else None
            worth = (
                number
                for number, part in enumerate(parts(declared, equation), 1)
                if flops(part) > 1 and part != whole and not contracted(equation, part)
            )
            for number in itertools.islice(worth, MENU_PARTS):
                yield (site,), (str(number),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        plan = self._plan(program, site, args)
        return plan if isinstance(plan, Refusal) else None

    def _plan(self, program: Program, site: Site, args: Args) -> tuple[Node, Stage] | Refusal:
        """The equation and the outermost stage that can compute the part."""
        found = numbered_part(program, site, args)
        if isinstance(found, Refusal):
            return found
        node, part = found
        equation = equation_of(node)
        where = f"split part {args[0]} from {site[0]}"
        if part == equation.value and equation.assign is Assign.SET:
            return Refusal("no_effect", f"{where}: it is all that {site[0]} computes")
        refusals: list[Refusal] = []
        for plan in _stages(nests(program)[node.path[0]], (0, *node.path[1:]), part):
            if isinstance(plan, Stage):
                plan = replace(plan, path=(node.path[0], *plan.path[1:]))
                times = math.prod(loop.extent for loop in node.loops[: len(plan.path) - 1])
                reason = no_room(program, 1, plan.tensor.nbytes, times * plan.operations)
                if reason is None:
                    return node, plan
                plan = Refusal("size", reason)
            refusals.append(plan)
        return replace(refusals[0], sentence=f"{where}: {refusals[0].sentence}")

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        plan = self._plan(program, site, args)
        assert not isinstance(plan, Refusal)
        node, new = plan
        name = fresh_tensor(program)
        after = new.inserted(with_values(program, node.path, {new.part: new.element(name)}), name)
        return Outcome(after, exactness_of(equation_of(node), new.part))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        plan = self._plan(program, site, args)
        assert not isinstance(plan, Refusal)
        node, new = plan
        times = math.prod(loop.extent for loop in node.loops[len(new.path) - 1 :])
        return (
            f"Compute part {args[0]} of {site[0]}, {show_expression(new.part)}, in a stage of its own: "
            f"{counted(new.tensor.size, 'evaluation')} of {counted(flops(new.part), 'operation')} in place of {times}, "
            f"for {new.tensor.nbytes} bytes written and read back."
        )


@functools.lru_cache(maxsize=16384)
def _stages(alone: Program, path: Path, part: Expr) -> tuple[Stage | Refusal, ...]:
    """The stage at each depth, from the outside in, for a part of the equation at `path` of a program with one nest."""
    node = next(node for node in walk(alone) if node.path == path)
    return tuple(_stage(alone, node, depth, part) for depth in range(len(node.loops) + 1))


def _stage(alone: Program, node: Node, depth: int, part: Expr) -> Stage | Refusal:
    plan = stage(declarations(alone), node, depth, part)
    if isinstance(plan, str):
        return Refusal("scope", plan)
    changed = changed_by(at(alone, plan.path), plan.needs)
    if changed:
        return Refusal("dependence", f"{min(changed)}, which it reads, changes in the loops around it")
    if any(loop.kind is Kind.UNROLLED for loop in node.loops[:depth]):
        broken = next(RULES["kind"].check(plan.inserted(alone, fresh_tensor(alone)), "cuda"), None)
        return plan if broken is None else Refusal("size", broken[0])
    return plan


__all__ = ["ExpressionSplitting"]
