"""Parser, printer and key: the round-trip laws, and errors that say where and what."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.leir_env import strategies
from envs.leir_env.generate import random_program
from envs.leir_env.ir import Call, Const, ExpressionTooDeep, Index
from envs.leir_env.key import key
from envs.leir_env.parser import MAX_CHARACTERS, ParseError, parse
from envs.leir_env.printer import show, show_expression
from envs.leir_env.workloads import load, names
from tests.leir_env.renaming import canonical

TILED = """\
io:16 jo:12 k:1024 ii:32 ji:64
A:f32[512,k] | B:f32[k,768] -> C:f32[512,768]
P_io L_jo [
  D:f32.l[ii,ji]
  L_k,ii V_ji D[ii,ji] += A[32io+ii,k] B[k,64jo+ji]
  L_ii V_ji C[32io+ii,64jo+ji] = D[ii,ji] if 32io+ii<510 and jo<3
]
"""

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_parsing_what_was_shown_gives_the_same_program(seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    assert parse(show(program)) == program
    assert show(parse(show(program))) == show(program)


@pytest.mark.parametrize("name", names())
def test_shipped_programs_are_in_canonical_form(name: str) -> None:
    program = load(name).program
    assert parse(show(program)) == program


def test_a_tiled_program_is_printed_as_it_was_written() -> None:
    assert show(parse(TILED)) == TILED


@pytest.mark.parametrize(
    "text",
    [
        "A[i,j] B[j,i]",
        "A[i,j]/B[j,i]*2.0",
        "A[i,j]-(B[j,i]-1.0)",
        "-A[i,j]",
        "-(A[i,j]+1.0)*B[j,i]",
        "2.0*(-A[i,j])",
        "1e-05+inf",
        "A[i,j]+(-inf)",
        "select(i<=j and not (i==0 or j>=2),A[i,j],0.0)",
        "f32(i)*0.5",
        "max(min(A[i,j],1.0),-1.0)",
        "A[i//2,(i+3)%4]",
        "A[3-i,2i+1]",
        "pow(A[i,j],2.0)",
        "A[G[i],j]",
        "2*inf",
        "2.0*f32(3i)",
    ],
)
def test_expressions_print_as_they_are_written(text: str) -> None:
    source = f"i,j:4\nA:f32[8,9] B:f32[j,i] G:i64[i] -> C:f32[i,j]\nL_i,j C[i,j] = {text}\n"
    program = parse(source)
    assert text in show(program)
    assert parse(show(program)) == program


_names = st.sampled_from(["i", "j"])
_expressions = st.recursive(
    st.one_of(
        st.integers(0, 99).map(Const),
        st.floats(0, 1e6, allow_nan=False).map(Const),
        st.sampled_from([Const(float("inf")), Const(-2), Const(True)]),
        _names.map(Index),
    ),
    lambda inner: st.one_of(
        st.tuples(
            st.sampled_from(["add", "sub", "mul", "div", "floordiv", "mod", "lt", "eq", "and", "or", "max", "pow"]),
            inner,
            inner,
        ).map(lambda t: Call(t[0], t[1:])),
        inner.filter(lambda e: not isinstance(e, Const)).map(lambda e: Call("neg", (e,))),
        inner.map(lambda e: Call("not", (e,))),
        inner.map(lambda e: Call("exp", (e,))),
        st.tuples(inner, inner, inner).map(lambda t: Call("select", t)),
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(_expressions)
def test_any_expression_survives_printing_and_parsing(expr: Call) -> None:
    text = f"i,j:4\n-> C:f32[i,j]\nL_i,j C[i,j] = {show_expression(expr)}\n"
    (loop,) = parse(text).body
    assert loop.block.body[0].block.body[0].value == expr  # type: ignore[union-attr]


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_renaming_keeps_the_key(seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    assert key(canonical(program)) == key(program)


def test_keys_are_equal_exactly_where_the_renamed_texts_are() -> None:
    found: dict[str, str] = {}
    for seed in range(150):
        rng = np.random.default_rng(seed)
        program = random_program(rng)
        for _ in range(3):
            found.setdefault(key(program), show(canonical(program)))
            assert found[key(program)] == show(canonical(program))
            actions = strategies.legal(program)
            program = strategies.apply(program, actions[int(rng.integers(len(actions)))]).program
    assert len(set(found.values())) == len(found)


def test_programs_that_differ_in_a_kind_an_extent_or_the_order_of_inputs_have_different_keys() -> None:
    text = "i:8\nA:f32[i] B:f32[i] -> C:f32[i]\nL_i C[i] = A[i]-B[i]\n"
    others = [
        text.replace("L_i", "P_i"),
        text.replace("i:8", "i:9"),
        text.replace("A:f32[i] B:f32[i]", "B:f32[i] A:f32[i]"),
        text.replace("A[i]-B[i]", "A[i]+B[i]"),
        text.replace("f32", "f64"),
    ]
    assert len({key(parse(t)) for t in (text, *others)}) == 1 + len(others)


def test_deep_expressions_are_refused_where_they_are_built() -> None:
    value = Index("i")
    with pytest.raises(ExpressionTooDeep):
        for _ in range(1000):
            value = Call("neg", (value,))  # type: ignore[assignment]


HEAD = "i:3 j:4\nA:f32[i,j] -> C:f32[i]\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected"),
        ("hello", 1, 6, "expected ',', ':'"),
        (HEAD + "L_i C[i] = A[i,k]\n", 3, 12, "k: unknown index"),
        (HEAD + "L_i,j C[i] += A[i,j] +\n", 3, 23, "found the end of the line, expected"),
        (HEAD + "L_i,j C[i] += A[i,j] ? 2\n", 3, 22, "found '?'"),
        (HEAD + "L_i,j C[i] += A_{i,j}\n", 3, 16, "an element is written A[i,j]"),
        (HEAD + "L_i, C[i] += A[i,0]\n", 3, 2, "loops are written L_i,j"),
        (HEAD + "L_i,h C[i] += A[i,h]\n", 3, 5, "unknown index h"),
        (HEAD + "L_i,q C[i] += 1.0\n", 3, 5, "unknown index q"),
        (HEAD + "L_i,i C[i] = 1.0\n", 3, 5, "loop i stands inside another loop over i"),
        (HEAD + "L_i,j C[i] += A[j]\nL_i C[i] = j\n", 4, 12, "j: no loop here runs over it"),
        (HEAD + "L_i C[i] = fob(1.0)\n", 3, 12, "unknown function fob"),
        (HEAD + "L_i C[i] = exp(1.0,2.0)\n", 3, 12, "exp takes 1 arguments, got 2"),
        (HEAD + "L_i,j C[i] += A[i,j]\n]\n", 4, 1, "found ]"),
        ("i:3 i:4\n-> C:f32[i]\nL_i C[i] = 1.0\n", 1, 5, "index i has two extents"),
        ("max:3\n-> C:f32[max]\nL_max C[max] = 1.0\n", 1, 1, "reserved word"),
        ("i:3 j:4\n-> C:f32[i]\nL_i C[i] = 1.0\n", 1, 5, "index j is declared but no loop runs over it"),
        ("i:3\n-> L:f32[i] C:f32[i]\nL_i C[i] = 1.0\n", 2, 4, "L is a loop kind"),
        ("i:3\n-> C:f31[i]\nL_i C[i] = 1.0\n", 2, 6, "expected a dtype"),
        ("i:12345678901234567890\n-> C:f32[i]\nL_i C[i] = 1.0\n", 1, 3, "more than 18 digits"),
    ],
)
def test_malformed_text_is_an_error_at_its_place(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError, match=r".") as caught:
        parse(text)
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_oversized_text_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ParseError, match=f"10,000,000 characters; the limit is {MAX_CHARACTERS:,}"):
        parse("x" * 10_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "1.0" + ")" * 5000,
        "-" * 5000 + "A[i]",
        "+".join(["A[i]"] * 5000),
        "exp(" * 100 + "A[i]" + ")" * 100,
        "not " * 3000 + "true",
        " ".join(["A[i]"] * 3000),
    ],
)
def test_deep_or_long_expressions_are_errors_and_never_exhaust_the_stack(text: str) -> None:
    with pytest.raises(ParseError):
        parse(f"i:3\nA:f32[i] -> C:f32[i]\nL_i C[i] = {text}\n")


def test_deep_loops_are_an_error() -> None:
    domains = " ".join(f"q{n}:2" for n in range(200))
    loops = " ".join(f"L_q{n}" for n in range(200))
    with pytest.raises(ParseError, match="loops are nested more than"):
        parse(f"{domains}\n-> C:f32\n{loops} C += 1.0\n")


def test_a_product_binds_closer_than_a_sum() -> None:
    (equation,) = parse("-> C:f32\nC = 1+2*3\n").body
    assert equation.value == Call("add", (Const(1), Call("mul", (Const(2), Const(3)))))


def test_an_error_in_a_long_line_points_at_its_place():
    text = "i:3\nA:f32[i] -> B:f32[i]\nL_i B[i] = " + "A[i]+" * 100 + "?\n"
    with pytest.raises(ParseError) as caught:
        parse(text)
    _, shown, pointer = str(caught.value).splitlines()[:3]
    assert shown[pointer.index("^")] == "?"
