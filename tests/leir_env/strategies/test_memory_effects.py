"""Memory strategies change what is generated and what is moved; where they would change the result they refuse."""

import re

import numpy as np
import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.build import build, cuda_source
from envs.leir_env.cost import estimate
from envs.leir_env.generate import random_inputs
from envs.leir_env.interp import run
from envs.leir_env.ir import Equation, Program
from envs.leir_env.lower import lower
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.traffic import Placed, moved_cycles
from envs.leir_env.tree import declarations, walk
from envs.leir_env.verify import verify
from tests.leir_env.strategies.test_layouts import apply, refused

MATMUL = "i,j,k:64\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n"
ROWS_OF_B = "i,k,j:64\nA:f32[i,k] B:f32[j,k] -> C:f32[i,j]\nL_i,k,j C[i,j] += A[i,k] B[j,k]\n"
BATCHES = "h:4 i,k,j:64\nA:f32[h,i,k] B:f32[h,j,k] -> C:f32[h,i,j]\nL_h,i,k,j C[h,i,j] += A[h,i,k] B[h,j,k]\n"
SQUARES = (
    "i:2048 j:128\nA:f32[i,j] -> C:f32[i]; D:f32[i,j]\n"
    "L_i [\n  L_j D[i,j] = exp(A[i,j])\n  L_j C[i] += D[i,j] D[i,j]\n]\n"
)
KERNEL = (
    "io,jo,ko:4 ii,ji,ki:16\nA:f32[64,64] B:f32[64,64] -> C:f32[64,64]\n"
    "B^by_io B^bx_jo L_ko,ki B^ty_ii B^tx_ji C[16io+ii,16jo+ji] += A[16io+ii,16ko+ki] B[16ko+ki,16jo+ji]\n"
)


def after(text: str, *actions: str) -> Program:
    program = parse(text)
    for action in actions:
        program = strategies.apply(program, parse_action(action)).program
    return program


def moved(program: Program) -> float:
    """Cycles of the model to move cache lines."""
    known = {
        name: Placed(tensor, frozenset(n.statement.index for n in walk(program) if n.path in _prefixes(path)))  # type: ignore[union-attr]
        for name, (tensor, path) in declarations(program).items()
    }
    return sum(
        moved_cycles(node.statement, node.loops, known)
        for node in walk(program)
        if isinstance(node.statement, Equation)
    )


def _prefixes(path: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {path[:depth] for depth in range(1, len(path) + 1)}


def ir(program: Program) -> str:
    return build(program).source("ll")


def count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


def allocations(program: Program, target: str = "llvm") -> int:
    return str(lower(program, target)).count("alloc_buffer(")


def test_a_cached_accumulator_is_kept_out_of_memory_in_the_loop_that_accumulates() -> None:
    before, cached = parse(MATMUL), after(MATMUL, "cache_read_write(C, j; local)")
    assert (allocations(before), allocations(cached)) == (0, 1)
    stores = [count(r"store float", ir(program)) for program in (before, cached)]
    assert stores[1] < stores[0]


def test_a_small_cached_tile_is_a_buffer_on_the_stack_a_large_one_on_the_heap() -> None:
    text = "io,ii:8 j:64 k:16\nA:f32[64,k] B:f32[k,j] -> C:f32[64,j]\nL_io,j,k,ii C[8io+ii,j] += A[8io+ii,k] B[k,j]\n"
    before, small = ir(parse(text)), ir(after(text, "cache_read_write(A, io; local)"))
    assert "alloca [128 x float]" in small and "alloca [" not in before
    large = ir(after(text.replace("k:16", "k:512"), "cache_read_write(A, io; local)"))
    assert "TVMBackendAllocWorkspace" in large and "TVMBackendAllocWorkspace" not in before


def test_a_tensor_stored_where_it_is_used_leaves_the_heap_for_the_stack() -> None:
    stored = after(SQUARES, "set_storage_scope(D; local)")
    assert "alloca [128 x float]" in ir(stored)
    assert "TVMBackendAllocWorkspace" in ir(parse(SQUARES)) and "TVMBackendAllocWorkspace" not in ir(stored)


def test_a_tensor_stored_where_it_is_used_moves_less() -> None:
    stored = after(SQUARES, "set_storage_scope(D; local)")
    assert moved(stored) < 0.75 * moved(parse(SQUARES)) and estimate(stored) < estimate(parse(SQUARES))


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (ROWS_OF_B, "layout_transformation(B; swap_1_2)"),
        (ROWS_OF_B, "layout_transformation(B; tile_1_8)"),
        (BATCHES, "array_packing(B, h)"),
    ],
)
def test_lanes_load_side_by_side_what_lay_a_row_apart(text: str, action: str) -> None:
    before, stored = after(text, "loop_vectorization(j; 8)"), after(text, "loop_vectorization(j; 8)", action)
    gathered = [count("insertelement", ir(program)) for program in (before, stored)]
    loaded = [count(r"load <8 x float>", ir(program)) for program in (before, stored)]
    assert gathered[0] >= 8 > gathered[1] and loaded[1] > loaded[0]
    assert estimate(stored) < estimate(before) / 2


def test_an_intermediate_stored_as_it_is_read_moves_less() -> None:
    text = "i,j:512 k:8\nA:f32[i] B:f32[j] -> C:f32[i,k]; D:f32[j,i]\n"
    text += "L_j,i D[j,i] = A[i]*B[j]\nL_i,k,j C[i,k] += D[j,i] D[j,i]\n"
    stored = after(text, "set_storage_layout(D; swap_1_2)", "loop_reorder(j, i)")
    assert moved(stored) < moved(parse(text)) / 2
    lowered = [str(lower(program)) for program in (parse(text), stored)]
    assert "D[j, i]" in lowered[0] and "D[i, j]" in lowered[1]


def test_a_panel_moves_less_than_columns_a_power_of_two_apart() -> None:
    text = "jo,i:64 ji:16 k:512\nA:f32[i,k] B:f32[k,1024] -> C:f32[i,1024]\n"
    text += "L_jo,i,k,ji C[i,16jo+ji] += A[i,k] B[k,16jo+ji]\n"
    assert moved(after(text, "layout_transformation(B; panel_2_16)")) < moved(parse(text))
    assert moved(after(text, "cache_read_write(B, jo; local)")) < moved(parse(text))


def test_a_table_of_subscripts_is_loaded_in_place_of_divisions() -> None:
    text = "i:63 j:64\nA:f32[64] -> C:f32[i,j]\nL_i,j C[i,j] = exp(A[i*j%61])\n"
    tabled = after(text, "precompute_indices(C; 1)")
    assert (allocations(parse(text)), allocations(tabled)) == (0, 1)
    assert count(r"load i32", ir(tabled)) > count(r"load i32", ir(parse(text)))
    remainders = [str(lower(program)).split("exp")[1] for program in (parse(text), tabled)]
    assert "61" in remainders[0] and "61" not in remainders[1]


def test_on_a_gpu_tiles_are_shared_by_the_threads_of_a_block() -> None:
    cached = after(KERNEL, "cache_read_write(A, ko; shared)", "cache_read_write(B, ko; shared)")
    assert verify(cached, "cuda") == ()
    before, source = cuda_source(parse(KERNEL)), cuda_source(cached)
    assert "__shared__" not in before
    assert count(r"__shared__ .*float [A-Z]_ptr\[256\]", source) == 2 and "__syncthreads" in source


def test_on_a_gpu_an_accumulator_is_private_to_its_thread() -> None:
    text = "io:4 ii:16 j,k:64\nA:f32[64,k] B:f32[k,j] -> C:f32[64,j]\n"
    text += "B^bx_io B^tx_ii L_j,k C[16io+ii,j] += A[16io+ii,k] B[k,j]\n"
    source = cuda_source(after(text, "cache_read_write(C, j; local)"))
    assert "float D_ptr[1]" in source and "__shared__" not in source


def test_on_a_gpu_a_temporary_moves_from_global_memory_to_the_thread() -> None:
    text = SQUARES.replace("i:2048", "i:256").replace("L_i [", "B^bx_i [").replace("L_j D", "B^tx_j D")
    alone = text.replace("L_j C[i] += D[i,j] D[i,j]", "B^tx_j C[i,j] = D[i,j] D[i,j]").replace("C:f32[i]", "C:f32[i,j]")
    assert "main_kernel" in cuda_source(parse(alone))
    assert refused(alone, "set_storage_scope(D; local)").code == "scope"
    shared = after(alone, "set_storage_scope(D; shared)")
    assert verify(shared, "cuda") == () and count(r"__shared__ .*float D_ptr\[128\]", cuda_source(shared)) == 1


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("cache_read_write(C, ko; local)", "scope"),
        ("cache_read_write(C, ko; global)", "scope"),
        ("cache_read_write(A, io; shared)", "kind"),
        ("cache_read_write(A, ki; global)", "scope"),
    ],
)
def test_a_kernel_declares_what_its_threads_can_reach(action: str, code: str) -> None:
    assert refused(KERNEL, action).code == code


def test_a_block_shares_at_most_what_it_has() -> None:
    large = KERNEL.replace(",ko:4 ii,ji,ki:16", ":4 ii,ji:16 ko,ki:1024").replace("A:f32[64,64]", "A:f32[64,1048576]")
    large = large.replace("B:f32[64,64]", "B:f32[1048576,64]").replace("16ko+ki", "1024ko+ki")
    refusal = refused(large, "cache_read_write(A, ko; shared)")
    assert refusal.code == "size" and "65,536" in refusal.sentence


def test_without_blocks_nothing_is_shared() -> None:
    assert refused(MATMUL, "cache_read_write(C, j; shared)").code == "scope"
    assert refused(SQUARES, "set_storage_scope(D; shared)").code == "scope"


def test_a_box_that_moves_with_data_written_in_the_loop_is_not_cached() -> None:
    text = "i:4 k:3 j:5\nA:f32[8,k] B:i64[i] -> C:f32[i,k]; M:i64[i]\n"
    text += "L_i [\n  M[i] = B[i]%8\n  L_j,k C[i,k] += A[M[i],k]\n]\n"
    refusal = refused(text, "cache_read_write(A, i; local)")
    assert refusal.code == "structure" and "moves with M" in refusal.sentence
    elsewhere = text.replace("L_i [\n  M[i] = B[i]%8\n  ", "L_i M[i] = B[i]%8\nL_i ").replace("]\n]\n", "]\n")
    apply(elsewhere, "cache_read_write(A, i.2; local)")


def test_a_temporary_whose_place_changes_between_its_uses_stays_where_it_is() -> None:
    text = "i:4 k:3\nA:f32[i,k] B:i64[i] -> C:f32[i,k]; D:f32[8,k] M:i64[i]\n"
    text += "L_i [\n  M[i] = B[i]%8\n  L_k D[M[i],k] = A[i,k]\n  M[i] = 7-M[i]\n"
    text += "  L_k C[i,k] = select(M[i]<8,A[i,k],D[M[i],k])\n]\n"
    assert refused(text, "set_storage_scope(D; local)").code == "structure"


def test_a_box_with_elements_that_nothing_wrote_is_not_cached() -> None:
    text = "i,m,n:4 r:3\nA:f32[16] -> C:f32[i]; D:f32[32]\n"
    text += "L_m,n D[8m+2n] = A[4m+n]\nL_i,r,n C[i] += D[8i+2n]\n"
    refusal = refused(text, "cache_read_write(D, i; local)")
    assert refusal.code == "structure" and "before it is written" in refusal.sentence
    whole = text.replace("L_m,n D", "L_w D[w] = 0.5\nL_m,n D").replace("r:3\n", "r:3 w:32\n")
    apply(whole, "cache_read_write(D, i; local)")
    late = text + "L_w D[w] = 0.5\n"
    assert refused(late.replace("r:3\n", "r:3 w:32\n"), "cache_read_write(D, i; local)").code == "structure"


def test_a_cached_program_computes_what_it_did() -> None:
    cached = after(MATMUL, "cache_read_write(C, j; local)", "cache_read_write(A, i; local)")
    inputs = random_inputs(cached, np.random.default_rng(0))
    expected = run(parse(MATMUL), inputs)["C"]
    np.testing.assert_allclose(build(cached).run(inputs)["C"], expected, rtol=1e-4, atol=1e-4)


def test_what_is_read_before_it_accumulates_still_starts_at_the_identity() -> None:
    program = parse(
        "i:6 k:5\nS:f32[i,k] -> F:f32[i] H:f32[i,k]\nL_i,k H[i,k] = S[i,k]-max(F[i],-9.0)\nL_i,k F[i] max= S[i,k]\n"
    )
    assert verify(program) == ()
    inputs = random_inputs(program, np.random.default_rng(0))
    expected = run(program, inputs)
    caching = [action for action in strategies.legal(program) if action.name == "cache_read_write"]
    actions = [action for action in caching if action.sites[0] == "F"]
    assert actions
    for action in actions:
        result = strategies.apply(program, action).program
        assert verify(result) == (), show(result)
        found = run(result, inputs)
        assert all(found[name].tobytes() == expected[name].tobytes() for name in expected), show(result)
