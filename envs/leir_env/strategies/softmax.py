"""What a softmax and the sums weighted by it become when they go online: whole programs, or why not.

Everything is made of the same steps: give a maximum its running form (`running`), fuse a sum that depends on it into
its loop (`attachment`), move a producer or a later stage into the loop or its rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from envs.leir_env.ir import Assign, Call, Equation, Program, Statement, subexpressions
from envs.leir_env.legality import read
from envs.leir_env.rescaling import factors, mentions
from envs.leir_env.strategies.attachment import attached, definition, inlined
from envs.leir_env.strategies.base import Refusal
from envs.leir_env.strategies.graph import OperatorFusion
from envs.leir_env.strategies.placement import ComputeAt
from envs.leir_env.strategies.running import Running, common, explicit, is_maximum, private, running, writers
from envs.leir_env.tree import accesses, declarations, equations, indices, reads, site_of

_FUSE, _PLACE = OperatorFusion(), ComputeAt()


@functools.lru_cache(maxsize=16384)
def _targets(statement: Statement, assign: Assign, exponential: bool) -> tuple[str, ...]:
    """The tensors that equations at or below assign in one way, by values with or without an exponential."""
    return tuple(
        dict.fromkeys(
            equation.target.tensor
            for equation in equations(statement)
            if equation.assign is assign and (not exponential or _exponential(equation))
        )
    )


@functools.lru_cache(maxsize=16384)
def _exponential(equation: Equation) -> bool:
    return any(isinstance(expr, Call) and expr.op == "exp" for expr in subexpressions(equation.value))


def assigned(program: Program, assign: Assign, exponential: bool) -> tuple[str, ...]:
    """The tensors that a program assigns in one way, by any values or by those with an exponential."""
    return tuple(dict.fromkeys(n for statement in program.body for n in _targets(statement, assign, exponential)))


@functools.lru_cache(maxsize=1024)
def maximum_of(program: Program, name: str) -> str:
    """The maximum that the terms of a sum depend on, plain or running; empty if there is none."""
    found = writers(program, name)
    if len(found) != 1 or found[0][1].assign is not Assign.ADD:
        return ""
    ((node, equation),) = found
    for factor in factors(inlined(program, node, equation)[0].value)[0]:
        for access in accesses(factor):
            if access.tensor != name and is_maximum(program, access.tensor):
                return access.tensor
    return ""


def _started(program: Program, maximum: str) -> Program | Refusal:
    return program if running(program, maximum) is not None else explicit(program, maximum)


@functools.lru_cache(maxsize=1024)
def summed(program: Program, name: str) -> Program | Refusal:
    """Fuse a sum of exponentials into the loop of their maximum."""
    maximum = maximum_of(program, name)
    if not maximum:
        return Refusal("structure", f"the sum {name}: its terms are not exponentials less a maximum")
    if _is_product(program, name, maximum):
        return Refusal("structure", f"the sum {name}: it has loops that its exponentials do not depend on")
    started = _started(program, maximum)
    return started if isinstance(started, Refusal) else attached(started, name)


def _is_product(program: Program, name: str, maximum: str) -> bool:
    """Does a sum of terms that depend on a maximum have loops of its own, which its exponentials do not depend on?"""
    ((node, equation),) = writers(program, name)
    multiplied, _ = factors(inlined(program, node, equation)[0].value)
    return any(mentions(factor, maximum) and not indices(equation.target) <= indices(factor) for factor in multiplied)


def weighted(program: Program, name: str) -> Program | Refusal:
    """Fuse a product with exponentials into the loop of the online softmax that they come from."""
    maximum = maximum_of(program, name)
    base = running(program, maximum)
    if base is None or base.previous is None:
        return Refusal("structure", f"the product {name}: it does not depend on an online softmax")
    return _no_product(program, name, maximum) or attached(program, name)


def _no_product(program: Program, name: str, maximum: str) -> Refusal | None:
    if not _is_product(program, name, maximum):
        return Refusal("structure", f"the product {name}: its exponentials depend on all its loops (a plain sum)")
    return None


def sums_of_exponentials(program: Program) -> Iterator[str]:
    """The sums that read exponentials, by name or in their terms."""
    named = bool(assigned(program, Assign.SET, True))
    for name in assigned(program, Assign.ADD, False):
        summing = [equation for _, equation in writers(program, name)]
        if len(summing) == 1 and (
            _exponential(summing[0]) or (named and any(definition(program, other) for other in read(summing[0])))
        ):
            yield name


@functools.lru_cache(maxsize=1024)
def normalisers(program: Program, name: str) -> tuple[str, str] | None:
    """The maximum and the sum that a later stage is computed from."""
    ((_, equation),) = writers(program, name)
    names = dict.fromkeys(access.tensor for access in reads(equation))
    for maximum in names:
        if is_maximum(program, maximum):
            for other in names:
                if other != maximum and (maximum_of(program, other) == maximum or _carried(program, maximum, other)):
                    return maximum, other
    return None


def _carried(program: Program, maximum: str, name: str) -> bool:
    """Is a tensor updated in the steps of a running maximum?"""
    base = running(program, maximum)
    return base is not None and any(node.path[:-1] == base.inner for node, _ in writers(program, name))


@functools.lru_cache(maxsize=1024)
def online(program: Program, name: str) -> Program | Refusal:
    """Take the maximum and the sum that a tensor is computed from in one pass, and compute it in their rows."""
    found = normalisers(program, name) if len(writers(program, name)) == 1 else None
    if found is None:
        return Refusal("structure", f"the softmax {name}: it is not computed from a maximum and a sum of exponentials")
    maximum, total = found
    after = program if _carried(program, maximum, total) else summed(program, total)
    if isinstance(after, Refusal):
        return after
    base = running_in(after, maximum)
    ((node, _),) = writers(after, name)
    shared = common(base.update.path, node.path)
    if shared > len(base.block):
        return Refusal("structure", f"the softmax {name}: it is computed in the steps of its maximum")
    if shared < len(base.block):
        if len(node.loops) <= shared:
            return Refusal("structure", f"the softmax {name}: no loop runs over its rows")
        site = site_of(after, base.update.path[: shared + 1]), site_of(after, node.path[: shared + 1])
        depth = (str(len(base.block) - shared),)
        refused = _FUSE.why_not(after, site, depth)
        if refused is not None:
            return Refusal(refused.code, f"the softmax {name}: {refused.sentence}")
        after = _FUSE.rewrite(after, site, depth).program
    elif after is program:
        return Refusal("no_effect", f"the softmax {name}: it is online already")
    return private(private(after, maximum), total)


@functools.lru_cache(maxsize=1024)
def flash(program: Program, name: str) -> Program | Refusal:
    """Fuse a product with softmax weights and the softmax into one pass."""
    what = f"the product {name}"
    maximum = maximum_of(program, name)
    if not maximum:
        return Refusal("structure", f"{what}: its weights are not exponentials less a maximum")
    base = running(program, maximum)
    if base is not None and base.previous is not None:
        return Refusal("no_effect", f"{what}: the softmax is online already")
    after = _no_product(program, name, maximum) or _started(program, maximum)
    for other in sums_of_exponentials(program):
        if not isinstance(after, Refusal) and maximum_of(after, other) == maximum:
            fused = summed(after, other)
            after = after if isinstance(fused, Refusal) else fused
    return after if isinstance(after, Refusal) else attached(after, name)


def scored(program: Program, maximum: str) -> Program:
    """Compute the scores in the steps that use them, where each is used once."""
    waiting = [access.tensor for access in accesses(running_in(program, maximum).term)]
    for name in waiting:
        base = running_in(program, maximum)
        tensor, home = declarations(program)[name]
        once = tensor.size == math.prod(loop.extent for loop in base.update.loops[len(home) :])
        site = name, site_of(program, base.inner)
        if len(home) < len(base.inner) and once and _PLACE.why_not(program, site, ()) is None:
            program = _PLACE.rewrite(program, site, ()).program
            waiting += (access.tensor for _, equation in writers(program, name) for access in reads(equation))
    return program


def tidied(program: Program, maximum: str) -> Program:
    """Keep in the rows what only they use: the maximum and the sums of its steps."""
    base = running_in(program, maximum)
    carried = {e.target.tensor for e in equations(base.steps[0]) if _carried(program, maximum, e.target.tensor)}
    for name in sorted(carried):
        if len(writers(program, name)) == 2 and writers(program, name)[0][0].path[:-1] == base.block:
            program = private(program, name)
    return program


def running_in(program: Program, maximum: str) -> Running:
    """The running maximum that a program is known to have."""
    base = running(program, maximum)
    assert base is not None
    return base
