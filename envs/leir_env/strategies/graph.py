"""Strategies on the graph of equations: fuse and split nests, inline producers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Equation,
    Expr,
    Index,
    Loop,
    Program,
    Role,
    Statement,
)
from envs.leir_env.simplify import rewrite
from envs.leir_env.strategies.base import Level, Outcome, Parameter, Refusal, Strategy, register
from envs.leir_env.strategies.loops import Args, Site, loop_at, loop_sites, reordered
from envs.leir_env.tree import (
    Node,
    accesses,
    block_at,
    declarations,
    equations,
    expressions,
    freshen,
    map_accesses,
    map_expressions,
    reads,
    site_of,
    sites,
    splice,
    substitute,
    update_block,
    walk,
)


def align(program: Program, first: Loop, second: Loop, depth: int, around: dict[str, int]) -> Loop:
    """Name the loops of `second` like those of `first`, `depth` levels deep, and keep those below apart."""
    mine, theirs = _levels(first, depth), _levels(second, depth)
    kept = {**around, **{loop.index: loop.extent for loop in mine}}
    moved = tuple(freshen(program, child, frozenset(kept)) for child in theirs[-1].block.body)
    values: dict[str, Expr] = {b.index: Index(a.index) for a, b in zip(mine, theirs, strict=True) if a.index != b.index}
    body = tuple(rewrite(child, values, kept) for child in moved) if values else moved
    for a, b in zip(reversed(mine), reversed(theirs), strict=True):
        body = (replace(b, index=a.index, block=Block(body, b.block.tensors)),)
    assert isinstance(body[0], Loop)
    return body[0]


def join(first: Loop, second: Loop, depth: int) -> Loop:
    """Run both bodies in one nest; the loops of the two agree in name and extent, `depth` levels deep."""
    mine, theirs = _levels(first, depth), _levels(second, depth)
    body = (*mine[-1].block.body, *theirs[-1].block.body)
    for a, b in zip(reversed(mine), reversed(theirs), strict=True):
        body = (replace(a, block=Block(body, a.block.tensors + b.block.tensors)),)
    assert isinstance(body[0], Loop)
    return body[0]


def _levels(loop: Loop, depth: int) -> list[Loop]:
    loops = [loop]
    while len(loops) < depth:
        inner = loops[-1].block.body[0]
        assert isinstance(inner, Loop)
        loops.append(inner)
    return loops


def _fusable(first: Loop, second: Loop, depth: int) -> str | None:
    """Why two sibling loops can't be joined `depth` levels deep, whatever the dependences."""
    for level in range(depth):
        if first.extent != second.extent:
            return f"{first.index} has {first.extent} iterations, {second.index} has {second.extent}"
        if first.kind != second.kind or first.axis != second.axis:
            return f"{first.index} is of kind {first.kind}, {second.index} of kind {second.kind}"
        if level + 1 < depth:
            pair = [loop.block.body[0] for loop in (first, second)]
            if any(len(loop.block.body) != 1 for loop in (first, second)) or not all(
                isinstance(inner, Loop) for inner in pair
            ):
                return f"only {level + 1} levels of loops are perfectly nested in both"
            first, second = pair  # type: ignore[assignment]
    return None


@register
class OperatorFusion(Strategy):
    """Fuse two neighbouring loop nests into one nest that runs both, `depth` levels deep.

    Requires:
        1. The second loop follows the first directly; `depth` levels agree in extent and kind.
        2. Every dependence still points forward: what the second reads was written in the same iteration or before.

    Rewrite:
        L_i D[i] = A[i]            L_i [
        L_i C[i] = D[i] + 1   ->     D[i] = A[i]
                                     C[i] = D[i] + 1
                                   ]
    """

    name = "operator_fusion"
    level = Level.GRAPH
    menu = 128
    site_kinds = ("loop", "loop")
    parameters = (Parameter("depth", "levels of loops to share"),)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node, loop in loop_sites(program):
            siblings = block_at(program, node.path).body
            position = node.path[-1] + 1
            follower = siblings[position] if position < len(siblings) else None
            if isinstance(follower, Loop):
                other = site_of(program, (*node.path[:-1], position))
                for depth in range(1, 7):
                    if _fusable(loop, follower, depth) is None:
                        yield (site, other), (str(depth),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        (node, loop), (other_node, other) = loop_at(program, site[0]), loop_at(program, site[1])
        if other_node.path != (*node.path[:-1], node.path[-1] + 1):
            return Refusal("structure", f"fuse {site[0]}, {site[1]}: {site[1]} does not directly follow {site[0]}")
        reason = _fusable(loop, other, int(args[0]))
        if reason is not None:
            return Refusal("structure", f"fuse {site[0]}, {site[1]} at depth {args[0]}: {reason}")
        verdict = reordered(*self._steps(program, site, int(args[0])))
        return verdict if isinstance(verdict, Refusal) else None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        before, after = self._steps(program, site, int(args[0]))
        exactness = reordered(before, after)
        assert not isinstance(exactness, Refusal)
        return Outcome(after, exactness)

    def _steps(self, program: Program, site: Site, depth: int) -> tuple[Program, Program]:
        """The program with the two nests named alike, and with them joined."""
        (node, loop), (_, other) = loop_at(program, site[0]), loop_at(program, site[1])
        position = node.path[-1]
        second = align(program, loop, other, depth, node.extents)

        def with_body(*new: Statement) -> Program:
            return update_block(
                program,
                node.path[:-1],
                lambda block: replace(block, body=(*block.body[:position], *new, *block.body[position + 2 :])),
            )

        return with_body(loop, second), with_body(join(loop, second, depth))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        (_, loop), (_, other) = loop_at(program, site[0]), loop_at(program, site[1])
        written = {equation.target.tensor for equation in equations(loop)}
        shared = sorted(written & {access.tensor for e in equations(other) for access in reads(e)})
        declared = declarations(program)
        size = sum(declared[name][0].nbytes for name in shared)
        handed = f"{', '.join(shared)} ({size} bytes)" if shared else "nothing"
        return (
            f"Fuse {site[0]} and {site[1]} at depth {args[0]}: {handed} is handed over within one iteration "
            f"instead of through a whole pass over memory."
        )


@register
class OperatorFission(Strategy):
    """Split a loop with several statements into two loops, at a statement; undoes `operator_fusion`.

    Requires:
        1. The loop has a statement `at` (counted from 1) that is not its first.
        2. No tensor declared in the loop is used on both sides of the cut.
        3. Every dependence still points forward.

    Rewrite:
        L_i [                    L_i D[i] = A[i]
          D[i] = A[i]       ->   L_i C[i] = D[i] + 1
          C[i] = D[i] + 1
        ]
    """

    name = "operator_fission"
    level = Level.GRAPH
    local = True
    site_kinds = ("loop",)
    parameters = (Parameter("at", "the statement that starts the second loop, from 2 on"),)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, _, loop in loop_sites(program):
            for position in range(1, len(loop.block.body)):
                yield (site,), (str(position + 1),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        _, loop = loop_at(program, site[0])
        cut = int(args[0]) - 1
        if not 1 <= cut < len(loop.block.body):
            return Refusal(
                "structure",
                f"split the body of {site[0]} at {args[0]}: it has {len(loop.block.body)} statements",
            )
        names = [self._used(part) for part in (loop.block.body[:cut], loop.block.body[cut:])]
        for tensor in loop.block.tensors:
            if all(tensor.name in used for used in names):
                return Refusal(
                    "scope",
                    f"split the body of {site[0]} at {args[0]}: {tensor.name}, declared in it, is used on both sides",
                )
        verdict = reordered(program, self._split(program, site, cut))
        return verdict if isinstance(verdict, Refusal) else None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        after = self._split(program, site, int(args[0]) - 1)
        exactness = reordered(program, after)
        assert not isinstance(exactness, Refusal)
        return Outcome(after, exactness)

    def _used(self, statements: tuple[Statement, ...]) -> set[str]:
        return {
            name
            for statement in statements
            for equation in equations(statement)
            for name in (equation.target.tensor, *(access.tensor for access in reads(equation)))
        }

    def _split(self, program: Program, site: Site, cut: int) -> Program:
        node, loop = loop_at(program, site[0])
        halves = []
        for part in (loop.block.body[:cut], loop.block.body[cut:]):
            used = self._used(part)
            tensors = tuple(tensor for tensor in loop.block.tensors if tensor.name in used)
            halves.append(replace(loop, block=Block(part, tensors)))
        return splice(program, node.path, tuple(halves))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        _, loop = loop_at(program, site[0])
        return (
            f"Run statements 1 to {int(args[0]) - 1} and {args[0]} to {len(loop.block.body)} of {site[0]} in loops of "
            f"their own, so that each can be reordered, tiled and vectorised by itself."
        )


@register
class ComputeInline(Strategy):
    """Replace every read of a temporary by the expression that defines it, and drop the temporary.

    Requires:
        1. The tensor is a temporary with one equation, an unguarded `=` over distinct plain indices of its loops.
        2. What the equation reads is not written after it, and not within loops shared with a reader.

    Rewrite:
        L_i D[i] = exp(A[i])
        L_i C[i] = D[i] + 1    ->   L_i C[i] = exp(A[i]) + 1
    """

    name = "compute_inline"
    level = Level.GRAPH
    site_kinds = ("equation",)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        declared = declarations(program)
        for site, node in sites(program).items():
            equation = node.statement
            if (
                isinstance(equation, Equation)
                and equation.assign is Assign.SET
                and declared[equation.target.tensor][0].role is Role.TEMPORARY
            ):
                yield (site,), ()

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node = sites(program)[site[0]]
        equation = node.statement
        assert isinstance(equation, Equation)
        name = equation.target.tensor
        tensor, home = declarations(program)[name]
        if tensor.role is not Role.TEMPORARY:
            return Refusal("scope", f"inline {name}: it is an {tensor.role}, not a temporary")
        writers = [n for n in walk(program) if isinstance(n.statement, Equation) and n.statement.target.tensor == name]
        if len(writers) != 1:
            return Refusal("structure", f"inline {name}: {len(writers)} equations assign it, need exactly one")
        return self._not_plain(equation, node, home) or self._overwritten(program, node, equation)

    def _not_plain(self, equation: Equation, node: Node, home: tuple[int, ...]) -> Refusal | None:
        name = equation.target.tensor
        if equation.assign is not Assign.SET or equation.guard:
            return Refusal("structure", f"inline {name}: its equation accumulates or is guarded")
        plain = [s.name for s in equation.target.subscripts if isinstance(s, Index)]
        inner = {loop.index for loop in node.loops[len(home) :]}
        if len(plain) != len(equation.target.subscripts) or set(plain) != inner or len(set(plain)) != len(plain):
            return Refusal(
                "structure", f"inline {name}: its subscripts are not the distinct indices of the loops around it"
            )
        return None

    def _overwritten(self, program: Program, node: Node, equation: Equation) -> Refusal | None:
        name = equation.target.tensor
        needed = {access.tensor for access in reads(equation)}
        readers = [n for n in walk(program) if isinstance(n.statement, Equation) and _reads(n.statement, name)]
        if not readers:
            return Refusal("no_effect", f"inline {name}: nothing reads it")
        last = max(reader.path for reader in readers)
        for hidden in needed:
            home = declarations(program)[hidden][1]
            if any(reader.path[: len(home)] != home for reader in readers):
                return Refusal("scope", f"inline {name}: {hidden}, which it reads, is not visible where {name} is read")
        for other in walk(program):
            if not isinstance(other.statement, Equation) or other.statement.target.tensor not in needed:
                continue
            target = other.statement.target.tensor
            if node.path < other.path <= last:
                return Refusal(
                    "dependence", f"inline {name}: {target}, which it reads, is written again before {name} is read"
                )
            shared = _common(other.path, node.path)
            outside = len(declarations(program)[target][1])
            if shared > outside:
                for reader in readers:
                    if not self._same_iteration(equation, node, reader, shared):
                        return Refusal(
                            "dependence", f"inline {name}: {target} changes between iterations of the loops around both"
                        )
        return None

    def _same_iteration(self, equation: Equation, node: Node, reader: Node, shared: int) -> bool:
        """Does `reader` read only what the same iteration of the `shared` outer loops produced?"""
        if _common(node.path, reader.path) < shared:
            return False
        common = {loop.index for loop in node.loops[:shared]}
        assert isinstance(reader.statement, Equation)
        for access in reads(reader.statement):
            if access.tensor == equation.target.tensor:
                for mine, theirs in zip(equation.target.subscripts, access.subscripts, strict=True):
                    if isinstance(mine, Index) and mine.name in common and theirs != mine:
                        return False
        return True

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node = sites(program)[site[0]]
        equation = node.statement
        assert isinstance(equation, Equation)
        name = equation.target.tensor
        indices = [s.name for s in equation.target.subscripts if isinstance(s, Index)]

        def inline(access: Access) -> Expr:
            if access.tensor != name:
                return access
            return substitute(equation.value, dict(zip(indices, access.subscripts, strict=True)))

        without = splice(program, node.path, ())
        body = tuple(map_expressions(child, lambda e: map_accesses(e, inline)) for child in without.body)
        cleaned = tuple(rewrite(child, {}, {}) for child in body)
        return Outcome(drop_tensor(Program(Block(cleaned, without.tensors)), name))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        node = sites(program)[site[0]]
        assert isinstance(node.statement, Equation)
        name = node.statement.target.tensor
        tensor = declarations(program)[name][0]
        places = sum(
            access.tensor == name
            for other in walk(program)
            if isinstance(other.statement, Equation)
            if other.path != node.path
            for expr in expressions(other.statement)
            for access in accesses(expr)
        )
        return (
            f"Inline {name}: its {tensor.nbytes} bytes are neither written nor read back, and its expression is "
            f"computed at {places} {'place' if places == 1 else 'places'} instead."
        )


def _reads(equation: Equation, name: str) -> bool:
    return any(access.tensor == name for access in reads(equation))


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many loops stand around both statements."""
    shared = 0
    for a, b in zip(first[:-1], second[:-1], strict=False):
        if a != b:
            break
        shared += 1
    return shared


def drop_tensor(program: Program, name: str) -> Program:
    """Remove a declaration."""
    _, home = declarations(program)[name]
    return update_block(
        program, home, lambda block: replace(block, tensors=tuple(t for t in block.tensors if t.name != name))
    )


__all__ = ["ComputeInline", "OperatorFission", "OperatorFusion", "align", "drop_tensor", "join"]
