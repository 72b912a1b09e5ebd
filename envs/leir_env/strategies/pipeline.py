"""Overlap the transfer of data with work on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from envs.leir_env.ir import (
    Access,
    Call,
    Const,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Scope,
    Statement,
)
from envs.leir_env.legality import read, starts, written
from envs.leir_env.simplify import rewrite, simplify
from envs.leir_env.strategies.base import Level, Outcome, Refusal, Strategy, counted, register
from envs.leir_env.strategies.boxes import MAX_PRIVATE_BYTES
from envs.leir_env.strategies.loops import Args, Site, guarded
from envs.leir_env.strategies.reductions import guard_reads
from envs.leir_env.tree import (
    at,
    declarations,
    equations,
    expressions,
    indices,
    loops_below,
    map_accesses,
    map_expressions,
    update_block,
    walk,
)
from envs.leir_env.verify import RULES


@register
class DoubleBuffer(Strategy):
    """Fill a tile one iteration ahead: two buffers take turns, one being filled while the other is used.

    Requires:
        1. The tensor is declared in a serial loop of at least two iterations.
        2. One statement fills it, from its first equation on with `=`, before everything that uses it, and writes
           nothing else.
        3. What fills it depends on the loop, and on nothing that the loop writes.
        4. Both buffers together take at most 8 MB, and fit into shared memory if they are there.

    Rewrite:
        L_t [                          D:f32.l[2,c]
          D:f32.l[c]                   L_c D[0,c] = A[c]
          L_c D[c] = A[8t+c]      ->   L_t [
          L_c C[t] += D[c]*D[c]          L_c D[(t+1)%2,c] = A[8t+c+8] if t+1<4
        ]                                L_c C[t] += D[t%2,c]*D[t%2,c]
                                       ]
    """

    name = "double_buffer"
    level = Level.MEMORY
    local = True
    site_kinds = ("tensor",)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for name, (_, home) in declarations(program).items():
            if home:
                yield (name,), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        found = _fill(program, site[0])
        return found if isinstance(found, Refusal) else None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        return Outcome(_buffered(program, site[0]))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        tensor, home = declarations(program)[site[0]]
        loop = at(program, home)
        assert isinstance(loop, Loop)
        return (
            f"Fill {site[0]} one iteration of {loop.index} ahead: while one tile of {counted(tensor.size, 'element')} "
            f"is used, the next is on its way to a second buffer ({2 * tensor.nbytes} bytes in all)."
        )


def _fill(program: Program, name: str) -> int | Refusal:
    """The position in its loop of the statement that fills a tensor, or why it can't run ahead."""
    tensor, home = declarations(program)[name]
    where = f"buffer {name} twice"
    if tensor.role is not Role.TEMPORARY or not home:
        return Refusal("scope", f"{where}: no loop declares it")
    loop = at(program, home)
    assert isinstance(loop, Loop)
    if loop.kind is not Kind.SERIAL or loop.extent < 2:
        return Refusal(
            "kind",
            f"{where}: {loop.kind}_{loop.index} has {counted(loop.extent, 'iteration')}, need an L of two",
        )
    body = loop.block.body
    touching = [n for n, statement in enumerate(body) if name in read(statement) | written(statement)]
    filling = [n for n in touching if name in written(body[n])]
    if len(filling) != 1 or filling != touching[:1] or len(touching) < 2:
        return Refusal(
            "structure", f"{where}: need one statement of {loop.index} that fills it, then others that use it"
        )
    if name in starts(program):
        return Refusal("structure", f"{where}: it accumulates from its first equation on")
    return _runs_ahead(program, name, loop, filling[0], where) or _unfit(program, name, where) or filling[0]


def _runs_ahead(program: Program, name: str, loop: Loop, position: int, where: str) -> Refusal | None:
    """Why the statement at a position of the loop must stay in its iteration, if it must."""
    statement = loop.block.body[position]
    others = written(statement) - {name}
    if others:
        return Refusal("structure", f"{where}: the statement that fills it writes {min(others)} too")
    here = written(loop) | {tensor.name for tensor in loop.block.tensors}
    clash = (read(statement) - {name}) & here
    if clash:
        return Refusal("dependence", f"{where}: it is filled from {min(clash)}, which {loop.index} writes")
    asked = guard_reads(statement, loop.index)
    if asked:
        return Refusal("structure", f"{where}: a guard reads {min(asked)}, in the end beyond the last iteration")
    if not any(loop.index in indices(e) for equation in equations(statement) for e in expressions(equation)):
        return Refusal("no_effect", f"{where}: every iteration of {loop.index} fills it alike")
    return None


def _unfit(program: Program, name: str, where: str) -> Refusal | None:
    """Why the doubled tensor, or the program with it, would be malformed."""
    tensor, home = declarations(program)[name]
    if 2 * tensor.nbytes > MAX_PRIVATE_BYTES:
        return Refusal("size", f"{where}: {2 * tensor.nbytes} bytes, the limit is {MAX_PRIVATE_BYTES}")
    nest = program.body[home[0]]
    bound = any(loop.kind is Kind.BOUND for loop in loops_below(nest))
    if bound and len(home) == 1:
        return Refusal("scope", f"{where}: it would stand outside its kernel")
    after = _buffered(program, name)
    if any(Const(False) in equation.guard for statement in after.body for equation in equations(statement)):
        return Refusal("structure", f"{where}: its first iteration fills nothing")
    rules = (["storage"] if bound else []) + ["kind"]
    for rule in rules:
        for sentence, _, _ in RULES[rule].check(after, "cuda" if bound else "llvm"):
            return Refusal("size", f"{where}: {sentence}")
    return None


def _buffered(program: Program, name: str) -> Program:
    tensor, home = declarations(program)[name]
    node = next(node for node in walk(program) if node.path == home)
    loop = node.statement
    assert isinstance(loop, Loop)
    body, index = loop.block.body, Index(loop.index)
    position = next(n for n, statement in enumerate(body) if name in written(statement))
    following = Call("add", (index, Const(1)))
    first = _turned(rewrite(body[position], {loop.index: Const(0)}, node.extents), name, Const(0))
    ahead = {**node.extents, loop.index: loop.extent - 1}
    fill = rewrite(body[position], {loop.index: following}, ahead)
    fill = guarded(_turned(fill, name, _parity(following, ahead)), Call("lt", (following, Const(loop.extent))))
    around = {**node.extents, loop.index: loop.extent}
    use = tuple(_turned(statement, name, _parity(index, around)) for statement in body[position + 1 :])
    kept = tuple(other for other in loop.block.tensors if other.name != name)
    rest = replace(loop, block=replace(loop.block, body=(*body[:position], fill, *use), tensors=kept))
    scope = tensor.scope if node.loops else Scope.GLOBAL
    double = replace(tensor, shape=(2, *tensor.shape), scope=scope)
    at_loop = home[-1]
    return update_block(
        program,
        home[:-1],
        lambda outer: replace(
            outer,
            body=(*outer.body[:at_loop], first, rest, *outer.body[at_loop + 1 :]),
            tensors=(*outer.tensors, double),
        ),
    )


def _parity(expr: Expr, extents: dict[str, int]) -> Expr:
    return simplify(Call("mod", (expr, Const(2))), extents)


def _turned(statement: Statement, name: str, buffer: Expr) -> Statement:
    """Turn every access of the tensor to one of its two buffers."""

    def change(access: Access) -> Expr:
        return Access(name, (buffer, *access.subscripts)) if access.tensor == name else access

    return map_expressions(statement, lambda expr: map_accesses(expr, change))


__all__ = ["DoubleBuffer"]
