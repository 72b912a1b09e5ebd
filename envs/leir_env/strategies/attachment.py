"""Fuse a sum into the loop of a running maximum that its terms depend on, by the rule of `rescaling`.

Where the sum goes, its other dependences must still point forward. That is asked of two programs without what
rescaling takes care of: in both, terms are added without the maximum, in one where the sum stands, in the other
where it goes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Const,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Scope,
    Statement,
    Tensor,
)
from envs.leir_env.legality import order, written
from envs.leir_env.region import Region, Use, region, visited_once
from envs.leir_env.rescaling import Decay, blanked, decay, factors, mentions, replaced, undivided, unify
from envs.leir_env.strategies.base import Refusal
from envs.leir_env.strategies.graph import drop_tensor
from envs.leir_env.strategies.loops import broken_promise
from envs.leir_env.strategies.running import (
    LOWEST,
    Reduction,
    Running,
    common,
    is_maximum,
    readers,
    reduction,
    running,
    tails,
    writers,
    wrong_kind,
)
from envs.leir_env.tree import (
    Node,
    Path,
    accesses,
    declarations,
    fresh_index,
    fresh_tensor,
    indices,
    loops_below,
    map_expressions,
    nest,
    reads,
    splice,
    substitute,
    update_block,
)

_EMPTY = Block(())


@dataclass(frozen=True, slots=True)
class Definition:
    """Where the exponentials that a sum reads by name are computed, and its values of the loops' indices there."""

    name: str
    node: Node
    values: tuple[tuple[str, Expr], ...]


def inlined(program: Program, reader: Node, equation: Equation) -> tuple[Equation, tuple[Definition, ...]]:
    """Put the definitions of exponentials in place of their names, those that are defined by others included.

    A definition is the only equation of a tensor, an unguarded `=` over the distinct indices of its loops.
    """
    taken: list[Definition] = []
    while True:
        for access in reads(equation):
            found = definition(program, access.tensor)
            if found is None:
                continue
            node, defining = found
            home = len(declarations(program)[access.tensor][1])
            plain = (s.name for s in defining.target.subscripts if isinstance(s, Index))
            values = dict(zip(plain, access.subscripts, strict=True))
            shared = node.loops[home : common(node.path, reader.path)]
            if node.path < reader.path and all(values[loop.index] == Index(loop.index) for loop in shared):
                value = replaced(equation.value, access, substitute(defining.value, values))
                equation = replace(equation, value=value)
                taken.append(Definition(access.tensor, node, tuple(values.items())))
                break
        else:
            return equation, tuple(taken)


@functools.lru_cache(maxsize=4096)
def definition(program: Program, name: str) -> tuple[Node, Equation] | None:
    """The equation that defines a tensor as a product of exponentials that depend on a maximum, if there is one."""
    found = writers(program, name)
    if len(found) != 1 or found[0][1].assign is not Assign.SET or found[0][1].guard:
        return None
    ((node, equation),) = found
    plain = [s.name for s in equation.target.subscripts if isinstance(s, Index)]
    around = [loop.index for loop in node.loops[len(declarations(program)[name][1]) :]]
    if len(plain) < len(equation.target.subscripts) or sorted(plain) != sorted(around):
        return None
    falls = any(_falls(program, node, factor) for factor in factors(equation.value)[0])
    return (node, equation) if falls else None


def _falls(program: Program, node: Node, factor: Expr) -> bool:
    """Is a factor at `node` an exponential that depends on a maximum, by itself or by name?"""
    if isinstance(factor, Access):
        earlier = all(other.path < node.path for other, _ in writers(program, factor.tensor))
        return earlier and definition(program, factor.tensor) is not None
    exponential = isinstance(factor, Call) and factor.op == "exp"
    return exponential and any(is_maximum(program, access.tensor) for access in accesses(factor))


@dataclass(frozen=True, slots=True)
class _Plan:
    """A sum in the names of a running maximum's loops."""

    decay: Decay
    target: Access
    term: Expr
    """What is added, without the divisions that come after the steps."""
    original: Expr
    """What is added, with them."""
    divisors: tuple[Access, ...]
    guard: tuple[Expr, ...]
    own: tuple[Loop, ...]
    """Its loops over neither rows nor steps."""
    loops: tuple[Loop, ...]
    """All its loops within the common block, as they stand."""
    site: Path
    """Its top-most loop."""


@functools.lru_cache(maxsize=1024)
def attached(program: Program, name: str) -> Program | Refusal:
    """Fuse a sum into the loop of the running maximum that its terms depend on, rescaling as the maximum grows.

    Divisions by what is known after the loop only are done there. A definition of the exponentials that nothing
    reads any more is dropped.
    """
    what = f"the sum {name}"
    found = reduction(program, name, Assign.ADD)
    if isinstance(found, str):
        return Refusal("structure", f"{what}: {found}")
    equation, defined = inlined(program, found.node, found.equation)
    base = base_of(program, equation)
    if base is None:
        return Refusal("structure", f"{what}: its terms do not depend on a running maximum")
    plan = _plan(program, what, found, equation, defined, base)
    if isinstance(plan, Refusal):
        return plan
    verdict = order(*_proxies(program, base, plan))
    if isinstance(verdict, str):
        return Refusal("dependence", f"{what}: {verdict}")
    after = _fused(program, base, plan)
    for known in defined:
        temporary = declarations(program)[known.name][0].role is Role.TEMPORARY
        if temporary and not any(True for _ in readers(after, known.name)):
            after = _without(after, known.name)
    return broken_promise(program, after) or after


def base_of(program: Program, equation: Equation) -> Running | None:
    """The running maximum that the terms of an equation depend on."""
    for factor in factors(equation.value)[0]:
        for access in accesses(factor):
            base = running(program, access.tensor)
            if base is not None:
                return base
    return None


def _plan(
    program: Program,
    what: str,
    found: Reduction,
    equation: Equation,
    defined: tuple[Definition, ...],
    base: Running,
) -> _Plan | Refusal:
    name, maximum, node = equation.target.tensor, base.maximum.tensor, found.node
    tensors = declarations(program)
    fall = decay(equation.value, maximum)
    if fall is None:
        return Refusal("structure", f"{what}: its terms are not exp(c*(x-{maximum})) times factors free of {maximum}")
    if tensors[name][0].dtype is not tensors[maximum][0].dtype:
        return Refusal("structure", f"{what}: {name} and {maximum} have different dtypes")
    unfit = _unfit(what, node, base)
    if unfit is not None:
        return unfit
    depth = common(base.update.path, node.path)
    if not _distinct(program, base.maximum, base, depth):
        return Refusal("structure", f"{what}: {maximum} is overwritten before its rows are over")
    twins = _twins(what, node.loops[depth:], depth, fall, defined, base)
    if isinstance(twins, Refusal):
        return twins
    loops = _renamed(program, node.loops[depth:], twins, base)
    values = {old.index: Index(new.index) for old, new in zip(node.loops[depth:], loops, strict=True)}
    steps = {step.index for step in base.steps}
    target, value = substitute(equation.target, values), substitute(equation.value, values)
    guard = tuple(substitute(condition, values) for condition in equation.guard)
    summed = {values[index].name if index in values else index for index in found.summed}
    assert isinstance(target, Access)
    if not indices(target).isdisjoint(steps) or not summed <= steps:
        return Refusal("structure", f"{what}: it is not summed over {', '.join(s.index for s in base.steps)} alone")
    if not set(base.guard) <= set(guard):
        return Refusal("structure", f"{what}: it is summed where {maximum} is not taken")
    term, divisors = value, _divisors(program, base, value, depth)
    for divisor in divisors:
        term = undivided(term, divisor)
    if any(mentions(term, divisor.tensor) for divisor in divisors):
        return Refusal("structure", f"{what}: its terms use {divisors[0].tensor} in more than a division")
    fall = decay(value, maximum)
    assert fall is not None
    own = tuple(loop for loop in loops if loop.index not in {other.index for other in base.update.loops})
    return _Plan(fall, target, term, value, divisors, guard, own, loops, node.path[: depth + 1])


def _unfit(what: str, node: Node, base: Running) -> Refusal | None:
    """Why a sum and a running maximum can't share loops, by where they stand and what their loops are."""
    maximum, depth = base.maximum.tensor, common(base.update.path, node.path)
    loops = node.loops[depth:]
    if depth > len(base.block) or any(len(loop.block.body) != 1 or loop.block.tensors for loop in loops) or not loops:
        return Refusal("structure", f"{what}: its equation is not alone in a nest beside that of {maximum}")
    if node.path[depth] < base.update.path[depth]:
        return Refusal("dependence", f"{what}: it stands before {maximum}")
    wrong = wrong_kind(what, base.rows, base.steps)
    if wrong is not None:
        return wrong
    for loop in loops_below(base.steps[0]):
        if loop.axis is not None:
            return Refusal("kind", f"{what}: the steps of {maximum} hold {loop.kind}_{loop.index}, which is bound")
    used = {access.tensor for expr in (base.term, *base.guard) for access in accesses(expr)}
    for statement in base.steps[-1].block.body[base.update.path[-1] + 1 :]:
        for changed in sorted(used & written(statement)):
            return Refusal("dependence", f"{what}: {changed}, which {maximum} is taken of, changes in the same step")
    return None


def _twins(
    what: str,
    loops: tuple[Loop, ...],
    depth: int,
    fall: Decay,
    defined: tuple[Definition, ...],
    base: Running,
) -> dict[str, Loop] | Refusal:
    """The loop over the same row or step of the maximum, for each index of the sum that has one."""
    maximum, free = base.maximum.tensor, frozenset(loop.index for loop in loops)
    names: dict[str, str] = {}
    for known in defined:
        together = common(known.node.path, base.update.path)
        if together > len(base.block) or known.node.path[together] < base.update.path[together]:
            return Refusal("dependence", f"{what}: {known.name} is computed before {maximum} is complete")
        values = dict(known.values)
        for row in base.rows[depth:together]:
            if row.index in values and not unify(values[row.index], Index(row.index), free, names):
                return Refusal("structure", f"{what}: it reads {known.name} in other rows than its own")
    same = unify(fall.maximum, base.maximum, free, names) and unify(fall.above, fall.expected(base.term), free, names)
    theirs = {loop.index: loop for loop in base.update.loops[depth:]}
    if not same or set(names.values()) != set(theirs):
        return Refusal("structure", f"{what}: its exponent is not that of {maximum}, row by row and step by step")
    for loop in loops:
        twin = theirs[names[loop.index]] if loop.index in names else None
        if twin is None and loop.kind not in (Kind.SERIAL, Kind.VECTOR):
            return Refusal("kind", f"{what}: {loop.kind}_{loop.index} would stand inside a serial loop")
        if twin is not None and (twin.kind, twin.axis, twin.extent) != (loop.kind, loop.axis, loop.extent):
            return Refusal("structure", f"{what}: {loop.index} and {twin.index} differ in kind or extent")
    return {old: theirs[new] for old, new in names.items()}


def _renamed(program: Program, loops: tuple[Loop, ...], twins: dict[str, Loop], base: Running) -> tuple[Loop, ...]:
    """The loops of a sum, named like their twins; its own get names that fit inside the steps."""
    named: list[Loop] = []
    around = list(base.update.loops)
    for loop in loops:
        new = replace(twins.get(loop.index, loop), block=_EMPTY)
        if loop.index not in twins:
            if any(other.index == loop.index for other in around):
                place = Node((), replace(new, index="e0"), tuple(around))
                new = replace(new, index=fresh_index(program, loop.index, loop.extent, place))
            around.append(new)
        named.append(new)
    return tuple(named)


def _distinct(program: Program, access: Access, base: Running, depth: int) -> bool:
    """Do different rows within the common block use different elements?"""
    tensor, home = declarations(program)[access.tensor]
    rows = base.rows[max(depth, len(home)) :]
    extents = {loop.index: loop.extent for loop in base.rows}
    use = Use(access, Equation(access, Assign.SET, Const(0)), True, extents)
    box = region(tensor, (use,), extents)
    return isinstance(box, Region) and visited_once(box, rows)


def _divisors(program: Program, base: Running, term: Expr, depth: int) -> tuple[Access, ...]:
    """The elements that a term is divided by and that the steps complete: known after them, the same throughout."""
    found = []
    steps = (*base.block, base.position)
    rows = {loop.index for loop in base.rows}
    for factor in factors(term)[1]:
        if not isinstance(factor, Access) or not indices(factor) <= rows:
            continue
        found_in = writers(program, factor.tensor)
        if (
            any(node.path[: len(steps)] == steps for node, _ in found_in)
            and all(node.path[: len(base.block)] == base.block for node, _ in found_in)
            and all(node.path[: len(steps)] <= steps and equation.target == factor for node, equation in found_in)
            and _distinct(program, factor, base, depth)
        ):
            found.append(factor)
    return tuple(found)


def _proxies(program: Program, base: Running, plan: _Plan) -> tuple[Program, Program]:
    """The sum where it stands and where it goes, without what rescaling and dividing afterwards take care of.

    What is left are its other dependences, which the move must keep.
    """
    value = blanked(plan.original, {base.maximum.tensor: Const(0.0), **{d.tensor: Const(1.0) for d in plan.divisors}})
    equation = Equation(plan.target, Assign.ADD, value, plan.guard)
    before = splice(program, plan.site, (nest(plan.loops, Block((equation,))),))
    moved = nest(plan.own, Block((equation,))) if plan.own else equation
    after = update_block(
        splice(program, plan.site, ()), base.inner, lambda block: replace(block, body=(*block.body, moved))
    )
    return before, after


def _fused(program: Program, base: Running, plan: _Plan) -> Program:
    taken: set[str] = set()
    dtype = declarations(program)[base.maximum.tensor][0].dtype
    private: list[Tensor] = []

    def scalar() -> Access:
        tensor = Tensor(fresh_tensor(program, taken), dtype, (), Scope.LOCAL)
        taken.add(tensor.name)
        private.append(tensor)
        return Access(tensor.name)

    def within(loops: tuple[Loop, ...], equation: Equation) -> Statement:
        return nest(loops, Block((equation,))) if loops else equation

    body = list(base.steps[-1].block.body)
    position = base.update.path[-1]
    previous = base.previous
    if previous is None:
        previous = scalar()
        ends = tails(program, base.maximum, base.guard)
        body.insert(position, Equation(previous, Assign.SET, base.maximum, ends))
        position += 1
    ends = tails(program, plan.target, plan.guard)
    term = plan.term
    for condition in reversed(plan.guard):
        if condition not in (*base.guard, *ends):
            term = Call("select", (condition, term, Const(0)))
    rescaling, weight = plan.decay.rescaling(previous), plan.decay.factor
    nothing_yet = Call("eq", (previous, LOWEST))
    kept = Call("select", (nothing_yet, Const(0), Call("mul", (plan.target, rescaling))))
    guard = tuple(condition for condition in plan.guard if condition in (*base.guard, *ends))
    body.append(within(plan.own, Equation(plan.target, Assign.SET, Call("add", (kept, term)), guard)))
    for shared in (rescaling, weight):
        held = next((s.target for s in body if isinstance(s, Equation) and s.value == shared), None)
        if held is None and plan.own:
            held = scalar()
            position += 1
            body.insert(position, Equation(held, Assign.SET, shared, base.guard))
        if held is not None:
            body = [_sharing(statement, shared, held) for statement in body]
    start = within(plan.own, Equation(plan.target, Assign.SET, Const(0), ends))
    divided: Expr = plan.target
    for divisor in plan.divisors:
        divided = Call("div", (divided, divisor))
        ends = tuple(dict.fromkeys((*ends, *tails(program, divisor, plan.guard))))
    finish = (within(plan.own, Equation(plan.target, Assign.SET, divided, ends)),) if plan.divisors else ()

    def carry(block: Block) -> Block:
        return Block(tuple(body), (*block.tensors, *private))

    def surround(block: Block) -> Block:
        at_ = base.position
        return replace(block, body=(*block.body[:at_], start, block.body[at_], *finish, *block.body[at_ + 1 :]))

    # The sum stands after the running maximum, so that taking it out leaves the paths of the maximum as they are.
    return update_block(update_block(splice(program, plan.site, ()), base.inner, carry), base.block, surround)


def _sharing(statement: Statement, value: Expr, held: Access) -> Statement:
    """Read a value from the scalar that holds it, everywhere but where it is put there."""
    if isinstance(statement, Equation) and statement.target == held:
        return statement
    return map_expressions(statement, lambda expr: replaced(expr, value, held))


def _without(program: Program, name: str) -> Program:
    """Leave out a tensor that nothing reads."""
    for node, _ in reversed(writers(program, name)):
        program = splice(program, node.path, ())
    # A loop that held nothing else is gone, and with it what it declared.
    return drop_tensor(program, name) if name in declarations(program) else program
