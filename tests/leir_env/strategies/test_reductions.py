"""Reductions in partial results: lanes, blocks, tails, and what must not be split."""

import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.build import build
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import Exactness
from envs.leir_env.strategies.reductions import partial_counts
from envs.leir_env.workloads import load
from tests.leir_env.strategies.steps import after, assert_built_agrees, assert_same_values, exactness, refused

ROWS = "i:6 j:64\nA:f32[i,j] -> C:f32[i]\nL_i,j C[i] += A[i,j]\n"
FOUR = "reduction_factorization(j; 4, lanes)"
UNEVEN = "i:6 j:30\nA:f32[i,j] -> C:f32[i]\nL_i,j C[i] += A[i,j]\n"
OUTER = "i:6 j:5 k:12\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,k,j C[i,j] += A[i,k] B[k,j]\n"


def test_lanes_take_neighbouring_iterations_and_can_be_vectorised() -> None:
    program = after(ROWS, "reduction_factorization(j; 16, lanes)", "loop_vectorization(ji; 16)")
    assert show(program) == (
        "i:6 jo:4 ji:16\nA:f32[i,64] -> C:f32[i]\nL_i [\n"
        "  D:f32.l[ji]\n"
        "  L_jo V_ji D[ji] += A[i,16jo+ji]\n"
        "  L_ji C[i] += D[ji]\n]\n"
    )
    assert_same_values(ROWS, program)
    assert_built_agrees(program)


def test_blocks_take_consecutive_iterations_and_can_run_in_parallel() -> None:
    text = "i:64\nA,B:f32[i] -> C:f32\nL_i C += A[i] B[i]\n"
    program = after(text, "reduction_factorization(i; 4, blocks)", "loop_parallelization(io)")
    assert show(program) == (
        "io:4 ii:16\nA,B:f32[64] -> C:f32; D:f32[io]\nP_io L_ii D[io] += A[16io+ii] B[16io+ii]\nL_io C += D[io]\n"
    )
    assert_same_values(text, program)
    assert_built_agrees(program)


@pytest.mark.parametrize("which", ["lanes", "blocks"])
@pytest.mark.parametrize("assign", ["+=", "*=", "max=", "min="])
def test_every_partial_result_of_an_uneven_split_starts_from_the_identity(assign: str, which: str) -> None:
    text = UNEVEN.replace("+=", assign)
    program = after(text, f"reduction_factorization(j; 4, {which})")
    assert " if 4jo+ji<30" in show(program) or " if 8jo+ji<30" in show(program)
    assert_same_values(text, program)
    assert_built_agrees(program)


def test_a_tail_leaves_the_lanes_whole() -> None:
    program = after(UNEVEN, "reduction_factorization(j; 8, lanes)", "loop_vectorization(ji; 8)")
    assert_built_agrees(program)
    assert "<8 x float>" in build(program).source("ll")


def test_maxima_are_exact_and_sums_are_reassociated() -> None:
    assert exactness(ROWS, "reduction_factorization(j; 8, lanes)") is Exactness.REASSOCIATES
    assert exactness(ROWS.replace("+=", "max="), "reduction_factorization(j; 8, lanes)") is Exactness.EXACT
    integers = ROWS.replace("f32", "i32")
    assert exactness(integers, "reduction_factorization(j; 8, lanes)") is Exactness.EXACT
    assert_same_values(integers, after(integers, "reduction_factorization(j; 8, lanes)"), exact=True)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8"])
def test_partial_results_have_the_dtype_of_the_result(dtype: str) -> None:
    text = ROWS.replace("f32", dtype).replace("+=", "max=")
    program = after(text, "reduction_factorization(j; 8, lanes)")
    assert f"D:{dtype}.l[ji]" in show(program)
    assert_same_values(text, program, exact=True)


def test_the_partial_sums_stay_in_vector_registers() -> None:
    text = ROWS.replace("j:64", "j:1024")
    code = build(after(text, "reduction_factorization(j; 16, lanes)", "loop_vectorization(ji; 16)")).source("ll")
    assert "phi <16 x float>" in code
    assert "phi <16 x float>" not in build(after(text)).source("ll")


def test_a_reduction_loop_around_others_gives_partial_results_their_dimensions() -> None:
    program = after(OUTER, "reduction_factorization(k; 4, lanes)")
    assert "  D:f32.l[j,ki]\n  L_ko,ki,j D[j,ki] += A[i,4ko+ki] B[4ko+ki,j]\n" in show(program)
    assert "  L_j,ki C[i,j] += D[j,ki]\n" in show(program)
    assert_same_values(OUTER, program)
    blocks = after(OUTER, "reduction_factorization(k; 4, blocks)", "loop_parallelization(ko)")
    assert "  P_ko L_ki,j D[ko,j] += A[i,3ko+ki] B[3ko+ki,j]\n" in show(blocks)
    assert_same_values(OUTER, blocks)
    assert_built_agrees(blocks)


def test_several_reductions_in_one_loop_are_split_together() -> None:
    text = "i:3 j:32\nA:f32[i,j] -> C,D:f32[i]\nL_i,j [\n  C[i] += A[i,j]\n  D[i] max= A[i,j]\n]\n"
    program = after(text, "reduction_factorization(j; 8, lanes)", "loop_vectorization(ji; 8)")
    assert "  L_ji C[i] += E[ji]\n  L_ji D[i] max= F[ji]\n" in show(program)
    assert_same_values(text, program)
    assert_built_agrees(program)


def test_a_result_that_holds_a_value_already_keeps_it() -> None:
    text = "i:3 j:16\nA:f32[i,j] B:f32[i] -> C:f32[i]\nL_i [\n  C[i] = B[i]\n  L_j C[i] += A[i,j]\n]\n"
    program = after(text, "reduction_factorization(j; 4, lanes)")
    assert_same_values(text, program)
    assert_built_agrees(program)


def test_partial_results_can_be_split_again() -> None:
    program = after(ROWS, "reduction_factorization(j; 16, lanes)", "reduction_factorization(ji.2; 4, lanes)")
    assert_same_values(ROWS, program)


def test_a_guard_of_the_loops_around_guards_the_combination() -> None:
    text = "i:4 j:32 k:8\nA:f32[i,j] -> C:f32[i,k]\nL_i,k C[i,k] = 0\nL_i,k,j C[i,k] += A[i,j] if k<=i\n"
    program = after(text, "reduction_factorization(j; 4, lanes)")
    assert "    L_ji C[i,k] += D[ji] if k<=i\n".strip() in show(program)
    assert_same_values(text, program)


def test_elements_that_the_loop_leaves_alone_are_not_combined() -> None:
    """C holds nothing beyond j = 2, and adding nothing to nothing would read it."""
    text = (
        "i:8 j:5\nA:f32[i,j] -> D:f32[j]; C:f32[j]\n"
        "L_j C[j] = 1 if j<3\n"
        "L_i,j C[j] += A[i,j] if j<3\n"
        "L_j D[j] = select(j<3,C[j],0)\n"
    )
    assert refused(text, "reduction_factorization(i; 4, lanes)").code == "structure"
    strided = text.replace(" if j<3", "").replace("C:f32[j]", "C:f32[9]").replace("C[j]", "C[2j]")
    assert refused(strided, "reduction_factorization(i; 4, lanes)").code == "structure"


@pytest.mark.parametrize(
    "text, code, part",
    [
        ("i,j:8\nA:f32[i,j] -> C:f32[i,j]\nL_i,j C[i,j] = A[i,j]\n", "no_effect", "carries no reduction"),
        ("j:8\nA:f32[j] -> C:f32[j]; D:f32\nL_j [\n  D += A[j]\n  C[j] = D\n]\n", "dependence", "flow dependence of D"),
        ("j:8\nA:f32[j] -> C:f32[4]\nL_j C[j//2] += A[j]\n", "structure", "move with the loop"),
        ("j:8\nA:f32[j] B:i32[j] -> C:f32[4]\nL_j C[B[j]] += A[j]\n", "structure", "C move with the loop"),
        ("j:8 k:4\nA:f32[j,k] B:i32[k] -> C:f32[4]\nL_j,k C[B[k]] += A[j,k]\n", "structure", "not affine"),
        ("i:3 j:8\nA:f32[i,j] B:i32[i] -> C:f32[4]\nL_i,j C[B[i]] += A[i,j]\n", "structure", "depends on data"),
        ("j:8\nA:f32[j] -> C:f32\nL_j [\n  C += A[j]\n  C max= A[j]\n]\n", "dependence", "dependence of C"),
        ("j:8 i:4\nA:f32[j,i] -> C:f32[i]\nV_i L_j C[i] += A[j,i]\n", "scope", "V_i would be shared"),
    ],
)
def test_what_is_not_a_plain_reduction_is_refused(text: str, code: str, part: str) -> None:
    refusal = refused(text, FOUR)
    assert refusal.code == code and part in refusal.sentence


def test_a_guard_that_reads_a_tensor_takes_no_tail() -> None:
    body = "[\n  C[i] += A[i,j]\n  C[i] += A[i,j] if A[i,j]>0\n]"
    text = UNEVEN.replace("C[i] += A[i,j]", body)
    refusal = refused(text, FOUR)
    assert refusal.code == "structure" and "a guard reads A" in refusal.sentence
    even = after(text, "reduction_factorization(j; 5, lanes)")
    assert_same_values(text, even)
    assert_built_agrees(even)


def test_loops_that_combine_boxes_of_different_sizes_have_different_names() -> None:
    text = (
        "k:6 i:2 j:4\nA:f32[k,j] -> C:f32[5] D:f32[3]\nL_k [\n"
        "  L_j,i C[i+j] += A[k,j]\n  L_j,i D[j//2+i] += A[k,j]\n]\n"
    )
    program = after(text, "reduction_factorization(k; 3, lanes)")
    assert_same_values(text, program)
    assert_built_agrees(program)


def test_blocks_must_come_out_at_the_number_asked_for() -> None:
    refusal = refused("j:5\nA:f32[j] -> C:f32\nL_j C += A[j]\n", "reduction_factorization(j; 4, blocks)")
    assert refusal.code == "extent" and "make 3 blocks of 2" in refusal.sentence


@pytest.mark.parametrize("count", [1, 64, 65])
def test_there_are_fewer_partial_results_than_iterations(count: int) -> None:
    refusal = refused(ROWS, f"reduction_factorization(j; {count}, lanes)")
    assert refusal.code == "extent" and "between 1 and the extent 64" in refusal.sentence


def test_partial_results_are_bounded_in_size() -> None:
    text = "k:64 i,j:1024\nA:f32[k,i] B:f32[k,j] -> C:f32[i,j]\nL_k,i,j C[i,j] += A[k,i] B[k,j]\n"
    refusal = refused(text, "reduction_factorization(k; 4, blocks)")
    assert refusal.code == "size" and "16777216 bytes" in refusal.sentence


def test_copies_of_unrolled_loops_are_bounded() -> None:
    text = "i,m:16 j:8\nA:f32[i,m,j] -> C:f32[i,m]\nU_i,m L_j C[i,m] += A[i,m,j]\n"
    assert refused(text, FOUR).code == "size"


def test_the_threads_of_a_gpu_do_not_share_partial_results() -> None:
    text = "j:8 i:4\nA:f32[j,i] -> C:f32[i]\nL_j B^tx_i C[i] += A[j,i]\n"
    assert refused(text, FOUR).code == "scope"
    inside = "i:4 j:8\nA:f32[j,i] -> C:f32[i]\nB^tx_i L_j C[i] += A[j,i]\n"
    assert_same_values(inside, after(inside, FOUR, target="cuda"))


@pytest.mark.parametrize(
    "workload, loops",
    [
        ("sum", {"j"}),
        ("softmax", {"j", "j.2"}),
        ("layernorm", {"j", "j.2"}),
        ("matmul_256", {"k"}),
        ("attention", {"m", "k.2", "k.3", "k.5"}),
    ],
)
def test_the_reductions_of_shipped_workloads_are_offered(workload: str, loops: set[str]) -> None:
    program = load(workload).program
    offered = [action for action in strategies.legal(program) if action.name == "reduction_factorization"]
    assert {action.sites[0] for action in offered} == loops
    assert len(offered) <= 6 * len(loops)


def test_the_menu_prefers_divisors_and_whole_registers() -> None:
    assert partial_counts(1024, "lanes") == (16, 32, 8)
    assert partial_counts(30, "lanes") == (2, 8, 4)
    assert partial_counts(3, "lanes") == ()
    assert strategies.refusal(parse(UNEVEN), parse_action("reduction_factorization(j; 3, lanes)")) is None
