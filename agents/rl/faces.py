"""How a problem looks to a policy: the numbers that its environment shows, and the menu of its actions.

A policy is trained in an environment and plays on the problem core. What it sees there must be what it saw in
training; tests compare the two at every step. `FACES` is the only place that knows an environment by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from agents.base import factory
from agents.rl.network import Floats, Policy, PolicyError, squash
from envs.common.moves import Menu
from envs.common.problem import Problem

FACES: dict[str, str] = {"LEIR-v0": "agents.rl.leir:LeirFace"}
"""By the id of the environment, as `module:factory`; a factory takes the environment's arguments."""


class Face(Protocol):
    """What a policy sees of the problems of one environment."""

    @property
    def menu(self) -> Menu:
        """The numbering of actions."""
        ...

    def why_not(self, problem: Problem[Any]) -> str | None:
        """Why the face does not fit a problem, as one sentence, or None."""
        ...

    def see(self, problem: Problem[Any], state: Any, progress: float) -> Mapping[str, Any]:
        """The numbers in the environment's observation, by name; `progress` is the part of the episode that is over."""
        ...


def face_for(policy: Policy, problem: Problem[Any]) -> Face:
    """The face by which a policy acts on a problem. Raises `PolicyError` where it can't."""
    if policy.environment not in FACES:
        raise PolicyError(
            f"a policy of {policy.environment} plays in its environment only; "
            f"those of {', '.join(FACES)} search problems"
        )
    face: Face = factory("face", FACES, policy.environment)(policy.arguments)
    if list(policy.blocks.items()) != list(face.menu.blocks.items()):
        raise PolicyError(f"the policy was trained on another menu of {policy.environment}: train it again")
    reason = face.why_not(problem)
    if reason is not None:
        raise PolicyError(f"a policy of {policy.environment} does not act on {problem.task}: {reason}")
    return face


def vector(seen: Mapping[str, Any]) -> Floats:
    """The numbers of an observation as one squashed vector, in the order of their names."""
    return squash(np.concatenate([seen[name] for name in sorted(seen)]))
