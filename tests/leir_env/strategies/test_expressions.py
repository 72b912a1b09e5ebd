"""Parts of equations: computed apart, computed once, and never where they mean something else."""

import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.key import key
from envs.leir_env.limits import MAX_TEMPORARY_BYTES
from envs.leir_env.lower import lower
from envs.leir_env.parser import parse
from envs.leir_env.parts import parts
from envs.leir_env.printer import show, show_expression
from envs.leir_env.strategies import REGISTRY, Exactness
from envs.leir_env.tree import declarations, equations
from envs.leir_env.verify import verify
from tests.leir_env.strategies.steps import after, assert_built_agrees, assert_same_values, exactness, refused

SOFTMAX = (
    "i:6 j:20\nA:f32[i,j] -> C:f32[i,j]; D,E:f32[i]\n"
    "L_i,j D[i] max= A[i,j]\n"
    "L_i,j E[i] += exp(A[i,j]-D[i])\n"
    "L_i,j C[i,j] = exp(A[i,j]-D[i])/E[i]\n"
)
FUSED = (
    "i:6 j:20\nA:f32[i,j] -> C:f32[i,j]; D,E:f32[i]\n"
    "P_i [\n"
    "  L_j D[i] max= A[i,j]\n"
    "  L_j E[i] += exp(A[i,j]-D[i])\n"
    "  L_j C[i,j] = exp(A[i,j]-D[i])/E[i]\n"
    "]\n"
)
PADDED = "i:10\nA:f32[8] -> C:f32[i]\nL_i C[i] = select(i>=1 and i<9,exp(A[i-1]),0)\n"
MATMUL = "i:4 j:6 k:5\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n"


def split(text: str, action: str) -> str:
    """The statements after an exact splitting or sharing, without the header."""
    program = after(text, action)
    assert exactness(text, action) is Exactness.EXACT
    assert_same_values(text, program, exact=True)
    lines = show(program).splitlines()
    return "\n".join(lines[2:])


def menu(text: str, name: str) -> list[str]:
    return [str(action) for action in strategies.legal(parse(text)) if action.name == name]


def test_parts_are_numbered_as_they_are_read_without_literals_conditions_and_subscripts() -> None:
    program = parse(
        "i:8\nA:f32[i] I:i32[i] -> C:f32[i]\nL_i C[i] = select(A[I[i]]<2*sqrt(2.0),exp(A[7-i])*(3*i+1),-A[i])\n"
    )
    (equation,) = equations(program.body[0])
    assert [show_expression(part) for part in parts(declarations(program), equation)] == [
        "select(A[I[i]]<2*sqrt(2.0),exp(A[7-i])*(3i+1),-A[i])",
        "exp(A[7-i])*(3i+1)",
        "exp(A[7-i])",
        "-A[i]",
    ]


def test_a_part_is_computed_over_the_loops_that_it_depends_on() -> None:
    text = "i:6 j:20\nA:f32[i,j] B:f32[i] -> C:f32[i,j]\nL_i,j C[i,j] = A[i,j]*rsqrt(B[i]*B[i]+1.0)\n"
    assert split(text, "expression_splitting(C; 2)") == ("L_i D[i] = rsqrt(B[i] B[i]+1.0)\nL_i,j C[i,j] = A[i,j] D[i]")


def test_the_kinds_of_the_loops_are_kept_but_for_unrolled_ones() -> None:
    text = "i:6 j:8 k:2\nA:f32[i,j,k] -> C:f32[i,k,j]\nP_i U_k V_j C[i,k,j] = exp(A[i,j,k]+1.0)+1.0\n"
    assert split(text, "expression_splitting(C; 2)").startswith("P_i L_k V_j D[i,k,j] = exp(A[i,j,k]+1.0)\n")


def test_inlining_gives_the_program_back() -> None:
    text = "i:6 j:20\nA:f32[i,j] B:f32[i] -> C:f32[i,j]\nL_i,j C[i,j] = A[i,j]*exp(B[i])\n"
    assert key(after(text, "expression_splitting(C; 2)", "compute_inline(D)")) == key(parse(text))


def test_a_stage_moves_in_until_nothing_that_it_reads_changes_around_it() -> None:
    assert split(FUSED, "expression_splitting(E; 1)") == (
        "P_i [\n"
        "  F:f32.l[j]\n"
        "  L_j D[i] max= A[i,j]\n"
        "  L_j F[j] = exp(A[i,j]-D[i])\n"
        "  L_j E[i] += F[j]\n"
        "  L_j C[i,j] = exp(A[i,j]-D[i])/E[i]\n"
        "]"
    )


def test_an_equation_that_reads_what_it_wrote_before_is_split_in_place() -> None:
    text = "i:9\nA:f32[i] -> C:f32[i]\nL_i C[i] = select(i>=1,tanh(C[i-1]+0.5)*A[i],A[i])\n"
    assert split(text, "expression_splitting(C; 3)") == (
        "L_i [\n  D:f32.l\n  D = tanh(C[i-1]+0.5) if i>=1\n  C[i] = select(i>=1,D A[i],A[i])\n]"
    )


def test_nothing_is_declared_inside_a_vector_loop() -> None:
    text = "i:6 j:8\nA:f32[i,j] -> C,D:f32[i,j]\nL_i V_j [\n  C[i,j] = A[i,j]\n  D[i,j] = exp(C[i,j]+1.0)*2\n]\n"
    refusal = refused(text, "expression_splitting(D; 2)")
    assert refusal.code == "dependence" and "C, which it reads, changes" in refusal.sentence


@pytest.mark.parametrize(
    ("value", "guard"),
    [
        ("select(i>=1 and i<9,exp(A[i-1]),0)", "i>=1 and i<9"),
        ("select(i<1,0,select(i<9,exp(A[i-1]),0))", "i>=1 and i<9"),
        ("select(i<1 or i>=9,0,exp(A[i-1]))", "i>=1 and i<9"),
        ("select(not (i>=1 and i<9),0,exp(A[i-1]))", "i>=1 and i<9"),
        ("select(i>=1 and i<9,exp(A[i-1]),0)+select(i>=1,select(i<9,exp(A[i-1]),1),2)", "i>=1 and i<9"),
    ],
)
def test_what_exists_under_a_condition_only_is_computed_under_it(value: str, guard: str) -> None:
    text = f"i:10\nA:f32[8] -> C:f32[i]\nL_i C[i] = {value}\n"
    number = next(n for n in range(1, 9) if _part(text, n) == "exp(A[i-1])")
    assert split(text, f"expression_splitting(C; {number})").startswith(f"L_i D[i] = exp(A[i-1]) if {guard}\n")


def _part(text: str, number: int) -> str:
    program = parse(text)
    return show_expression(parts(declarations(program), next(equations(program.body[0])))[number - 1])


def test_a_tail_keeps_its_guard() -> None:
    text = "io:4 ii:8\nA:f32[30] -> C:f32[30]\nL_io,ii C[8io+ii] = tanh(A[8io+ii]+1.0)*2.0 if 8io+ii<30\n"
    assert split(text, "expression_splitting(C; 2)").startswith("L_io,ii D[io,ii] = tanh(A[8io+ii]+1.0) if 8io+ii<30\n")


def test_inputs_are_read_without_a_condition_on_data_where_they_exist() -> None:
    text = "i:9\nA,B:f32[i] -> C:f32[i]\nL_i C[i] = select(B[i]<0,exp(A[i]+0.5),0)\n"
    assert split(text, "expression_splitting(C; 2)").startswith("L_i D[i] = exp(A[i]+0.5)\n")


def test_temporaries_are_read_only_where_they_were() -> None:
    text = "i:9\nA:f32[i] -> C:f32[i]; D:f32[i]\nL_i D[i] = A[i]+1.0 if i<5\nL_i C[i] = select(i<5,exp(D[i])*0.5,0)\n"
    assert "L_i E[i] = exp(D[i]) if i<5\n" in split(text, "expression_splitting(C; 3)")


def test_a_division_of_integers_and_an_indirect_subscript_keep_their_conditions() -> None:
    text = "i:9\nA,B:i32[i] -> C:i32[i]\nL_i C[i] = select(B[i]!=0,A[i]//(B[i]*B[i]),0)+1\n"
    assert "D[i] = A[i]//(B[i] B[i]) if B[i]!=0\n" in split(text, "expression_splitting(C; 3)")
    text = "i:9\nA:f32[i] I:i32[i] -> C:f32[i]\nL_i C[i] = select(I[i]<9,exp(A[I[i]]),0)+1\n"
    assert "D[i] = exp(A[I[i]]) if I[i]<9\n" in split(text, "expression_splitting(C; 3)")


def test_places_under_different_conditions_without_a_common_one_are_refused() -> None:
    text = "i:10\nA:f32[8] -> C:f32[i]\nL_i C[i] = select(i<8,exp(A[i]),select(i<8 and i>2,exp(A[i]),0))\n"
    assert "D[i] = exp(A[i]) if i<8" in split(text, "expression_splitting(C; 2)")
    text = "i:9\nA,B:i32[i] -> C:i32[i]\nL_i C[i] = select(B[i]>0,A[i]//B[i],select(B[i]<0,A[i]//B[i]+1,0))\n"
    refusal = refused(text, "expression_splitting(C; 2)")
    assert refusal.code == "scope" and "may read what does not exist" in refusal.sentence


def test_a_condition_on_data_does_not_leave_the_conditions_around_it() -> None:
    text = (
        "i:9\nA:f32[i] -> C:f32[i]; D:f32[i]\nL_i D[i] = A[i] if i<5\nL_i C[i] = A[i]\n"
        "L_i C[i] = select(D[i]>0,exp(D[i])+1.0,0) if i<5\n"
    )
    assert verify(parse(text)) == ()
    assert refused(text, "expression_splitting(C.2; 2)").code == "scope"


def test_the_product_of_an_accumulation_is_rounded_once_more_and_not_in_the_menu() -> None:
    assert exactness(MATMUL, "expression_splitting(C; 1)") is Exactness.REASSOCIATES
    assert_same_values(MATMUL, after(MATMUL, "expression_splitting(C; 1)"))
    assert menu(MATMUL, "expression_splitting") == []
    negative = MATMUL.replace("A[i,k] B[k,j]", "-(A[i,k] B[k,j])")
    assert {exactness(negative, f"expression_splitting(C; {n})") for n in (1, 2)} == {Exactness.REASSOCIATES}
    assert exactness(MATMUL.replace("+=", "max="), "expression_splitting(C; 1)") is Exactness.EXACT


def test_the_whole_of_an_assignment_and_missing_parts_are_refused() -> None:
    assert refused(PADDED.replace("exp", "tanh"), "expression_splitting(C; 1)").code == "no_effect"
    refusal = refused(MATMUL, "expression_splitting(C; 2)")
    assert (refusal.code, refusal.sentence) == ("wrong_parameter", "part 2 of C: it has 1 part")


def test_a_temporary_too_large_for_all_iterations_is_made_for_some() -> None:
    program = after(MATMUL.replace("i:4 j:6 k:5", "i,j,k:512"), "expression_splitting(C; 1)")
    assert "D:f32.l[j,k]" in show(program)
    assert all(tensor.nbytes <= MAX_TEMPORARY_BYTES for tensor, _ in declarations(program).values())


def test_a_stage_is_a_kernel_of_its_own_or_stays_inside_the_bound_loops() -> None:
    text = "i:6 j:20\nA:f32[i,j] B:f32[j] -> C:f32[i,j]\nB^bx_i B^tx_j C[i,j] = A[i,j]*exp(A[i,j]+B[j])\n"
    program = after(text, "expression_splitting(C; 2)", target="cuda")
    assert "B^bx_i B^tx_j D[i,j] = exp(A[i,j]+B[j])" in show(program)
    inside = text.replace("exp(A[i,j]+B[j])", "exp(B[j]+1.0)")
    assert "  D:f32.l\n  D = exp(B[j]+1.0)\n" in show(after(inside, "expression_splitting(C; 2)", target="cuda"))


def test_softmax_computes_its_exponentials_once() -> None:
    assert split(SOFTMAX, "common_subexpression_elimination(E; 1)") == (
        "L_i,j D[i] max= A[i,j]\nL_i,j F[i,j] = exp(A[i,j]-D[i])\nL_i,j E[i] += F[i,j]\nL_i,j C[i,j] = F[i,j]/E[i]"
    )
    program = after(SOFTMAX, "common_subexpression_elimination(E; 1)")
    assert str(lower(parse(SOFTMAX))).count("exp(") == 2 and str(lower(program)).count("exp(") == 1
    assert_built_agrees(program)


def test_the_menu_offers_what_is_shared_as_a_whole_once() -> None:
    assert menu(SOFTMAX, "common_subexpression_elimination") == ["common_subexpression_elimination(E; 1)"]


def test_places_may_stand_under_loops_of_other_names_and_orders() -> None:
    text = (
        "i,j,q:6 p:5\nA:f32[i,j] -> C:f32[i,j] D:f32[p,q]\n"
        "L_i,j C[i,j] = exp(A[i,j])+1.0\n"
        "L_q,p D[p,q] = exp(A[q,p])*2.0\n"
    )
    assert split(text, "common_subexpression_elimination(C; 2)") == (
        "L_i,j E[i,j] = exp(A[i,j])\nL_i,j C[i,j] = E[i,j]+1.0\nL_q,p D[p,q] = E[q,p]*2.0"
    )


def test_a_larger_range_is_not_served_by_a_smaller_one() -> None:
    text = "i:5 p:8\nA:f32[p] -> C:f32[i] D:f32[p]\nL_i C[i] = exp(A[i])+1.0\nL_p D[p] = exp(A[p])*2.0\n"
    assert refused(text, "common_subexpression_elimination(C; 2)").code == "no_effect"


def test_a_tensor_that_stores_the_expression_is_read_instead() -> None:
    text = "i:9\nA:f32[i] -> C,D:f32[i]\nL_i C[i] = exp(A[i])\nL_i D[i] = exp(A[i])+A[i]\n"
    assert split(text, "common_subexpression_elimination(C; 1)") == "L_i C[i] = exp(A[i])\nL_i D[i] = C[i]+A[i]"
    fused = "i:9\nA:f32[i] -> C,D:f32[i]\nP_i [\n  C[i] = exp(A[i])\n  D[i] = exp(A[i])+A[i]\n]\n"
    assert "  D[i] = C[i]+A[i]\n" in split(fused, "common_subexpression_elimination(C; 1)")


@pytest.mark.parametrize("between", ["L_i C[i] = A[i]\n", "L_i [\n  C[i] = 0\n  E[i] = exp(A[i])*2.0\n]\n"])
def test_a_tensor_that_is_overwritten_holds_it_no_more(between: str) -> None:
    text = f"i:9\nA:f32[i] -> C,D,E:f32[i]\nL_i E[i] = A[i]\nL_i C[i] = exp(A[i])\n{between}L_i D[i] = exp(A[i])+A[i]\n"
    assert refused(text, "common_subexpression_elimination(C; 1)").code == "no_effect"


def test_what_is_read_must_not_change_between_the_places() -> None:
    head = "i:9\nA:f32[i] -> C,D:f32[i]; E:f32[i]\n"
    text = head + "L_i E[i] = A[i]\nL_i C[i] = exp(E[i])+1.0\n{}L_i D[i] = exp(E[i])+A[i]\n"
    assert "common_subexpression_elimination(C; 2)" in menu(text.format(""), "common_subexpression_elimination")
    assert refused(text.format("L_i E[i] = C[i]\n"), "common_subexpression_elimination(C; 2)").code == "no_effect"
    both = text.format("").replace("L_i D[i] = exp(E[i])+A[i]", "L_i [\n  E[i] = A[i]*2.0\n  D[i] = exp(E[i])+A[i]\n]")
    assert refused(both, "common_subexpression_elimination(C; 2)").code == "no_effect"


def test_an_equation_may_overwrite_what_the_shared_value_is_computed_from() -> None:
    head = "i:9\nA:f32[i] -> C:f32[i]; D:f32[i]\n"
    text = head + "L_i D[i] = A[i]\nL_i [\n  C[i] = exp(D[i])+1.0\n  D[i] = exp(D[i])*0.5\n]\n"
    assert split(text, "common_subexpression_elimination(C; 2)") == (
        "L_i D[i] = A[i]\nL_i [\n  E:f32.l\n  E = exp(D[i])\n  C[i] = E+1.0\n  D[i] = E*0.5\n]"
    )


def test_two_places_in_one_equation_share_a_private_scalar() -> None:
    text = "i:6 j:9\nA:f32[i,j] B:f32[j] -> C:f32[i,j]\nL_i,j C[i,j] = (A[i,j]+B[j])*tanh(A[i,j]+B[j])\n"
    assert split(text, "common_subexpression_elimination(C; 2)") == (
        "L_i,j [\n  D:f32.l\n  D = A[i,j]+B[j]\n  C[i,j] = D*tanh(D)\n]"
    )
    lanes = text.replace("j:9", "j:8").replace("L_i,j", "L_i V_j")
    assert split(lanes, "common_subexpression_elimination(C; 2)") == (
        "L_i [\n  D:f32.l[j]\n  V_j D[j] = A[i,j]+B[j]\n  V_j C[i,j] = D[j]*tanh(D[j])\n]"
    )


def test_the_index_of_a_loop_around_both_is_not_renamed() -> None:
    text = "i,k:6\nA:f32[i] -> C,D:f32[i]\nL_i [\n  C[i] = exp(A[i])+1.0\n  L_k D[i] += exp(A[k])\n]\n"
    assert split(text, "common_subexpression_elimination(C; 2)") == (
        "L_i E[i] = exp(A[i])\nL_i [\n  C[i] = E[i]+1.0\n  L_k D[i] += E[k]\n]"
    )


def test_a_value_under_conditions_is_shared_by_places_under_the_same_ones() -> None:
    text = (
        "i,p:10\nA:f32[8] -> C,D:f32[i]\n"
        "L_i C[i] = select(i>=1 and i<9,exp(A[i-1])+1.0,0)\n"
        "L_p D[p] = select(p>=1 and p<9,exp(A[p-1])*2.0,1.0)\n"
    )
    assert split(text, "common_subexpression_elimination(C; 3)").startswith(
        "L_i E[i] = exp(A[i-1]) if i>=1 and i<9\nL_i C[i] = select(i>=1 and i<9,E[i]+1.0,0)\n"
    )
    other = text.replace("select(p>=1 and p<9,exp(A[p-1])*2.0,1.0)", "select(p>=2 and p<9,exp(A[p-1])*2.0,1.0)")
    assert refused(other, "common_subexpression_elimination(C; 3)").code == "no_effect"


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_every_dtype_is_shared_bit_for_bit(dtype: str) -> None:
    text = SOFTMAX.replace("f32", dtype)
    assert f"F:{dtype}[i,j]" in show(after(text, "common_subexpression_elimination(E; 1)"))
    split(text, "common_subexpression_elimination(E; 1)")


def test_shared_products_of_accumulations_are_no_longer_contracted() -> None:
    text = MATMUL.replace("-> C:f32[i,j]", "-> C,D:f32[i,j]") + "L_i,j,k D[i,j] max= A[i,k] B[k,j]\n"
    assert exactness(text, "common_subexpression_elimination(C; 1)") is Exactness.REASSOCIATES
    assert_same_values(text, after(text, "common_subexpression_elimination(C; 1)"))


def test_the_compiled_programs_agree() -> None:
    assert_built_agrees(after(PADDED, "expression_splitting(C; 2)"))
    assert_built_agrees(after(FUSED, "expression_splitting(E; 1)"))
    assert_built_agrees(after(FUSED, "common_subexpression_elimination(E; 1)"))


def test_reasons_state_the_facts_of_the_program() -> None:
    program = parse(SOFTMAX)
    assert strategies.rationale(program, parse_action("common_subexpression_elimination(E; 1)")) == (
        "Part 1 of E, exp(A[i,j]-D[i]), stands at 2 places and costs 13 operations: compute it once and read it from a "
        "temporary of 480 bytes."
    )
    assert {"expression_splitting", "common_subexpression_elimination"} <= set(REGISTRY)
