"""Compile a program with TVM: a callable kernel for this CPU, or CUDA source.

TVM checks neither shapes nor bounds in a kernel (its argument checks would double the build time), so
programs come from `verify` and arguments from `Kernel.run` or `tensor`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import s_tir, tirx
from tvm.target import codegen

from envs.leir_env.affine import interval
from envs.leir_env.interp import numpy_dtype
from envs.leir_env.ir import Call, Equation, Program, Tensor, subexpressions
from envs.leir_env.lower import lower
from envs.leir_env.lower_expr import BuildError
from envs.leir_env.printer import show_expression
from envs.leir_env.tree import accesses, declarations, expressions, sites, walk

Array = npt.NDArray[Any]

OPT_LEVEL = 1
"""LLVM's. With explicit vector and unrolled loops, more costs build time and gains nothing."""


_BROKEN = "LLVM module verification failed"
"""LLVM's optimiser (22) breaks some modules with vectors of several widths; those are built without it."""

PASSES = {
    "tirx.disable_assert": True,
    # It lets a tensor share the memory of one whose values are never read, while both are written (TVM 0.27).
    "tirx.disable_storage_rewrite": True,
    # Guards of tails (`likely`) split their loops, and the bulk keeps its vectors and registers.
    "s_tir.LoopPartition": {"partition_const_loop": True},
}
"""How TVM compiles for a CPU."""

CUDA_PASSES = {name: PASSES[name] for name in ("tirx.disable_assert", "tirx.disable_storage_rewrite")}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled program. Calling it runs it on tensors in memory, outputs overwritten, none overlapping."""

    program: Program
    function: Any
    module: Any

    def __call__(self, *tensors: Any) -> None:
        """Run on inputs, parameters, then outputs, in header order, each made by `tensor`."""
        self.function(*tensors)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run on arrays by name, and return the outputs by name. Raises `ValueError` for a wrong shape."""
        for declared in self.program.inputs:
            shape = np.shape(inputs[declared.name])
            if shape != declared.shape:
                raise ValueError(f"input {declared.name} has shape {shape}, expected {declared.shape}")
        outputs = {declared.name: empty(declared) for declared in self.program.outputs}
        arguments = [tensor(inputs[declared.name], declared) for declared in self.program.inputs]
        self(*arguments, *outputs.values())
        return {name: output.numpy() for name, output in outputs.items()}

    def source(self, kind: str = "asm") -> str:
        """The generated code: `ll` is LLVM IR, `asm` assembly."""
        return str(self.module.inspect_source(kind))


def tensor(array: Array, declared: Tensor) -> Any:
    """Copy an array into memory aligned as kernels assume, in the declared dtype."""
    return tvm.runtime.tensor(np.ascontiguousarray(array, numpy_dtype(declared.dtype)))


def empty(declared: Tensor) -> Any:
    """Make a tensor of the declared shape and dtype, filled with poison (nan, or -128)."""
    dtype = numpy_dtype(declared.dtype)
    return tvm.runtime.tensor(np.full(declared.shape, np.nan if declared.dtype.is_float else -128).astype(dtype))


def build(program: Program, target: str = "llvm") -> Kernel:
    """Compile `program` for this CPU, machine code included. Raises `BuildError`."""
    function = lower(program, target)
    check(program, function)
    with tvm.transform.PassContext(config=PASSES):
        try:
            try:
                module = tvm.compile(function, target=host_target()).mod
            except Exception as error:  # The compiler's errors have no common class.
                if _BROKEN not in str(error):
                    raise
                module = tvm.compile(function, target=host_target(0)).mod
            return Kernel(program, module["main"], module)
        except MemoryError:  # The limit of a worker, not a verdict of the compiler.
            raise
        except Exception as error:  # The compiler's errors have no common class.
            raise BuildError("compiler", _first_line(error)) from error


def cuda_source(program: Program, arch: str = "sm_90") -> str:
    """Return the CUDA C++ of a program whose nests are bound; needs no GPU. Raises `BuildError`."""
    function = lower(program, "cuda")
    check(program, function)
    target = tvm.target.Target({"kind": "cuda", "arch": arch}).with_host("llvm")
    bound = s_tir.transform.LowerOpaqueBlock()(tvm.IRModule.from_expr(function.with_attr("target", target)))
    if not tirx.analysis.verify_memory(bound["main"]):
        raise BuildError("host_access", "an equation outside every bound loop touches GPU memory")
    with tvm.transform.PassContext(config=CUDA_PASSES):
        try:
            return str(tvm.compile(function, target=target).mod.imports[0].inspect_source())
        except Exception as error:  # The compiler's errors have no common class.
            raise BuildError("compiler", _first_line(error)) from error


def check(program: Program, function: tirx.PrimFunc) -> None:
    """Ask TVM for a second opinion on names and bounds. Raises `BuildError`.

    Its bounds checker knows no condition on two indices (`4io+ii<10`): `verify` answers for guarded programs.
    """
    if not s_tir.analysis.verify_well_formed(function, assert_mode=False):
        raise BuildError("ill_formed", "the lowered function uses a name before its definition")
    if _is_guarded(program):
        return
    try:
        s_tir.analysis.OOBChecker()(tvm.IRModule.from_expr(function))
    except s_tir.schedule.ScheduleError as error:
        raise BuildError("out_of_bounds", _escape(program)) from error


def _is_guarded(program: Program) -> bool:
    """Does any equation have a guard or a selection?"""
    found = (node.statement for node in walk(program))
    return any(
        statement.guard
        or any(isinstance(part, Call) and part.op == "select" for part in subexpressions(statement.value))
        for statement in found
        if isinstance(statement, Equation)
    )


def _escape(program: Program) -> str:
    """Name the first subscript that may leave its tensor."""
    tensors = declarations(program)
    for name, node in sites(program).items():
        for expr in expressions(node.statement) if isinstance(node.statement, Equation) else ():
            for access in accesses(expr):
                shape = tensors[access.tensor][0].shape
                for position, (subscript, extent) in enumerate(zip(access.subscripts, shape, strict=True), 1):
                    reach = interval(subscript, node.extents)
                    if reach is not None and (reach[0] < 0 or reach[1] >= extent):
                        return (
                            f"equation {name}: subscript {position} of {show_expression(access)} runs from "
                            f"{reach[0]} to {reach[1]}, but the extent there is {extent}"
                        )
    return "a subscript leaves its tensor"


@functools.cache
def host_target(level: int = OPT_LEVEL) -> tvm.target.Target:
    """This CPU, as LLVM names it, at an optimisation level."""
    cpu = codegen.llvm_get_system_cpu()
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "opt-level": level})


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


__all__ = ["BuildError", "Kernel", "build", "check", "cuda_source", "empty", "host_target", "tensor"]
