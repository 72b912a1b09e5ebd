"""Tree search over measured states: breadth-first, depth-first, best-first, and the chain that never looks back.

A state's successors are the children that the proposer likes best and the ends of the problem's plans. All of
them are measured, and those that verify are expanded in turn; the order is all that tells these searches apart.
After the searches that Step-TP compares (arXiv 2605.25954), with one budget and one ledger.
"""

from __future__ import annotations

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


_NEXT: Mapping[Order, Callable[[Search[Any], list[Node[Any]]], int]] = {
    Order.BREADTH: lambda search, waiting: 0,
    Order.DEPTH: lambda search, waiting: len(waiting) - 1,
    Order.BEST: lambda search, waiting: max(
        range(len(waiting)), key=lambda n: (search.value(waiting[n]) or 0.0, -len(waiting[n].trace))
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
    """Actions after which a state is no longer expanded."""
    proposer: Proposer = field(default_factory=CostModel)

    def __post_init__(self) -> None:
        if min(self.branch, self.depth) < 1:
            raise ValueError(f"branch and depth are at least 1, got {self.branch} and {self.depth}")

    def _explore(self, search: Search[Any]) -> None:
        search.measure([search.root])
        frontier = Frontier(search, self.proposer, CONSIDERED)
        waiting = [search.root]
        while waiting and not search.spent:
            node = waiting.pop(_NEXT[self.order](search, waiting))
            if not search.fertile(node) or len(node.trace) >= self.depth:
                continue
            found = [child for child in frontier.successors(node) if search.fresh(child)][: self.branch]
            search.measure(found)
            waiting += found if self.order is Order.BREADTH else reversed(found)


@dataclass(frozen=True, slots=True)
class Chain(Explorer):
    """Takes one step after another, each the proposer's first choice that verifies, and never looks back.

    At the end of a chain (no new action left, or `depth` steps) another begins at the fastest state that has a new
    successor.
    """

    depth: int = 20
    """Longest chain."""
    branch: int = 16
    """Choices tried for a step before the chain ends."""
    proposer: Proposer = field(default_factory=CostModel)

    def __post_init__(self) -> None:
        if min(self.branch, self.depth) < 1:
            raise ValueError(f"branch and depth are at least 1, got {self.branch} and {self.depth}")

    def _explore(self, search: Search[Any]) -> None:
        search.measure([search.root])
        frontier = Frontier(search, self.proposer, CONSIDERED)
        node: Node[Any] | None = search.root
        while node and not search.spent:
            step = self._step(search, frontier, node) if len(node.trace) < self.depth else None
            node = step or self._restart(search, frontier)

    def _restart(self, search: Search[Any], frontier: Frontier[Any]) -> Node[Any] | None:
        """The fastest state that has a new successor."""
        for node in (*by_value(search, search.measured), search.root):
            if len(node.trace) < self.depth and any(map(search.fresh, frontier.successors(node))):
                return node
        return None

    def _step(self, search: Search[Any], frontier: Frontier[Any], node: Node[Any]) -> Node[Any] | None:
        for child in frontier.successors(node)[: self.branch]:
            if search.fresh(child) and not search.spent:
                search.measure([child])
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
