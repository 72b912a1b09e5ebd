"""A program as numbers: a short feature vector for policies that do not read text.

Counts and sizes are `log2(1 + x)`; shares lie between 0 and 1, and shares of work are weighted by iterations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from envs.leir_env.affine import strides
from envs.leir_env.ir import (
    Access,
    Assign,
    Call,
    Equation,
    Kind,
    Loop,
    Program,
    Role,
    Scope,
    Tensor,
    subexpressions,
)
from envs.leir_env.ops import OPS
from envs.leir_env.tree import Node, declarations, expressions, walk

BOUND = 256.0
"""No feature is as large: log2 of every count and size that the limits of LEIR allow lies far below."""


@dataclass(frozen=True, slots=True)
class Line:
    """One equation: what one execution does, and how often it is executed."""

    iterations: int
    kinds: frozenset[Kind]
    """Of the loops around it."""
    accumulates: bool
    guarded: bool
    flops: int
    accesses: int
    unit: int
    """Accesses that step to the next element with the innermost loop."""
    same: int
    """Accesses that stay with the innermost loop."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What features are computed from."""

    lines: tuple[Line, ...]
    loops: tuple[Loop, ...]
    depth: int
    tensors: tuple[Tensor, ...]

    def share(self, counted: Callable[[Line], float], among: Callable[[Line], float]) -> float:
        """A sum over the equations, weighted by iterations, as a share of another."""
        whole = sum(line.iterations * among(line) for line in self.lines)
        return sum(line.iterations * counted(line) for line in self.lines) / whole if whole else 0.0

    def below(self, kind: Kind) -> float:
        """The share of iterations inside a loop of a kind."""
        return self.share(lambda line: kind in line.kinds, lambda line: 1)


def _size(count: float) -> float:
    return math.log2(1 + count)


def _loops(kind: Kind) -> Callable[[Facts], float]:
    return lambda facts: _size(sum(loop.kind is kind for loop in facts.loops))


def _work_below(kind: Kind) -> Callable[[Facts], float]:
    return lambda facts: facts.below(kind)


FEATURES: dict[str, Callable[[Facts], float]] = {
    "flops": lambda f: _size(sum(line.iterations * line.flops for line in f.lines)),
    "iterations": lambda f: _size(sum(line.iterations for line in f.lines)),
    "interface_bytes": lambda f: _size(sum(t.nbytes for t in f.tensors if t.role is not Role.TEMPORARY)),
    "temporary_bytes": lambda f: _size(sum(t.nbytes for t in f.tensors if t.role is Role.TEMPORARY)),
    "equations": lambda f: _size(len(f.lines)),
    "temporaries": lambda f: _size(sum(t.role is Role.TEMPORARY for t in f.tensors)),
    "local_tensors": lambda f: _size(sum(t.scope is Scope.LOCAL for t in f.tensors)),
    "shared_tensors": lambda f: _size(sum(t.scope is Scope.SHARED for t in f.tensors)),
    "depth": lambda f: float(f.depth),
    **{f"loops_{kind.name.lower()}": _loops(kind) for kind in Kind},
    **{f"work_{kind.name.lower()}": _work_below(kind) for kind in Kind if kind is not Kind.SERIAL},
    "work_accumulating": lambda f: f.share(lambda line: line.accumulates, lambda line: 1),
    "work_guarded": lambda f: f.share(lambda line: line.guarded, lambda line: 1),
    "accesses_unit_stride": lambda f: f.share(lambda line: line.unit, lambda line: line.accesses),
    "accesses_invariant": lambda f: f.share(lambda line: line.same, lambda line: line.accesses),
    "worst_unit_stride": lambda f: min(
        ((line.unit + line.same) / line.accesses for line in f.lines if line.accesses), default=1.0
    ),
}
"""Each feature by name, in the order of the vector."""


@functools.lru_cache(maxsize=2048)
def _values(program: Program) -> tuple[float, ...]:
    facts = _facts(program)
    return tuple(feature(facts) for feature in FEATURES.values())


def features(program: Program) -> npt.NDArray[np.float32]:
    """Return the features of a program: float32, one for each of FEATURES, in its order."""
    return np.array(_values(program), np.float32)


def _facts(program: Program) -> Facts:
    nodes = walk(program)
    declared = declarations(program)
    shapes = {name: tensor.shape for name, (tensor, _) in declared.items()}
    return Facts(
        tuple(_line(node, node.statement, shapes) for node in nodes if isinstance(node.statement, Equation)),
        tuple(node.statement for node in nodes if isinstance(node.statement, Loop)),
        max((len(node.loops) for node in nodes), default=0),
        tuple(tensor for tensor, _ in declared.values()),
    )


def _line(node: Node, equation: Equation, shapes: Mapping[str, tuple[int, ...]]) -> Line:
    found = _accesses(equation)
    innermost = node.loops[-1].index if node.loops else ""
    moved = [_stride(access, shapes[access.tensor], innermost) for access in found]
    return Line(
        math.prod(loop.extent for loop in node.loops),
        frozenset(loop.kind for loop in node.loops),
        equation.assign is not Assign.SET,
        bool(equation.guard),
        _flops(equation),
        len(found),
        moved.count(1),
        moved.count(0),
    )


@functools.lru_cache(maxsize=16384)
def _stride(access: Access, shape: tuple[int, ...], index: str) -> int | None:
    """By how many elements an access moves with an index; None where it is not affine."""
    moved = strides(access, shape)
    return None if moved is None else moved.get(index, 0)


@functools.lru_cache(maxsize=8192)
def _accesses(equation: Equation) -> tuple[Access, ...]:
    return tuple(node for expr in expressions(equation) for node in subexpressions(expr) if isinstance(node, Access))


@functools.lru_cache(maxsize=8192)
def _flops(equation: Equation) -> int:
    called = (node for node in subexpressions(equation.value) if isinstance(node, Call))
    return sum(OPS[call.op].flops for call in called) + (equation.assign is not Assign.SET)
