"""Thousands of tuning sessions at once, in NumPy: the same environment, step for step, as `KernelTunerEnv`.

    envs = gymnasium.make_vec("KernelTuner-v0", num_envs=1024, space="synthetic0/north")

An episode that is over begins anew at the next step, whose action is ignored and whose reward is 0 (Gymnasium's
`NEXT_STEP`). Masks are made on demand: `action_masks()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.autotune_env import suite
from envs.autotune_env.choices import CHOICES, make_choice
from envs.autotune_env.domain import NOWHERE, Mask, finder, moves
from envs.autotune_env.env import check_compatible
from envs.autotune_env.observe import BOUND, NONE, REPEATED, fractions, observation_space
from envs.autotune_env.oracle import NOISES, replay
from envs.autotune_env.reward import REWARDS, area
from envs.autotune_env.score import POINTS, Scale, scale
from envs.autotune_env.session import DECISION_SECONDS
from envs.autotune_env.simulate import refusal_seconds
from envs.autotune_env.space import Space, Status
from envs.common.env import choose

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Tables:
    """The records of several spaces, one after the other; a place is a row plus the base of its space."""

    def __init__(self, spaces: Sequence[Space], scales: Sequence[Scale], actions: str, noise: str) -> None:
        self.counts = np.array([len(space) for space in spaces])
        self.base = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        # One more place, at the end, stands for a choice that is no configuration.
        self.losses = np.append(np.concatenate([space.losses for space in spaces]), np.nan)
        self.seconds = np.append(np.concatenate([space.seconds for space in spaces]), np.nan)
        self.status = np.append(np.concatenate([space.status for space in spaces]), Status.CONSTRAINTS).astype(np.int64)
        tables = [fractions(space.domain) for space in spaces]
        self.fractions = np.concatenate([*(table[:-1] for table in tables), tables[0][-1:]])
        self.refusals = np.array([refusal_seconds(space) for space in spaces])
        self.budgets = np.array([scale.end for scale in scales])
        self.worst = np.array([scale.ranked[-1] for scale in scales])
        self.times = [scale.times for scale in scales]
        self.offsets = np.stack([area(scale).offsets for scale in scales])
        self.slopes = np.stack([area(scale).slopes for scale in scales])
        domains = [space.domain for space in spaces]
        first = domains[0]
        self.sizes, self.strides = np.array(first.sizes), np.array(first.strides)
        self.cartesian = first.cartesian
        if actions == "values":
            codes = np.concatenate([domain.codes + n * self.cartesian for n, domain in enumerate(domains)])
            self.find: Callable[[Ints], npt.NDArray[np.int32]] = finder(codes, len(spaces) * self.cartesian)
        if actions == "move":
            shifted = ((moves(domain), base) for domain, base in zip(domains, self.base, strict=True))
            self.moves = np.concatenate([np.where(table < 0, NOWHERE, table + base) for table, base in shifted])
        if noise == "resample":
            samples = [space.samples for space in spaces if space.samples is not None]
            width = max(table.shape[1] for table in samples)
            padded = [np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=np.nan) for t in samples]
            sign = -1.0 if spaces[0].higher_is_better else 1.0
            self.samples = sign * np.concatenate(padded).astype(np.float64)
            self.sample_counts = np.count_nonzero(self.samples == self.samples, axis=1)


class KernelTunerVectorEnv(VectorEnv[Any, Any, Any]):
    """`num_envs` sessions side by side; the other arguments are those of `KernelTunerEnv`.

    With several spaces, each episode takes one at random. Memory: one byte for each session and configuration.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        space: suite.Source | Sequence[suite.Source] | None = None,
        split: str | None = None,
        folder: str | Path | None = None,
        actions: str = "values",
        reward: str = "score",
        noise: str = "mean",
        budget: float | None = None,
    ) -> None:
        choose(actions, CHOICES, "actions")
        choose(reward, REWARDS, "reward")
        choose(noise, NOISES, "noise")
        if num_envs < 1:
            raise ValueError(f"num_envs is at least 1, not {num_envs}")
        self.spaces = suite.resolve(space, split, Path(folder) if folder else None, noise == "resample")
        check_compatible(self.spaces, actions)
        for candidate in self.spaces:
            replay(candidate, noise)  # refuses to resample what kept no samples
        self.num_envs, self.actions, self.reward, self.noise = num_envs, actions, reward, noise
        self.tables = Tables(self.spaces, [scale(s, budget) for s in self.spaces], actions, noise)
        self.single_action_space = make_choice(actions, self.spaces[0].domain).space()
        self.single_observation_space = observation_space(self.spaces[0].domain)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._each = np.arange(num_envs)
        self._started = False
        self._allocate(num_envs, int(self.tables.counts.max()))

    def _allocate(self, count: int, width: int) -> None:
        self._where = np.zeros(count, np.int64)  # the space of each session
        self._clock, self._first, self._seen_loss, self._loss = (np.zeros(count) for _ in range(4))
        self._best, self._current, self._point, self._tried = (np.zeros(count, np.int64) for _ in range(4))
        self._seen = np.zeros((count, width), np.bool_)
        self._remembered = np.zeros((count, width) if self.noise == "resample" else (0, 0))
        self._done = np.zeros(count, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start all sessions. One seed seeds them all."""
        super().reset(seed=seed)
        if options:
            raise ValueError(f"many sessions are reset without options, not with {', '.join(options)}")
        self._started = True
        self._done = np.zeros(self.num_envs, np.bool_)
        self._begin(~self._done)
        outcome = np.full(self.num_envs, np.nan)
        status = np.full(self.num_envs, NONE)
        return self._observation(status, outcome), self._info(status, outcome)

    def _begin(self, which: Bools) -> None:
        """Start the sessions in `which` anew."""
        count = int(which.sum())
        self._where[which] = self.np_random.integers(len(self.spaces), size=count) if len(self.spaces) > 1 else 0
        for array, value in ((self._clock, 0.0), (self._first, np.nan), (self._seen_loss, np.inf)):
            array[which] = value
        self._loss[which] = np.inf
        self._best[which] = self._current[which] = NOWHERE
        self._point[which] = self._tried[which] = 0
        self._seen[which] = False
        if self.actions == "move":
            where = self._where[which]
            rows = (self.np_random.random(count) * self.tables.counts[where]).astype(np.int64)
            self._current[which] = rows + self.tables.base[where]

    def step(self, actions: Any) -> tuple[dict[str, Any], Floats, Bools, Bools, dict[str, Any]]:
        """Try what the actions mean; sessions that were over begin anew."""
        if not self._started:
            raise gymnasium.error.ResetNeeded("call reset() first")
        tables, where, ended = self.tables, self._where, self._done
        place = self._read(np.asarray(actions))
        legal = place >= 0
        row = np.where(legal, place - tables.base[where], 0)
        repeated = legal & self._seen[self._each, row]
        fresh = legal & ~repeated
        # -1 is the last place, which stands for a choice that is no configuration.
        outcome = self._draw(place, row, fresh, repeated)
        cost = np.where(fresh, tables.seconds[place], np.where(legal, 0.0, tables.refusals[where]))
        # In the order of Session.evaluate, so that both round alike.
        self._clock = (self._clock + DECISION_SECONDS) + cost
        self._seen[self._each, row] |= fresh
        self._tried += fresh
        self._current = np.where(legal, place, self._current)
        budget = tables.budgets[where]
        better = fresh & (outcome < self._seen_loss) & (self._clock <= budget)
        self._first = np.where(better & (self._best < 0), outcome, self._first)
        self._seen_loss = np.where(better, outcome, self._seen_loss)
        self._best = np.where(better, place, self._best)
        loss = np.where(self._best < 0, np.inf, tables.losses[self._best])
        terminated = self._clock >= budget
        reward = self._advance(loss, terminated)
        status = np.where(repeated, REPEATED, tables.status[place])
        if ended.any():
            reward[ended] = 0.0
            terminated &= ~ended
            self._begin(ended)
            outcome = np.where(ended, np.nan, outcome)
            status = np.where(ended, NONE, status)
        self._done = terminated.copy()
        truncated = np.zeros(self.num_envs, np.bool_)
        return self._observation(status, outcome), reward, terminated, truncated, self._info(status, outcome)

    def _read(self, actions: npt.NDArray[Any]) -> Ints:
        """The places that actions mean, `NOWHERE` for what is no configuration."""
        tables, where = self.tables, self._where
        if actions.dtype.kind not in "iu":
            raise TypeError(f"actions are whole numbers, not {actions.dtype}")
        if self.actions == "values":
            within = np.all((actions >= 0) & (actions < tables.sizes), axis=1)
            codes = actions @ tables.strides + where * tables.cartesian
            return np.where(within, tables.find(np.where(within, codes, 0)), NOWHERE).astype(np.int64)
        if self.actions == "number":
            within = (actions >= 0) & (actions < tables.counts[where])
            return np.where(within, actions + tables.base[where], NOWHERE)
        back = tables.moves.shape[1]
        random = (self.np_random.random(self.num_envs) * tables.counts[where]).astype(np.int64) + tables.base[where]
        within = (actions >= 0) & (actions < back)
        moved = np.where(within, tables.moves[self._current, np.where(within, actions, 0)], NOWHERE)
        return np.select([actions == back, actions == back + 1], [self._best, random], moved)

    def _draw(self, place: Ints, row: Ints, fresh: Bools, repeated: Bools) -> Floats:
        """The losses observed; what was tried before is remembered."""
        losses = self.tables.losses[place]
        if self.noise == "mean":
            return losses
        known = fresh & ~np.isnan(losses)
        # A place without samples draws from none, and keeps its NaN.
        safe = np.where(known, place, 0)
        drawn = (self.np_random.random(self.num_envs) * self.tables.sample_counts[safe]).astype(np.int64)
        losses = np.where(known, self.tables.samples[safe, drawn], losses)
        self._remembered[self._each[fresh], row[fresh]] = losses[fresh]
        return np.where(repeated, self._remembered[self._each, row], losses)

    def _advance(self, loss: Floats, over: Bools) -> Floats:
        """Move on along the points, and return what the step earned; see `reward.earned`."""
        old, before, after = self._loss, self._point, self._reached()
        self._loss, self._point = loss, after
        found, had = np.isfinite(loss), np.isfinite(old)
        new, prior = np.where(found, loss, 0.0), np.where(had, old, 0.0)
        if self.reward == "log":
            gains = np.log(np.where(had & found, prior / np.where(found, new, 1.0), 1.0))
            return np.where(new < 0, -gains, gains)
        end = np.full(self.num_envs, POINTS)
        if self.reward == "credit":
            gained = np.where(had, self._between(after, end, new) - self._between(after, end, prior), 0.0)
            gained = np.where(new == prior, 0.0, gained)
            first = self._between(np.zeros_like(end), end, new)
        else:
            gained = self._between(before, after, prior) + np.where(over, self._between(after, end, new), 0.0)
            first = self._between(np.zeros_like(end), np.where(over, end, after), new)
        none = np.where(over, self._between(np.zeros_like(end), end, self.tables.worst[self._where]), 0.0)
        return np.where(had, gained, np.where(found, first, none))

    def _reached(self) -> Ints:
        """How many points lie before each clock."""
        points = [np.searchsorted(times, self._clock) for times in self.tables.times]
        return points[0] if len(points) == 1 else np.stack(points)[self._where, self._each]

    def _between(self, first: Ints, last: Ints, loss: Floats) -> Floats:
        where, offsets, slopes = self._where, self.tables.offsets, self.tables.slopes
        area: Floats = offsets[where, last] - offsets[where, first]
        area += loss * (slopes[where, last] - slopes[where, first])
        return area

    def _observation(self, status: Ints, outcome: Floats) -> dict[str, Any]:
        tables = self.tables
        progress = np.zeros((self.num_envs, 4), np.float32)
        progress[:, 0] = np.minimum(self._clock / tables.budgets[self._where], 1.0)
        progress[:, 1] = self._tried / tables.counts[self._where]
        found = self._best >= 0
        first = np.where(found, self._first, 1.0)
        for column, loss in ((2, outcome), (3, self._seen_loss)):
            known = found & (loss == loss)
            gains = np.log(first / np.where(known, loss, first))
            progress[:, column] = np.clip(np.where(first < 0, -gains, gains), -BOUND, BOUND)
        return {
            "configuration": tables.fractions[self._current],
            "best": tables.fractions[self._best],
            "status": status,
            "progress": progress,
        }

    def _info(self, status: Ints, outcome: Floats) -> dict[str, Any]:
        base = self.tables.base[self._where]
        return {
            "status": status,
            "row": np.where(self._current < 0, NOWHERE, self._current - base),
            "objective": np.abs(outcome),
            "best": np.abs(np.where(self._best < 0, np.nan, self._seen_loss)),
            "seconds": self._clock.copy(),
            "evaluations": self._tried.copy(),
            "space": self._where.copy(),
        }

    def conditional_masks(self, prefixes: npt.ArrayLike) -> Mask:
        """(num_envs, size): which values the next parameter may take after `prefixes` (num_envs, k), by session."""
        given = np.asarray(prefixes, np.int64)
        masks = np.stack([space.domain.allowed(given) for space in self.spaces])
        return masks[self._where, self._each]

    def action_masks(self) -> Bools:
        """(num_envs, actions): the masks of all sessions, as `KernelTunerEnv.action_masks` makes them."""
        if self.actions == "values":
            masks = np.stack([np.concatenate(space.domain.occurring()) for space in self.spaces])
            return masks[self._where].astype(np.bool_)
        if self.actions == "number":
            return ~self._seen
        back = (self._best >= 0) & (self._best != self._current)
        return np.column_stack([self.tables.moves[self._current] >= 0, back, np.ones(self.num_envs, np.bool_)])
