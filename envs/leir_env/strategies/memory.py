"""Strategies that place data: per-tile caches, storage next to its use, producers next to their consumer."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from envs.leir_env.ir import (
    Assign,
    Block,
    Equation,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Scope,
    Tensor,
)
from envs.leir_env.layout import touching
from envs.leir_env.legality import parallel_refusal, read, starts, touched, written
from envs.leir_env.proofs import undefined
from envs.leir_env.region import Region, Use, covers, region, visited_once
from envs.leir_env.strategies.base import Exactness, Level, Outcome, Refusal, Strategy, counted, register
from envs.leir_env.strategies.boxes import (
    MAX_PRIVATE_BYTES,
    SCOPE,
    SCOPES,
    box_in,
    copy_equation,
    copy_loops,
    fills,
    lanes,
    localised,
    outer_extents,
    scope_refusal,
    uses_in,
)
from envs.leir_env.strategies.graph import drop_tensor
from envs.leir_env.strategies.loops import Args, Site, loop_at, loop_sites
from envs.leir_env.tree import (
    Node,
    Path,
    at,
    declarations,
    fresh_tensor,
    indices,
    loops_below,
    splice,
    walk,
)
from envs.leir_env.verify import RULES


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
        L_i,k C[i] += A[i,k]   ->   L_i [
                                      D:f32.l
                                      L_k D += A[i,k]
                                      C[i] = D
                                    ]
    """

    name = "cache_read_write"
    level = Level.MEMORY
    menu = 256
    site_kinds = ("tensor", "loop")
    parameters = (SCOPE,)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        declared = declarations(program)
        for site, node, loop in loop_sites(program):
            inner = {below.index for below in loops_below(loop)[1:]}
            for name in sorted(touched(loop)) if inner else ():
                # Only what some loop inside uses again and again is worth a copy.
                moving = frozenset().union(
                    *(indices(s) for use in uses_in(loop, name, node) for s in use.access.subscripts)
                )
                if name in declared and not inner <= moving:
                    threads = any(inner.axis and not inner.axis.is_block for inner in loops_below(loop)[1:])
                    yield (name, site), ("shared" if threads else "local",)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        plan = self._plan(program, site)
        if isinstance(plan, Refusal):
            return plan
        node, loop = loop_at(program, site[1])
        nbytes = plan[0].size * plan[0].tensor.dtype.itemsize
        where = f"cache {site[0]} at {site[1]}"
        return (
            scope_refusal(program, node, loop, SCOPES[args[0]], nbytes, where)
            or self._too_many_copies(program, site, plan, where)
            or self._breaks_promise(program, site, args, plan)
        )

    def _too_many_copies(
        self, program: Program, site: Site, plan: tuple[Region, Assign | None, Exactness], where: str
    ) -> Refusal | None:
        """The transfer may stand in loops that are unrolled."""
        node, loop = loop_at(program, site[1])
        if not any(outer.kind is Kind.UNROLLED for outer in (*node.loops, loop)):
            return None
        found = RULES["kind"].check(self._with_copy(program, site, plan[0], plan[1]), "llvm")
        return next((Refusal("size", f"{where}: {sentence}") for sentence, *_ in found), None)

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
        shared = lanes(node, loop)
        if shared is not None:
            return shared
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
            return self._unwritten(program, site, tensor, home, box, where) or (box, None, Exactness.EXACT)
        return self._write_back(program, site, box, found, (*node.loops[len(home) :], loop))

    def _unwritten(
        self, program: Program, site: Site, tensor: Tensor, home: Path, box: Region, where: str
    ) -> Refusal | None:
        """A box may hold elements that the loop skips, and nothing wrote."""
        if tensor.role in (Role.INPUT, Role.PARAMETER) or tensor.name in starts(program):
            return None
        node, _ = loop_at(program, site[1])
        if any(written_whole(writer, tensor, home, node.path) for writer in walk(program)):
            return None
        result = self._with_copy(program, site, box, None)
        problems = undefined(result, frozenset(starts(result)))
        sentence = next((sentence for sentence, _, name in problems if name == tensor.name), None)
        return None if sentence is None else Refusal("structure", f"{where}: {sentence}")

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
        # Where it starts implicitly, what reads it before it is written back finds the identity there.
        alone = once and not elsewhere and covers(box, loops) and not _read_before(program, name, node.path)
        if first.writes and first.equation.assign is Assign.SET:
            inner = {index: extent for index, extent in first.around.items() if index not in dict(box.outer)}
            whole = region(box.tensor, (first,), outer_extents(node, loop))
            full = not isinstance(whole, str) and whole == box and not first.equation.guard
            if full and fills(first.access, box, inner):
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
        return Outcome(self._with_copy(program, site, box, outwards, SCOPES[args[0]]), exactness)

    def _with_copy(
        self, program: Program, site: Site, box: Region, outwards: Assign | None, scope: Scope = Scope.LOCAL
    ) -> Program:
        name = site[0]
        node, loop = loop_at(program, site[1])
        copy = fresh_tensor(program)
        found = self._uses(loop, name, node)
        shape = tuple(box.extents[d] for d in box.kept)
        private = Tensor(copy, box.tensor.dtype, shape, scope)
        body = localised(loop.block, name, copy, box, outer_extents(node, loop))
        transfer = copy_equation(box, copy, copy_loops(program, node, box, found), outwards)
        body = (transfer, *body) if outwards is None else (*body, transfer)
        block = Block(body, (*loop.block.tensors, private))
        return splice(program, node.path, (replace(loop, block=block),))

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


def written_whole(writer: Node, tensor: Tensor, home: Path, before: Path) -> bool:
    """Has an equation set every element of a tensor by its own loops before the statement at `before` starts?"""
    equation, depth = writer.statement, len(home) + 1
    if not isinstance(equation, Equation) or equation.target.tensor != tensor.name or equation.guard:
        return False
    inner = {loop.index: loop.extent for loop in writer.loops[len(home) :]}
    names = [s.name for s in equation.target.subscripts if isinstance(s, Index)]
    runs = tuple(inner.get(name) for name in names) == tensor.shape and len(set(names)) == len(names)
    return runs and writer.path[:depth] < before[:depth]


def _read_before(program: Program, name: str, path: Path) -> bool:
    """May an equation outside the loop at `path` read a tensor before some iteration of the loop?"""
    _, home = declarations(program)[name]
    within = path[: len(home) + 1]
    return any(
        isinstance(other.statement, Equation)
        and name in read(other.statement)
        and other.path[: len(path)] != path
        and (other.path < path or other.path[: len(within)] == within)
        for other in walk(program)
    )


@functools.lru_cache(maxsize=4096)
def _guarded_write(program: Program, name: str) -> bool:
    """Is some equation of a tensor guarded, so that elements may be left unwritten?"""
    return any(
        isinstance(node.statement, Equation) and node.statement.target.tensor == name and bool(node.statement.guard)
        for node in walk(program)
    )


@register
class SetStorageScope(Strategy):
    """Declare a temporary in the innermost loop that holds all its uses, keeping only the part used there.

    Requires:
        1. The tensor is a temporary, and all its uses lie in one loop inside the block that declares it.
        2. No value passes from one iteration to another: different iterations use different elements, or each
           iteration sets what it reads first.

    Rewrite:
        D in the header             L_i [
        L_i [                         D:f32.l
          D[i] = exp(A[i])     ->     D = exp(A[i])
          C[i] = D[i] + D[i]          C[i] = D + D
        ]                           ]
    """

    name = "set_storage_scope"
    level = Level.MEMORY
    site_kinds = ("tensor",)
    parameters = (SCOPE,)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for name, (tensor, _) in declarations(program).items():
            if tensor.role is Role.TEMPORARY:
                yield (name,), ("local",)
                if any(isinstance(node.statement, Loop) and node.statement.axis for node in walk(program)):
                    yield (name,), ("shared",)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        plan = self._plan(program, site[0])
        if isinstance(plan, Refusal):
            return plan
        path, box = plan
        loop = at(program, path)
        assert isinstance(loop, Loop)
        node = Node(path, loop, tuple(_loops_to(program, path)))
        nbytes = box.size * box.tensor.dtype.itemsize
        where = f"store {site[0]} in {loop.index}"
        return scope_refusal(program, node, loop, SCOPES[args[0]], nbytes, where)

    def _plan(self, program: Program, name: str) -> tuple[Path, Region] | Refusal:
        tensor, home = declarations(program)[name]
        if tensor.role is not Role.TEMPORARY:
            return Refusal("scope", f"store {name} elsewhere: it is an {tensor.role}, not a temporary")
        users = touching(program, name)
        if not users:
            return Refusal("no_effect", f"store {name} elsewhere: nothing uses it")
        path = _common_loop([node.path for node, _ in users])
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
            and fills(first.access, box, inner)
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
        private = Tensor(name, box.tensor.dtype, shape, SCOPES[args[0]])
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
