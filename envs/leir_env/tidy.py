"""From imported stages to a program that reads as a person would write it.

Copies (transpose, reshape, broadcast, slice) vanish into the subscripts of their readers, or the
producer writes the copied layout at once; elementwise stages are inlined where nothing is computed
more often; then indices and tensors get short names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import prod

from envs.leir_env.fold import fold, polish
from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Cast,
    Const,
    DType,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Statement,
    Tensor,
    subexpressions,
)
from envs.leir_env.ops import RESERVED
from envs.leir_env.simplify import simplify
from envs.leir_env.tree import accesses, map_accesses, map_expressions, reads, substitute

MAX_REPEATED_COST = 3
"""An elementwise expression that costs more is stored once instead of written out at several readers."""

_COSTS = {"select": 3, "exp": 1, "tanh": 3, "erf": 3, "sigmoid": 3, "pow": 3, "log": 3, "sin": 3, "cos": 3}
_TENSOR_LETTERS = "ABCDEFGHJKMNQRSWXYZ"
_INDEX_LETTERS = "ijkmnpqrstuvwxyzabcdfgh"


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
        names = [
            subscript.name for subscript in self.equation.target.subscripts if isinstance(subscript, Index)
        ]
        return (
            self.equation.assign is Assign.SET
            and not self.equation.guard
            and len(names) == len(self.equation.target.subscripts)
            and sorted(names) == sorted(self.extents)
        )

    def map(self, change: Callable[[Expr], Expr]) -> Stage:
        equation = map_expressions(self.equation, change)
        assert isinstance(equation, Equation)
        return replace(self, equation=equation)


@dataclass(frozen=True, slots=True)
class Graph:
    """Stages in order, and every tensor by name; inputs, parameters and outputs in the caller's order."""

    tensors: Mapping[str, Tensor]
    stages: tuple[Stage, ...]

    def readers(self, tensor: str) -> int:
        """Number of places that read the tensor."""
        return sum(access.tensor == tensor for stage in self.stages for access in reads(stage.equation))

    def is_temporary(self, tensor: str) -> bool:
        return self.tensors[tensor].role is Role.TEMPORARY

    def map(self, change: Callable[[Stage], Stage]) -> Graph:
        return replace(self, stages=tuple(map(change, self.stages)))


def program(graph: Graph, dtypes: Mapping[DType, DType] | None = None) -> tuple[Program, dict[str, str]]:
    """Return the tidy program, and the short name of each input, parameter and output.

    `dtypes` replaces dtypes throughout, for a module that was exported in float64 for exact constants.
    """
    graph = _squeeze(_retype(graph, dtypes or {}))
    previous = None
    while graph != previous:
        previous = graph
        for step in (_sweep, _merge, _inline_copies, _write_through, _inline_views, _inline_elementwise):
            graph = step(graph)
    graph = _split_loops(graph)
    return _named(graph.map(lambda stage: stage.map(lambda expr: polish(expr, graph.tensors))))


def _folded(graph: Graph) -> Graph:
    return graph.map(lambda stage: _fold(stage, graph))


def _fold(stage: Stage, graph: Graph) -> Stage:
    extents = stage.extents
    folded = stage.map(lambda expr: fold(expr, extents, graph.tensors))
    guard = tuple(condition for condition in folded.equation.guard if condition != Const(True))
    return replace(folded, equation=replace_guard(folded.equation, guard))


def replace_guard(equation: Equation, guard: tuple[Expr, ...]) -> Equation:
    """Return the equation under another guard."""
    return Equation(equation.target, equation.assign, equation.value, guard)


def _retype(graph: Graph, dtypes: Mapping[DType, DType]) -> Graph:
    def cast(expr: Expr) -> Expr:
        if isinstance(expr, Cast):
            return Cast(dtypes.get(expr.dtype, expr.dtype), cast(expr.value))
        if isinstance(expr, Access):
            return Access(expr.tensor, tuple(map(cast, expr.subscripts)))
        return Call(expr.op, tuple(map(cast, expr.args))) if isinstance(expr, Call) else expr

    tensors = {n: replace(t, dtype=dtypes.get(t.dtype, t.dtype)) for n, t in graph.tensors.items()}
    return Graph(tensors, tuple(stage.map(cast) for stage in graph.stages))


def _squeeze(graph: Graph) -> Graph:
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

    return _folded(Graph(tensors, tuple(map(squeeze, graph.stages))))


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


def replace_tensor(access: Access, names: Mapping[str, str]) -> Access:
    """Return the access with its tensor renamed."""
    return Access(names[access.tensor], access.subscripts) if access.tensor in names else access


def _inline_copies(graph: Graph) -> Graph:
    """Read through what is a copy with affine subscripts, a constant, or a function of indices alone."""

    def trivial(stage: Stage) -> bool:
        value = stage.equation.value
        if isinstance(value, Access):
            return not any(_is_view(subscript) or _is_indirect(subscript) for subscript in value.subscripts)
        return not any(accesses(value))

    return _inline(graph, trivial)


def _inline_views(graph: Graph) -> Graph:
    """Read through reshapes that no producer could write at once."""
    return _inline(graph, lambda s: isinstance(s.equation.value, Access) and not _gathers(s.equation.value))


def _inline_elementwise(graph: Graph) -> Graph:
    """Inline an elementwise stage where that computes nothing more often than before, save cheap repeats."""

    def wanted(stage: Stage) -> bool:
        places = [
            (reader, access)
            for reader in graph.stages
            for access in reads(reader.equation)
            if access.tensor == stage.tensor
        ]
        size = graph.tensors[stage.tensor].size
        once = len(places) == 1 or _cost(stage.equation.value) <= MAX_REPEATED_COST
        return once and all(_evaluations(reader, access) <= size for reader, access in places)

    for stage in graph.stages:
        if graph.is_temporary(stage.tensor) and stage.is_elementwise and wanted(stage):
            return _substitute_stage(graph, stage)
    return graph


def _inline(graph: Graph, wanted: Callable[[Stage], bool]) -> Graph:
    for stage in graph.stages:
        if graph.is_temporary(stage.tensor) and stage.is_elementwise and wanted(stage):
            current = next(s for s in graph.stages if s.tensor == stage.tensor)
            graph = _substitute_stage(graph, current)
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
        return _fold(reader.map(lambda expr: map_accesses(expr, read)), graph)

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
    return any(
        isinstance(node, Call) and node.op in ("floordiv", "mod") for node in subexpressions(subscript)
    )


def _is_indirect(subscript: Expr) -> bool:
    return any(isinstance(node, Access) for node in subexpressions(subscript))


def _gathers(access: Access) -> bool:
    return any(_is_indirect(subscript) for subscript in access.subscripts)


def _write_through(graph: Graph) -> Graph:
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


def _redirect(
    graph: Graph, copy: Stage, tensor: str, inverse: Callable[[tuple[Expr, ...]], dict[str, Expr]]
) -> Graph:
    def move(access: Access) -> Expr:
        if access.tensor != tensor:
            return access
        values = inverse(access.subscripts)
        return substitute(copy.equation.target, values)

    stages = tuple(
        _fold(stage.map(lambda expr: map_accesses(expr, move)), graph)
        for stage in graph.stages
        if stage is not copy
    )
    return replace(graph, stages=stages)


@dataclass(frozen=True, slots=True)
class _Digit:
    """A subscript `(index // step) % size`."""

    index: str
    step: int
    size: int


def _inverse(
    source: Access, shape: tuple[int, ...], extents: Mapping[str, int]
) -> Callable[[tuple[Expr, ...]], dict[str, Expr]] | None:
    """Solve `subscripts of source` for the loop indices: affine, if each subscript is one digit of an index.

    Returns a function from subscripts to the value of each index, or None where the map is not one to
    one or its inverse not affine.
    """
    digits = [_digit(s, extent) for s, extent in zip(source.subscripts, shape, strict=True)]
    by_index: dict[str, list[tuple[_Digit, int]]] = {name: [] for name in extents}
    for position, digit in enumerate(digits):
        if digit is None:
            return None
        by_index[digit.index].append((digit, position))
    for name, found in by_index.items():
        step = 1
        for digit, _ in sorted(found, key=lambda item: item[0].step):
            if digit.step != step:
                return None
            step *= digit.size
        if step != extents[name]:
            return None

    def solve(subscripts: tuple[Expr, ...]) -> dict[str, Expr]:
        values: dict[str, Expr] = {}
        for name, found in by_index.items():
            total: Expr = Const(0)
            for digit, position in sorted(found, key=lambda item: -item[0].step):
                total = Call("add", (total, Call("mul", (Const(digit.step), subscripts[position]))))
            values[name] = simplify(total, {})
        return values

    return solve


def _digit(subscript: Expr, size: int) -> _Digit | None:
    match subscript:
        case Index(name):
            return _Digit(name, 1, size)
        case Call("floordiv", (Index(name), Const(int(step)))):
            return _Digit(name, step, size)
        case Call("mod", (Index(name), Const(int(modulus)))) if modulus == size:
            return _Digit(name, 1, size)
        case Call("mod", (Call("floordiv", (Index(name), Const(int(step)))), Const(int(modulus)))) if (
            modulus == size
        ):
            return _Digit(name, step, size)
        case Call("floordiv", (Call("mod", (Index(name), Const(int(modulus)))), Const(int(step)))):
            return _Digit(name, step, size) if modulus == step * size else None
    return None


def _split_loops(graph: Graph) -> Graph:
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
            stage = _fold(new.map(lambda expr, values=values: substitute(expr, values)), graph)  # type: ignore[misc]
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


def _named(graph: Graph) -> tuple[Program, dict[str, str]]:
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
