"""How many cache lines an equation moves between the levels of the memory hierarchy."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from envs.leir_env.ir import Access, DType, Equation, Index, Loop, Tensor, subexpressions
from envs.leir_env.simplify import linear
from envs.leir_env.tree import accesses, expressions

LINE = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A level: its size in bytes, the span of addresses that map to different sets, and cycles to fetch a line."""

    size: int
    span: int
    streamed: float
    """Cycles to bring in one line of a contiguous run from the level below, which prefetching hides in part."""
    scattered: float
    """Cycles to bring in one line by itself."""


LEVELS = (
    Cache(32 << 10, 4096, 1.5, 3.0),
    Cache(512 << 10, 65536, 3.0, 9.0),
    Cache(16 << 20, 1 << 20, 12.0, 25.0),
)


@dataclass(frozen=True, slots=True)
class Reference:
    """An access as a cost model sees it: for each dimension, the steps of the loop indices, in elements."""

    tensor: str
    dtype: DType
    shape: tuple[int, ...]
    steps: tuple[tuple[tuple[str, int], ...], ...]
    indices: frozenset[str]

    def stride(self, index: str) -> int:
        """Elements in memory between neighbouring iterations of a loop, as a magnitude."""
        total, size = 0, 1
        for steps, extent in zip(reversed(self.steps), reversed(self.shape), strict=True):
            total += dict(steps).get(index, 0) * size
            size *= extent
        return abs(total)

    def box(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """Elements touched along each dimension while the loops in `extents` run and the others stand still."""
        found = []
        for steps, size in zip(self.steps, self.shape, strict=True):
            reach = 1 + sum(abs(step) * (extents[index] - 1) for index, step in steps if index in extents)
            points = math.prod(extents[index] for index, _ in steps if index in extents)
            found.append(min(reach, points, size))
        return tuple(found)

    def lines(self, extents: Mapping[str, int]) -> float:
        """Cache lines touched while the loops in `extents` run."""
        if not self.shape:
            return 1.0
        *outer, last = self.box(extents)
        smallest = min((abs(step) for index, step in self.steps[-1] if index in extents), default=1)
        row = last if smallest * self.dtype.itemsize >= LINE else last * smallest * self.dtype.itemsize / LINE
        if last == self.shape[-1]:  # whole rows are contiguous
            return max(1.0, math.prod(outer) * row)
        return max(1.0, math.prod(outer)) * max(1.0, row)

    def streams(self, extents: Mapping[str, int]) -> bool:
        """Are neighbouring lines touched one after another, at least four at a time?"""
        if not self.shape:
            return True
        last = self.box(extents)[-1]
        return last == self.shape[-1] or last * self.dtype.itemsize >= 4 * LINE

    def crowding(self, extents: Mapping[str, int], cache: Cache) -> float:
        """How much more room the lines take because rows a power of two apart fall into the same sets."""
        if len(self.shape) < 2:
            return 1.0
        *outer, last = self.box(extents)
        rows = math.prod(outer)
        if rows <= 8 or last == self.shape[-1]:
            return 1.0
        pitch = self.shape[-1] * self.dtype.itemsize
        sets = cache.span // math.gcd(pitch, cache.span) * max(1, last * self.dtype.itemsize // LINE)
        return max(1.0, cache.span / LINE / max(sets, 1))


@functools.lru_cache(maxsize=65536)
def _reference(access: Access, tensor: Tensor) -> Reference:
    steps = []
    indices: set[str] = set()
    for subscript in access.subscripts:
        terms: dict[str, int] = {}
        for atom, coefficient in linear(subscript, {}).terms:
            below = {node.name for node in subexpressions(atom) if isinstance(node, Index)}
            indices |= below
            for name in below:
                terms[name] = terms.get(name, 0) + (coefficient if isinstance(atom, Index) else 1)
        steps.append(tuple(terms.items()))
    return Reference(access.tensor, tensor.dtype, tensor.shape, tuple(steps), frozenset(indices))


def reference(access: Access, known: Mapping[str, Tensor]) -> Reference:
    """Return what the model needs to know of an access."""
    return _reference(access, known[access.tensor])


def moved_cycles(equation: Equation, loops: tuple[Loop, ...], known: Mapping[str, Tensor]) -> float:
    """Cycles to bring in the lines that one equation needs, over all its iterations and all levels."""
    found = [
        reference(access, known)
        for access in dict.fromkeys(a for expr in expressions(equation) for a in accesses(expr))
    ]
    return sum(_level(cache, tuple(found), loops) for cache in LEVELS)


def _level(cache: Cache, found: tuple[Reference, ...], loops: tuple[Loop, ...]) -> float:
    """Cycles for one level, by reuse distance: what an iteration touches is found again if it all fits."""
    footprints = []
    for depth in range(len(loops) + 1):
        inner = {loop.index: loop.extent for loop in loops[depth:]}
        footprints.append(
            sum(each.lines(inner) * LINE * each.crowding(inner, cache) for each in found)
        )
    fits = next((depth for depth, size in enumerate(footprints) if size <= cache.size), len(loops))
    inner = {loop.index: loop.extent for loop in loops[fits:]}
    total = 0.0
    for each in found:
        lines = each.lines(inner)
        for depth in range(fits):
            loop = loops[depth]
            if loop.index in each.indices or footprints[depth + 1] > cache.size:
                lines *= loop.extent
        total += lines * (cache.streamed if each.streams(inner) else cache.scattered)
    return total


