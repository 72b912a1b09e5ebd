"""LLaMEA as the designer, our sandbox as its evaluator.

    from llamea import LLaMEA
    study = LLaMEA(evaluator(sandbox), llm=..., budget=100, minimization=False, role_prompt=ROLE,
                   task_prompt=CONTRACT.format(example=render(EXAMPLE)))
    study.run()

LLaMEA is no dependency: it brings more than a gigabyte of packages, one of which overwrites a library of torch. Install
it in an environment of its own, with `pip install llamea`. A hanging or greedy program ends in our process, not in its.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from training.design.race import RUNGS, race
from training.design.sandbox import Sandbox


class Solution(Protocol):
    """What LLaMEA hands over: it has the program as `code`, and takes the verdict."""

    code: str

    def set_scores(self, fitness: float, feedback: str, error: str = "") -> Any:
        """Take the fitness, what to tell the model, and what went wrong."""
        ...


def evaluator(sandbox: Sandbox, repeats: int = RUNGS[1], seed: int = 0) -> Callable[..., Solution]:
    """The function `f` that LLaMEA calls with a solution; more is better, and minus infinity is a failure."""

    def evaluate(solution: Solution, *_: Any, **__: Any) -> Solution:
        result = race(sandbox, solution.code, (), seed, (repeats,))
        if result.failure:
            solution.set_scores(float("-inf"), f"It failed: {result.failure}", result.failure)
        else:
            spaces = ", ".join(f"{name} {value:.3f}" for name, value in (result.spaces or {}).items())
            solution.set_scores(result.rungs[-1].mean, f"Scores: {spaces}. 0 is random search, 1 the optimum.")
        return solution

    return evaluate
