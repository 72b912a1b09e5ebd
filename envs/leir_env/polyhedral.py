"""Questions over integer points, decided exactly by islpy (the Integer Set Library).

Sets are spelled as LEIR conditions over named variables that run from 0 to extent - 1, so that callers
need no second notation. Every condition must be quasi-affine (`affine.is_affine_condition`). A question
that takes too long has no answer (None), and callers take the careful side.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping

import islpy as isl

from envs.leir_env.ir import Call, Cast, Const, Expr, Index

Variables = tuple[tuple[str, int], ...]
"""Names and extents."""

MAX_OPERATIONS = 10_000
"""Solver steps for one question, a tenth of a second at worst; what programs need is some hundreds."""


Covers = tuple[tuple[Variables, tuple[Expr, ...]], ...]
"""Each holds at a point if values of its own variables exist that meet its conditions there."""


@functools.lru_cache(maxsize=65536)
def satisfiable(variables: Variables, conditions: tuple[Expr, ...], covers: Covers = ()) -> bool | None:
    """Say whether some point of the box meets all conditions, and no cover holds there."""
    return _decide(lambda context: not _uncovered(context, variables, conditions, covers).is_empty())


def sample(variables: Variables, conditions: tuple[Expr, ...], covers: Covers = ()) -> dict[str, int]:
    """Return a point of a satisfiable question, the first in lexicographic order."""
    points = _uncovered(_LOCAL.context, variables, conditions, covers)
    point = points.lexmin().sample_point()
    values = [point.get_coordinate_val(isl.dim_type.set, n).to_python() for n in range(len(variables))]
    return {name: value for (name, _), value in zip(variables, values, strict=True)}


def _uncovered(context: isl.Context, variables: Variables, conditions: tuple[Expr, ...], covers: Covers) -> isl.Set:
    left = _points(context, variables, conditions)
    for own, requirements in covers:
        joint = _points(context, variables + own, requirements)
        left = left.subtract(joint.project_out(isl.dim_type.set, len(variables), len(own)))
    return left


class _Local(threading.local):
    """Each thread's own solver context."""

    def __init__(self) -> None:
        self.context = isl.Context()


_LOCAL = _Local()


def _decide(question: Callable[[isl.Context], bool]) -> bool | None:
    context = _LOCAL.context
    context.reset_operations()
    context.set_max_operations(MAX_OPERATIONS)
    try:
        return question(context)
    except isl.Error:
        # Questions are well-formed by construction: the budget is spent, which islpy reports in many words.
        return None
    finally:
        context.set_max_operations(0)


def _points(context: isl.Context, variables: Variables, conditions: tuple[Expr, ...]) -> isl.Set:
    space = isl.Space.set_alloc(context, 0, len(variables))
    points = isl.Set.universe(space)
    for position, (_, extent) in enumerate(variables):
        points = points.lower_bound_val(isl.dim_type.set, position, isl.Val(0, context))
        points = points.upper_bound_val(isl.dim_type.set, position, isl.Val(extent - 1, context))
    domain = isl.LocalSpace.from_space(space)
    positions = {name: position for position, (name, _) in enumerate(variables)}
    for condition in conditions:
        points = points.intersect(_set(condition, domain, positions))
    return points


_RELATION = {"lt": "lt_set", "le": "le_set", "gt": "gt_set", "ge": "ge_set", "eq": "eq_set", "ne": "ne_set"}


def _set(condition: Expr, domain: isl.LocalSpace, positions: Mapping[str, int]) -> isl.Set:
    match condition:
        case Const(value):
            space = domain.get_space()
            return isl.Set.universe(space) if value else isl.Set.empty(space)
        case Call("not", (inner,)):
            return _set(inner, domain, positions).complement()
        case Call("and" | "or" as op, (left, right)):
            a, b = _set(left, domain, positions), _set(right, domain, positions)
            return a.intersect(b) if op == "and" else a.union(b)
        case Call(op, (left, right)) if op in _RELATION:
            relation: isl.Set = getattr(_form(left, domain, positions), _RELATION[op])(_form(right, domain, positions))
            return relation
    raise ValueError(f"not an affine condition: {condition}")


def _form(expr: Expr, domain: isl.LocalSpace, positions: Mapping[str, int]) -> isl.PwAff:
    match expr:
        case Const(value):
            return isl.Aff.val_on_domain(domain, isl.Val(int(value), domain.get_ctx())).to_pw_aff()
        case Index(name):
            return isl.Aff.var_on_domain(domain, isl.dim_type.set, positions[name]).to_pw_aff()
        case Cast(_, value):
            return _form(value, domain, positions)
        case Call("neg", (value,)):
            return _form(value, domain, positions).neg()
        case Call("floordiv" | "mod" as op, (value, Const(divisor))):
            amount = isl.Val(int(divisor), domain.get_ctx())
            form = _form(value, domain, positions)
            return form.mod_val(amount) if op == "mod" else form.scale_down_val(amount).floor()
        case Call(op, (left, right)):
            a, b = _form(left, domain, positions), _form(right, domain, positions)
            return getattr(a, op)(b)
    raise ValueError(f"not quasi-affine: {expr}")
