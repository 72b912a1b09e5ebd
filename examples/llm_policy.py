"""A policy in the place of a language model: it reads the prompt, reasons, and names a strategy call.

python examples/llm_policy.py softmax 6
"""

import re
import sys

import numpy as np

from agents.base import Budget, Event, Improved, Refused
from agents.llm.adviser import Adviser
from agents.llm.agent import LLMAgent
from agents.llm.formatter import Form, Formatter
from agents.llm.policy import Conversation, Scripted
from envs.leir_env.problem import LeirProblem

LIKED = ("loop_vectorization", "loop_reorder", "operator_fusion", "loop_split")


def think(conversation: Conversation) -> str:
    """Prefer, of the legal actions in the prompt, strategies in the order of `LIKED`."""
    menu = conversation[-1].content.partition("Legal actions:")[2]
    for name in LIKED:
        if call := re.search(rf"^{name}\(.*\)$", menu, re.MULTILINE):
            return f"Of all that is legal, {name} promises most.\nAnswer: {call[0]}"
    return "Nothing that I know applies.\nAnswer: stop()"


def main(workload: str, evaluations: str) -> None:
    """Play, and print each improvement and refusal."""
    adviser = Adviser(Scripted(think), Formatter(Form.CALL, reasoning=True))
    problem = LeirProblem(workload)
    result = LLMAgent(adviser).solve(problem, Budget(int(evaluations)), np.random.default_rng(0), report)
    print(f"{result.counts.evaluations} evaluations, ended: {result.ended}")
    print(*result.actions, sep="\n")
    problem.close()


def report(event: Event) -> None:
    """Print what matters."""
    if isinstance(event, Improved):
        print(f"evaluation {event.count}: {event.evaluation.speedup:.2f}x the default schedule")
    if isinstance(event, Refused):
        print(f"refused: {event.reason}")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["softmax", "6"])
