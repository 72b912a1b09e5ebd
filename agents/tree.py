"""Tree search over measured states: breadth-first, depth-first, best-first, and the chain that never looks back.

A state's successors are the children that the proposer likes best and the ends of the problem's plans. All of
them are measured, and those that verify are expanded in turn; the order is all that tells these searches apart.
After the searches that Step-TP compares (arXiv 2605.25954), with one budget and one ledger.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agents.base import Explorer, Node, Search, by_value
from agents.frontier import Frontier
from agents.proposers import CostModel, Proposer

CONSIDERED = 48
"""Children of a state that are looked at; of those that are new, the best are measured."""


class Order(StrEnum):
    """Which of the measured states is expanded next."""

    BREADTH = "breadth"
    """The one measured first."""
    DEPTH = "depth"
    """The one measured last; of siblings, the most promising."""
    BEST = "best"
    """The fastest."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A measured state that waits to be expanded, and its steps from the root."""

    node: Node[Any]
    steps: int


_NEXT: Mapping[Order, Callable[[Search[Any], list[_Waiting]], int]] = {
    Order.BREADTH: lambda search, waiting: 0,
    Order.DEPTH: lambda search, waiting: len(waiting) - 1,
    Order.BEST: lambda search, waiting: max(
        range(len(waiting)), key=lambda n: (search.value(waiting[n].node) or 0.0, -waiting[n].steps)
    ),
}
"""The position of the state to expand, among those that wait, in the order in which they were met."""


@dataclass(frozen=True, slots=True)
class TreeSearch(Explorer):
    """Expands one measured state after another, in a given order, and measures its successors."""

    order: Order = Order.BEST
    branch: int = 4
    """Successors measured of each state."""
    depth: int = 12
    """Steps after which a state is no longer expanded; an action is one, and so is a whole plan."""
    proposer: Proposer = field(default_factory=CostModel)

    def __post_init__(self) -> None:
        if min(self.branch, self.depth) < 1:
            raise ValueError(f"branch and depth are at least 1, got {self.branch} and {self.depth}")

    def _explore(self, search: Search[Any]) -> None:
        frontier = Frontier(search, self.proposer, CONSIDERED)
        search.measure([search.root], functools.partial(frontier.successors, search.root))
        waiting = [_Waiting(search.root, 0)]
        while waiting and not search.spent:
            chosen = waiting.pop(_NEXT[self.order](search, waiting))
            if not search.fertile(chosen.node) or chosen.steps >= self.depth:
                continue
            found = [child for child in frontier.successors(chosen.node) if search.fresh(child)][: self.branch]
            entered = [_Waiting(child, chosen.steps + 1) for child in found]
            waiting += entered if self.order is Order.BREADTH else reversed(entered)
            likely = waiting[0 if self.order is Order.BREADTH else -1].node if waiting else search.root
            search.measure(found, functools.partial(frontier.successors, likely))


@dataclass(frozen=True, slots=True)
class Chain(Explorer):
    """Takes one step after another, each the proposer's first choice that verifies, and never looks back.

    At the end of a chain (no new step left, or `depth` of them) another begins at the fastest state that has a new
    successor.
    """

    depth: int = 20
    """Steps of the longest chain; an action is one, and so is a whole plan."""
    branch: int = 16
    """New choices tried for a step before the chain ends."""
    proposer: Proposer = field(default_factory=CostModel)

    def __post_init__(self) -> None:
        if min(self.branch, self.depth) < 1:
            raise ValueError(f"branch and depth are at least 1, got {self.branch} and {self.depth}")

    def _explore(self, search: Search[Any]) -> None:
        frontier = Frontier(search, self.proposer, CONSIDERED)
        search.measure([search.root], functools.partial(frontier.successors, search.root))
        start: Node[Any] | None = search.root
        while start and not search.spent:
            self._chain(search, frontier, start)
            ranked = (*by_value(search, search.measured), search.root)
            start = next((node for node in ranked if any(map(search.fresh, frontier.successors(node)))), None)

    def _chain(self, search: Search[Any], frontier: Frontier[Any], node: Node[Any]) -> None:
        for _ in range(self.depth):
            step = self._step(search, frontier, node)
            if step is None:
                return
            node = step

    def _step(self, search: Search[Any], frontier: Frontier[Any], node: Node[Any]) -> Node[Any] | None:
        fresh = [child for child in frontier.successors(node) if search.fresh(child)]
        for child in fresh[: self.branch]:
            if search.spent:
                return None
            search.measure([child], functools.partial(frontier.successors, child))
            if search.fertile(child):
                return child
        return None


def breadth_first(**parameters: Any) -> TreeSearch:
    """Breadth-first search."""
    return TreeSearch(Order.BREADTH, **parameters)


def depth_first(**parameters: Any) -> TreeSearch:
    """Depth-first search."""
    return TreeSearch(Order.DEPTH, **parameters)


def best_first(**parameters: Any) -> TreeSearch:
    """Best-first search."""
    return TreeSearch(Order.BEST, **parameters)
