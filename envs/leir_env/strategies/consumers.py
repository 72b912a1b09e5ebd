"""Move a consumer into the loop of its producer."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from envs.leir_env.ir import Access, Block, Call, Const, Equation, Expr, Index, Kind, Loop, Program
from envs.leir_env.legality import read, touched, written
from envs.leir_env.region import Region
from envs.leir_env.simplify import linear, rewrite
from envs.leir_env.strategies.base import Exactness, Level, Outcome, Refusal, Strategy, counted, register
from envs.leir_env.strategies.boxes import box_in, copy_loops, outer_extents, uses_in
from envs.leir_env.strategies.loops import Args, Site, loop_at, loop_sites, reordered
from envs.leir_env.strategies.placement import kept_kind
from envs.leir_env.tree import (
    Node,
    Path,
    accesses,
    block_at,
    declarations,
    fresh_index,
    loops_below,
    nest,
    reads,
    sites,
    splice,
    update_block,
    walk,
)
from envs.leir_env.verify import RULES


@register
class ReverseComputeAt(Strategy):
    """Consume a tensor where it is produced: move an equation into a loop of an earlier nest, for the part done there.

    Requires:
        1. The equation stands alone in a perfect nest, after the nest of the loop in the same block; none of the loops
           around it and the loop is bound, and none around the loop is a vector loop.
        2. It reads a tensor that the loop writes, over plain indices.
        3. The part that one iteration writes is a box; the boxes of all iterations tile the tensor, without overlap.
        4. Every dependence still points forward: what the equation reads is complete by then.

    Rewrite:
        L_io [                          L_io [
          L_ii,k D[8io+ii] += ..          L_ii,k D[8io+ii] += ..
        ]                          ->     L_ii C[8io+ii] = exp(D[8io+ii])
        L_i C[i] = exp(D[i])            ]
    """

    name = "reverse_compute_at"
    level = Level.GRAPH
    menu = 128
    site_kinds = ("equation", "loop")

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        loops = loop_sites(program)
        for site, node in sites(program).items():
            if not isinstance(node.statement, Equation):
                continue
            wanted = read(node.statement)
            for name, other, loop in loops:
                depth = _parting(node.path, other.path)
                if depth is None or wanted.isdisjoint(written(loop)):
                    continue
                between = block_at(program, node.path[: depth + 1]).body[other.path[depth] + 1 : node.path[depth]]
                if all(wanted.isdisjoint(written(statement)) for statement in between):
                    yield (site, name), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        verdict = self._verdict(program, site)
        if isinstance(verdict, Refusal):
            return replace(verdict, sentence=f"compute {site[0]} at {site[1]}: {verdict.sentence}")
        return None

    def _verdict(self, program: Program, site: Site) -> tuple[Access, Exactness] | Refusal:
        """The access that ties the equation to the loop, judged by the nests from the one to the other alone."""
        equation, loop = sites(program)[site[0]].path, loop_at(program, site[1])[0].path
        if _parting(equation, loop) is None:
            return Refusal("structure", "the loop is not in an earlier statement of a block that both are in")
        first = loop[0]
        alone = _excerpt(program, first, equation[0] + 1)
        return _judged(alone, (equation[0] - first, *equation[1:]), (0, *loop[1:]))

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        verdict = self._verdict(program, site)
        assert not isinstance(verdict, Refusal)
        access, exactness = verdict
        steps = _steps(program, sites(program)[site[0]], loop_at(program, site[1])[0], access)
        assert not isinstance(steps, str)
        return Outcome(steps[1], exactness)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        verdict = self._verdict(program, site)
        assert not isinstance(verdict, Refusal)
        node, loop = loop_at(program, site[1])
        tensor, _ = declarations(program)[verdict[0].tensor]
        box = box_in(loop, tensor, node)
        assert not isinstance(box, str)
        size = box.size * tensor.dtype.itemsize
        return (
            f"Compute {site[0]} inside {site[1]}, as soon as its {counted(box.size, 'element')} ({size} bytes) of "
            f"{tensor.name} are there, instead of in a pass of its own over {tensor.nbytes} bytes."
        )


def _parting(consumer: Path, loop: Path) -> int | None:
    """How deep the two stand in common loops, where the loop's statement comes first there."""
    depth = next((n for n, (a, b) in enumerate(zip(consumer, loop, strict=False)) if a != b), None)
    return depth if depth is not None and loop[depth] < consumer[depth] else None


@functools.lru_cache(maxsize=4096)
def _excerpt(program: Program, first: int, end: int) -> Program:
    """Some top-level nests as a program of their own, with the tensors they mention."""
    body = program.body[first:end]
    used = frozenset().union(*map(touched, body))
    return Program(Block(body, tuple(tensor for tensor in program.tensors if tensor.name in used)))


@functools.lru_cache(maxsize=8192)
def _judged(program: Program, consumer_path: Path, loop_path: Path) -> tuple[Access, Exactness] | Refusal:
    """Which access of the equation ties it to the loop, and how exact the move is; or why there is none."""
    places = {node.path: node for node in walk(program)}
    consumer, node = places[consumer_path], places[loop_path]
    equation, loop = consumer.statement, node.statement
    assert isinstance(equation, Equation) and isinstance(loop, Loop)
    depth = _parting(consumer_path, loop_path)
    if any(len(outer.block.body) > 1 or outer.block.tensors for outer in consumer.loops[depth:]):
        return Refusal("structure", "the equation is not alone in a perfect nest")
    for outer in (*consumer.loops, *loops_below(program.body[loop_path[0]])):
        if outer.kind is Kind.BOUND:
            return Refusal("kind", f"B_{outer.index} is bound already; move first")
    for outer in (*node.loops, loop):
        if outer.kind is Kind.VECTOR:
            return Refusal("kind", f"it would be in the lanes of V_{outer.index}")
    refusal = Refusal("no_effect", "the loop writes nothing that the equation reads")
    for access in reads(equation):
        if access.tensor not in written(loop):
            continue
        steps = _steps(program, consumer, node, access)
        verdict = Refusal("structure", steps) if isinstance(steps, str) else _order(*steps)
        if not isinstance(verdict, Refusal):
            return access, verdict
        if refusal.code != "dependence":
            refusal = verdict
    return refusal


def _order(before: Program, after: Program) -> Exactness | Refusal:
    """Judge a move by its dependences, and by the copies that unrolled loops make."""
    verdict = reordered(before, after)
    unrolled = any(loop.kind is Kind.UNROLLED for statement in after.body for loop in loops_below(statement))
    if isinstance(verdict, Refusal) or not unrolled:
        return verdict
    return next((Refusal("size", text) for text, _, _ in RULES["kind"].check(after, "llvm")), verdict)


_Digits = Mapping[str, tuple[int, tuple[str, ...]]]
"""For each loop of a consumer that runs over a tensor: the dimension, and the producer's loops that are its digits."""


def _digits(
    access: Access, box: Region, own: tuple[Loop, ...], around: Mapping[str, Loop], extents: Mapping[str, int]
) -> _Digits | str:
    """Read the indices of a consumer's access as numbers whose digits are the loops around the box and its inside."""
    mine, theirs = {loop.index: loop.extent for loop in own}, {name: loop.extent for name, loop in around.items()}
    unused = {name for name, extent in theirs.items() if extent > 1}
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for d, (subscript, base) in enumerate(zip(access.subscripts, box.base, strict=True)):
        moving = [(name, step) for atom, step in base.terms if theirs.get(name := _name(atom), 1) > 1]
        fixed = tuple(term for term in base.terms if _name(term[0]) not in theirs)
        rest = linear(subscript, extents).plus(replace(base, terms=fixed), -1)
        if not moving and box.extents[d] == 1 and not rest.terms and not rest.constant:
            continue
        name = _name(rest.terms[0][0]) if rest.terms else ""
        if rest.constant or len(rest.terms) != 1 or rest.terms[0][1] != 1 or name not in mine or name in found:
            return f"subscript {d + 1} of {access.tensor} is not an index of its own"
        reach = box.extents[d]
        for index, step in sorted(moving, key=lambda term: term[1]):
            if step != reach or index not in unused:
                return f"the parts of {access.tensor} that iterations write do not tile its dimension {d + 1}"
            unused.remove(index)
            reach *= theirs[index]
        if reach < mine[name]:
            return f"the loop writes {reach} elements along dimension {d + 1} of {access.tensor}, not {mine[name]}"
        found[name] = d, tuple(index for index, _ in sorted(moving, key=lambda term: -term[1]))
    if unused:
        return f"each iteration of {min(unused)} writes the same part of {access.tensor}"
    return found


def _steps(program: Program, consumer: Node, node: Node, access: Access) -> tuple[Program, Program] | str:
    """The program with the equation under the loops of its new place, and then there; or why it does not fit in."""
    equation, loop = consumer.statement, node.statement
    assert isinstance(equation, Equation) and isinstance(loop, Loop)
    depth = _parting(consumer.path, node.path)
    assert depth is not None
    own, around = consumer.loops[depth:], {outer.index: outer for outer in (*node.loops[depth:], loop)}
    box = box_in(loop, declarations(program)[access.tensor][0], node)
    digits = box if isinstance(box, str) else _digits(access, box, own, around, consumer.extents)
    if isinstance(box, str) or isinstance(digits, str):
        return str(digits)
    inside = dict(zip(box.kept, copy_loops(program, node, box, uses_in(loop, access.tensor, node)), strict=True))
    heads: list[Loop] = []
    there: list[Loop] = [replace(outer, kind=Kind.SERIAL) for outer in around.values() if outer.extent == 1]
    values: dict[str, Expr] = {}
    tails: list[Expr] = []
    empty = Block(())
    for old in own:
        if old.index in digits:
            d, outer = digits[old.index]
            new = [replace(inside[d], kind=kept_kind(old, inside[d].extent))] if d in inside else []
            moving = tuple(term for term in box.base[d].terms if _name(term[0]) in around)
            local = tuple((Index(head.index), 1) for head in new)
            values[old.index] = replace(box.base[d], terms=(*moving, *local), constant=0).expression()
            there += [replace(around[name], kind=Kind.SERIAL) for name in outer]
            if math.prod(around[name].extent for name in outer) * box.extents[d] > old.extent:
                tails.append(Call("lt", (values[old.index], Const(old.extent))))
        else:
            place = Node(node.path, replace(loop, block=empty), (*node.loops, *inside.values(), *heads))
            new = [
                Loop(kept_kind(old, old.extent), fresh_index(program, old.index, old.extent, place), old.extent, empty)
            ]
            values[old.index] = Index(new[0].index)
        heads += new
        there += new
    if tails and any(True for condition in equation.guard for _ in accesses(condition)):
        return "its guard reads a tensor, in the last tile beyond its end"
    extents = {**outer_extents(node, loop), **{head.index: head.extent for head in heads}}
    moved = rewrite(equation, values, extents)
    assert isinstance(moved, Equation)
    block = Block((replace(moved, guard=tuple(dict.fromkeys((*moved.guard, *tails)))),))
    start = consumer.path[: depth + 1]
    before = splice(program, start, (nest(there, block),))
    after = update_block(
        splice(program, start, ()),
        node.path,
        lambda inner: replace(inner, body=(*inner.body, nest(heads, block))),
    )
    return before, after


def _name(atom: Expr) -> str:
    """The name of an index; nothing for other atoms."""
    return atom.name if isinstance(atom, Index) else ""
