"""`Program` to a TIR function, by direct construction (0.1 ms for a matmul).

Loops map to TVM's loop kinds, guards to branches, temporaries to allocations at the head of the block that
declares them. Legality is proved elsewhere: TVM checks almost none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import tvm
from tvm import tirx

from envs.leir_env import elementary
from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Statement,
    Tensor,
    identity,
    subexpressions,
)
from envs.leir_env.lower_expr import (
    NAMES,
    BuildError,
    Environment,
    accumulated,
    cast,
    condition,
    element,
    literal,
    subscripts,
    value,
)
from envs.leir_env.starts import Start, starts
from envs.leir_env.tree import Path, accesses, declarations, expressions, walk

_KINDS = {
    Kind.SERIAL: tirx.ForKind.SERIAL,
    Kind.PARALLEL: tirx.ForKind.PARALLEL,
    Kind.VECTOR: tirx.ForKind.VECTORIZED,
    Kind.UNROLLED: tirx.ForKind.UNROLLED,
}

Stmt = tirx.Stmt


def lower(program: Program, target: str = "llvm") -> tirx.PrimFunc:
    """Return the function `main` of the program: inputs, parameters, then outputs, in header order.

    Raises `BuildError` for what the target can't express.
    """
    tensors = {name: tensor for name, (tensor, _) in declarations(program).items()}
    buffers = {name: _buffer(tensor, target) for name, tensor in tensors.items()}
    lowering = _Lowering(program, starts(program))
    env = Environment(target, tensors, buffers, {}, {})
    body = lowering.block(program.block, (), env, frozenset())
    if target == "llvm":
        body = _with_elementary(program, body)
    params = [buffers[tensor.name] for tensor in (*program.inputs, *program.outputs)]
    return tirx.PrimFunc(params, body).with_attr(
        {"global_symbol": "main", "s_tir": True, "tirx.noalias": True}
    )


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
    lanes = {loop.extent for loop in nodes if isinstance(loop, Loop) and loop.kind is Kind.VECTOR}
    text = tvm.ir.StringImm(elementary.definitions(called, lanes))
    return tirx.AttrStmt(tvm.ir.StringImm("elementary"), "pragma_import_llvm", text, body)


def _buffer(tensor: Tensor, target: str) -> tirx.Var:
    """Declare the buffer of a tensor. On the CPU every scope is memory: small ones end up in registers."""
    scope = "global" if target == "llvm" or not tensor.scope else {".s": "shared", ".l": "local"}[tensor.scope]
    return tirx.decl_buffer(tensor.shape, NAMES[tensor.dtype], tensor.name, scope=scope)


@dataclass(frozen=True, slots=True)
class _Lowering:
    """One program on its way to TIR; `around` holds the kinds of the loops already entered."""

    program: Program
    starts: Mapping[Path, tuple[Start, ...]]

    def block(self, block: Block, path: Path, env: Environment, around: frozenset[Kind]) -> Stmt:
        found: list[Stmt] = [
            tirx.AllocBuffer(env.buffers[tensor.name])
            for tensor in block.tensors
            if tensor.role is Role.TEMPORARY
        ]
        for position, child in enumerate(block.body):
            place = (*path, position)
            found += [self.start(start, env, around) for start in self.starts.get(place, ())]
            found.append(self.statement(child, place, env, around))
        return found[0] if len(found) == 1 else tirx.SeqStmt(found)

    def statement(self, statement: Statement, path: Path, env: Environment, around: frozenset[Kind]) -> Stmt:
        if isinstance(statement, Equation):
            return _guarded(statement.guard, _store(statement, env), env)
        return _loop(statement, env, around, lambda env, around: self.block(statement.block, path, env, around))

    def start(self, start: Start, env: Environment, around: frozenset[Kind]) -> Stmt:
        """Write the identity of an accumulation to every element that is still free."""
        tensor = start.tensor
        loops, target = start.loops, start.subscripts
        if target is None:
            loops = _over(tensor)
            target = tuple(Index(loop.index) for loop in loops)
        zero = literal(identity(start.assign, tensor.dtype), tensor.dtype)

        def write(env: Environment, around: frozenset[Kind]) -> Stmt:
            place = subscripts(Access(tensor.name, target), env)
            return _guarded(start.guard, tirx.BufferStore(env.buffers[tensor.name], zero, place), env)

        return _nest(loops, env, around, write)


Inside = Callable[[Environment, frozenset[Kind]], Stmt]
"""What stands inside a loop, given the names and the kinds around it."""


def _nest(loops: tuple[Loop, ...], env: Environment, around: frozenset[Kind], inside: Inside) -> Stmt:
    if not loops:
        return inside(env, around)
    return _loop(loops[0], env, around, lambda env, around: _nest(loops[1:], env, around, inside))


def _loop(loop: Loop, env: Environment, around: frozenset[Kind], inside: Inside) -> Stmt:
    """One loop. A parallel loop inside another, or a vector inside another, runs serially, as TVM has none."""
    if loop.kind is Kind.BOUND:
        raise BuildError(
            "bound_on_cpu", f"loop {loop.index} is bound to GPU axis {loop.axis}; the CPU has none"
        )
    kind = Kind.SERIAL if loop.kind in around and loop.kind in (Kind.PARALLEL, Kind.VECTOR) else loop.kind
    index = tirx.Var(loop.index, "int32")
    inner = replace(
        env,
        indices={**env.indices, loop.index: index},
        extents={**env.extents, loop.index: loop.extent},
    )
    return tirx.For(index, 0, loop.extent, _KINDS[kind], inside(inner, around | {loop.kind}))


def _over(tensor: Tensor) -> tuple[Loop, ...]:
    """Loops over every element, the last of them vectorised where the extent allows."""
    body = Block(())
    return tuple(
        Loop(Kind.SERIAL, f"{tensor.name.lower()}{position}", extent, body)
        for position, extent in enumerate(tensor.shape)
    )


def _store(equation: Equation, env: Environment) -> Stmt:
    target = equation.target
    dtype = env.tensors[target.tensor].dtype
    result = value(equation.value, dtype, env)
    if equation.assign is not Assign.SET:
        result = accumulated(equation, element(target, env), result, dtype, env.target)
    return tirx.BufferStore(env.buffers[target.tensor], cast(result, dtype), subscripts(target, env))


def _guarded(guard: tuple[Expr, ...], body: Stmt, env: Environment) -> Stmt:
    """Run `body` where every condition holds; conditions that read tensors are asked after the others."""
    if not guard:
        return body
    reads = [any(True for _ in accesses(part)) for part in guard]
    for part, reading in sorted(zip(guard, reads, strict=True), key=lambda pair: not pair[1]):
        body = tirx.IfThenElse(condition(part, env), body, None)
    return body
