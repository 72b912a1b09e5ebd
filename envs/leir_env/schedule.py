"""The default schedule: what anybody would do first, and the baseline that speedups are measured against.

Each nest gets its contiguous loop innermost where the order of every sum stays the same, that loop in
vector lanes, and its outermost loop shared out among the cores; on a GPU, blocks and threads.
"""

from __future__ import annotations

from collections.abc import Iterator

from envs.common.actions import Action
from envs.leir_env.ir import Access, Equation, Kind, Loop, Program, Statement
from envs.leir_env.legality import parallel_refusal
from envs.leir_env.simplify import linear
from envs.leir_env.strategies import Exactness, apply, refusal
from envs.leir_env.tree import Path, accesses, at, band, declarations, equations, expressions, site_of

_WIDTHS = ("16", "8", "4", "2")


def default_schedule(program: Program) -> Program:
    """Return `program` under its default schedule for a CPU; its values stay the same, bit for bit."""
    return list(default_steps(program))[-1][1] if program.body else program


def default_steps(program: Program) -> Iterator[tuple[Action | None, Program]]:
    """Yield the actions that make the default schedule, each with the program after it (None: the start)."""
    yield None, program
    for position in range(len(program.body)):
        for path in list(_perfect_nests(program, (position,))):
            for step in _sink_contiguous(program, path):
                program = step[1]
                yield step
            for step in _vectorise(program, path):
                program = step[1]
                yield step
        for step in _parallelise(program, (position,)):
            program = step[1]
            yield step


def _perfect_nests(program: Program, path: Path) -> Iterator[Path]:
    """The paths of the outermost loops of perfect nests that hold a single equation."""
    statement = at(program, path)
    if not isinstance(statement, Loop):
        return
    loops = band(statement)
    body = loops[-1].block.body
    if len(body) == 1 and isinstance(body[0], Equation):
        yield path
        return
    for number in range(len(body)):
        yield from _perfect_nests(program, (*path, *[0] * (len(loops) - 1), number))


def contiguous(statement: Statement, index: str, program: Program, extents: dict[str, int]) -> int:
    """How well a loop serves as the innermost: accesses with stride one less those with a longer stride."""
    score = 0
    declared = declarations(program)
    for equation in equations(statement):
        for access in {a for expr in expressions(equation) for a in accesses(expr)}:
            stride = _stride(access, index, declared[access.tensor][0].shape, extents)
            score += (stride == 1) - 2 * (stride > 1)
    return score


def _stride(access: Access, index: str, shape: tuple[int, ...], extents: dict[str, int]) -> int:
    """Elements between neighbouring iterations of a loop, as a magnitude."""
    stride, step = 0, 1
    for subscript, extent in zip(reversed(access.subscripts), reversed(shape), strict=True):
        for atom, coefficient in linear(subscript, extents).terms:
            if getattr(atom, "name", None) == index:
                stride += coefficient * step
        step *= extent
    return abs(stride)


def _sink_contiguous(program: Program, path: Path) -> Iterator[tuple[Action, Program]]:
    """Bring the best loop to the innermost place by exchanges of neighbours that change no sum."""
    loop = at(program, path)
    assert isinstance(loop, Loop)
    loops = band(loop)
    extents = {each.index: each.extent for each in loops}
    scores = {
        each.index: contiguous(loop, each.index, program, extents)
        for depth, each in enumerate(loops)
        if parallel_refusal(program, (*path, *[0] * depth)) is None
    }
    if not scores or max(scores.values()) <= 0:
        return
    best = max(scores, key=lambda index: (scores[index], list(scores).index(index)))
    depth = [each.index for each in loops].index(best)
    for lower in range(depth + 1, len(loops)):
        upper = site_of(program, (*path, *[0] * (lower - 1)))
        action = Action("loop_reorder", (upper, site_of(program, (*path, *[0] * lower))))
        if refusal(program, action) is not None:
            return
        outcome = apply(program, action)
        if outcome.exactness is not Exactness.EXACT:
            return
        program = outcome.program
        yield action, program


def _vectorise(program: Program, path: Path) -> Iterator[tuple[Action, Program]]:
    loop = at(program, path)
    assert isinstance(loop, Loop)
    loops = band(loop)
    inner = (*path, *[0] * (len(loops) - 1))
    extents = {each.index: each.extent for each in loops}
    if contiguous(loops[-1], loops[-1].index, program, extents) <= 0:
        return
    for width in _WIDTHS:
        action = Action("loop_vectorization", (site_of(program, inner),), (width,))
        if refusal(program, action) is None:
            yield action, apply(program, action).program
            return


def _parallelise(program: Program, path: Path) -> Iterator[tuple[Action, Program]]:
    """Share out the outermost loop that may be, going inwards through perfectly nested ones."""
    loop = at(program, path)
    if not isinstance(loop, Loop):
        return
    for depth, each in enumerate(band(loop)):
        if each.kind is not Kind.SERIAL:
            return
        action = Action("loop_parallelization", (site_of(program, (*path, *[0] * depth)),))
        if refusal(program, action) is None:
            yield action, apply(program, action).program
            return
