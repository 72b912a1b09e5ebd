"""What is offered, compared with everything that can be done: brute force on tiny programs.

A transformed program is legal if it gives the same outputs for several inputs; a parallel loop, if no iteration
touches an element that another writes, in any order of its iterations. The strategies must offer what is legal and
nothing else, but for the cases that are listed with their reason.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from envs.common.actions import Action
from envs.leir_env import strategies
from envs.leir_env.interp import run
from envs.leir_env.ir import Access, Block, Call, Const, Equation, Expr, Index, Kind, Loop, Program, Statement
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import REGISTRY
from envs.leir_env.tree import Path, block_at, site_of, update_block, walk
from envs.leir_env.verify import verify
from tests.laws.brute_force import SEEDS, execute, parallel, same
from tests.leir_env.nests import SETTINGS, programs

PROGRAMS = {
    "copy": "i:2 j:3\nA:i64[i,j] -> C:i64[j,i]\nL_i,j C[j,i] = A[i,j]\n",
    "matmul": "i,k:2 j:3\nA:i64[i,k] B:i64[k,j] -> C:i64[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n",
    "skewed": (
        "i,j:3\nA:i64[i,j] -> C:i64[3,4]\nL_i C[i,0] = A[i,0]\nL_j C[0,j+1] = 2*A[0,j]\n"
        "L_i,j C[i,j+1] = A[i,j]+select(i>=1,C[i-1,j],1) if j<2 or i>=1\n"
    ),
    "against the grain": (
        "i,j:3\nA:i64[i,j] -> C:i64[i,j]\n"
        "L_i,j C[i,j] = A[i,j]\nL_i,j C[i,j] = C[i,j]+select(i>=1 and j<2,3*C[i-1,j+1],0)\n"
    ),
    "rows": ("i,j:3\nA:i64[i,j] -> C:i64[i,j]\nL_i,j C[i,j] = A[i,j]+select(i>=1,3*C[i-1,j],0)\n"),
    "handed on": ("i:3 j:2\nA:i64[i,j] -> C:i64[i,j]; D:i64[i,j]\nL_i,j D[i,j] = 2*A[i,j]\nL_i,j C[i,j] = D[i,j]+1\n"),
    "from before": "i:4\nA:i64[i] -> C:i64[i]; D:i64[i]\nL_i D[i] = 2*A[i]\nL_i C[i] = select(i>=1,D[i-1],0)\n",
    "from behind": "i:4\nA:i64[i] -> C:i64[i]; D:i64[i]\nL_i D[i] = 2*A[i]\nL_i C[i] = select(i<3,D[i+1],0)\n",
    "overwritten behind": (
        "i:4\nA:i64[i] -> C,D:i64[i]\nL_i D[i] = 5*A[i]\nL_i C[i] = select(i<3,D[i+1],7)\nL_i D[i] = A[i]\n"
    ),
    "rowwise": (
        "i:2 j:3\nA:i64[i,j] -> C:i64[i,j]; D,E:i64[i]\nL_i,j D[i] max= A[i,j]\nL_i,j E[i] += A[i,j]-D[i]\n"
        "L_i,j C[i,j] = A[i,j]*E[i]-D[i]\n"
    ),
    "last writer": "i:3 j:2\nA:i64[i,j] -> C:i64[4]\nL_i,j C[i+j] = A[i,j]\n",
    "histogram": "i:3 j:2\nA:i64[i,j] -> C:i64[4]\nL_i,j C[i+j] += A[i,j]\n",
    "halves": "i,j:2\nA:i64[i] -> C:i64[4]\nL_i C[i] = A[i]\nL_j C[j+2] = 3*C[1-j]\n",
    "digits": "f:6 k:2\nA:i64[2,k] B:i64[3,k] -> C:i64[2,3]\nL_f,k C[f//3,f%3] += A[f//3,k]*B[f%3,k]\n",
    "parity": "i:4 j:2\nA:i64[i,j] -> C:i64[2,j]\nL_i,j C[i%2,j] = A[i,j]\n",
    "triangle": "i,j:3\nA:i64[i,j] -> C:i64[i]\nL_i,j C[i] += A[i,j] if j<=i\n",
    "upper to lower": ("i,j:3\nA:i64[i,j] -> C:i64[i,j]\nL_i,j C[i,j] = A[i,j]\nL_i,j C[j,i] = 3*C[i,j] if i<j\n"),
    "private": (
        "i:3 j:2\nA:i64[i,j] -> C:i64[i]\nL_i [\n  D:i64[j]\n  L_j D[j] = 2*A[i,j]\n  L_j C[i] += D[j]*D[1-j]\n]\n"
    ),
    "shared by iterations": (
        "i:3 j:2\nA:i64[i,j] -> C:i64[i]; D:i64[j]\nL_i [\n  L_j D[j] = 2*A[i,j]\n  L_j C[i] += D[j]*D[1-j]\n]\n"
    ),
    "independent": (
        "i,j:2\nA,B:i64[i] -> C,D:i64[i] E:i64[j]\nL_i C[i] = A[i]\nL_i D[i] = B[i]+1\nL_j E[j] += 2*B[j]\n"
    ),
    "two sums": "i:3\nA,B:i64[i] -> C:i64\nL_i C += A[i]\nL_i C += 5*B[i]\nC max= 3\n",
    "data": "i:3 j:2\nA:i64[i,j] M:i64[i] -> C:i64[3,j]\nL_i,j C[M[i],j] += A[i,j]\n",
    "one value for all": "i:3 j:2\nA:i64[i] -> C:i64[4] D:i64[i]\nL_i,j C[i+j] = 7\nL_i D[i] = A[i]\n",
    "copied twice": "i:3\nA:i64[i] -> C:i64[i]\nL_i C[i] = 2*A[i]\nL_i C[i] = 2*A[i]\n",
    "products": "i,j:3\nA:i64[i,j] -> C:i64[5] D:i64[i,j]\nL_i,j C[i*j] += A[i,j]\nL_i,j D[i,j] = C[i*j]\n",
    "nothing moves": "i:3 j:2\nA:i64[i,j] -> C:i64[i,j]; D:i64\nL_i,j [\n  D = 2*A[i,j]\n  C[i,j] = D+1\n]\n",
    "cancelled": "i:3\nA:i64[i] -> C:i64[i]; D:i64[i]\nL_i D[i] = A[i]\nL_i C[i] = D[2-i]-D[2-i]+A[i]\n",
    "where data says": "i:4\nA:i64[i] -> C:i64[i]\nL_i C[i] max= A[i] if A[i]>0\nL_i C[i] += 2 if A[i]<=0\n",
    "gather": "i:3 j:2\nA:i64[3,j] M:i64[i] -> C:i64[i,j]\nL_i,j C[i,j] = A[M[i],j]\n",
}

CONSERVATIVE = {
    "one value for all: loop_reorder(i, j)": "who writes an element last matters, whatever the value is",
    "copied twice: expression_reorder(i, i.2)": "refused because nothing would change",
    "nothing moves: loop_reorder(i, j)": "D lives on from one iteration to the next, though none reads it there",
}
"""Actions that brute force finds legal and the strategies refuse: `program: action`, with the reason."""


def at(program: Program, path: Path) -> Statement:
    return block_at(program, path).body[path[-1]]


def put(program: Program, path: Path, *new: Statement, drop: int = 1) -> Program:
    """Replace `drop` statements from `path` on."""
    position = path[-1]

    def change(block: Block) -> Block:
        return replace(block, body=(*block.body[:position], *new, *block.body[position + drop :]))

    return update_block(program, path[:-1], change)


def chain(loop: Loop) -> list[Loop]:
    """The loops that are each all there is in the one before."""
    found = [loop]
    while not found[-1].block.tensors and len(found[-1].block.body) == 1:
        inner = found[-1].block.body[0]
        if not isinstance(inner, Loop):
            break
        found.append(inner)
    return found


def stacked(loops: list[Loop], block: Block) -> Loop:
    for loop in reversed(loops):
        block = Block((replace(loop, block=block),))
    (statement,) = block.body
    assert isinstance(statement, Loop)
    return statement


def renamed(statement: Statement, names: Mapping[str, Expr]) -> Statement:
    def change(expr: Expr) -> Any:
        match expr:
            case Index(name):
                return names.get(name, expr)
            case Access(tensor, subscripts):
                return Access(tensor, tuple(map(change, subscripts)))
            case Call(op, args):
                return Call(op, tuple(map(change, args)))
        return expr

    if isinstance(statement, Loop):
        inner = {name: value for name, value in names.items() if name != statement.index}
        body = tuple(renamed(child, inner) for child in statement.block.body)
        return replace(statement, block=replace(statement.block, body=body))
    guard = tuple(map(change, statement.guard))
    return Equation(change(statement.target), statement.assign, change(statement.value), guard)


Possible = Iterator[tuple[Action, Callable[[], bool]]]
"""Everything one could ask for, and the test of brute force that says whether it is legal."""


def reorders(program: Program) -> Possible:
    for node in walk(program):
        if isinstance(node.statement, Loop):
            loops = chain(node.statement)
            for depth in range(1, len(loops)):
                swapped = [loops[depth], *loops[1:depth], loops[0]]
                rest = [*swapped, *loops[depth + 1 :]]
                after = put(program, node.path, stacked(rest, loops[-1].block))
                names = (site_of(program, node.path), site_of(program, (*node.path, *[0] * depth)))
                yield Action("loop_reorder", names), lambda after=after: same(program, after)  # type: ignore[misc]


def fused_loops(program: Program) -> Possible:
    for node in walk(program):
        if isinstance(node.statement, Loop) and len(chain(node.statement)) > 1:
            outer, inner = chain(node.statement)[:2]
            divide: dict[str, Expr] = {
                outer.index: Call("floordiv", (Index("z"), Const(inner.extent))),
                inner.index: Call("mod", (Index("z"), Const(inner.extent))),
            }
            body = tuple(renamed(child, divide) for child in inner.block.body)
            fused = Loop(Kind.SERIAL, "z", outer.extent * inner.extent, replace(inner.block, body=body))
            after = put(program, node.path, fused)
            names = (site_of(program, node.path), site_of(program, (*node.path, 0)))
            yield Action("loop_fusion", names), lambda after=after: same(program, after)  # type: ignore[misc]


def parallels(program: Program) -> Possible:
    for node in walk(program):
        if isinstance(node.statement, Loop) and node.statement.extent > 1:
            action = Action("loop_parallelization", (site_of(program, node.path),))
            yield action, lambda path=node.path: parallel(program, path)  # type: ignore[misc]


def fused_nests(program: Program) -> Possible:
    for node in walk(program):
        siblings, position = block_at(program, node.path).body, node.path[-1]
        if position + 1 == len(siblings):
            continue
        first, second = siblings[position : position + 2]
        if not isinstance(first, Loop) or not isinstance(second, Loop):
            continue
        for depth, (mine, theirs) in enumerate(zip(chain(first), chain(second), strict=False), 1):
            if mine.extent != theirs.extent:
                break
            heads, tails = chain(first)[:depth], chain(second)[:depth]
            names: dict[str, Expr] = {b.index: Index(f"z{n}") for n, b in enumerate(tails)}
            own: dict[str, Expr] = {a.index: Index(f"z{n}") for n, a in enumerate(heads)}
            body = (
                *(renamed(child, own) for child in mine.block.body),
                *(renamed(child, names) for child in theirs.block.body),
            )
            block = Block(body, mine.block.tensors + theirs.block.tensors)
            fused = stacked([replace(a, index=f"z{n}") for n, a in enumerate(heads)], block)
            after = put(program, node.path, fused, drop=2)
            at_both = (site_of(program, node.path), site_of(program, (*node.path[:-1], position + 1)))
            action = Action("operator_fusion", at_both, (str(depth),))
            yield action, lambda after=after: same(program, after)  # type: ignore[misc]


def exchanges(program: Program) -> Possible:
    for node in walk(program):
        siblings, position = block_at(program, node.path).body, node.path[-1]
        if position + 1 < len(siblings):
            first, second = siblings[position : position + 2]
            after = put(program, node.path, second, first, drop=2)
            names = (site_of(program, node.path), site_of(program, (*node.path[:-1], position + 1)))
            yield Action("expression_reorder", names), lambda after=after: same(program, after)  # type: ignore[misc]


EVERYTHING = {
    "loop_reorder": reorders,
    "loop_fusion": fused_loops,
    "loop_parallelization": parallels,
    "operator_fusion": fused_nests,
    "expression_reorder": exchanges,
}


@pytest.mark.parametrize("strategy", EVERYTHING)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_menu_holds_what_brute_force_finds_legal_and_nothing_else(name: str, strategy: str) -> None:
    program = parse(PROGRAMS[name])
    assert verify(program) == ()
    possible = {action: legal() for action, legal in EVERYTHING[strategy](program)}
    candidates = (Action(strategy, site, args) for site, args in REGISTRY[strategy].candidates(program))
    offered = {action for action in candidates if strategies.refusal(program, action) is None}
    assert offered <= possible.keys()
    for action, legal in possible.items():
        if f"{name}: {action}" in CONSERVATIVE:
            assert legal and action not in offered, f"{action} is no conservative case of {name}"
        else:
            assert (action in offered) == legal, f"{action}: brute force says {legal}\n{show(program)}"


@settings(SETTINGS, max_examples=60)
@given(programs())
def test_on_random_nests_nothing_illegal_is_offered_and_parallel_loops_are_found_exactly(program: Program) -> None:
    assume(all(execute(program, seed, filled=True)[0] is not None for seed in SEEDS))
    for strategy, every in EVERYTHING.items():
        for action, legal in every(program):
            if strategies.refusal(program, action) is None:
                assert legal(), f"{action}\n{show(program)}"
            elif strategy == "loop_parallelization":
                assert not legal(), f"{action}\n{show(program)}"


def test_brute_force_tells_right_from_wrong() -> None:
    verdicts: dict[str, set[bool]] = {strategy: set() for strategy in EVERYTHING}
    for text in PROGRAMS.values():
        for strategy, every in EVERYTHING.items():
            verdicts[strategy] |= {legal() for _, legal in every(parse(text))}
    assert verdicts.pop("loop_fusion") == {True}
    assert all(found == {True, False} for found in verdicts.values())


def test_the_executor_agrees_with_the_interpreter() -> None:
    for text in PROGRAMS.values():
        program = parse(text)
        found, _ = execute(program, 1)
        rng = random.Random(1)
        inputs = {}
        for tensor in program.inputs:
            size = tensor.size
            values = [(n + 1) % 3 if tensor.name == "M" else rng.randrange(-999, 1000) for n in range(size)]
            inputs[tensor.name] = np.array(values, np.int64).reshape(tensor.shape)
        for tensor in program.outputs:
            expected = run(program, inputs)[tensor.name]
            for place in itertools.product(*map(range, tensor.shape)):
                assert found is not None and found[str((tensor.name, 0, place))] == expected[place]
