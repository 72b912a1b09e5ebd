"""Searches don't run dry on a space where neighbours are each other's neighbours."""

import numpy as np
import pytest

from agents.base import Budget, Ended, make_agent
from envs.autotune_env import suite
from envs.autotune_env.problem import TuningProblem


@pytest.mark.parametrize("agent", ["bfs", "dfs", "best-first", "chain"])
def test_a_tree_search_spends_its_budget(agent):
    result = make_agent(agent).solve(
        TuningProblem(suite.load("synthetic0/north")), Budget(60), np.random.default_rng(0)
    )
    assert result.ended is Ended.EVALUATIONS
