"""Strategies that store a tensor in another order: transposed, tiled, packed as the loops pass over it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from envs.leir_env import limits
from envs.leir_env.affine import affine, interval, is_quasi_affine
from envs.leir_env.dependence import references
from envs.leir_env.ir import (
    Access,
    Assign,
    Axis,
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
    Scope,
    Statement,
    Tensor,
)
from envs.leir_env.layout import Layout, Part, address, keeps_order, relaid, shape_of, touching
from envs.leir_env.legality import promised, starts, touched, written
from envs.leir_env.proofs import out_of_bounds
from envs.leir_env.strategies.base import Level, Outcome, Parameter, Refusal, Strategy, counted, nests, register
from envs.leir_env.strategies.loops import Args, Site, broken_promise
from envs.leir_env.tree import (
    Node,
    accesses,
    declarations,
    equations,
    expressions,
    fresh_index,
    fresh_tensor,
    indices,
    nest,
    update_block,
    walk,
)
from envs.leir_env.types import type_problems

_TILES = (16, 8, 32)
"""Sizes of tiles in menus: one or two vectors of floats first."""

_LAYOUT = Parameter(
    "layout",
    "swap_a_b: dimensions a and b exchanged; tile_d_f: dimension d in tiles of f, the places in a tile innermost; "
    "panel_d_f: the same with the tiles outermost",
    spelling=r"(swap|tile|panel)_[1-9][0-9]{0,8}_[1-9][0-9]{0,8}",
    example="swap_1_2, tile_1_16 or panel_2_16",
)


@functools.lru_cache(maxsize=4096)
def parse_layout(text: str, tensor: Tensor) -> Layout | Refusal:
    """Return the layout that a parameter names, or say why the tensor can't be stored so."""
    verb, *numbers = text.split("_")
    first, second = map(int, numbers)
    rank = len(tensor.shape)
    where = f"{text} of {tensor.name}"
    whole = [Part(axis) for axis in range(rank)]
    if verb == "swap":
        if not first < second <= rank:
            return Refusal("wrong_parameter", f"{where}: name two of its {counted(rank, 'dimension')}, the first first")
        whole[first - 1], whole[second - 1] = whole[second - 1], whole[first - 1]
        layout = tuple(whole)
    else:
        if first > rank:
            return Refusal("wrong_parameter", f"{where}: it has only {counted(rank, 'dimension')}")
        extent = tensor.shape[first - 1]
        if not 1 < second < extent:
            return Refusal("extent", f"{where}: a tile must lie between 1 and the extent {extent}")
        tiles, places = Part(first - 1, second), Part(first - 1, second, True)
        others = [*whole[: first - 1], *whole[first:]]
        position = 0 if verb == "panel" else first - 1
        layout = (*others[:position], tiles, *others[position:], places)
    if keeps_order(layout, tensor.shape):
        return Refusal("no_effect", f"{where}: its elements would keep their order in memory")
    return layout


def layouts(tensor: Tensor) -> Iterator[str]:
    """The menu: the last dimension exchanged with each other one, then tiles of each dimension."""
    rank = len(tensor.shape)
    if sum(extent > 1 for extent in tensor.shape) < 2:
        return
    for axis in range(1, rank):
        if tensor.shape[axis - 1] > 1:
            yield f"swap_{axis}_{rank}"
    for axis, extent in enumerate(tensor.shape, 1):
        for tile in _TILES:
            if tile < extent:
                yield f"{'tile' if axis < rank else 'panel'}_{axis}_{tile}"


def launched(program: Program, loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Bind new loops at the top to blocks and threads where the program runs on a GPU."""
    if not any(isinstance(node.statement, Loop) and node.statement.axis for node in walk(program)):
        return loops
    first, *rest = loops
    bound = [replace(first, kind=Kind.BOUND, axis=Axis.BX), *rest]
    if rest and rest[-1].extent <= limits.MAX_THREADS["tx"]:
        bound[-1] = replace(rest[-1], kind=Kind.BOUND, axis=Axis.TX)
    return tuple(bound)


def new_loops(program: Program, wanted: tuple[tuple[str, int], ...]) -> tuple[Loop, ...]:
    """Serial loops of a new top-level nest, by the names and extents that they should have."""
    loops: tuple[Loop, ...] = ()
    leaf = Equation(Access("A"), Assign.SET, Const(0))
    for base, extent in wanted:
        name = fresh_index(program, base, extent, Node((), leaf, loops))
        loops = (*loops, Loop(Kind.SERIAL, name, extent, Block(())))
    return loops


def _names(program: Program, tensor: Tensor, layout: Layout) -> dict[Part, str]:
    """For each part of a layout the name of an index that runs over exactly it in some equation, or a new one."""
    whole: Layout = tuple(map(Part, range(len(tensor.shape))))
    found: dict[Part, str] = {}
    stems: dict[Part, str] = {}
    for view, order in ((relaid(program, tensor.name, tensor.name, layout), layout), (program, whole)):
        for node, equation in touching(view, tensor.name):
            for access in (a for expr in expressions(equation) for a in accesses(expr) if a.tensor == tensor.name):
                for part, subscript in zip(order, access.subscripts, strict=True):
                    if isinstance(subscript, Index) and node.extents[subscript.name] == part.extent(tensor.shape):
                        found.setdefault(part, subscript.name)
                    if order is whole and part not in found:
                        stems.setdefault(part, _stem(indices(subscript)))
    return {
        part: found.get(part)
        or found.get(Part(part.axis), stems.get(Part(part.axis), "c"))
        + ("i" if part.within else "o" if part.tile else "")
        for part in layout
    }


def _stem(names: frozenset[str]) -> str:
    """What index names have in common at the front, `i` of `io` and `ii`, or `c`."""
    first, last = min(names, default=""), max(names, default="")
    alike = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:alike] or "c"


def _copy(program: Program, tensor: Tensor, stored: str, layout: Layout, outwards: bool) -> Statement:
    """The nest that copies a tensor into its other layout, or back from it; the written one is passed in order."""
    names = _names(program, tensor, layout)
    order = sorted(layout, key=lambda part: (part.axis, part.within)) if outwards else list(layout)
    loops = new_loops(program, tuple((names[part], part.extent(tensor.shape)) for part in order))
    index: dict[Part, Expr] = {part: Index(loop.index) for part, loop in zip(order, loops, strict=True)}
    element: list[Expr] = [Const(0)] * len(tensor.shape)
    guard: tuple[Expr, ...] = ()
    for part in layout:
        if not part.within:
            element[part.axis] = index[part]
        if part.tile and not part.within:
            place = Call("add", (Call("mul", (Const(part.tile), index[part])), index[replace(part, within=True)]))
            element[part.axis] = place
            if tensor.shape[part.axis] % part.tile:
                guard = (Call("lt", (place, Const(tensor.shape[part.axis]))),)
    plain = Access(tensor.name, tuple(element))
    packed = Access(stored, tuple(index[part] for part in layout))
    target, value = (plain, packed) if outwards else (packed, plain)
    return nest(launched(program, loops), Block((Equation(target, Assign.SET, value, guard),)))


def _tile_refusal(program: Program, name: str, layout: Layout, where: str) -> Refusal | None:
    """Say which subscript can't be divided into tiles so that `verify` still proves it."""
    if not any(part.tile for part in layout):
        return None
    for alone, statement in zip(nests(program), program.body, strict=True):
        sentence = _indivisible(alone, name, layout) if name in touched(statement) else None
        if sentence is not None:
            return Refusal("structure", f"{where}: {sentence}")
    return None


@functools.lru_cache(maxsize=16384)
def _indivisible(alone: Program, name: str, layout: Layout) -> str | None:
    """What keeps the subscripts of a tensor in a single nest from being divided into tiles."""
    tensor, _ = declarations(alone)[name]
    axis = next(part.axis for part in layout if part.tile)
    for node, equation in _intricate(alone, name, axis):
        single = Program(Block((nest(node.loops, Block((equation,))),)))
        (changed,) = equations(relaid(single, name, name, layout).body[0])
        known = {name: known for name, (known, _) in declarations(alone).items()}
        known[name] = replace(tensor, shape=shape_of(layout, tensor.shape))
        used = sorted({access.tensor for expr in expressions(changed) for access in accesses(expr)})
        loops = tuple(sorted(node.extents.items()))
        problems = type_problems(changed, tuple((name, known[name].dtype) for name in used))
        leaving = out_of_bounds(changed, loops, tuple((name, known[name].shape) for name in used))
        for sentence in (*(problem.sentence for problem in problems), *(sentence for sentence, _ in leaving)):
            return sentence
    return None


@functools.lru_cache(maxsize=4096)
def _intricate(program: Program, name: str, axis: int) -> tuple[tuple[Node, Equation], ...]:
    """The equations with a subscript along a dimension that its loops alone don't show to lie within it."""
    tensor, _ = declarations(program)[name]
    return tuple(
        (node, equation)
        for node, equation in touching(program, name)
        if not _divides(equation, tensor, axis, tuple(node.extents.items()))
    )


@functools.lru_cache(maxsize=16384)
def _divides(equation: Equation, tensor: Tensor, axis: int, loops: tuple[tuple[str, int], ...]) -> bool:
    """Are all its subscripts along a dimension affine and within it by the extents of the loops alone?"""
    for expr in expressions(equation):
        for access in accesses(expr):
            if access.tensor == tensor.name:
                subscript = access.subscripts[axis]
                reach = interval(subscript, dict(loops))
                if affine(subscript) is None or reach is None or reach[0] < 0 or reach[1] >= tensor.shape[axis]:
                    return False
    return True


def _promise_refusal(program: Program, name: str, layout: Layout, where: str) -> Refusal | None:
    """Loops of a promised kind must still be seen to carry nothing: digits of a sum say less than the sum."""
    if not any(part.tile for part in layout):
        return None
    for statement in program.body:
        kinds = promised(statement) if name in written(statement) else frozenset()
        if not kinds:
            continue
        used = {a for e in equations(statement) for x in expressions(e) for a in accesses(x) if a.tensor == name}
        if Kind.BOUND in kinds and len(used) > 1:
            return Refusal("kind", f"{where}: threads that write and read it differently would no longer be told apart")
        broken = broken_promise(program, relaid(program, name, name, layout))
        if broken is not None:
            return Refusal(broken.code, f"{where}: {broken.sentence}")
    return None


def _size_refusal(program: Program, tensor: Tensor, nbytes: int, more: int, where: str) -> Refusal | None:
    """Say which limit a tensor of `nbytes` would break, the program growing by `more`."""
    if nbytes > limits.MAX_TEMPORARY_BYTES:
        return Refusal("size", f"{where}: it would take {nbytes:,} bytes, the limit is {limits.MAX_TEMPORARY_BYTES:,}")
    every, shared = _bytes(program, tensor.name)
    if every + more > limits.MAX_PROGRAM_BYTES:
        return Refusal("size", f"{where}: all tensors would take {every + more:,} bytes")
    if tensor.scope is Scope.SHARED and shared + more > max(shared, limits.MAX_SHARED_BYTES):
        return Refusal("size", f"{where}: a block would have {shared + more:,} bytes of shared tensors")
    return None


@functools.lru_cache(maxsize=4096)
def _bytes(program: Program, name: str) -> tuple[int, int]:
    """Bytes of all tensors, and of the shared ones in the top-level nest that declares this one."""
    every = declarations(program)
    here = every[name][1][:1]
    shared = (known.nbytes for known, path in every.values() if known.scope is Scope.SHARED and path[:1] == here)
    return sum(known.nbytes for known, _ in every.values()), sum(shared)


def _step(program: Program, name: str, layout: Layout) -> str:
    """How far the innermost loop that moves along a tensor steps in memory before and after, or nothing."""
    shape = declarations(program)[name][0].shape
    for node, equation in touching(program, name):
        access = next(a for expr in expressions(equation) for a in accesses(expr) if a.tensor == name)
        if all(map(is_quasi_affine, access.subscripts)):
            start = dict.fromkeys(node.extents, 0)
            for index in (loop.index for loop in reversed(node.loops) if loop.extent > 1):
                was, now = (
                    abs(address(access, shape, layout, {**start, index: 1}) - address(access, shape, layout, start))
                    for layout in (tuple(map(Part, range(len(shape)))), layout)
                )
                if was and was != now:
                    return f", so that a step of {index} moves by {counted(now, 'element')} in place of {was}"
    return ""


@functools.lru_cache(maxsize=4096)
def _not_copyable(program: Program, name: str) -> Refusal | None:
    """Say why a tensor is not copied to another layout, whichever that is."""
    tensor, _ = declarations(program)[name]
    if tensor.role is Role.TEMPORARY:
        return Refusal("scope", "a temporary needs no copy; set_storage_layout changes its layout")
    found = [equation for _, equation in touching(program, name)]
    if all(equation.assign is Assign.SET and isinstance(equation.value, Access) for equation in found):
        return Refusal("no_effect", "nothing computes with it, it is only copied")
    if sum(isinstance(node.statement, Equation) for node in walk(program)) >= limits.MAX_EQUATIONS:
        return Refusal("size", f"the program has {limits.MAX_EQUATIONS} equations, the limit, already")
    for equation in found if tensor.role is Role.OUTPUT and name not in starts(program) else ():
        target = references(equation)[0]
        plain = not target.opaque and all(map(is_quasi_affine, target.access.subscripts))
        if equation.target.tensor == name and not plain:
            return Refusal("structure", "which of its elements are written depends on data")
    return None


@register
class LayoutTransformation(Strategy):
    """Copy an input or parameter to a tensor of another layout and read that; write an output so and copy it back.

    Requires:
        1. The tensor is an input, parameter or output that some equation computes with, not only copies.
        2. The layout fits its shape and changes the order of its elements in memory. Tiles that don't divide an
           extent are padded; what pads is never read.
        3. Every element of an output is written, wherever data and guards lead.

    Rewrite:
        L_i,j C[i] += A[j,i]   ->   L_i,j D[i,j] = A[j,i]
                                    L_i,j C[i] += D[i,j]
    """

    name = "layout_transformation"
    level = Level.MEMORY
    menu = 128
    site_kinds = ("tensor",)
    parameters = (_LAYOUT,)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for tensor in program.tensors:
            if tensor.role is not Role.TEMPORARY:
                for layout in layouts(tensor):
                    yield (tensor.name,), (layout,)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        name, where = site[0], f"{args[0]} of {site[0]}"
        unfit = _not_copyable(program, name)
        if unfit is not None:
            return Refusal(unfit.code, f"{where}: {unfit.sentence}")
        tensor, _ = declarations(program)[name]
        layout = parse_layout(args[0], tensor)
        if isinstance(layout, Refusal):
            return layout
        nbytes = math.prod(shape_of(layout, tensor.shape)) * tensor.dtype.itemsize
        return (
            _size_refusal(program, tensor, nbytes, nbytes, where)
            or _tile_refusal(program, name, layout, where)
            or _promise_refusal(program, name, layout, where)
        )

    def _stored(self, program: Program, tensor: Tensor, layout: Layout) -> Tensor:
        return Tensor(fresh_tensor(program), tensor.dtype, shape_of(layout, tensor.shape))

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        tensor, _ = declarations(program)[site[0]]
        layout = parse_layout(args[0], tensor)
        assert not isinstance(layout, Refusal)
        stored = self._stored(program, tensor, layout)
        outwards = tensor.role is Role.OUTPUT
        tops = [node.path[0] for node, _ in touching(program, tensor.name)]
        position = tops[-1] + 1 if outwards else tops[0]
        transfer = _copy(program, tensor, stored.name, layout, outwards)
        after = relaid(program, tensor.name, stored.name, layout)
        body = (*after.body[:position], transfer, *after.body[position:])
        return Outcome(Program(Block(body, (*program.tensors, stored))))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        tensor, _ = declarations(program)[site[0]]
        layout = parse_layout(args[0], tensor)
        assert not isinstance(layout, Refusal)
        shape = "x".join(map(str, shape_of(layout, tensor.shape)))
        copied = "written so and copied back" if tensor.role is Role.OUTPUT else "copied"
        return (
            f"Store {site[0]} ({tensor.nbytes} bytes, {copied} once) as {shape} by {args[0]}"
            f"{_step(program, site[0], layout)}."
        )


@register
class SetStorageLayout(Strategy):
    """Store a temporary in another layout: its producers write it so and its consumers read it so.

    Requires:
        1. The tensor is a temporary in use.
        2. The layout fits its shape and changes the order of its elements in memory. Tiles that don't divide an
           extent are padded; what pads is never read.
        3. Loops that were promised to carry no dependence can still be shown to carry none.

    Rewrite:
        L_i,j D[i,j] = A[i] B[j]   ->   L_i,j D[j,i] = A[i] B[j]
        L_j,i C[j] += D[i,j]            L_j,i C[j] += D[j,i]
    """

    name = "set_storage_layout"
    level = Level.MEMORY
    menu = 256
    site_kinds = ("tensor",)
    parameters = (_LAYOUT,)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for name, (tensor, _) in declarations(program).items():
            if tensor.role is Role.TEMPORARY:
                for layout in layouts(tensor):
                    yield (name,), (layout,)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        name, where = site[0], f"{args[0]} of {site[0]}"
        tensor, _ = declarations(program)[name]
        if tensor.role is not Role.TEMPORARY:
            return Refusal("scope", f"{where}: it is an {tensor.role}; layout_transformation copies it")
        layout = parse_layout(args[0], tensor)
        if isinstance(layout, Refusal):
            return layout
        if not touching(program, name):
            return Refusal("no_effect", f"{where}: nothing uses it")
        nbytes = replace(tensor, shape=shape_of(layout, tensor.shape)).nbytes
        return (
            _size_refusal(program, tensor, nbytes, nbytes - tensor.nbytes, where)
            or _tile_refusal(program, name, layout, where)
            or _promise_refusal(program, name, layout, where)
        )

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        tensor, home = declarations(program)[site[0]]
        layout = parse_layout(args[0], tensor)
        assert not isinstance(layout, Refusal)
        stored = replace(tensor, shape=shape_of(layout, tensor.shape))

        def declare(block: Block) -> Block:
            return replace(block, tensors=tuple(stored if known == tensor else known for known in block.tensors))

        return Outcome(update_block(relaid(program, site[0], site[0], layout), home, declare))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        tensor, _ = declarations(program)[site[0]]
        layout = parse_layout(args[0], tensor)
        assert not isinstance(layout, Refusal)
        was, now = ("x".join(map(str, shape)) for shape in (tensor.shape, shape_of(layout, tensor.shape)))
        return (
            f"Store {site[0]} as {now} in place of {was} by {args[0]}, without a copy{_step(program, site[0], layout)}."
        )
