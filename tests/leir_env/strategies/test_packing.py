"""Packed arrays: their order, their tails, and what is left alone."""

import numpy as np
import pytest

from envs.common.actions import Action, parse_action
from envs.leir_env import strategies
from envs.leir_env.build import build
from envs.leir_env.generate import random_inputs
from envs.leir_env.interp import run
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from tests.leir_env.strategies.test_layouts import apply, refused

TILED = (
    "io,ji:4 ii:3 jo:2 k:5\nA:f32[12,k] B:f32[k,8] -> C:f32[12,8]\n"
    "L_io,jo,k,ii,ji C[3io+ii,4jo+ji] += A[3io+ii,k] B[k,4jo+ji]\n"
)


def test_a_tile_is_packed_in_the_order_of_the_loops_below() -> None:
    assert show(apply(TILED, "array_packing(A, io)")) == (
        "io,ji:4 k:5 ii:3 jo:2\nA:f32[12,k] B:f32[k,8] -> C:f32[12,8]\nL_io [\n"
        "  D:f32.l[k,ii]\n"
        "  L_k,ii D[k,ii] = A[3io+ii,k]\n"
        "  L_jo,k,ii,ji C[3io+ii,4jo+ji] += D[k,ii] B[k,4jo+ji]\n]\n"
    )


def test_loops_that_count_like_digits_get_a_dimension_each() -> None:
    text = (
        "g,i:3 jo:2 k:5 ji:4\nA:f32[i,k] B:f32[g,k,8] -> C:f32[g,i,8]\n"
        "L_g,jo,i,k,ji C[g,i,4jo+ji] += A[i,k] B[g,k,4jo+ji]\n"
    )
    after = show(apply(text, "array_packing(B, g)"))
    assert "  D:f32.l[jo,k,ji]\n  L_jo,k,ji D[jo,k,ji] = B[g,k,4jo+ji]\n" in after
    assert "+= A[i,k] D[jo,k,ji]" in after


def test_windows_that_overlap_are_packed_without_copies_of_an_element() -> None:
    text = "g:2 j,p:3 m:4\nA:f32[g,6,j] -> C:f32[g,m,j]\nL_g,j,m,p C[g,m,j] += A[g,m+p,j]\n"
    after = show(apply(text, "array_packing(A, g)"))
    assert "D:f32.l[j,c]" in after and "+= D[j,m+p]" in after


def test_a_loop_that_runs_backwards_is_packed_from_the_first_element() -> None:
    text = "g,r:2 j:3 m:4\nA:f32[g,4,j] -> C:f32[g,j]\nL_g,r,j,m C[g,j] += A[g,3-m,j]\n"
    after = show(apply(text, "array_packing(A, g)"))
    assert "D[j,3-m]" in after or "D[j,-m+3]" in after


def test_a_ragged_tile_is_copied_only_where_it_exists() -> None:
    text = TILED.replace("A:f32[12,k]", "A:f32[11,k]").replace("C:f32[12,8]", "C:f32[11,8]")
    text = text.replace("B[k,4jo+ji]\n", "B[k,4jo+ji] if 3io+ii<11\n")
    after = apply(text, "array_packing(A, io)")
    assert "D[k,ii] = A[3io+ii,k] if 3io+ii<11" in show(after)
    inputs = random_inputs(after, np.random.default_rng(3))
    np.testing.assert_allclose(build(after).run(inputs)["C"], run(after, inputs)["C"], rtol=1e-5, atol=1e-5)


def test_a_parallel_loop_packs_for_each_iteration() -> None:
    after = apply(TILED.replace("L_io,jo", "P_io L_jo"), "array_packing(A, io)")
    inputs = random_inputs(after, np.random.default_rng(3))
    np.testing.assert_allclose(build(after).run(inputs)["C"], run(after, inputs)["C"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "action", "code"),
    [
        (TILED, "array_packing(B, jo)", "no_effect"),
        (TILED, "array_packing(B, io)", "no_effect"),
        (TILED, "array_packing(C, io)", "scope"),
        (TILED.replace("ii,ji C", "ii V_ji C"), "array_packing(A, ji)", "scope"),
        (TILED.replace("A[3io+ii,k] B", "A[3io+ii,k]*A[3io+ii,0] B"), "array_packing(A, io)", "structure"),
        (TILED.replace("L_io,jo,", "B^bx_io B^tx_jo L_"), "array_packing(A, io)", "kind"),
        ("g:2 i,j:4\nA:f32[10,9] -> C:f32[g]\nL_g,i,j C[g] += A[j*i,i+g]\n", "array_packing(A, g)", "structure"),
        (
            "g,r:2 i:3 j:4\nA:f32[4,i,9] M:i32[g] -> C:f32[g]\nL_g,r,j,i C[g] += A[M[g],i,j]\n",
            "array_packing(A, g)",
            "structure",
        ),
        (
            "g,r:2 i,j:1500\nA:f32[g,i,j] -> C:f32[g]\nL_g,r,j,i C[g] += A[g,i,j]\n",
            "array_packing(A, g)",
            "size",
        ),
        (TILED.replace("A[3io+ii,k] B", "B"), "array_packing(A, io)", "no_effect"),
    ],
)
def test_what_is_not_packed_says_why(text: str, action: str, code: str) -> None:
    assert refused(text, action).code == code


def test_only_what_is_read_again_and_again_is_in_the_menu() -> None:
    once = "g:3 i:4 j:5\nA:f32[g,j,i] -> C:f32[g,i]\nL_g,i,j C[g,i] += A[g,j,i]\n"
    action = Action("array_packing", ("A", "g"))
    assert action not in strategies.legal(parse(once))
    apply(once, str(action))
    assert Action("array_packing", ("A", "io")) in strategies.legal(parse(TILED))


def test_the_rationale_tells_the_shape() -> None:
    assert strategies.rationale(parse(TILED), parse_action("array_packing(A, io)")) == (
        "Pack the 15 elements (60 bytes) of A that one iteration of io reads into a contiguous buffer of 5x3, in the "
        "order in which the loops below pass them."
    )
