"""Compute an expression that stands at several places once."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from envs.leir_env.ir import (
    Access,
    Assign,
    Equation,
    Expr,
    Index,
    Program,
    children,
    with_children,
)
from envs.leir_env.legality import written
from envs.leir_env.parts import (
    Stage,
    equation_of,
    evaluated,
    evaluations,
    flops,
    parts,
    skeleton,
    stage,
)
from envs.leir_env.printer import show_expression
from envs.leir_env.strategies.base import (
    Level,
    Outcome,
    Refusal,
    Strategy,
    counted,
    register,
)
from envs.leir_env.strategies.expressions import (
    WHICH,
    changed_by,
    equation_sites,
    exactness_of,
    numbered_part,
    oversized,
    with_values,
)
from envs.leir_env.strategies.loops import Args, Site, broken_promise
from envs.leir_env.tree import (
    Node,
    Path,
    at,
    block_at,
    declarations,
    equations,
    fresh_tensor,
    indices,
    substitute,
    walk,
)


@dataclass(frozen=True, slots=True)
class _Reader:
    """A part of an equation with the shared value, and how the indices of that value are called there."""

    node: Node
    part: Expr
    names: tuple[tuple[str, str], ...]

    def element(self, value: Access) -> Expr:
        return substitute(value, {name: Index(other) for name, other in self.names})


@dataclass(frozen=True, slots=True)
class _Sharing:
    """A value computed once, by a new stage or by the equation that stores it anyway, and who reads it."""

    stage: Stage
    holder: Access | None
    """Where the equation stores it."""
    readers: tuple[_Reader, ...]

    @property
    def places(self) -> int:
        """How often the value stands in the program."""
        found = sum(len(evaluations(equation_of(reader.node), reader.part)) for reader in self.readers)
        return found + (self.holder is not None)

    def applied(self, program: Program) -> Program:
        name = fresh_tensor(program)
        value = self.holder or self.stage.element(name)
        changes: dict[Path, dict[Expr, Expr]] = {}
        for reader in self.readers:
            changes.setdefault(reader.node.path, {})[reader.part] = reader.element(value)
        for path, values in changes.items():
            program = with_values(program, path, values)
        return program if self.holder else self.stage.inserted(program, name)


@register
class CommonSubexpressionElimination(Strategy):
    """Compute an expression that stands at several places once, into a temporary that all of them read.

    The loops around the places may have other names. If the first equation stores the very expression, the others
    read its tensor; otherwise the temporary belongs to the innermost block around them.

    Requires:
        1. The part stands at two places or more, in its equation and later ones, up to the names of indices.
        2. What it reads does not change between the first place and the last.
        3. It can be evaluated without the conditions around it, or all places are under the same ones.

    Rewrite:
        L_i,j E[i] += exp(A[i,j]-D[i])              L_i,j F[i,j] = exp(A[i,j]-D[i])
        L_i,j C[i,j] = exp(A[i,j]-D[i])/E[i]   ->   L_i,j E[i] += F[i,j]
                                                    L_i,j C[i,j] = F[i,j]/E[i]
    """

    name = "common_subexpression_elimination"
    level = Level.GRAPH
    site_kinds = ("equation",)
    parameters = (WHICH,)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        declared = declarations(program)
        listed = [(site, equation, parts(declared, equation)) for site, equation in equation_sites(program)]
        places: dict[Expr, int] = {}
        for _, equation, found in listed:
            for part in found:
                shape = skeleton(part)
                places[shape] = places.get(shape, 0) + len(evaluations(equation, part))
        seen: set[Expr] = set()
        for site, _, found in listed:
            within: set[Expr] = set()
            for number, part in enumerate(found, 1):
                shape = skeleton(part)
                if places[shape] > 1 and shape not in seen:
                    if part not in within:
                        yield (site,), (str(number),)
                    # What stands in a common part and nowhere else goes with it.
                    within.update(e for e in evaluated(part) if places.get(skeleton(e)) == places[shape])
                seen.add(shape)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        plan = self._plan(program, site, args)
        return plan if isinstance(plan, Refusal) else None

    def _plan(self, program: Program, site: Site, args: Args) -> _Sharing | Refusal:
        """Share the value in the block with the most places, the innermost of several."""
        found = numbered_part(program, site, args)
        if isinstance(found, Refusal):
            return found
        node, part = found
        plans = [self._sharing(program, node, depth, part) for depth in range(len(node.loops), -1, -1)]
        best = max(plans, key=lambda plan: plan.places if isinstance(plan, _Sharing) else 0)
        if isinstance(best, _Sharing) and best.places > 1:
            after = best.applied(program)
            refusal = oversized(after) or broken_promise(program, after)
        else:
            refusals = (plan for plan in reversed(plans) if isinstance(plan, Refusal))
            refusal = next(refusals, Refusal("no_effect", "nothing else computes the same value"))
        if refusal is not None:
            return replace(refusal, sentence=f"share part {args[0]} of {site[0]}: {refusal.sentence}")
        assert isinstance(best, _Sharing)
        return best

    def _sharing(self, program: Program, node: Node, depth: int, part: Expr) -> _Sharing | Refusal:
        """Share the value among the statements from `node` on in the block that lies `depth` loops in."""
        declared = declarations(program)
        plan = stage(declared, node, depth, part)
        if isinstance(plan, str):
            return Refusal("scope", plan)
        *outer, first = plan.path
        body = block_at(program, plan.path).body
        holder = self._holder(program, node, plan)
        needed = plan.needs
        changed = changed_by(body[first], needed)
        if changed:
            return Refusal("dependence", f"{min(changed)}, which it reads, changes in the loops around it")
        readers: list[_Reader] = []
        if not holder:
            readers += self._readers(program, plan.path, node, plan)
        if not written(body[first]) & needed:
            if holder:
                needed |= {holder.tensor}
            for position in range(first + 1, len(body)):
                if changed_by(body[position], needed):
                    break
                readers += self._readers(program, (*outer, position), node, plan)
                if written(body[position]) & needed:
                    break
        return _Sharing(plan, holder, tuple(readers))

    def _holder(self, program: Program, node: Node, plan: Stage) -> Access | None:
        """The target of the equation at `node`, if that goes on holding the value once the statement is done."""
        equation, depth = equation_of(node), len(plan.path) - 1
        target = equation.target
        tensor, home = declarations(program)[target.tensor]
        fixed = {loop.index for loop in node.loops[:depth]}
        plain = [s.name for s in target.subscripts if isinstance(s, Index)]
        writers = [e for e in equations(at(program, plan.path)) if e.target.tensor == target.tensor]
        holds = (
            plan.part == equation.value
            and equation.assign is Assign.SET
            and not equation.guard
            and tensor.dtype is plan.tensor.dtype
            and len(home) <= depth
            and len(writers) == 1
            and target.tensor not in plan.needs
            and len(set(plain)) == len(target.subscripts)
            and fixed | set(plain) == fixed | indices(plan.part)
        )
        return target if holds else None

    def _readers(self, program: Program, path: Path, node: Node, plan: Stage) -> Iterator[_Reader]:
        """The parts of equations at or below `path` that have the value of the stage."""
        for other, part in _places(program, skeleton(plan.part)):
            if other.path[: len(path)] == path:
                under = evaluations(equation_of(other), part) if plan.guard else ((),)
                names = {_renaming((plan.part, *plan.guard), (part, *guard)) for guard in under}
                found = names.pop()
                if not names and found is not None and _fits(dict(found), node, other, len(plan.path) - 1):
                    yield _Reader(other, part, found)

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        plan = self._plan(program, site, args)
        assert not isinstance(plan, Refusal)
        exactness = max(exactness_of(equation_of(reader.node), reader.part) for reader in plan.readers)
        return Outcome(plan.applied(program), exactness)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        plan = self._plan(program, site, args)
        assert not isinstance(plan, Refusal)
        part, size = plan.stage.part, plan.stage.tensor.nbytes
        into = f"{plan.holder.tensor}, which stores it anyway" if plan.holder else f"a temporary of {size} bytes"
        return (
            f"Part {args[0]} of {site[0]}, {show_expression(part)}, stands at {plan.places} places and "
            f"costs {counted(flops(part), 'operation')}: compute it once and read it from {into}."
        )


@functools.lru_cache(maxsize=4096)
def _places(program: Program, shape: Expr) -> tuple[tuple[Node, Expr], ...]:
    """The parts of equations with this skeleton."""
    declared = declarations(program)
    return tuple(
        (node, part)
        for node in walk(program)
        if isinstance(node.statement, Equation)
        for part in parts(declared, node.statement)
        if skeleton(part) == shape
    )


@functools.lru_cache(maxsize=16384)
def _renaming(first: tuple[Expr, ...], second: tuple[Expr, ...]) -> tuple[tuple[str, str], ...] | None:
    """How to rename the indices of the first expressions to get the second, if that is all it takes."""
    names: dict[str, str] = {}

    def visit(a: Expr, b: Expr) -> bool:
        if isinstance(a, Index) and isinstance(b, Index):
            return names.setdefault(a.name, b.name) == b.name
        below, opposite = children(a), children(b)
        return (
            len(below) == len(opposite)
            and with_children(a, opposite) == b
            and all(visit(x, y) for x, y in zip(below, opposite, strict=True))
        )

    alike = len(first) == len(second) and all(visit(a, b) for a, b in zip(first, second, strict=True))
    return tuple(names.items()) if alike else None


def _fits(names: Mapping[str, str], here: Node, there: Node, shared: int) -> bool:
    """Does a renaming keep the `shared` outermost loops, and every other index within its range?"""
    fixed = {loop.index for loop in here.loops[:shared]}
    extents, others = here.extents, there.extents
    return all(name == other if name in fixed else others[other] <= extents[name] for name, other in names.items())


__all__ = ["CommonSubexpressionElimination"]
