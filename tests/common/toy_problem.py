"""A problem small enough to know by heart: three dials, each from 0 to `top`.

`turn(a; up)`, `turn(a; down)` move a dial by one, `swap(a, b)` exchanges two. A state is identified up to
the order of the dials, so that a swap never changes the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from envs.common.actions import STOP, Action
from envs.common.evaluation import Check, Evaluation, Status, Timing

Dials = tuple[int, int, int]

NAMES = ("a", "b", "c")
STEPS = {"up": 1, "down": -1}


def hill(state: Dials) -> float:
    """Log speedup over the baseline: best, log 4, at (3, 3, 3); log 4 - 2.7 at (0, 0, 0)."""
    return math.log(4) - 0.1 * sum((dial - 3) ** 2 for dial in state)


def valley(state: Dials) -> float:
    """Like `hill`, but a first turn away from (0, 0, 0) loses, so that greedy search stays at the root."""
    return hill(state) - (1.0 if 0 < sum(state) < 3 else 0.0)


@dataclass(eq=False)
class ToyProblem:
    """The dials as a `Problem`; counts evaluations, and fails where `failures` (by sorted dials) says so."""

    task: str = "dials"
    root: Dials = (0, 0, 0)
    top: int = 4
    landscape: Callable[[Dials], float] = hill
    failures: Mapping[Dials, Status] = field(default_factory=dict)
    evaluations: int = 0

    def legal(self, state: Dials) -> tuple[Action, ...]:
        turns = (Action("turn", (name,), (way,)) for name in NAMES for way in STEPS)
        swaps = (Action("swap", pair) for pair in combinations(NAMES, 2))
        return (STOP, *(action for action in (*turns, *swaps) if self.refusal(state, action) is None))

    def refusal(self, state: Dials, action: Action) -> str | None:
        match action:
            case Action("stop", (), ()):
                return None
            case Action("turn", (name,), (way,)) if name in NAMES and way in STEPS:
                dial = state[NAMES.index(name)] + STEPS[way]
                return (
                    None if 0 <= dial <= self.top else f"extent: dial {name} runs from 0 to {self.top}, not to {dial}"
                )
            case Action("swap", (left, right), ()) if left in NAMES and right in NAMES:
                equal = state[NAMES.index(left)] == state[NAMES.index(right)]
                return f"no_effect: dials {left} and {right} stand alike" if equal else None
        return f"unknown_strategy: the dials know no {action}"

    def apply(self, state: Dials, action: Action) -> Dials:
        problem = self.refusal(state, action)
        if problem is not None:
            raise ValueError(f"{action}: {problem}")
        dials = list(state)
        if action.name == "turn":
            dials[NAMES.index(action.sites[0])] += STEPS[action.args[0]]
        elif action.name == "swap":
            left, right = map(NAMES.index, action.sites)
            dials[left], dials[right] = dials[right], dials[left]
        return (dials[0], dials[1], dials[2])

    def key(self, state: Dials) -> str:
        return "-".join(map(str, sorted(state)))

    def show(self, state: Dials) -> str:
        return "".join(f"{name}={dial}\n" for name, dial in zip(NAMES, state, strict=True))

    def evaluate(self, states: Sequence[Dials]) -> list[Evaluation]:
        self.evaluations += len(states)
        return [self._evaluate(state) for state in states]

    def _evaluate(self, state: Dials) -> Evaluation:
        low, middle, high = sorted(state)
        status = self.failures.get((low, middle, high), Status.OK)
        if not status.verified:
            return Evaluation(self.key(state), status, f"dials {self.key(state)}: {status}")
        ratio = math.exp(self.landscape(state))
        timing = Timing((1 / ratio,) * 3, (1.0,) * 3, "middle", ratio, 0.99 * ratio, 1.01 * ratio)
        root_ratio = math.exp(-self.landscape(self.root))
        return Evaluation(self.key(state), status, "", (Check("dials/a", 0.0, 0.0, True),), timing, root_ratio)

    def estimate(self, state: Dials) -> float:
        return self.landscape(state)

    def prior(self, state: Dials, actions: Sequence[Action]) -> list[float]:
        return [2.0 if action.args == ("up",) else 1.0 for action in actions]

    def plans(self, state: Dials) -> tuple[tuple[Action, ...], ...]:
        """No ideas: what a search finds here, it finds by single actions."""
        return ()

    def close(self) -> None:
        """Hold nothing, close nothing."""
