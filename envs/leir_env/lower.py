"""`Program` to a TIR function, by direct construction (0.3 ms for a matmul).

Loops map to TVM's loop kinds, guards to branches, temporaries to allocations at the head of the block that
declares them. Legality is proved elsewhere: TVM checks almost none of it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import tvm
from tvm import tirx

from envs.leir_env import cuda, elementary
from envs.leir_env.ir import (
    Access,
    Assign,
    Axis,
    Block,
    Call,
    Const,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Scope,
    Statement,
    Tensor,
    identity,
    subexpressions,
)
from envs.leir_env.lower_expr import (
    BuildError,
    Environment,
    accumulated,
    cast,
    condition,
    element,
    likely,
    subscripts,
    value,
)
from envs.leir_env.lower_ops import NAMES
from envs.leir_env.starts import Start, starts
from envs.leir_env.tails import cuts
from envs.leir_env.tree import Path, accesses, at, declarations, expressions, walk

Stmt: TypeAlias = tirx.Stmt

TARGETS = ("llvm", "cuda")

_KINDS = {
    Kind.SERIAL: tirx.ForKind.SERIAL,
    Kind.PARALLEL: tirx.ForKind.PARALLEL,
    Kind.VECTOR: tirx.ForKind.VECTORIZED,
    Kind.UNROLLED: tirx.ForKind.UNROLLED,
}
_SCOPES = {Scope.GLOBAL: "global", Scope.SHARED: "shared", Scope.LOCAL: "local"}


def lower(program: Program, target: str = "llvm") -> tirx.PrimFunc:
    """Return the function `main` of the program: inputs, parameters, then outputs, in header order.

    `target` is "llvm" or "cuda". Raises `BuildError` for what it can't express.
    """
    if target not in TARGETS:
        raise BuildError("unknown_target", f"{target} is no target; there are {' and '.join(TARGETS)}")
    declared = declarations(program)
    tensors = {name: tensor for name, (tensor, _) in declared.items()}
    interface = (*program.inputs, *program.outputs)
    buffers = {tensor.name: _buffer(tensor, target) for tensor in interface}
    if target == "cuda":
        _check_scopes(program)
    lowering = _Lowering(starts(program))
    body = lowering.block(program.block, (), _Place(Environment(target, tensors, buffers, {}, {})))
    if target == "llvm":
        body = _with_elementary(program, body)
    params = [buffers[tensor.name] for tensor in interface]
    # On a GPU it would become `__restrict__`, under which nvcc moves loads over barriers.
    attributes = {"global_symbol": "main", "s_tir": True, "tirx.noalias": target == "llvm"}
    return tirx.PrimFunc(params, body).with_attr(attributes)


def _buffer(tensor: Tensor, target: str) -> tirx.Var:
    """Declare the buffer of a tensor. On a CPU every scope is memory; what is small ends up in registers."""
    scope = _SCOPES[tensor.scope] if target == "cuda" else "global"
    return tirx.decl_buffer(tensor.shape, NAMES[tensor.dtype], tensor.name, scope=scope)


def _with_elementary(program: Program, body: Stmt) -> Stmt:
    """Attach the definitions of the elementary functions that the program calls."""
    nodes = [node.statement for node in walk(program)]
    called = {
        part.op
        for statement in nodes
        if isinstance(statement, Equation)
        for expr in expressions(statement)
        for part in subexpressions(expr)
        if isinstance(part, Call)
    } & elementary.FUNCTIONS.keys()
    if not called:
        return body
    names = frozenset(loop.index for loop in nodes if isinstance(loop, Loop))
    lanes = {
        count
        for loop in nodes
        if isinstance(loop, Loop) and loop.kind is Kind.VECTOR
        for count in (loop.extent, *(case.extent for case in cuts(loop, names)))
    }
    text = tvm.ir.StringImm(elementary.definitions(called, lanes))
    return tirx.AttrStmt(tvm.ir.StringImm("elementary"), "pragma_import_llvm", text, body)


def _check_scopes(program: Program) -> None:
    """On a GPU the header's temporaries are in global memory, those of a kernel are not."""
    around = {name: _bound_around(program, path) for name, (_, path) in declarations(program).items()}
    for name, (tensor, path) in declarations(program).items():
        if (tensor.scope is Scope.GLOBAL) == bool(path):
            where, scope = ("inside a kernel", "shared (.s) or local (.l)") if path else ("in the header", "global")
            raise BuildError("scope", f"tensor {name} is declared {where}: there it must be {scope}")
    tensors = {name: (tensor, around[name]) for name, (tensor, _) in declarations(program).items()}
    for nest in program.body:
        cuda.check_nest(nest, tensors)


def _bound_around(program: Program, path: Path) -> tuple[str, ...]:
    """The bound loops that end in the loop at `path`."""
    loops = [at(program, path[:depth]) for depth in range(1, len(path) + 1)]
    return tuple(loop.index for loop in loops if isinstance(loop, Loop) and loop.axis is not None)


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the tree: what names mean there, the kinds of the loops around, the kernel it is in."""

    env: Environment
    around: frozenset[Kind] = frozenset()
    grid: cuda.Grid | None = None
    bound: Mapping[Axis, str] | None = None

    def inside(self, loop: Loop, index: tirx.Var, grid: cuda.Grid | None) -> _Place:
        env = replace(
            self.env,
            indices={**self.env.indices, loop.index: index},
            extents={**self.env.extents, loop.index: loop.extent},
            lanes=self.env.lanes | {loop.index} if loop.kind in _LANES else self.env.lanes,
        )
        bound = {**(self.bound or {}), loop.axis: loop.index} if loop.axis else self.bound
        return _Place(env, self.around | {loop.kind}, grid, bound)


@dataclass(frozen=True, slots=True)
class _Lowering:
    """Walks the tree with the initial values to write before each statement."""

    starts: Mapping[Path, tuple[Start, ...]]

    def block(self, block: Block, path: Path, place: _Place) -> Stmt:
        private = [tensor for tensor in block.tensors if tensor.role is Role.TEMPORARY]
        # A block may be lowered more than once (the cases of a loop that is cut): each time with buffers of its own.
        own = {tensor.name: _buffer(tensor, place.env.target) for tensor in private}
        place = replace(place, env=replace(place.env, buffers={**place.env.buffers, **own}))
        found: list[Stmt] = [tirx.AllocBuffer(buffer) for buffer in own.values()]
        barriers = place.grid is not None and cuda.exchanges(block.body, place.bound or {}, place.env.tensors)
        for position, child in enumerate(block.body):
            here = (*path, position)
            found += [self.start(start, place) for start in self.starts.get(here, ())]
            found.append(self.statement(child, here, place))
            if barriers:
                found.append(cuda.barrier())
        return found[0] if len(found) == 1 else tirx.SeqStmt(found)

    def statement(self, statement: Statement, path: Path, place: _Place) -> Stmt:
        if place.env.target == "cuda" and place.grid is None:
            grid = cuda.grid(statement)
            return grid.launch(self.statement(statement, path, replace(place, grid=grid)))
        if isinstance(statement, Equation):
            return _equation(statement, place)
        cases = cuts(statement, frozenset(place.env.indices)) if statement.kind in _LANES else ()
        if not cases:
            return self.loop(statement, path, place)
        chain: Stmt | None = None
        for case in reversed(cases):
            lanes = replace(statement, extent=case.extent, block=case.block)
            body = self.loop(lanes, path, place)
            holds = [likely(part, place.env) for part in case.conditions]
            chain = tirx.IfThenElse(functools.reduce(tirx.And, holds), body, chain) if holds else body
        return chain

    def loop(self, loop: Loop, path: Path, place: _Place) -> Stmt:
        """One loop. A parallel loop inside another, or a vector inside another, is serial: TVM has none."""
        if loop.kind is Kind.BOUND:
            if place.grid is None:
                raise BuildError(
                    "bound_on_cpu", f"loop {loop.index} is bound to {loop.axis}, but a CPU has no such axis"
                )
            grid, var = place.grid.enter(loop)
            return self.block(loop.block, path, place.inside(loop, var, grid))
        kind = loop.kind
        nested = kind in place.around and kind in (Kind.PARALLEL, Kind.VECTOR)
        if nested or (kind is Kind.PARALLEL and place.grid):
            kind = Kind.SERIAL
        index = tirx.Var(loop.index, "int32")
        body = self.block(loop.block, path, place.inside(loop, index, place.grid))
        return tirx.For(index, 0, loop.extent, _KINDS[kind], body)

    def start(self, start: Start, place: _Place) -> Stmt:
        """Write the identity of an accumulation to every element that is still free."""
        tensor = start.tensor
        loops, target, guard = start.loops, start.subscripts, start.guard
        if place.env.target == "cuda" and place.grid is None:
            loops, target, guard = cuda.start_nest(tensor)
        elif target is None:
            loops, target = _over(tensor)
        zero = Const(identity(start.assign, tensor.dtype))
        statement: Statement = Equation(Access(tensor.name, target), Assign.SET, zero, guard)
        for loop in reversed(loops):
            statement = replace(loop, block=Block((statement,)))
        return self.statement(statement, _NOWHERE, place)


_LANES = (Kind.VECTOR, Kind.UNROLLED)
_NOWHERE = (-1,)
"""The path of statements that the program does not contain."""


def _equation(equation: Equation, place: _Place) -> Stmt:
    env, target = place.env, equation.target
    dtype = env.tensors[target.tensor].dtype
    result = value(equation.value, dtype, env)
    if equation.assign is not Assign.SET:
        result = accumulated(equation, element(target, env), result, dtype, env.target)
    store = tirx.BufferStore(env.buffers[target.tensor], cast(result, dtype), subscripts(target, env))
    return _guarded(equation.guard, store, target, place)


def _over(tensor: Tensor) -> tuple[tuple[Loop, ...], tuple[Expr, ...]]:
    """Loops over every element of a tensor, and its subscripts in them."""
    names = [f"{tensor.name.lower()}{position}" for position in range(len(tensor.shape))]
    loops = (Loop(Kind.SERIAL, name, extent, Block(())) for name, extent in zip(names, tensor.shape, strict=True))
    return tuple(loops), tuple(map(Index, names))


def _guarded(guard: tuple[Expr, ...], store: Stmt, target: Access, place: _Place) -> Stmt:
    """Store where every condition holds; conditions that read tensors are asked after the others."""
    body = store
    for part in sorted(guard, key=lambda part: not any(True for _ in accesses(part))):
        body = tirx.IfThenElse(condition(part, place.env), body, None)
    return place.grid.guard(place.env.tensors[target.tensor].scope, body) if place.grid else body
