"""Pairs of convolutions that are alike but for their inputs, and the geometry along the axis where these are joined."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from envs.leir_env.affine import evaluate, is_affine_condition
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
    Statement,
)
from envs.leir_env.legality import read, written
from envs.leir_env.simplify import linear
from envs.leir_env.strategies.base import Refusal, counted
from envs.leir_env.strategies.loops import Site
from envs.leir_env.strategies.running import readers, reduction, writers
from envs.leir_env.tree import Path, accesses, block_at, declarations, indices, map_accesses, reads, substitute, walk


@dataclass(frozen=True, slots=True)
class Stage:
    """An equation alone in a perfect nest."""

    path: Path
    loops: tuple[Loop, ...]
    equation: Equation
    around: tuple[Loop, ...]
    """The loops around the nest."""


def _stage(program: Program, name: str) -> Stage | None:
    """The only equation that assigns a tensor, and its nest."""
    found = writers(program, name)
    if len(found) != 1:
        return None
    ((node, equation),) = found
    depth = len(node.loops)
    while depth and len(node.loops[depth - 1].block.body) == 1 and not node.loops[depth - 1].block.tensors:
        depth -= 1
    return Stage(node.path[: depth + 1], node.loops[depth:], equation, node.loops[:depth])


def _alike(first: Stage, second: Stage, names: dict[str, str]) -> bool:
    """Are two stages the same but for the names of loops and, by `names`, of tensors?"""
    if [(a.extent, a.kind) for a in first.loops] != [(b.extent, b.kind) for b in second.loops]:
        return False
    values: dict[str, Expr] = {b.index: Index(a.index) for a, b in zip(first.loops, second.loops, strict=True)}

    def rename(expr: Expr) -> Expr:
        return map_accesses(substitute(expr, values), lambda a: Access(names.get(a.tensor, a.tensor), a.subscripts))

    mine, theirs = first.equation, second.equation
    return (rename(theirs.target), theirs.assign, rename(theirs.value), theirs.guard) == (
        mine.target,
        mine.assign,
        mine.value,
        (),
    )


@dataclass(frozen=True, slots=True)
class Axis:
    """The geometry along the axis of joining, in elements of the inputs unless it says otherwise."""

    column: str
    """The index over the outputs' columns."""
    padded: str
    """The index over the padded inputs."""
    width: int
    """Extent of an input."""
    left: int
    """Padding before an input."""
    stride: int
    reach: int
    """From the first to the last element of a window."""
    columns: int
    """Columns of an output."""

    @property
    def shift(self) -> int:
        """Columns from an output of the first input to that of the second in the joined output."""
        return self.width // self.stride

    @property
    def kept(self) -> int:
        """Columns of the first output whose windows end before the second input."""
        return min(max(-(-(self.width + self.left - self.reach) // self.stride), 0), self.columns)

    @property
    def spoilt(self) -> int:
        """Columns of the second output whose windows begin in the first input."""
        return min(-(-self.left // self.stride), self.columns)


@dataclass(frozen=True, slots=True)
class Twins:
    """Two convolutions over padded inputs, alike in everything but what they read and write."""

    pads: tuple[Stage, Stage]
    sums: tuple[Stage, Stage]
    inputs: tuple[Access, Access]
    """The elements that the first nest's indices select in each input."""
    padding: tuple[Expr, ...]
    """The conditions under which the first padded tensor holds an element of its input."""
    fill: Expr
    """What it holds elsewhere."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (*self.pads, *self.sums)


def blocks(program: Program) -> Iterator[Block]:
    """Every block with room for two pairs of stages."""
    yield program.block
    for node in walk(program):
        if isinstance(node.statement, Loop) and len(node.statement.block.body) > 3:
            yield node.statement.block


@functools.lru_cache(maxsize=4096)
def sliding_pairs(block: Block) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Neighbouring sums over windows of the same shape, with the axes along which windows slide."""
    sums = [found for statement in block.body if (found := _windows(statement)) is not None]
    return tuple(
        (first, second, axes)
        for (first, axes, extents), (second, others, theirs) in itertools.pairwise(sums)
        if axes == others and extents == theirs and first != second
    )


@functools.lru_cache(maxsize=4096)
def _windows(statement: Statement) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    """The tensor that a nest sums over windows, the axes along which these slide, and the extents of its loops."""
    extents = []
    while isinstance(statement, Loop) and len(statement.block.body) == 1:
        extents.append(statement.extent)
        statement = statement.block.body[0]
    if not isinstance(statement, Equation) or statement.assign is not Assign.ADD:
        return None
    sliding = {
        name
        for access in accesses(statement.value)
        for subscript in access.subscripts
        if isinstance(subscript, Call)
        for name in indices(subscript)
    }
    axes = tuple(n for n, s in enumerate(statement.target.subscripts, 1) if isinstance(s, Index) and s.name in sliding)
    return (statement.target.tensor, axes, tuple(extents)) if axes else None


@functools.lru_cache(maxsize=1024)
def join_plan(program: Program, site: Site, axis: int) -> tuple[Twins, Axis] | Refusal:
    """What joining two sums along an axis (from 1) of theirs takes, or why it can't be done."""
    what = f"join {site[0]} and {site[1]}"
    twins = _twins(program, what, site)
    if isinstance(twins, Refusal):
        return twins
    unfit = _unfit(program, what, twins)
    if unfit is not None:
        return unfit
    along = _axis(program, f"{what} along axis {axis}", twins, axis)
    return along if isinstance(along, Refusal) else (twins, along)


def _twins(program: Program, what: str, site: Site) -> Twins | Refusal:
    sums = []
    for name in site:
        found, stage = reduction(program, name, Assign.ADD), _stage(program, name)
        if isinstance(found, str):
            return Refusal("structure", f"{what}: {found}")
        assert stage is not None
        sums.append(stage)
    mine, theirs = ({access.tensor for access in reads(stage.equation)} for stage in sums)
    if site[0] == site[1] or len(mine - theirs) != 1 or len(theirs - mine) != 1:
        return Refusal("structure", f"{what}: they do not read one tensor each beside what both read")
    padded = (*(mine - theirs), *(theirs - mine))
    pads = [_stage(program, name) for name in padded]
    if pads[0] is None or pads[1] is None:
        return Refusal("structure", f"{what}: {padded[0]} and {padded[1]} are not padded copies of inputs")
    names = {site[1]: site[0], padded[1]: padded[0]}
    if not _alike(sums[0], sums[1], names):
        return Refusal("structure", f"{what}: they differ in more than the tensors that they read and write")
    match pads[0].equation, pads[1].equation:
        case (
            Equation(_, Assign.SET, Call("select", (inside, Access() as one, Const() as fill)), ()),
            Equation(_, Assign.SET, Call("select", (_, Access() as other, Const())), ()),
        ):
            names[other.tensor] = one.tensor
        case _:
            return Refusal("structure", f"{what}: {padded[0]} and {padded[1]} are not padded copies of inputs")
    shapes = {
        (declarations(program)[a.tensor][0].dtype, declarations(program)[a.tensor][0].shape) for a in (one, other)
    }
    if not _alike(pads[0], pads[1], names) or len(shapes) > 1:
        return Refusal("structure", f"{what}: {one.tensor} and {other.tensor} are padded in different ways")
    inputs = (one, Access(other.tensor, one.subscripts))
    return Twins((pads[0], pads[1]), (sums[0], sums[1]), inputs, _conjuncts(inside), fill)


def _conjuncts(condition: Expr) -> tuple[Expr, ...]:
    match condition:
        case Call("and", (left, right)):
            return _conjuncts(left) + _conjuncts(right)
    return (condition,)


def _unfit(program: Program, what: str, twins: Twins) -> Refusal | None:
    """Why the stages can't be taken out and put together, by where they stand and what others do."""
    if len({stage.path[:-1] for stage in twins.stages}) > 1:
        return Refusal("structure", f"{what}: their stages do not stand in one block")
    for stage in twins.stages:
        for loop in stage.loops:
            if loop.kind not in (Kind.SERIAL, Kind.PARALLEL):
                return Refusal("kind", f"{what}: {loop.kind}_{loop.index} would have another extent or another nest")
    made = {stage.equation.target.tensor for stage in twins.stages}
    for pad, total in zip(twins.pads, twins.sums, strict=True):
        name = pad.equation.target.tensor
        if declarations(program)[name][0].role is not Role.TEMPORARY:
            return Refusal("scope", f"{what}: {name} is an {declarations(program)[name][0].role}, not a temporary")
        if any(node.path[: len(total.path)] != total.path for node, _ in readers(program, name)):
            return Refusal("structure", f"{what}: {name} is also read elsewhere")
    needed = {access.tensor for stage in twins.stages for access in reads(stage.equation)} - made
    for access in twins.inputs:
        if access.tensor in made:
            return Refusal("dependence", f"{what}: {access.tensor} is computed by one of them and read by the other")
    own = {stage.path[-1] for stage in twins.stages}
    body = block_at(program, twins.pads[0].path).body
    for position in range(min(own), max(own)):
        statement = body[position]
        clash = (
            set() if position in own else made & (read(statement) | written(statement)) | needed & written(statement)
        )
        if clash:
            return Refusal("dependence", f"{what}: {min(clash)} is used by a statement between their stages")
    return None


def _axis(program: Program, what: str, twins: Twins, axis: int) -> Axis | Refusal:
    total, pad = twins.sums[0], twins.pads[0]
    target, value = total.equation.target, total.equation.value
    if axis > len(target.subscripts):
        return Refusal("structure", f"{what}: {target.tensor} has {counted(len(target.subscripts), 'dimension')}")
    column = target.subscripts[axis - 1]
    name = pad.equation.target.tensor
    windows = [access for access in accesses(value) if access.tensor == name]
    if not isinstance(column, Index) or len(windows) != 1:
        return Refusal("structure", f"{what}: no single window of {name} slides along the columns")
    places = [d for d, subscript in enumerate(windows[0].subscripts) if column.name in indices(subscript)]
    elsewhere = map_accesses(value, lambda a: Const(0) if a.tensor == name else a)
    alone = [s for s in target.subscripts if column.name in indices(s)] == [column]
    if len(places) != 1 or column.name in indices(elsewhere) or not alone:
        return Refusal("structure", f"{what}: {column.name} is used in more than one subscript of {name}")
    extents = {loop.index: loop.extent for loop in total.loops}
    form = linear(windows[0].subscripts[places[0]], extents)
    steps = {atom.name: step for atom, step in form.terms if isinstance(atom, Index)}
    summed = set(extents) - indices(target)
    if len(steps) != len(form.terms) or form.constant or min(steps.values()) < 1:
        return Refusal("structure", f"{what}: windows do not begin at multiples of a stride")
    if not set(steps) - {column.name} <= summed or column.name not in extents:
        return Refusal("structure", f"{what}: the elements of a window are not all summed")
    stride = steps.pop(column.name)
    reach = sum(step * (extents[index] - 1) for index, step in steps.items())
    edge = _edge(program, what, twins, places[0])
    if isinstance(edge, Refusal):
        return edge
    padded, width, left = edge
    if width % stride:
        return Refusal("extent", f"{what}: the stride {stride} does not divide the {width} elements of an input")
    found = Axis(column.name, padded, width, left, stride, reach, extents[column.name])
    if found.kept == found.columns and not found.spoilt:
        return Refusal("no_effect", f"{what}: no window reaches into the padding, so there is nothing to correct")
    if not found.kept or found.spoilt == found.columns:
        return Refusal("size", f"{what}: each of the {found.columns} columns of an output reaches over the seam")
    return found


def _edge(program: Program, what: str, twins: Twins, dimension: int) -> tuple[str, int, int] | Refusal:
    """The index over a dimension of the padded tensor, the extent of the input there, and the padding before it."""
    pad, access = twins.pads[0], twins.inputs[0]
    shape = declarations(program)[pad.equation.target.tensor][0].shape
    index = pad.equation.target.subscripts[dimension]
    extents = {loop.index: loop.extent for loop in pad.loops}
    if not isinstance(index, Index) or extents.get(index.name) != shape[dimension]:
        return Refusal("structure", f"{what}: no loop runs over the padded inputs")
    places = [d for d, subscript in enumerate(access.subscripts) if index.name in indices(subscript)]
    others = [s for s in pad.equation.target.subscripts if index.name in indices(s)]
    if len(places) != 1 or others != [index]:
        return Refusal("structure", f"{what}: {index.name} is used in more than one subscript")
    form = linear(access.subscripts[places[0]], extents)
    if form.terms != ((index, 1),) or form.constant > 0:
        return Refusal("structure", f"{what}: the inputs are not shifted by padding alone")
    left, width = -form.constant, declarations(program)[access.tensor][0].shape[places[0]]
    conditions = [condition for condition in twins.padding if index.name in indices(condition)]
    if any(indices(c) != {index.name} or not is_affine_condition(c) for c in conditions):
        return Refusal("structure", f"{what}: what is padding along it depends on more than {index.name}")
    inside = [n for n in range(shape[dimension]) if all(evaluate(c, {index.name: n}) for c in conditions)]
    if inside != list(range(left, left + width)):
        return Refusal("structure", f"{what}: the padded inputs do not hold all of the inputs along it")
    return index.name, width, left
