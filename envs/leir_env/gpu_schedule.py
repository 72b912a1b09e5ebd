"""A plain mapping to a GPU: the least that makes each nest a kernel, for showing and counting generated CUDA.

The outermost loop of a nest runs over blocks and the innermost that may over threads, where no dependence
forbids it. A nest that can't be shared out runs in a single thread.
"""

from __future__ import annotations

from envs.common.actions import Action
from envs.leir_env.ir import Axis, Block, Kind, Loop, Program
from envs.leir_env.limits import MAX_THREADS_PER_BLOCK
from envs.leir_env.schedule import after, first, loops_at
from envs.leir_env.strategies import REGISTRY
from envs.leir_env.tree import Node, at, fresh_index, loops_below, site_of, splice


def gpu_schedule(program: Program) -> Program:
    """Return `program` with a bound loop in each nest that has none; its values stay the same, bit for bit."""
    for position, statement in enumerate(program.body):
        if not any(loop.axis for loop in loops_below(statement)):
            program = _shared_out(program, position)
    return program


def _shared_out(program: Program, position: int) -> Program:
    statement = at(program, (position,))
    if isinstance(statement, Loop):
        depth = len(loops_at(program, (position,)))
        blocks = [0] if depth > 1 or statement.extent > MAX_THREADS_PER_BLOCK else []
        for axis, levels in ((Axis.BX, blocks), (Axis.TX, range(depth - 1, -1, -1))):
            sites = (site_of(program, (position, *[0] * level)) for level in levels)
            program = after(program, first(program, (Action("loop_binding", (site,), (str(axis),)) for site in sites)))
    if any(loop.axis for loop in loops_below(at(program, (position,)))):
        return program
    index = fresh_index(program, "t", 1, Node((position,), statement, ()))
    program = splice(program, (position,), (Loop(Kind.SERIAL, index, 1, Block((statement,))),))
    # One iteration carries nothing, so that it is safe to bind.
    single = REGISTRY["loop_binding"].rewrite(program, (site_of(program, (position,)),), (str(Axis.TX),))
    return single.program


__all__ = ["gpu_schedule"]
