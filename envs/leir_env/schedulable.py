"""`Program` to TIR of SBlocks, one for each equation: the form that TVM's schedules work on.

`lower` makes the plain loops that are compiled; this form says besides which axes are spatial and which reduce,
what each block reads, writes, and starts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx

from envs.leir_env.ir import Assign, Block, Const, Equation, Kind, Loop, Program, Statement, Tensor, identity
from envs.leir_env.legality import starts
from envs.leir_env.lower_expr import BuildError, Environment, accumulated, cast, condition, element, subscripts, value
from envs.leir_env.lower_ops import NAMES
from envs.leir_env.tree import Path, declarations, indices, walk

PLAIN = "plain"
"""A target that expressions are lowered for without what suits our own kernels."""


def schedulable(program: Program) -> tirx.PrimFunc:
    """Return the function `main`: inputs, parameters, then outputs. Raises `BuildError` for a program with a schedule.

    Such a one has loops that are not serial, or temporaries inside loops.
    """
    tensors = {name: tensor for name, (tensor, _) in declarations(program).items()}
    buffers = {name: tirx.decl_buffer(tensor.shape, NAMES[tensor.dtype], name) for name, tensor in tensors.items()}
    interface = [tensor.name for tensor in (*program.inputs, *program.outputs)]
    first: dict[str, Path] = {}
    for node in walk(program):
        if isinstance(node.statement, Equation):
            first.setdefault(node.statement.target.tensor, node.path)
    blocks = _Blocks(tensors, buffers, frozenset(first[name] for name in starts(program)))
    private = [buffer for name, buffer in buffers.items() if name not in interface]
    root = s_tir.SBlock([], [], [], "root", blocks.body(program.block, (), ()), alloc_buffers=private)
    function = tirx.PrimFunc([buffers[name] for name in interface], s_tir.SBlockRealize([], True, root))
    return function.with_attr({"global_symbol": "main", "s_tir": True, "tirx.noalias": True})


_Around = tuple[tuple[Loop, tirx.Var], ...]
"""The loops around a place, with their variables."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    tensors: Mapping[str, Tensor]
    buffers: Mapping[str, tirx.Var]
    started: frozenset[Path]
    """The equations that find their target at its identity."""

    def body(self, block: Block, path: Path, around: _Around) -> tirx.Stmt:
        found = [self.statement(child, (*path, number), around) for number, child in enumerate(block.body)]
        return found[0] if len(found) == 1 else tirx.SeqStmt(found)

    def statement(self, statement: Statement, path: Path, around: _Around) -> tirx.Stmt:
        if isinstance(statement, Equation):
            return self.block(statement, path in self.started, around)
        if statement.kind is not Kind.SERIAL or statement.block.tensors:
            raise BuildError("scheduled", f"loop {statement.index} is scheduled: it is not serial, or declares tensors")
        var = tirx.Var(statement.index, "int32")
        body = self.body(statement.block, path, (*around, (statement, var)))
        return tirx.For(var, 0, statement.extent, tirx.ForKind.SERIAL, body)

    def block(self, equation: Equation, started: bool, around: _Around) -> tirx.Stmt:
        """One equation, on axes of its own that stand for the loops around."""
        spatial = frozenset().union(*map(indices, equation.target.subscripts))
        others = tirx.IterVar.Ordered if equation.assign is Assign.SET else tirx.IterVar.CommReduce
        axes = [
            tirx.IterVar(
                tvm.ir.Range(0, loop.extent),
                tirx.Var(f"v{loop.index}", "int32"),
                tirx.IterVar.DataPar if loop.index in spatial else others,
            )
            for loop, _ in around
        ]
        inner = {loop.index: axis.var for (loop, _), axis in zip(around, axes, strict=True)}
        extents = {loop.index: loop.extent for loop, _ in around}
        env = Environment(PLAIN, self.tensors, self.buffers, inner, extents)
        bare = self.bare(equation, started, axes, env)
        regions = s_tir.analysis.get_sblock_access_region(bare, {buffer: buffer for buffer in self.buffers.values()})
        block = s_tir.SBlock(axes, regions[0], regions[1], bare.name_hint, bare.body, bare.init)
        return s_tir.SBlockRealize([var for _, var in around], True, block)

    def bare(self, equation: Equation, started: bool, axes: list[tirx.IterVar], env: Environment) -> s_tir.SBlock:
        """The block of an equation, before it says what it reads and writes."""
        name, dtype = equation.target.tensor, self.tensors[equation.target.tensor].dtype
        buffer, where = self.buffers[name], subscripts(equation.target, env)
        result = value(equation.value, dtype, env)
        init = None
        if equation.assign is not Assign.SET:
            result = accumulated(equation, element(equation.target, env), result, dtype, env.target)
        if started:
            init = tirx.BufferStore(buffer, value(Const(identity(equation.assign, dtype)), dtype, env), where)
        store: tirx.Stmt = tirx.BufferStore(buffer, cast(result, dtype), where)
        for part in reversed(equation.guard):
            store = tirx.IfThenElse(condition(part, env), store, None)
        return s_tir.SBlock(axes, [], [], name, store, init)


__all__ = ["schedulable"]
