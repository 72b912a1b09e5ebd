"""How an agent chooses a configuration: value by value, by its number, or by a change of the current one.

A choice that is no configuration leads `NOWHERE`; only a value of the wrong Python type raises.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Discrete, MultiDiscrete, Space

from envs.autotune_env.domain import NOWHERE, Domain, Mask, moves
from envs.autotune_env.session import Session


class Choice(Protocol):
    """One form of action over a domain."""

    def space(self) -> Space[Any]:
        """A fresh action space."""
        ...

    def read(self, action: Any, session: Session, current: int) -> int:
        """The row that an action means in a session whose current configuration is `current`."""
        ...

    def mask(self, session: Session, current: int) -> Any:
        """What `Space.sample(mask)` takes: 1 where an action leads to a configuration."""
        ...

    def refusal(self, action: Any, session: Session, current: int) -> str | None:
        """Why an action leads nowhere, as `code: sentence`, or None."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ByValue:
    """One index for each parameter. The mask says which values occur in any configuration; see `Domain.allowed`."""

    domain: Domain
    masks: tuple[Mask, ...] = field(init=False)
    rows: dict[int, int] = field(init=False)
    """Rows by code."""
    steps: tuple[tuple[int, int], ...] = field(init=False)
    """Size and stride of each parameter."""

    def __post_init__(self) -> None:
        masks = self.domain.occurring()
        object.__setattr__(self, "masks", masks)
        object.__setattr__(self, "rows", dict(zip(self.domain.codes.tolist(), range(len(self.domain)), strict=True)))
        object.__setattr__(self, "steps", tuple(zip(self.domain.sizes, self.domain.strides, strict=True)))

    def space(self) -> MultiDiscrete[Any]:
        return MultiDiscrete(list(self.domain.sizes))

    def read(self, action: Any, session: Session, current: int) -> int:
        code = 0
        for index, (size, stride) in zip(integers(action), self.steps, strict=True):
            if not 0 <= index < size:
                return NOWHERE
            code += index * stride
        return self.rows.get(code, NOWHERE)

    def mask(self, session: Session, current: int) -> tuple[Mask, ...]:
        return tuple(mask.copy() for mask in self.masks)

    def refusal(self, action: Any, session: Session, current: int) -> str | None:
        return self.domain.why_not(integers(action))


@dataclass(frozen=True, slots=True, eq=False)
class ByNumber:
    """The number of a configuration. The mask leaves out what was tried: it is known."""

    domain: Domain

    def space(self) -> Discrete:
        return Discrete(len(self.domain))

    def read(self, action: Any, session: Session, current: int) -> int:
        row = operator.index(action)
        return row if 0 <= row < len(self.domain) else NOWHERE

    def mask(self, session: Session, current: int) -> Mask:
        return session.untried.copy()

    def refusal(self, action: Any, session: Session, current: int) -> str | None:
        row = operator.index(action)
        if 0 <= row < len(self.domain):
            return None
        return f"unknown_index: configurations run from 0 to {len(self.domain) - 1}, not to {row}"


@dataclass(frozen=True, slots=True, eq=False)
class ByMove:
    """A change of the current configuration: one parameter set to one value, in the order of the parameters.

    Two more come last: back to the best so far, and on to a configuration at random. An episode begins at one at
    random, which has not been tried. The mask leaves out what is no
    configuration, and going back while nothing was found or where the best already is.
    """

    domain: Domain
    table: npt.NDArray[np.int32] = field(init=False)
    masks: npt.NDArray[np.int8] = field(init=False)
    back: int = field(init=False)
    """The action that goes back to the best."""

    def __post_init__(self) -> None:
        table = moves(self.domain)
        masks = np.zeros((len(table), table.shape[1] + 2), np.int8)
        np.greater_equal(table, 0, out=masks[:, :-2].view(np.bool_))
        masks[:, -1] = 1
        object.__setattr__(self, "back", table.shape[1])
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "masks", masks)

    @property
    def restart(self) -> int:
        """The action that goes on at random."""
        return self.back + 1

    def space(self) -> Discrete:
        return Discrete(self.back + 2)

    def read(self, action: Any, session: Session, current: int) -> int:
        move = operator.index(action)
        if 0 <= move < self.back:
            return int(self.table[current, move])
        if move == self.restart:
            return int(session.rng.integers(len(self.domain)))
        return session.best if move == self.back else NOWHERE

    def mask(self, session: Session, current: int) -> Mask:
        mask: Mask = self.masks[current].copy()
        mask[self.back] = session.best not in (NOWHERE, current)
        return mask

    def refusal(self, action: Any, session: Session, current: int) -> str | None:
        move = operator.index(action)
        if not 0 <= move <= self.restart:
            return f"unknown_index: moves run from 0 to {self.restart}, not to {move}"
        if move == self.back:
            return "nothing_found: there is no best configuration yet" if session.best == NOWHERE else None
        if move == self.restart:
            return None
        position, indices = 0, self.domain.configurations[current].tolist()
        while move >= self.domain.sizes[position]:
            move -= self.domain.sizes[position]
            position += 1
        parameter = self.domain.parameters[position]
        if indices[position] == move:
            return f"no_effect: {parameter.name} is {parameter.values[move]} already"
        return self.domain.why_not([*indices[:position], move, *indices[position + 1 :]])


@functools.lru_cache(maxsize=64)
def make_choice(kind: str, domain: Domain) -> Choice:
    """The form of action called `kind`, over a domain."""
    choice: Choice = CHOICES[kind](domain)
    return choice


CHOICES: dict[str, Callable[[Domain], Any]] = {"values": ByValue, "number": ByNumber, "move": ByMove}
"""The `actions` argument."""


def integers(action: Any) -> Sequence[int]:
    """The indices of an action. Raises TypeError for what is not integral."""
    if isinstance(action, np.ndarray) and action.dtype.kind in "iu":
        indices: list[int] = action.tolist()
        return indices
    return [operator.index(index) for index in action]


def flat(mask: Mask | Sequence[Mask]) -> npt.NDArray[np.bool_]:
    """A mask as maskable policies ask for it: one array of truth values."""
    joined = np.concatenate(mask) if isinstance(mask, tuple) else np.asarray(mask)
    return joined.astype(np.bool_)
