"""From imported stages to a program that reads as a person would write it.

Copies (transpose, reshape, broadcast, slice) vanish into the subscripts of their readers, or the
producer writes the copied layout at once; elementwise stages are inlined where nothing is computed
more often; then indices and tensors get short names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from envs.leir_env.importer.dtypes import retype, widen_sums
from envs.leir_env.importer.fold import polish
from envs.leir_env.importer.names import named
from envs.leir_env.importer.relayout import split_loops, write_through
from envs.leir_env.importer.stages import Graph, Stage, fold_stage, replace_tensor, squeeze
from envs.leir_env.ir import (
    Access,
    Call,
    DType,
    Expr,
    Index,
    Program,
    Role,
    subexpressions,
)
from envs.leir_env.tree import accesses, map_accesses, reads, substitute

MAX_REPEATED_COST = 3
"""An elementwise expression that costs more is stored once instead of written out at several readers."""

MAX_INLINED_DEPTH = 30
"""Expressions are not inlined into deeper ones than this, so that a long chain stays readable."""

_COSTS = {"select": 3, "exp": 1, "tanh": 3, "erf": 3, "sigmoid": 3, "pow": 3, "log": 3, "sin": 3, "cos": 3}


def program(graph: Graph, dtypes: Mapping[DType, DType] | None = None) -> tuple[Program, dict[str, str]]:
    """Return the tidy program, and the short name of each input, parameter and output.

    `dtypes` replaces dtypes throughout, for a module that was exported in float64 for exact constants.
    """
    graph = squeeze(retype(graph, dtypes or {}))
    steps = (_sweep, _merge, _inline_copies, _inline_elementwise, write_through, _inline_views)
    while (changed := next((new for step in steps if (new := step(graph)) != graph), None)) is not None:
        graph = changed
    graph = split_loops(widen_sums(graph))
    return named(graph.map(lambda stage: stage.map(lambda expr: polish(expr, graph.tensors))))


def _sweep(graph: Graph) -> Graph:
    """Drop stages that no output depends on."""
    live = {name for name, tensor in graph.tensors.items() if tensor.role is Role.OUTPUT}
    kept: list[Stage] = []
    for stage in reversed(graph.stages):
        if stage.tensor in live:
            kept.append(stage)
            live.update(access.tensor for access in reads(stage.equation))
    return replace(graph, stages=tuple(reversed(kept)))


def _merge(graph: Graph) -> Graph:
    """Let equal stages share one tensor."""
    first: dict[object, str] = {}
    same: dict[str, str] = {}
    kept = []
    for original in graph.stages:
        stage = original.map(lambda expr: map_accesses(expr, lambda a: replace_tensor(a, same)))
        names: dict[str, Expr] = {name: Index(f"s{at}") for at, (name, _) in enumerate(stage.loops)}
        canonical = stage.map(lambda expr, names=names: substitute(expr, names)).equation  # type: ignore[misc]
        tensor = graph.tensors[stage.tensor]
        extents = tuple(extent for _, extent in stage.loops)
        value = (canonical.target.subscripts, canonical.assign, canonical.value, canonical.guard)
        identity = (tensor.dtype, tensor.shape, extents, value)
        if graph.is_temporary(stage.tensor) and identity in first:
            same[stage.tensor] = first[identity]
            continue
        first.setdefault(identity, stage.tensor)
        kept.append(stage)
    return replace(graph, stages=tuple(kept))


def _inline_copies(graph: Graph) -> Graph:
    """Read through what is a copy with affine subscripts, a constant, or a function of indices alone."""

    def trivial(stage: Stage, _: Graph) -> bool:
        value = stage.equation.value
        if isinstance(value, Access):
            return not any(_is_view(subscript) or _is_indirect(subscript) for subscript in value.subscripts)
        return not any(accesses(value))

    return _inline(graph, trivial)


def _inline_views(graph: Graph) -> Graph:
    """Read through reshapes that no producer could write at once."""

    def view(stage: Stage, _: Graph) -> bool:
        value = stage.equation.value
        return isinstance(value, Access) and not any(map(_is_indirect, value.subscripts))

    return _inline(graph, view)


def _inline_elementwise(graph: Graph) -> Graph:
    """Inline an elementwise stage where that computes nothing more often than before, save cheap repeats."""

    def wanted(stage: Stage, graph: Graph) -> bool:
        places = [
            (reader, access)
            for reader in graph.stages
            for expr in (*reader.equation.target.subscripts, reader.equation.value, *reader.equation.guard)
            for access in accesses(expr)
            if access.tensor == stage.tensor
        ]
        size, value = graph.tensors[stage.tensor].size, stage.equation.value
        copied = any(reader.is_copy for reader, _ in places)
        cheap = not copied and _cost(value) <= MAX_REPEATED_COST
        return (len(places) == 1 or cheap) and all(
            _evaluations(reader, access) <= size and reader.equation.value.depth + value.depth <= MAX_INLINED_DEPTH
            for reader, access in places
        )

    return _inline(graph, wanted)


def _inline(graph: Graph, wanted: Callable[[Stage, Graph], bool]) -> Graph:
    for tensor in [stage.tensor for stage in graph.stages]:
        stage = next(stage for stage in graph.stages if stage.tensor == tensor)
        if graph.is_temporary(tensor) and stage.is_elementwise and wanted(stage, graph):
            graph = _substitute_stage(graph, stage)
    return graph


def _substitute_stage(graph: Graph, stage: Stage) -> Graph:
    """Write the stage's expression at every reader and drop the stage."""
    indices = [s.name for s in stage.equation.target.subscripts if isinstance(s, Index)]

    def read(access: Access) -> Expr:
        if access.tensor != stage.tensor:
            return access
        return substitute(stage.equation.value, dict(zip(indices, access.subscripts, strict=True)))

    def rewrite(reader: Stage) -> Stage:
        if all(access.tensor != stage.tensor for access in reads(reader.equation)):
            return reader
        return fold_stage(reader.map(lambda expr: map_accesses(expr, read)), graph)

    return replace(graph, stages=tuple(rewrite(s) for s in graph.stages if s is not stage))


def _cost(expr: Expr) -> int:
    return sum(_COSTS.get(node.op, 1) for node in subexpressions(expr) if isinstance(node, Call)) - sum(
        _cost(subscript) for access in accesses(expr) for subscript in access.subscripts
    )


def _evaluations(reader: Stage, access: Access) -> int:
    """How often the access is evaluated once loop invariants are hoisted."""
    used = {node.name for node in subexpressions(access) if isinstance(node, Index)}
    depth = max((at + 1 for at, (name, _) in enumerate(reader.loops) if name in used), default=0)
    return prod(extent for _, extent in reader.loops[:depth])


def _is_view(subscript: Expr) -> bool:
    return any(isinstance(node, Call) and node.op in ("floordiv", "mod") for node in subexpressions(subscript))


def _is_indirect(subscript: Expr) -> bool:
    return any(isinstance(node, Access) for node in subexpressions(subscript))
