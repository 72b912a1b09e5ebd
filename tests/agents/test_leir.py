"""Every agent on LEIR, with the cost model in the place of the machine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agents.base import AGENTS, Budget, make_agent
from envs.common.evaluation import Check, Evaluation, Status, Timing
from envs.leir_env.problem import LeirProblem

MATMUL = "i,j,k:32\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n"


class Predicted(LeirProblem):
    """Believes the cost model."""

    def evaluate(self, states):
        return [self._believe(state) for state in states]

    def _believe(self, state) -> Evaluation:
        ratio = math.exp(self.estimate(state))
        timing = Timing((1 / ratio,), (1.0,), "default_schedule", ratio, ratio, ratio)
        return Evaluation(self.key(state), Status.OK, "", (Check("normal/C", 0.0, 0.0, True),), timing)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_finds_a_legal_trace_that_verifies(name):
    problem = Predicted(MATMUL, check=True)
    result = make_agent(name).solve(problem, Budget(8, expansions=12), np.random.default_rng(0))
    state = problem.root
    for action in result.actions:
        assert problem.refusal(state, action) is None
        state = problem.apply(state, action)
    assert result.evaluation is not None and problem.key(state) == result.evaluation.key
    assert all(check.passed for check in problem.interpret(state))


def test_the_model_guides_beam_far_beyond_the_default_schedule():
    result = make_agent("beam", width=3).solve(Predicted(MATMUL), Budget(4), np.random.default_rng(0))
    assert result.curve[1] is not None and result.curve[1] > 1.5
