"""Monte-Carlo tree search with the proposer as prior and measured speedups as values.

Selection is PUCT (Silver et al., "Mastering the game of Go without human knowledge", Nature 2017). From a leaf a
rollout follows the proposer, and the best state that it predicts on the way is measured: an unfinished schedule
says little about what it leads to. Since the goal is one fast program and not a policy, a state is worth a mix of
the mean and the best of what was found below it (Schadd et al., "Single-Player Monte-Carlo Tree Search", 2008).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from agents.base import Explorer, Node, Search, pipeline
from agents.frontier import Frontier
from agents.proposers import CostModel, Proposer

S = TypeVar("S")

STALE = 64
"""Simulations in a row that end at a state measured before, after which nothing new is expected."""


@dataclass(slots=True)
class _Edge(Generic[S]):
    """A way from a state to a successor, and what came of going there."""

    node: Node[S]
    prior: float
    visits: int = 0
    total: float = 0.0
    best: float = -1.0
    pending: int = 0
    """Visits whose measurement is outstanding: each counts as a loss until then."""


@dataclass(frozen=True, slots=True)
class MCTS(Explorer):
    """Monte-Carlo tree search; leaves are measured in batches, kept apart by virtual losses."""

    exploration: float = 0.6
    """Weight of the prior against the value."""
    optimism: float = 0.5
    """Share of the best result in a state's value; the rest is the mean."""
    scale: float = 3.0
    """Log speedup that is worth 1; values are bounded by -1 and 1."""
    temperature: float = 0.3
    """Predicted log speedup that makes one successor e times as likely as another."""
    branch: int = 16
    """Successors of a state, plans aside."""
    depth: int = 40
    """Longest trace."""
    rollout: int = 4
    """Steps of a rollout."""
    batch: int = 2
    """States measured at once, while the next are chosen."""
    expansions: int = 4
    """States expanded anew to choose a batch."""
    proposer: Proposer = field(default_factory=CostModel)

    def __post_init__(self) -> None:
        smallest = min(self.branch, self.depth, self.batch, self.expansions)
        if smallest < 1:
            raise ValueError(f"branch, depth, batch and expansions are at least 1, got {smallest}")
        if min(self.scale, self.temperature) <= 0:
            raise ValueError(f"scale and temperature are positive, got {self.scale} and {self.temperature}")

    def _explore(self, search: Search[Any]) -> None:
        _Tree(search, self).grow()


class _Tree(Generic[S]):
    """The tree of one search. States that are reached in several ways share their edges."""

    def __init__(self, search: Search[S], rules: MCTS) -> None:
        self.search, self.rules = search, rules
        self.frontier = Frontier(search, rules.proposer, rules.branch)
        self.edges: dict[str, list[_Edge[S]]] = {}
        self.waiting: list[tuple[list[_Edge[S]], Node[S]]] = []

    def grow(self) -> None:
        pipeline(self.search, self._choose, lambda measured: self._learn())

    def _choose(self) -> list[Node[S]]:
        """Simulate until there is a batch of new ends; none when nothing new is found."""
        chosen: dict[str, Node[S]] = {}
        stale = 0
        self.frontier.allow(self.rules.expansions)
        while len(chosen) < self.rules.batch and not self.search.spent:
            if stale == STALE and (chosen or self.frontier.affords):
                break
            if stale == STALE:
                self.frontier.allow(self.rules.expansions)
                stale = 0
            path, end = self._simulate()
            if self.search.fresh(end) and end.key not in chosen:
                chosen[end.key] = end
                stale = 0
            else:
                stale += 1
            for edge in path:
                edge.pending += 1
            self.waiting.append((path, end))
            self._learn()
        return list(chosen.values())

    def _learn(self) -> None:
        """Back up what is known by now of the ends of simulations."""
        known = [item for item in self.waiting if item[1].key in self.search.evaluations]
        self.waiting = [item for item in self.waiting if item[1].key not in self.search.evaluations]
        for path, end in known:
            for edge in path:
                edge.pending -= 1
            self._backup(path, end)

    def _simulate(self) -> tuple[list[_Edge[S]], Node[S]]:
        """Go down to a state that was not visited, and on from there by a rollout: the way, and what to measure."""
        node, path = self.search.root, list[_Edge[S]]()
        while len(path) < self.rules.depth and self.frontier.expandable(node):
            edges = self._edges(node)
            if not edges:
                break
            edge = max(edges, key=self._promise(edges))
            path.append(edge)
            node = edge.node
            if not edge.visits:
                break
        return path, self._rollout(node)

    def _edges(self, node: Node[S]) -> list[_Edge[S]]:
        known = self.edges.get(node.key)
        if known is None:
            found = [child for child in self.frontier.successors(node) if len(child.trace) <= self.rules.depth]
            predicted = np.array([self.frontier.predict(child) for child in found])
            weights = np.exp((predicted - predicted.max(initial=-math.inf)) / self.rules.temperature)
            known = [_Edge(child, w / weights.sum()) for child, w in zip(found, weights.tolist(), strict=True)]
            self.edges[node.key] = known
        return known

    def _promise(self, edges: list[_Edge[S]]) -> Any:
        """PUCT: value and prior of an edge; one that was not taken has the value that is predicted."""
        visits = sum(edge.visits + edge.pending for edge in edges)

        def promise(edge: _Edge[S]) -> float:
            taken = edge.visits + edge.pending
            if edge.visits:
                mean = (edge.total - edge.pending) / taken
                value = self.rules.optimism * edge.best + (1 - self.rules.optimism) * mean
            else:
                value = self._bounded(self.frontier.predict(edge.node)) - edge.pending
            return value + self.rules.exploration * edge.prior * math.sqrt(visits + 1) / (1 + taken)

        return promise

    def _rollout(self, node: Node[S]) -> Node[S]:
        """Follow the proposer, noisily, and return the state on the way that is predicted to be the fastest."""
        best = node
        for _ in range(self.rules.rollout):
            if len(node.trace) >= self.rules.depth or not self.frontier.expandable(node):
                break
            found = self.frontier.successors(node)
            if not found:
                break
            noise = self.rules.temperature * self.search.rng.gumbel(size=len(found))
            predicted = [self.frontier.predict(child) for child in found]
            node = found[int(np.argmax(np.array(predicted) + noise))]
            if self.search.fresh(node) and (not self.search.fresh(best) or self._better(node, best)):
                best = node
        return best

    def _better(self, node: Node[S], than: Node[S]) -> bool:
        return self.frontier.predict(node) > self.frontier.predict(than)

    def _backup(self, path: list[_Edge[S]], end: Node[S]) -> None:
        value = self.search.value(end)
        bounded = -1.0 if value is None else self._bounded(value)
        for edge in path:
            edge.visits += 1
            edge.total += bounded
            edge.best = max(edge.best, bounded)

    def _bounded(self, log_speedup: float) -> float:
        return min(max(log_speedup / self.rules.scale, -1.0), 1.0)
