"""Map loops to the blocks and threads of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from envs.leir_env.affine import affine, strides
from envs.leir_env.ir import Access, Axis, Block, Kind, Loop, Program, Role, Scope, Statement, Tensor
from envs.leir_env.legality import parallel_refusal, written
from envs.leir_env.limits import MAX_BLOCKS, MAX_THREADS
from envs.leir_env.strategies.base import Level, Outcome, Parameter, Refusal, Strategy, counted, register
from envs.leir_env.strategies.loops import Args, Site, loop_at, loop_sites
from envs.leir_env.tree import Node, accesses, declarations, equations, expressions, loops_below, splice
from envs.leir_env.verify import RULES

WARP = 32
"""Threads that run in step and whose neighbouring accesses are one transaction."""

_BLOCKS = tuple(axis for axis in Axis if axis.is_block)
_THREADS = tuple(axis for axis in Axis if not axis.is_block)
_LIMITS: Mapping[str, int] = {**MAX_BLOCKS, **MAX_THREADS}
_CODES = {"axis": "kind", "kind": "kind", "storage": "scope"}
"""The rules of `verify` that a bound loop may break, and the codes of the refusals."""


@register
class LoopBinding(Strategy):
    """Run the iterations of a loop on the blocks of a grid (bx, by, bz) or on the threads of a block (tx, ty, tz).

    Temporaries of the kernel move to the memory that their place demands: local ones stand inside the thread
    loops, shared ones between block and thread loops; those of the header are global.

    Requires:
        1. The loop is serial and carries no dependence, reductions included.
        2. Its extent fits the axis, no loop around or below has the same axis, and a block has at most 1024 threads.
        3. Block loops are the outermost of their nest, one directly inside the other; no parallel or vector loop
           stands around, no parallel loop inside.
        4. Shared tensors stand inside a block loop and take at most 48 KB; nothing passes from block to block.

    Rewrite:
        L_i,j C[i,j] = A[i,j]  ->    B^bx_i L_j C[i,j] = A[i,j]
    """

    name = "loop_binding"
    level = Level.OPERATOR
    menu = 128
    local = True
    targets = ("cuda",)
    site_kinds = ("loop",)
    parameters = (Parameter("axis", "axis of the grid or of a block", tuple(map(str, Axis))),)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node, loop in loop_sites(program):
            if loop.kind is not Kind.SERIAL or loop.extent < 2:
                continue
            used = {other.axis for other in (*node.loops, *loops_below(loop))}
            for axes in (_BLOCKS, _THREADS):
                if axes is _BLOCKS and not all(outer.axis in _BLOCKS for outer in node.loops):
                    continue
                free = [axis for axis in axes if axis not in used and loop.extent <= _LIMITS[axis]]
                for axis in free[:1]:
                    yield (site,), (str(axis),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node, loop = loop_at(program, site[0])
        where = f"bind {site[0]} to {args[0]}"
        if loop.kind is not Kind.SERIAL:
            return Refusal("kind", f"{where}: the loop is of kind {loop.kind}, need L")
        if loop.extent < 2:
            return Refusal("extent", f"{where}: it has a single iteration")
        if loop.extent > _LIMITS[args[0]]:
            return Refusal("extent", f"{where}: extent {loop.extent} is beyond the axis's {_LIMITS[args[0]]}")
        reason = parallel_refusal(program, node.path)
        if reason is not None:
            return Refusal("dependence", f"{where}: {reason}")
        after = _bound(program, node, Axis(args[0]))
        for rule, code in _CODES.items():
            for sentence, path, _ in RULES[rule].check(after, "cuda"):
                if not path or path[0] == node.path[0]:
                    return Refusal(code, f"{where}: {sentence}")
        nest = after.body[node.path[0]]
        scattered = _scattered(nest)
        if scattered is not None:
            return Refusal("scope", f"{where}: {scattered}")
        crossing = _crossing(nest, program.tensors)
        return Refusal("dependence", f"{where}: {crossing}") if crossing else None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node, _ = loop_at(program, site[0])
        return Outcome(_bound(program, node, Axis(args[0])))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        _, loop = loop_at(program, site[0])
        if Axis(args[0]).is_block:
            return (
                f"Run the {loop.extent} iterations of {site[0]} in as many blocks along {args[0]}: they share out "
                f"among the multiprocessors, since no dependence is carried by it."
            )
        found = _accesses(loop)
        shapes = {name: tensor.shape for name, (tensor, _) in declarations(program).items()}
        near = sum((strides(a, shapes[a.tensor]) or {}).get(loop.index) == 1 for a in found)
        return (
            f"Run the {loop.extent} iterations of {site[0]} on as many threads along {args[0]} "
            f"({counted(-(-loop.extent // WARP), 'warp')}): {near} of the {counted(len(found), 'element')} named in it "
            f"lie next to their neighbour's and join into whole transactions."
        )


def _accesses(statement: Statement) -> tuple[Access, ...]:
    """Every element that equations below name, each once."""
    every = (a for equation in equations(statement) for expr in expressions(equation) for a in accesses(expr))
    return tuple(dict.fromkeys(every))


def _bound(program: Program, node: Node, axis: Axis) -> Program:
    """Bind the loop at `node`, and give the temporaries of its nest and of the header their scopes."""
    assert isinstance(node.statement, Loop)
    after = splice(program, node.path, (replace(node.statement, kind=Kind.BOUND, axis=axis),))
    header = tuple(
        replace(tensor, scope=Scope.GLOBAL) if tensor.role is Role.TEMPORARY else tensor for tensor in after.tensors
    )
    position = node.path[0]
    body = (*after.body[:position], _stored(after.body[position], frozenset()), *after.body[position + 1 :])
    return Program(Block(body, header))


def _stored(statement: Statement, around: frozenset[bool]) -> Statement:
    """Give every temporary below the scope of its place. `around`: are there block (True), thread (False) loops?"""
    if not isinstance(statement, Loop):
        return statement
    inside = around | {statement.axis.is_block} if statement.axis else around
    threads_below = any(loop.axis is not None and not loop.axis.is_block for loop in loops_below(statement)[1:])

    def scope(tensor: Tensor) -> Scope:
        shareable = True in inside and False not in inside
        return Scope.SHARED if shareable and (threads_below or tensor.scope is Scope.SHARED) else Scope.LOCAL

    tensors = tuple(replace(tensor, scope=scope(tensor)) for tensor in statement.block.tensors)
    body = tuple(_stored(child, inside) for child in statement.block.body)
    return replace(statement, block=Block(body, tensors))


def _scattered(statement: Statement) -> str | None:
    """Say which local tensor a thread loop would write from outside: each thread has its own."""
    if not isinstance(statement, Loop):
        return None
    threads = [loop for loop in loops_below(statement)[1:] if loop.axis is not None and not loop.axis.is_block]
    for tensor in statement.block.tensors:
        for loop in threads:
            if tensor.scope is Scope.LOCAL and tensor.name in written(loop):
                return f"{tensor.name} is declared outside {loop.index} and written in it, but each thread has its own"
    return next((found for child in statement.block.body if (found := _scattered(child)) is not None), None)


def _crossing(nest: Statement, tensors: tuple[Tensor, ...]) -> str | None:
    """Say which tensor may pass between the blocks of a kernel, which nothing orders.

    A dependence that blocks carry is refused elsewhere; here every use must show which block it belongs to.
    """
    blocks = [loop for loop in loops_below(nest) if loop.axis is not None and loop.axis.is_block]
    found = set(_uses(nest, frozenset()))
    for tensor in tensors if blocks else ():
        uses = [access for access, _ in found if access.tensor == tensor.name]
        if tensor.name in written(nest) and len(uses) > 1:
            for loop in blocks:
                weights = {_weights(access, loop.index) for access in uses}
                if len(weights) > 1 or None in weights:
                    return f"{tensor.name} may pass from one block to another along {loop.axis}"
    return None


def _uses(statement: Statement, bound: frozenset[str]) -> Iterator[tuple[Access, frozenset[str]]]:
    """Every element used below, with the bound loops around."""
    if isinstance(statement, Loop):
        inside = bound | {statement.index} if statement.axis else bound
        for child in statement.block.body:
            yield from _uses(child, inside)
    else:
        for access in _accesses(statement):
            yield access, bound


def _weights(access: Access, index: str) -> tuple[int, ...] | None:
    """The coefficient of an index in each subscript; None if it has none, or a subscript is not affine."""
    forms = [affine(subscript) for subscript in access.subscripts]
    weights = tuple(form.coefficient(index) for form in forms if form is not None)
    return weights if len(weights) == len(forms) and any(weights) else None


__all__ = ["LoopBinding"]
