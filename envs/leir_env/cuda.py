"""The grid of a CUDA kernel: which loops run over which axis, and who may run an equation.

Each top-level nest is one kernel. All its axes are launched around the whole nest, as wide as the widest loop
on them; a bound loop then only names its axis, and every equation is guarded against the threads (and
blocks) that have no iteration of it. Guards stand at the leaves, so that barriers are reached by all threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tvm import tirx

from envs.leir_env.affine import affine
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
    Scope,
    Statement,
    Tensor,
)
from envs.leir_env.lower_expr import BuildError
from envs.leir_env.tree import accesses, expressions, loops_below

Stmt: TypeAlias = tirx.Stmt

START_THREADS = 256
"""Threads of a block that only writes initial values."""

_TAGS = {axis: ("blockIdx." if axis.is_block else "threadIdx.") + axis.value[1] for axis in Axis}


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of one kernel, with their variables and extents, and the loops bound around a place in it."""

    axes: Mapping[Axis, tuple[tirx.Var, int]]
    bound: Mapping[Axis, int]
    """Extents of the bound loops around this place."""

    def enter(self, loop: Loop) -> tuple[Grid, tirx.Var]:
        """Go inside a bound loop: returns the variable that is its index."""
        assert loop.axis is not None
        if loop.axis in self.bound:
            raise BuildError("axis_bound_twice", f"loop {loop.index} is bound to {loop.axis}, as is a loop around it")
        return Grid(self.axes, {**self.bound, loop.axis: loop.extent}), self.axes[loop.axis][0]

    def guard(self, scope: Scope, body: Stmt) -> Stmt:
        """Let only those run `body` that have an iteration of it: once an element of a tensor of `scope`.

        Blocks repeat what goes to their own shared memory, threads what goes to their own registers.
        """
        for axis, (var, extent) in self.axes.items():
            if axis in self.bound:
                if self.bound[axis] < extent:
                    body = tirx.IfThenElse(tirx.LT(var, tirx.IntImm("int32", self.bound[axis])), body, None)
            elif scope is Scope.GLOBAL or (scope is Scope.SHARED and not axis.is_block):
                body = tirx.IfThenElse(tirx.EQ(var, tirx.IntImm("int32", 0)), body, None)
        return body

    def launch(self, body: Stmt) -> Stmt:
        """Bind the axes around the body of the kernel."""
        for axis, (var, extent) in self.axes.items():
            bind = tirx.IterVar(None, tirx.Var(_TAGS[axis], "int32"), 1, _TAGS[axis])
            body = tirx.For(var, 0, extent, tirx.ForKind.THREAD_BINDING, body, thread_binding=bind)
        return body


def grid(nest: Statement) -> Grid:
    """Return the grid of a top-level nest. Raises `BuildError` if nothing in it is bound."""
    extents: dict[Axis, int] = {}
    for loop in loops_below(nest):
        if loop.axis is not None:
            extents[loop.axis] = max(extents.get(loop.axis, 1), loop.extent)
    if not extents:
        name = f"loop {nest.index}" if isinstance(nest, Loop) else f"the equation of {nest.target.tensor}"
        raise BuildError("unbound", f"{name} stands at the top but no loop in it is bound: bind one to a GPU axis")
    # From the inside out, as they are launched.
    order = (Axis.TX, Axis.TY, Axis.TZ, Axis.BX, Axis.BY, Axis.BZ)
    return Grid({axis: (tirx.Var(axis.value, "int32"), extents[axis]) for axis in order if axis in extents}, {})


def start_nest(tensor: Tensor) -> tuple[tuple[Loop, ...], tuple[Expr, ...], tuple[Expr, ...]]:
    """A kernel of initial values: its loops, the subscripts in them, and the guard of the tail."""
    empty = Block(())
    threads = min(tensor.size, START_THREADS)
    loops = (
        Loop(Kind.BOUND, "startb", -(-tensor.size // threads), empty, Axis.BX),
        Loop(Kind.BOUND, "startt", threads, empty, Axis.TX),
    )
    flat: Expr = Call("add", (Call("mul", (Const(threads), Index("startb"))), Index("startt")))
    subscripts: list[Expr] = []
    stride = tensor.size
    for extent in tensor.shape:
        stride //= extent
        subscripts.append(Call("mod", (Call("floordiv", (flat, Const(stride))), Const(extent))))
    return loops, tuple(subscripts), (Call("lt", (flat, Const(tensor.size))),)


def barrier() -> Stmt:
    """All threads of the block wait for one another."""
    return tirx.Evaluate(tirx.op.tvm_storage_sync("shared"))


@dataclass(frozen=True, slots=True)
class _Use:
    """An element used in a kernel, and the bound loops around the equation by axis."""

    access: Access
    written: bool
    bound: Mapping[Axis, str]


def check_nest(nest: Statement, declared: Mapping[str, tuple[Tensor, tuple[str, ...]]]) -> None:
    """Check where the temporaries of a kernel live.

    `declared` holds each tensor and the bound loops around the block that declares it.
    """
    for use in _uses(nest, {}):
        tensor, around = declared[use.access.tensor]
        if not use.written or tensor.scope is Scope.GLOBAL:
            continue
        for axis, index in use.bound.items():
            if index not in around and (axis.is_block or tensor.scope is Scope.LOCAL):
                kind = "local" if tensor.scope is Scope.LOCAL else "shared"
                owner = "block" if axis.is_block else "thread"
                raise BuildError(
                    "declared_outside",
                    f"{kind} tensor {tensor.name} is written inside bound loop {index} but declared outside "
                    f"it: each {owner} has its own; declare it inside {index}",
                )


def exchanges(statements: tuple[Statement, ...], bound: Mapping[Axis, str], tensors: Mapping[str, Tensor]) -> bool:
    """Does one thread of a block read or overwrite in global memory what another wrote, in these statements?

    Raises `BuildError` if it is another block: nothing orders blocks within a kernel.
    """
    uses = [
        use
        for statement in statements
        for use in _uses(statement, bound)
        if tensors[use.access.tensor].scope is Scope.GLOBAL
    ]
    found = False
    for write in (use for use in uses if use.written):
        for other in uses:
            if other.access.tensor == write.access.tensor:
                for axis in _moved(write, other):
                    if axis.is_block:
                        raise BuildError(
                            "grid_exchange",
                            f"tensor {write.access.tensor} passes from one block to another along {axis} "
                            "within a kernel: nothing orders blocks; end the nest between the two",
                        )
                    found = True
    return found


def _moved(write: _Use, other: _Use) -> Iterator[Axis]:
    """The axes along which the element may be used at another coordinate than it was written."""
    if write.access == other.access and write.bound == other.bound:
        return
    for axis in write.bound.keys() | other.bound.keys():
        first, second = write.bound.get(axis), other.bound.get(axis)
        if first is None or second is None or not _same_place(write.access, first, other.access, second):
            yield axis


def _same_place(left: Access, first: str, right: Access, second: str) -> bool:
    """Do the two indices stand in the same subscript with the same weight?"""
    for a, b in zip(left.subscripts, right.subscripts, strict=True):
        one, two = affine(a), affine(b)
        if one is None or two is None or one.coefficient(first) != two.coefficient(second):
            return False
    return any((form := affine(a)) is not None and first in form.names for a in left.subscripts)


def _uses(statement: Statement, bound: Mapping[Axis, str]) -> Iterator[_Use]:
    if isinstance(statement, Equation):
        yield _Use(statement.target, True, bound)
        if statement.assign is not Assign.SET:
            yield _Use(statement.target, False, bound)
        for position, expr in enumerate(expressions(statement)):
            for access in accesses(expr):
                if position or access is not statement.target:
                    yield _Use(access, False, bound)
        return
    inner = {**bound, statement.axis: statement.index} if statement.axis else bound
    for child in statement.block.body:
        yield from _uses(child, inner)
