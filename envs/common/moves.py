"""How an agent's raw choice becomes an action: by menu, by text, by a whole rewritten state.

A choice that means nothing here is a refusal, a sentence; only a value of the wrong Python type raises.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Discrete, Space, Text

from envs.common.actions import MAX_ACTION_CHARACTERS, STOP, Action, ActionError, parse_action
from envs.common.problem import Problem

S = TypeVar("S")

PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " \n"
"""The characters of texts in observations and actions."""


@dataclass(frozen=True, slots=True)
class Move(Generic[S]):
    """A choice, read: what was asked for and where it leads, or why it is refused."""

    text: str
    action: Action | None = None
    """None where no action describes the move: a refused text, a rewriting."""
    state: S | None = None
    """None when refused."""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """The menu of one state."""

    actions: Mapping[int, Action]
    """The legal actions by index."""
    texts: tuple[str, ...]
    """Their texts by index, empty where no action is."""
    indices: Mapping[str, int]
    """Their indices by text."""
    mask: npt.NDArray[np.int8]
    """1 at the index of a legal action. Read-only: copy it to hand it out."""
    overflow: tuple[str, ...]
    """Legal actions that found no place in their block."""


@dataclass(frozen=True, slots=True)
class Menu:
    """A fixed numbering of actions: index 0 stops; each strategy owns the same block of indices always.

    A strategy's legal actions fill its block from the start, in canonical order.
    """

    blocks: Mapping[str, int]
    """Indices of each strategy, by name."""
    offsets: Mapping[str, int] = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        offsets: dict[str, int] = {}
        total = 1
        for name, size in self.blocks.items():
            offsets[name] = total
            total += size
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "size", total)

    def offer(self, legal: Sequence[Action]) -> Offer:
        """Number the legal actions of a state (in canonical order, `STOP` first)."""
        actions: dict[int, Action] = {}
        overflow: list[str] = []
        texts = [""] * self.size
        free = {STOP.name: 0, **self.offsets}
        for action in legal:
            index = free[action.name]
            if index < self.offsets.get(action.name, 0) + self.blocks.get(action.name, 1):
                actions[index] = action
                texts[index] = str(action)
                free[action.name] = index + 1
            else:
                overflow.append(str(action))
        mask = np.zeros(self.size, np.int8)
        mask[list(actions)] = 1
        mask.setflags(write=False)
        return Offer(actions, tuple(texts), {texts[i]: i for i in actions}, mask, tuple(overflow))

    def owner(self, index: int) -> str:
        """The strategy whose block holds `index` (from 1 on)."""
        return [name for name, offset in self.offsets.items() if offset <= index][-1]


class Reader(Protocol):
    """One way for an agent to say what it wants."""

    def space(self) -> Space[Any]:
        """A fresh action space."""
        ...

    def read(self, problem: Problem[S], state: S, offer: Offer, choice: Any) -> Move[S]:
        """Turn a choice into a move; refuse what is not legal in `state`."""
        ...


@dataclass(frozen=True, slots=True)
class MenuReader:
    """Takes an index of the menu."""

    menu: Menu

    def space(self) -> Discrete:
        return Discrete(self.menu.size)

    def read(self, problem: Problem[S], state: S, offer: Offer, choice: Any) -> Move[S]:
        index = operator.index(choice)
        action = offer.actions.get(index)
        if action is not None:
            return Move(str(action), action, problem.apply(state, action))
        if not 0 <= index < self.menu.size:
            return Move(
                str(index),
                refusal=f"unknown_index: the menu runs from 0 to {self.menu.size - 1}, not to {index}",
            )
        name = self.menu.owner(index)
        count = sum(other.name == name for other in offer.actions.values())
        sentence = f"not_legal: {name} has {count} legal actions here, none at index {index}"
        return Move(str(index), refusal=sentence)


@dataclass(frozen=True, slots=True)
class TextReader:
    """Takes one strategy call, `loop_split(i; 32)`; any legal parameter will do, on the menu or not."""

    def space(self) -> Text:
        return Text(MAX_ACTION_CHARACTERS, charset=PRINTABLE)

    def read(self, problem: Problem[S], state: S, offer: Offer, choice: Any) -> Move[S]:
        text = _text(choice)
        try:
            action = parse_action(text)
        except ActionError as error:
            return Move(shorten(text), refusal=f"malformed: {error}")
        refusal = problem.refusal(state, action)
        if refusal is not None:
            return Move(str(action), refusal=refusal)
        return Move(str(action), action, problem.apply(state, action))


class Readable(Protocol):
    """A problem whose states an agent can write down."""

    def read(self, text: str) -> Any:
        """The state that `text` spells, or, as a `str`, the sentence that says why it is none."""
        ...


@dataclass(frozen=True, slots=True)
class RewriteReader:
    """Takes a whole transformed state as text; `stop()` stops."""

    max_characters: int
    shown: ClassVar[str] = "rewrite"

    def space(self) -> Text:
        return Text(self.max_characters, charset=PRINTABLE)

    def read(self, problem: Problem[S], state: S, offer: Offer, choice: Any) -> Move[S]:
        text = _text(choice)
        if len(text) > self.max_characters:
            sentence = f"size: a program has at most {self.max_characters:,} characters, got {len(text):,}"
            return Move(self.shown, refusal=sentence)
        if text.strip() == str(STOP):
            return Move(str(STOP), STOP, state)
        assert hasattr(problem, "read")
        new = problem.read(text)
        return Move(self.shown, refusal=new) if isinstance(new, str) else Move(self.shown, None, new)


def shorten(text: str, limit: int = 80) -> str:
    """At most `limit` characters of a text, on one line."""
    line = " ".join(text[: 2 * limit].split())
    return line if len(text) <= limit and len(line) <= limit else f"{line[: limit - 1]}…"


def _text(choice: Any) -> str:
    if not isinstance(choice, str):
        raise TypeError(f"an action is a text, not {type(choice).__name__}")
    return choice
