"""Loops on a GPU's blocks and threads: limits, places of temporaries, and what may not pass between blocks."""

import numpy as np
import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.build import cuda_source
from envs.leir_env.generate import random_program
from envs.leir_env.ir import Loop, Scope
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.tree import declarations, loops_below
from tests.leir_env.strategies.steps import after, assert_same_values, refused

MATMUL = "i:64 j:96 k:32\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n"
SOFTMAX = (
    "i:64 j:128\nA:f32[i,j] -> C:f32[i,j]; D,E:f32[i]\n"
    "L_i [\n  L_j D[i] max= A[i,j]\n  L_j E[i] += exp(A[i,j]-D[i])\n  L_j C[i,j] = exp(A[i,j]-D[i])/E[i]\n]\n"
)


def test_a_tiled_matmul_gets_its_grid_and_its_block() -> None:
    program = after(
        MATMUL,
        "loop_tiling(i, j; 8, 32)",
        "loop_binding(io; by)",
        "loop_binding(jo; bx)",
        "loop_binding(ii; ty)",
        "loop_binding(ji; tx)",
        target="cuda",
    )
    assert "B^by_io B^bx_jo B^ty_ii B^tx_ji L_k C" in show(program)
    source = cuda_source(program)
    assert "blockIdx.y" in source and "threadIdx.x" in source and "__launch_bounds__(256)" in source
    assert_same_values(MATMUL, program, exact=True)


def test_binding_is_for_a_gpu_only() -> None:
    program, action = parse(MATMUL), parse_action("loop_binding(i; bx)")
    refusal = strategies.refusal(program, action, "llvm")
    assert refusal is not None and refusal.sentence == "loop_binding is for cuda, not llvm"
    assert action in strategies.legal(program, "cuda") and action not in strategies.legal(program)


def test_temporaries_are_shared_between_block_and_thread_loops_and_local_inside() -> None:
    text = SOFTMAX
    program = after(
        text, "loop_binding(i; bx)", "set_storage_scope(D; local)", "set_storage_scope(E; local)", target="cuda"
    )
    assert declarations(program)["D"][0].scope is Scope.LOCAL
    threads = strategies.apply(program, parse_action("loop_binding(j.3; tx)")).program
    assert {declarations(threads)[name][0].scope for name in "DE"} == {Scope.SHARED}
    assert "__shared__" in cuda_source(threads)
    assert_same_values(SOFTMAX, threads, exact=True)
    by_thread = after(SOFTMAX, "set_storage_scope(D; local)", "loop_binding(i; tx)", target="cuda")
    assert declarations(by_thread)["D"][0].scope is Scope.LOCAL
    assert "__shared__" not in cuda_source(by_thread)


def test_a_private_temporary_without_a_scope_gets_one() -> None:
    text = "i:8 j:4\nA:f32[i,j] -> C:f32[i,j]\nL_i [\n  D:f32[j]\n  L_j D[j] = A[i,j]\n  L_j C[i,j] = D[j]\n]\n"
    program = after(text, "loop_binding(i; bx)", "loop_binding(j; tx)", "loop_binding(j.2; tx)", target="cuda")
    assert "D:f32.s[j]" in show(program)
    assert "__shared__" in cuda_source(program)


@pytest.mark.parametrize(
    "text, action, code, part",
    [
        (MATMUL, "loop_binding(k; tx)", "dependence", "k carries the reduction of C"),
        (MATMUL, "loop_binding(j; bx)", "kind", "the block loops of a kernel are its outermost loops"),
        (MATMUL.replace("L_i,", "P_i L_"), "loop_binding(i; bx)", "kind", "the loop is of kind P, need L"),
        (MATMUL.replace("L_i,", "P_i L_"), "loop_binding(j; tx)", "kind", "parallel loop"),
        (MATMUL.replace("L_i,", "B^tx_i L_"), "loop_binding(j; tx)", "kind", "another loop bound to tx"),
        (MATMUL.replace("L_i,", "B^tx_i L_"), "loop_binding(j; ty)", "kind", "a block has 6,144 threads"),
        (MATMUL.replace("L_i,", "B^tx_i L_"), "loop_binding(j; bx)", "kind", "outermost loops"),
        ("i:65 j:4\nA:f32[i,j] -> C:f32[i,j]\nL_i,j C[i,j] = A[i,j]\n", "loop_binding(i; tz)", "extent", "64"),
        ("i:65536\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\n", "loop_binding(i; by)", "extent", "65535"),
        ("i:1025\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\n", "loop_binding(i; tx)", "extent", "1024"),
        ("i:1\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\n", "loop_binding(i; tx)", "extent", "single iteration"),
        ("i,j:4\nA:f32[i,j] -> C:f32[i,j]\nV_i L_j C[i,j] = A[i,j]\n", "loop_binding(j; tx)", "kind", "inside V_i"),
    ],
)
def test_axes_have_limits_and_an_order(text: str, action: str, code: str, part: str) -> None:
    refusal = refused(text, action)
    assert refusal.code == code and part in refusal.sentence


def test_what_threads_share_must_stand_in_a_block_loop() -> None:
    text = "i:8 j:4\nA:f32[i,j] -> C:f32[i,j]\nL_i [\n  D:f32.l[j]\n  L_j D[j] = A[i,j]\n  L_j C[i,j] = D[j]\n]\n"
    refusal = refused(text, "loop_binding(j; tx)")
    assert refusal.code == "scope" and "D" in refusal.sentence


def test_a_thread_does_not_write_the_local_tensor_of_another() -> None:
    text = "i:8 j:4\nA:f32[i,j] -> C:f32[i,j]\nB^tx_i [\n  D:f32.l[j]\n  L_j D[j] = A[i,j]\n  L_j C[i,j] = D[j]\n]\n"
    refusal = refused(text, "loop_binding(j; ty)")
    assert refusal.code == "scope" and "each thread has its own" in refusal.sentence


def test_shared_tensors_of_a_block_are_bounded() -> None:
    text = (
        "i:8 j:512 k:32\nA:f32[i,j,k] -> C:f32[i,j,k]\n"
        "B^bx_i [\n  D:f32.l[j,k]\n  L_j,k D[j,k] = A[i,j,k]\n  L_j,k C[i,j,k] = D[j,k]\n]\n"
    )
    refusal = refused(text, "loop_binding(k; tx)")
    assert refusal.code == "scope" and "65,536 bytes of shared tensors" in refusal.sentence


def test_nothing_passes_from_one_block_to_another_within_a_kernel() -> None:
    text = (
        "f:12 j:4\nA:f32[3,4] -> C:f32[3,4] E:f32[f,j]\n"
        "L_f [\n  C[f//4,f%4] = A[f//4,f%4]\n  L_j E[f,j] = C[f//4,f%4]\n]\n"
    )
    assert "E[f,j]" in show(after(text, "loop_binding(f; bx)", target="cuda"))
    refusal = refused(text, "loop_binding(j; tx)", "loop_binding(f; bx)")
    assert refusal.code == "dependence" and "C may pass from one block to another along bx" in refusal.sentence


def test_a_dependence_between_iterations_is_not_bound() -> None:
    text = "i:8\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\nL_i C[i] = select(i>=1,C[i-1],0)\n"
    assert refused(text, "loop_binding(i.2; tx)").code == "dependence"
    assert "B^tx_i C[i] = A[i]" in show(after(text, "loop_binding(i; tx)", target="cuda"))


def test_each_loop_is_offered_the_first_free_axis_of_grid_and_block() -> None:
    program = parse(MATMUL)
    offered = [str(action) for action in strategies.legal(program, "cuda") if action.name == "loop_binding"]
    assert offered == ["loop_binding(i; bx)", "loop_binding(i; tx)", "loop_binding(j; tx)"]
    program = strategies.apply(program, parse_action("loop_binding(i; bx)")).program
    offered = [str(action) for action in strategies.legal(program, "cuda") if action.name == "loop_binding"]
    assert offered == ["loop_binding(j; by)", "loop_binding(j; tx)"]


def test_the_rationale_counts_warps_and_neighbouring_accesses() -> None:
    action = parse_action("loop_binding(j; tx)")
    text = strategies.rationale(parse(MATMUL), action)
    assert "96 iterations" in text and "3 warps" in text and "2 of the 3 elements" in text


def test_whatever_is_bound_compiles() -> None:
    """Random programs, bound at random until every nest is a kernel."""
    built = 0
    for seed in range(1, 60):
        rng = np.random.default_rng(seed)
        program = random_program(rng)
        while actions := [a for a in strategies.legal(program, "cuda") if a.name == "loop_binding"]:
            program = strategies.apply(program, actions[int(rng.integers(len(actions)))]).program
        whole = all(isinstance(s, Loop) and any(loop.axis for loop in loops_below(s)) for s in program.body)
        wide = any(loop.kind == "V" for s in program.body for loop in loops_below(s))
        if whole and not wide:
            assert "__global__" in cuda_source(program)
            built += 1
    assert built > 10
