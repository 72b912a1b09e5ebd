"""The records of an import: equations, each inside its own loops, and the tensors they work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from envs.leir_env.importer.fold import fold
from envs.leir_env.ir import Access, Assign, Const, Equation, Expr, Index, Role, Tensor
from envs.leir_env.tree import map_expressions


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
    def is_elementwise(self) -> bool:
        """Each element of the tensor is set once, by its own iteration."""
        names = [subscript.name for subscript in self.equation.target.subscripts if isinstance(subscript, Index)]
        return (
            self.equation.assign is Assign.SET
            and not self.equation.guard
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
