"""Tiles that are filled one iteration ahead."""

import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.build import build, cuda_source
from envs.leir_env.lower import lower
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import Exactness
from tests.leir_env.strategies.steps import after, assert_built_agrees, assert_same_values, exactness, refused

ROWS = (
    "i:6 t:4 c:8\nA:f32[i,32] -> C:f32[i]\nL_i,t [\n  D:f32.l[c]\n  L_c D[c] = A[i,8t+c]\n  L_c C[i] += D[c] D[c]\n]\n"
)
FLAT = "t:4 c:8\nA:f32[32] -> C:f32\nL_t [\n  D:f32.l[c]\n  L_c D[c] = A[8t+c]\n  L_c C += D[c] D[c]\n]\n"
MATMUL = "i,j:16 k:20\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n"
TILES = (
    "loop_tiling(i, j; 8, 8)",
    "loop_split(k; 5)",
    "loop_reorder(ji, ko)",
    "loop_reorder(ii, ko)",
    "cache_read_write(A, ko; local)",
    "cache_read_write(B, ko; local)",
)


def test_two_buffers_take_turns() -> None:
    program = after(ROWS, "double_buffer(D)")
    assert show(program) == (
        "i:6 c:8 t:4\nA:f32[i,32] -> C:f32[i]\nL_i [\n"
        "  D:f32.l[2,c]\n"
        "  L_c D[0,c] = A[i,c]\n"
        "  L_t [\n"
        "    L_c D[(t+1)%2,c] = A[i,8t+c+8] if t+1<4\n"
        "    L_c C[i] += D[t%2,c] D[t%2,c]\n"
        "  ]\n]\n"
    )
    assert exactness(ROWS, "double_buffer(D)") is Exactness.EXACT
    assert_same_values(ROWS, program, exact=True)
    assert_built_agrees(program)
    assert "alloc_buffer((2, 8))" in str(lower(program))


def test_at_the_top_the_buffers_move_to_the_header() -> None:
    program = after(FLAT, "double_buffer(D)")
    assert "-> C:f32; D:f32[2,c]\n" in show(program)
    assert_same_values(FLAT, program, exact=True)
    assert_built_agrees(program)


def test_both_tiles_of_a_matmul_are_fetched_ahead_and_copied_in_vectors() -> None:
    program = after(MATMUL, *TILES, "double_buffer(D)", "double_buffer(E)", "loop_vectorization(ji; 8)")
    program = after(show(program), "loop_vectorization(ji.2; 8)", "loop_vectorization(ji.3; 8)")
    assert_same_values(MATMUL, program, exact=True)
    assert_built_agrees(program)
    assert "<8 x float>" in build(program).source("ll")


def test_a_ragged_last_tile_keeps_its_guard() -> None:
    text = ROWS.replace("A:f32[i,32]", "A:f32[i,30]").replace("A[i,8t+c]", "A[i,8t+c] if 8t+c<30")
    text = text.replace("+= D[c] D[c]", "+= D[c] D[c] if 8t+c<30")
    program = after(text, "double_buffer(D)")
    assert "= A[i,8t+c+8] if 8t+c+8<30 and t+1<4\n" in show(program)
    assert "  L_c D[0,c] = A[i,c]\n" in show(program)
    assert_same_values(text, program, exact=True)
    assert_built_agrees(program)


def test_two_iterations_need_no_remainder() -> None:
    text = ROWS.replace("t:4", "t:2").replace("A:f32[i,32]", "A:f32[i,16]")
    program = after(text, "double_buffer(D)")
    assert "D[t+1,c] = A[i,8t+c+8] if t+1<2" in show(program) and "D[t,c] D[t,c]" in show(program)
    assert_same_values(text, program, exact=True)


def test_a_filling_that_computes_runs_ahead_as_well() -> None:
    text = ROWS.replace("D[c] = A[i,8t+c]", "D[c] = exp(A[i,8t+c])*t")
    program = after(text, "double_buffer(D)")
    assert "exp(A[i,8t+c+8])*(t+1)" in show(program)
    assert_same_values(text, program, exact=True)


def test_shared_tiles_of_a_kernel_are_doubled_in_shared_memory() -> None:
    text = (
        "b:4 t:3 x:8\nA:f32[b,24] -> C:f32[b,x]\n"
        "B^bx_b L_t [\n  D:f32.s[x]\n  B^tx_x D[x] = A[b,8t+x]\n  B^tx_x C[b,x] += D[7-x]\n]\n"
    )
    program = after(text, "double_buffer(D)", target="cuda")
    assert "D:f32.s[2,x]" in show(program)
    assert "__shared__ alignas(64) float D_ptr[16]" in cuda_source(program)
    assert_same_values(text, program, exact=True)


@pytest.mark.parametrize(
    "text, code, part",
    [
        (ROWS.replace("L_i,t", "L_i P_t"), "kind", "P_t"),
        (ROWS.replace("t:4", "t:1"), "kind", "L_t has 1 iteration,"),
        (ROWS.replace("D[c] = A", "D[c] += A"), "structure", "accumulates from its first equation on"),
        (ROWS.replace("8t+c", "c"), "no_effect", "every iteration of t fills it alike"),
        (
            ROWS.replace("  L_c C[i] += D[c] D[c]\n", "  L_c D[c] = 0\n  L_c C[i] += D[c] D[c]\n"),
            "structure",
            "one statement",
        ),
        (ROWS.replace("  L_c C[i] += D[c] D[c]\n", "  C[i] += A[i,t]\n"), "structure", "others that use it"),
        (ROWS.replace("A[i,8t+c]", "A[i,8t+c]*C[i]"), "dependence", "filled from C, which t writes"),
        (
            ROWS.replace("  L_c D[c] = A[i,8t+c]\n", "  L_c [\n    D[c] = A[i,8t+c]\n    C[i] += D[c]\n  ]\n"),
            "structure",
            "writes C too",
        ),
        (
            ROWS.replace("  L_c D[c] = A[i,8t+c]\n", "  L_c [\n    E:f32.l\n    E = A[i,8t+c]\n    D[c] = E*E\n  ]\n"),
            "structure",
            "writes E too",
        ),
        (ROWS.replace("A[i,8t+c]", "A[i,8t+c] if A[i,8t]>0"), "structure", "a guard reads A"),
        (ROWS.replace("A[i,8t+c]", "A[i,8t+c] if t>=1"), "structure", "first iteration fills nothing"),
        (ROWS.replace("\nL_i,t [\n  D:f32.l[c]", "; D:f32[c]\nL_i,t ["), "scope", "no loop declares it"),
    ],
)
def test_a_tile_that_cannot_run_ahead_is_refused(text: str, code: str, part: str) -> None:
    refusal = refused(text, "double_buffer(D)")
    assert refusal.code == code and part in refusal.sentence


def test_buffers_have_a_limit_of_size() -> None:
    text = (
        "t:2 c:2000000\nA:f32[4000000] -> C:f32\nL_t [\n  D:f32.l[c]\n  L_c D[c] = A[2000000t+c]\n  L_c C += D[c]\n]\n"
    )
    assert refused(text, "double_buffer(D)").code == "size"
    shared = (
        "b:4 t:3 x:8192\nA:f32[b,24576] -> C:f32[b,x]\n"
        "B^bx_b L_t [\n  D:f32.s[x]\n  L_x D[x] = A[b,8192t+x]\n  L_x C[b,x] += D[8191-x]\n]\n"
    )
    refusal = refused(shared, "double_buffer(D)")
    assert refusal.code == "size" and "65,536 bytes of shared tensors" in refusal.sentence


def test_a_kernel_keeps_its_tile_inside() -> None:
    text = "t:4 c:8\nA:f32[32] -> C:f32[c]\nB^tx_c C[c] = A[c]\n"
    tiled = text + "L_t [\n  D:f32.s[c]\n  B^tx_c D[c] = A[8t+c]\n  B^tx_c C[c] += D[c]\n]\n"
    assert refused(tiled, "double_buffer(D)").code == "scope"


def test_the_menu_offers_each_tile_once() -> None:
    program = after(MATMUL, *TILES)
    offered = [str(a) for a in strategies.legal(program) if a.name == "double_buffer"]
    assert offered == ["double_buffer(D)", "double_buffer(E)"]
    text = strategies.rationale(program, parse_action("double_buffer(D)"))
    assert "40 elements" in text and "320 bytes" in text
    assert not [a for a in strategies.legal(parse(MATMUL)) if a.name == "double_buffer"]
