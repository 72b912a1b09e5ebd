"""Short names for tensors and indices, in the order in which a person would give them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

from envs.leir_env.importer.stages import Graph, Stage, replace_tensor
from envs.leir_env.ir import Block, Expr, Index, Kind, Loop, Program, Role, Statement, Tensor
from envs.leir_env.ops import RESERVED
from envs.leir_env.tree import map_accesses, reads, substitute

_TENSOR_LETTERS = "ABCDEFGHJKMNQRSWXYZ"
_INDEX_LETTERS = "ijkmnpqrstuvwxyzabcdfgh"


def named(graph: Graph) -> tuple[Program, dict[str, str]]:
    """Give tensors and indices short names and build the program."""
    used = {stage.tensor for stage in graph.stages} | {
        access.tensor for stage in graph.stages for access in reads(stage.equation)
    }
    order = list(Role)
    interface = sorted(
        (t for t in graph.tensors.values() if t.role is not Role.TEMPORARY), key=lambda t: order.index(t.role)
    )
    kept = [t for t in interface if t.role in (Role.INPUT, Role.OUTPUT) or t.name in used]
    temporaries = [graph.tensors[stage.tensor] for stage in graph.stages if graph.is_temporary(stage.tensor)]
    tensors = [*kept, *temporaries]
    names = {tensor.name: name for tensor, name in zip(tensors, _names(_TENSOR_LETTERS), strict=False)}
    namer = _IndexNamer(graph.tensors)
    body: list[Statement] = []
    for stage in graph.stages:
        indices = namer.names(stage)
        values: dict[str, Expr] = {old: Index(new) for old, new in indices.items()}
        renamed = stage.map(
            lambda expr, values=values: map_accesses(  # type: ignore[misc]
                substitute(expr, values), lambda access: replace_tensor(access, names)
            )
        )
        statement: Statement = renamed.equation
        for name, extent in reversed(stage.loops):
            statement = Loop(Kind.SERIAL, indices[name], extent, Block((statement,)))
        body.append(statement)
    declared = tuple(replace(tensor, name=names[tensor.name]) for tensor in tensors)
    return Program(Block(tuple(body), declared)), {tensor.name: names[tensor.name] for tensor in kept}


def _names(letters: str) -> Iterator[str]:
    yield from (letter for letter in letters if letter not in RESERVED)
    for number in count(2):
        yield from (f"{letter}{number}" for letter in letters)


class _IndexNamer:
    """Names loops so that an index keeps its name along the dimensions it runs over."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.extents: dict[str, int] = {}
        self.dimensions: dict[tuple[str, int], str] = {}
        self.fresh = _names(_INDEX_LETTERS)

    def names(self, stage: Stage) -> dict[str, str]:
        """The name of each loop of the stage."""
        chosen: dict[str, str] = {}
        touched = [
            (subscript.name, (access.tensor, position))
            for access in (stage.equation.target, *reads(stage.equation))
            for position, subscript in enumerate(access.subscripts)
            if isinstance(subscript, Index)
        ]
        for loop, extent in stage.loops:
            known = Counter(
                self.dimensions[dimension]
                for name, dimension in touched
                if name == loop and dimension in self.dimensions
            )
            for name, _ in known.most_common():
                if self.extents[name] == extent and name not in chosen.values():
                    chosen[loop] = name
                    break
        for loop, extent in stage.loops:
            if loop not in chosen:
                chosen[loop] = self.reuse(extent, chosen)
        for loop, (tensor, position) in touched:
            if self.tensors[tensor].shape[position] == stage.extents[loop]:
                self.dimensions.setdefault((tensor, position), chosen[loop])
        return chosen

    def reuse(self, extent: int, chosen: Mapping[str, str]) -> str:
        for name, known in self.extents.items():
            if known == extent and name not in chosen.values():
                return name
        name = next(self.fresh)
        self.extents[name] = extent
        return name
