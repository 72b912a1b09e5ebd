"""The Gymnasium shell over a problem: episodes, rewards, masks, snapshots. It knows no problem in particular.

All that changes in an episode is one reference to a frozen `Episode`; so a snapshot is that reference,
and a fork a second shell around it.
"""

from __future__ import annotations

import functools
import json
import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from envs.common.actions import STOP, Action
from envs.common.collector import no_collection
from envs.common.evaluation import Evaluation
from envs.common.moves import Menu, Move, Offer, Reader
from envs.common.problem import Problem
from envs.common.reward import JUDGES, MAX_REFUSALS, REFUSED, Judge, Terms, Verdict, earned
from envs.common.trace import Trace, record

S = TypeVar("S")

REFUSED_STATUS = "refused"
"""The status of a step whose action did not apply."""


class RootFailed(RuntimeError):
    """The untouched program of a task could not be built, verified or timed: there is nothing to gain on."""


@dataclass(frozen=True, slots=True)
class Episode(Generic[S]):
    """Everything that an episode has come to, immutable."""

    problem: Problem[S]
    state: S
    root: Verdict
    """Of the root program."""
    verdict: Verdict
    """Of `state`."""
    parent: S | None = None
    """The state before the last move that was not refused."""
    actions: tuple[Action | None, ...] = ()
    """The moves made, refused ones left out; None stands for a rewriting."""
    verdicts: tuple[Verdict, ...] = ()
    """Of the root, and after each of `actions`."""
    last: Move[S] | None = None
    """The last choice, refused or not."""
    steps: int = 0
    refusals: int = 0
    terms: Terms = field(default_factory=Terms)
    """Of the last step."""
    collected: float = 0.0
    """The return so far."""
    terminated: bool = False
    truncated: bool = False

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[S]):
    """A moment of an environment, to go back to."""

    episode: Episode[S] | None
    rng: Mapping[str, Any] | None
    """State of the bit generator; None before the first seed or draw."""


class OptimizationEnv(gymnasium.Env[Any, Any], Generic[S]):
    """Improve a program step by step; the reward is the log of the speedup that a step gained.

    A subclass opens problems (`_open`), and says what is seen of a state (`_observe`, `_observation_space`)
    and how it is drawn (`_draw`).
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human", "html"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        task: Hashable,
        target: str,
        menu: Menu,
        reader: Reader,
        reward: str,
        max_steps: int,
        render_mode: str | None,
    ) -> None:
        choose(reward, JUDGES, "reward")
        if render_mode is not None:
            choose(render_mode, self.metadata["render_modes"], "render_mode")
        if max_steps < 1:
            raise ValueError(f"max_steps is at least 1, not {max_steps}")
        self.task, self.target, self.menu, self.reader = task, target, menu, reader
        self.reward, self.max_steps, self.render_mode = reward, max_steps, render_mode
        self._problems: dict[Hashable, Problem[S]] = {}
        self._episode: Episode[S] | None = None
        self._rng: Mapping[str, Any] | None = None
        self._spaces: dict[str, Space[Any]] = {}
        self._forked = False
        self._offer: Callable[[Problem[S], S], Offer] = _offers(menu)

    @abstractmethod
    def _open(self, task: Hashable) -> Problem[S]:
        """Open the problem of a task. Raises ValueError for a task that is none."""

    @abstractmethod
    def _observation_space(self) -> Space[Any]:
        """Make a fresh observation space."""

    @abstractmethod
    def _observe(self, episode: Episode[S], offer: Offer) -> Any:
        """Return what the agent sees."""

    @abstractmethod
    def _draw(self, episode: Episode[S], mode: str) -> str | None:
        """Render the episode; `human` writes to the terminal and returns None."""

    def _judge(self, problem: Problem[S]) -> Judge[S]:
        return JUDGES[self.reward](problem)

    # The spaces carry random state of their own, so that forks make theirs afresh, when asked.
    @property
    def action_space(self) -> Space[Any]:  # type: ignore[override]
        """The space of choices; sampling needs the mask to find a legal one."""
        return self._spaces.get("action") or self._spaces.setdefault("action", self.reader.space())

    @property
    def observation_space(self) -> Space[Any]:  # type: ignore[override]
        return self._spaces.get("observation") or self._spaces.setdefault("observation", self._observation_space())

    @property
    def np_random(self) -> np.random.Generator:
        """The generator seeded by `reset(seed=...)`; a fork continues where its parent stood."""
        if self._np_random is None and self._rng is not None:
            bits: Any = np.random.PCG64()
            bits.state = self._rng
            self._np_random = np.random.Generator(bits)
        return super().np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._np_random = value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode. `options={"workload": ...}` chooses another task, for this episode only."""
        super().reset(seed=seed)
        for name in options or {}:
            choose(name, ("workload",), "reset option")
        problem = self._problem((options or {}).get("workload", self.task))
        root = self._judge(problem)(problem.root)
        if root.failed:
            raise RootFailed(f"{problem.task}: the root program is {root.status}: {root.detail}")
        self._episode = Episode(problem, problem.root, root, root, verdicts=(root,))
        return self._seen(self._episode)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action; see the class for what a reward, a refusal and a failure are."""
        before = self.episode
        if before.over:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        with no_collection():
            offer = self._offer(before.problem, before.state)
            move = self.reader.read(before.problem, before.state, offer, action)
            after = self._refused(before, move) if move.state is None else self._moved(before, move, move.state)
            if not after.terminated and (after.steps >= self.max_steps or after.refusals >= MAX_REFUSALS):
                after = replace(after, truncated=True)
            self._episode = after
            observation, info = self._seen(after)
        return observation, after.terms.total, after.terminated, after.truncated, info

    def _refused(self, before: Episode[S], move: Move[S]) -> Episode[S]:
        return replace(
            before,
            last=move,
            steps=before.steps + 1,
            refusals=before.refusals + 1,
            terms=REFUSED,
            collected=before.collected + REFUSED.total,
        )

    def _moved(self, before: Episode[S], move: Move[S], state: S) -> Episode[S]:
        stops = move.action == STOP
        verdict = before.verdict if stops else self._judge(before.problem)(state)
        terms = earned(verdict, before.verdict, before.root, before.collected)
        return replace(
            before,
            state=state,
            parent=before.state,
            verdict=verdict,
            actions=(*before.actions, move.action),
            verdicts=(*before.verdicts, verdict),
            last=move,
            steps=before.steps + 1,
            terms=terms,
            collected=before.collected + terms.total,
            terminated=stops or verdict.failed,
        )

    @property
    def episode(self) -> Episode[S]:
        """The episode so far. Raises ResetNeeded before the first reset."""
        if self._episode is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        return self._episode

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which indices of the menu are legal now (the form that maskable policies ask for)."""
        episode = self.episode
        return self._offer(episode.problem, episode.state).mask.astype(np.bool_)

    def snapshot(self) -> Snapshot[S]:
        """Remember this moment, in constant time."""
        return Snapshot(self._episode, self._rng_state())

    def restore(self, snapshot: Snapshot[S]) -> None:
        """Go back to a moment of this environment or of one it was forked from, in constant time."""
        self._episode = snapshot.episode
        self._np_random, self._rng = None, snapshot.rng

    def fork(self) -> Self:
        """Return an independent environment at this moment; it shares caches and workers, and closes none."""
        twin = object.__new__(type(self))
        twin.__dict__.update(
            self.__dict__, _np_random=None, _rng=self._rng_state(), _spaces={}, _forked=True, spec=None
        )
        return twin

    def _rng_state(self) -> Mapping[str, Any] | None:
        return self._rng if self._np_random is None else self._np_random.bit_generator.state

    def trace(self) -> Trace:
        """The episode so far, refused actions left out. Raises ValueError where an agent wrote a program."""
        episode = self.episode
        actions = [action for action in episode.actions if action is not None]
        if len(actions) < len(episode.actions):
            raise ValueError("an episode with a program that an agent wrote has no trace of actions")
        found = [verdict.evaluation for verdict in episode.verdicts if verdict.evaluation is not None]
        return record(episode.problem, actions, found, self.target, dict(found[-1].environment) if found else {})

    def render(self) -> str | None:  # type: ignore[override]
        """Draw the program, what the last action changed, and the speedup."""
        return None if self.render_mode is None else self._draw(self.episode, self.render_mode)

    def close(self) -> None:
        """Close the problems that this environment opened."""
        if not self._forked:
            for problem in self._problems.values():
                problem.close()
        self._problems = {}

    def _problem(self, task: Hashable) -> Problem[S]:
        if task not in self._problems:
            self._problems[task] = self._open(task)
        return self._problems[task]

    def _seen(self, episode: Episode[S]) -> tuple[Any, dict[str, Any]]:
        offer = self._offer(episode.problem, episode.state)
        if self.render_mode == "human":
            self._draw(episode, "human")
        return self._observe(episode, offer), self._info(episode, offer)

    def _info(self, episode: Episode[S], offer: Offer) -> dict[str, Any]:
        verdict, move = episode.verdict, episode.last
        refused = move is not None and move.state is None
        timing = episode.root.evaluation and episode.root.evaluation.timing
        return {
            "action_mask": offer.mask.copy(),
            "actions": offer.texts,
            "legal": dict(offer.indices),
            "overflow": offer.overflow,
            "task": episode.problem.task,
            "key": episode.problem.key(episode.state),
            "status": REFUSED_STATUS if refused else str(verdict.status),
            "detail": move.refusal if move is not None and refused else verdict.detail,
            "evaluation": _published(verdict.evaluation),
            "speedup": _speedup(verdict, 0.0),
            "speedup_over_root": _speedup(verdict, episode.root.log_speedup or 0.0),
            "baseline": {
                "name": timing.baseline_name if timing else "default schedule, predicted",
                "root_speedup": _speedup(episode.root, 0.0),
            },
            "reward_terms": episode.terms.as_dict(),
        }


def _offers(menu: Menu) -> Callable[[Problem[S], S], Offer]:
    """The menus of states, the latest ones remembered."""
    remembered: Callable[..., Offer] = functools.lru_cache(maxsize=256)(
        lambda problem, state: menu.offer(problem.legal(state))
    )
    return remembered


def _published(evaluation: Evaluation | None) -> str:
    """The record as JSON, without the environment: its protocol names the seed of the oracle's inputs."""
    if evaluation is None:
        return ""
    return json.dumps({name: value for name, value in evaluation.to_json().items() if name != "environment"})


def _speedup(verdict: Verdict, reference: float) -> float | None:
    return None if verdict.log_speedup is None else math.exp(verdict.log_speedup - reference)


def choose(value: Any, known: Any, what: str) -> None:
    """Raise ValueError unless `value` is one of the known ones."""
    if value not in known:
        raise ValueError(f"{what} is one of {', '.join(known)}, not {value!r}")
