"""Layouts: in which order the elements of a tensor lie in memory.

A tensor is stored row by row; a layout stores the same elements as another tensor, whose dimensions are those
of the first exchanged, or one of them in tiles.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from envs.leir_env.affine import evaluate
from envs.leir_env.ir import Access, Block, Call, Const, Equation, Expr, Program, Statement
from envs.leir_env.legality import touched
from envs.leir_env.simplify import simplify
from envs.leir_env.tree import Node, loops_below, map_accesses, map_expressions, walk


@dataclass(frozen=True, slots=True)
class Part:
    """One dimension of a layout: a dimension of the tensor, or the tiles of one, or the places in a tile."""

    axis: int
    tile: int = 0
    """Places in a tile; 0 where the dimension is not tiled."""
    within: bool = False
    """Whether it counts the places in a tile, not the tiles."""

    def extent(self, shape: tuple[int, ...]) -> int:
        size = shape[self.axis]
        if not self.tile:
            return size
        return self.tile if self.within else -(-size // self.tile)

    def subscript(self, subscripts: tuple[Expr, ...], extents: Mapping[str, int]) -> Expr:
        """The subscript of an element of which `subscripts` are those in the tensor."""
        whole = subscripts[self.axis]
        if not self.tile:
            return whole
        return simplify(Call("mod" if self.within else "floordiv", (whole, Const(self.tile))), extents)


Layout = tuple[Part, ...]
"""The dimensions of the stored tensor from the outermost in."""


def shape_of(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which a tensor is stored; tiles that don't divide an extent pad it."""
    return tuple(part.extent(shape) for part in layout)


def keeps_order(layout: Layout, shape: tuple[int, ...]) -> bool:
    """Does every element keep its address? Padding moves none where only the outermost dimension is padded."""
    order = [(part.axis, part.within) for part in layout if part.extent(shape) > 1]
    outermost = next((axis for axis, extent in enumerate(shape) if extent > 1), 0)
    padded = any(part.tile and shape[part.axis] % part.tile and part.axis != outermost for part in layout)
    return order == sorted(order) and not padded


def address(access: Access, shape: tuple[int, ...], layout: Layout, point: Mapping[str, int]) -> int:
    """Elements before an accessed one in memory, where the tensor of this shape is stored in a layout."""
    place = tuple(Const(evaluate(subscript, point)) for subscript in access.subscripts)
    flat = 0
    for part, extent in zip(layout, shape_of(layout, shape), strict=True):
        flat = flat * extent + evaluate(part.subscript(place, {}), {})
    return flat


@functools.lru_cache(maxsize=16384)
def touching(program: Program, name: str) -> tuple[tuple[Node, Equation], ...]:
    """The equations that use a tensor, in program order."""
    return tuple(
        (node, node.statement)
        for node in walk(program)
        if isinstance(node.statement, Equation) and name in touched(node.statement)
    )


@functools.lru_cache(maxsize=16384)
def _relaid(nest: Statement, name: str, stored: str, layout: Layout) -> Statement:
    """A top-level nest with every access of tensor `name` turned to `stored`, the same in another layout."""
    if name not in touched(nest):
        return nest
    extents = {loop.index: loop.extent for loop in loops_below(nest)}

    def change(access: Access) -> Expr:
        if access.tensor != name:
            return access
        return Access(stored, tuple(part.subscript(access.subscripts, extents) for part in layout))

    return map_expressions(nest, lambda expr: map_accesses(expr, change))


def relaid(program: Program, name: str, stored: str, layout: Layout) -> Program:
    """The program with every access of a tensor turned to another layout; declarations stay as they are."""
    body = tuple([_relaid(statement, name, stored, layout) for statement in program.body])
    return Program(Block(body, program.tensors))
