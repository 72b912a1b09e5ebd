"""TIR operators of our own, opaque to TVM's simplifier and expanded by its last pass.

The simplifier reads `Select(i<8, A[min(i,7)], 0)` as a branch and drops the `min`; vector code then reads
beyond A. And it walks nested `Let`s in exponential time, so functions of many steps must stay closed too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import tvm
from tvm import tirx

Scalar: TypeAlias = tirx.Expr

Expand: TypeAlias = Callable[[Scalar], Scalar]


def call(name: str, expand: Expand, *args: Scalar) -> Scalar:
    """Apply the operator `leir.name` to scalars of one dtype, which it returns.

    A vectorised loop makes them vectors; `expand` then turns the node into what code is generated for.
    """
    _register(name, expand)
    return tirx.call_intrin(args[0].ty.dtype, f"leir.{name}", *args)


@functools.cache
def _register(name: str, expand: Expand) -> None:
    operator = f"leir.{name}"
    tvm.ir._ffi_api.RegisterOp(operator, f"LEIR operator {name}")
    tvm.ir.register_op_attr(operator, "TCallEffectKind", 1)  # pure
    tvm.ir.register_op_attr(operator, "TVectorizable", True)
    tvm.ir.register_op_attr(operator, "TScriptPrinterName", name)
    tirx.op.register_intrin_lowering(operator, "default", f=expand)


def inside(subscript: Scalar, extent: int) -> Scalar:
    """`subscript`, or the nearest one within the extent."""
    return call("inside", _clamp, subscript, tirx.const(extent - 1, subscript.ty.dtype))


def _clamp(node: Scalar) -> Scalar:
    subscript, last = node.args
    zero = tirx.const(0, subscript.ty.dtype)
    return tirx.Max(zero, tirx.Min(subscript, last))


def divisor(x: Scalar) -> Scalar:
    """`x`, or 1 where it is 0."""
    return call("divisor", _nonzero, x)


def _nonzero(node: Scalar) -> Scalar:
    (x,) = node.args
    dtype = x.ty.dtype
    return tirx.Select(tirx.EQ(x, tirx.const(0, dtype)), tirx.const(1, dtype), x)


def rounded(x: Scalar) -> Scalar:
    """`x` rounded to its type: an addition can't absorb the product that made it.

    LLVM would contract `a*b - c` to one rounding. In a stable softmax, `exp(s*x - m)` with `m` the largest `s*x`
    then has positive exponents: for large logits it overflows.
    """
    return call("rounded", _fence, x)


def _fence(node: Scalar) -> Scalar:
    (x,) = node.args
    return tirx.call_llvm_pure_intrin(x.ty.dtype, "llvm.arithmetic.fence", x)
