"""Two convolutions with one kernel, run as one: partially equivalent first, then corrected."""

from __future__ import annotations

from collections.abc import Iterator
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
    Tensor,
    children,
    with_children,
)
from envs.leir_env.simplify import rewrite
from envs.leir_env.strategies.base import Level, Outcome, Parameter, Refusal, Strategy, counted, register
from envs.leir_env.strategies.graph import drop_tensor
from envs.leir_env.strategies.loops import Args, Site
from envs.leir_env.strategies.twins import Axis, Stage, Twins, blocks, join_plan, sliding_pairs
from envs.leir_env.tree import (
    Node,
    Path,
    declarations,
    fresh_index,
    fresh_tensor,
    indices,
    map_accesses,
    map_expressions,
    nest,
    reads,
    splice,
    substitute,
    update_block,
)

_EMPTY = Block(())


@register
class PartiallyEquivalentThenCorrect(Strategy):
    """Run two padded convolutions with one kernel as one over both inputs, and correct the columns at the seam.

    The inputs stand side by side along `axis` of the outputs, with padding around both and none between. Columns whose
    windows reach over the seam would see the other input where there was padding; these are computed anew. After
    Wang et al., PET (OSDI 2021).

    Requires:
        1. Two padding stages `E = select(inside,A,c)` and two sums over windows stand in one block, alike but for
           their inputs, padded tensors and outputs; the padded tensors are temporaries that nothing else reads.
        2. Along `axis`, windows start at each multiple of a stride that divides the extent of the inputs.
        3. Some windows reach into the padding, and some stay clear of the seam.
        4. Nothing in between uses what is computed or changes what is read.

    Rewrite:
        L_x2 E[x2] = select(x2>=1 and x2<9,A[x2-1],0)        L_x3 G[x3] = select(x3>=1 and x3<9,A[x3-1],
        L_x,p C[x] += E[x+p] K[p]                                          select(x3>=9 and x3<17,B[x3-9],0))
        L_x2 F[x2] = select(x2>=1 and x2<9,B[x2-1],0)   ->   L_x4,p H[x4] += G[x4+p] K[p]
        L_x,p D[x] += F[x+p] K[p]                            L_x5 C[x5] = H[x5]
                                                             L_x6 C[x6+7] = 0
                                                             L_x6,p C[x6+7] += select(p<1,A[p+7],0) K[p]
                                                             ... and so for D
    """

    name = "partially_equivalent_then_correct"
    level = Level.MATH
    site_kinds = ("tensor", "tensor")
    parameters = (Parameter("axis", "the dimension of the outputs along which the inputs are joined, from 1"),)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for block in blocks(program):
            for first, second, axes in sliding_pairs(block):
                for axis in axes:
                    yield (first, second), (str(axis),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        plan = join_plan(program, site, int(args[0]))
        return plan if isinstance(plan, Refusal) else None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        plan = join_plan(program, site, int(args[0]))
        assert not isinstance(plan, Refusal)
        return Outcome(_joined(program, *plan))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        plan = join_plan(program, site, int(args[0]))
        assert not isinstance(plan, Refusal)
        twins, axis = plan
        kernel = sorted({a.tensor for a in reads(twins.sums[0].equation)} - {twins.pads[0].equation.target.tensor})
        size = sum(declarations(program)[name][0].nbytes for name in kernel)
        anew = axis.columns - axis.kept + axis.spoilt
        return (
            f"Join {twins.inputs[0].tensor} and {twins.inputs[1].tensor} along axis {args[0]} of {site[0]} and "
            f"{site[1]}: one convolution of {axis.columns + axis.shift} columns reads {', '.join(kernel)} "
            f"({size} bytes) in place of two of {axis.columns}, and {counted(anew, 'column')} at the seam "
            f"{'is' if anew == 1 else 'are'} computed anew."
        )


def _joined(program: Program, twins: Twins, axis: Axis) -> Program:
    """Replace the four stages: join, convolve, split, correct."""
    pad, total = twins.pads[0], twins.sums[0]
    declared = declarations(program)
    old, out = declared[pad.equation.target.tensor][0], declared[total.equation.target.tensor][0]
    both = fresh_tensor(program)
    joined = fresh_tensor(program, {both})
    long, wide = _dimension(pad, axis.padded), _dimension(total, axis.column)
    write = _Writer(program, pad.path[:-1], max(stage.path[-1] for stage in twins.stages), pad.around)
    write.nest(pad.loops, axis.padded, (0, old.shape[long] + axis.width), _join(twins, axis, both))
    target, value = total.equation.target, total.equation.value
    moved = map_accesses(value, lambda a: Access(both, a.subscripts) if a.tensor == old.name else a)
    sum_ = Equation(Access(joined, target.subscripts), Assign.ADD, moved)
    write.nest(total.loops, axis.column, (0, axis.columns + axis.shift), sum_)
    spatial = tuple(loop for loop in total.loops if loop.index in indices(target))
    for number, kept, spoilt in (
        (0, (0, axis.kept), (axis.kept, axis.columns)),
        (1, (axis.spoilt, axis.columns), (0, axis.spoilt)),
    ):
        output = Access(twins.sums[number].equation.target.tensor, target.subscripts)
        place = _plus(Index(axis.column), number * axis.shift)
        source = substitute(Access(joined, target.subscripts), {axis.column: place})
        write.nest(spatial, axis.column, kept, Equation(output, Assign.SET, source))
        if spoilt[0] < spoilt[1]:
            write.nest(spatial, axis.column, spoilt, Equation(output, Assign.SET, Const(0)))
            again = Equation(output, Assign.ADD, _inlined(twins, value, number))
            write.nest(total.loops, axis.column, spoilt, again)
    tensors = (
        Tensor(both, old.dtype, _grown(old.shape, long, axis.width), old.scope),
        Tensor(joined, out.dtype, _grown(out.shape, wide, axis.shift), old.scope),
    )
    changed = update_block(
        write.program, declared[old.name][1], lambda block: replace(block, tensors=(*block.tensors, *tensors))
    )
    for stage in sorted(twins.stages, key=lambda stage: stage.path, reverse=True):
        changed = splice(changed, stage.path, ())
    for stage in twins.pads:
        changed = drop_tensor(changed, stage.equation.target.tensor)
    return changed


@dataclass(slots=True)
class _Writer:
    """Puts nests into a program one after the other, so that each is named in sight of those before it."""

    program: Program
    block: Path
    position: int
    """After which statement of the block the next nest goes."""
    around: tuple[Loop, ...]

    def nest(self, loops: tuple[Loop, ...], index: str, span: tuple[int, int], equation: Equation) -> None:
        """Run an equation under `loops`, of which the one over `index` covers `span` only."""
        first, extent = span[0], span[1] - span[0]
        others = tuple(loop for loop in loops if loop.index != index)
        place = Node((), Loop(Kind.SERIAL, "e0", extent, _EMPTY), (*self.around, *others))
        name = fresh_index(self.program, index, extent, place)
        value = Const(first) if extent == 1 else _plus(Index(name), first)
        named = [replace(loop, index=name, extent=extent) if loop.index == index else loop for loop in loops]
        kept = tuple(loop for loop in named if loop.index != name or extent > 1)
        extents = {loop.index: loop.extent for loop in (*self.around, *kept)}
        changed = map_expressions(rewrite(equation, {index: value}, extents), _merged)
        statement = nest(kept, Block((changed,))) if kept else changed
        self.position += 1
        self.program = update_block(
            self.program,
            self.block,
            lambda block: replace(block, body=(*block.body[: self.position], statement, *block.body[self.position :])),
        )


def _dimension(stage: Stage, index: str) -> int:
    return stage.equation.target.subscripts.index(Index(index))


def _grown(shape: tuple[int, ...], dimension: int, by: int) -> tuple[int, ...]:
    return tuple(extent + by * (d == dimension) for d, extent in enumerate(shape))


def _plus(index: Expr, offset: int) -> Expr:
    return Call("add", (index, Const(offset))) if offset else index


def _join(twins: Twins, axis: Axis, both: str) -> Equation:
    """The padded inputs side by side, in the indices of the first padding stage."""
    place, target = Index(axis.padded), twins.pads[0].equation.target
    others = tuple(condition for condition in twins.padding if axis.padded not in indices(condition))
    value: Expr = twins.fill
    for number in (1, 0):
        low = axis.left + number * axis.width
        here = (*others, Call("ge", (place, Const(low))), Call("lt", (place, Const(low + axis.width))))
        shifted = substitute(twins.inputs[number], {axis.padded: _plus(place, -axis.width * number)})
        value = _where(here, shifted, value)
    return Equation(Access(both, target.subscripts), Assign.SET, value)


def _where(conditions: tuple[Expr, ...], value: Expr, otherwise: Expr) -> Expr:
    """A selection by each condition in turn, so that those which bounds settle vanish one by one (see `_merged`)."""
    for condition in reversed(conditions):
        value = Call("select", (condition, value, otherwise))
    return value


def _merged(expr: Expr) -> Expr:
    """Write selections that end in the same value as one."""
    below = children(expr)
    changed = tuple(map(_merged, below))
    expr = expr if changed == below else with_children(expr, changed)
    match expr:
        case Call("select", (_, value, otherwise)) if value == otherwise:
            return value
        case Call("select", (outer, Call("select", (inner, value, last)), otherwise)) if last == otherwise:
            return Call("select", (Call("and", (outer, inner)), value, otherwise))
    return expr


def _inlined(twins: Twins, value: Expr, number: int) -> Expr:
    """A term of the sum that reads an input and its padding directly."""
    pad = twins.pads[0].equation
    element = _where(twins.padding, twins.inputs[number], twins.fill)

    def change(access: Access) -> Expr:
        if access.tensor != pad.target.tensor:
            return access
        places = zip(pad.target.subscripts, access.subscripts, strict=True)
        return substitute(element, {old.name: new for old, new in places if isinstance(old, Index)})

    return map_accesses(value, change)
