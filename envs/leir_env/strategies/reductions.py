"""Split a reduction into partial results that can be accumulated at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from envs.leir_env import polyhedral
from envs.leir_env.affine import is_affine_condition, is_quasi_affine
from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Scope,
    Statement,
    Tensor,
    subexpressions,
)
from envs.leir_env.legality import carried, read
from envs.leir_env.region import Region, Use, covers
from envs.leir_env.simplify import linear
from envs.leir_env.strategies.base import Exactness, Level, Outcome, Parameter, Refusal, Strategy, counted, register
from envs.leir_env.strategies.boxes import MAX_PRIVATE_BYTES, box_in, copy_loops, localised, outer_extents, uses_in
from envs.leir_env.strategies.loops import Args, Site, loop_at, loop_sites, split
from envs.leir_env.tree import (
    Node,
    accesses,
    declarations,
    equations,
    fresh_index,
    fresh_tensor,
    indices,
    loops_below,
    map_accesses,
    map_expressions,
    nest,
    splice,
    update_block,
)
from envs.leir_env.verify import RULES

_LANES, _BLOCKS = "lanes", "blocks"
_PREFERRED = {_LANES: (16, 32, 8, 64, 4, 2), _BLOCKS: (8, 16, 4, 32, 2)}
"""Lanes fill a few vector registers, which hides the latency of an addition; blocks are for cores."""

_CHOICES = 3


@functools.lru_cache(maxsize=1024)
def partial_counts(extent: int, which: str) -> tuple[int, ...]:
    """The menu of numbers of partial results: divisors by preference, then counts that leave a tail."""
    fitting = [count for count in _PREFERRED[which] if 2 * count <= extent]
    return tuple(sorted(fitting, key=lambda count: extent % count > 0)[:_CHOICES])


@dataclass(frozen=True, slots=True)
class _Partial:
    """A tensor whose reduction is split: what one iteration of the loop adds to, and how."""

    box: Region
    assign: Assign
    uses: tuple[Use, ...]
    guard: tuple[Expr, ...]
    """Conditions on the loops around that all its equations share."""

    def shape(self, count: int, which: str) -> tuple[int, ...]:
        kept = tuple(self.box.extents[d] for d in self.box.kept)
        return (*kept, count) if which == _LANES else (count, *kept)

    def nbytes(self, count: int) -> int:
        return count * self.box.size * self.box.tensor.dtype.itemsize


@register
class ReductionFactorization(Strategy):
    """Split the reduction of a loop into `count` partial results, and combine these at the end.

    In `lanes`, neighbouring iterations go to different partial results, so that the inner loop carries nothing and
    can be vectorised. In `blocks`, each partial result takes a run of consecutive iterations, so that the outer
    loop carries nothing and can be shared out among cores.

    Requires:
        1. The loop is serial, carries reductions and no other dependence, and is not in vector lanes.
        2. What it reduces is not read inside it, and each iteration adds to every element of one box that does not
           move with the loop.
        3. 1 < count < extent. A count that does not divide the extent adds a guard for the tail; blocks of equal
           length must come out at just that count.
        4. The partial results take at most 8 MB; bound loops, if any, all stand around the loop.

    Rewrite:
        L_i,k C[i] += A[i,k]   ->   L_i [
                                      D:f32.l[ki]
                                      L_ko,ki D[ki] += A[i,8ko+ki]
                                      L_ki C[i] += D[ki]
                                    ]
    """

    name = "reduction_factorization"
    level = Level.OPERATOR
    menu = 128
    local = True
    site_kinds = ("loop",)
    parameters = (
        Parameter("count", "partial results"),
        Parameter("which", "which iterations share a partial result", (_LANES, _BLOCKS)),
    )

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node, loop in loop_sites(program):
            if loop.kind is Kind.SERIAL and loop.extent > 3 and carried(program, node.path):
                for which in (_LANES, _BLOCKS):
                    for count in partial_counts(loop.extent, which):
                        yield (site,), (str(count), which)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node, loop = loop_at(program, site[0])
        count, which = int(args[0]), args[1]
        where = f"factor the reduction of {site[0]} into {count}"
        if not 1 < count < loop.extent:
            return Refusal("extent", f"{where}: the number must lie between 1 and the extent {loop.extent}")
        length = _length(loop, count, which)
        if which == _BLOCKS and -(-loop.extent // length) != count:
            blocks = -(-loop.extent // length)
            return Refusal("extent", f"{where} blocks: {loop.extent} iterations make {blocks} blocks of {length}")
        found = _partials(program, site[0])
        if isinstance(found, Refusal):
            return found
        asked = guard_reads(loop, loop.index)
        if loop.extent % length and asked:
            return Refusal("structure", f"{where}: a guard reads {min(asked)}, in the tail beyond its end")
        size = sum(partial.nbytes(count) for partial in found)
        if size > MAX_PRIVATE_BYTES:
            return Refusal("size", f"{where}: partial results take {size} bytes, the limit is {MAX_PRIVATE_BYTES}")
        if any(outer.kind is Kind.UNROLLED for outer in (*node.loops, *loops_below(loop))):
            broken = self._broken(program, site)
            return Refusal("size", f"{where}: {broken}") if broken else None
        return None

    @staticmethod
    @functools.lru_cache(maxsize=8192)
    def _broken(program: Program, site: Site) -> str:
        """What is wrong with the combination of partial results, or nothing; the same for however many of them."""
        after = ReductionFactorization().rewrite(program, site, ("2", _LANES)).program
        return next((sentence for sentence, _, _ in RULES["kind"].check(after, "llvm")), "")

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node, loop = loop_at(program, site[0])
        count, which = int(args[0]), args[1]
        found = _partials(program, site[0])
        assert not isinstance(found, Refusal)
        length = _length(loop, count, which)
        outer = fresh_index(program, loop.index + "o", -(-loop.extent // length), node)
        inner = fresh_index(program, loop.index + "i", length, node)
        own = inner if which == _LANES else outer
        body, private = loop.block.body, list[Tensor]()
        for partial in found:
            name = fresh_tensor(program, {tensor.name for tensor in private})
            scope = Scope.LOCAL if node.loops else Scope.GLOBAL
            private.append(Tensor(name, partial.box.tensor.dtype, partial.shape(count, which), scope))
            block = replace(loop.block, body=body)
            moved = localised(block, partial.box.tensor.name, name, partial.box, outer_extents(node, loop))
            body = tuple(_lifted(child, name, Index(own), which) for child in moved)
        whole = replace(loop, block=replace(loop.block, body=body))
        outer_loop, inner_loop, block = split(whole, length, outer, inner, node.extents)
        after = splice(program, node.path, (nest((outer_loop, inner_loop), block),))
        for number, (partial, tensor) in enumerate(zip(found, private, strict=True), node.path[-1] + 1):
            over = Loop(Kind.SERIAL, own, count, Block(()))
            combine = _combine(after, node, partial, tensor.name, over, which)
            after = update_block(after, node.path[:-1], functools.partial(_grown, number, combine, tensor))
        exact = all(p.assign in (Assign.MAX, Assign.MIN) or not p.box.tensor.dtype.is_float for p in found)
        return Outcome(after, Exactness.EXACT if exact else Exactness.REASSOCIATES)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        _, loop = loop_at(program, site[0])
        count, which = int(args[0]), args[1]
        found = _partials(program, site[0])
        assert not isinstance(found, Refusal)
        names = ", ".join(partial.box.tensor.name for partial in found)
        size = sum(partial.nbytes(count) for partial in found)
        gain = (
            "neighbouring iterations no longer wait for one another and can run in lanes"
            if which == _LANES
            else "blocks of iterations no longer wait for one another and can run on different cores"
        )
        return (
            f"Reduce {names} over the {loop.extent} iterations of {site[0]} in {count} partial results ({which}, "
            f"{counted(size, 'byte')}), combined at the end: {gain}."
        )


def _length(loop: Loop, count: int, which: str) -> int:
    """Iterations of the inner loop."""
    return count if which == _LANES else -(-loop.extent // count)


def guard_reads(statement: Statement, index: str) -> frozenset[str]:
    """The tensors that guards below read at places which move with an index."""
    return frozenset(
        access.tensor
        for equation in equations(statement)
        for condition in equation.guard
        for access in accesses(condition)
        if index in indices(access)
    )


@functools.lru_cache(maxsize=8192)
def _partials(program: Program, site: str) -> tuple[_Partial, ...] | Refusal:
    """The tensors that a loop reduces; or why its reduction can't be split, into however many parts."""
    node, loop = loop_at(program, site)
    where = f"factor the reduction of {site}"
    if loop.kind is not Kind.SERIAL:
        return Refusal("kind", f"{where}: the loop is of kind {loop.kind}, need L")
    found = carried(program, node.path)
    if not found:
        return Refusal("no_effect", f"{where}: it carries no reduction")
    for dependence in found:
        if dependence.kind != "reduction":
            return Refusal("dependence", f"{where}: it carries the {dependence.kind} dependence of {dependence.tensor}")
    outside = _unfit_place(program, node, where)
    if outside is not None:
        return outside
    partials: list[_Partial] = []
    for name in dict.fromkeys(dependence.tensor for dependence in found):
        partial = _partial(program, node, loop, name, where)
        if isinstance(partial, Refusal):
            return partial
        partials.append(partial)
    return tuple(partials)


def _unfit_place(program: Program, node: Node, where: str) -> Refusal | None:
    """Partial results are declared around the loop: not in lanes, nor where the threads of a GPU would share them."""
    for outer in node.loops:
        if outer.kind is Kind.VECTOR:
            return Refusal("scope", f"{where}: partial results inside V_{outer.index} would be shared by its lanes")
    for loop in loops_below(program.body[node.path[0]]):
        if loop.kind is Kind.BOUND and loop not in node.loops:
            return Refusal("scope", f"{where}: partial results outside B_{loop.index} would be shared by its threads")
    return None


def _partial(program: Program, node: Node, loop: Loop, name: str, where: str) -> _Partial | Refusal:
    tensor, _ = declarations(program)[name]
    found = uses_in(loop, name, node)
    operators = {use.equation.assign for use in found}
    if name in read(loop) or len(operators) > 1:
        return Refusal("dependence", f"{where}: {name} is read in it, or reduced by several operators")
    box = box_in(loop, tensor, node)
    if isinstance(box, str):
        return Refusal("structure", f"{where}: {box}")
    for base in box.base:
        for atom, _ in base.terms:
            if loop.index in indices(atom):
                return Refusal("structure", f"{where}: the elements of {name} move with the loop")
            if any(isinstance(part, Access) for part in subexpressions(atom)):
                return Refusal("structure", f"{where}: which element of {name} it adds to depends on data")
    guard = _shared_guard(found, frozenset(node.extents))
    if not _touches_all(box, found, guard, node, loop):
        return Refusal("structure", f"{where}: it is not proved to add to all {box.size} elements of {name}")
    return _Partial(box, operators.pop(), found, guard)


def _shared_guard(found: tuple[Use, ...], outer: frozenset[str]) -> tuple[Expr, ...]:
    """Conditions in every equation's guard that only the loops around decide."""
    return tuple(
        condition
        for condition in found[0].equation.guard
        if all(condition in use.equation.guard for use in found)
        and indices(condition) <= outer
        and not any(True for _ in accesses(condition))
    )


def _touches_all(box: Region, found: tuple[Use, ...], guard: tuple[Expr, ...], node: Node, loop: Loop) -> bool:
    """Does the loop add to every element of the box, wherever the shared guard holds?"""
    inner = {**{below.index: below.extent for below in loops_below(loop)[1:]}, loop.index: loop.extent}
    for use in found:
        own = {name: extent for name, extent in use.around.items() if name in inner}
        if len(use.equation.guard) == len(guard) and _sweeps(use.access, box, own):
            return True
    if not all(_affine(use) for use in found):
        return False
    place = {d: Index(f"'{d}") for d in range(len(box.extents))}
    points = (*node.extents.items(), *((f"'{d}", extent) for d, extent in enumerate(box.extents)))
    element = box.element(dict(place))
    within = tuple(condition for condition in (*guard, *box.guards(dict(place))))
    reached = tuple(
        (
            tuple((name, extent) for name, extent in use.around.items() if name in inner),
            (
                *(Call("eq", pair) for pair in zip(use.access.subscripts, element, strict=True)),
                *use.equation.guard,
            ),
        )
        for use in found
    )
    return polyhedral.satisfiable(points, within, reached) is False


def _affine(use: Use) -> bool:
    return all(map(is_quasi_affine, use.access.subscripts)) and all(map(is_affine_condition, use.equation.guard))


def _sweeps(target: Access, box: Region, inner: dict[str, int]) -> bool:
    """Do the inner loops alone run over every element of the box?"""
    around = {**dict(box.outer), **inner}
    local = tuple(linear(s, around).plus(base, -1) for s, base in zip(target.subscripts, box.base, strict=True))
    loops = tuple(Loop(Kind.SERIAL, name, extent, Block(())) for name, extent in inner.items())
    shape = replace(box.tensor, shape=box.extents)
    return covers(Region(local, (1,) * len(local), shape, tuple(around.items())), loops)


def _grown(position: int, statement: Statement, tensor: Tensor, block: Block) -> Block:
    """The block with one more statement and one more tensor."""
    body = (*block.body[:position], statement, *block.body[position:])
    return replace(block, body=body, tensors=(*block.tensors, tensor))


def _lifted(statement: Statement, name: str, own: Index, which: str) -> Statement:
    """Give every access of the partial results the subscript that says which of them."""

    def change(access: Access) -> Expr:
        if access.tensor != name:
            return access
        subscripts = access.subscripts
        return Access(name, (*subscripts, own) if which == _LANES else (own, *subscripts))

    return map_expressions(statement, lambda expr: map_accesses(expr, change))


def _combine(program: Program, node: Node, partial: _Partial, name: str, over: Loop, which: str) -> Statement:
    """The nest that adds the partial results to their tensor."""
    loop = node.statement
    assert isinstance(loop, Loop)
    inside = Node(node.path, loop, (*node.loops, over))
    dimensions = copy_loops(program, inside, partial.box, partial.uses)
    position: dict[int, Expr] = {d: Index(new.index) for d, new in zip(partial.box.kept, dimensions, strict=True)}
    loops = (*dimensions, over) if which == _LANES else (over, *dimensions)
    target = Access(partial.box.tensor.name, partial.box.element(position))
    value = Access(name, tuple(Index(new.index) for new in loops))
    guard = tuple(dict.fromkeys((*partial.guard, *partial.box.guards(position))))
    return nest(loops, Block((Equation(target, partial.assign, value, guard),)))


__all__ = ["ReductionFactorization", "guard_reads", "partial_counts"]
