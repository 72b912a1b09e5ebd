"""Statements: which neighbours may change places, and what is of no use."""

import pytest

from envs.leir_env import strategies
from envs.leir_env.key import key
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import Exactness
from envs.leir_env.verify import verify
from tests.leir_env.strategies.steps import after, assert_built_agrees, assert_same_values, exactness, refused


def body(text: str, action: str) -> str:
    """The statements after an action, which computes the same, bit for bit if it says so."""
    program = after(text, action)
    assert_same_values(text, program, exact=exactness(text, action) is Exactness.EXACT)
    return "\n".join(show(program).splitlines()[2:])


HEAD = "i:8\nA,B:f32[i] -> C,D:f32[i]; E:f32[i]\n"


def test_independent_neighbours_change_places() -> None:
    text = HEAD.replace("; E:f32[i]", "") + "L_i C[i] = A[i]\nL_i D[i] = B[i]\n"
    assert body(text, "expression_reorder(i, i.2)") == "L_i D[i] = B[i]\nL_i C[i] = A[i]"
    assert key(after(text, "expression_reorder(i, i.2)", "expression_reorder(i, i.2)")) == key(parse(text))


def test_equations_within_a_loop_change_places_by_their_names() -> None:
    text = HEAD.replace("; E:f32[i]", "") + "P_i [\n  C[i] = A[i]\n  D[i] = B[i]\n]\n"
    assert body(text, "expression_reorder(C, D)") == "P_i [\n  D[i] = B[i]\n  C[i] = A[i]\n]"


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("E[i] = A[i]", "D[i] = E[i]", "flow"),
        ("D[i] = E[i]", "E[i] = A[i]", "anti"),
        ("E[i] = A[i]", "E[i] = B[i]", "output"),
        ("E[i] = A[i]", "E[i] += B[i]", "output"),
        ("E[i] += A[i]", "E[i] max= B[i]", "output"),
        ("C[i] = E[7-i]", "E[i] = B[i]", "anti"),
    ],
)
def test_statements_that_depend_on_each_other_stay(first: str, second: str, kind: str) -> None:
    text = f"{HEAD}L_i E[i] = B[i]\nL_i C[i] = A[i]\nL_i D[i] = A[i]\nL_i {first}\nL_i {second}\nL_i C[i] = E[i]+D[i]\n"
    refusal = refused(text, "expression_reorder(i.4, i.5)")
    assert refusal.code == "dependence" and kind in refusal.sentence


def test_accumulations_of_one_tensor_change_places_by_reassociation() -> None:
    text = "i:8 j:5\nA,B:f32[i,j] -> C:f32[i]\nL_i,j C[i] += A[i,j]\nL_i,j C[i] += B[i,j]\n"
    assert exactness(text, "expression_reorder(i, i.2)") is Exactness.REASSOCIATES
    assert body(text, "expression_reorder(i, i.2)").startswith("L_i,j C[i] += B[i,j]\n")
    for other in (text.replace("+=", "max="), text.replace("f32", "i32")):
        assert exactness(other, "expression_reorder(i, i.2)") is Exactness.EXACT


def test_halves_of_one_tensor_change_places() -> None:
    text = "i:4\nA:f32[8] -> C:f32[8]\nL_i C[i] = A[i]\nL_i C[i+4] = A[i]+1.0\n"
    assert body(text, "expression_reorder(i, i.2)").startswith("L_i C[i+4] = ")


def test_statements_of_equal_form_and_strangers_do_not() -> None:
    text = f"{HEAD[:-1].replace('; E', '; E,F')}\nL_i E[i] = A[i]\nL_i F[i] = A[i]\nL_i C[i] = A[i]\nL_i D[i] = B[i]\n"
    assert refused(text, "expression_reorder(i, i.2)").code == "no_effect"
    assert refused(text, "expression_reorder(i, i.3)").code == "structure"
    assert refused(text, "expression_reorder(i.2, i)").code == "structure"


def test_a_temporary_that_nothing_reads_goes_with_all_its_equations() -> None:
    text = HEAD + "L_i E[i] = exp(A[i])\nL_i E[i] += E[i]*B[i]\nL_i C[i] = A[i]\nL_i D[i] = B[i]\n"
    program = after(text, "dead_code_elimination(E)")
    assert show(program) == "i:8\nA,B:f32[i] -> C,D:f32[i]\nL_i C[i] = A[i]\nL_i D[i] = B[i]\n"
    assert after(text, "dead_code_elimination(E.2)") == program
    menu = [str(action) for action in strategies.legal(parse(text)) if action.name == "dead_code_elimination"]
    assert menu == ["dead_code_elimination(E)"]


def test_private_temporaries_and_loops_that_hold_nothing_else_go_too() -> None:
    text = (
        "i:8 k:4\nA:f32[i,k] -> C:f32[i]\nP_i [\n  D:f32.l\n"
        "  L_k [\n    E:f32.l\n    E = exp(A[i,k])\n    D += E\n  ]\n  C[i] = A[i,0]\n]\n"
    )
    assert body(text, "dead_code_elimination(D)") == (
        "P_i [\n  L_k [\n    E:f32.l\n    E = exp(A[i,k])\n  ]\n  C[i] = A[i,0]\n]"
    )
    program = after(text, "dead_code_elimination(D)", "dead_code_elimination(E)")
    assert show(program).endswith("\nP_i C[i] = A[i,0]\n")


def around(before: str, statements: str) -> str:
    """A program with these statements, whose loops have fixed extents, and C read after them."""
    body = f"{before}{statements}L_i D[i] = C[i]\n"
    extents = {"i": 8, "k": 4, "h": 2, "f": 4}
    domains = " ".join(f"{name}:{extent}" for name, extent in extents.items() if f"L_{name} " in body)
    return f"{domains}\nA,B:f32[i] -> C,D:f32[i]\n{body}"


@pytest.mark.parametrize(
    "statements",
    [
        "L_i C[i] = A[i]\nL_i C[i] = B[i]\n",
        "L_i C[i] = A[i] if i<5\nL_i D[i] = B[i]\nL_i C[i] = B[i]\n",
        "L_i [\n  C[i] = A[i]\n  C[i] = B[i]\n]\n",
        "L_i C[i] = A[i]\nL_h L_f C[4h+f] = B[4h+f]\n",
        "L_k C[k+2] = A[k]\nL_i C[i] = B[i]\n",
        "L_k C[2k] = A[k]\nL_k [\n  C[k] = A[k]\n  C[k+4] = B[k]\n]\nL_i C[i] = B[i]\n",
        "L_k [\n  L_i C[i] = A[i]\n  L_i C[i] = B[i]\n  L_i D[i] = C[i]\n]\n",
    ],
)
def test_what_is_overwritten_before_it_is_read_is_dropped(statements: str) -> None:
    text = around("", statements)
    assert exactness(text, "dead_code_elimination(C)") is Exactness.EXACT
    assert_same_values(text, after(text, "dead_code_elimination(C)"), exact=True)


def test_a_row_is_overwritten_by_a_row() -> None:
    text = "i:8 j:5\nA,B:f32[i,j] -> C:f32[i,j]\nL_i [\n  L_j C[i,j] = A[i,j]\n  L_j C[i,j] = B[i,j]\n]\n"
    assert body(text, "dead_code_elimination(C)") == "L_i,j C[i,j] = B[i,j]"


@pytest.mark.parametrize(
    "statements",
    [
        "L_i C[i] = A[i]\nL_i D[i] = C[i]\nL_i C[i] = B[i]\n",
        "L_i C[i] = A[i]\nL_i C[i] += B[i]\n",
        "L_i C[i] = A[i]\nL_i C[i] = B[i] if i<7\n",
        "L_i C[i] = A[i]\nL_k C[k] = B[k]\n",
        "L_i C[i] = A[i]\nL_k C[2k] = B[k]\n",
        "L_i [\n  C[i] = A[i]\n  D[i] = C[0]\n]\nL_i C[i] = B[i]\n",
        "L_i [\n  C[i] = A[i]\n  L_k C[k] = B[k]\n]\n",
        "L_i C[i] = A[i]\nL_i C[i] = C[i]+B[i]\n",
        "L_i C[i] = A[i]\nL_i [\n  D[i] = C[i]\n  C[i] = B[i]\n]\n",
        "L_k [\n  L_i D[i] = C[i]+A[i]\n  L_i C[i] = B[i]\n]\n",
        "L_i C[i] += A[i]\nL_i C[i] = B[i] if i<3\nL_i C[7-i] = B[i]\n",
    ],
)
def test_what_may_be_used_is_kept(statements: str) -> None:
    text = around("L_i D[i] = B[i]\nL_i C[i] = B[i]\n", statements)
    assert verify(parse(text)) == ()
    assert refused(text, "dead_code_elimination(C.2)").code == "dependence"


def test_dropping_must_not_change_how_a_sum_starts() -> None:
    text = "i:8\nA,B:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\nL_i C[i] = B[i] if i<3\nL_i C[i] = B[i]\nL_i C[i] += A[i]\n"
    assert body(text, "dead_code_elimination(C)") == "L_i C[i] = B[i] if i<3\nL_i C[i] = B[i]\nL_i C[i] += A[i]"
    started = "i:8\nA,B:f32[i] -> C:f32[i]\nL_i C[i] += A[i]\nL_i C[i] = B[i]\n"
    assert "would start differently" in refused(started, "dead_code_elimination(C)").sentence


def test_the_last_equation_of_an_output_is_kept() -> None:
    text = "i:8\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\n"
    assert refused(text, "dead_code_elimination(C)").sentence == "drop C: nothing overwrites all that it writes to C"


def test_the_compiled_programs_agree() -> None:
    text = HEAD + "L_i C[i] = 0\nL_i E[i] = exp(A[i])\nL_i D[i] = B[i]\nL_i C[i] = A[i]\n"
    assert_built_agrees(
        after(text, "dead_code_elimination(C)", "dead_code_elimination(E)", "expression_reorder(i, i.2)")
    )
