"""Programs in another float dtype: half precision sums in single, as PyTorch does.

The importer makes every program in one float dtype first; what ships in f32 becomes f16 or f64 here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from envs.leir_env.importer.fold import dtype_of, polish
from envs.leir_env.importer.names import named
from envs.leir_env.importer.stages import Graph, Stage, replace_tensor, squeeze
from envs.leir_env.ir import (
    Access,
    Assign,
    Call,
    Cast,
    DType,
    Equation,
    Expr,
    Index,
    Loop,
    Program,
    Tensor,
    children,
    with_children,
)
from envs.leir_env.tree import accesses

_HALVES = (DType.F16, DType.BF16)


def retyped(program: Program, dtype: DType) -> Program:
    """Return an imported f32 program in another float dtype: the same as importing the module in that dtype."""
    graph = widen_sums(retype(_graph(program), {DType.F32: dtype}))
    return named(graph.map(lambda stage: stage.map(lambda expr: polish(expr, graph.tensors))))[0]


def _graph(program: Program) -> Graph:
    """The stages of a program whose statements are perfect nests of one equation."""
    stages = []
    for nest in program.body:
        loops: list[tuple[str, int]] = []
        statement = nest
        while isinstance(statement, Loop):
            loops.append((statement.index, statement.extent))
            (statement,) = statement.block.body
        stages.append(Stage(tuple(loops), statement))
    return Graph({tensor.name: tensor for tensor in program.tensors}, tuple(stages))


def retype(graph: Graph, dtypes: Mapping[DType, DType]) -> Graph:
    """Replace dtypes throughout."""

    def cast(expr: Expr) -> Expr:
        if isinstance(expr, Cast):
            return Cast(dtypes.get(expr.dtype, expr.dtype), cast(expr.value))
        if isinstance(expr, Access):
            return Access(expr.tensor, tuple(map(cast, expr.subscripts)))
        return Call(expr.op, tuple(map(cast, expr.args))) if isinstance(expr, Call) else expr

    tensors = {n: replace(t, dtype=dtypes.get(t.dtype, t.dtype)) for n, t in graph.tensors.items()}
    return Graph(tensors, tuple(stage.map(cast) for stage in graph.stages))


def widen_sums(graph: Graph) -> Graph:
    """Accumulate sums and products of half-precision numbers in float32, and compute what reads them so."""
    halves = {name: tensor.dtype for name, tensor in graph.tensors.items() if tensor.dtype in _HALVES}
    wide = {
        stage.tensor: Tensor(f"{stage.tensor}wide", DType.F32, graph.tensors[stage.tensor].shape)
        for stage in graph.stages
        if stage.tensor in halves and (stage.equation.assign in (Assign.ADD, Assign.MUL) or stage.is_recurrence)
    }
    renamed = {name: tensor.name for name, tensor in wide.items()}

    def widen(expr: Expr) -> Expr:
        match expr:
            case Access(name) if name in wide:
                return replace_tensor(expr, renamed)
            case Access(name):
                return Cast(DType.F32, expr) if name in halves else expr
            case Cast(dtype, value) if dtype in _HALVES:
                kind = dtype_of(value, graph.tensors)
                return Cast(DType.F32, expr if kind and kind.is_float else value)
            case Cast() | Call():
                return with_children(expr, tuple(map(widen, children(expr))))
        return expr

    stages: list[Stage] = []
    for stage in graph.stages:
        target, assign = stage.equation.target, stage.equation.assign
        value = stage.equation.value
        if stage.tensor in wide or any(access.tensor in wide for access in accesses(value)):
            value = widen(value)
            if stage.tensor in halves and stage.tensor not in wide:
                value = Cast(halves[stage.tensor], value)
        equation = Equation(replace_tensor(target, renamed), assign, value, stage.equation.guard)
        stages.append(replace(stage, equation=equation))
        if stage.tensor in wide and not graph.is_temporary(stage.tensor):
            stages.append(_rounded(graph.tensors[stage.tensor], wide[stage.tensor].name))
    tensors = dict(graph.tensors) | {tensor.name: tensor for tensor in wide.values()}
    return squeeze(Graph(tensors, tuple(stages)))


def _rounded(tensor: Tensor, source: str) -> Stage:
    loops = tuple((f"s{axis}", extent) for axis, extent in enumerate(tensor.shape))
    at = tuple(Index(index) for index, _ in loops)
    return Stage(loops, Equation(Access(tensor.name, at), Assign.SET, Cast(tensor.dtype, Access(source, at))))
