"""Two operators of one form as one, over stacked tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Const,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Statement,
    Tensor,
    children,
    subexpressions,
    with_children,
)
from envs.leir_env.legality import read, starts, written
from envs.leir_env.proofs import undefined
from envs.leir_env.region import Region, covers
from envs.leir_env.simplify import linear
from envs.leir_env.strategies.base import Level, Outcome, Refusal, Strategy, register
from envs.leir_env.strategies.expressions import oversized
from envs.leir_env.strategies.loops import Args, Site, loop_at
from envs.leir_env.tree import (
    Node,
    band,
    declarations,
    expressions,
    fresh_index,
    fresh_tensor,
    map_expressions,
    nest,
    site_of,
    substitute,
)


@dataclass(frozen=True, slots=True)
class _Twins:
    """Two equations of one form under loops of the same extents."""

    loops: tuple[Loop, ...]
    first: Equation
    second: Equation
    """With the indices of the first."""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The different tensors at corresponding places, the targets first."""
        both = zip(expressions(self.first), expressions(self.second), strict=True)
        return tuple(dict.fromkeys(pair for a, b in both for pair in _pairs(a, b)))


def _pairs(a: Expr, b: Expr) -> Iterator[tuple[str, str]]:
    if isinstance(a, Access) and isinstance(b, Access) and a.tensor != b.tensor:
        yield a.tensor, b.tensor
    for x, y in zip(children(a), children(b), strict=True):
        yield from _pairs(x, y)


@functools.lru_cache(maxsize=4096)
def _twins(first: Statement, second: Statement) -> _Twins | None:
    """The equations of two perfect nests, if they differ in the names of tensors and indices only."""
    if not isinstance(first, Loop) or not isinstance(second, Loop):
        return None
    ours, theirs = band(first), band(second)
    blocks = ours[-1].block, theirs[-1].block
    bodies = tuple(statement for block in blocks for statement in block.body)
    if len(bodies) != 2 or any(block.tensors for block in blocks):
        return None
    a, b = bodies
    if not isinstance(a, Equation) or not isinstance(b, Equation) or a.assign is not b.assign:
        return None
    if [(loop.kind, loop.axis, loop.extent) for loop in ours] != [(x.kind, x.axis, x.extent) for x in theirs]:
        return None
    names: dict[str, Expr] = {y.index: Index(x.index) for x, y in zip(ours, theirs, strict=True)}
    renamed = map_expressions(b, lambda expr: substitute(expr, names))
    assert isinstance(renamed, Equation)
    alike = len(a.guard) == len(b.guard) and all(map(_alike, expressions(a), expressions(renamed)))
    return _Twins(ours, a, renamed) if alike else None


def _alike(a: Expr, b: Expr) -> bool:
    """Are two expressions the same but for the names of tensors?"""
    if isinstance(a, Access) and isinstance(b, Access):
        return len(a.subscripts) == len(b.subscripts) and all(map(_alike, a.subscripts, b.subscripts))
    below, opposite = children(a), children(b)
    if len(below) != len(opposite) or not all(map(_alike, below, opposite)):
        return False
    return with_children(a, opposite) == b


@register
class TensorConcat(Strategy):
    """Fuse two operators of one form: stack their different inputs, run one nest over both, take its result apart.

    Requires:
        1. Two neighbouring nests at the top of the program with one equation each, that differ in names only.
        2. Neither writes what the other uses; different tensors at corresponding places have one dtype and shape.
        3. Each sets, or starts from the identity and accumulates, its whole tensor; a guarded `=` does not.
        4. No loop is bound.

    Rewrite:
        L_i C[i] = tanh(A[i])   ->   L_i [ E[0,i] = A[i]  E[1,i] = B[i] ]
        L_i D[i] = tanh(B[i])        L_s,i F[s,i] = tanh(E[s,i])
                                     L_i [ C[i] = F[0,i]  D[i] = F[1,i] ]
    """

    name = "tensor_concat_to_fuse_operators"
    level = Level.GRAPH
    site_kinds = ("loop", "loop")

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for position in range(len(program.body) - 1):
            twins = _twins(*program.body[position : position + 2])
            if twins is not None and not isinstance(twins.first.value, Access):
                yield (site_of(program, (position,)), site_of(program, (position + 1,))), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        (node, loop), (after, other) = loop_at(program, site[0]), loop_at(program, site[1])
        where = f"join {site[0]}, {site[1]}"
        if len(node.path) > 1 or after.path != (node.path[0] + 1,):
            return Refusal("structure", f"{where}: they are not neighbours at the top of the program")
        twins = _twins(loop, other)
        if twins is None:
            return Refusal("structure", f"{where}: they differ in more than names, or hold more than one equation")
        reason = self._unfit(program, twins, node.path[0])
        if reason is not None:
            return Refusal(reason.code, f"{where}: {reason.sentence}")
        result = self._joined(program, node, twins)
        problem = next(undefined(result, frozenset(starts(result))), None)
        if problem is not None:
            return Refusal("structure", f"{where}: a whole tensor would be copied, but {problem[0]}")
        return oversized(result)

    def _unfit(self, program: Program, twins: _Twins, position: int) -> Refusal | None:
        declared = declarations(program)
        for loop in twins.loops:
            if loop.kind is Kind.BOUND:
                return Refusal("kind", f"{loop.index} is bound to {loop.axis}")
        targets, used = (twins.first.target.tensor, twins.second.target.tensor), read(twins.first) | read(twins.second)
        if targets[0] == targets[1] or not used.isdisjoint(targets):
            return Refusal("dependence", f"they are not independent: both use {targets[0]} or {targets[1]}")
        if len(twins.pairs) == 1:
            return Refusal("no_effect", "they read the same tensors")
        for a, b in twins.pairs:
            one, two = declared[a][0], declared[b][0]
            if (one.dtype, one.shape) != (two.dtype, two.shape):
                return Refusal("structure", f"{a} and {b} have not one dtype and shape")
        if twins.first.assign is Assign.SET and twins.first.guard:
            return Refusal("structure", f"{targets[0]} is set under a guard")
        for equation in (twins.first, twins.second):
            if not _whole(equation, twins.loops, declared[equation.target.tensor][0]):
                return Refusal("structure", f"not all of {equation.target.tensor} is written")
        for name in targets if twins.first.assign is not Assign.SET else ():
            if any(name in read(earlier) | written(earlier) for earlier in program.body[:position]):
                return Refusal("dependence", f"{name} is used before it is accumulated here")
        return None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        (node, loop), (_, other) = loop_at(program, site[0]), loop_at(program, site[1])
        twins = _twins(loop, other)
        assert twins is not None
        return Outcome(self._joined(program, node, twins))

    def _joined(self, program: Program, node: Node, twins: _Twins) -> Program:
        declared = declarations(program)
        stacks: dict[tuple[str, str], Tensor] = {}
        for pair in (*twins.pairs[1:], twins.pairs[0]):
            tensor = declared[pair[0]][0]
            name = fresh_tensor(program, {stack.name for stack in stacks.values()})
            stacks[pair] = Tensor(name, tensor.dtype, (2, *tensor.shape))
        which = fresh_index(program, "s", 2, node)

        def merged(a: Expr, b: Expr) -> Expr:
            below = tuple(map(merged, children(a), children(b)))
            if isinstance(a, Access) and isinstance(b, Access) and a.tensor != b.tensor:
                return Access(stacks[a.tensor, b.tensor].name, (Index(which), *below))
            return with_children(a, below) if below else a

        target, value, *guard = map(merged, expressions(twins.first), expressions(twins.second))
        assert isinstance(target, Access)
        both = Loop(Kind.SERIAL, which, 2, Block(()))
        fused = nest((both, *twins.loops), Block((Equation(target, twins.first.assign, value, tuple(guard)),)))
        copies = {pair: _copies(program, twins, pair, stack) for pair, stack in stacks.items()}
        out = copies.pop(twins.pairs[0])
        new = (*itertools.chain(*copies.values()), fused, *out)
        position = node.path[0]
        body = (*program.body[:position], *new, *program.body[position + 2 :])
        return Program(Block(body, (*program.tensors, *stacks.values())))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        twins = _twins(loop_at(program, site[0])[1], loop_at(program, site[1])[1])
        assert twins is not None
        declared = declarations(program)
        copied = 2 * sum(declared[a][0].nbytes for a, _ in twins.pairs)
        (first, second), *inputs = twins.pairs
        stacked = " and ".join(f"{a}, {b}" for a, b in inputs)
        return (
            f"Run {site[0]} and {site[1]} as one operator over {stacked} stacked, for {first} and {second} at once: "
            f"twice the parallel work in one nest, for {copied} bytes copied in and out."
        )


def _whole(equation: Equation, loops: tuple[Loop, ...], tensor: Tensor) -> bool:
    """Does an equation write every element of its tensor, guard apart?"""
    extents = {loop.index: loop.extent for loop in loops}
    base = tuple(linear(subscript, extents) for subscript in equation.target.subscripts)
    return covers(Region(base, (1,) * len(base), tensor, tuple(extents.items())), loops)


def _copies(program: Program, twins: _Twins, pair: tuple[str, str], stack: Tensor) -> tuple[Statement, ...]:
    """Copy two tensors into their stack; or the stack into them, where they are the targets."""
    outwards = pair == twins.pairs[0]
    extents = {loop.index: loop.extent for loop in twins.loops}
    uses = [e for top in expressions(twins.first) for e in subexpressions(top)]
    loops: list[Loop] = []
    subscripts: list[Expr] = []
    for d, extent in enumerate(stack.shape[1:]):
        if extent == 1:
            subscripts.append(Const(0))
            continue
        found = (e.subscripts[d] for e in uses if isinstance(e, Access) and e.tensor == pair[0])
        taken = {loop.index for loop in loops}
        names = [s.name for s in found if isinstance(s, Index) and extents[s.name] == extent and s.name not in taken]
        place = Node((), twins.first, tuple(loops))
        name = names[0] if names else fresh_index(program, "i", extent, place)
        loops.append(Loop(Kind.SERIAL, name, extent, Block(())))
        subscripts.append(Index(name))
    copies = []
    for number, name in enumerate(pair):
        element, slot = Access(name, tuple(subscripts)), Access(stack.name, (Const(number), *subscripts))
        ends = (element, slot) if outwards else (slot, element)
        copies.append(Equation(ends[0], Assign.SET, ends[1]))
    return (nest(loops, Block(tuple(copies))),) if loops else tuple(copies)


__all__ = ["TensorConcat"]
