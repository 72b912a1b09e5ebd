"""The part of a tensor that one iteration of a loop touches, as a box that moves with the outer loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envs.leir_env.ir import Access, Call, Const, Equation, Expr, Index, Loop, Statement, Tensor
from envs.leir_env.simplify import Linear, linear
from envs.leir_env.tree import indices, reads


@dataclass(frozen=True, slots=True)
class Region:
    """A box: dimension d holds `extents[d]` elements from `base[d]` on, an expression in outer indices."""

    base: tuple[Linear, ...]
    extents: tuple[int, ...]
    tensor: Tensor
    outer: tuple[tuple[str, int], ...]
    """The outer indices with their extents."""

    @property
    def kept(self) -> tuple[int, ...]:
        """The dimensions with more than one element: those that a private copy needs."""
        return tuple(d for d, extent in enumerate(self.extents) if extent > 1)

    @property
    def size(self) -> int:
        """Elements of the box."""
        total = 1
        for extent in self.extents:
            total *= extent
        return total

    def local(self, access: Access, around: Mapping[str, int]) -> tuple[Expr, ...]:
        """Subscripts of the same element within a private copy of the box."""
        return tuple(linear(access.subscripts[d], around).plus(self.base[d], -1).expression() for d in self.kept)

    def element(self, position: Mapping[int, Expr]) -> tuple[Expr, ...]:
        """Subscripts in the tensor of the element at `position` of the box (zero where not given)."""
        return tuple(
            base.plus(Linear(((position[d], 1),))).expression() if d in position else base.expression()
            for d, base in enumerate(self.base)
        )

    def guards(self, position: Mapping[int, Expr]) -> tuple[Expr, ...]:
        """Conditions under which that element exists, where the box may stick out of the tensor."""
        outer = dict(self.outer)
        conditions: list[Expr] = []
        for d, subscript in enumerate(self.element(position)):
            ends = self.base[d].interval(outer)
            if ends is None or ends[1] + self.extents[d] > self.tensor.shape[d]:
                conditions.append(Call("lt", (subscript, Const(self.tensor.shape[d]))))
            if ends is None or ends[0] < 0:
                conditions.append(Call("ge", (subscript, Const(0))))
        return tuple(conditions)


@dataclass(frozen=True, slots=True)
class Use:
    """One access of a tensor, its equation, and the extents of all loops around it."""

    access: Access
    equation: Equation
    writes: bool
    around: Mapping[str, int]


def uses(statement: Statement, name: str, around: Mapping[str, int]) -> Iterator[Use]:
    """Every access of tensor `name` at or below `statement`, in program order, reads before the write."""
    if isinstance(statement, Loop):
        inner = {**around, statement.index: statement.extent}
        for child in statement.block.body:
            yield from uses(child, name, inner)
        return
    for access in reads(statement):
        if access.tensor == name:
            yield Use(access, statement, False, around)
    if statement.target.tensor == name:
        yield Use(statement.target, statement, True, around)


def region(tensor: Tensor, found: tuple[Use, ...], outer: Mapping[str, int]) -> Region | str:
    """The smallest box around all uses for fixed outer indices, or a sentence that says why there is none."""
    base: list[Linear] = []
    extents: list[int] = []
    for d in range(len(tensor.shape)):
        moving: dict[Expr, int] | None = None
        low = high = 0
        for use in found:
            value = linear(use.access.subscripts[d], use.around)
            fixed: dict[Expr, int] = {}
            least = most = value.constant
            for term in value.terms:
                atom, step = term
                if isinstance(atom, Index):
                    if atom.name in outer:
                        fixed[atom] = step
                        continue
                    reach = step * (use.around[atom.name] - 1)
                    least, most = least + min(reach, 0), most + max(reach, 0)
                    continue
                inside = indices(atom)
                if inside <= outer.keys():
                    fixed[atom] = step
                    continue
                if not inside.isdisjoint(outer):
                    return f"subscript {d + 1} of {tensor.name} mixes inner and outer indices"
                ends = Linear((term,)).interval(use.around)
                if ends is None:
                    return f"subscript {d + 1} of {tensor.name} is not affine"
                least, most = least + ends[0], most + ends[1]
            if moving is None:
                moving, low, high = fixed, least, most
            elif moving != fixed:
                return f"two accesses of {tensor.name} move differently along dimension {d + 1}"
            low, high = min(low, least), max(high, most)
        assert moving is not None
        base.append(Linear(tuple(moving.items()), low))
        extents.append(high - low + 1)
    return Region(tuple(base), tuple(extents), tensor, tuple(outer.items()))


def visited_once(box: Region, loops: tuple[Loop, ...]) -> bool:
    """Do different iterations of `loops` touch different boxes?

    True when the base of the box decomposes into those loops like a number into digits: each loop's step
    exceeds all that smaller steps and the box can add up to.
    """
    pending = {loop.index: loop.extent for loop in loops if loop.extent > 1}
    outer = dict(box.outer)
    for base, reach in zip(box.base, box.extents, strict=True):
        for atom, step in sorted(base.terms, key=lambda term: abs(term[1])):
            if not isinstance(atom, Index):
                return False
            if atom.name in pending and abs(step) >= reach:
                del pending[atom.name]
            reach += abs(step) * (outer[atom.name] - 1)
    return not pending


def covers(box: Region, loops: tuple[Loop, ...]) -> bool:
    """Do the boxes of all iterations of `loops` together make up the whole tensor?"""
    free = {loop.index: loop.extent for loop in loops}
    for base, extent, size in zip(box.base, box.extents, box.tensor.shape, strict=True):
        reach = extent
        if base.constant:
            return False
        for atom, step in sorted(base.terms, key=lambda term: term[1]):
            if not isinstance(atom, Index) or atom.name not in free or not 0 < step <= reach:
                return False
            reach += step * (free.pop(atom.name) - 1)
        if reach < size:
            return False
    return True
