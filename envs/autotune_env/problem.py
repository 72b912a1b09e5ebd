"""A recorded space as a problem for the search agents: states are configurations, moves change one value.

An action is written `set(; block_size_x, 64)`. The baseline is the median configuration, as in the performance score;
nothing that an agent sees before it evaluates comes from the record.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs.autotune_env.domain import NOWHERE, Domain, moves
from envs.autotune_env.score import RESAMPLES
from envs.autotune_env.space import UNITS, Space
from envs.autotune_env.space import Status as Recorded
from envs.common.actions import STOP, Action
from envs.common.evaluation import Check, Evaluation, Status, Timing

SCHEME = "kerneltuner"

SET = "set"

FAILED = {
    Recorded.CONSTRAINTS: Status.REJECTED,
    Recorded.COMPILE: Status.BUILD_FAILED,
    Recorded.RUNTIME: Status.CRASHED,
    Recorded.CORRECTNESS: Status.WRONG,
    Recorded.TIMEOUT: Status.TIMEOUT,
}

_SPELLABLE = re.compile(r"[A-Za-z0-9_.+-]+")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A state: a row of the domain."""

    row: int


class TuningProblem:
    """Find the best configuration of a recorded space.

    `start` is the row that searches begin at; by default the configuration in the middle of the domain.
    """

    def __init__(self, space: Space, start: int | None = None) -> None:
        self.space, self.domain = space, space.domain
        self.task = f"{SCHEME}://{space.name}"
        self.root = Configuration(middle(space.domain) if start is None else start)
        self._moves = moves(space.domain)
        self._actions = tuple(
            Action(SET, (), (spell(parameter.name, 0), spell(value, index)))
            for parameter in self.domain.parameters
            for index, value in enumerate(parameter.values)
        )
        self._places = {action: place for place, action in enumerate(self._actions)}

    @functools.cached_property
    def baseline(self) -> int:
        """The row of the median of the configurations that were measured."""
        measured = np.flatnonzero(self.space.correct)
        ranked = measured[np.argsort(self.space.losses[measured], kind="stable")]
        return int(ranked[(len(ranked) - 1) // 2])

    def legal(self, state: Configuration) -> tuple[Action, ...]:
        """`STOP`, then every change of one value that leads to a configuration, in the order of the parameters."""
        return (STOP, *(self._actions[place] for place in np.flatnonzero(self._moves[state.row] >= 0)))

    def refusal(self, state: Configuration, action: Action) -> str | None:
        """Why `action` does not apply, as `code: sentence`, or None."""
        if action == STOP:
            return None
        place = self._places.get(action)
        if place is None:
            return f"unknown_action: {action} is not set(; parameter, value) for a parameter and a value of {self.task}"
        if self._moves[state.row, place] != NOWHERE:
            return None
        position, index = self._parameter(place)
        indices = self.domain.configurations[state.row].tolist()
        if indices[position] == index:
            name = self.domain.parameters[position].name
            return f"no_effect: {name} is {self.domain.parameters[position].values[index]} already"
        return self.domain.why_not([*indices[:position], index, *indices[position + 1 :]])

    def _parameter(self, place: int) -> tuple[int, int]:
        """The parameter and the value that a move sets, by position."""
        ends = np.cumsum(self.domain.sizes)
        position = int(np.searchsorted(ends, place, side="right"))
        return position, place - int(ends[position] - self.domain.sizes[position])

    def apply(self, state: Configuration, action: Action) -> Configuration:
        """The configuration after a legal action. Raises ValueError for any other."""
        if action == STOP:
            return state
        refusal = self.refusal(state, action)
        if refusal is not None:
            raise ValueError(f"{action}: {refusal}")
        return Configuration(int(self._moves[state.row, self._places[action]]))

    def key(self, state: Configuration) -> str:
        """The configuration as Kernel Tuner's caches spell it."""
        return self.domain.label(state.row)

    def show(self, state: Configuration) -> str:
        """One line for each parameter."""
        return "".join(f"{name} = {value}\n" for name, value in self.domain.value_of(state.row).items())

    def evaluate(self, states: Sequence[Configuration]) -> list[Evaluation]:
        """Look the configurations up."""
        return [self._evaluate(state) for state in states]

    def _evaluate(self, state: Configuration) -> Evaluation:
        space, row = self.space, state.row
        seconds = dict(zip(("build", "check", "time", "tuner"), space.costs[row].astype(float).tolist(), strict=True))
        environment = {"device": space.device, "record": space.name}
        recorded = Recorded(space.status[row])
        if recorded is not Recorded.CORRECT:
            detail = f"recorded as failed: {recorded.label}"
            return Evaluation(self.key(state), FAILED[recorded], detail, seconds=seconds, environment=environment)
        return Evaluation(
            self.key(state),
            Status.OK,
            # The recording tuner compared the output; its errors were not kept.
            checks=(Check("recorded/output", 0.0, 0.0, bitwise=False),),
            timing=self._timing(row),
            root_ratio=self._root_ratio,
            seconds=seconds,
            environment=environment,
        )

    def _timing(self, row: int) -> Timing:
        """The samples as times; for an objective where more is better, as their inverse."""
        candidate, baseline = self._samples(row), self._samples(self.baseline)
        ratio = self.space.gain(float(self.space.values[row]), float(self.space.values[self.baseline]))
        low, high = _interval(candidate, baseline)
        # The interval is that of means, whose ratio the record states; rounding must not push it out.
        return Timing(
            tuple(candidate.tolist()),
            tuple(baseline.tolist()),
            "median configuration",
            ratio,
            min(low, ratio),
            max(high, ratio),
        )

    def _samples(self, row: int) -> np.ndarray:
        space = self.space
        values = space.values[[row]] if space.samples is None else space.samples[row].astype(np.float64)
        values = values[~np.isnan(values)]
        return 1 / values if space.higher_is_better else values * UNITS.get(space.unit, 1.0)

    @functools.cached_property
    def _root_ratio(self) -> float | None:
        value = float(self.space.values[self.root.row])
        return None if np.isnan(value) else self.space.gain(float(self.space.values[self.baseline]), value)

    def estimate(self, state: Configuration) -> float:
        """Nothing is known about a configuration before it is tried: as good as the baseline."""
        return 0.0

    def prior(self, state: Configuration, actions: Sequence[Action]) -> list[float]:
        """No rule of thumb holds for every kernel: all actions alike."""
        return [1.0] * len(actions)

    def plans(self, state: Configuration) -> tuple[tuple[Action, ...], ...]:
        """No ideas of its own."""
        return ()

    def close(self) -> None:
        """Hold nothing, close nothing."""


def spell(value: object, index: int) -> str:
    """A name or value as an argument of an action; one with other characters by its index, as `value.3`."""
    text = str(value)
    return text if _SPELLABLE.fullmatch(text) else f"value.{index}"


def middle(domain: Domain) -> int:
    """The configuration nearest to the middle of every parameter's values; the first of those equally near."""
    centre = (np.array(domain.sizes) - 1) / 2
    return int(np.argmin(np.abs((domain.configurations - centre) / centre).sum(axis=1)))


def _interval(candidate: np.ndarray, baseline: np.ndarray) -> tuple[float, float]:
    """Bootstrap the 95 % interval of the ratio of mean baseline to mean candidate; the two were not timed in pairs."""
    rng = np.random.default_rng(0)
    candidate, baseline = (
        values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
        for values in (candidate, baseline)
    )
    low, high = np.quantile(baseline / candidate, (0.025, 0.975))
    return float(low), float(high)
