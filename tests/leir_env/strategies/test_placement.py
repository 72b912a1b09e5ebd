"""Consumers in the loops of their producers."""

import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.key import key
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import Exactness
from tests.leir_env.strategies.steps import after, assert_built_agrees, assert_same_values, exactness, refused

NORM = "i:16 j:12\nA:f32[i,j] -> C:f32[i,j]; D:f32[i]\nL_i,j D[i] += A[i,j]\nL_i,j C[i,j] = A[i,j]/D[i]\n"
LINEAR = (
    "i:14 j:16 k:5\nA:f32[i,k] B:f32[k,j] E:f32[j] -> C:f32[i,j]; D:f32[i,j]\n"
    "L_i,j,k D[i,j] += A[i,k] B[k,j]\n"
    "L_i,j C[i,j] = max(D[i,j]+E[j],0)\n"
)


def test_a_consumer_runs_as_soon_as_its_row_is_there() -> None:
    program = after(NORM, "reverse_compute_at(C, i)")
    assert show(program) == (
        "i:16 j:12\nA:f32[i,j] -> C:f32[i,j]; D:f32[i]\nL_i [\n  L_j D[i] += A[i,j]\n  L_j C[i,j] = A[i,j]/D[i]\n]\n"
    )
    assert_same_values(NORM, program, exact=True)


def test_where_loops_agree_it_is_what_fusion_makes() -> None:
    fused = after(NORM, "operator_fusion(i, i.2; 1)")
    assert key(after(NORM, "reverse_compute_at(C, i)")) == key(fused)


def test_a_consumer_of_tiles_runs_tile_by_tile_with_a_guard_for_the_ragged_ones() -> None:
    program = after(LINEAR, "loop_tiling(i, j; 4, 8)", "reverse_compute_at(C, jo)")
    assert "  L_ii,ji C[4io+ii,8jo+ji] = max(D[4io+ii,8jo+ji]+E[8jo+ji],0) if 4io+ii<14\n" in show(program)
    assert_same_values(LINEAR, program, exact=True)
    assert_built_agrees(program)


def test_then_the_tensor_can_stay_in_the_tile() -> None:
    program = after(LINEAR, "loop_tiling(i, j; 7, 8)", "reverse_compute_at(C, jo)", "set_storage_scope(D; local)")
    assert "  D:f32.l[ii,ji]\n" in show(program)
    assert_same_values(LINEAR, program, exact=True)
    assert_built_agrees(program)


def test_a_consumer_that_reduces_over_tiles_is_reassociated_only_if_its_order_changes() -> None:
    text = LINEAR.replace("C:f32[i,j];", "C:f32[j];").replace("C[i,j] = max", "C[j] += max")
    assert exactness(text, "reverse_compute_at(C, i)") is Exactness.EXACT
    turned = text.replace("C:f32[j];", "C:f32;").replace("C[j] +=", "C +=")
    tiled = show(after(turned, "loop_tiling(i, j; 7, 8)"))
    assert exactness(tiled, "reverse_compute_at(C, jo)") is Exactness.REASSOCIATES
    assert_same_values(tiled, after(tiled, "reverse_compute_at(C, jo)"))


def test_a_consumer_with_loops_of_its_own_keeps_them_under_other_names() -> None:
    text = "i:6 j:4\nA:f32[i,j] -> C:f32[j,i]; D:f32[j]\nL_j,i D[j] += A[i,j]\nL_j,i C[j,i] = D[j]*A[i,j]\n"
    program = after(text, "reverse_compute_at(C, j)")
    assert_same_values(text, program, exact=True)
    square = "i,j:4\nA:f32[i,j] -> C:f32[i,j]; D:f32[j]\nL_j,i D[j] += A[i,j]\nL_i,j C[i,j] = D[i]*A[j,i]\n"
    program = after(square, "reverse_compute_at(C, j)")
    assert "  L_j2 C[j,j2] = D[j] A[j2,j]\n" in show(program)
    assert_same_values(square, program, exact=True)


def test_vector_loops_stay_vectors_where_the_tile_is_whole_in_them() -> None:
    text = LINEAR.replace("L_i,j C", "P_i V_j C")
    program = after(text, "reverse_compute_at(C, i)")
    assert "  V_j C[i,j] = max(D[i,j]+E[j],0)\n" in show(program)
    tiled = after(text, "loop_tiling(i, j; 7, 4)", "reverse_compute_at(C, jo)")
    assert "L_ii,ji C" in show(tiled)


def test_a_consumer_inside_an_outer_loop_reads_what_that_iteration_made() -> None:
    text = (
        "b:3 i:6 j:4\nA:f32[b,i,j] -> C:f32[b,i]\nP_b [\n  D:f32[i]\n"
        "  L_i,j D[i] += A[b,i,j]\n  L_i C[b,i] = exp(D[i])\n]\n"
    )
    program = after(text, "reverse_compute_at(C, i)")
    assert "  L_i [\n    L_j D[i] += A[b,i,j]\n    C[b,i] = exp(D[i])\n  ]\n" in show(program)
    assert_same_values(text, program, exact=True)


@pytest.mark.parametrize(
    "text, action, code, part",
    [
        (NORM, "reverse_compute_at(C, j)", "structure", "each iteration of j writes the same part of D"),
        (NORM, "reverse_compute_at(D, i.2)", "structure", "not in an earlier statement"),
        (NORM, "reverse_compute_at(D, i)", "structure", "not in an earlier statement"),
        (LINEAR.replace("D[i,j]+E[j]", "D[13-i,j]+E[j]"), "reverse_compute_at(C, i)", "structure", "index of its own"),
        (LINEAR.replace("L_i,j,k", "V_i L_j,k"), "reverse_compute_at(C, i)", "kind", "lanes of V_i"),
        (LINEAR.replace("L_i,j,k", "B^tx_i L_j,k"), "reverse_compute_at(C, i)", "kind", "bound already"),
        (LINEAR.replace("max(D[i,j]+E[j],0)", "E[j]"), "reverse_compute_at(C, i)", "no_effect", "writes nothing"),
    ],
)
def test_a_consumer_stays_where_its_part_is_not_ready(text: str, action: str, code: str, part: str) -> None:
    refusal = refused(text, action)
    assert refusal.code == code and part in refusal.sentence


def test_what_is_read_besides_must_be_complete_too() -> None:
    """C reads the row before as well, and E which is written in between."""
    shifted = NORM.replace("A[i,j]/D[i]", "D[i]+select(i<15,D[i+1],0)")
    assert refused(shifted, "reverse_compute_at(C, i)").code == "dependence"
    back = NORM.replace("A[i,j]/D[i]", "D[i]+select(i>=1,D[i-1],0)")
    assert_same_values(back, after(back, "reverse_compute_at(C, i)"), exact=True)
    between = (
        "i:4 j:3\nA:f32[i,j] -> C:f32[i]; D,E:f32[i]\nL_i,j D[i] += A[i,j]\nL_i E[i] = A[i,0]\nL_i C[i] = D[i]*E[i]\n"
    )
    refusal = refused(between, "reverse_compute_at(C, i)")
    assert refusal.code == "dependence" and "E" in refusal.sentence
    assert_same_values(between, after(between, "reverse_compute_at(C, i.2)"), exact=True)


def test_what_overwrites_the_producer_keeps_the_consumer_behind_it() -> None:
    text = "i:4 j:3\nA:f32[i,j] -> C:f32[i]; D:f32[i]\nL_i,j D[i] += A[i,j]\nL_i D[i] = exp(D[i])\nL_i C[i] = D[i]\n"
    assert refused(text, "reverse_compute_at(C, i)").code == "dependence"
    assert_same_values(text, after(text, "reverse_compute_at(C, i.2)"), exact=True)


def test_an_output_that_the_producer_reads_is_not_overwritten_early() -> None:
    text = (
        "i:4 j:3\nA:f32[i,j] -> C:f32[i]; D:f32[i]\nL_i C[i] = A[i,0]\nL_i,j D[i] += A[i,j]*C[3-i]\nL_i C[i] = D[i]\n"
    )
    assert refused(text, "reverse_compute_at(C.2, i.2)").code == "dependence"


def test_overlapping_windows_do_not_tile() -> None:
    text = "i:4 p:2 q:5\nA:f32[i] -> C:f32[q]; D:f32[q]\nL_i,p D[i+p] += A[i]\nL_q C[q] = D[q]\n"
    refusal = refused(text, "reverse_compute_at(C, i)")
    assert refusal.code == "structure" and "do not tile" in refusal.sentence


def test_a_parallel_producer_loop_keeps_its_promise() -> None:
    text = LINEAR.replace("L_i,j,k", "P_i L_j,k").replace("C:f32[i,j];", "C:f32[j];")
    text = text.replace("C[i,j] = max", "C[j] += max")
    refusal = refused(text, "reverse_compute_at(C, i)")
    assert refusal.code == "dependence" and "i carries the reduction of C" in refusal.sentence


def test_a_producer_does_not_move_outside_the_threads_that_use_it() -> None:
    text = "i:8 j:4\nA:f32[i,j] -> C:f32[i,j]; D:f32[i,j]\nL_i,j D[i,j] = A[i,j]\nB^bx_i B^tx_j C[i,j] = D[i,j]\n"
    assert refused(text, "compute_at(D, i.2)").code == "scope"


def test_copies_of_unrolled_loops_are_bounded() -> None:
    text = "i,j:16\nA:f32[i,j] -> C:f32[i,j]; D:f32[i,j]\nL_i,j D[i,j] = A[i,j]\nU_i,j C[i,j] = D[i,j]\n"
    refusal = refused(text, "compute_at(D, j.2)")
    assert refusal.code == "size" and "512 copies" in refusal.sentence
    turned = text.replace("L_i,j D", "U_i,j D")
    assert refused(turned, "reverse_compute_at(C, j)").code == "size"


def test_a_guard_that_reads_a_tensor_takes_no_tail() -> None:
    guarded = "L_i,j C[i,j] = 1\nL_i,j C[i,j] = 0 if D[i,j]>0"
    text = LINEAR.replace("L_i,j C[i,j] = max(D[i,j]+E[j],0)", guarded)
    refusal = refused(text, "reverse_compute_at(C.2, io)", "loop_split(i; 4)")
    assert refusal.code == "structure" and "guard reads a tensor" in refusal.sentence


def test_the_menu_names_each_loop_of_the_producer_that_is_ready() -> None:
    program = after(LINEAR, "loop_tiling(i, j; 7, 8)")
    offered = [a for a in strategies.legal(program) if a.name == "reverse_compute_at"]
    assert list(map(str, offered)) == [f"reverse_compute_at(C, {loop})" for loop in ("io", "jo", "ii", "ji")]
    text = strategies.rationale(program, parse_action("reverse_compute_at(C, jo)"))
    assert "56 elements (224 bytes)" in text and "896 bytes" in text
    assert strategies.refusal(parse(LINEAR), parse_action("reverse_compute_at(C, k)")) is not None
