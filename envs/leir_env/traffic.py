"""How many cache lines an equation moves between the levels of the memory hierarchy."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envs.leir_env.ir import Access, DType, Equation, Index, Loop, Tensor
from envs.leir_env.simplify import linear
from envs.leir_env.tree import indices as indices_of
from envs.leir_env.tree import reads

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
    Cache(32 << 10, 4096, 1.0, 1.5),
    Cache(512 << 10, 65536, 2.0, 5.0),
    Cache(16 << 20, 1 << 20, 8.0, 20.0),
)


@dataclass(frozen=True, slots=True)
class Reference:
    """An access as a cost model sees it: for each dimension, the steps of the loop indices, in elements."""

    tensor: str
    dtype: DType
    shape: tuple[int, ...]
    steps: tuple[tuple[tuple[str, int], ...], ...]
    indices: frozenset[str]
    """Every loop that it depends on, those around the tensor's declaration included."""

    def stride(self, index: str) -> int:
        """Elements in memory between neighbouring iterations of a loop, as a magnitude."""
        total, size = 0, 1
        for steps, extent in zip(reversed(self.steps), reversed(self.shape), strict=True):
            total += dict(steps).get(index, 0) * size
            size *= extent
        return abs(total)

    def box(self, extents: Mapping[str, int]) -> list[int]:
        """Elements touched along each dimension while the loops in `extents` run and the others stand still."""
        found = []
        for steps, size in zip(self.steps, self.shape, strict=True):
            reach = points = 1
            for index, step in steps:
                if index in extents:
                    extent = extents[index]
                    reach += abs(step) * (extent - 1)
                    points *= extent
            found.append(min(reach, points, size))
        return found

    def window(self, extents: Mapping[str, int]) -> Window:
        """What is touched while the loops in `extents` run."""
        if not self.shape:
            return Window(1.0, 1, LINE, 0)
        *outer, last = self.box(extents)
        rows = math.prod(outer)
        whole = last == self.shape[-1]
        size = self.dtype.itemsize
        nearest = min([abs(step) for index, step in self.steps[-1] if index in extents], default=1)
        width = last if nearest * size >= LINE else last * nearest * size / LINE
        lines = max(1.0, rows * width) if whole else rows * max(1.0, width)
        return Window(lines, 1 if whole else rows, last * size, self.shape[-1] * size)


@dataclass(frozen=True, slots=True)
class Window:
    """The lines touched by an access over some loops: how many, in how many rows how far apart."""

    lines: float
    rows: int
    row_bytes: int
    pitch: int

    @property
    def streams(self) -> bool:
        """Are neighbouring lines touched one after another, at least four at a time?"""
        return self.rows == 1 or self.row_bytes >= 4 * LINE

    def footprint(self, cache: Cache) -> float:
        """Bytes taken up in a cache; rows a power of two apart crowd into the same sets."""
        room = self.lines * LINE
        if self.rows <= 8:
            return room
        sets = cache.span // math.gcd(self.pitch, cache.span) * max(1, self.row_bytes // LINE)
        return room * max(1.0, cache.span / LINE / sets)


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor, and the indices of the loops around its declaration: each of their iterations has its own."""

    tensor: Tensor
    home: frozenset[str] = frozenset()


@functools.lru_cache(maxsize=65536)
def _reference(access: Access, placed: Placed) -> Reference:
    steps = []
    tensor = placed.tensor
    indices = set(placed.home)
    for subscript in access.subscripts:
        terms: dict[str, int] = {}
        for atom, coefficient in linear(subscript, {}).terms:
            below = indices_of(atom)
            indices |= below
            for name in below:
                terms[name] = terms.get(name, 0) + (coefficient if isinstance(atom, Index) else 1)
        steps.append(tuple(terms.items()))
    return Reference(access.tensor, tensor.dtype, tensor.shape, tuple(steps), frozenset(indices))


def reference(access: Access, known: Mapping[str, Placed]) -> Reference:
    """Return what the model needs to know of an access."""
    return _reference(access, known[access.tensor])


def moved_cycles(equation: Equation, loops: tuple[Loop, ...], known: Mapping[str, Placed]) -> float:
    """Cycles to bring in the lines that one equation needs, over all its iterations and all levels.

    By reuse distance: what one iteration of a loop touches is found again in the next if it all fits.
    """
    sweep = _Sweep([reference(access, known) for access in dict.fromkeys((equation.target, *reads(equation)))], loops)
    return sum([sweep.cycles(cache) for cache in LEVELS])


class _Sweep:
    """What some references touch while the loops from a depth inwards run."""

    def __init__(self, found: Sequence[Reference], loops: tuple[Loop, ...]) -> None:
        self.found, self.loops = found, loops
        self.inner = {loop.index: loop.extent for loop in loops}
        self.windows = [[each.window(self.inner) for each in found]]

    def at(self, depth: int) -> list[Window]:
        """The windows of the loops from `depth` inwards: an outer loop changes those that depend on it."""
        while len(self.windows) <= depth:
            outer = self.loops[len(self.windows) - 1].index
            del self.inner[outer]
            pairs = zip(self.found, self.windows[-1], strict=True)
            self.windows.append([each.window(self.inner) if outer in each.indices else same for each, same in pairs])
        return self.windows[depth]

    def cycles(self, cache: Cache) -> float:
        """Cycles for one level."""
        depth, deepest = 0, len(self.loops)
        while depth < deepest and sum([window.footprint(cache) for window in self.at(depth)]) > cache.size:
            depth += 1
        # One sweep of the outermost loop whose iterations fit finds again what its last iteration left.
        sweep = max(depth - 1, 0)
        return math.prod([loop.extent for loop in self.loops[:sweep]]) * sum(
            [window.lines * (cache.streamed if window.streams else cache.scattered) for window in self.at(sweep)]
        )
