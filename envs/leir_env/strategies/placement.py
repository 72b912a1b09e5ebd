"""Move a producer into the loop of its consumer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from envs.leir_env.ir import (
    Access,
    Block,
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
from envs.leir_env.layout import touching
from envs.leir_env.legality import read, written
from envs.leir_env.limits import VECTOR_WIDTHS
from envs.leir_env.region import Region, Use
from envs.leir_env.simplify import rewrite
from envs.leir_env.strategies.base import Level, Outcome, Refusal, Strategy, counted, register
from envs.leir_env.strategies.boxes import box_in, localised, outer_extents, uses_in
from envs.leir_env.strategies.graph import drop_tensor
from envs.leir_env.strategies.loops import Args, Site, loop_at, loop_sites
from envs.leir_env.tree import (
    Node,
    Path,
    accesses,
    at,
    block_at,
    declarations,
    fresh_index,
    loops_below,
    nest,
    site_of,
    splice,
    walk,
)
from envs.leir_env.verify import RULES

MAX_RECOMPUTATION = 8
"""How many times an element may be computed on average once its producer moves."""


@register
class ComputeAt(Strategy):
    """Compute a temporary where it is consumed: move its producer into a loop, for just the part used there.

    Requires:
        1. The tensor is a temporary whose only equation stands in a perfect nest, over distinct plain indices.
        2. The loop belongs to a later statement of the same block, and every use of the tensor lies in it.
        3. The part used in one iteration is a box that moves with the loops around it.
        4. Nothing that the producer reads is written in between, and each element is computed at most 8 times.

    Rewrite:
        L_i,k D[i] += A[i,k]        L_i [
        L_i C[i] = exp(D[i])   ->     D:f32.l
                                      L_k D += A[i,k]
                                      C[i] = exp(D)
                                    ]
    """

    name = "compute_at"
    level = Level.GRAPH
    menu = 128
    site_kinds = ("tensor", "loop")

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        declared = declarations(program)
        for node in walk(program):
            equation = node.statement
            if not isinstance(equation, Equation):
                continue
            name = equation.target.tensor
            tensor, home = declared[name]
            if tensor.role is not Role.TEMPORARY:
                continue
            position = node.path[len(home)]
            for later in range(position + 1, len(block_at(program, (*home, position)).body)):
                consumer = at(program, (*home, later))
                if isinstance(consumer, Loop) and name in read(consumer):
                    for site, other, loop in loop_sites(program):
                        if other.path[: len(home) + 1] == (*home, later) and name in read(loop):
                            yield (name, site), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        plan = self._plan(program, site)
        if isinstance(plan, Refusal):
            return plan
        node, loop = loop_at(program, site[1])
        if any(outer.kind is Kind.UNROLLED for outer in (*node.loops, loop)):
            for sentence, _, _ in RULES["kind"].check(self.rewrite(program, site, args).program, "llvm"):
                return Refusal("size", f"compute {site[0]} at {site[1]}: {sentence}")
        return None

    def _plan(self, program: Program, site: Site) -> tuple[Path, tuple[Loop, ...], Equation, Region] | Refusal:
        """The producer's place, its loops and equation, and the part of the tensor that the loop uses."""
        name, where = site[0], f"compute {site[0]} at {site[1]}"
        node, loop = loop_at(program, site[1])
        tensor, home = declarations(program)[name]
        if tensor.role is not Role.TEMPORARY:
            return Refusal("scope", f"{where}: it is an {tensor.role}, not a temporary")
        for outer in (*node.loops, loop):
            if outer.kind is Kind.VECTOR:
                return Refusal(
                    "scope", f"{where}: a tensor declared inside V_{outer.index} would be shared by its lanes"
                )
        for inner in loops_below(loop)[1:]:
            if inner.kind is Kind.BOUND:
                return Refusal("scope", f"{where}: {name} would stand outside B_{inner.index}, which uses it")
        users = touching(program, name)
        writers = [n for n, equation in users if equation.target.tensor == name]
        if len(writers) != 1:
            return Refusal("structure", f"{where}: {len(writers)} equations assign {name}, need exactly one")
        (producer,) = writers
        assert isinstance(producer.statement, Equation)
        start = (*home, producer.path[len(home)])
        shape = self._not_plain(program, where, start, producer, tensor)
        if shape is not None:
            return shape
        for other, _ in users:
            if other is not producer and other.path[: len(node.path)] != node.path:
                return Refusal(
                    "structure", f"{where}: {name} is also used at {site_of(program, other.path)}, outside the loop"
                )
        if node.path[: len(home)] != home or not start < node.path[: len(start)]:
            return Refusal(
                "structure", f"{where}: the loop is not in a later statement of the block that declares {name}"
            )
        body = block_at(program, start).body
        needed = read(producer.statement)
        for statement in body[start[-1] + 1 : node.path[len(home)] + 1]:
            clash = needed & written(statement)
            if clash:
                return Refusal(
                    "dependence", f"{where}: {min(clash)}, which {name} is computed from, is written before the loop"
                )
        found = self._uses(loop, name, node)
        if not found:
            return Refusal("no_effect", f"{where}: the loop does not use {name}")
        box = box_in(loop, tensor, node)
        if isinstance(box, str):
            return Refusal("structure", f"{where}: {box}")
        position: dict[int, Expr] = {d: Index(f"'{d}") for d in box.kept}
        if box.guards(position) and any(True for c in producer.statement.guard for _ in accesses(c)):
            return Refusal("structure", f"{where}: its guard reads a tensor, in the last box beyond its end")
        times = box.size
        for outer in (*node.loops[len(home) :], loop):
            times *= outer.extent
        if times > MAX_RECOMPUTATION * tensor.size:
            return Refusal(
                "size",
                f"{where}: each element would be computed {times / tensor.size:.3g} times, "
                f"the limit is {MAX_RECOMPUTATION}",
            )
        return start, producer.loops[len(home) :], producer.statement, box

    def _uses(self, loop: Loop, name: str, node: Node) -> tuple[Use, ...]:
        return uses_in(loop, name, node)

    def _not_plain(self, program: Program, where: str, start: Path, producer: Node, tensor: Tensor) -> Refusal | None:
        equation = producer.statement
        assert isinstance(equation, Equation)
        if producer.path != (*start, *[0] * (len(producer.path) - len(start))) or any(
            len(loop.block.body) != 1 or loop.block.tensors for loop in producer.loops[len(start) - 1 :]
        ):
            return Refusal("structure", f"{where}: its equation is not alone in a perfect nest")
        plain = [s.name for s in equation.target.subscripts if isinstance(s, Index)]
        extents = producer.extents
        if len(set(plain)) != len(tensor.shape) or [extents[i] for i in plain] != list(tensor.shape):
            return Refusal(
                "structure", f"{where}: its subscripts are not distinct indices that run over the whole tensor"
            )
        return None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        plan = self._plan(program, site)
        assert not isinstance(plan, Refusal)
        start, loops, equation, box = plan
        name = site[0]
        node, loop = loop_at(program, site[1])
        body = localised(loop.block, name, name, box, outer_extents(node, loop))
        producer = self._producer(program, node, loops, equation, box, name)
        private = Tensor(name, box.tensor.dtype, tuple(box.extents[d] for d in box.kept), Scope.LOCAL)
        inside = replace(loop, block=Block((producer, *body), (*loop.block.tensors, private)))
        moved = splice(drop_tensor(program, name), node.path, (inside,))
        return Outcome(splice(moved, start, ()))

    def _producer(
        self,
        program: Program,
        node: Node,
        loops: tuple[Loop, ...],
        equation: Equation,
        box: Region,
        name: str,
    ) -> Statement:
        """The producer's nest for one box, with loops named apart from those around its new place."""
        loop = node.statement
        assert isinstance(loop, Loop)
        outer = outer_extents(node, loop)
        dimension = {s.name: d for d, s in enumerate(equation.target.subscripts) if isinstance(s, Index)}
        heads: list[Loop] = []
        values: dict[str, Expr] = {}
        position: dict[int, Expr] = {}
        empty = Block(())
        for old in loops:
            d = dimension.get(old.index)
            extent = old.extent if d is None else box.extents[d]
            if d is not None and extent == 1:
                values[old.index] = box.base[d].expression()
                continue
            place = Node(node.path, replace(loop, block=empty), (*node.loops, *heads))
            new = fresh_index(program, old.index, extent, place)
            heads.append(Loop(kept_kind(old, extent), new, extent, empty))
            values[old.index] = Index(new)
            if d is not None:
                position[d] = Index(new)
                values[old.index] = box.element(position)[d]
        target = Access(name, tuple(position[d] for d in box.kept))
        around = {**outer, **{head.index: head.extent for head in heads}}
        aside = replace(equation, target=Access(name, ()))
        moved = rewrite(aside, values, around)
        assert isinstance(moved, Equation)
        guard = (*moved.guard, *box.guards(position))
        return nest(heads, Block((Equation(target, equation.assign, moved.value, guard),)))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        plan = self._plan(program, site)
        assert not isinstance(plan, Refusal)
        _, _, _, box = plan
        size = box.size * box.tensor.dtype.itemsize
        return (
            f"Compute {site[0]} inside {site[1]}, {counted(box.size, 'element')} ({size} bytes) at a time: it is "
            f"used while in registers or the nearest cache, and its {box.tensor.nbytes} bytes are not stored whole."
        )


def kept_kind(old: Loop, extent: int) -> Kind:
    """The kind that a loop keeps when it moves: parallel loops become serial, vectors need a vector's width."""
    if old.kind is Kind.VECTOR:
        return Kind.VECTOR if extent == old.extent and extent in VECTOR_WIDTHS else Kind.SERIAL
    return Kind.UNROLLED if old.kind is Kind.UNROLLED and extent <= old.extent else Kind.SERIAL
