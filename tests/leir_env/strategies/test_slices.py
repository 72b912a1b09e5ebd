"""Ranges of loops: operators cut in two and joined, loops padded, and the values the same bit for bit."""

import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import Exactness
from tests.leir_env.strategies.steps import after, assert_built_agrees, assert_same_values, exactness, refused

CUT = "tensor_split_to_decouple_operators"
JOIN = "tensor_concat_to_fuse_operators"
MATMUL = "i:4 j:6 k:9\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n"
TWINS = (
    "i:4 j:6 k:5\nA:f32[i,k] B,C:f32[k,j] -> D,E:f32[i,j]\n"
    "L_i,j,k D[i,j] += A[i,k] B[k,j]\nL_i,j,k E[i,j] += A[i,k] C[k,j]\n"
)


def exact(text: str, action: str, target: str = "llvm") -> str:
    """The statements after an action that must not change a bit."""
    program = after(text, action, target=target)
    assert exactness(text, action) is Exactness.EXACT
    if target == "llvm":
        assert_same_values(text, program, exact=True)
    return "\n".join(show(program).splitlines()[2:])


def test_a_spatial_loop_is_cut_into_two_operators() -> None:
    assert exact(MATMUL, f"{CUT}(j; 4)") == ("L_i,j,k C[i,j] += A[i,k] B[k,j]\nL_i,j2,k C[i,j2+4] += A[i,k] B[k,j2+4]")


def test_the_second_part_of_a_reduction_goes_on_where_the_first_stopped() -> None:
    assert exact(MATMUL, f"{CUT}(k; 8)") == ("L_i,j,k C[i,j] += A[i,k] B[k,j]\nL_i,j,k2 C[i,j] += A[i,k2+8] B[k2+8,j]")


def test_parts_of_one_extent_share_a_name() -> None:
    assert exact(MATMUL, f"{CUT}(j; 3)").count("L_i,j,k ") == 2


def test_a_name_that_other_loops_use_is_left_to_them() -> None:
    text = "i:8\nA:f32[i] -> C,D:f32[i]\nL_i C[i] = A[i]\nL_i D[i] = A[i]\n"
    assert exact(text, f"{CUT}(i; 5)") == "L_i2 C[i2] = A[i2]\nL_i3 C[i3+5] = A[i3+5]\nL_i D[i] = A[i]"


def test_each_part_decides_the_conditions_that_it_can() -> None:
    text = "i:10\nA:f32[8] -> C:f32[i]\nL_i C[i] = select(i>=1 and i<9,A[i-1],0)\n"
    assert exact(text, f"{CUT}(i; 1)") == "L_i C[i] = 0\nL_i2 C[i2+1] = select(i2+1<9,A[i2],0)"
    menu = [str(action) for action in strategies.legal(parse(text)) if action.name == CUT]
    assert menu == [f"{CUT}(i; {at})" for at in (1, 9, 5, 8)]
    tail = "io:4 ii:8\nA:f32[30] -> C:f32[30]\nL_io,ii C[8io+ii] = A[8io+ii] if 8io+ii<30\n"
    assert exact(tail, f"{CUT}(io; 3)") == (
        "L_io,ii C[8io+ii] = A[8io+ii]\nL_io2,ii C[8io2+ii+24] = A[8io2+ii+24] if 8io2+ii+24<30"
    )


def test_only_the_loops_that_hold_nothing_else_are_repeated() -> None:
    text = "i:4 j:6\nA:f32[i,j] -> C:f32[i,j]; D:f32[i]\nL_i [\n  L_j D[i] += A[i,j]\n  L_j C[i,j] = A[i,j]*D[i]\n]\n"
    assert exact(text, f"{CUT}(j.2; 4)") == (
        "L_i [\n  L_j D[i] += A[i,j]\n  L_j2 C[i,j2] = A[i,j2] D[i]\n  L_j3 C[i,j3+4] = A[i,j3+4] D[i]\n]"
    )


def test_private_tensors_of_the_second_part_get_names_of_their_own() -> None:
    text = "i:7 k:3\nA:f32[i,k] -> C:f32[i]\nP_i [\n  D:f32.l\n  L_k D += A[i,k]\n  C[i] = exp(D)\n]\n"
    assert exact(text, f"{CUT}(i; 4)") == (
        "P_i [\n  D:f32.l\n  L_k D += A[i,k]\n  C[i] = exp(D)\n]\n"
        "P_i2 [\n  E:f32.l\n  L_k E += A[i2+4,k]\n  C[i2+4] = exp(E)\n]"
    )


def test_a_loop_that_hands_values_on_is_cut_where_it_stands_but_not_below_another() -> None:
    scan = "i:9\nA:f32[i] -> C:f32[i]\nL_i C[i] = select(i>=1,C[i-1],0)+A[i]\n"
    assert exact(scan, f"{CUT}(i; 1)") == "L_i C[i] = 0+A[i]\nL_i2 C[i2+1] = C[i2]+A[i2+1]"
    rows = "t:5 i:9\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\nL_t,i C[i] = select(i>=1,C[i-1],0)+select(i<8,C[i+1],0)\n"
    assert refused(rows, f"{CUT}(i.2; 4)").code == "dependence"
    assert "after" in refused(rows, f"{CUT}(i.2; 4)").sentence


def test_sums_over_two_loops_are_reassociated() -> None:
    text = "i:4 j:6\nA:f32[i,j] -> C:f32\nL_i,j C += A[i,j]\n"
    assert exactness(text, f"{CUT}(j; 2)") is Exactness.REASSOCIATES
    assert exactness(text, f"{CUT}(i; 2)") is Exactness.EXACT
    assert_same_values(text, after(text, f"{CUT}(j; 2)"))


def test_cuts_that_make_no_sense_are_refused() -> None:
    assert refused(MATMUL, f"{CUT}(j; 6)").sentence == "cut j at 6: it has 6 iterations"
    lanes = "i:8\nA:f32[i] -> C:f32[i]\nV_i C[i] = A[i]\n"
    assert refused(lanes, f"{CUT}(i; 3)").code == "kind"
    assert exact(lanes, f"{CUT}(i; 4)") == "V_i C[i] = A[i]\nV_i C[i+4] = A[i+4]"
    padded = "i:32\nA:f32[30] -> C:f32[30]\nL_i C[i] = A[i] if i<30\n"
    assert refused(padded, f"{CUT}(i; 30)").sentence == "cut i at 30: one part would never assign C"


def test_bound_loops_are_cut_into_two_kernels_or_not_at_all() -> None:
    text = "i:8 j:6\nA:f32[i,j] -> C:f32[i,j]\nB^bx_i B^tx_j C[i,j] = A[i,j]\n"
    assert exact(text, f"{CUT}(j; 4)", "cuda").count("B^bx_i B^tx_j") == 2
    inside = text.replace(
        "B^tx_j C[i,j] = A[i,j]", "[\n  D:f32.s[j]\n  B^tx_j D[j] = A[i,j]\n  B^tx_j C[i,j] = D[j]\n]"
    )
    assert refused(inside, f"{CUT}(j; 4)").code == "kind"


def test_padding_guards_every_equation_once() -> None:
    text = "i:7 k:3\nA:f32[i,k] -> C:f32[i]\nP_i [\n  D:f32.l\n  L_k D += A[i,k]\n  C[i] = exp(D)\n]\n"
    assert exact(text, "loop_padding(i; 4)") == (
        "P_i [\n  D:f32.l\n  L_k D += A[i,k] if i<7\n  C[i] = exp(D) if i<7\n]"
    )
    twice = after(text, "loop_padding(i; 4)", "loop_padding(i; 12)")
    assert "i:12 k:3" in show(twice) and show(twice).count("i<") == 2
    assert_same_values(text, twice, exact=True)


def test_a_padded_loop_splits_evenly_into_lanes() -> None:
    text = "i:30\nA:f32[i] -> C:f32[i]\nL_i C[i] = exp(A[i])\n"
    program = after(text, "loop_padding(i; 8)", "loop_split(i; 8)", "loop_vectorization(ii; 8)")
    assert show(program).endswith("L_io V_ii C[8io+ii] = exp(A[8io+ii]) if 8io+ii<30\n")
    assert_same_values(text, program, exact=True)
    assert_built_agrees(program)


def test_padding_is_refused_where_it_does_nothing_or_too_much() -> None:
    text = "i:30\nA:f32[i] -> C:f32[i]\nL_i C[i] = exp(A[i])\n"
    assert refused(text, "loop_padding(i; 5)").code == "no_effect"
    assert refused(text, "loop_padding(i; 64)").sentence == (
        "pad i to a multiple of 64: 34 idle iterations would be added to 30"
    )
    assert refused(text.replace("i:30", "i:8").replace("L_i", "V_i"), "loop_padding(i; 3)").code == "kind"


def test_guards_on_data_are_not_evaluated_in_added_iterations() -> None:
    text = "i:7\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\nL_i C[i] = 0 if A[i]<0.5\n"
    assert refused(text, "loop_padding(i.2; 4)").code == "structure"
    text = "i:7 k:3\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\nL_i [\n  D:f32.l\n  D = A[i]\n  L_k C[i] += 1 if D<0.5\n]\n"
    assert refused(text, "loop_padding(i.2; 4)").code == "structure"
    text = "i:7 k:3\nA:f32[i] B:f32 -> C:f32[i]\nL_i C[i] = A[i]\nL_i,k C[i] += 1 if B<0.5\n"
    assert exact(text, "loop_padding(k; 4)").endswith("L_i,k C[i] += 1 if B<0.5 and k<3")


def test_two_projections_of_one_input_become_one_over_stacked_weights() -> None:
    assert exact(TWINS, f"{JOIN}(i, i.2)") == (
        "L_k,j [\n  F[0,k,j] = B[k,j]\n  F[1,k,j] = C[k,j]\n]\n"
        "L_s,i,j,k G[s,i,j] += A[i,k] F[s,k,j]\n"
        "L_i,j [\n  D[i,j] = G[0,i,j]\n  E[i,j] = G[1,i,j]\n]"
    )
    assert_built_agrees(after(TWINS, f"{JOIN}(i, i.2)"))


def test_names_of_loops_do_not_matter_and_kinds_do() -> None:
    text = (
        "i,p:4 j,q:8\nA:f32[i,j] B:f32[p,q] -> C:f32[i,j] D:f32[p,q]\n"
        "P_i V_j C[i,j] = tanh(A[i,j])\nP_p V_q D[p,q] = tanh(B[p,q])\n"
    )
    assert "L_s P_i V_j F[s,i,j] = tanh(E[s,i,j])\n" in exact(text, f"{JOIN}(i, p)")
    assert refused(text.replace("V_q", "L_q"), f"{JOIN}(i, p)").code == "structure"


def test_scalars_and_unit_dimensions_are_stacked_without_loops() -> None:
    text = "i:6\nA,B:f32[1,i] C,D:f32 -> E,F:f32[1,i]\nL_i E[0,i] = A[0,i]*C\nL_i F[0,i] = B[0,i]*D\n"
    assert exact(text, f"{JOIN}(i, i.2)") == (
        "L_i [\n  G[0,0,i] = A[0,i]\n  G[1,0,i] = B[0,i]\n]\nH[0] = C\nH[1] = D\n"
        "L_s,i J[s,0,i] = G[s,0,i] H[s]\n"
        "L_i [\n  E[0,i] = J[0,0,i]\n  F[0,i] = J[1,0,i]\n]"
    )


def test_a_guarded_sum_from_the_identity_is_joined() -> None:
    text = TWINS.replace("B[k,j]\n", "B[k,j] if k<=i\n").replace("C[k,j]\n", "C[k,j] if k<=i\n")
    assert "+= A[i,k] F[s,k,j] if k<=i\n" in exact(text, f"{JOIN}(i, i.2)")


@pytest.mark.parametrize(
    ("outputs", "first", "second", "code"),
    [
        ("D,E:f32[i,j]", "D[i,j] += A[i,k] B[k,j]", "E[i,j] += A[i,k]*(C[k,j]+1.0)", "structure"),
        ("D,E:f32[i,j]", "D[i,j] += A[i,k] B[k,j]", "E[i,j] max= A[i,k] C[k,j]", "structure"),
        ("D,E:f32[i,j]", "D[i,j] += A[i,k] B[k,j]", "E[i,j] += A[i,k] C[k,j] if k<2", "structure"),
        ("D,E:f32[i,j]", "D[i,j] += A[i,k] B[k,j]", "E[i,j] += A[i,k] B[k,j]", "no_effect"),
        ("D:f32[i,j]", "D[i,j] += A[i,k] B[k,j]", "D[i,j] += A[i,k] C[k,j]", "dependence"),
        ("D:f32[i,j] E:f32[7,j]", "D[i,j] += A[i,k] B[k,j]", "E[i,j] += A[i,k] C[k,j]", "structure"),
        ("D:f32[i,j] E:f64[i,j]", "D[i,j] max= A[i,k]", "E[i,j] max= F[i,k]", "structure"),
        ("D:f32[5,j] E:f32[5,j]", "D[i,j] = A[i,0]", "E[i,j] = G[i,0]", "structure"),
        ("D:f32[i,j] E:f32[i,j]", "D[i,j] = A[i,k] if k<2", "E[i,j] = G[i,k] if k<2", "structure"),
    ],
)
def test_operators_that_are_no_twins_are_refused(outputs: str, first: str, second: str, code: str) -> None:
    text = f"i:4 j:6 k:5\nA,G:f32[i,k] B,C:f32[k,j] F:f64[i,k] -> {outputs}\nL_i,j,k {first}\nL_i,j,k {second}\n"
    assert refused(text, f"{JOIN}(i, i.2)").code == code


def test_a_sum_that_goes_on_from_other_values_is_not_joined() -> None:
    text = TWINS.replace("L_i,j,k D", "L_i,j E[i,j] = 1.0\nL_i,j,k D")
    assert refused(text, f"{JOIN}(i.2, i.3)").sentence == ("join i.2, i.3: E is used before it is accumulated here")


def test_an_operator_that_feeds_the_other_is_not_its_twin() -> None:
    text = "i:8\nA:f32[i] -> C,D:f32[i]\nL_i C[i] = tanh(A[i])\nL_i D[i] = tanh(C[i])\n"
    assert refused(text, f"{JOIN}(i, i.2)").code == "dependence"


def test_tensors_that_are_not_written_whole_are_not_copied_whole() -> None:
    head = "i:8 h:4\nA:f32[i] -> C,D:f32[i]\n"
    text = head + "L_i C[i] = A[i]\nL_i D[i] = A[i]\nL_h C[h] = tanh(A[h])\nL_h D[h] = tanh(A[h+4])\n"
    assert refused(text, f"{JOIN}(h, h.2)").code == "structure"
    partly = (
        "i:8 h:4\nA:f32[i] -> C,D:f32[h]; E,F:f32[i]\nL_h E[h] = A[h]\nL_i F[i] = A[i]\n"
        "L_h C[h] = tanh(E[h])\nL_h D[h] = tanh(F[h])\n"
    )
    refusal = refused(partly, f"{JOIN}(h.2, h.3)")
    assert refusal.code == "structure" and "copied whole" not in refusal.sentence
    assert "a whole tensor would be copied, but" in refusal.sentence


def test_copies_are_not_joined_by_the_menu() -> None:
    text = "i:8\nA,B:f32[i] -> C,D:f32[i]\nL_i C[i] = A[i]\nL_i D[i] = B[i]\n"
    assert not [action for action in strategies.legal(parse(text)) if action.name == JOIN]


def test_reasons_state_the_facts_of_the_program() -> None:
    assert strategies.rationale(parse(TWINS), parse_action(f"{JOIN}(i, i.2)")) == (
        "Run i and i.2 as one operator over B, C stacked, for D and E at once: twice the parallel work in one nest, "
        "for 432 bytes copied in and out."
    )
    assert "4 and 2 iterations" in strategies.rationale(parse(MATMUL), parse_action(f"{CUT}(j; 4)"))


def test_the_compiled_programs_agree() -> None:
    assert_built_agrees(after(MATMUL, f"{CUT}(k; 8)"))
    assert_built_agrees(after(MATMUL, f"{CUT}(j; 4)", "loop_padding(k; 4)"))
