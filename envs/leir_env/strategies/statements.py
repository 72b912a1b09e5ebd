"""Strategies on whole statements: exchange two neighbours, drop what has no use."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from envs.leir_env.ir import Assign, Block, Equation, Program, Role
from envs.leir_env.key import key
from envs.leir_env.legality import read, starts, written
from envs.leir_env.region import Region, Use, covers, region
from envs.leir_env.simplify import linear
from envs.leir_env.strategies.base import Level, Outcome, Refusal, Strategy, counted, register
from envs.leir_env.strategies.graph import drop_tensor
from envs.leir_env.strategies.loops import Args, Site, reordered
from envs.leir_env.tree import (
    Node,
    Path,
    block_at,
    declarations,
    site_of,
    sites,
    splice,
    update_block,
    walk,
)


@register
class ExpressionReorder(Strategy):
    """Exchange two neighbouring statements of one block: equations or loops with all that is in them.

    Requires:
        1. The second statement follows the first directly.
        2. Neither writes what the other reads or writes; accumulations of one tensor may be re-associated.

    Rewrite:
        L_i C[i] = exp(A[i])   ->   L_i D[i] += B[i]
        L_i D[i] += B[i]            L_i C[i] = exp(A[i])
    """

    name = "expression_reorder"
    level = Level.GRAPH
    site_kinds = ("statement", "statement")

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node in sites(program).items():
            siblings, position = block_at(program, node.path).body, node.path[-1]
            # What the first hands over to the second is a dependence but in the rarest cases.
            if position + 1 < len(siblings) and not written(siblings[position]) & read(siblings[position + 1]):
                yield (site, site_of(program, (*node.path[:-1], position + 1))), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        first, second = (sites(program)[name] for name in site)
        where = f"exchange {site[0]}, {site[1]}"
        if second.path != (*first.path[:-1], first.path[-1] + 1):
            return Refusal("structure", f"{where}: {site[1]} does not directly follow {site[0]}")
        after = self._exchanged(program, first, second)
        if key(after) == key(program):
            return Refusal("no_effect", f"{where}: but for names they are the same")
        verdict = reordered(program, after)
        return verdict if isinstance(verdict, Refusal) else None

    def _exchanged(self, program: Program, first: Node, second: Node) -> Program:
        position = first.path[-1]

        def change(block: Block) -> Block:
            pair = (second.statement, first.statement)
            return replace(block, body=(*block.body[:position], *pair, *block.body[position + 2 :]))

        return update_block(program, first.path[:-1], change)

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        after = self._exchanged(program, *(sites(program)[name] for name in site))
        exactness = reordered(program, after)
        assert not isinstance(exactness, Refusal)
        return Outcome(after, exactness)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        first, second = (sites(program)[name].statement for name in site)
        both = sorted(written(first) & written(second))
        why = f"both accumulate {', '.join(both)}" if both else "neither writes what the other uses"
        return (
            f"Exchange {site[0]} (writes {', '.join(sorted(written(first)))}) and {site[1]} (writes "
            f"{', '.join(sorted(written(second)))}): {why}, and each gets a new neighbour that it may be fused with."
        )


@register
class DeadCodeElimination(Strategy):
    """Drop an equation whose result is never used; a temporary that nothing else reads goes as a whole.

    Requires:
        1. Either its tensor is a temporary that no equation of another tensor reads,
        2. or a later `=` in the same block overwrites all that it writes, and nothing reads the tensor until then.

    Rewrite:
        L_i D[i] = exp(A[i])   ->   L_i C[i] = A[i]+1
        L_i C[i] = A[i]+1
    """

    name = "dead_code_elimination"
    level = Level.GRAPH
    site_kinds = ("equation",)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        writers: dict[str, list[str]] = {}
        for site, node in sites(program).items():
            if isinstance(node.statement, Equation):
                writers.setdefault(node.statement.target.tensor, []).append(site)
        for name, found in writers.items():
            if _unread(program, name):
                yield (found[0],), ()
            else:
                yield from (((site,), ()) for site in found[:-1])

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node, equation, name = self._found(program, site)
        if _unread(program, name):
            return None
        reason = _kept(program, node, equation)
        if reason is not None:
            return Refusal("dependence", f"drop {site[0]}: {reason}")
        if starts(self._without(program, site)).get(name) is not starts(program).get(name):
            return Refusal("dependence", f"drop {site[0]}: {name} would start differently")
        return None

    def _found(self, program: Program, site: Site) -> tuple[Node, Equation, str]:
        node = sites(program)[site[0]]
        assert isinstance(node.statement, Equation)
        return node, node.statement, node.statement.target.tensor

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        return Outcome(self._without(program, site))

    def _without(self, program: Program, site: Site) -> Program:
        node, _, name = self._found(program, site)
        if not _unread(program, name):
            return splice(program, node.path, ())
        program = _without_writers(program, name)
        return drop_tensor(program, name) if name in declarations(program) else program

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        node, _, name = self._found(program, site)
        times = math.prod(loop.extent for loop in node.loops)
        why = (
            f"nothing reads {name}, whose {declarations(program)[name][0].nbytes} bytes go with it"
            if _unread(program, name)
            else f"what it writes to {name} is overwritten before anything reads it"
        )
        return f"Drop {site[0]}, which runs {counted(times, 'time')}: {why}."


def _unread(program: Program, name: str) -> bool:
    """Is a tensor a temporary that only its own equations read?"""
    return declarations(program)[name][0].role is Role.TEMPORARY and not any(
        isinstance(node.statement, Equation) and node.statement.target.tensor != name and name in read(node.statement)
        for node in walk(program)
    )


def _without_writers(program: Program, name: str) -> Program:
    """Drop every equation of a tensor, the last first, so that the paths of the others hold."""
    for node in reversed(walk(program)):
        if isinstance(node.statement, Equation) and node.statement.target.tensor == name:
            program = splice(program, node.path, ())
    return program


def _kept(program: Program, node: Node, equation: Equation) -> str | None:
    """Why what an equation writes may be used, if it is not overwritten first."""
    name = equation.target.tensor
    home = declarations(program)[name][1]
    for depth in range(len(node.loops), len(home) - 1, -1):
        *outer, first = node.path[: depth + 1]
        for other in _below(program, (*outer, first)):
            if other.path != node.path and _uses(other, name):
                return f"{site_of(program, other.path)}, in the loops around it, uses {name}"
        for position in range(first + 1, len(block_at(program, (*outer, first)).body)):
            later = _below(program, (*outer, position))
            for other in later:
                if _uses(other, name):
                    return f"{site_of(program, other.path)} uses {name} before it is overwritten"
            if any(_overwrites(program, other, node, depth) for other in later):
                return None
    return f"nothing overwrites all that it writes to {name}"


def _below(program: Program, path: Path) -> list[Node]:
    """The equations at or below a path."""
    return [n for n in walk(program) if n.path[: len(path)] == path and isinstance(n.statement, Equation)]


def _uses(node: Node, name: str) -> bool:
    """Does an equation use the values of a tensor, be it to accumulate?"""
    equation = node.statement
    assert isinstance(equation, Equation)
    return name in read(equation) or (equation.target.tensor == name and equation.assign is not Assign.SET)


def _overwrites(program: Program, later: Node, earlier: Node, depth: int) -> bool:
    """Does one equation set all elements that another writes, within an iteration of the `depth` loops around both?"""
    new, old = later.statement, earlier.statement
    assert isinstance(new, Equation) and isinstance(old, Equation)
    if new.target.tensor != old.target.tensor or new.guard:
        return False
    tensor = declarations(program)[new.target.tensor][0]
    fixed = {loop.index: loop.extent for loop in later.loops[:depth]}
    box = region(tensor, (Use(new.target, new, True, later.extents),), fixed)
    inner = region(tensor, (Use(old.target, old, True, earlier.extents),), fixed)
    if isinstance(box, str) or isinstance(inner, str) or not _fills(new, box, later, depth):
        return False
    whole = all(
        not base.terms and base.constant <= 0 and base.constant + extent >= size
        for base, extent, size in zip(box.base, box.extents, tensor.shape, strict=True)
    )
    return whole or all(
        dict(a.terms) == dict(b.terms) and a.constant <= b.constant and a.constant + m >= b.constant + n
        for a, m, b, n in zip(box.base, box.extents, inner.base, inner.extents, strict=True)
    )


def _fills(equation: Equation, box: Region, node: Node, depth: int) -> bool:
    """Does an equation write every element of the box around its writes?"""
    extents = node.extents
    within = tuple(
        linear(subscript, extents).plus(base, -1)
        for subscript, base in zip(equation.target.subscripts, box.base, strict=True)
    )
    shape = replace(box.tensor, shape=box.extents)
    return covers(Region(within, (1,) * len(within), shape, tuple(extents.items())), node.loops[depth:])


__all__ = ["DeadCodeElimination", "ExpressionReorder"]
