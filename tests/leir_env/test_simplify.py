"""Index algebra: exact for every integer within the extents."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.leir_env.affine import evaluate
from envs.leir_env.ir import Call, Const, Expr, Index, Program
from envs.leir_env.parser import parse
from envs.leir_env.printer import show_expression
from envs.leir_env.simplify import linear, rewrite, simplify
from envs.leir_env.tree import equations, indices, loops_below, substitute
from tests.leir_env.nests import programs

EXTENTS = {"i": 5, "j": 4, "f": 20}

_expressions = st.recursive(
    st.one_of(st.integers(0, 12).map(Const), st.sampled_from("ijf").map(Index)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["add", "sub"]), inner, inner).map(lambda t: Call(t[0], t[1:])),
        st.tuples(st.integers(0, 8).map(Const), inner).map(lambda t: Call("mul", t)),
        st.tuples(st.sampled_from(["floordiv", "mod"]), inner, st.integers(1, 9).map(Const)).map(
            lambda t: Call(t[0], t[1:])
        ),
    ),
    max_leaves=10,
)


def points() -> list[dict[str, int]]:
    return [dict(zip("ijf", p, strict=True)) for p in itertools.product(range(5), range(4), range(0, 20, 3))]


@settings(max_examples=400, deadline=None)
@given(_expressions)
def test_simplifying_keeps_every_value(expr: Expr) -> None:
    simple = simplify(expr, EXTENTS)
    for point in points():
        assert evaluate(simple, point) == evaluate(expr, point), show_expression(expr)


@settings(max_examples=300, deadline=None)
@given(_expressions)
def test_bounds_hold(expr: Expr) -> None:
    found = linear(expr, EXTENTS).interval(EXTENTS)
    assert found is not None
    for point in points():
        assert found[0] <= evaluate(expr, point) <= found[1]


@settings(max_examples=300, deadline=None)
@given(_expressions)
def test_simplifying_twice_changes_nothing_more(expr: Expr) -> None:
    once = simplify(expr, EXTENTS)
    assert simplify(once, EXTENTS) == once


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(4i+j)//4", "i"),
        ("(4i+j)%4", "j"),
        ("4*(f//4)+f%4", "f"),
        ("12*(f//12)+4*(f//4%3)+f%4", "f"),
        ("f//2//5", "f//10"),
        ("i+3-4", "i-1"),
        ("7-i", "7-i"),
        ("(8i+4)//4", "2i+1"),
    ],
)
def test_index_arithmetic_that_splits_and_fusions_leave_behind_vanishes(before: str, after: str) -> None:
    program = parse(f"i:5 j:4 f:20\nA:f32[200] -> C:f32[i,j,f]\nL_i,j,f C[i,j,f] = A[{before}]\n")
    loop = program.body[0]
    while not hasattr(loop, "value"):
        loop = loop.block.body[0]  # type: ignore[union-attr]
    (subscript,) = loop.value.subscripts  # type: ignore[union-attr]
    assert show_expression(simplify(subscript, EXTENTS)) == after


_comparisons = st.tuples(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), _expressions, _expressions)
_conditions = st.recursive(
    _comparisons.map(lambda t: Call(t[0], t[1:])),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner).map(lambda t: Call(t[0], t[1:])),
        inner.map(lambda t: Call("not", (t,))),
    ),
    max_leaves=4,
)


@settings(max_examples=400, deadline=None)
@given(_conditions)
def test_simplifying_keeps_the_truth_of_every_condition(condition: Expr) -> None:
    simple = simplify(condition, EXTENTS)
    for point in points():
        assert bool(evaluate(simple, point)) == bool(evaluate(condition, point)), show_expression(condition)


def test_two_conditions_that_always_hold_are_true_and_two_that_never_do_are_false() -> None:
    program = parse("i:4\nA:f32[i] -> C:f32[i]\nL_i C[i] = select(i>=0 and i<4,A[i],0.0)\n")
    holds = program.body[0].block.body[0].value.args[0]
    assert simplify(holds, {"i": 4}) == Const(True)
    assert simplify(
        Call("or", (Call("lt", (Index("i"), Const(0))), Call("ge", (Index("i"), Const(4))))), {"i": 4}
    ) == Const(False)


@settings(max_examples=200, deadline=None)
@given(programs(), st.integers(2, 4))
def test_rewriting_is_substituting_and_then_simplifying_each_expression(program: Program, factor: int) -> None:
    for nest in program.body:
        for loop in loops_below(nest):
            values = {loop.index: Call("add", (Call("mul", (Const(factor), Index("x"))), Index("y")))}
            around = {"x": -(-loop.extent // factor), "y": factor}
            for child in loop.block.body:
                new = rewrite(child, values, around)
                for old, now in zip(equations(child), equations(new), strict=True):
                    if loop.index in indices(old.value):
                        inside = {below.index: below.extent for below in loops_below(child)}
                        assert now.value == simplify(substitute(old.value, values), {**around, **inside})
