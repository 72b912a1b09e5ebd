"""What an agent sees of a tuning session: arrays, or a text. Never the optimum, nor anything that was not tried."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete

from envs.autotune_env.domain import NOWHERE, Domain
from envs.autotune_env.oracle import Outcome
from envs.autotune_env.session import Session
from envs.autotune_env.space import Space, Status
from envs.common.moves import PRINTABLE

STATUSES = (*(status.label for status in Status), "repeated", "none")
"""What the last choice came to; a choice that is no configuration is `constraints`, `none` stands at the start."""

REPEATED, NONE = len(Status), len(Status) + 1

PROGRESS = ("spent", "tried", "last", "best")
"""The progress vector: the part of the budget that is spent, the part of the configurations that was tried, and the
logarithm of how much better the last one and the best one are than the first one measured."""

BOUND = 20.0
"""Logarithms are clipped to this."""

_PRINTABLE = frozenset(PRINTABLE)

HISTORY = 12
"""Configurations that a text lists."""

MAX_CHARACTERS = 8_000

CODES = tuple(np.int64(code) for code in range(len(STATUSES)))


def observation_space(domain: Domain) -> Dict:
    """The space of observations as arrays."""
    count = len(domain.sizes)
    return Dict(
        configuration=Box(0, 1, (count,), np.float32),
        best=Box(0, 1, (count,), np.float32),
        status=Discrete(len(STATUSES)),
        progress=Box(np.array([0, 0, -BOUND, -BOUND], np.float32), np.array([1, 1, BOUND, BOUND], np.float32)),
    )


@functools.lru_cache(maxsize=64)
def fractions(domain: Domain) -> npt.NDArray[np.float32]:
    """(N + 1, D): where each value stands among those of its parameter, from 0 to 1; the last row is zero."""
    table = np.zeros((len(domain) + 1, len(domain.sizes)), np.float32)
    table[:-1] = domain.configurations / (np.array(domain.sizes) - 1)
    table.setflags(write=False)
    return table


def log_gain(loss: float, first: float) -> float:
    """The logarithm of how many times better a loss is than the first; both are positive, or both negative."""
    gain = math.log(first / loss) if loss > 0 else math.log(loss / first)
    return max(-BOUND, min(BOUND, gain))


def progress(session: Session, outcome: Outcome | None) -> npt.NDArray[np.float32]:
    """The progress vector after an outcome (None at the start)."""
    spent = session.clock / session.budget
    best = last = 0.0
    first = session.first_loss
    if first == first:
        best = log_gain(session.loss, first)
        if outcome is not None and outcome.loss == outcome.loss:
            last = log_gain(outcome.loss, first)
    tried = len(session.seen) / len(session.untried)
    return np.array((spent if spent < 1.0 else 1.0, tried, last, best), np.float32)


def observe(
    table: npt.NDArray[np.float32], session: Session, row: int, status: int, outcome: Outcome | None
) -> dict[str, Any]:
    """The observation as arrays, which are the caller's own."""
    return {
        "configuration": table[row].copy(),
        "best": table[session.best].copy(),
        "status": CODES[status],
        "progress": progress(session, outcome),
    }


def describe(space: Space, session: Session, row: int, status: int, refusal: str | None) -> str:
    """The observation as text: the task, the budget, the last choice, the best, and what was tried."""
    domain, seen = space.domain, session.seen
    failed = sum(1 for outcome in seen.values() if outcome.status)
    lines = [
        *_task(space),
        f"budget: {session.clock:.4g} of {session.budget:.4g} s spent; {len(seen):,} of {len(domain):,} "
        f"configurations tried, {failed:,} of them failed",
    ]
    if row != NOWHERE:
        lines.append(f"current: {_choice(domain, row)}")
    if refusal is not None:
        lines.append(f"last: refused, {refusal}")
    elif row in seen:
        lines.append(f"last: {_result(space, seen[row])}{', tried before' if status == REPEATED else ''}")
    if session.best != NOWHERE:
        lines.append(f"best: {_result(space, seen[session.best])} with {_choice(domain, session.best)}")
    lines += [f"tried: {_result(space, seen[row])} with {_choice(domain, row)}" for row in [*seen][-HISTORY:]]
    text = "\n".join(lines)
    return "".join(character if character in _PRINTABLE else "?" for character in text)[:MAX_CHARACTERS]


def _task(space: Space) -> list[str]:
    aim = "more" if space.higher_is_better else "less"
    domain = space.domain
    return [
        f"kernel {space.name}: {space.objective} in {space.unit}, {aim} is better",
        *(f"{p.name}: {' '.join(map(str, p.values))}" for p in domain.parameters),
        *(f"{name}: {value}, fixed" for name, value in domain.constants.items()),
        *(f"rule: {restriction}" for restriction in domain.restrictions),
    ]


def _choice(domain: Domain, row: int) -> str:
    return domain.describe(domain.configurations[row].tolist())


def _result(space: Space, outcome: Outcome) -> str:
    if outcome.status:
        return outcome.status.label
    return f"{abs(outcome.loss):.6g} {space.unit}"
