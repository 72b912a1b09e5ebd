"""Strategies that change the loops around equations: split, tile, reorder, fuse."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from envs.leir_env import legality
from envs.leir_env.ir import Block, Call, Const, Equation, Expr, Index, Kind, Loop, Program, Role, Statement, with_body
from envs.leir_env.legality import Order, order
from envs.leir_env.simplify import rewrite
from envs.leir_env.strategies.base import (
    Exactness,
    Level,
    Outcome,
    Parameter,
    Refusal,
    Strategy,
    register,
)
from envs.leir_env.tree import (
    Node,
    accesses,
    at,
    band,
    declarations,
    equations,
    fresh_index,
    indices,
    nest,
    node_at,
    site_of,
    sites,
    splice,
)

Site = tuple[str, ...]
Args = tuple[str, ...]

_PREFERRED = (8, 16, 32, 64, 4, 128, 2, 256)
"""Vector widths and cache-sized tiles come first in every menu of factors."""

_FACTORS = 8
_TILES = 4


@functools.lru_cache(maxsize=1024)
def factors(extent: int, most: int = _FACTORS) -> tuple[int, ...]:
    """The menu of split factors: divisors by preference; for extents without, sizes that leave a tail."""
    divisors = [f for f in range(2, min(extent, 1025)) if extent % f == 0]
    ranked = [f for f in _PREFERRED if f in divisors] + [f for f in divisors if f not in _PREFERRED]
    tails = [f for f in (8, 16, 4) if f < extent and extent % f]
    return tuple((ranked + tails)[:most])


def loop_at(program: Program, site: str) -> tuple[Node, Loop]:
    """The loop that a site names."""
    node = sites(program)[site]
    assert isinstance(node.statement, Loop)
    return node, node.statement


@functools.lru_cache(maxsize=1024)
def loop_sites(program: Program) -> tuple[tuple[str, Node, Loop], ...]:
    """Every loop of the program by site."""
    return tuple(
        (name, node, node.statement) for name, node in sites(program).items() if isinstance(node.statement, Loop)
    )


def reordered(before: Program, after: Program) -> Exactness | Refusal:
    """Judge a change of execution order by the dependences; promised kinds must still hold."""
    verdict = order(before, after)
    if isinstance(verdict, str):
        return Refusal("dependence", verdict)
    broken = broken_promise(before, after)
    if broken is not None:
        return broken
    return Exactness.EXACT if verdict is Order.EXACT else Exactness.REASSOCIATES


def broken_promise(before: Program, after: Program) -> Refusal | None:
    """Say which parallel, vector or bound loop of a changed nest may no longer be one."""
    unchanged = set(before.body)
    for statement in after.body:
        reason = None if statement in unchanged else legality.broken_promise(statement)
        if reason is not None:
            return Refusal("dependence", reason)
    return None


@functools.lru_cache(maxsize=16384)
def exchange(program: Program, outer: str, inner: str) -> Exactness | Refusal:
    """May two loops of a perfect nest be swapped?"""
    upper, lower = loop_at(program, outer)[0].path, loop_at(program, inner)[0].path
    nest = program.body[upper[0]]
    assert isinstance(nest, Loop)
    verdict = legality.exchange(nest, upper[1:], len(lower) - len(upper))
    if isinstance(verdict, str):
        return Refusal("dependence", verdict)
    declared = declarations(program)
    floats = any(declared[name][0].dtype.is_float for name in verdict)
    return Exactness.REASSOCIATES if floats else Exactness.EXACT


def split(loop: Loop, factor: int, outer: str, inner: str, extents: dict[str, int]) -> tuple[Loop, Loop, Block]:
    """Split into an outer and an inner loop (their blocks unset) and the rewritten body."""
    value: Expr = Call("add", (Call("mul", (Const(factor), Index(outer))), Index(inner)))
    count = -(-loop.extent // factor)
    kind = loop.kind
    heads = (
        Loop(kind, outer, count, loop.block, loop.axis),
        Loop(Kind.SERIAL, inner, factor, loop.block),
    )
    around = {**extents, outer: count, inner: factor}
    body = tuple(rewrite(child, {loop.index: value}, around) for child in loop.block.body)
    if loop.extent % factor:
        tail = Call("lt", (value, Const(loop.extent)))
        body = tuple(guarded(child, tail) for child in body)
    return *heads, Block(body, loop.block.tensors)


@functools.lru_cache(maxsize=256)
def _with_split(program: Program, node: Node, factor: int) -> Program:
    """The program with the loop at a node split."""
    loop = node.statement
    assert isinstance(loop, Loop)
    outer = fresh_index(program, loop.index + "o", -(-loop.extent // factor), node)
    inner = fresh_index(program, loop.index + "i", factor, node)
    outer_loop, inner_loop, block = split(loop, factor, outer, inner, node.extents)
    return splice(program, node.path, (nest((outer_loop, inner_loop), block),))


def guarded(statement: Statement, condition: Expr) -> Statement:
    """Add a condition to every equation below."""
    if isinstance(statement, Loop):
        return with_body(statement, tuple(guarded(child, condition) for child in statement.block.body))
    return Equation(statement.target, statement.assign, statement.value, (*statement.guard, condition))


def stray_guard(program: Program, loop: Loop) -> str | None:
    """The tensor that a guard in the loop would read in iterations beyond its extent, where it may not exist."""
    declared = declarations(program)
    for access in (a for equation in equations(loop) for condition in equation.guard for a in accesses(condition)):
        if loop.index in indices(access) or declared[access.tensor][0].role not in (Role.INPUT, Role.PARAMETER):
            return access.tensor
    return None


def _splittable(program: Program, loop: Loop, site: str, factor: int) -> Refusal | None:
    if loop.kind not in (Kind.SERIAL, Kind.PARALLEL):
        return Refusal("kind", f"split {site}: a loop of kind {loop.kind} is not split, only L and P")
    if not 1 < factor < loop.extent:
        return Refusal(
            "extent", f"split {site} by {factor}: the factor must lie between 1 and the extent {loop.extent}"
        )
    stray = stray_guard(program, loop) if loop.extent % factor else None
    if stray is not None:
        return Refusal("structure", f"split {site} by {factor}: in the tail a guard would read {stray} beyond its end")
    return None


@register
class LoopSplit(Strategy):
    """Split one loop into an outer and an inner loop of `factor` iterations.

    Requires:
        1. The loop is serial or parallel.
        2. 1 < factor < extent. A factor that does not divide the extent adds a guard for the tail; no guard inside
           may read data that the tail does not have.

    Rewrite:
        L_i C[i] = A[i]              ->    L_io,ii C[32io+ii] = A[32io+ii]
    """

    name = "loop_split"
    level = Level.OPERATOR
    menu = 512
    local = True
    site_kinds = ("loop",)
    parameters = (Parameter("factor", "iterations of the inner loop"),)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, _, loop in loop_sites(program):
            if loop.kind in (Kind.SERIAL, Kind.PARALLEL):
                for factor in factors(loop.extent):
                    yield (site,), (str(factor),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        return _splittable(program, loop_at(program, site[0])[1], site[0], int(args[0]))

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        return Outcome(_with_split(program, loop_at(program, site[0])[0], int(args[0])))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        loop, factor = loop_at(program, site[0])[1], int(args[0])
        tail = f", with a guard for the tail of {loop.extent % factor}" if loop.extent % factor else ""
        return (
            f"Split {site[0]} of {loop.extent} iterations into {-(-loop.extent // factor)} x {factor}{tail}: "
            f"the inner loop of {factor} can be vectorised, unrolled or moved inwards to keep a tile in cache."
        )


@register
class LoopTiling(Strategy):
    """Tile two loops of a perfect nest: split both and bring the two outer loops to the front.

    Requires:
        1. The second loop stands in the perfect nest below the first; both can be split by their factors.
        2. Every dependence still points forward; a reduction may be re-associated.

    Rewrite:
        L_i,j C[i,j] = A[j,i]  ->    L_io,jo,ii,ji C[8io+ii,8jo+ji] = A[8jo+ji,8io+ii]
    """

    name = "loop_tiling"
    level = Level.OPERATOR
    menu = 1024
    local = True
    site_kinds = ("loop", "loop")
    parameters = (
        Parameter("first", "iterations of the first inner loop"),
        Parameter("second", "iterations of the second inner loop"),
    )

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node, loop in loop_sites(program):
            rest = band(loop)[1:2]
            for below in rest:
                other = site_of(program, (*node.path, 0))
                if isinstance(exchange(program, site, other), Refusal):
                    continue
                for first in factors(loop.extent, _TILES):
                    for second in factors(below.extent, _TILES):
                        yield (site, other), (str(first), str(second))

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        (node, loop), (below_node, below) = loop_at(program, site[0]), loop_at(program, site[1])
        refusal = _splittable(program, loop, site[0], int(args[0])) or _splittable(
            program, below, site[1], int(args[1])
        )
        if refusal is not None:
            return refusal
        if below not in band(loop)[1:] or below_node.path[: len(node.path)] != node.path:
            return Refusal(
                "structure", f"tile {site[0]}, {site[1]}: {site[1]} is not in the perfect nest below {site[0]}"
            )
        # A pair of loops can be tiled if and only if they can be exchanged: the textbook criterion.
        verdict = exchange(program, site[0], site[1])
        return verdict if isinstance(verdict, Refusal) else None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        exactness = exchange(program, site[0], site[1])
        assert not isinstance(exactness, Refusal)
        node, _ = loop_at(program, site[0])
        below_node, _ = loop_at(program, site[1])
        first = _with_split(program, node, int(args[0]))
        moved = (*below_node.path[: len(node.path)], 0, *below_node.path[len(node.path) :])
        second = _with_split(first, node_at(first, moved), int(args[1]))
        loop = at(second, node.path)
        assert isinstance(loop, Loop)
        loops = band(loop)
        depth = len(moved) - len(node.path)
        io, ii, *between, jo, ji = loops[: depth + 2]
        after = splice(second, node.path, (nest((io, jo, *between, ii, ji), loops[depth + 1].block),))
        return Outcome(after, exactness)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        loop, below = loop_at(program, site[0])[1], loop_at(program, site[1])[1]
        return (
            f"Tile {site[0]} ({loop.extent}) by {args[0]} and {site[1]} ({below.extent}) by {args[1]}: "
            f"{int(args[0]) * int(args[1])} iterations then work on one tile, whose data can stay in cache or in "
            f"registers."
        )


def _inside_vector(nest: tuple[Loop, ...]) -> Loop | None:
    """The first parallel or bound loop that stands inside a vector loop of a nest, given from the outside in."""
    kinds = [loop.kind for loop in nest]
    inner = nest[kinds.index(Kind.VECTOR) :] if Kind.VECTOR in kinds else ()
    return next((loop for loop in inner if loop.kind in (Kind.PARALLEL, Kind.BOUND)), None)


@register
class LoopReorder(Strategy):
    """Exchange two loops of a perfect nest.

    Requires:
        1. The second loop stands in the perfect nest below the first.
        2. Every dependence still points forward; a reduction may be re-associated.
        3. No parallel or bound loop comes to stand inside a vector loop.

    Rewrite:
        L_i,j,k C[i,j] += A[i,k] B[k,j]  ->  L_i,k,j C[i,j] += A[i,k] B[k,j]
    """

    name = "loop_reorder"
    level = Level.OPERATOR
    menu = 256
    local = True
    site_kinds = ("loop", "loop")

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node, loop in loop_sites(program):
            for depth in range(1, len(band(loop))):
                yield (site, site_of(program, (*node.path, *[0] * depth))), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        (node, loop), (below_node, below) = loop_at(program, site[0]), loop_at(program, site[1])
        depth = len(below_node.path) - len(node.path)
        if depth < 1 or below_node.path[: len(node.path)] != node.path or below not in band(loop)[depth : depth + 1]:
            return Refusal(
                "structure", f"reorder {site[0]}, {site[1]}: {site[1]} is not in the perfect nest below {site[0]}"
            )
        inside = _inside_vector((below, *band(loop)[1:depth], loop))
        if inside is not None:
            return Refusal("kind", f"reorder {site[0]}, {site[1]}: {inside.kind}_{inside.index} would be in lanes")
        verdict = exchange(program, site[0], site[1])
        return verdict if isinstance(verdict, Refusal) else None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        exactness = exchange(program, site[0], site[1])
        assert not isinstance(exactness, Refusal)
        upper, lower = loop_at(program, site[0])[0].path, loop_at(program, site[1])[0].path
        return Outcome(legality.exchanged(program, upper, len(lower) - len(upper)), exactness)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        loop, below = loop_at(program, site[0])[1], loop_at(program, site[1])[1]
        return (
            f"Exchange {site[0]} ({loop.extent}) and {site[1]} ({below.extent}): the loop that runs innermost decides "
            f"which accesses are contiguous and what is reused from one iteration to the next."
        )


@register
class LoopFusion(Strategy):
    """Fuse two directly nested loops into one that runs over all their iterations; undoes `loop_split`.

    Requires:
        1. The second loop is all there is in the first, and both have the same kind, serial or parallel.

    Rewrite:
        L_i,j C[i,j] = A[i,j]  ->    L_f C[f//64,f%64] = A[f//64,f%64]
    """

    name = "loop_fusion"
    level = Level.OPERATOR
    menu = 128
    local = True
    site_kinds = ("loop", "loop")

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node, loop in loop_sites(program):
            if len(band(loop)) > 1:
                yield (site, site_of(program, (*node.path, 0))), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        (node, loop), (below_node, below) = loop_at(program, site[0]), loop_at(program, site[1])
        if below_node.path != (*node.path, 0) or len(band(loop)) < 2:
            return Refusal("structure", f"fuse {site[0]}, {site[1]}: {site[1]} is not all there is in {site[0]}")
        if loop.kind != below.kind or loop.kind not in (Kind.SERIAL, Kind.PARALLEL):
            return Refusal(
                "kind", f"fuse {site[0]}, {site[1]}: kinds {loop.kind} and {below.kind}, need two L or two P"
            )
        return None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node, loop = loop_at(program, site[0])
        below = band(loop)[1]
        total = loop.extent * below.extent
        name = fresh_index(program, _fused_name(loop.index, below.index), total, node)
        fused = Index(name)
        values: dict[str, Expr] = {
            loop.index: Call("floordiv", (fused, Const(below.extent))),
            below.index: Call("mod", (fused, Const(below.extent))),
        }
        around = {**node.extents, name: total}
        body = tuple(rewrite(child, values, around) for child in below.block.body)
        new = Loop(loop.kind, name, total, Block(body, below.block.tensors))
        return Outcome(splice(program, node.path, (new,)))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        loop, below = loop_at(program, site[0])[1], loop_at(program, site[1])[1]
        return (
            f"Fuse {site[0]} ({loop.extent}) and {site[1]} ({below.extent}) into one loop of "
            f"{loop.extent * below.extent} iterations, which can be shared out among cores or split anew."
        )


def _fused_name(outer: str, inner: str) -> str:
    """`io`, `ii` give back `i`; other pairs give `f`."""
    same = outer[:-1] == inner[:-1] and outer[-1:] == "o" and inner[-1:] == "i"
    return outer[:-1] if same and len(outer) > 1 else "f"
