"""Frontier search: one open list, from which the most promising states are measured, round by round.

Expanding is cheaper than measuring, so while a batch is measured the search looks ahead under the proposer, many
steps deep over several rounds, and spends the next evaluations only on what that finds. What was measured then
corrects the predictions for its descendants, and how far predicted gains are trusted at all.

After beam search with a learned cost model (Adams et al., "Learning to Optimize Halide with Tree Search
and Random Programs", SIGGRAPH 2019) and the evolutionary refinement of traces of MetaSchedule (Shao et
al., "Tensor Program Optimization with Probabilistic Programs", NeurIPS 2022).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from agents.base import Explorer, Node, Search, by_value, pipeline
from agents.proposers import CostModel, Proposer
from envs.common.actions import Action

S = TypeVar("S")
T = TypeVar("T")

WORTH = 0.01
"""Predicted log speedup below which a step is not worth looking further for: 1 %."""

REACH = 12
"""Levels of a lookahead at most: under a proposer whose scores are noise, predictions never stop rising."""

PLANNED = 2
"""Levels of a lookahead at which the problem's plans are followed too: a plan may build on another."""


@dataclass(frozen=True, slots=True)
class Beam(Explorer):
    """Beam search that looks ahead under a proposer and measures what it finds.

    A round: look ahead from the `width` fastest measured states, by single actions and by the problem's plans,
    until predictions stop rising or `expansions` states were expanded that were not before, keeping `width` states at
    each level; vary the traces of the fastest; put all that into the open list; measure the best `batch` of it. A
    parent stays in the beam until something faster was measured. With a width of one this is greedy search.
    """

    width: int = 6
    """States kept at each level of the lookahead, and measured states it starts from."""
    depth: int = 40
    """Longest trace."""
    patience: int = 3
    """Levels in a row without a prediction better by `WORTH` after which the lookahead turns back."""
    branch: int = 16
    """Children kept of each expanded state."""
    batch: int = 2
    """States measured in a round, while the next are chosen."""
    variants: int = 8
    """Varied traces in a round."""
    expansions: int = 3
    """States expanded anew in a round, by the lookahead and by variation each; the rest waits for later rounds."""
    proposer: Proposer = field(default_factory=CostModel)

    def __post_init__(self) -> None:
        smallest = min(self.width, self.depth, self.patience, self.branch, self.batch, self.expansions)
        if smallest < 1:
            raise ValueError(f"width, depth, patience, branch, batch and expansions are at least 1, got {smallest}")

    def _explore(self, search: Search[Any]) -> None:
        frontier = Frontier(search, self.proposer, self.branch)

        def choose() -> list[Node[Any]]:
            parents = by_value(search, search.measured)[: self.width] or [search.root]
            while True:
                frontier.allow(self.expansions)
                frontier.look_ahead(parents, self.width, self.depth, self.patience)
                complete = frontier.affords
                frontier.allow(self.expansions)
                frontier.vary(parents, self.variants)
                chosen = frontier.choose(self.batch)
                if chosen or complete or search.spent:
                    return chosen

        pipeline(search, choose, frontier.learn)


def greedy(**parameters: Any) -> Beam:
    """Greedy search: a beam of one."""
    return Beam(width=1, **parameters)


class Frontier(Generic[S]):
    """The open list of one search: nodes that were met and not measured."""

    def __init__(self, search: Search[S], proposer: Proposer, branch: int) -> None:
        self.search = search
        self._proposer = proposer
        self._branch = branch
        self._open: dict[str, Node[S]] = {}
        self._children: dict[str, tuple[Node[S], ...]] = {}
        self._ends: dict[str, tuple[Node[S], ...]] = {}
        self._steps: dict[tuple[str, Action], Node[S] | str] = {}
        self._planned: set[str] = set()
        self._left: float = math.inf
        self._trust = 1.0
        self._special = deque((self._whole_idea, self._doubtful))
        self._hoped: dict[str, float] = {}
        self._worst: Node[S] | None = None
        self._passed: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    def allow(self, expansions: int) -> None:
        """Expand at most so many states from now on; others seem to have no children until more are allowed."""
        self._left = expansions

    @property
    def affords(self) -> bool:
        """Whether another state may be expanded."""
        return self._left > 0

    def expandable(self, node: Node[S]) -> bool:
        """Whether a node may be a parent, and its children are known or may be."""
        return self.search.fertile(node) and (self.affords or node.key in self._children)

    def _pay(self) -> bool:
        """Expand one more state, if that is allowed."""
        paid = self.affords
        self._left -= paid
        return paid

    def predict(self, node: Node[S]) -> float:
        """The log speedup to expect of a node.

        That of its nearest measured ancestor, and what can be hoped for of the gain predicted since: the
        part of predictions that is borne out, times the odds that a relative of the node verifies.
        """
        ancestor = next((a for a in node.lineage() if self.search.value(a) is not None), self.search.root)
        gain = self._trust * (node.potential - ancestor.potential)
        return (self.search.value(ancestor) or 0.0) + (gain * self._odds(node) if gain > 0 else gain)

    def _odds(self, node: Node[S]) -> float:
        """The share of measured descendants that verified, of the ancestor (short of the root) where it is worst."""
        if not self._failed:
            return 1.0
        tallies = ((1 + self._passed[a.key], self._failed[a.key]) for a in node.lineage() if a.parent is not None)
        return min((passed / (passed + failed) for passed, failed in tallies), default=1.0)

    def borne_out(self) -> float:
        """How much of a predicted gain is borne out: ridge regression through the root, towards 1."""
        root = self.search.value(self.search.root) or 0.0
        gains = [(node.potential, (self.search.value(node) or 0.0) - root) for node in self.search.measured]
        covariance = 1.0 + sum(predicted * actual for predicted, actual in gains)
        variance = 1.0 + sum(predicted * predicted for predicted, _ in gains)
        return min(max(covariance / variance, 0.1), 1.5)

    def look_ahead(self, parents: list[Node[S]], width: int, depth: int, patience: int) -> None:
        """Run a beam under the proposer from `parents`; all it meets enters the open list."""
        level = [parent for parent in parents if len(parent.trace) < depth]
        met = {self.search.root.key, *(parent.key for parent in parents)}
        best, idle = -math.inf, 0
        for height in range(REACH):
            found = [child for node in level for child in self._children_of(node)]
            if height < PLANNED:
                found += (end for node in level if node.key in self._children for end in self._ends_of(node))
            found = [node for node in {n.key: n for n in found}.values() if node.key not in met]
            if not found or self.search.spent:
                return
            met.update(node.key for node in found)
            self._enter(*found)
            found.sort(key=self.predict, reverse=True)
            top = self.predict(found[0])
            best, idle = (top, 0) if top > best + WORTH else (best, idle + 1)
            if idle == patience:
                return
            longer = (node for node in found if len(node.trace) < depth and self.search.fertile(node))
            level = spread(longer, width, lambda node: node.trace[-1].name, math.ceil(width / 2))

    def vary(self, parents: list[Node[S]], count: int) -> None:
        """Enter traces like those of `parents`: one action dropped, or other sites or parameters for it."""
        pairs = [(parent, n) for parent in parents for n in range(len(parent.trace))]
        for which in self.search.rng.permutation(len(pairs))[:count]:
            parent, position = pairs[which]
            start = self.follow(self.search.root, parent.trace[:position])
            old, suffix = parent.trace[position], parent.trace[position + 1 :]
            listed = self.search.actions(start) if self.search.expanded(start) or self._pay() else ()
            others = [a for a in listed if a.name == old.name and a != old]
            choice = int(self.search.rng.integers(len(others) + 1))
            changed = (others[choice],) if choice < len(others) else ()
            self._enter(self.follow(start, (*changed, *suffix)))

    def follow(self, node: Node[S], actions: Iterable[Action]) -> Node[S]:
        """Apply `actions` in turn, skipping those that are refused and those of a failed parent."""
        for action in actions:
            if not self.search.fertile(node):
                break
            step = self._step(node, action)
            if isinstance(step, str):
                self.search.refuse(node, action, step)
            else:
                node = step
        return node

    def _step(self, node: Node[S], action: Action) -> Node[S] | str:
        """The node that an action leads to, or why it does not apply."""
        known = self._steps.get((node.key, action))
        if known is None:
            refusal = self.search.problem.refusal(node.state, action)
            known = refusal or self.search.child(node, action, self._gain(node, action))
            self._steps[node.key, action] = known
        return known

    def successors(self, node: Node[S]) -> list[Node[S]]:
        """The children that the proposer likes and, near the root, the ends of plans; the most promising first."""
        found = {child.key: child for child in self._children_of(node)}
        if len(node.trace) < PLANNED:
            found |= {end.key: end for end in self._ends_of(node)}
        return sorted(found.values(), key=self.predict, reverse=True)

    def choose(self, count: int) -> list[Node[S]]:
        """The `count` best of the open list, to be measured.

        Siblings by the same strategy wait for each other's result. Every second place goes in turn to the best end of
        a plan, a whole idea where most states are half of one, and to the middle of the longest unmeasured stretch on
        the way to the state that disappointed most lately: there, the model has gone astray.
        """
        self._open = {key: node for key, node in self._open.items() if self.search.fresh(node)}
        order = sorted(self._open.values(), key=self.predict, reverse=True)
        self._special.rotate()
        special = [node for pick in self._special if (node := pick(order))][: count // 2]
        ranked = {node.key: node for node in (*special, *order)}
        chosen = spread(ranked.values(), count, _brood, 1)
        self._hoped |= {node.key: self.predict(node) for node in chosen}
        return chosen

    def _whole_idea(self, order: list[Node[S]]) -> Node[S] | None:
        return next((node for node in order if node.key in self._planned), None)

    def _doubtful(self, order: list[Node[S]]) -> Node[S] | None:
        return midway(self._worst, self.search.fresh) if self._worst else None

    def learn(self, measured: Iterable[Node[S]]) -> None:
        """Correct the predictions by what the chosen turned out to be."""
        missed = {}
        for node in measured:
            value = self.search.value(node)
            tally = self._failed if value is None else self._passed
            tally.update(ancestor.key for ancestor in node.lineage())
            missed[self._hoped.pop(node.key, -math.inf) - (value or 0.0)] = node
        self._worst = missed[max(missed)] if missed else None
        self._trust = self.borne_out()

    def _enter(self, *nodes: Node[S]) -> None:
        self._open.update({node.key: node for node in nodes if node.trace and self.search.fresh(node)})

    def _children_of(self, node: Node[S]) -> tuple[Node[S], ...]:
        known = self._children.get(node.key)
        if known is None:
            if not self._pay():
                return ()
            actions = self.search.actions(node)
            scores = self._rank(node, actions)
            order = sorted(range(len(actions)), key=lambda n: -scores[n])[: self._branch]
            kept = (self.search.child(node, actions[n], scores[n]) for n in order if scores[n] > -math.inf)
            known = self._children[node.key] = tuple(kept)
        return known

    def _ends_of(self, node: Node[S]) -> tuple[Node[S], ...]:
        """Where the problem's plans lead to from a node."""
        known = self._ends.get(node.key)
        if known is None:
            ends = (self.follow(node, plan) for plan in self.search.problem.plans(node.state))
            known = self._ends[node.key] = tuple(end for end in ends if end is not node)
            self._planned.update(end.key for end in known)
        return known

    def _rank(self, node: Node[S], actions: tuple[Action, ...]) -> list[float]:
        return list(self._proposer.rank(self.search.problem, node.state, actions, self.search.rng))

    def _gain(self, node: Node[S], action: Action) -> float:
        (score,) = self._rank(node, (action,))
        return score


def midway(node: Node[S], fresh: Callable[[Node[S]], bool]) -> Node[S] | None:
    """The middle of the longest run of fresh nodes on the way to `node`, if there is a run."""
    runs = (list(run) for is_fresh, run in itertools.groupby(node.lineage(), fresh) if is_fresh)
    longest = max(runs, key=len, default=[])
    return longest[len(longest) // 2] if longest else None


def _brood(node: Node[S]) -> tuple[tuple[Action, ...], str]:
    return node.trace[:-1], node.trace[-1].name


def spread(ranked: Iterable[T], count: int, group: Callable[[T], Hashable], cap: int) -> list[T]:
    """Take the first `count` with at most `cap` of a group; if that leaves room, fill up in order.

    >>> spread("aaabc", 3, str, 1)
    ['a', 'b', 'c']
    """
    taken: dict[Hashable, int] = {}
    first: list[T] = []
    rest: list[T] = []
    for item in ranked:
        label = group(item)
        taken[label] = taken.get(label, 0) + 1
        (first if taken[label] <= cap else rest).append(item)
        if len(first) == count:
            break
    return list(itertools.islice(itertools.chain(first, rest), count))
