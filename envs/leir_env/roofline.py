"""How fast a CPU could possibly be: generous peaks, to tell impossible times from good ones."""

from __future__ import annotations

import math

from envs.leir_env.ir import Assign, Call, Loop, Program, subexpressions
from envs.leir_env.tree import expressions, walk

PEAK_FLOPS = 3e11
"""Operations a second and core, 32 bits: two 16-lane fused multiply-adds a cycle at 4.7 GHz."""

PEAK_BYTES = 3e11
"""Bytes stored a second and core: one 64-byte line a cycle at 4.7 GHz."""


def floor_seconds(root: Program, threads: int) -> float:
    """Return a time that no correct program can beat: that of storing the outputs once."""
    return sum(tensor.nbytes for tensor in root.outputs) / (PEAK_BYTES * threads)


def roofline_seconds(root: Program, threads: int) -> float:
    """Return the time of the root's arithmetic at peak. Algebra may beat it: rarely, so look twice."""
    return max(flops(root) / (PEAK_FLOPS * threads), floor_seconds(root, threads))


def flops(program: Program) -> int:
    """Count arithmetic operations of one run, each operator as one."""
    total = 0
    for node in walk(program):
        if not isinstance(node.statement, Loop):
            operations = sum(
                isinstance(expr, Call)
                for expression in expressions(node.statement)
                for expr in subexpressions(expression)
            )
            operations += node.statement.assign is not Assign.SET
            total += operations * math.prod(loop.extent for loop in node.loops)
    return total
