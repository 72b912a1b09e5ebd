"""Strategies that change how the iterations of a loop are run: parallel, vectorised, unrolled."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from envs.leir_env.ir import Equation, Kind, Loop, Program, with_kind
from envs.leir_env.legality import parallel_refusal
from envs.leir_env.limits import MAX_UNROLLED, VECTOR_WIDTHS
from envs.leir_env.strategies.base import Level, Outcome, Parameter, Refusal, Strategy, register
from envs.leir_env.strategies.loops import Args, Site, loop_at, loop_sites, split
from envs.leir_env.tree import Node, declarations, equations, fresh_index, loops_below, nest, splice
from envs.leir_env.verify import RULES


def _wrong_kind(verb: str, site: str, loop: Loop) -> Refusal | None:
    if loop.kind is not Kind.SERIAL:
        return Refusal("kind", f"{verb} {site}: the loop is already of kind {loop.kind}")
    return None


def _with_kind(program: Program, node: Node, kind: Kind) -> Program:
    assert isinstance(node.statement, Loop)
    return splice(program, node.path, (with_kind(node.statement, kind),))


def _copies(node: Node) -> int:
    """Copies of the equations below `node` that unrolling everything marked so would make."""
    assert isinstance(node.statement, Loop)
    outer = 1
    for loop in node.loops:
        if loop.kind is Kind.UNROLLED:
            outer *= loop.extent

    def count(statement: Loop | Equation) -> int:
        if isinstance(statement, Equation):
            return 1
        times = statement.extent if statement.kind is Kind.UNROLLED else 1
        return times * sum(count(child) for child in statement.block.body)

    return outer * node.statement.extent * sum(count(child) for child in node.statement.block.body)


@register
class LoopUnrolling(Strategy):
    """Unroll a loop completely.

    Requires:
        1. The loop is serial.
        2. Together with the unrolled loops around and below it, at most 256 copies of equations result.

    Rewrite:
        L_i C[i] = A[i]              ->    U_i C[i] = A[i]
    """

    name = "loop_unrolling"
    level = Level.OPERATOR
    menu = 128
    local = True
    site_kinds = ("loop",)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, _, loop in loop_sites(program):
            if loop.kind is Kind.SERIAL and loop.extent <= 64:
                yield (site,), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node, loop = loop_at(program, site[0])
        wrong = _wrong_kind("unroll", site[0], loop)
        if wrong is not None:
            return wrong
        if loop.extent > 64:
            return Refusal("extent", f"unroll {site[0]}: extent {loop.extent} is more than 64; split it first")
        copies = _copies(node)
        if copies > MAX_UNROLLED:
            return Refusal("size", f"unroll {site[0]}: {copies} copies of equations, the limit is {MAX_UNROLLED}")
        if any(outer.kind is Kind.UNROLLED for outer in node.loops):
            # What stands beside it is copied as well.
            for sentence, *_ in RULES["kind"].check(_with_kind(program, node, Kind.UNROLLED), "llvm"):
                return Refusal("size", f"unroll {site[0]}: {sentence}")
        return None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node, _ = loop_at(program, site[0])
        return Outcome(_with_kind(program, node, Kind.UNROLLED))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        node, loop = loop_at(program, site[0])
        return (
            f"Unroll {site[0]}: its {loop.extent} iterations become {_copies(node)} straight-line equations, so that "
            f"values indexed by {loop.index} can stay in registers and independent operations overlap."
        )


@register
class LoopParallelization(Strategy):
    """Share the iterations of a loop out among the cores.

    Requires:
        1. The loop is serial, and neither inside nor around a parallel, vector or bound loop that would nest it.
        2. It carries no dependence, reductions included.

    Rewrite:
        L_i,j C[i,j] = A[i,j]  ->    P_i L_j C[i,j] = A[i,j]
    """

    name = "loop_parallelization"
    level = Level.OPERATOR
    menu = 128
    local = True
    site_kinds = ("loop",)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, _, loop in loop_sites(program):
            if loop.kind is Kind.SERIAL and loop.extent > 1:
                yield (site,), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node, loop = loop_at(program, site[0])
        wrong = _wrong_kind("parallelise", site[0], loop)
        if wrong is not None:
            return wrong
        if loop.extent < 2:
            return Refusal("extent", f"parallelise {site[0]}: it has a single iteration")
        for other in (*node.loops, *loops_below(loop)[1:]):
            if other.kind in (Kind.PARALLEL, Kind.BOUND) or (other.kind is Kind.VECTOR and other in node.loops):
                return Refusal("kind", f"parallelise {site[0]}: {other.kind}_{other.index} and it would be nested")
        reason = parallel_refusal(program, node.path)
        return Refusal("dependence", reason) if reason else None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node, _ = loop_at(program, site[0])
        return Outcome(_with_kind(program, node, Kind.PARALLEL))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        _, loop = loop_at(program, site[0])
        return f"Run the {loop.extent} iterations of {site[0]} in parallel: no dependence is carried by it."


@functools.lru_cache(maxsize=4096)
def _unfit_for_lanes(program: Program, site: str) -> Refusal | None:
    """Why a loop can't run in vector lanes, whatever their number."""
    node, loop = loop_at(program, site)
    for other in node.loops:
        if other.kind is Kind.VECTOR:
            return Refusal("kind", f"vectorise {site}: {other.kind}_{other.index} can't be nested with it")
    for inner in loops_below(loop):
        if inner.kind in (Kind.VECTOR, Kind.PARALLEL, Kind.BOUND):
            return Refusal("kind", f"vectorise {site}: {inner.kind}_{inner.index} can't be nested with it")
        for tensor in inner.block.tensors:
            return Refusal("scope", f"vectorise {site}: {tensor.name} is declared inside, and lanes would share it")
    reason = parallel_refusal(program, node.path)
    return Refusal("dependence", reason) if reason else None


@register
class LoopVectorization(Strategy):
    """Run a loop in vector lanes, splitting it by the width first where it is longer.

    Requires:
        1. The loop is serial, no tensor is declared below it, and it holds no parallel, vector or bound loop.
        2. `width` is 2, 4, 8, 16, 32 or 64 and divides the extent.
        3. The loop carries no dependence, reductions included.

    Rewrite:
        L_j C[j] = A[j]              ->    L_jo V_ji C[8jo+ji] = A[8jo+ji]
    """

    name = "loop_vectorization"
    level = Level.OPERATOR
    menu = 512
    local = True
    site_kinds = ("loop",)
    parameters = (Parameter("width", "lanes", tuple(map(str, VECTOR_WIDTHS))),)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, _, loop in loop_sites(program):
            if loop.kind is Kind.SERIAL:
                for width in (8, 16, 32, 4, 64, 2):
                    if loop.extent % width == 0:
                        yield (site,), (str(width),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        _, loop = loop_at(program, site[0])
        width = int(args[0])
        wrong = _wrong_kind("vectorise", site[0], loop)
        if wrong is not None:
            return wrong
        if loop.extent % width:
            return Refusal(
                "extent",
                f"vectorise {site[0]} by {width}: extent {loop.extent} leaves a tail of {loop.extent % width}; "
                f"choose a divisor",
            )
        return _unfit_for_lanes(program, site[0])

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node, loop = loop_at(program, site[0])
        width = int(args[0])
        if loop.extent == width:
            return Outcome(_with_kind(program, node, Kind.VECTOR))
        outer = fresh_index(program, loop.index + "o", loop.extent // width, node)
        inner = fresh_index(program, loop.index + "i", width, node)
        outer_loop, inner_loop, block = split(loop, width, outer, inner, node.extents)
        vector = with_kind(inner_loop, Kind.VECTOR)
        return Outcome(splice(program, node.path, (nest((outer_loop, vector), block),)))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        _, loop = loop_at(program, site[0])
        width = int(args[0])
        dtypes = {declarations(program)[e.target.tensor][0].dtype for e in equations(loop)}
        size = max(dtype.itemsize for dtype in dtypes)
        return (
            f"Vectorise {site[0]} by {width}: {width} lanes of {size} bytes make operations of {width * size} bytes "
            f"where accesses are contiguous in {loop.index}."
        )
