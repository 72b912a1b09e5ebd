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
    text = HEAD.replace("; E:f32[i]", "") + "L_i C_i = A_i\nL_i D_i = B_i\n"
    assert body(text, "expression_reorder(i, i.2)") == "L_i D_i = B_i\nL_i C_i = A_i"
    assert key(after(text, "expression_reorder(i, i.2)", "expression_reorder(i, i.2)")) == key(parse(text))


def test_equations_within_a_loop_change_places_by_their_names() -> None:
    text = HEAD.replace("; E:f32[i]", "") + "P_i [\n  C_i = A_i\n  D_i = B_i\n]\n"
    assert body(text, "expression_reorder(C, D)") == "P_i [\n  D_i = B_i\n  C_i = A_i\n]"


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("E_i = A_i", "D_i = E_i", "flow"),
        ("D_i = E_i", "E_i = A_i", "anti"),
        ("E_i = A_i", "E_i = B_i", "output"),
        ("E_i = A_i", "E_i += B_i", "output"),
        ("E_i += A_i", "E_i max= B_i", "output"),
        ("C_i = E_{7-i}", "E_i = B_i", "anti"),
    ],
)
def test_statements_that_depend_on_each_other_stay(first: str, second: str, kind: str) -> None:
    text = f"{HEAD}L_i E_i = B_i\nL_i C_i = A_i\nL_i D_i = A_i\nL_i {first}\nL_i {second}\nL_i C_i = E_i+D_i\n"
    refusal = refused(text, "expression_reorder(i.4, i.5)")
    assert refusal.code == "dependence" and kind in refusal.sentence


def test_accumulations_of_one_tensor_change_places_by_reassociation() -> None:
    text = "i:8 j:5\nA,B:f32[i,j] -> C:f32[i]\nL_i L_j C_i += A_{i,j}\nL_i L_j C_i += B_{i,j}\n"
    assert exactness(text, "expression_reorder(i, i.2)") is Exactness.REASSOCIATES
    assert body(text, "expression_reorder(i, i.2)").startswith("L_i L_j C_i += B_{i,j}\n")
    for other in (text.replace("+=", "max="), text.replace("f32", "i32")):
        assert exactness(other, "expression_reorder(i, i.2)") is Exactness.EXACT


def test_halves_of_one_tensor_change_places() -> None:
    text = "i:4\nA:f32[8] -> C:f32[8]\nL_i C_i = A_i\nL_i C_{i+4} = A_i+1.0\n"
    assert body(text, "expression_reorder(i, i.2)").startswith("L_i C_{i+4} = ")


def test_statements_of_equal_form_and_strangers_do_not() -> None:
    text = f"{HEAD[:-1].replace('; E', '; E,F')}\nL_i E_i = A_i\nL_i F_i = A_i\nL_i C_i = A_i\nL_i D_i = B_i\n"
    assert refused(text, "expression_reorder(i, i.2)").code == "no_effect"
    assert refused(text, "expression_reorder(i, i.3)").code == "structure"
    assert refused(text, "expression_reorder(i.2, i)").code == "structure"


def test_a_temporary_that_nothing_reads_goes_with_all_its_equations() -> None:
    text = HEAD + "L_i E_i = exp(A_i)\nL_i E_i += E_i*B_i\nL_i C_i = A_i\nL_i D_i = B_i\n"
    program = after(text, "dead_code_elimination(E)")
    assert show(program) == "i:8\nA,B:f32[i] -> C,D:f32[i]\nL_i C_i = A_i\nL_i D_i = B_i\n"
    assert after(text, "dead_code_elimination(E.2)") == program
    menu = [str(action) for action in strategies.legal(parse(text)) if action.name == "dead_code_elimination"]
    assert menu == ["dead_code_elimination(E)"]


def test_private_temporaries_and_loops_that_hold_nothing_else_go_too() -> None:
    text = (
        "i:8 k:4\nA:f32[i,k] -> C:f32[i]\nP_i [\n  D:f32.l\n"
        "  L_k [\n    E:f32.l\n    E = exp(A_{i,k})\n    D += E\n  ]\n  C_i = A_{i,0}\n]\n"
    )
    assert body(text, "dead_code_elimination(D)") == (
        "P_i [\n  L_k [\n    E:f32.l\n    E = exp(A_{i,k})\n  ]\n  C_i = A_{i,0}\n]"
    )
    program = after(text, "dead_code_elimination(D)", "dead_code_elimination(E)")
    assert show(program).endswith("\nP_i C_i = A_{i,0}\n")


def around(before: str, statements: str) -> str:
    """A program with these statements, whose loops have fixed extents, and C read after them."""
    body = f"{before}{statements}L_i D_i = C_i\n"
    extents = {"i": 8, "k": 4, "h": 2, "f": 4}
    domains = " ".join(f"{name}:{extent}" for name, extent in extents.items() if f"L_{name} " in body)
    return f"{domains}\nA,B:f32[i] -> C,D:f32[i]\n{body}"


@pytest.mark.parametrize(
    "statements",
    [
        "L_i C_i = A_i\nL_i C_i = B_i\n",
        "L_i C_i = A_i if i<5\nL_i D_i = B_i\nL_i C_i = B_i\n",
        "L_i [\n  C_i = A_i\n  C_i = B_i\n]\n",
        "L_i C_i = A_i\nL_h L_f C_{4h+f} = B_{4h+f}\n",
        "L_k C_{k+2} = A_k\nL_i C_i = B_i\n",
        "L_k C_{2k} = A_k\nL_k [\n  C_{k} = A_k\n  C_{k+4} = B_k\n]\nL_i C_i = B_i\n",
        "L_k [\n  L_i C_i = A_i\n  L_i C_i = B_i\n  L_i D_i = C_i\n]\n",
    ],
)
def test_what_is_overwritten_before_it_is_read_is_dropped(statements: str) -> None:
    text = around("", statements)
    assert exactness(text, "dead_code_elimination(C)") is Exactness.EXACT
    assert_same_values(text, after(text, "dead_code_elimination(C)"), exact=True)


def test_a_row_is_overwritten_by_a_row() -> None:
    text = "i:8 j:5\nA,B:f32[i,j] -> C:f32[i,j]\nL_i [\n  L_j C_{i,j} = A_{i,j}\n  L_j C_{i,j} = B_{i,j}\n]\n"
    assert body(text, "dead_code_elimination(C)") == "L_i L_j C_{i,j} = B_{i,j}"


@pytest.mark.parametrize(
    "statements",
    [
        "L_i C_i = A_i\nL_i D_i = C_i\nL_i C_i = B_i\n",
        "L_i C_i = A_i\nL_i C_i += B_i\n",
        "L_i C_i = A_i\nL_i C_i = B_i if i<7\n",
        "L_i C_i = A_i\nL_k C_k = B_k\n",
        "L_i C_i = A_i\nL_k C_{2k} = B_k\n",
        "L_i [\n  C_i = A_i\n  D_i = C_{0}\n]\nL_i C_i = B_i\n",
        "L_i [\n  C_i = A_i\n  L_k C_{k} = B_k\n]\n",
        "L_i C_i = A_i\nL_i C_i = C_i+B_i\n",
        "L_i C_i = A_i\nL_i [\n  D_i = C_i\n  C_i = B_i\n]\n",
        "L_k [\n  L_i D_i = C_i+A_i\n  L_i C_i = B_i\n]\n",
        "L_i C_i += A_i\nL_i C_i = B_i if i<3\nL_i C_{7-i} = B_i\n",
    ],
)
def test_what_may_be_used_is_kept(statements: str) -> None:
    text = around("L_i D_i = B_i\nL_i C_i = B_i\n", statements)
    assert verify(parse(text)) == ()
    assert refused(text, "dead_code_elimination(C.2)").code == "dependence"


def test_dropping_must_not_change_how_a_sum_starts() -> None:
    text = "i:8\nA,B:f32[i] -> C:f32[i]\nL_i C_i = A_i\nL_i C_i = B_i if i<3\nL_i C_i = B_i\nL_i C_i += A_i\n"
    assert body(text, "dead_code_elimination(C)") == "L_i C_i = B_i if i<3\nL_i C_i = B_i\nL_i C_i += A_i"
    started = "i:8\nA,B:f32[i] -> C:f32[i]\nL_i C_i += A_i\nL_i C_i = B_i\n"
    assert "would start differently" in refused(started, "dead_code_elimination(C)").sentence


def test_the_last_equation_of_an_output_is_kept() -> None:
    text = "i:8\nA:f32[i] -> C:f32[i]\nL_i C_i = A_i\n"
    assert refused(text, "dead_code_elimination(C)").sentence == "drop C: nothing overwrites all that it writes to C"


def test_the_compiled_programs_agree() -> None:
    text = HEAD + "L_i C_i = 0\nL_i E_i = exp(A_i)\nL_i D_i = B_i\nL_i C_i = A_i\n"
    assert_built_agrees(
        after(text, "dead_code_elimination(C)", "dead_code_elimination(E)", "expression_reorder(i, i.2)")
    )
