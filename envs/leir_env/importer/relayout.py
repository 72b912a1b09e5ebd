"""Layouts: producers that write what a copy would hold, and loops split so that subscripts are affine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from envs.leir_env.affine import Affine, Digit, digit, digital
from envs.leir_env.importer.stages import Graph, Stage, fold_stage
from envs.leir_env.ir import Access, Assign, Call, Const, Expr, Index, subexpressions
from envs.leir_env.simplify import linear, simplify
from envs.leir_env.tree import map_accesses, reads, substitute


def write_through(graph: Graph) -> Graph:
    """Where a stage copies a temporary one to one, let the producer write the copy's layout at once."""
    written = {stage.tensor: stage for stage in graph.stages}
    for copy in graph.stages:
        source = copy.equation.value
        if copy.equation.assign is not Assign.SET or copy.equation.guard or not isinstance(source, Access):
            continue
        if source.tensor not in written or not graph.is_temporary(source.tensor):
            continue
        inverse = _inverse(source, graph.tensors[source.tensor].shape, copy.extents)
        if inverse is not None:
            return _redirect(graph, copy, source.tensor, inverse)
    return graph


def _redirect(graph: Graph, copy: Stage, tensor: str, inverse: Callable[[tuple[Expr, ...]], dict[str, Expr]]) -> Graph:
    def move(access: Access) -> Expr:
        if access.tensor != tensor:
            return access
        values = inverse(access.subscripts)
        return substitute(copy.equation.target, values)

    stages = tuple(
        fold_stage(stage.map(lambda expr: map_accesses(expr, move)), graph)
        for stage in graph.stages
        if stage is not copy
    )
    return replace(graph, stages=stages)


def _inverse(
    source: Access, shape: tuple[int, ...], extents: Mapping[str, int]
) -> Callable[[tuple[Expr, ...]], dict[str, Expr]] | None:
    """Solve `subscripts of source` for the loop indices: affine, if each subscript is one digit of an index.

    Returns a function from subscripts to the value of each index, or None where the map is not one to
    one or its inverse not affine.
    """
    mirrors = [_mirror(s, extent) for s, extent in zip(source.subscripts, shape, strict=True)]
    digits = [
        _digit(s if mirror is None else simplify(mirror(s), extents), extent)
        for s, mirror, extent in zip(source.subscripts, mirrors, shape, strict=True)
    ]
    by_index: dict[str, list[tuple[Digit, int]]] = {name: [] for name in extents}
    for position, number in enumerate(digits):
        if number is None:
            return None
        by_index[number.index].append((number, position))
    for name, found in by_index.items():
        step = 1
        for number, _ in sorted(found, key=lambda item: item[0].divisor):
            if number.divisor != step:
                return None
            step *= number.modulus
        if step != extents[name]:
            return None

    def solve(mirrored: tuple[Expr, ...]) -> dict[str, Expr]:
        subscripts = [s if mirror is None else mirror(s) for s, mirror in zip(mirrored, mirrors, strict=True)]
        values: dict[str, Expr] = {}
        for name, found in by_index.items():
            total: Expr = Const(0)
            for number, position in sorted(found, key=lambda item: -item[0].divisor):
                total = Call("add", (total, Call("mul", (Const(number.divisor), subscripts[position]))))
            values[name] = simplify(total, {})
        return values

    return solve


def _mirror(subscript: Expr, extent: int) -> Callable[[Expr], Expr] | None:
    """`e -> extent-1-e` for a subscript that runs backwards, as after a flip."""
    form = linear(subscript, {})
    if [coefficient for _, coefficient in form.terms] != [-1]:
        return None
    return lambda expr: Call("sub", (Const(extent - 1), expr))


def _digit(subscript: Expr, size: int) -> Digit | None:
    """The one digit that a subscript of this extent is; None where it is anything else."""
    match digital(subscript):
        case Affine(((name, 1),), 0):
            found = digit(name)
            return replace(found, modulus=size) if found.modulus in (0, size) else None
    return None


def split_loops(graph: Graph) -> Graph:
    """Split a loop whose index is taken apart by `//` and `%`, so that the subscripts become affine."""

    def split(stage: Stage) -> Stage:
        while (found := _divisor(stage)) is not None:
            name, divisor = found
            at = next(position for position, loop in enumerate(stage.loops) if loop[0] == name)
            fresh = (f"{name}o", f"{name}i")
            loops = ((fresh[0], stage.loops[at][1] // divisor), (fresh[1], divisor))
            value = Call("add", (Call("mul", (Const(divisor), Index(fresh[0]))), Index(fresh[1])))
            new = replace(stage, loops=(*stage.loops[:at], *loops, *stage.loops[at + 1 :]))
            values: dict[str, Expr] = {name: value}
            stage = fold_stage(new.map(lambda expr, values=values: substitute(expr, values)), graph)  # type: ignore[misc]
        return stage

    return graph.map(split)


def _divisor(stage: Stage) -> tuple[str, int] | None:
    """An index and the greatest proper divisor of its extent that some subscript takes it apart by."""
    found = [
        (int(divisor.value), node.args[0].name)
        for access in (stage.equation.target, *reads(stage.equation))
        for subscript in access.subscripts
        for node in subexpressions(subscript)
        if isinstance(node, Call) and node.op in ("floordiv", "mod")
        if isinstance(node.args[0], Index) and isinstance(divisor := node.args[1], Const)
    ]
    proper = [(d, name) for d, name in found if 1 < d < stage.extents[name] and stage.extents[name] % d == 0]
    return (max(proper)[1], max(proper)[0]) if proper else None
