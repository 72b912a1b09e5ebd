"""Short ways to say what tests of strategies say most."""

from __future__ import annotations

import numpy as np

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.build import build
from envs.leir_env.generate import random_inputs
from envs.leir_env.interp import run
from envs.leir_env.ir import DType, Program
from envs.leir_env.parser import parse
from envs.leir_env.strategies import Exactness, Refusal
from envs.leir_env.verify import verify


def after(text: str, *actions: str, target: str = "llvm") -> Program:
    """The program after some actions, each of which must leave a well-formed one."""
    program = parse(text)
    assert verify(program, target) == ()
    for action in actions:
        program = strategies.apply(program, parse_action(action)).program
        assert verify(program, target) == ()
    return program


def refused(text: str, action: str, *before: str) -> Refusal:
    """Why an action is refused, after some others."""
    program = parse(text)
    for other in before:
        program = strategies.apply(program, parse_action(other)).program
    refusal = strategies.refusal(program, parse_action(action))
    assert refusal is not None
    return refusal


def exactness(text: str, action: str) -> Exactness:
    return strategies.apply(parse(text), parse_action(action)).exactness


def assert_same_values(text: str, program: Program, exact: bool = False) -> None:
    """Both compute the same: bit for bit, or over the reals."""
    original = parse(text)
    inputs = random_inputs(original, np.random.default_rng(0))
    dtype = None if exact else DType.F64
    expected, found = run(original, inputs, dtype), run(program, inputs, dtype)
    for name, values in expected.items():
        if exact:
            assert found[name].tobytes() == values.tobytes()
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=1e-11)


def assert_built_agrees(program: Program) -> None:
    """The compiled program computes what the interpreter does, up to rounding."""
    inputs = random_inputs(program, np.random.default_rng(1))
    expected, found = run(program, inputs), build(program).run(inputs)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)
