"""The default schedule, the recipes and the cost model: legal, exact, deterministic, and sensible."""

import numpy as np
import pytest

from envs.leir_env import strategies
from envs.leir_env.cost import estimate
from envs.leir_env.generate import random_inputs, random_program
from envs.leir_env.heuristic import prior
from envs.leir_env.interp import run
from envs.leir_env.ir import Kind, Program
from envs.leir_env.parser import parse
from envs.leir_env.recipes import plans
from envs.leir_env.schedule import default_schedule, default_steps
from envs.leir_env.strategies import Exactness
from envs.leir_env.tree import loops_below
from envs.leir_env.verify import verify
from envs.leir_env.workloads import load, names

MATMUL = "i,j,k:32\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n"
SOFTMAX = (
    "i:16 j:32\nA:f32[i,j] -> B:f32[i,j]; C,D:f32[i]\nL_i,j C[i] max= A[i,j]\n"
    "L_i,j D[i] += exp(A[i,j]-C[i])\nL_i,j B[i,j] = exp(A[i,j]-C[i])/D[i]\n"
)


def same_bits(before: Program, after: Program) -> bool:
    inputs = random_inputs(before, np.random.default_rng(0))
    expected, found = run(before, inputs), run(after, inputs)
    return all(expected[name].tobytes() == found[name].tobytes() for name in expected)


@pytest.mark.parametrize("name", names("basic"))
def test_the_default_schedule_of_a_shipped_workload_is_legal_exact_and_parallel(name: str) -> None:
    program = load(name).program
    here = program
    for action, after in default_steps(program):
        outcome = strategies.apply(here, action)
        assert outcome.program == after and outcome.exactness is Exactness.EXACT
        here = after
    assert verify(here) == ()
    assert any(loop.kind is Kind.PARALLEL for statement in here.body for loop in loops_below(statement))


@pytest.mark.parametrize("seed", range(20))
def test_the_default_schedule_keeps_every_bit(seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    assert same_bits(program, default_schedule(program))


@pytest.mark.parametrize("text", [MATMUL, SOFTMAX])
def test_every_action_of_a_plan_is_legal_and_the_values_stay(text: str) -> None:
    program = parse(text)
    found = plans(program)
    assert len(found) > 4
    for plan in found:
        here = program
        for action in plan:
            assert strategies.refusal(here, action) is None, f"{action} of {plan}"
            here = strategies.apply(here, action).program
        assert verify(here) == ()
        assert same_bits(program, here)


@pytest.mark.parametrize("seed", range(30))
def test_plans_of_any_program_are_legal(seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    for plan in plans(program):
        here = program
        for action in plan:
            here = strategies.apply(here, action).program
        assert verify(here) == ()


def test_some_plan_for_matmul_is_predicted_well_above_the_default_schedule() -> None:
    program = load("matmul_512").program
    base = estimate(default_schedule(program))
    ends = []
    for plan in plans(program):
        here = program
        for action in plan:
            here = strategies.apply(here, action).program
        ends.append(base / estimate(here))
    assert max(ends) > 1.5


@pytest.mark.parametrize("name", [name for name in names("basic") if name != "max_pool"])
def test_the_model_prefers_the_default_schedule_to_the_root(name: str) -> None:
    program = load(name).program
    assert estimate(default_schedule(program)) < estimate(program)


def test_the_model_knows_that_a_packed_register_tile_beats_the_default_and_the_default_the_root() -> None:
    root = load("matmul_512").program
    packed = parse(
        "jo:32 k:512 ji:16 io:128 ii:4\nA:f32[512,k] B:f32[k,512] -> C:f32[512,512]\n"
        "L_jo [\n  E:f32.l[k,ji]\n  L_k V_ji E[k,ji] = B[k,16jo+ji]\n"
        "  L_io,k U_ii V_ji C[4io+ii,16jo+ji] += A[4io+ii,k] E[k,ji]\n]\n"
    )
    assert estimate(packed) < estimate(default_schedule(root)) / 2 < estimate(root) / 20


def test_the_model_is_positive_and_repeats_itself() -> None:
    for seed in range(50):
        program = random_program(np.random.default_rng(seed))
        assert 0 < estimate(program) == estimate(program) < 1


def test_priors_are_positive_and_prefer_contiguous_lanes() -> None:
    program = load("gelu").program
    actions = strategies.legal(program)
    weights = dict(zip(map(str, actions), prior(program, actions), strict=True))
    assert min(weights.values()) > 0
    assert weights["loop_vectorization(j; 16)"] > weights["loop_vectorization(i; 16)"]
