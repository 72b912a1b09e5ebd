"""Fast functions: their error, what they do at the ends of the range, and that they have to be asked for."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from envs.common.actions import parse_action
from envs.leir_env import cost, strategies
from envs.leir_env.build import Kernel, build, cuda_source
from envs.leir_env.env import LeirEnv
from envs.leir_env.interp import run
from envs.leir_env.oracle import Oracle
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.problem import LeirProblem
from envs.leir_env.strategies import Exactness
from envs.leir_env.strategies.fast_math import FAST
from envs.leir_env.verify import verify

SOFTMAX = (
    "i:8 j:64\nA:f32[i,j] -> C:f32[i,j]; D,E:f32[i]\n"
    "L_i,j D[i] max= A[i,j]\n"
    "L_i,j E[i] += exp(A[i,j]-D[i])\n"
    "L_i,j C[i,j] = exp(A[i,j]-D[i])/E[i]\n"
)
ACTION = parse_action("fast_math(C; exp)")

EXACT = {
    "exp": np.exp,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}

LEAST_NORMAL = 2.0**-125
"""Results below may be zero."""


def kernel(function: str, count: int) -> Kernel:
    return build(
        parse(f"i:{count // 16} j:16\nA:f32[{count}] -> C:f32[{count}]\nL_i V_j C[16i+j] = fast_{function}(A[16i+j])\n")
    )


def samples() -> npt.NDArray[Any]:
    rng = np.random.default_rng(0)
    parts = [
        rng.uniform(-110, 110, 2**16),
        rng.normal(size=2**16),
        np.exp(rng.uniform(-90, 5, 2**16)) * rng.choice([-1, 1], 2**16),
        np.linspace(-10, 10, 2**16),
    ]
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize("function", FAST)
def test_a_fast_function_stays_below_its_stated_error(function: str) -> None:
    x = samples()
    found = kernel(function, x.size).run({"A": x})["C"].astype(np.float64)
    with np.errstate(over="ignore"):
        exact = EXACT[function](x.astype(np.float64))
    finite = np.abs(exact) <= np.finfo(np.float32).max
    normal = finite & (np.abs(exact) >= LEAST_NORMAL)
    spacing = np.spacing(np.abs(exact[normal]).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(found - exact)[normal] / spacing) < FAST[function].ulps
    assert np.max(np.abs(found - exact)[finite & ~normal], initial=0) <= LEAST_NORMAL
    assert np.all(np.isinf(found[~finite]))


@pytest.mark.parametrize(
    "function, at",
    [
        ("exp", {np.inf: np.inf, -np.inf: 0.0, 200.0: np.inf, -200.0: 0.0, 0.0: 1.0, 3e38: np.inf, -3e38: 0.0}),
        ("tanh", {-0.0: -0.0}),
        ("erf", {-0.0: -0.0}),
        ("sigmoid", {np.inf: 1.0, -np.inf: 0.0, 0.0: 0.5, 200.0: 1.0, -200.0: 0.0}),
    ],
)
def test_the_ends_of_the_range_are_exact(function: str, at: dict[float, float]) -> None:
    x = np.resize(np.array([*at, np.nan], np.float32), 16 * (len(at) + 1))
    found = kernel(function, x.size).run({"A": x})["C"]
    for number, (argument, value) in enumerate(at.items()):
        assert found[number] == value and np.signbit(found[number]) == np.signbit(value), argument
    assert np.isnan(found[len(at)])


def test_every_call_of_the_equation_is_replaced_and_no_other() -> None:
    head = "i:4\nA:f32[i] -> B,C:f32[i]\n"
    text = head + "L_i B[i] = exp(A[i])\nL_i C[i] = select(exp(A[i])<2.0,exp(A[i])+tanh(exp(A[i])),A[i])\n"
    after = strategies.apply(parse(text), parse_action("fast_math(C; exp)"))
    assert after.exactness is Exactness.APPROXIMATE
    # What is compared decides, and an error there could change which is chosen.
    assert show(after.program).splitlines()[-1] == (
        "L_i C[i] = select(exp(A[i])<2.0,fast_exp(A[i])+tanh(fast_exp(A[i])),A[i])"
    )
    assert show(after.program).splitlines()[-2] == "L_i B[i] = exp(A[i])"
    again = strategies.refusal(after.program, parse_action("fast_math(C; exp)"), approximate=True)
    assert again is not None and again.code == "structure"


def test_float64_has_no_fast_form() -> None:
    found = parse("i:4\nA:f64[i] -> C:f64[i]\nL_i C[i] = exp(A[i])\n")
    refusal = strategies.refusal(found, ACTION, approximate=True)
    assert refusal is not None and refusal.code == "kind" and "f64" in refusal.sentence


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_generated_code_stays_within_the_oracles_bounds(dtype: str) -> None:
    text = (
        f"i,j:16\nA:{dtype}[i,j] -> C:{dtype}[i,j]\n"
        "L_i V_j C[i,j] = tanh(A[i,j])+sigmoid(A[i,j])*erf(A[i,j])+exp(-abs(A[i,j]))\n"
    )
    before = parse(text)
    after = before
    for function in FAST:
        after = strategies.apply(after, parse_action(f"fast_math(C; {function})")).program
    assert verify(after) == () and parse(show(after)) == after
    oracle, built = Oracle(before), build(after)
    from envs.leir_env.inputs import draw

    for name in oracle.sets:
        (check,) = oracle.judge(name, (built.run(draw(before, name, 0))["C"],), Exactness.APPROXIMATE)
        assert check.passed, name


def test_the_meaning_of_a_fast_function_is_the_exact_one() -> None:
    before = parse(SOFTMAX)
    after = strategies.apply(before, ACTION).program
    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    assert run(after, {"A": x})["C"].tobytes() == run(before, {"A": x})["C"].tobytes()


def test_the_cost_model_knows_that_it_is_faster() -> None:
    for function in FAST:
        text = f"i:64 j:8\nA:f32[512] -> C:f32[512]\nL_i V_j C[8i+j] = {function}(A[8i+j])\n"
        before = parse(text)
        after = strategies.apply(before, parse_action(f"fast_math(C; {function})")).program
        assert cost.estimate(after) < cost.estimate(before)


def test_a_kernel_for_a_gpu_calls_the_library() -> None:
    text = "i:4 j:32\nA:f32[i,j] -> C:f32[i,j]\nB^bx_i B^tx_j C[i,j] = fast_exp(A[i,j])\n"
    assert "exp" in cuda_source(parse(text))


def test_approximate_strategies_are_offered_to_those_who_ask_only() -> None:
    program = parse(SOFTMAX)
    assert ACTION not in strategies.legal(program)
    assert ACTION in strategies.legal(program, approximate=True)
    refusal = strategies.refusal(program, ACTION)
    assert refusal is not None and refusal.code == "approximate"
    assert strategies.refusal(program, ACTION, approximate=True) is None


def test_a_problem_and_an_environment_pass_the_wish_on() -> None:
    strict, loose = LeirProblem(SOFTMAX), LeirProblem(SOFTMAX, approximate=True)
    assert ACTION not in strict.legal(strict.root) and ACTION in loose.legal(loose.root)
    assert "approximate" in (strict.refusal(strict.root, ACTION) or "")
    assert loose.apply(loose.root, ACTION).exactness is Exactness.APPROXIMATE
    for approximate in (False, True):
        env = LeirEnv(SOFTMAX, reward="model", actions="text", approximate=approximate)
        env.reset(seed=0)
        observation, *_ = env.step(str(ACTION))
        assert ("fast_exp" in observation) is approximate
