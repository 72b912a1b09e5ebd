"""A run depends on its seed alone, and not on how Python happens to order sets in a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib, random, sys
from envs.leir_env.problem import LeirProblem

digest = hashlib.sha256()
problem = LeirProblem(sys.argv[1])
choice, state = random.Random(0), problem.root
for _ in range(4):
    actions = problem.legal(state)
    for told in (problem.show(state), actions, problem.plans(state), problem.prior(state, actions)):
        digest.update(repr(told).encode())
    digest.update(repr(problem.estimate(state)).encode())
    state = problem.apply(state, choice.choice(actions))
print(digest.hexdigest())
"""


@pytest.mark.parametrize("workload", ["attention", "layernorm", "conv2d_bn_relu"])
def test_menus_plans_and_estimates_are_the_same_in_every_process(workload):
    running = []
    for seed in ("0", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT, workload]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True))
    digests = {process.communicate()[0] for process in running}
    assert len(digests) == 1 and digests != {""}
