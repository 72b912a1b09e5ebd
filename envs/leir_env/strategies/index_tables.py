"""A strategy that computes subscripts beforehand and reads them from a table."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from envs.leir_env.affine import interval, is_quasi_affine
from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Cast,
    Const,
    DType,
    Equation,
    Expr,
    Index,
    Program,
    Tensor,
    subexpressions,
)
from envs.leir_env.legality import promised
from envs.leir_env.printer import show_expression
from envs.leir_env.simplify import is_index_expression
from envs.leir_env.strategies.base import Level, Outcome, Parameter, Refusal, Strategy, counted, register
from envs.leir_env.strategies.layouts import launched, new_loops
from envs.leir_env.strategies.loops import Args, Site, broken_promise
from envs.leir_env.tree import (
    Node,
    accesses,
    expressions,
    fresh_tensor,
    indices,
    map_accesses,
    map_expressions,
    nest,
    sites,
    splice,
    substitute,
)

MAX_TABLE_BYTES = 2**20
"""A larger table would push out of the cache what it serves."""

_INT32_MAX = 2**31 - 1


@functools.lru_cache(maxsize=16384)
def computed_subscripts(equation: Equation) -> tuple[Expr, ...]:
    """The different subscripts of an equation that take work: all but an index, a multiple of one, or one shifted."""
    found: dict[Expr, None] = {}
    for expr in expressions(equation):
        for access in accesses(expr):
            for subscript in access.subscripts:
                if _takes_work(subscript):
                    found[subscript] = None
    return tuple(found)


@functools.lru_cache(maxsize=16384)
def _takes_work(subscript: Expr) -> bool:
    nodes = tuple(subexpressions(subscript))
    if any(isinstance(node, Access | Cast) for node in nodes):
        return False
    divisions = [node for node in nodes if isinstance(node, Call) and node.op in ("floordiv", "mod")]
    if any(not isinstance(d := node.args[1], Const) or d.value <= 0 for node in divisions):
        return False
    occurrences = sum(isinstance(node, Index) for node in nodes)
    chooses = any(isinstance(node, Call) and node.op in ("min", "max") for node in nodes)
    known = is_index_expression(subscript) or is_quasi_affine(subscript)
    return known and occurrences > 0 and (occurrences > 1 or bool(divisions) or chooses)


@register
class PrecomputeIndices(Strategy):
    """Compute a subscript once for all values of its indices into a table of integers, and read it from there.

    A subscript read from a table counts as data, so that `verify` no longer proves it within bounds: it holds what was
    proved before, wherever it is used. Conditions are left as they are, since other proofs rest on them.

    Requires:
        1. The equation has a subscript that takes work: a division, a remainder, a minimum or maximum, a product or
           sum of indices; `which` counts the different ones in order of appearance.
        2. Everything in it fits 32 bits, and the table takes at most 1 MB.
        3. Loops that were promised to carry no dependence can still be shown to carry none: what is written or read
           through a table may be any element.

    Rewrite:
        L_i,q C[i] += A[2i+q]   ->   L_i,q D[i,q] = 2i+q
                                     L_i,q C[i] += A[D[i,q]]
    """

    name = "precompute_indices"
    level = Level.MEMORY
    local = True
    site_kinds = ("equation",)
    parameters = (Parameter("which", "the subscript to compute beforehand, counted from 1"),)

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for site, node in sites(program).items():
            if isinstance(node.statement, Equation):
                for number in range(len(computed_subscripts(node.statement))):
                    yield (site,), (str(number + 1),)

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        node, equation = _equation(program, site[0])
        found = computed_subscripts(equation)
        where = f"precompute subscript {args[0]} of {site[0]}"
        if int(args[0]) > len(found):
            return Refusal("structure", f"{where}: it has {counted(len(found), 'subscript')} that take work")
        subscript = found[int(args[0]) - 1]
        text = show_expression(subscript)
        for part in subexpressions(subscript):
            reach = interval(part, node.extents)
            if reach is None or max(-reach[0], reach[1]) > _INT32_MAX:
                return Refusal("size", f"{where}: {text} does not fit 32 bits")
        table = _table(fresh_tensor(program), node, subscript)
        if table.nbytes > MAX_TABLE_BYTES:
            return Refusal(
                "size", f"{where}: a table of {text} takes {table.nbytes} bytes, the limit is {MAX_TABLE_BYTES}"
            )
        if not promised(program.body[node.path[0]]):
            return None
        broken = broken_promise(program, self._reading(program, node, subscript, table))
        return broken and Refusal(broken.code, f"{where}: {broken.sentence}")

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        node, equation = _equation(program, site[0])
        subscript = computed_subscripts(equation)[int(args[0]) - 1]
        table = _table(fresh_tensor(program), node, subscript)
        after = self._reading(program, node, subscript, table)
        extents = node.extents
        loops = launched(program, new_loops(program, tuple((name, extents[name]) for name in _over(node, subscript))))
        names = {name: Index(loop.index) for name, loop in zip(_over(node, subscript), loops, strict=True)}
        value = substitute(subscript, names)
        fill = nest(loops, Block((Equation(Access(table.name, tuple(names.values())), Assign.SET, value),)))
        position = node.path[0]
        body = (*after.body[:position], fill, *after.body[position:])
        return Outcome(Program(Block(body, (*program.tensors, table))))

    def _reading(self, program: Program, node: Node, subscript: Expr, table: Tensor) -> Program:
        """The program with the subscript read from the table, which is neither declared nor filled yet."""
        entry = Access(table.name, tuple(Index(name) for name in _over(node, subscript)))

        def change(access: Access) -> Expr:
            return Access(access.tensor, tuple(entry if s == subscript else s for s in access.subscripts))

        return splice(program, node.path, (map_expressions(node.statement, lambda expr: map_accesses(expr, change)),))

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        node, equation = _equation(program, site[0])
        subscript = computed_subscripts(equation)[int(args[0]) - 1]
        table = _table("T", node, subscript)
        times = 1
        for loop in node.loops:
            times *= loop.extent
        return (
            f"Compute subscript {args[0]} of {site[0]}, {show_expression(subscript)}, once for its "
            f"{counted(table.size, 'place')} into a table of {table.nbytes} bytes, in place of in each of "
            f"{counted(times, 'iteration')}."
        )


def _equation(program: Program, site: str) -> tuple[Node, Equation]:
    node = sites(program)[site]
    assert isinstance(node.statement, Equation)
    return node, node.statement


def _over(node: Node, subscript: Expr) -> tuple[str, ...]:
    """The indices of a subscript, from the outermost loop in."""
    used = indices(subscript)
    return tuple(loop.index for loop in node.loops if loop.index in used)


def _table(name: str, node: Node, subscript: Expr) -> Tensor:
    extents = node.extents
    return Tensor(name, DType.I32, tuple(extents[index] for index in _over(node, subscript)))
