"""Programs that a model writes, as actions of the problem they were written for."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from envs.common.actions import Action
from envs.common.moves import Readable
from envs.common.problem import Problem

S = TypeVar("S")

REWRITE = "rewrite"
"""Name of the actions that lead to a written program: `rewrite(w1)` to the first that was accepted."""


class Rewritings(Generic[S]):
    """A problem in which every program that was accepted is an action that leads to it; otherwise the problem itself.

    Such an action applies in any state and means nothing outside this object: that a written program equals the
    root is for the evaluator to find out, and its trace is its text. Raises `ValueError` for a problem whose states
    can't be written down.
    """

    def __init__(self, problem: Problem[S]) -> None:
        if not hasattr(problem, "read"):
            raise ValueError(f"the states of {problem.task} can't be written down, only changed by actions")
        self._problem: Any = problem
        self._written: dict[str, tuple[Action, S]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def accept(self, text: str) -> Action | str:
        """The action that leads to the program `text`, or the sentence that says why it is none."""
        reader: Readable = self._problem
        state = reader.read(text)
        if isinstance(state, str):
            return state
        action = Action(REWRITE, (f"w{len(self._written) + 1}",))
        return self._written.setdefault(self._problem.key(state), (action, state))[0]

    def refusal(self, state: S, action: Action) -> str | None:
        """As the problem has it; a program that was accepted is never refused."""
        if action.name != REWRITE:
            refusal: str | None = self._problem.refusal(state, action)
            return refusal
        return None if action in self._states() else f"unknown_rewriting: no program {action} was written here"

    def apply(self, state: S, action: Action) -> S:
        """As the problem has it, or the written program."""
        states = self._states()
        after: S = states[action] if action in states else self._problem.apply(state, action)
        return after

    def _states(self) -> dict[Action, S]:
        return dict(self._written.values())


def written(actions: tuple[Action, ...]) -> bool:
    """Whether a model wrote a program on the way."""
    return any(action.name == REWRITE for action in actions)
