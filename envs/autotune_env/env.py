"""KernelTuner-v0, KernelTuner-Flat-v0 and KernelTuner-Local-v0: find the fastest configuration of a kernel in time.

    env = gymnasium.make("KernelTuner-v0", space="synthetic0/north")
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample(info["action_mask"]))

Evaluations are replayed from a record, on a virtual clock; an episode ends where the methodology's range does, and
its return is the performance score of the run (`score.run_score`): 1 is the optimum at once, 0 what random search
is expected to find.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Text

from envs.autotune_env import suite
from envs.autotune_env.choices import CHOICES, flat, make_choice
from envs.autotune_env.domain import NOWHERE, Mask, SpaceError
from envs.autotune_env.observe import (
    MAX_CHARACTERS,
    NONE,
    REPEATED,
    STATUSES,
    describe,
    fractions,
    observation_space,
    observe,
)
from envs.autotune_env.oracle import NOISES, Outcome, replay
from envs.autotune_env.reward import REWARDS, area, earned
from envs.autotune_env.score import Run, scale
from envs.autotune_env.session import Session
from envs.autotune_env.simulate import begin
from envs.autotune_env.space import Space
from envs.common.env import choose
from envs.common.moves import PRINTABLE

OBSERVATIONS = ("dict", "text")


class KernelTunerEnv(gymnasium.Env[Any, Any]):
    """Choose configurations; each costs what the record says, on a virtual clock, and the best so far counts.

    Arguments:
        space: `application/device`, an application (all its devices), a file, a `Space`, or several; an episode
            takes one of them at random, or that of `reset(options={"space": name})`. They share their parameters.
        split: `train` or `test` keeps the spaces on that side of the split by device.
        folder: where names are looked up, instead of among the spaces that ship.
        actions: `values`, one index for each parameter; `number`, that of a configuration; `move`, a change of the
            current configuration, back to the best, or on to a random one.
        observation: `dict` of arrays, or `text`. The optimum is in neither.
        reward: `score`, `credit` (the same return, paid when it is earned) or `log`; see `reward`.
        noise: `mean` of the recorded samples, or `resample`, one of them drawn at random. The reward is always
            about the mean of the configuration that looks best.
        budget: virtual seconds, instead of the methodology's cut-off.

    A choice that is no configuration costs a hundredth of a median evaluation; what was tried before is remembered
    and costs the decision only (1 ms). An episode terminates when the budget is spent: how much is left is part of
    what the agent sees, and nothing after it counts. No space can be tried out within its budget.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        space: suite.Source | Sequence[suite.Source] | None = None,
        split: str | None = None,
        folder: str | Path | None = None,
        actions: str = "values",
        observation: str = "dict",
        reward: str = "score",
        noise: str = "mean",
        budget: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        choose(actions, CHOICES, "actions")
        choose(observation, OBSERVATIONS, "observation")
        choose(reward, REWARDS, "reward")
        choose(noise, NOISES, "noise")
        if render_mode is not None:
            choose(render_mode, self.metadata["render_modes"], "render_mode")
        spaces = suite.resolve(space, split, Path(folder) if folder else None, noise == "resample")
        check_compatible(spaces, actions)
        self.spaces = {candidate.name: candidate for candidate in spaces}
        self.actions, self.observation, self.reward, self.noise = actions, observation, reward, noise
        self.budget, self.render_mode = budget, render_mode
        self._enter(spaces[0])
        self.action_space = self._choice.space()
        if observation == "text":
            self.observation_space = Text(MAX_CHARACTERS, charset=PRINTABLE)
        else:
            self.observation_space = observation_space(self.domain)
        self._session: Session | None = None
        self._over = False

    def _enter(self, space: Space) -> None:
        """Look up everything that depends on the space."""
        self.space, self.domain = space, space.domain
        self._choice = make_choice(self.actions, space.domain)
        self._scale = scale(space, self.budget)
        self._area = area(self._scale)
        self._losses = replay(space, self.noise).record[1]
        self._fractions = fractions(space.domain)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode. `options={"space": name}` says on which of the spaces."""
        super().reset(seed=seed)
        for name in options or {}:
            choose(name, ("space",), "reset option")
        wanted = (options or {}).get("space")
        if wanted is not None:
            choose(wanted, self.spaces, "space")
        elif len(self.spaces) > 1:
            wanted = list(self.spaces)[self.np_random.integers(len(self.spaces))]
        if wanted is not None:
            self._enter(self.spaces[wanted])
        self._session = begin(self.space, self.noise, self._scale.end, self.np_random)
        self._current = int(self.np_random.integers(len(self.space))) if self.actions == "move" else NOWHERE
        self._point, self._loss, self._over = 0, math.inf, False
        return self._seen(self._session, NONE, None, None)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Try what the action means; see the class for what it costs and earns."""
        session = self.session
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        choice, current = self._choice, self._current
        row = choice.read(action, session, current)
        refusal = choice.refusal(action, session, current) if row < 0 and self.observation == "text" else None
        repeated = row in session.seen
        outcome = session.evaluate(row)
        if row >= 0:
            self._current = row
        over = session.clock >= session.budget
        loss = self._losses[session.best] if session.best >= 0 else math.inf
        point = self._area.reached(session.clock)
        reward = earned(self.reward, self._area, self._point, point, self._loss, loss, over)
        self._point, self._loss, self._over = point, loss, over
        observation, info = self._seen(session, REPEATED if repeated else outcome.status, outcome, refusal)
        return observation, reward, over, False, info

    @property
    def session(self) -> Session:
        """The tuning session so far. Raises ResetNeeded before the first reset."""
        if self._session is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        return self._session

    def run(self) -> Run:
        """The episode so far as a run, which `score` takes."""
        session = self.session
        return Run(np.array(session.clocks), np.array([outcome.loss for outcome in session.seen.values()]))

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """The mask as one array, as maskable policies ask for it."""
        return flat(self._choice.mask(self.session, self._current))

    def conditional_mask(self, prefix: Sequence[int] = ()) -> Mask:
        """Which values the next parameter may take after those of `prefix`, for policies that choose in turn."""
        return self.domain.allowed(prefix)

    def refusal(self, action: Any) -> str | None:
        """Why an action would lead nowhere, as `code: sentence`, or None."""
        return self._choice.refusal(action, self.session, self._current)

    def render(self) -> str | None:  # type: ignore[override]
        """The session as text."""
        if self.render_mode is None:
            return None
        text = describe(self.space, self.session, self._current, NONE, None)
        if self.render_mode == "ansi":
            return text
        print(text, end="\n\n")
        return None

    def _seen(
        self, session: Session, status: int, outcome: Outcome | None, refusal: str | None
    ) -> tuple[Any, dict[str, Any]]:
        current = self._current
        observation: Any
        if self.observation == "text":
            observation = describe(self.space, session, current, status, refusal)
        else:
            observation = observe(self._fractions, session, current, status, outcome)
        if self.render_mode == "human":
            self.render()
        return observation, {
            "action_mask": self._choice.mask(session, current),
            "status": STATUSES[status],
            "row": current,
            "objective": None if outcome is None or outcome.status else abs(outcome.loss),
            "best": abs(session.loss) if session.best >= 0 else None,
            "seconds": session.clock,
            "evaluations": len(session.clocks),
            "space": self.space.name,
        }


def check_compatible(spaces: Sequence[Space], actions: str) -> None:
    """Refuse spaces that one agent can't act on in the same way. Raises `SpaceError` naming the first two."""
    first = spaces[0]
    for other in spaces[1:]:
        if not first.domain.same_parameters(other.domain):
            raise SpaceError(f"{first.name} and {other.name} have different parameters: make an environment for each")
        if actions == "number" and len(first) != len(other):
            raise SpaceError(
                f"{first.name} has {len(first):,} configurations, {other.name} has {len(other):,}: "
                f"a configuration has no number in both"
            )
    if len({space.name for space in spaces}) < len(spaces):
        raise SpaceError(f"two spaces are called {first.name}")
