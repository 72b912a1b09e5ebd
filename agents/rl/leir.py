"""LEIR programs as a policy sees them: the numbers of LEIR-v0's observations of kind `dict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.common.moves import Menu
from envs.common.problem import Problem
from envs.leir_env.env import menu_of
from envs.leir_env.observe import features
from envs.leir_env.problem import LeirState
from envs.leir_env.workloads import SCHEME


@dataclass(frozen=True, slots=True)
class LeirFace:
    """The face of problems whose states are LEIR programs."""

    arguments: Mapping[str, Any]
    """That LEIR-v0 was made with."""

    @property
    def menu(self) -> Menu:
        """That of the target."""
        return menu_of(self._target)

    @property
    def _target(self) -> str:
        return str(self.arguments["target"])

    def why_not(self, problem: Problem[Any]) -> str | None:
        """Why the face does not fit a problem, as one sentence, or None."""
        if problem.task.partition(":")[0] != SCHEME:
            return "it is not a LEIR program"
        target = getattr(problem, "target", self._target)
        return None if target == self._target else f"it is for {target}, the policy for {self._target}"

    def see(self, problem: Problem[LeirState], state: LeirState, progress: float) -> Mapping[str, Any]:
        """Features of the program, the cost model's estimate, progress."""
        return {
            "estimate": [problem.estimate(state)],
            "features": features(state.program),
            "progress": [progress],
        }
