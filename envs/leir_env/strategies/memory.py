"""Strategies that place data: per-tile caches, storage next to its use, producers next to their consumer."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from envs.leir_env.ir import (
    Access,
    Assign,
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
from envs.leir_env.legality import parallel_refusal, read, written
from envs.leir_env.region import Region, Use, covers, region, uses, visited_once
from envs.leir_env.simplify import linear
from envs.leir_env.strategies.base import Exactness, Level, Outcome, Parameter, Refusal, Strategy, counted, register
from envs.leir_env.strategies.graph import drop_tensor
from envs.leir_env.strategies.loops import Args, Site, loop_at, loop_sites
from envs.leir_env.tree import (
    Node,
    Path,
    at,
    declarations,
    fresh_index,
    fresh_tensor,
    indices,
    loops_below,
    map_accesses,
    nest,
    splice,
    walk,
)

MAX_PRIVATE_BYTES = 8 * 2**20
"""A private copy larger than this is not a cache."""

_SCOPES = {"local": Scope.LOCAL, "shared": Scope.SHARED, "global": Scope.GLOBAL}
_SCOPE = Parameter("scope", "where it lives", tuple(_SCOPES))


def outer_extents(node: Node, loop: Loop) -> dict[str, int]:
    """Extents of the loops around a block: those around its loop, and its own."""
    return {**node.extents, loop.index: loop.extent}


def uses_in(loop: Loop, name: str, node: Node) -> tuple[Use, ...]:
    """Every use of a tensor in the body of a loop."""
    return _uses_in(loop, name, tuple(node.extents.items()))


def box_in(loop: Loop, tensor: Tensor, node: Node) -> Region | str:
    """The part of a tensor that one iteration of a loop uses."""
    return _box_in(loop, tensor, tuple(node.extents.items()))


@functools.lru_cache(maxsize=16384)
def _uses_in(loop: Loop, name: str, around: tuple[tuple[str, int], ...]) -> tuple[Use, ...]:
    outer = {**dict(around), loop.index: loop.extent}
    return tuple(use for child in loop.block.body for use in uses(child, name, outer))


@functools.lru_cache(maxsize=16384)
def _box_in(loop: Loop, tensor: Tensor, around: tuple[tuple[str, int], ...]) -> Region | str:
    return region(tensor, _uses_in(loop, tensor.name, around), {**dict(around), loop.index: loop.extent})


def _lanes(node: Node, loop: Loop) -> Refusal | None:
    """Nothing may be declared where vector lanes would share it."""
    for outer in (*node.loops, loop):
        if outer.kind is Kind.VECTOR:
            return Refusal("scope", f"a tensor declared inside V_{outer.index} would be shared by its lanes")
    return None


def localised(block: Block, name: str, copy: str, box: Region, inner: Mapping[str, int]) -> tuple[Statement, ...]:
    """The statements of `block` with every access of tensor `name` turned to its private copy."""

    def visit(statement: Statement, extents: Mapping[str, int]) -> Statement:
        if isinstance(statement, Loop):
            below = {**extents, statement.index: statement.extent}
            body = tuple(visit(child, below) for child in statement.block.body)
            return replace(statement, block=replace(statement.block, body=body))

        def change(access: Access) -> Expr:
            return Access(copy, box.local(access, extents)) if access.tensor == name else access

        target = map_accesses(statement.target, change)
        assert isinstance(target, Access)
        guard = tuple(map_accesses(condition, change) for condition in statement.guard)
        return Equation(target, statement.assign, map_accesses(statement.value, change), guard)

    return tuple(visit(statement, inner) for statement in block.body)


def copy_loops(program: Program, node: Node, box: Region, found: tuple[Use, ...]) -> tuple[Loop, ...]:
    """One serial loop for each kept dimension of a box, named after the index that runs over it where one does."""
    loops: list[Loop] = []
    assert isinstance(node.statement, Loop)
    empty = Block(())
    for d in box.kept:
        extent = box.extents[d]
        names = [
            s.name
            for use in found
            if isinstance(s := use.access.subscripts[d], Index) and use.around.get(s.name) == extent
        ]
        terms = [
            atom.name
            for use in found
            for atom, _ in linear(use.access.subscripts[d], use.around).terms
            if isinstance(atom, Index) and use.around.get(atom.name) == extent
        ]
        base = (names or terms or ["c"])[0]
        here = replace(node.statement, block=empty)
        place = Node(node.path, here, (*node.loops, *loops))
        loops.append(Loop(Kind.SERIAL, fresh_index(program, base, extent, place), extent, empty))
    return tuple(loops)


def copy_equation(box: Region, copy: str, loops: tuple[Loop, ...], outwards: Assign | None) -> Statement:
    """The nest that fills a private copy from its tensor, or writes it back by `outwards`."""
    position: dict[int, Expr] = {d: Index(loop.index) for d, loop in zip(box.kept, loops, strict=True)}
    private = Access(copy, tuple(position.values()))
    whole = Access(box.tensor.name, box.element(position))
    guard = box.guards(position)
    if outwards is None:
        equation = Equation(private, Assign.SET, whole, guard)
    else:
        equation = Equation(whole, outwards, private, guard)
    return nest(loops, Block((equation,)))


@register
class CacheReadWrite(Strategy):
    """Keep the part of a tensor that one iteration of a loop touches in a private buffer.

    A tensor that is only read is copied in first (and comes out contiguous: a packed panel). One that is
    written is accumulated privately and written back at the end.

    Requires:
        1. The tensor is declared outside the loop, and its accesses in the body form a box that moves with the
           loops around.
        2. The box is smaller than the tensor and at most 8 MB.
        3. If it is written: the body first sets the whole box, or accumulates by one operator without reading it back,
           or no other iteration and no other equation touches the box.

    Rewrite:
        L_i L_k C_i += A_{i,k}     ->    L_i [
                                           D:f32.l
                                           L_k D += A_{i,k}
                                           C_i = D
                                         ]
    """

    name = "cache_read_write"
    level = Level.MEMORY
    site_kinds = ("tensor", "loop")
    parameters = (_SCOPE,)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        declared = declarations(program)
        for site, node, loop in loop_sites(program):
            inner = {below.index for below in loops_below(loop)[1:]}
            for name in sorted(read(loop) | written(loop)) if inner else ():
                # Only what some loop inside uses again and again is worth a copy.
                moving = frozenset().union(
                    *(indices(s) for use in uses_in(loop, name, node) for s in use.access.subscripts)
                )
                if name in declared and not inner <= moving:
                    yield (name, site), ("local",)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        plan = self._plan(program, site)
        return plan if isinstance(plan, Refusal) else self._breaks_promise(program, site, args, plan)

    def _breaks_promise(
        self, program: Program, site: Site, args: Args, plan: tuple[Region, Assign | None, Exactness]
    ) -> Refusal | None:
        """Boxes that are written back must not meet between iterations that run at once."""
        node, loop = loop_at(program, site[1])
        shared = {
            depth: outer
            for depth, outer in enumerate((*node.loops, loop), 1)
            if outer.kind in (Kind.PARALLEL, Kind.BOUND)
        }
        if plan[1] is None or not shared or visited_once(plan[0], tuple(shared.values())):
            return None
        result = self.rewrite(program, site, args).program
        for depth, outer in shared.items():
            problem = parallel_refusal(result, node.path[:depth])
            if problem is not None:
                where = f"cache {site[0]} at {site[1]}: boxes overlap between iterations of {outer.index}"
                return Refusal("dependence", f"{where}: {problem}")
        return None

    def _plan(self, program: Program, site: Site) -> tuple[Region, Assign | None, Exactness] | Refusal:
        """The box, how it is written back (None: it is read only), and how exact that is."""
        name = site[0]
        node, loop = loop_at(program, site[1])
        tensor, home = declarations(program)[name]
        where = f"cache {name} at {site[1]}"
        lanes = _lanes(node, loop)
        if lanes is not None:
            return lanes
        if len(home) > len(node.path) or home[: len(node.path)] == node.path:
            return Refusal("scope", f"{where}: {name} is declared inside the loop already")
        found = self._uses(loop, name, node)
        if not found:
            return Refusal("no_effect", f"{where}: the loop does not touch {name}")
        box = box_in(loop, tensor, node)
        if isinstance(box, str):
            return Refusal("structure", f"{where}: {box}")
        if box.size >= tensor.size:
            return Refusal(
                "no_effect", f"{where}: the whole tensor of {tensor.size} elements is touched in one iteration"
            )
        size = box.size * tensor.dtype.itemsize
        if size > MAX_PRIVATE_BYTES:
            return Refusal("size", f"{where}: the copy would take {size} bytes, the limit is {MAX_PRIVATE_BYTES}")
        if name not in written(loop):
            if tensor.role not in (Role.INPUT, Role.PARAMETER) and _guarded_write(program, name):
                return Refusal("structure", f"{where}: {name} is written under a guard, so the box may hold nothing")
            return box, None, Exactness.EXACT
        return self._write_back(program, site, box, found, (*node.loops[len(home) :], loop))

    def _uses(self, loop: Loop, name: str, node: Node) -> tuple[Use, ...]:
        return uses_in(loop, name, node)

    def _write_back(
        self, program: Program, site: Site, box: Region, found: tuple[Use, ...], loops: tuple[Loop, ...]
    ) -> tuple[Region, Assign, Exactness] | Refusal:
        name, where = site[0], f"cache {site[0]} at {site[1]}"
        node, loop = loop_at(program, site[1])
        first = found[0]
        once = visited_once(box, loops)
        elsewhere = any(
            other.path[: len(node.path)] != node.path
            for other in walk(program)
            if isinstance(other.statement, Equation) and name in written(other.statement)
        )
        alone = once and not elsewhere and covers(box, loops)
        if first.writes and first.equation.assign is Assign.SET:
            inner = {index: extent for index, extent in first.around.items() if index not in dict(box.outer)}
            whole = region(box.tensor, (first,), outer_extents(node, loop))
            full = not isinstance(whole, str) and whole == box and not first.equation.guard
            if full and _fills(first.access, box, inner):
                return box, Assign.SET, Exactness.EXACT
            return Refusal("structure", f"{where}: its first equation does not set every element of the box")
        operators = {use.equation.assign for use in found if use.writes}
        if not first.writes or Assign.SET in operators or len(operators) > 1 or not all(u.writes for u in found):
            if first.writes and alone:
                return box, Assign.SET, Exactness.EXACT
            return Refusal("dependence", f"{where}: {name} is read in the loop before the loop is done with it")
        if alone:
            return box, Assign.SET, Exactness.EXACT
        operator = operators.pop()
        fresh = once and not elsewhere  # what it adds to is the identity
        exact = fresh or operator in (Assign.MAX, Assign.MIN) or not box.tensor.dtype.is_float
        return box, operator, Exactness.EXACT if exact else Exactness.REASSOCIATES

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        plan = self._plan(program, site)
        assert not isinstance(plan, Refusal)
        box, outwards, exactness = plan
        name = site[0]
        node, loop = loop_at(program, site[1])
        copy = fresh_tensor(program)
        found = self._uses(loop, name, node)
        shape = tuple(box.extents[d] for d in box.kept)
        private = Tensor(copy, box.tensor.dtype, shape, _SCOPES[args[0]])
        body = localised(loop.block, name, copy, box, outer_extents(node, loop))
        transfer = copy_equation(box, copy, copy_loops(program, node, box, found), outwards)
        body = (transfer, *body) if outwards is None else (*body, transfer)
        block = Block(body, (*loop.block.tensors, private))
        return Outcome(splice(program, node.path, (replace(loop, block=block),)), exactness)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        plan = self._plan(program, site)
        assert not isinstance(plan, Refusal)
        box, outwards, _ = plan
        size = box.size * box.tensor.dtype.itemsize
        use = "read" if outwards is None else "accumulated"
        return (
            f"Keep the {counted(box.size, 'element')} ({size} bytes) of {site[0]} that one iteration of {site[1]} "
            f"works on in a contiguous {args[0]} buffer, where they are {use} repeatedly."
        )


@functools.lru_cache(maxsize=4096)
def _guarded_write(program: Program, name: str) -> bool:
    """Is some equation of a tensor guarded, so that elements may be left unwritten?"""
    return any(
        isinstance(node.statement, Equation) and node.statement.target.tensor == name and bool(node.statement.guard)
        for node in walk(program)
    )


def _fills(target: Access, box: Region, inner: Mapping[str, int]) -> bool:
    """Does one sweep of the inner loops write every element of the box?"""
    sweep = tuple(Loop(Kind.SERIAL, name, extent, Block(())) for name, extent in inner.items())
    around = {**dict(box.outer), **inner}
    local = tuple(
        linear(subscript, around).plus(base, -1) for subscript, base in zip(target.subscripts, box.base, strict=True)
    )
    shape = replace(box.tensor, shape=box.extents)
    return covers(Region(local, (1,) * len(local), shape, tuple(around.items())), sweep)


@register
class SetStorageScope(Strategy):
    """Declare a temporary in the innermost loop that holds all its uses, keeping only the part used there.

    Requires:
        1. The tensor is a temporary, and all its uses lie in one loop inside the block that declares it.
        2. No value passes from one iteration to another: different iterations use different elements, or each
           iteration sets what it reads first.

    Rewrite:
        D in the header                  L_i [
        L_i [                              D:f32.l
          D_i = exp(A_i)           ->      D = exp(A_i)
          C_i = D_i + D_i                  C_i = D + D
        ]                                ]
    """

    name = "set_storage_scope"
    level = Level.MEMORY
    site_kinds = ("tensor",)
    parameters = (_SCOPE,)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for name, (tensor, _) in declarations(program).items():
            if tensor.role is Role.TEMPORARY:
                yield (name,), ("local",)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        plan = self._plan(program, site[0])
        return plan if isinstance(plan, Refusal) else None

    def _plan(self, program: Program, name: str) -> tuple[Path, Region] | Refusal:
        tensor, home = declarations(program)[name]
        if tensor.role is not Role.TEMPORARY:
            return Refusal("scope", f"store {name} elsewhere: it is an {tensor.role}, not a temporary")
        touching = [
            node
            for node in walk(program)
            if isinstance(node.statement, Equation) and name in read(node.statement) | written(node.statement)
        ]
        if not touching:
            return Refusal("no_effect", f"store {name} elsewhere: nothing uses it")
        path = _common_loop([node.path for node in touching])
        while len(path) > len(home) and self._declares_in_lanes(program, path):
            path = path[:-1]
        if len(path) <= len(home):
            return Refusal(
                "no_effect", f"store {name} elsewhere: its uses share no loop inside the block that declares it"
            )
        loop = at(program, path)
        assert isinstance(loop, Loop)
        node = Node(path, loop, tuple(_loops_to(program, path)))
        found = uses_in(loop, name, node)
        box = box_in(loop, tensor, node)
        if isinstance(box, str):
            return Refusal("structure", f"store {name} in {loop.index}: {box}")
        return self._private(program, name, path, node, box, found, home)

    def _declares_in_lanes(self, program: Program, path: Path) -> bool:
        loop = at(program, path)
        assert isinstance(loop, Loop)
        return any(outer.kind is Kind.VECTOR for outer in (*_loops_to(program, path), loop))

    def _private(
        self,
        program: Program,
        name: str,
        path: Path,
        node: Node,
        box: Region,
        found: tuple[Use, ...],
        home: Path,
    ) -> tuple[Path, Region] | Refusal:
        loop = node.statement
        assert isinstance(loop, Loop)
        loops = (*node.loops[len(home) :], loop)
        first = found[0]
        if visited_once(box, loops):
            return path, box
        whole = region(box.tensor, (first,), outer_extents(node, loop))
        inner = {i: extent for i, extent in first.around.items() if i not in dict(box.outer)}
        if (
            first.writes
            and first.equation.assign is Assign.SET
            and not first.equation.guard
            and whole == box
            and _fills(first.access, box, inner)
        ):
            return path, box
        return Refusal("dependence", f"store {name} in {loop.index}: its values pass from one iteration to another")

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        plan = self._plan(program, site[0])
        assert not isinstance(plan, Refusal)
        path, box = plan
        name = site[0]
        loop = at(program, path)
        assert isinstance(loop, Loop)
        node = Node(path, loop, tuple(_loops_to(program, path)))
        body = localised(loop.block, name, name, box, outer_extents(node, loop))
        shape = tuple(box.extents[d] for d in box.kept)
        private = Tensor(name, box.tensor.dtype, shape, _SCOPES[args[0]])
        without = drop_tensor(program, name)
        kept = at(without, path)
        assert isinstance(kept, Loop)
        block = Block(body, (*kept.block.tensors, private))
        return Outcome(splice(without, path, (replace(kept, block=block),)))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        plan = self._plan(program, site[0])
        assert not isinstance(plan, Refusal)
        path, box = plan
        loop = at(program, path)
        assert isinstance(loop, Loop)
        size = box.tensor.dtype.itemsize
        return (
            f"Store {site[0]} in {args[0]} memory inside {loop.index}: {box.size * size} bytes at a time in place of "
            f"{box.tensor.nbytes}, so that it stays in registers or the nearest cache."
        )


def _common_loop(paths: list[Path]) -> Path:
    """The path of the innermost loop around all the equations at `paths` (empty: none)."""
    common = paths[0][:-1]
    for path in paths[1:]:
        shared = 0
        for a, b in zip(common, path[:-1], strict=False):
            if a != b:
                break
            shared += 1
        common = common[:shared]
    return common


def _loops_to(program: Program, path: Path) -> Iterator[Loop]:
    """The loops around the statement at `path`, from the outside in."""
    for depth in range(1, len(path)):
        loop = at(program, path[:depth])
        assert isinstance(loop, Loop)
        yield loop


__all__ = ["CacheReadWrite", "SetStorageScope"]
