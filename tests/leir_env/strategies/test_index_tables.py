"""Tables of subscripts: what they hold, where they stand, and what may not read them."""

import numpy as np
import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.build import build
from envs.leir_env.generate import random_inputs
from envs.leir_env.interp import run
from envs.leir_env.key import key
from envs.leir_env.lower import lower
from envs.leir_env.parser import parse
from envs.leir_env.printer import show, show_expression
from envs.leir_env.strategies.index_tables import computed_subscripts
from envs.leir_env.tree import equations
from envs.leir_env.verify import verify
from tests.leir_env.strategies.test_layouts import apply, refused

POOL = "i:4 m:6 p:3\nA:f32[i,13] -> B:f32[i,m]\nL_i,m,p B[i,m] max= A[i,2m+p]\n"
FUSED = "f:12 k:5\nA:f32[3,k] B:f32[k,4] -> C:f32[3,4]\nL_f,k C[f//4,f%4] += A[f//4,k] B[k,f%4]\n"


def test_a_window_is_read_through_a_table_of_its_places() -> None:
    assert show(apply(POOL, "precompute_indices(B; 1)")) == (
        "m:6 p:3 i:4\nA:f32[i,13] -> B:f32[i,m]; C:i32[m,p]\nL_m,p C[m,p] = 2m+p\nL_i,m,p B[i,m] max= A[i,C[m,p]]\n"
    )


def test_a_subscript_is_replaced_on_both_sides_and_lowers() -> None:
    after = apply(FUSED, "precompute_indices(C; 1)")
    assert "L_f,k C[D[f],f%4] += A[D[f],k] B[k,f%4]" in show(after)
    after = apply(after, "precompute_indices(C; 1)")
    assert "L_f,k C[D[f],E[f]] += A[D[f],k] B[k,E[f]]" in show(after)
    inputs = random_inputs(after, np.random.default_rng(0))
    np.testing.assert_allclose(build(after).run(inputs)["C"], run(after, inputs)["C"], rtol=1e-5, atol=1e-6)


def test_inlining_the_table_gives_the_program_back() -> None:
    after = apply(POOL, "precompute_indices(B; 1)")
    assert key(strategies.apply(after, parse_action("compute_inline(C)")).program) == key(parse(POOL))


def test_the_generated_code_loads_its_subscripts() -> None:
    text = str(lower(apply(POOL, "precompute_indices(B; 1)")).body)
    assert "* 2" not in text.split("T.max")[1] and "C[" in text.split("T.max")[1]


def test_lanes_gather_through_a_table() -> None:
    text = "i:5 j:8\nA:f32[5,16] -> B:f32[i,j]\nL_i V_j B[i,j] = exp(A[i,15-(3j+i)%16])\n"
    after = apply(text, "precompute_indices(B; 1)")
    inputs = random_inputs(after, np.random.default_rng(0))
    np.testing.assert_allclose(build(after).run(inputs)["B"], run(after, inputs)["B"], rtol=1e-6)


def test_places_outside_the_tensor_stand_in_the_table_but_are_not_read() -> None:
    text = "i,j:4\nA:f32[4] -> B:f32[i,j]\nL_i,j B[i,j] = select(i+j>=2 and i+j<6,A[i+j-2],1.0)\n"
    after = apply(text, "precompute_indices(B; 1)")
    assert "C[i,j] = i+j-2" in show(after)
    inputs = random_inputs(after, np.random.default_rng(0))
    assert build(after).run(inputs)["B"].tobytes() == run(after, inputs)["B"].tobytes()
    guarded = "i,j:4\nA:f32[4] -> B:f32[i]\nL_i,j B[i] += A[i+j-2] if i+j>=2 and i+j<6\n"
    apply(guarded, "precompute_indices(B; 1)")


def test_what_takes_work_is_counted_in_order_of_appearance_each_once() -> None:
    text = (
        "i:3 j:4 k:8\nA:f32[8,32] B:f32[24] M:i32[40] -> C:f32[i,j,k]\n"
        "L_i,j,k C[i,j,k] = A[k,2k]+A[k-1+1,8j+k]*B[i*k]+B[max(i,k)]+A[k%4,8j+k]+B[M[i+1]]+f32(k//2)\n"
    )
    (equation,) = equations(parse(text).body[0])
    assert [show_expression(subscript) for subscript in computed_subscripts(equation)] == [
        "8j+k",
        "i*k",
        "max(i,k)",
        "k%4",
    ]
    for number in range(1, 5):
        apply(text, f"precompute_indices(C; {number})")


def test_a_parallel_loop_may_not_write_through_a_table() -> None:
    refusal = refused(FUSED.replace("L_f,k", "P_f L_k"), "precompute_indices(C; 1)")
    assert refusal.code == "dependence" and "precompute subscript 1 of C: f carries" in refusal.sentence


def test_a_parallel_loop_may_read_through_one_what_it_does_not_write() -> None:
    apply(POOL.replace("L_i,m", "P_i L_m"), "precompute_indices(B; 1)")
    handed = "i:4 j:6\nA:f32[i,j] -> C:f32[i,j]; D:f32[i,j]\nP_i [\n  L_j D[i,j] = exp(A[i,j])\n"
    handed += "  L_j C[i,j] = D[i,5-j]+D[i,(j+i)%6]\n]\n"
    apply(handed, "precompute_indices(C; 1)")
    crossed = handed.replace("P_i", "L_i").replace("D[i,(j+i)%6]", "D[(i+j)//6*0+i,j]")
    apply(crossed, "precompute_indices(C; 1)")
    refusal = refused(crossed.replace("L_i", "P_i"), "precompute_indices(C; 1)")
    assert refusal.code == "dependence"


@pytest.mark.parametrize(
    ("text", "which", "code"),
    [
        (POOL, 2, "structure"),
        ("i:600000\nA:f32[300000] -> B:f32[i]\nL_i B[i] = A[i//2]\n", 1, "size"),
        ("i:100000 j:5\nA:f32[5] -> B:f32[j]\nL_i,j B[j] max= A[(i*i*i+j)%5]\n", 1, "size"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, which: int, code: str) -> None:
    assert refused(text, f"precompute_indices(B; {which})").code == code


def test_plain_subscripts_are_not_offered() -> None:
    text = "i,j:4\nA:f32[9,6] -> B:f32[i,j]\nL_i,j B[i,j] = A[2i,j+1]\n"
    names = {action.name for action in strategies.legal(parse(text))}
    assert "precompute_indices" not in names


def test_on_a_gpu_the_table_is_filled_by_a_kernel_of_its_own() -> None:
    text = "i:8 j:4\nA:f32[6] -> B:f32[i,j]\nB^bx_i B^tx_j B[i,j] = exp(A[(i+j)//2])\n"
    after = strategies.apply(parse(text), parse_action("precompute_indices(B; 1)")).program
    assert verify(after, "cuda") == ()
    assert show(after).splitlines()[2] == "B^bx_i B^tx_j C[i,j] = (i+j)//2"


def test_the_rationale_counts_the_work_that_is_saved() -> None:
    assert strategies.rationale(parse(POOL), parse_action("precompute_indices(B; 1)")) == (
        "Compute subscript 1 of B, 2m+p, once for its 18 places into a table of 72 bytes, in place of in each of "
        "72 iterations."
    )
