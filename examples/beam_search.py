"""Beam search on the problem behind LEIR-v0, then the trace it found, played in the environment.

python examples/beam_search.py softmax 16
"""

import sys

import gymnasium
import numpy as np

import leirgym  # noqa: F401  (registers the environments)
from agents.base import Budget, Event, Improved, make_agent
from envs.leir_env.problem import LeirProblem


def main(workload: str, evaluations: str) -> None:
    """Search, replay, and print the rewards, whose sum is the log of the speedup over the root."""
    problem = LeirProblem(workload)
    budget, rng = Budget(int(evaluations)), np.random.default_rng(0)
    result = make_agent("beam").solve(problem, budget, rng, report)

    env = gymnasium.make("LEIR-v0", workload=workload, actions="text", store=":memory:")
    observation, info = env.reset(seed=0)
    for action in result.actions:
        observation, reward, _, _, info = env.step(str(action))
        print(f"{action!s:40} reward {reward:+.3f}  {info['status']}")
    print(f"{observation}\nspeedup over the root: {info['speedup_over_root']:.1f}x")
    env.close()
    problem.close()


def report(event: Event) -> None:
    """Print each improvement as it is found."""
    if isinstance(event, Improved):
        print(f"evaluation {event.count}: {event.evaluation.speedup:.2f}x the default schedule")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["softmax", "16"])
