"""A strategy that packs what a loop's iteration reads in the order in which the loops below pass over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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
    Tensor,
)
from envs.leir_env.legality import read
from envs.leir_env.region import Region, Use
from envs.leir_env.simplify import Linear, linear, simplify
from envs.leir_env.strategies.base import Level, Outcome, Refusal, Strategy, counted, register
from envs.leir_env.strategies.boxes import MAX_PRIVATE_BYTES, box_in, lanes, uses_in
from envs.leir_env.strategies.loops import Args, Site, loop_at, loop_sites
from envs.leir_env.tree import (
    Node,
    accesses,
    declarations,
    fresh_index,
    fresh_tensor,
    indices,
    loops_below,
    map_accesses,
    map_expressions,
    nest,
    splice,
)


@dataclass(frozen=True, slots=True)
class Run:
    """A dimension of the packed buffer: what one loop, or all loops that move along one dimension, run over."""

    axis: int
    """The dimension of the tensor that it moves along."""
    step: int
    """Elements of that dimension between neighbours."""
    extent: int
    index: str
    """The innermost index that moves along it."""
    name: str
    """What a loop over it is called."""
    subscript: Expr
    """Its subscript in the packed buffer."""


@dataclass(frozen=True, slots=True)
class Packing:
    """What is packed, and the dimensions of the buffer as the loops pass over them, the outermost first."""

    box: Region
    access: Access
    runs: tuple[Run, ...]

    @property
    def size(self) -> int:
        size = 1
        for run in self.runs:
            size *= run.extent
        return size


def _runs(use: Use, box: Region, axis: int) -> tuple[Run, ...]:
    """Split the movement along a dimension by loops where these count like digits; otherwise it stays whole."""
    outer = dict(box.outer)
    form = linear(use.access.subscripts[axis], use.around)
    inner = tuple(term for term in form.terms if not indices(term[0]) <= outer.keys())
    runs: list[Run] = []
    reach = 1
    for atom, step in sorted(inner, key=lambda term: term[1]):
        if not isinstance(atom, Index) or step != reach:
            break
        extent = use.around[atom.name]
        runs.append(Run(axis, step, extent, atom.name, atom.name, atom))
        reach *= extent
    if len(runs) == len(inner) and reach == box.extents[axis]:
        return tuple(runs[::-1])
    moving = {name for atom, _ in inner for name in indices(atom)}
    last = [index for index in use.around if index in moving][-1]
    place = form.plus(box.base[axis], -1).expression()
    extent = box.extents[axis]
    return (Run(axis, 1, extent, last, last if use.around[last] == extent else "c", place),)


@register
class ArrayPacking(Strategy):
    """Copy the part of an input that one iteration of a loop reads into a buffer ordered as the loops below pass it.

    Where `cache_read_write` keeps the order of the dimensions, here the innermost loop finds its elements side by
    side. Loops that count like digits along one dimension get a dimension of the buffer each (panels).

    Requires:
        1. The tensor is an input or parameter, read in the loop by one access, whose subscripts there form a box that
           moves with the loops around.
        2. The box is smaller than the tensor and takes at most 8 MB.
        3. The loops pass over it in another order than it is stored in.

    Rewrite:
        L_i,j,k                     L_i [
          C[i,j] += A[i,k,j]   ->     D:f32.l[j,k]
                                      L_j,k D[j,k] = A[i,k,j]
                                      L_j,k C[i,j] += D[j,k]
                                    ]
    """

    name = "array_packing"
    level = Level.MEMORY
    local = True
    site_kinds = ("tensor", "loop")

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        given = {tensor.name for tensor in program.inputs if len(tensor.shape) > 1}
        for site, node, loop in loop_sites(program):
            inner = {below.index for below in loops_below(loop)[1:]}
            for name in sorted(read(loop) & given) if len(inner) > 1 else ():
                moving = frozenset().union(
                    *(indices(s) for use in uses_in(loop, name, node) for s in use.access.subscripts)
                )
                # Worth a copy is what some loop inside reads again and again.
                if not inner <= moving and len(inner & moving) > 1:
                    yield (name, site), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        packing = self._packing(program, site)
        return packing if isinstance(packing, Refusal) else None

    def _packing(self, program: Program, site: Site) -> Packing | Refusal:
        name, where = site[0], f"pack {site[0]} at {site[1]}"
        node, loop = loop_at(program, site[1])
        tensor, _ = declarations(program)[name]
        if tensor.role not in (Role.INPUT, Role.PARAMETER):
            return Refusal("scope", f"{where}: it is an {tensor.role}, not an input or parameter")
        bound = next((other for other in (*node.loops, *loops_below(loop)) if other.kind is Kind.BOUND), None)
        if bound is not None:
            return Refusal("kind", f"{where}: {bound.index} is bound; cache_read_write copies to shared memory")
        shared = lanes(node, loop)
        if shared is not None:
            return shared
        found = uses_in(loop, name, node)
        different = tuple(dict.fromkeys(use.access for use in found))
        if len(different) != 1:
            if not different:
                return Refusal("no_effect", f"{where}: the loop does not read {name}")
            return Refusal("structure", f"{where}: it is read by {len(different)} different accesses, need one")
        if any(True for subscript in different[0].subscripts for _ in accesses(subscript)):
            return Refusal("structure", f"{where}: which part it reads depends on data")
        box = box_in(loop, tensor, node)
        if isinstance(box, str):
            return Refusal("structure", f"{where}: {box}")
        return self._ordered(found[0], box, where)

    def _ordered(self, use: Use, box: Region, where: str) -> Packing | Refusal:
        if box.size >= box.tensor.size:
            return Refusal("no_effect", f"{where}: one iteration reads all of it; layout_transformation packs it")
        nbytes = box.size * box.tensor.dtype.itemsize
        if nbytes > MAX_PRIVATE_BYTES:
            return Refusal("size", f"{where}: the copy would take {nbytes} bytes, the limit is {MAX_PRIVATE_BYTES}")
        stored = [run for axis in box.kept for run in _runs(use, box, axis) if run.extent > 1]
        depth = {index: position for position, index in enumerate(use.around)}
        passed = sorted(stored, key=lambda run: depth[run.index])
        if passed == stored:
            return Refusal("no_effect", f"{where}: the loops pass over it in the order in which it is stored")
        return Packing(box, use.access, tuple(passed))

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        packing = self._packing(program, site)
        assert isinstance(packing, Packing)
        node, loop = loop_at(program, site[1])
        box = packing.box
        copy = fresh_tensor(program)
        packed = Access(copy, tuple(run.subscript for run in packing.runs))

        def change(access: Access) -> Expr:
            return packed if access == packing.access else access

        body = tuple(map_expressions(child, lambda expr: map_accesses(expr, change)) for child in loop.block.body)
        shape = tuple(run.extent for run in packing.runs)
        private = Tensor(copy, box.tensor.dtype, shape, Scope.LOCAL)
        block = Block((self._copy(program, node, packing, copy), *body), (*loop.block.tensors, private))
        return Outcome(splice(program, node.path, (replace(loop, block=block),)))

    def _copy(self, program: Program, node: Node, packing: Packing, copy: str) -> Equation | Loop:
        """The nest that fills the buffer from its first element to its last."""
        loop = node.statement
        assert isinstance(loop, Loop)
        loops: tuple[Loop, ...] = ()
        place: dict[int, Linear] = {}
        for run in packing.runs:
            around = Node(node.path, replace(loop, block=Block(())), (*node.loops, *loops))
            index = fresh_index(program, run.name, run.extent, around)
            loops = (*loops, Loop(Kind.SERIAL, index, run.extent, Block(())))
            place[run.axis] = place.get(run.axis, Linear()).plus(Linear(((Index(index), run.step),)))
        position = {axis: form.expression() for axis, form in place.items()}
        whole = tuple(simplify(subscript, {}) for subscript in packing.box.element(position))
        element = Access(packing.box.tensor.name, whole)
        target = Access(copy, tuple(Index(loop.index) for loop in loops))
        return nest(loops, Block((Equation(target, Assign.SET, element, packing.box.guards(position)),)))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        packing = self._packing(program, site)
        assert isinstance(packing, Packing)
        shape = "x".join(str(run.extent) for run in packing.runs)
        nbytes = packing.size * packing.box.tensor.dtype.itemsize
        return (
            f"Pack the {counted(packing.size, 'element')} ({nbytes} bytes) of {site[0]} that one iteration of "
            f"{site[1]} reads into a contiguous buffer of {shape}, in the order in which the loops below pass them."
        )
