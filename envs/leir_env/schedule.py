"""The default schedule: what anybody would do first, and the baseline that speedups are measured against.

Each nest gets the best of three textbook mappings by the cost model: as it is; its contiguous loop innermost, in
vector lanes; or 16 neighbouring results in lanes inside the loops that sum them up. No sum changes its order. Then
its outermost loop is shared out among the cores.
"""

from __future__ import annotations

from collections.abc import Iterator

from envs.common.actions import Action
from envs.leir_env.cost import estimate
from envs.leir_env.ir import Access, Equation, Kind, Loop, Program, Statement
from envs.leir_env.legality import parallel_refusal
from envs.leir_env.simplify import linear
from envs.leir_env.strategies import Exactness, apply, refusal
from envs.leir_env.tree import Path, accesses, at, band, declarations, equations, expressions, site_of

Steps = tuple[tuple[Action, Program], ...]
"""Actions, each with the program after it."""

_WIDTHS = ("16", "8", "4")
_LANES = "16"


def default_schedule(program: Program) -> Program:
    """Return `program` under its default schedule for a CPU; its values stay the same, bit for bit."""
    return after(program, default_steps(program))


def default_steps(program: Program) -> Steps:
    """Return the actions that make the default schedule."""
    steps: Steps = ()
    for position in range(len(program.body)):
        for path in tuple(perfect_nests(program, (position,))):
            options = [mapping(program, path) for mapping in (_as_it_is, contiguous_innermost, neighbours_in_lanes)]
            best = min(options, key=lambda option: estimate(after(program, option)))
            steps += best
            program = after(program, best)
        shared = parallelised(program, (position,))
        steps += shared
        program = after(program, shared)
    return steps


def after(program: Program, steps: Steps) -> Program:
    """The program that steps from `program` lead to."""
    return steps[-1][1] if steps else program


def perfect_nests(program: Program, path: Path) -> Iterator[Path]:
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
        yield from perfect_nests(program, (*path, *[0] * (len(loops) - 1), number))


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


def loops_at(program: Program, path: Path) -> tuple[Loop, ...]:
    """The perfect nest from the loop at `path` down."""
    loop = at(program, path)
    assert isinstance(loop, Loop)
    return band(loop)


def _as_it_is(program: Program, path: Path) -> Steps:
    return ()


def contiguous_innermost(program: Program, path: Path) -> Steps:
    """Bring the loop with the most contiguous accesses to the innermost place, into vector lanes."""
    loops = loops_at(program, path)
    extents = {loop.index: loop.extent for loop in loops}
    scores = [
        contiguous(loops[0], loop.index, program, extents)
        if parallel_refusal(program, (*path, *[0] * depth)) is None
        else 0
        for depth, loop in enumerate(loops)
    ]
    best = max(range(len(loops)), key=lambda depth: (scores[depth], depth))
    if scores[best] <= 0:
        return ()
    moves = sunk(program, path, best)
    return moves + vectorised(after(program, moves), (*path, *[0] * (len(loops) - 1)))


def neighbours_in_lanes(program: Program, path: Path) -> Steps:
    """Run 16 neighbouring results in lanes, inside the loops that sum them up."""
    loops = loops_at(program, path)
    (equation,) = equations(loops[-1])
    last = equation.target.subscripts[-1:]
    depth = (
        next((n for n, loop in enumerate(loops) if getattr(last[0], "name", "") == loop.index), None) if last else None
    )
    if depth is None or depth == len(loops) - 1:
        return ()
    split = Action("loop_split", (site_of(program, (*path, *[0] * depth)),), (_LANES,))
    if loops[depth].extent % int(_LANES) or refusal(program, split) is not None:
        return ()
    halved = apply(program, split).program
    moves = sunk(halved, path, depth + 1)
    lanes = vectorised(after(halved, moves), (*path, *[0] * len(loops)))
    return ((split, halved), *moves, *lanes) if lanes else ()


def sunk(program: Program, path: Path, depth: int, bottom: int | None = None) -> Steps:
    """Bring the loop `depth` levels down to the innermost place by exchanges of neighbours that change no sum.

    With `bottom`, to the last place of the first `bottom` loops of the nest.
    """
    steps: Steps = ()
    for lower in range(depth + 1, len(loops_at(program, path)) if bottom is None else bottom):
        upper = site_of(program, (*path, *[0] * (lower - 1)))
        action = Action("loop_reorder", (upper, site_of(program, (*path, *[0] * lower))))
        if refusal(program, action) is not None:
            return steps
        outcome = apply(program, action)
        if outcome.exactness is not Exactness.EXACT:
            return steps
        program = outcome.program
        steps += ((action, program),)
    return steps


def vectorised(program: Program, inner: Path) -> Steps:
    """Run the loop at `inner` in the most lanes that divide it."""
    return first(program, (Action("loop_vectorization", (site_of(program, inner),), (width,)) for width in _WIDTHS))


def parallelised(program: Program, path: Path) -> Steps:
    """Share out the outermost loop that may be, going inwards through perfectly nested ones."""
    loop = at(program, path)
    if not isinstance(loop, Loop):
        return ()
    sites = (
        site_of(program, (*path, *[0] * depth)) for depth, each in enumerate(band(loop)) if each.kind is Kind.SERIAL
    )
    return first(program, (Action("loop_parallelization", (site,)) for site in sites))


def first(program: Program, actions: Iterator[Action]) -> Steps:
    """The first of several actions that applies."""
    for action in actions:
        if refusal(program, action) is None:
            return ((action, apply(program, action).program),)
    return ()
