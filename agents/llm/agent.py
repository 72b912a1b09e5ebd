"""An episode after another, as a language model plays them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from agents.base import Budget, Clock, Listener, Node, Search, SearchResult, by_value, conduct, ignore
from agents.llm.adviser import SPENT, Adviser
from agents.llm.formatter import Form
from agents.llm.rewriting import Rewritings
from envs.common.actions import STOP, Action
from envs.common.evaluation import Evaluation
from envs.common.moves import shorten
from envs.common.problem import Problem

S = TypeVar("S")

STALE = 16
"""Refused answers in a row after which the model is given up."""

ANSWER = Action("answer")
"""Stands, in events, for an answer that names no action."""

TOLD = 200
"""Characters told to the model of what came of an attempt."""


@dataclass(frozen=True, slots=True)
class LLMAgent:
    """Follows a language model step by step, and starts again elsewhere when it stops or goes astray.

    A step is measured at once, and the model sees what came of it, refusals and errors included. A chain ends when
    the model stops, after `depth` steps, or after `patience` answers in a row that led nowhere; the next begins at the
    fastest state that was left least often. Only what leads to a state not measured yet is on offer. Without an
    adviser it plays by chance.
    """

    adviser: Adviser = field(default_factory=Adviser)
    depth: int = 20
    """Longest chain."""
    patience: int = 3
    """Refusals and failures in a row after which a chain ends."""

    def __post_init__(self) -> None:
        if min(self.depth, self.patience) < 1:
            raise ValueError(f"depth and patience are at least 1, got {self.depth} and {self.patience}")

    def solve(
        self,
        problem: Problem[Any],
        budget: Budget,
        rng: np.random.Generator,
        on_event: Listener = ignore,
        clock: Clock = time.monotonic,
    ) -> SearchResult:
        """Play until the budget is spent, nothing new is left, or the model gives nothing but refusals.

        A program that the model wrote and no single action explains is `rewrite(w1)` in the result: open the problem
        as `Rewritings` yourself to follow such a trace.
        """
        if self.adviser.formatter.form is Form.REWRITE and not isinstance(problem, Rewritings):
            problem = Rewritings(problem)
        search = Search(problem, budget, rng, on_event, clock)
        return conduct(search, self._explore, on_event)

    def _explore(self, search: Search[Any]) -> None:
        search.measure([search.root])
        if not search.spent:
            _Play(search, self).run()


class _Attempt(NamedTuple):
    """What was tried where, and what came of it."""

    key: str
    line: str


class _Play(Generic[S]):
    """The episodes of one search."""

    def __init__(self, search: Search[S], rules: LLMAgent) -> None:
        self.search, self.rules = search, rules
        self.attempts: list[_Attempt] = []
        self.left: Counter[str] = Counter()
        self.refused = 0
        """Refused answers since the last that was not."""
        self._ways: dict[str, dict[Action, str]] = {}

    def run(self) -> None:
        node: Node[S] | None = self.search.root if self._leads_on(self.search.root) else None
        misses = 0
        while node is not None and self.refused < STALE and not self.search.spent:
            action = self._choose(node)
            if self.search.spent:  # a model takes its time
                return
            if action is None or action == STOP:
                misses = misses + 1 if action is None else self.rules.patience
            else:
                child = self._take(node, action)
                node, misses = (child, 0) if self.search.fertile(child) else (node, misses + 1)
            if misses >= self.rules.patience:
                self.left[node.key] += 1
            if misses >= self.rules.patience or len(node.trace) >= self.rules.depth or not self._leads_on(node):
                node, misses = self._restart(), 0

    def _choose(self, node: Node[S]) -> Action | None:
        """The first of the model's choices that applies; what it names before that is refused."""
        formatter = self.rules.adviser.formatter
        offers = self._offers(node)
        actions = (STOP, *offers) if not self.left[node.key] else offers
        value = self.search.evaluations.get(node.key)
        view = formatter.view(
            self.search.problem,
            node.state,
            actions,
            tuple(self._steps(node)),
            value.speedup if value else None,
            self._history(node),
        )
        for reply in self.rules.adviser.ask(view, self.search.rng):
            written = [self._rewritten(node, reply.text)] if reply.text else []
            for choice in (*reply.refusals, *reply.actions, *written):
                refusal = choice if isinstance(choice, str) else self._refusal(node, choice)
                action = ANSWER if isinstance(choice, str) else choice
                if refusal is None:
                    self.refused = 0
                    return action
                self._refuse(node, action, refusal)
        return None

    def _refusal(self, node: Node[S], action: Action) -> str | None:
        """Why the model can't have `action` here."""
        if action == STOP:
            return "repeated: this program was left already, choose an action" if self.left[node.key] else None
        refusal = self.search.problem.refusal(node.state, action)
        if refusal is not None:
            return refusal
        key = self.search.problem.key(self.search.problem.apply(node.state, action))
        known = self.search.evaluations.get(key)
        return f"repeated: it leads to a program that was measured already, {_verdict(known)}" if known else None

    def _rewritten(self, node: Node[S], text: str) -> Action | str:
        """The action that leads where the model wants to go: one of the legal ones, if one explains the rewriting."""
        problem = self.search.problem
        assert isinstance(problem, Rewritings)
        action = problem.accept(text)
        if isinstance(action, str):
            return action
        key = problem.key(problem.apply(node.state, action))
        return next((known for known, there in self._reach(node).items() if there == key), action)

    def _take(self, node: Node[S], action: Action) -> Node[S]:
        child = self.search.child(node, action)
        self.search.measure([child])
        evaluation = self.search.evaluations.get(child.key)
        if evaluation is not None:
            self._note(node, f"{action}: {_verdict(evaluation)}")
        return child

    def _refuse(self, node: Node[S], action: Action, reason: str) -> None:
        self.refused = STALE if reason.startswith(f"{SPENT}:") else self.refused + 1
        self.search.refuse(node, action, reason)
        self._note(node, f"refused, {reason}" if action == ANSWER else f"{action}: refused, {reason}")

    def _note(self, node: Node[S], line: str) -> None:
        self.attempts.append(_Attempt(node.key, shorten(line, TOLD)))

    def _history(self, node: Node[S]) -> tuple[str, ...]:
        """All attempts, those at this state last: they matter most."""
        elsewhere = (f"on another program, {line}" for key, line in self.attempts if key != node.key)
        here = (line for key, line in self.attempts if key == node.key)
        return (*elsewhere, *here)

    def _steps(self, node: Node[S]) -> Iterator[str]:
        for ancestor in reversed([a for a in node.lineage() if a.trace]):
            evaluation = self.search.evaluations.get(ancestor.key)
            yield f"{ancestor.trace[-1]}: {_verdict(evaluation)}" if evaluation else str(ancestor.trace[-1])

    def _offers(self, node: Node[S]) -> tuple[Action, ...]:
        """The legal actions that lead to states not measured yet."""
        return tuple(action for action, key in self._reach(node).items() if key not in self.search.evaluations)

    def _leads_on(self, node: Node[S]) -> bool:
        """Whether there is anything new to ask for: a program can always be written."""
        return self.rules.adviser.formatter.form is Form.REWRITE or bool(self._offers(node))

    def _reach(self, node: Node[S]) -> dict[Action, str]:
        """Where the legal actions of a node lead, by key."""
        known = self._ways.get(node.key)
        if known is None:
            problem = self.search.problem
            known = {action: problem.key(problem.apply(node.state, action)) for action in self.search.actions(node)}
            if not self.search.spent:
                self._ways[node.key] = known
        return known

    def _restart(self) -> Node[S] | None:
        """The fastest of the states that were left least often and lead to something new."""
        starts = {node.key: node for node in (*by_value(self.search, self.search.measured), self.search.root)}
        for node in sorted(starts.values(), key=lambda start: self.left[start.key]):
            if len(node.trace) < self.rules.depth and self._leads_on(node):
                return node
        return None


def _verdict(evaluation: Evaluation) -> str:
    if evaluation.speedup is not None:
        return f"{evaluation.speedup:.3g}x"
    return f"{evaluation.status}, {evaluation.detail}" if evaluation.detail else str(evaluation.status)
