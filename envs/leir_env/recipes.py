"""Short sequences of actions that belong together: what an engineer would try as one idea.

A single step of a good schedule often gains nothing by itself (a tile before its inner loops are reordered,
unrolled and vectorised). A recipe is a plan of several legal actions; a search may follow it as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from envs.common.actions import Action
from envs.leir_env.cost import estimate
from envs.leir_env.ir import Assign, Equation, Kind, Loop, Program, Role
from envs.leir_env.legality import read
from envs.leir_env.region import region, uses
from envs.leir_env.schedule import (
    Steps,
    after,
    contiguous_innermost,
    default_steps,
    first,
    loops_at,
    neighbours_in_lanes,
    perfect_nests,
    sunk,
    vectorised,
)
from envs.leir_env.strategies import REGISTRY, apply, refusal
from envs.leir_env.tree import Path, at, declarations, indices, site_of, walk

Plan = tuple[Action, ...]

_TILES = ((4, 16), (6, 16), (4, 8), (2, 16), (1, 16), (1, 32), (8, 8), (2, 8))
"""Rows by lanes of a register tile: four to twelve vector accumulators."""

_PARTIAL_RESULTS = ("32", "16")
"""Lanes of partial results: four or two vectors of f32, which hide the latency of an addition."""

_PANEL_BYTES = (512, 256 * 1024)
"""A packed panel is worth its copy from the first size on, and stays in the second-level cache up to the other."""


def plans(program: Program) -> tuple[Plan, ...]:
    """Return the plans that apply to `program`, every action legal after those before it."""
    found: dict[Plan, None] = {}
    for recipe in _RECIPES:
        for steps in recipe(program):
            if steps:
                found[tuple(action for action, _ in steps)] = None
    return tuple(found)


def _then(program: Program, steps: Steps, action: Action) -> Steps | None:
    """Append an action, or None where it is refused."""
    here = after(program, steps)
    if refusal(here, action) is not None:
        return None
    return (*steps, (action, apply(here, action).program))


def _default(program: Program) -> Iterator[Steps]:
    """The default schedule of whatever is still serial."""
    yield default_steps(program)


def _register_tiles(program: Program) -> Iterator[Steps]:
    """Keep a tile of results in registers while the reductions run."""
    for position in range(len(program.body)):
        for path in perfect_nests(program, (position,)):
            yield from _tiles_of(program, path)


def _tiles_of(program: Program, path: Path) -> Iterator[Steps]:
    loops = loops_at(program, path)
    (equation,) = (s for s in loops[-1].block.body if isinstance(s, Equation))
    kept = [n for n, loop in enumerate(loops) if _indexes(equation, loop)]
    if equation.assign is Assign.SET or len(kept) == len(loops) or not equation.target.subscripts:
        return
    if any(loop.kind is not Kind.SERIAL for loop in loops[1:]):
        return
    lanes = [n for n in kept if loops[n].index in indices(equation.target.subscripts[-1])]
    for column in lanes[-1:]:
        for row in (None, *[n for n in kept if n != column][-2:]):
            for sizes in _TILES:
                yield _register_tile(program, path, row, column, *sizes)


def _best_of_each(program: Program) -> Iterator[Steps]:
    """Give every nest the mapping or register tile that the cost model likes best; then fuse what can be fused.

    The same where expressions that stand at several places are computed once.
    """
    shared = _computed_once(program)
    for steps in dict.fromkeys(((), shared)):
        best = _mapped(program, steps)
        yield best
        yield _stored(program, _fused(program, best, deepest=False))


def _mapped(program: Program, steps: Steps) -> Steps:
    """Add to `steps` the best mapping of every nest by itself."""
    start = after(program, steps)
    for position in range(len(start.body)):
        for path in tuple(perfect_nests(start, (position,))):
            here = after(program, steps)
            options = [
                (),
                contiguous_innermost(here, path),
                neighbours_in_lanes(here, path),
                *(_partial_results(here, path, count) for count in _PARTIAL_RESULTS),
                *_tiles_of(here, path),
            ]
            steps += min(options, key=lambda option: estimate(after(here, option)))
    return steps


def _computed_once(program: Program) -> Steps:
    """Eliminate common subexpressions, the largest first, as long as there are any."""
    return _repeated(program, (), "common_subexpression_elimination", lambda action: 0)


def _partial_results(program: Program, path: Path, count: str) -> Steps:
    """Split the innermost reduction of a nest into partial results, in lanes."""
    loops = loops_at(program, path)
    bottom = len(loops) - 1
    if not bottom:
        return ()
    factored = _then(program, (), Action("reduction_factorization", (_site(program, path, bottom),), (count, "lanes")))
    if factored is None:
        return ()
    lanes = vectorised(after(program, factored), (*path, *[0] * (bottom + 1)))
    return factored + lanes if lanes else ()


def _indexes(equation: Equation, loop: Loop) -> bool:
    return any(loop.index in indices(subscript) for subscript in equation.target.subscripts)


def _register_tile(program: Program, path: Path, row: int | None, column: int, rows: int, lanes: int) -> Steps:
    """Split off `rows` by `lanes` results, sink them below the reductions, unroll the rows, vectorise the lanes."""
    steps: Steps = ()
    depths = {column: lanes} | ({row: rows} if row is not None and rows > 1 else {})
    if (row is None) != (rows == 1):
        return ()
    inner: list[str] = []
    for depth in sorted(depths, reverse=True):
        here = after(program, steps)
        loop = loops_at(here, path)[depth]
        if loop.extent == depths[depth]:
            inner.append(loop.index)
            continue
        if loop.extent % depths[depth] and depth == column:
            return ()
        split = _then(program, steps, Action("loop_split", (_site(here, path, depth),), (str(depths[depth]),)))
        if split is None:
            return ()
        steps = split
        inner.append(loops_at(after(program, steps), path)[depth + 1].index)
    # The column of lanes sinks to the bottom first, then the rows to just above it.
    order = inner if column > (row if row is not None else -1) else inner[::-1]
    for place, index in enumerate(order):
        here = after(program, steps)
        loops = loops_at(here, path)
        depth = [loop.index for loop in loops].index(index)
        moves = sunk(here, path, depth, len(loops) - place)
        if depth + len(moves) != len(loops) - 1 - place:
            return ()
        steps += moves
    here = after(program, steps)
    bottom = len(loops_at(here, path)) - 1
    vector = vectorised(here, (*path, *[0] * bottom))
    steps += vector
    if not vector:
        return ()
    if len(order) == 2:
        here = after(program, steps)
        unrolled = _then(program, steps, Action("loop_unrolling", (_site(here, path, bottom - 1),)))
        if unrolled is None:
            return ()
        steps = unrolled
    return _accumulator(program, steps, path, len(order))


def _accumulator(program: Program, steps: Steps, path: Path, tile: int) -> Steps:
    """Where several reductions run above the tile, accumulate in a private buffer."""
    here = after(program, steps)
    loops = loops_at(here, path)
    (equation,) = (s for s in loops[-1].block.body if isinstance(s, Equation))
    reductions = [n for n, loop in enumerate(loops[:-tile]) if not _indexes(equation, loop)]
    if len(reductions) < 2 or reductions[0] == 0:
        return steps
    site = _site(here, path, reductions[0] - 1)
    cached = _then(program, steps, Action("cache_read_write", (equation.target.tensor, site), ("local",)))
    if cached is None:
        return steps
    here = after(program, cached)
    copy = (*path, *[0] * (reductions[0] - 1), 1)
    return (
        cached + vectorised(here, (*copy, *[0] * (len(loops_at(here, copy)) - 1))) if _is_loop(here, copy) else cached
    )


def _is_loop(program: Program, path: Path) -> bool:
    return isinstance(at(program, path), Loop)


def _site(program: Program, path: Path, depth: int) -> str:
    return site_of(program, (*path, *[0] * depth))


def _panels(program: Program) -> Iterator[Steps]:
    """Copy the part of an input that many iterations share into a contiguous panel, the sharing loop inside."""
    declared = declarations(program)
    for node in walk(program):
        loop = node.statement
        if not isinstance(loop, Loop) or loop.kind not in (Kind.SERIAL, Kind.PARALLEL):
            continue
        for name in sorted(read(loop)):
            if declared[name][0].role not in (Role.INPUT, Role.PARAMETER):
                continue
            yield _panel(program, node.path, name)


def _panel(program: Program, path: Path, name: str) -> Steps:
    loop = at(program, path)
    assert isinstance(loop, Loop)
    steps: Steps = ()
    if len(loop.block.body) == 1 and isinstance(loop.block.body[0], Loop):
        # A loop that the panel does not depend on goes inside.
        around = {each.index: each.extent for each in _outer(program, path)}
        found = tuple(uses(loop, name, around))
        if found and all(loop.index not in indices(s) for use in found for s in use.access.subscripts):
            swap = Action("loop_reorder", (site_of(program, path), _site(program, path, 1)))
            if refusal(program, swap) is None:
                steps = ((swap, apply(program, swap).program),)
    here = after(program, steps)
    loop = at(here, path)
    assert isinstance(loop, Loop)
    around = {each.index: each.extent for each in (*_outer(here, path), loop)}
    found = tuple(use for child in loop.block.body for use in uses(child, name, around))
    box = region(declarations(here)[name][0], found, around) if found else "unused"
    if isinstance(box, str) or not _PANEL_BYTES[0] <= box.size * box.tensor.dtype.itemsize <= _PANEL_BYTES[1]:
        return ()
    cached = _then(program, steps, Action("cache_read_write", (name, site_of(here, path)), ("local",)))
    if cached is None:
        return ()
    copy = (*path, 0)
    here = after(program, cached)
    return cached + vectorised(here, (*copy, *[0] * (len(loops_at(here, copy)) - 1)))


def _outer(program: Program, path: Path) -> tuple[Loop, ...]:
    return next(node.loops for node in walk(program) if node.path == path)


def _fusions(program: Program) -> Iterator[Steps]:
    """Fuse neighbouring nests as far as they go, at one depth or as deep as possible, and keep temporaries inside."""
    for deepest in (True, False):
        for lanes in (False, True):
            start = default_steps(program) if lanes else ()
            yield _stored(program, _fused(program, start, deepest))


def _fused(program: Program, steps: Steps, deepest: bool) -> Steps:
    """Fuse neighbouring nests until none can be, the deepest or the shallowest fusion first."""
    sign = 1 if deepest else -1
    return _repeated(program, steps, "operator_fusion", lambda action: sign * int(action.args[0]))


def _repeated(program: Program, steps: Steps, name: str, preference: Callable[[Action], int]) -> Steps:
    """Apply a strategy as long as it is legal anywhere, the most preferred action first."""
    strategy = REGISTRY[name]
    while True:
        here = after(program, steps)
        legal = [
            Action(name, site, args)
            for site, args in strategy.candidates(here)
            if strategy.why_not(here, site, args) is None
        ]
        if not legal:
            return steps
        action = max(legal, key=preference)
        steps = (*steps, (action, apply(here, action).program))


def _stored(program: Program, steps: Steps) -> Steps:
    while True:
        here = after(program, steps)
        actions = (
            Action("set_storage_scope", (name,), ("local",))
            for name, (tensor, home) in declarations(here).items()
            if tensor.role is Role.TEMPORARY
        )
        more = first(here, actions)
        if not more:
            return steps
        steps += more


def _row_lanes(program: Program) -> Iterator[Steps]:
    """Run rows of every nest in lanes where a reduction stands inside, and fuse the nests by blocks of rows."""
    for width in ("8", "16"):
        steps: Steps = ()
        for position in range(len(program.body)):
            here = after(program, steps)
            if not _is_loop(here, (position,)):
                break
            split = _then(program, steps, Action("loop_split", (site_of(here, (position,)),), (width,)))
            if split is None:
                break
            steps = split
            here = after(program, steps)
            lanes = _lanes_of(here, (position,))
            steps += lanes
        else:
            yield _stored(program, _fused(program, steps, deepest=False))


def _lanes_of(program: Program, path: Path) -> Steps:
    """The better of: rows in lanes inside everything else, or the contiguous loop in lanes."""
    loops = loops_at(program, path)
    moves = sunk(program, path, 1)
    rows = moves + vectorised(after(program, moves), (*path, *[0] * (len(loops) - 1)))
    columns = vectorised(program, (*path, *[0] * (len(loops) - 1)))
    return min((rows, columns, ()), key=lambda steps: estimate(after(program, steps)))


_RECIPES: tuple[Callable[[Program], Iterator[Steps]], ...] = (
    _default,
    _best_of_each,
    _register_tiles,
    _panels,
    _fusions,
    _row_lanes,
)
