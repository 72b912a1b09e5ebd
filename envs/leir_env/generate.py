"""Random small programs, valid by construction, for tests and for the fuzz suite.

Programs are chains of stages (maps, reductions, contractions, shifts with padding, permutations,
gathers, running maxima with positions), some of them grouped under a shared loop with private temporaries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
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
)
from envs.leir_env.tree import accesses, equations, expressions

_EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
_UNARY = ("abs", "tanh", "sigmoid", "erf", "neg")
_BINARY = ("add", "sub", "mul", "max", "min")
_REDUCTIONS = (Assign.ADD, Assign.MAX, Assign.MIN)


def random_program(rng: np.random.Generator) -> Program:
    """Return a program of one to seven equations over at most four index domains, well under 10^5 operations."""
    return _Generator(rng).program()


def random_inputs(program: Program, rng: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
    """Draw values for every input and parameter; integers used as subscripts stay within what they index."""
    from envs.leir_env.interp import numpy_dtype

    limits = index_limits(program)
    values = {}
    for tensor in program.inputs:
        array: npt.NDArray[Any] = (
            np.asarray(rng.normal(size=tensor.shape))
            if tensor.dtype.is_float
            else np.asarray(rng.integers(0, limits.get(tensor.name, 2), size=tensor.shape))
        )
        values[tensor.name] = array.astype(numpy_dtype(tensor.dtype))
    return values


def index_limits(program: Program) -> dict[str, int]:
    """For each tensor used as a subscript, the least extent that its values index."""
    from envs.leir_env.tree import declarations

    limits: dict[str, int] = {}
    declared = declarations(program)
    for statement in program.body:
        for equation in equations(statement):
            for expr in expressions(equation):
                for access in accesses(expr):
                    for subscript, extent in zip(access.subscripts, declared[access.tensor][0].shape, strict=True):
                        if isinstance(subscript, Access):
                            name = subscript.tensor
                            limits[name] = min(limits.get(name, extent), extent)
    return limits


@dataclass(frozen=True, slots=True)
class _Source:
    """A tensor that later stages may read; `dims` are the indices of its dimensions, `inside` its loop."""

    name: str
    dtype: DType
    dims: tuple[str, ...]
    inside: str = ""


@dataclass
class _Generator:
    rng: np.random.Generator
    extents: dict[str, int] = field(default_factory=dict)
    sources: list[_Source] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    letters: list[str] = field(default_factory=lambda: [*"ACDEFGHJKMNOQRSWXYZ", "A2", "A3", "A4"])

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def program(self) -> Program:
        count = int(self.rng.integers(2, 5))
        self.extents = {name: int(self.pick(_EXTENTS)) for name in "ijkl"[:count]}
        dtype = self.pick((DType.F32, DType.F32, DType.F32, DType.F64))
        for _ in range(int(self.rng.integers(1, 4))):
            self.declare(dtype, self.dims(), Role.INPUT)
        body: list[Statement] = []
        stages = int(self.rng.integers(1, 5))
        while len(body) < stages:
            body.append(self.group(dtype) if self.chance(0.35) else self.stage(dtype))
        temporaries = [t for t in self.tensors if t.role is Role.TEMPORARY]
        outputs = {temporaries[-1].name, *(t.name for t in temporaries if not _read(body, t.name))}
        header = [
            Tensor(t.name, t.dtype, t.shape, t.scope, Role.OUTPUT if t.name in outputs else t.role)
            for t in self.tensors
        ]
        header.sort(key=lambda tensor: list(Role).index(tensor.role))
        return Program(Block(tuple(body), tuple(header)))

    def dims(self) -> tuple[str, ...]:
        names = [name for name in self.extents if self.chance(0.6)] or [self.pick(list(self.extents))]
        return tuple(str(name) for name in self.rng.permutation(names))

    def declare(self, dtype: DType, dims: tuple[str, ...], role: Role, inside: str = "") -> Tensor:
        shape = tuple(self.extents[name] for name in dims)
        tensor = Tensor(self.letters.pop(0), dtype, shape, role=role)
        self.sources.append(_Source(tensor.name, dtype, dims, inside))
        if not inside:
            self.tensors.append(tensor)
        return tensor

    def group(self, dtype: DType) -> Statement:
        """Several stages under one loop, handing values on through private temporaries."""
        outer = self.pick(list(self.extents))
        body: list[Statement] = []
        private: list[Tensor] = []
        for position in range(int(self.rng.integers(2, 4))):
            last = position == 2
            hidden = not last and self.chance(0.6)
            statement, tensor = self.equation(dtype, outer, private=hidden)
            body.append(statement)
            if hidden:
                private.append(tensor)
        closing, _ = self.equation(dtype, outer, private=False, must_read=[t.name for t in private])
        body.append(closing)
        self.sources = [s for s in self.sources if not s.inside]
        kind = Kind.PARALLEL if self.chance(0.3) else Kind.SERIAL
        return Loop(kind, outer, self.extents[outer], Block(tuple(body), tuple(private)))

    def stage(self, dtype: DType) -> Statement:
        return self.equation(dtype, "", private=False)[0]

    def equation(
        self, dtype: DType, outer: str, private: bool, must_read: list[str] | None = None
    ) -> tuple[Statement, Tensor]:
        """One equation under its own loops, its new tensor included; `outer` is already open."""
        readable = [s for s in self.sources if s.dtype is dtype]
        if outer:
            readable = [s for s in readable if s.inside or outer in s.dims or s.name not in self.written_here(outer)]
        chosen = [self.pick(readable) for _ in range(int(self.rng.integers(1, 4)))]
        chosen += [s for s in readable if s.name in (must_read or ())]
        space = list(dict.fromkeys(name for s in chosen for name in s.dims if name != outer))
        inner = [str(name) for name in self.rng.permutation(space)] if space else []
        reduced = [name for name in inner if self.chance(0.4)] if self.chance(0.6) else []
        kept = tuple(name for name in inner if name not in reduced)
        target_dims = kept if private or not outer else (outer, *kept)
        value = self.value([self.read(s) for s in chosen])
        assign = self.pick(_REDUCTIONS) if reduced else Assign.SET
        tensor = self.declare(dtype, target_dims, Role.TEMPORARY, outer if private else "")
        target = Access(tensor.name, tuple(Index(name) for name in target_dims))
        guard: tuple[Expr, ...] = ()
        if reduced and self.chance(0.2):
            name = reduced[0]
            guard = (Call("le", (Index(name), Const(self.extents[name] // 2))),)
        statement: Statement = Equation(target, assign, value, guard)
        kinds = dict.fromkeys(inner, Kind.SERIAL)
        if inner and not reduced and self.extents[inner[-1]] in (2, 4, 8, 16) and self.chance(0.3):
            kinds[inner[-1]] = Kind.VECTOR
        elif inner and self.extents[inner[-1]] <= 4 and self.chance(0.3):
            kinds[inner[-1]] = Kind.UNROLLED
        for name in reversed(inner):
            statement = Loop(kinds[name], name, self.extents[name], Block((statement,)))
        return statement, tensor

    def written_here(self, outer: str) -> set[str]:
        """Tensors that the group under way writes at the current iteration only."""
        inputs = {t.name for t in self.tensors if t.role is Role.INPUT}
        return {s.name for s in self.sources if s.name not in inputs and not s.inside}

    def read(self, source: _Source) -> Expr:
        plain = tuple(Index(name) for name in source.dims)
        access = Access(source.name, plain)
        if source.inside or not source.dims or not self.chance(0.15):
            return access
        position = int(self.rng.integers(len(source.dims)))
        name = source.dims[position]
        if source.name not in {t.name for t in self.tensors if t.role is Role.INPUT}:
            return access
        shifted = list[Expr](plain)
        shifted[position] = Call("sub", (Index(name), Const(1)))
        inside = Call("ge", (Index(name), Const(1)))
        return Call("select", (inside, Access(source.name, tuple(shifted)), Const(0.5)))

    def value(self, terms: list[Expr]) -> Expr:
        value = terms[0]
        for term in terms[1:]:
            value = Call(self.pick(_BINARY), (value, term))
        if self.chance(0.4):
            op = self.pick(_UNARY)
            value = Call(op, (value,))
        if self.chance(0.2):
            value = Call("exp", (Call("min", (value, Const(1.0))),))
        if self.chance(0.2):
            value = Call("div", (value, Call("add", (Call("abs", (terms[-1],)), Const(1.5)))))
        if self.chance(0.15):
            value = Call("select", (Call("lt", (terms[0], Const(0.25))), value, Const(-1.0)))
        return value


def _read(body: list[Statement], name: str) -> bool:
    return any(
        access.tensor == name
        for statement in body
        for equation in equations(statement)
        for expr in (equation.value, *equation.guard)
        for access in accesses(expr)
    )
