"""What a model is asked and how its answer is read. One formatter serves search, evaluation, data and training.

There are three forms of answer: numbers of a menu of legal actions, strategy calls in the text form, and the whole
rewritten state; each with or without a chain of thought before it. A formatter has a version, which transcripts
keep: change the wording, change the version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar, cast

from agents.llm.policy import MAX_ANSWER_CHARACTERS, Constraint, Conversation, Message, Role, estimate_tokens
from envs.common.actions import STOP, Action, ActionError, parse_action
from envs.common.moves import shorten
from envs.common.problem import Describable, Problem

S = TypeVar("S")

VERSION = 1
"""Of the wording of prompts and of the reading of answers."""

LONGEST = 12_000
"""Tokens of the longest prompt, unless the model reads fewer."""

MARK = "Answer:"
"""Stands between a chain of thought and the answer."""


THOUGHT = "</think>"
"""Ends what models that always think say before they answer."""


class Form(StrEnum):
    """How a model says what it wants."""

    MENU = "menu"
    """The number of a legal action."""
    CALL = "call"
    """A strategy call, `loop_split(i; 32)`: any legal one, listed or not."""
    REWRITE = "rewrite"
    """The whole state as it should become."""


@dataclass(frozen=True, slots=True)
class View:
    """What a prompt can tell of a state."""

    state: str
    """Its text."""
    actions: tuple[Action, ...]
    """To choose from, in canonical order."""
    promising: tuple[Action, ...] = ()
    """The same without `stop`, the most promising first by the domain's rules of thumb."""
    steps: tuple[str, ...] = ()
    """How the state came about, a line for each action from the root on."""
    speedup: float | None = None
    """Of the state over the baseline, if measured."""
    history: tuple[str, ...] = ()
    """Attempts and what came of them, oldest first; the most useful ones last."""
    glossary: str = ""
    """What states and actions mean."""
    machine: str = ""
    """What it runs on."""
    reasons: Mapping[Action, str] = field(default_factory=dict)
    """What actions would do."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What an answer says. Nothing in it has been checked against the problem."""

    actions: tuple[Action, ...] = ()
    """Best first."""
    text: str = ""
    """A rewritten state."""
    refusals: tuple[str, ...] = ()
    """What could not be read, as `code: sentence`."""


@dataclass(frozen=True, slots=True)
class Formatter:
    """Builds prompts of at most `tokens` (estimated from above) and reads answers.

    What does not fit is left out: the oldest history first; if that is not enough, reasons, then the glossary, then
    the least promising of the menu, each as far as needed and with as much of the history as fits then. A state is
    never cut.
    """

    form: Form = Form.MENU
    reasoning: bool = False
    """Ask for a chain of thought."""
    most: int = 1
    """Actions asked for, best first; a rewriting is always one."""
    machine: bool = True
    """Tell what it runs on."""
    reasons: bool = False
    """Tell what each action would do."""
    history: int = 12
    """Attempts told, at most."""
    menu: int = 256
    """Actions listed, at most, besides `stop`."""
    tokens: int = LONGEST
    """The longest prompt."""

    def __post_init__(self) -> None:
        if min(self.most, self.menu, self.tokens) < 1 or self.history < 0:
            raise ValueError("most, menu and tokens are at least 1, and history isn't negative")

    @property
    def version(self) -> str:
        """Names the wording and all that shapes a prompt: `leirgym-1/menu/most=1/...`."""
        switches = [name for name in ("reasoning", "machine", "reasons") if getattr(self, name)]
        sizes = [f"{name}={getattr(self, name)}" for name in ("most", "history", "menu", "tokens")]
        return "/".join((f"leirgym-{VERSION}", self.form, *switches, *sizes))

    def view(
        self,
        problem: Problem[S],
        state: S,
        actions: Sequence[Action],
        steps: Sequence[str] = (),
        speedup: float | None = None,
        history: Sequence[str] = (),
    ) -> View:
        """Collect what a prompt tells of a state; `actions` are legal in it."""
        promising = () if self.form is Form.REWRITE else _promising(problem, state, actions)[: self.menu]
        listed = () if self.form is Form.REWRITE else _only(promising, actions)
        latest = tuple(history)[max(0, len(history) - self.history) :]
        view = View(problem.show(state), listed, promising, tuple(steps), speedup, latest)
        known = describable(problem)
        if known is None:
            return view
        reasons = {action: known.describe(state, action) for action in listed} if self.reasons else {}
        machine = known.machine() if self.machine else ""
        return replace(view, glossary=known.glossary(), machine=machine, reasons=reasons)

    def prompt(self, view: View) -> tuple[Conversation, View] | str:
        """The conversation that asks about a view, and what of the view is in it; or why it can't be asked."""
        for cut in _cuts(view):
            conversation = self._conversation(cut)
            size = sum(estimate_tokens(message.content) for message in conversation)
            if size <= self.tokens:
                return conversation, cut
        return f"size: the shortest prompt has an estimated {size:,} tokens; the limit is {self.tokens:,}"

    def _conversation(self, view: View) -> Conversation:
        system = "\n\n".join(filter(None, (TASK[self.form], view.glossary, view.machine)))
        parts = (
            f"Program{_speed(view.speedup)}:\n{view.state.rstrip()}",
            _listing("Steps so far", view.steps),
            _listing("Attempts so far", view.history),
            self._menu(view),
            self._request(),
        )
        return (Message(Role.SYSTEM, system), Message(Role.USER, "\n\n".join(filter(None, parts))))

    def _menu(self, view: View) -> str:
        if self.form is Form.REWRITE:
            return ""
        numbered = self.form is Form.MENU
        shown = (
            f"{f'{n}. ' if numbered else ''}{action}{f'  # {reason}' if (reason := view.reasons.get(action)) else ''}"
            for n, action in enumerate(view.actions, 1)
        )
        return "Legal actions:\n" + "\n".join(shown)

    def _request(self) -> str:
        wanted = WANTED[self.form] if self.most == 1 else WANTED_MANY[self.form].format(most=self.most)
        if self.reasoning:
            return f"Think step by step: what bounds the program, and what would help? Then write {MARK} and {wanted}."
        return f"Write {wanted}, and nothing else."

    def constraint(self, view: View) -> Constraint | None:
        """The answers to a prompt about `view` that may be decoded; None where any text may come."""
        if self.reasoning or self.form is Form.REWRITE:
            return None
        numbered = self.form is Form.MENU
        choices = (str(n) if numbered else str(action) for n, action in enumerate(view.actions, 1))
        return Constraint(tuple(choices), self.most)

    def read(self, text: str, view: View) -> Reply:
        """Read an answer to a prompt about `view`. Total for any text."""
        if len(text) > MAX_ANSWER_CHARACTERS:
            sentence = f"size: an answer has at most {MAX_ANSWER_CHARACTERS:,} characters, got {len(text):,}"
            return Reply(refusals=(sentence,))
        said = text.rpartition(THOUGHT)[2]
        if self.reasoning and MARK not in said:
            return Reply(refusals=(f"malformed: there is no {MARK} in the answer",))
        answer = _unfenced(said.rpartition(MARK)[2].strip().strip("*"))
        if self.form is Form.REWRITE and answer:
            return Reply((STOP,)) if answer == str(STOP) else Reply(text=answer + "\n")
        found = [READ_ONE[self.form](item, view) for item in _items(answer)[: self.most]]
        actions = tuple(dict.fromkeys(item for item in found if isinstance(item, Action)))
        refusals = tuple(item for item in found if isinstance(item, str))
        return Reply(actions, refusals=refusals if found else ("malformed: the answer is empty",))


TASK = {
    Form.MENU: "You optimise a program: of its legal actions, choose those that make it run faster in the end. Every "
    "action keeps what the program computes.",
    Form.CALL: "You optimise a program by strategy calls, name(sites; parameters), that make it run faster in the end. "
    "Every legal call keeps what the program computes.",
    Form.REWRITE: "You optimise a program: rewrite it so that it runs faster and computes the same. It is compiled, "
    "compared with the original on several input sets, and timed. Keep inputs and outputs as they are.",
}
"""The head of a prompt."""

WANTED = {
    Form.MENU: "the number of the best action",
    Form.CALL: "the best strategy call",
    Form.REWRITE: f"the whole new program, or {STOP} if nothing would make it faster",
}
"""What is asked for."""

WANTED_MANY = {
    Form.MENU: "the numbers of the best actions, up to {most}, the best first, one a line",
    Form.CALL: "the best strategy calls, up to {most}, the best first, one a line",
    Form.REWRITE: WANTED[Form.REWRITE],
}


def describable(problem: Problem[Any]) -> Describable[Any] | None:
    """The problem, if it can explain itself; a wrapper that hands on its attributes counts too."""
    return cast(Describable[Any], problem) if hasattr(problem, "glossary") else None


def _promising(problem: Problem[S], state: S, actions: Sequence[Action]) -> tuple[Action, ...]:
    """The actions without `stop`, the most promising by the domain's rules of thumb first."""
    moves = [action for action in actions if action != STOP]
    weights = problem.prior(state, moves)
    return tuple(moves[n] for n in sorted(range(len(moves)), key=lambda n: -weights[n]))


def _only(promising: Sequence[Action], actions: Sequence[Action]) -> tuple[Action, ...]:
    """Those of the actions that are promising, and `stop`."""
    kept = {STOP, *promising}
    return tuple(action for action in actions if action in kept)


def _cuts(view: View) -> Iterator[View]:
    """The view, and less and less of it; at each level the oldest history goes first."""
    levels = [view, replace(view, reasons={}), replace(view, reasons={}, glossary="")]
    count = len(view.promising)
    while count > 1:
        count //= 2
        promising = view.promising[:count]
        levels.append(replace(levels[-1], actions=_only(promising, view.actions), promising=promising, steps=()))
    for level in levels:
        for oldest in range(len(view.history) + 1):
            yield replace(level, history=view.history[oldest:])


def _speed(speedup: float | None) -> str:
    return f", {speedup:.3g} times as fast as the baseline" if speedup else ""


def _listing(title: str, items: Sequence[str]) -> str:
    return f"{title}:\n" + "\n".join(f"- {item}" for item in items) if items else ""


_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[#\[(]?(\d{1,7})[\])]?(?:[.:,]?\s.*)?[.,]?", re.ASCII | re.DOTALL)
_NUMBERS = re.compile(r"[\d\s,]+", re.ASCII)


def _unfenced(text: str) -> str:
    """What stands between the last fences, if there are any."""
    blocks = _FENCE.findall(text)
    return str(blocks[-1] if blocks else text).strip().strip("`").strip()


def _items(text: str) -> list[str]:
    """The items of an answer: its lines, or what commas and blanks separate where there is nothing but numbers."""
    found = re.split(r"[\s,]+", text) if _NUMBERS.fullmatch(text) else text.splitlines()
    return list(filter(None, (item.strip().strip("`").strip() for item in found)))


def _numbered(item: str, view: View) -> Action | str:
    """The action of a number; a call that is on the menu will do as well."""
    match = _NUMBER.fullmatch(item)
    if match is None:
        spelled = next((action for action in view.actions if str(action) == item), None)
        return spelled or f"malformed: expected a number from 1 to {len(view.actions)}, got {shorten(item)!r}"
    number = int(match[1])
    if not 1 <= number <= len(view.actions):
        return f"unknown_number: the menu runs from 1 to {len(view.actions)}, not to {number}"
    return view.actions[number - 1]


def _called(item: str, view: View) -> Action | str:
    try:
        return parse_action(re.sub(r"^(?:[-*]|\d{1,7}[.)])\s+", "", item))
    except ActionError as error:
        return f"malformed: {error}"


READ_ONE: Mapping[Form, Callable[[str, View], Action | str]] = {Form.MENU: _numbered, Form.CALL: _called}
