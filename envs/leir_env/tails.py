"""How a guarded loop over lanes (vectorised or unrolled) is cut, so that its bulk asks no condition.

A guard on a lane would make TVM run the lanes one by one. So the loop is run whole where the guard holds for
every lane; and where tiles are aligned (`16jo+ji<500`: only the last tile is ragged, always by the same four
lanes) as a shorter loop in the tile that is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from envs.leir_env.affine import affine
from envs.leir_env.ir import Block, Call, Const, Equation, Expr, Index, Loop, Statement, subexpressions
from envs.leir_env.tree import equations, substitute


@dataclass(frozen=True, slots=True)
class Cut:
    """Run the first `extent` lanes over `block` where the conditions hold (all of them: no lane is named)."""

    conditions: tuple[Expr, ...]
    extent: int
    block: Block


def cuts(loop: Loop, outside: frozenset[str]) -> tuple[Cut, ...]:
    """Return the cases of a loop over lanes in the order to try them; empty if it needs no cutting.

    `outside` holds the indices around the loop. A last case without conditions is the loop as it was.
    """
    guards = {_on(loop.index, equation.guard) for child in loop.block.body for equation in equations(child)}
    if len(guards) != 1:
        return ()
    (guard,) = guards
    bounds = [_bound(condition, loop, outside) for condition in guard]
    known = [bound for bound in bounds if bound is not None]
    if not guard or len(known) < len(guard):
        return ()
    block = replace(loop.block, body=tuple(_without(child, guard) for child in loop.block.body))
    full = tuple(
        substitute(condition, {loop.index: Const(bound.worst)}) for condition, bound in zip(guard, known, strict=True)
    )
    whole = Cut(full, loop.extent, block)
    if len(known) > 1 or known[0].lanes is None:
        return whole, Cut((), loop.extent, loop.block)
    lanes = known[0].lanes
    if lanes == 0:
        return (whole,)
    return whole, Cut((substitute(guard[0], {loop.index: Const(lanes - 1)}),), lanes, block)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A comparison that bounds the lanes from one side."""

    worst: int
    """The lane for which it holds last."""
    lanes: int | None
    """How many lanes run in the tile that is cut; None if that differs from tile to tile."""


_STRICT = {"lt": (1, 0), "le": (1, -1), "gt": (-1, 0), "ge": (-1, -1)}
"""`a op b` over the integers as `sign*(a-b) + shift < 0`."""


def _bound(condition: Expr, loop: Loop, outside: frozenset[str]) -> _Bound | None:
    if not isinstance(condition, Call) or condition.op not in _STRICT:
        return None
    sign, shift = _STRICT[condition.op]
    form = affine(Call("sub", condition.args))
    if form is None or not form.names <= outside | {loop.index}:
        return None
    weights = {name: sign * weight for name, weight in form.terms}
    weight = weights.pop(loop.index, 0)
    if weight <= 0:
        return _Bound(0, None) if weight < 0 else None
    tile = weight * loop.extent
    if any(other % tile for other in weights.values()):
        return _Bound(loop.extent - 1, None)
    return _Bound(loop.extent - 1, -(-(-(sign * form.constant + shift) % tile) // weight))


def _on(index: str, guard: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The conditions that mention the index."""
    return tuple(condition for condition in guard if Index(index) in _indices(condition))


def _indices(expr: Expr) -> Iterator[Expr]:
    return (node for node in subexpressions(expr) if isinstance(node, Index))


def _without(statement: Statement, conditions: tuple[Expr, ...]) -> Statement:
    """The statement with these conditions taken out of every guard."""
    if isinstance(statement, Equation):
        left = tuple(condition for condition in statement.guard if condition not in conditions)
        return Equation(statement.target, statement.assign, statement.value, left)
    body = tuple(_without(child, conditions) for child in statement.block.body)
    return replace(statement, block=replace(statement.block, body=body))
