"""Identities: which element they bring in, and when that would be unsafe."""

import numpy as np
import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.build import build
from envs.leir_env.generate import random_inputs
from envs.leir_env.inputs import draw
from envs.leir_env.interp import run
from envs.leir_env.ir import DType
from envs.leir_env.oracle import Oracle
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import Exactness
from envs.leir_env.verify import verify

TILES = (
    "i:3 j:4 k:5\nA:f32[i,20] -> C:f32[i,20]; D:f32[i,j] E:f32[i]\n"
    "L_i,j,k D[i,j] max= A[i,5j+k]\n"
    "L_i,j E[i] max= D[i,j]\n"
    "L_i,j,k C[i,5j+k] = exp(A[i,5j+k]-E[i])\n"
)
GATES = (
    "i:6 j:4\nA:f32[i,j] B:f32[i] -> C:f32[i,j]; D:f32[i] E:f32[i]\n"
    "L_i D[i] = sigmoid(B[i])+0.5\n"
    "L_i E[i] = tanh(B[i])\n"
    "L_i,j C[i,j] = A[i,j]\n"
)


def last(text: str, action: str) -> str:
    before = parse(text)
    assert verify(before) == ()
    after = strategies.apply(before, parse_action(action)).program
    assert verify(after) == ()
    inputs = random_inputs(before, np.random.default_rng(1))
    for name, wanted in run(before, inputs, DType.F64).items():
        np.testing.assert_allclose(run(after, inputs, DType.F64)[name], wanted, rtol=1e-12, atol=1e-12)
    return show(after).splitlines()[-1]


def refused(text: str, action: str) -> strategies.Refusal:
    before = parse(text)
    assert verify(before) == ()
    found = strategies.refusal(before, parse_action(action))
    assert found is not None
    return found


def test_an_exponential_is_split_at_the_maximum_of_its_tile() -> None:
    after = last(TILES, "exponential_split(C, D)")
    assert after == "L_i,j,k C[i,5j+k] = exp(A[i,5j+k]-D[i,j])*exp(D[i,j]-E[i])"


def test_the_whole_maximum_may_be_over_the_values_themselves() -> None:
    text = TILES.replace("L_i,j E[i] max= D[i,j]", "L_i,m E[i] max= A[i,m]").replace("k:5", "k:5 m:20")
    assert last(text, "exponential_split(C, D)").endswith("exp(A[i,5j+k]-D[i,j])*exp(D[i,j]-E[i])")


def test_combining_the_powers_undoes_the_split() -> None:
    before = parse(TILES)
    there = strategies.apply(before, parse_action("exponential_split(C, D)")).program
    assert strategies.apply(there, parse_action("powsimp(C; 1)")).program == before


@pytest.mark.parametrize(
    "text",
    [
        TILES.replace("max= A[i,5j+k]", "max= A[i,4j+k]"),  # other tiles
        TILES.replace("max= A[i,5j+k]", "min= A[i,5j+k]"),
        TILES.replace("max= A[i,5j+k]", "+= A[i,5j+k]"),
        TILES.replace("max= A[i,5j+k]\n", "max= A[i,5j+k] if k<4\n"),
        TILES.replace("max= A[i,5j+k]", "max= 2*A[i,5j+k]"),
        TILES.replace("E[i] max= D[i,j]", "E[i] max= tanh(D[i,j])"),
        TILES.replace("E[i] max= D[i,j]\n", "E[i] max= D[i,j] if j<3\n"),
        TILES.replace("E[i] max= D[i,j]", "E[i] += D[i,j]"),
        TILES.replace("L_i,j E[i] max= D[i,j]", "L_i,m E[i] max= A[i,m]").replace("k:5", "k:5 m:19"),
        TILES.replace("L_i,j,k C[", "L_i,j D[i,j] max= 1\nL_i,j,k C["),  # a second writer
    ],
)
def test_a_tensor_that_is_no_partial_maximum_splits_nothing(text: str) -> None:
    assert refused(text, "exponential_split(C, D)").code == "domain"


def test_a_maximum_that_is_not_finished_splits_nothing() -> None:
    text = (
        "i:3 j:4 k:5\nA:f32[i,20] -> C:f32[i,20]; D:f32[i,j] E:f32[i]\n"
        "L_i,j,k E[i] max= A[i,5j+k]\n"
        "L_i,j,k [\n  D[i,j] max= A[i,5j+k]\n  C[i,5j+k] = exp(A[i,5j+k]-E[i])\n]\n"
    )
    before = parse(text)
    assert verify(before) == ()
    # The running maximum includes the value just met, so it does lie in between.
    assert strategies.refusal(before, parse_action("exponential_split(C, D)")) is None
    swapped = text.replace(
        "  D[i,j] max= A[i,5j+k]\n  C[i,5j+k] = exp(A[i,5j+k]-E[i])\n",
        "  C[i,5j+k] = exp(A[i,5j+k]-E[i])\n  D[i,j] max= A[i,5j+k]\n",
    )
    assert refused(swapped, "exponential_split(C, D)").code == "domain"


def test_a_split_exponential_stays_within_the_oracles_bounds_for_large_values() -> None:
    before = parse(TILES)
    after = strategies.apply(before, parse_action("exponential_split(C, D)")).program
    oracle = Oracle(before)
    assert "large" in oracle.sets
    for name in oracle.sets:
        (check,) = oracle.judge(name, (run(after, draw(before, name, 0))["C"],), Exactness.REASSOCIATES)
        assert check.passed, name


def test_a_value_is_divided_and_multiplied_by_what_is_away_from_zero() -> None:
    assert last(GATES, "multiplicative_split(C, D)") == "L_i,j C[i,j] = A[i,j]/D[i]*D[i]"
    assert refused(GATES, "multiplicative_split(C, E)").code == "domain"
    assert refused(GATES, "multiplicative_split(C, B)").code == "domain"
    twice = show(strategies.apply(parse(GATES), parse_action("multiplicative_split(C, D)")).program)
    assert refused(twice, "multiplicative_split(C, D)").code == "no_effect"


def test_cancelling_undoes_the_multiplicative_split() -> None:
    before = parse(GATES)
    there = strategies.apply(before, parse_action("multiplicative_split(C, D)")).program
    assert strategies.apply(there, parse_action("cancellation(C; 1)")).program == before


def test_only_what_is_no_larger_is_added_and_subtracted() -> None:
    assert refused(GATES, "additive_split(C, E)").code == "domain"
    large = GATES.replace("C[i,j] = A[i,j]", "C[i,j] = A[i,j]*A[i,j]+1")
    assert last(large, "additive_split(C, E)") == "L_i,j C[i,j] = A[i,j] A[i,j]+1+E[i]-E[i]"
    assert refused(large, "additive_split(C, D)").code == "domain"  # up to 1.5
    before = parse(large)
    there = strategies.apply(before, parse_action("additive_split(C, E)")).program
    assert strategies.apply(there, parse_action("cancellation(C; 1)")).program == before


@pytest.mark.parametrize(
    "text, code",
    [
        (
            GATES.replace("L_i D[i] = sigmoid(B[i])+0.5\n", "") + "L_i D[i] = sigmoid(B[i])+0.5\n",
            "scope",
        ),  # not written yet
        (GATES.replace("D:f32[i]", "D:f64[i]").replace("D[i] = sigmoid(B[i])+0.5", "D[i] = 1.5"), "kind"),
        (GATES.replace("D:f32[i]", "D:f32[7]").replace("D[i] =", "D[i+1] =") + "L_j D[j] = 1.5\n", "scope"),
        (GATES.replace("L_i D[i] = sigmoid(B[i])+0.5", "L_i D[i] = sigmoid(B[i])+0.5 if i<3"), "scope"),
        (GATES.replace("sigmoid(B[i])+0.5", "sigmoid(B[i])"), "domain"),
        (GATES.replace("sigmoid(B[i])+0.5", "exp(B[i]*B[i])"), "domain"),
    ],
)
def test_an_element_without_its_final_value_or_a_safe_range_is_not_brought_in(text: str, code: str) -> None:
    assert refused(text, "multiplicative_split(C, D)").code == code


def test_an_element_read_under_a_condition_is_not_read_outside_it() -> None:
    text = "i:6\nA,B:f32[i] -> C:f32[i]; D:f32[i]\nL_i D[i] = sigmoid(B[i])+0.5\nL_i C[i] = select(i>=1,D[i-1],A[i])\n"
    assert last(text, "multiplicative_split(C, D)") == "L_i C[i] = select(i>=1,D[i-1],A[i])/D[i]*D[i]"


def test_a_private_tensor_is_not_read_outside_its_block() -> None:
    text = (
        "i:6 j:4\nA:f32[i,j] -> B,C:f32[i,j]\n"
        "L_i [\n  D:f32[j]\n  L_j D[j] = sigmoid(A[i,j])+0.5\n  L_j B[i,j] = D[j]*A[i,j]\n]\n"
        "L_i,j C[i,j] = A[i,j]\n"
    )
    assert refused(text, "multiplicative_split(C, D)").code == "scope"
    before = parse(text)
    after = strategies.apply(before, parse_action("multiplicative_split(B, D)")).program
    assert "B[i,j] = D[j] A[i,j]/D[j]*D[j]" in show(after)


def test_a_kernels_threads_do_not_read_what_others_write() -> None:
    text = (
        "i:6 j:4\nA:f32[i,j] -> C:f32[i,j]; D:f32[i,j]\n"
        "B^bx_i [\n  B^tx_j D[i,j] = sigmoid(A[i,j])+0.5\n  B^tx_j C[i,j] = A[i,j]\n]\n"
    )
    found = strategies.refusal(parse(text), parse_action("multiplicative_split(C, D)"))
    assert found is not None and found.code == "dependence"


def test_the_generated_code_agrees() -> None:
    for text, action in ((TILES, "exponential_split(C, D)"), (GATES, "multiplicative_split(C, D)")):
        before = parse(text)
        after = strategies.apply(before, parse_action(action)).program
        inputs = random_inputs(before, np.random.default_rng(0))
        np.testing.assert_allclose(build(after).run(inputs)["C"], run(before, inputs)["C"], rtol=1e-6, atol=1e-6)
