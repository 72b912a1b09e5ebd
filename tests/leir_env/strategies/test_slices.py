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
MATMUL = "i:4 j:6 k:9\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i L_j L_k C_{i,j} += A_{i,k} B_{k,j}\n"
TWINS = (
    "i:4 j:6 k:5\nA:f32[i,k] B,C:f32[k,j] -> D,E:f32[i,j]\n"
    "L_i L_j L_k D_{i,j} += A_{i,k} B_{k,j}\nL_i L_j L_k E_{i,j} += A_{i,k} C_{k,j}\n"
)


def exact(text: str, action: str, target: str = "llvm") -> str:
    """The statements after an action that must not change a bit."""
    program = after(text, action, target=target)
    assert exactness(text, action) is Exactness.EXACT
    if target == "llvm":
        assert_same_values(text, program, exact=True)
    return "\n".join(show(program).splitlines()[2:])


def test_a_spatial_loop_is_cut_into_two_operators() -> None:
    assert exact(MATMUL, f"{CUT}(j; 4)") == (
        "L_i L_j L_k C_{i,j} += A_{i,k} B_{k,j}\nL_i L_j2 L_k C_{i,j2+4} += A_{i,k} B_{k,j2+4}"
    )


def test_the_second_part_of_a_reduction_goes_on_where_the_first_stopped() -> None:
    assert exact(MATMUL, f"{CUT}(k; 8)") == (
        "L_i L_j L_k C_{i,j} += A_{i,k} B_{k,j}\nL_i L_j L_k2 C_{i,j} += A_{i,k2+8} B_{k2+8,j}"
    )


def test_parts_of_one_extent_share_a_name() -> None:
    assert exact(MATMUL, f"{CUT}(j; 3)").count("L_j ") == 2


def test_a_name_that_other_loops_use_is_left_to_them() -> None:
    text = "i:8\nA:f32[i] -> C,D:f32[i]\nL_i C_i = A_i\nL_i D_i = A_i\n"
    assert exact(text, f"{CUT}(i; 5)") == "L_i2 C_i2 = A_i2\nL_i3 C_{i3+5} = A_{i3+5}\nL_i D_i = A_i"


def test_each_part_decides_the_conditions_that_it_can() -> None:
    text = "i:10\nA:f32[8] -> C:f32[i]\nL_i C_i = select(i>=1 and i<9,A_{i-1},0)\n"
    assert exact(text, f"{CUT}(i; 1)") == "L_i C_i = 0\nL_i2 C_{i2+1} = select(i2+1<9,A_i2,0)"
    menu = [str(action) for action in strategies.legal(parse(text)) if action.name == CUT]
    assert menu == [f"{CUT}(i; {at})" for at in (1, 9, 5, 8)]
    tail = "io:4 ii:8\nA:f32[30] -> C:f32[30]\nL_io L_ii C_{8io+ii} = A_{8io+ii} if 8io+ii<30\n"
    assert exact(tail, f"{CUT}(io; 3)") == (
        "L_io L_ii C_{8io+ii} = A_{8io+ii}\nL_io2 L_ii C_{8io2+ii+24} = A_{8io2+ii+24} if 8io2+ii+24<30"
    )


def test_only_the_loops_that_hold_nothing_else_are_repeated() -> None:
    text = "i:4 j:6\nA:f32[i,j] -> C:f32[i,j]; D:f32[i]\nL_i [\n  L_j D_i += A_{i,j}\n  L_j C_{i,j} = A_{i,j}*D_i\n]\n"
    assert exact(text, f"{CUT}(j.2; 4)") == (
        "L_i [\n  L_j D_i += A_{i,j}\n  L_j2 C_{i,j2} = A_{i,j2} D_i\n  L_j3 C_{i,j3+4} = A_{i,j3+4} D_i\n]"
    )


def test_private_tensors_of_the_second_part_get_names_of_their_own() -> None:
    text = "i:7 k:3\nA:f32[i,k] -> C:f32[i]\nP_i [\n  D:f32.l\n  L_k D += A_{i,k}\n  C_i = exp(D)\n]\n"
    assert exact(text, f"{CUT}(i; 4)") == (
        "P_i [\n  D:f32.l\n  L_k D += A_{i,k}\n  C_i = exp(D)\n]\n"
        "P_i2 [\n  E:f32.l\n  L_k E += A_{i2+4,k}\n  C_{i2+4} = exp(E)\n]"
    )


def test_a_loop_that_hands_values_on_is_cut_where_it_stands_but_not_below_another() -> None:
    scan = "i:9\nA:f32[i] -> C:f32[i]\nL_i C_i = select(i>=1,C_{i-1},0)+A_i\n"
    assert exact(scan, f"{CUT}(i; 1)") == "L_i C_i = 0+A_i\nL_i2 C_{i2+1} = C_i2+A_{i2+1}"
    rows = "t:5 i:9\nA:f32[i] -> C:f32[i]\nL_i C_i = A_i\nL_t L_i C_i = select(i>=1,C_{i-1},0)+select(i<8,C_{i+1},0)\n"
    assert refused(rows, f"{CUT}(i.2; 4)").code == "dependence"
    assert "after" in refused(rows, f"{CUT}(i.2; 4)").sentence


def test_sums_over_two_loops_are_reassociated() -> None:
    text = "i:4 j:6\nA:f32[i,j] -> C:f32\nL_i L_j C += A_{i,j}\n"
    assert exactness(text, f"{CUT}(j; 2)") is Exactness.REASSOCIATES
    assert exactness(text, f"{CUT}(i; 2)") is Exactness.EXACT
    assert_same_values(text, after(text, f"{CUT}(j; 2)"))


def test_cuts_that_make_no_sense_are_refused() -> None:
    assert refused(MATMUL, f"{CUT}(j; 6)").sentence == "cut j at 6: it has 6 iterations"
    lanes = "i:8\nA:f32[i] -> C:f32[i]\nV_i C_i = A_i\n"
    assert refused(lanes, f"{CUT}(i; 3)").code == "kind"
    assert exact(lanes, f"{CUT}(i; 4)") == "V_i C_i = A_i\nV_i C_{i+4} = A_{i+4}"
    padded = "i:32\nA:f32[30] -> C:f32[30]\nL_i C_i = A_i if i<30\n"
    assert refused(padded, f"{CUT}(i; 30)").sentence == "cut i at 30: one part would never assign C"


def test_bound_loops_are_cut_into_two_kernels_or_not_at_all() -> None:
    text = "i:8 j:6\nA:f32[i,j] -> C:f32[i,j]\nB^bx_i B^tx_j C_{i,j} = A_{i,j}\n"
    assert exact(text, f"{CUT}(j; 4)", "cuda").count("B^bx_i B^tx_j") == 2
    inside = text.replace(
        "B^tx_j C_{i,j} = A_{i,j}", "[\n  D:f32.s[j]\n  B^tx_j D_j = A_{i,j}\n  B^tx_j C_{i,j} = D_j\n]"
    )
    assert refused(inside, f"{CUT}(j; 4)").code == "kind"


def test_padding_guards_every_equation_once() -> None:
    text = "i:7 k:3\nA:f32[i,k] -> C:f32[i]\nP_i [\n  D:f32.l\n  L_k D += A_{i,k}\n  C_i = exp(D)\n]\n"
    assert exact(text, "loop_padding(i; 4)") == (
        "P_i [\n  D:f32.l\n  L_k D += A_{i,k} if i<7\n  C_i = exp(D) if i<7\n]"
    )
    twice = after(text, "loop_padding(i; 4)", "loop_padding(i; 12)")
    assert "i:12 k:3" in show(twice) and show(twice).count("i<") == 2
    assert_same_values(text, twice, exact=True)


def test_a_padded_loop_splits_evenly_into_lanes() -> None:
    text = "i:30\nA:f32[i] -> C:f32[i]\nL_i C_i = exp(A_i)\n"
    program = after(text, "loop_padding(i; 8)", "loop_split(i; 8)", "loop_vectorization(ii; 8)")
    assert show(program).endswith("L_io V_ii C_{8io+ii} = exp(A_{8io+ii}) if 8io+ii<30\n")
    assert_same_values(text, program, exact=True)
    assert_built_agrees(program)


def test_padding_is_refused_where_it_does_nothing_or_too_much() -> None:
    text = "i:30\nA:f32[i] -> C:f32[i]\nL_i C_i = exp(A_i)\n"
    assert refused(text, "loop_padding(i; 5)").code == "no_effect"
    assert refused(text, "loop_padding(i; 64)").sentence == (
        "pad i to a multiple of 64: 34 idle iterations would be added to 30"
    )
    assert refused(text.replace("i:30", "i:8").replace("L_i", "V_i"), "loop_padding(i; 3)").code == "kind"


def test_guards_on_data_are_not_evaluated_in_added_iterations() -> None:
    text = "i:7\nA:f32[i] -> C:f32[i]\nL_i C_i = A_i\nL_i C_i = 0 if A_i<0.5\n"
    assert refused(text, "loop_padding(i.2; 4)").code == "structure"
    text = "i:7 k:3\nA:f32[i] -> C:f32[i]\nL_i C_i = A_i\nL_i [\n  D:f32.l\n  D = A_i\n  L_k C_i += 1 if D<0.5\n]\n"
    assert refused(text, "loop_padding(i.2; 4)").code == "structure"
    text = "i:7 k:3\nA:f32[i] B:f32 -> C:f32[i]\nL_i C_i = A_i\nL_i L_k C_i += 1 if B<0.5\n"
    assert exact(text, "loop_padding(k; 4)").endswith("L_i L_k C_i += 1 if B<0.5 and k<3")


def test_two_projections_of_one_input_become_one_over_stacked_weights() -> None:
    assert exact(TWINS, f"{JOIN}(i, i.2)") == (
        "L_k L_j [\n  F_{0,k,j} = B_{k,j}\n  F_{1,k,j} = C_{k,j}\n]\n"
        "L_s L_i L_j L_k G_{s,i,j} += A_{i,k} F_{s,k,j}\n"
        "L_i L_j [\n  D_{i,j} = G_{0,i,j}\n  E_{i,j} = G_{1,i,j}\n]"
    )
    assert_built_agrees(after(TWINS, f"{JOIN}(i, i.2)"))


def test_names_of_loops_do_not_matter_and_kinds_do() -> None:
    text = (
        "i:4 j:8 p:4 q:8\nA:f32[i,j] B:f32[p,q] -> C:f32[i,j] D:f32[p,q]\n"
        "P_i V_j C_{i,j} = tanh(A_{i,j})\nP_p V_q D_{p,q} = tanh(B_{p,q})\n"
    )
    assert "L_s P_i V_j F_{s,i,j} = tanh(E_{s,i,j})\n" in exact(text, f"{JOIN}(i, p)")
    assert refused(text.replace("V_q", "L_q"), f"{JOIN}(i, p)").code == "structure"


def test_scalars_and_unit_dimensions_are_stacked_without_loops() -> None:
    text = "i:6\nA,B:f32[1,i] C,D:f32 -> E,F:f32[1,i]\nL_i E_{0,i} = A_{0,i}*C\nL_i F_{0,i} = B_{0,i}*D\n"
    assert exact(text, f"{JOIN}(i, i.2)") == (
        "L_i [\n  G_{0,0,i} = A_{0,i}\n  G_{1,0,i} = B_{0,i}\n]\nH_0 = C\nH_1 = D\n"
        "L_s L_i J_{s,0,i} = G_{s,0,i} H_s\n"
        "L_i [\n  E_{0,i} = J_{0,0,i}\n  F_{0,i} = J_{1,0,i}\n]"
    )


def test_a_guarded_sum_from_the_identity_is_joined() -> None:
    text = TWINS.replace("B_{k,j}\n", "B_{k,j} if k<=i\n").replace("C_{k,j}\n", "C_{k,j} if k<=i\n")
    assert "+= A_{i,k} F_{s,k,j} if k<=i\n" in exact(text, f"{JOIN}(i, i.2)")


@pytest.mark.parametrize(
    ("outputs", "first", "second", "code"),
    [
        ("D,E:f32[i,j]", "D_{i,j} += A_{i,k} B_{k,j}", "E_{i,j} += A_{i,k}*(C_{k,j}+1.0)", "structure"),
        ("D,E:f32[i,j]", "D_{i,j} += A_{i,k} B_{k,j}", "E_{i,j} max= A_{i,k} C_{k,j}", "structure"),
        ("D,E:f32[i,j]", "D_{i,j} += A_{i,k} B_{k,j}", "E_{i,j} += A_{i,k} C_{k,j} if k<2", "structure"),
        ("D,E:f32[i,j]", "D_{i,j} += A_{i,k} B_{k,j}", "E_{i,j} += A_{i,k} B_{k,j}", "no_effect"),
        ("D:f32[i,j]", "D_{i,j} += A_{i,k} B_{k,j}", "D_{i,j} += A_{i,k} C_{k,j}", "dependence"),
        ("D:f32[i,j] E:f32[7,j]", "D_{i,j} += A_{i,k} B_{k,j}", "E_{i,j} += A_{i,k} C_{k,j}", "structure"),
        ("D:f32[i,j] E:f64[i,j]", "D_{i,j} max= A_{i,k}", "E_{i,j} max= F_{i,k}", "structure"),
        ("D:f32[5,j] E:f32[5,j]", "D_{i,j} = A_{i,0}", "E_{i,j} = G_{i,0}", "structure"),
        ("D:f32[i,j] E:f32[i,j]", "D_{i,j} = A_{i,k} if k<2", "E_{i,j} = G_{i,k} if k<2", "structure"),
    ],
)
def test_operators_that_are_no_twins_are_refused(outputs: str, first: str, second: str, code: str) -> None:
    text = (
        f"i:4 j:6 k:5\nA,G:f32[i,k] B,C:f32[k,j] F:f64[i,k] -> {outputs}\nL_i L_j L_k {first}\nL_i L_j L_k {second}\n"
    )
    assert refused(text, f"{JOIN}(i, i.2)").code == code


def test_a_sum_that_goes_on_from_other_values_is_not_joined() -> None:
    text = TWINS.replace("L_i L_j L_k D", "L_i L_j E_{i,j} = 1.0\nL_i L_j L_k D")
    assert refused(text, f"{JOIN}(i.2, i.3)").sentence == ("join i.2, i.3: E is used before it is accumulated here")


def test_an_operator_that_feeds_the_other_is_not_its_twin() -> None:
    text = "i:8\nA:f32[i] -> C,D:f32[i]\nL_i C_i = tanh(A_i)\nL_i D_i = tanh(C_i)\n"
    assert refused(text, f"{JOIN}(i, i.2)").code == "dependence"


def test_tensors_that_are_not_written_whole_are_not_copied_whole() -> None:
    text = (
        "i:8 h:4\nA:f32[i] -> C,D:f32[i]\nL_i C_i = A_i\nL_i D_i = A_i\nL_h C_h = tanh(A_h)\nL_h D_h = tanh(A_{h+4})\n"
    )
    assert refused(text, f"{JOIN}(h, h.2)").code == "structure"
    partly = (
        "i:8 h:4\nA:f32[i] -> C,D:f32[h]; E,F:f32[i]\nL_h E_h = A_h\nL_i F_i = A_i\n"
        "L_h C_h = tanh(E_h)\nL_h D_h = tanh(F_h)\n"
    )
    refusal = refused(partly, f"{JOIN}(h.2, h.3)")
    assert refusal.code == "structure" and "copied whole" not in refusal.sentence
    assert "a whole tensor would be copied, but" in refusal.sentence


def test_copies_are_not_joined_by_the_menu() -> None:
    text = "i:8\nA,B:f32[i] -> C,D:f32[i]\nL_i C_i = A_i\nL_i D_i = B_i\n"
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
