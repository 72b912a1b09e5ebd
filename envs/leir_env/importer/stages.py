"""The records of an import: equations, each inside its own loops, and the tensors they work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from envs.leir_env.importer.fold import fold
from envs.leir_env.ir import Access, Assign, Const, Equation, Expr, Index, Role, Tensor
from envs.leir_env.tree import map_accesses, map_expressions, reads, substitute


@dataclass(frozen=True, slots=True)
class Stage:
    """One equation inside its own loops (name and extent, from the outside in)."""

    loops: tuple[tuple[str, int], ...]
    equation: Equation

    @property
    def tensor(self) -> str:
        return self.equation.target.tensor

    @property
    def extents(self) -> dict[str, int]:
        return dict(self.loops)

    @property
    def is_recurrence(self) -> bool:
        """Its elements are computed from one another."""
        return any(access.tensor == self.tensor for access in reads(self.equation))

    @property
    def is_elementwise(self) -> bool:
        """Each element of the tensor is set once, by its own iteration."""
        names = [subscript.name for subscript in self.equation.target.subscripts if isinstance(subscript, Index)]
        return (
            self.equation.assign is Assign.SET
            and not self.equation.guard
            and not self.is_recurrence
            and len(names) == len(self.equation.target.subscripts)
            and sorted(names) == sorted(self.extents)
        )

    @property
    def is_copy(self) -> bool:
        """It sets elements to elements, each at its own place."""
        return self.is_elementwise and isinstance(self.equation.value, Access)

    def map(self, change: Callable[[Expr], Expr]) -> Stage:
        equation = map_expressions(self.equation, change)
        assert isinstance(equation, Equation)
        return replace(self, equation=equation)


@dataclass(frozen=True, slots=True)
class Graph:
    """Stages in order, and every tensor by name; inputs, parameters and outputs in the caller's order."""

    tensors: Mapping[str, Tensor]
    stages: tuple[Stage, ...]

    def is_temporary(self, tensor: str) -> bool:
        return self.tensors[tensor].role is Role.TEMPORARY

    def map(self, change: Callable[[Stage], Stage]) -> Graph:
        return replace(self, stages=tuple(map(change, self.stages)))


def squeeze(graph: Graph) -> Graph:
    """Drop loops of one iteration, and dimensions of extent 1 from temporaries."""
    tensors = dict(graph.tensors)
    for name, tensor in graph.tensors.items():
        if tensor.role is Role.TEMPORARY:
            tensors[name] = replace(tensor, shape=tuple(extent for extent in tensor.shape if extent != 1))

    def drop(access: Access) -> Expr:
        before = graph.tensors[access.tensor].shape
        if tensors[access.tensor].shape == before:
            return access
        kept = zip(access.subscripts, before, strict=True)
        return Access(access.tensor, tuple(subscript for subscript, extent in kept if extent != 1))

    def squeeze(stage: Stage) -> Stage:
        unit: dict[str, Expr] = {name: Const(0) for name, extent in stage.loops if extent == 1}
        loops = tuple(loop for loop in stage.loops if loop[1] != 1)
        return replace(stage, loops=loops).map(lambda expr: map_accesses(substitute(expr, unit), drop))

    return fold_all(Graph(tensors, tuple(map(squeeze, graph.stages))))


def fold_all(graph: Graph) -> Graph:
    """Clean up every expression, see `fold`."""
    return graph.map(lambda stage: fold_stage(stage, graph))


def fold_stage(stage: Stage, graph: Graph) -> Stage:
    """Clean up the expressions of one stage; guards that always hold go."""
    extents = stage.extents
    folded = stage.map(lambda expr: fold(expr, extents, graph.tensors)).equation
    guard = tuple(condition for condition in folded.guard if condition != Const(True))
    return replace(stage, equation=Equation(folded.target, folded.assign, folded.value, guard))


def replace_tensor(access: Access, names: Mapping[str, str]) -> Access:
    """Return the access with its tensor renamed."""
    return Access(names[access.tensor], access.subscripts) if access.tensor in names else access
