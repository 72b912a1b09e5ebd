"""What every search shares: the budget, the events, the ledger of what was tried, and the result.

An agent knows the problem core and nothing of any environment. It asks the ledger (`Search`) for the legal
actions of a node, for children and for evaluations; the ledger counts, never evaluates a key twice, and
keeps the best. Progress bars, plots, logs and datasets listen to events.
"""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from agents.alongside import alongside, spare_core
from agents.proposers import Proposer
from envs.common.actions import STOP, Action
from envs.common.evaluation import Evaluation
from envs.common.problem import Problem

S = TypeVar("S")
T = TypeVar("T")
Clock = Callable[[], float]

AGENTS: dict[str, str] = {
    "random": "agents.random_walk:RandomWalk",
    "greedy": "agents.frontier:greedy",
    "beam": "agents.frontier:Beam",
    "bfs": "agents.tree:breadth_first",
    "dfs": "agents.tree:depth_first",
    "best-first": "agents.tree:best_first",
    "chain": "agents.tree:Chain",
    "mcts": "agents.mcts:MCTS",
    "annealing": "agents.traces:Annealing",
    "genetic": "agents.traces:Genetic",
    "llm": "agents.llm.agent:LLMAgent",
    "ppo": "agents.rl.policy:Trained",
}
"""Every agent by name, as `module:factory`; a factory takes the agent's parameters by keyword."""

PROPOSERS: dict[str, str] = {
    "uniform": "agents.proposers:Uniform",
    "heuristic": "agents.proposers:Heuristic",
    "cost": "agents.proposers:CostModel",
    "llm": "agents.llm.proposer:LLMProposer",
}
"""Every proposer by name, likewise. Agents that have a parameter `proposer` run with any of them."""


STALE = 200
"""Nodes in a row that were met before, after which nothing new is expected."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a search may spend. It ends when the first of these is spent; None is no limit."""

    evaluations: int = 64
    """Distinct states built, verified and measured; the root counts."""
    expansions: int | None = None
    """Distinct states whose legal actions were listed."""
    seconds: float | None = None
    """Wall time. A batch that has begun is finished."""

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise ValueError(f"a budget has at least 1 evaluation (the root's), got {self.evaluations}")
        if min(self.expansions or 0, self.seconds or 0) < 0:
            raise ValueError(f"a budget isn't negative: {self.expansions} expansions, {self.seconds} seconds")


class Ended(StrEnum):
    """Why a search ended."""

    EVALUATIONS = "evaluations"
    """As many evaluations as the budget allows."""
    EXPANSIONS = "expansions"
    """As many expansions as the budget allows."""
    SECONDS = "seconds"
    """As long as the budget allows."""
    EXHAUSTED = "exhausted"
    """The agent found nothing new to try."""
    INTERRUPTED = "interrupted"
    """The user pressed Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a search spent."""

    evaluations: int
    expansions: int
    generated: int
    """Distinct states reached."""
    seconds: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best candidate of a search and how it was come by."""

    task: str
    actions: tuple[Action, ...]
    """From the root to the best verified state; empty where that is the root, or nothing verified."""
    evaluation: Evaluation | None
    """Of the best state; None if nothing verified."""
    root: Evaluation | None
    """Of the root; None if the search was interrupted before it was known."""
    curve: tuple[float | None, ...]
    """The best speedup over the baseline after each evaluation; None while nothing has verified."""
    counts: Counts
    ended: Ended


@dataclass(frozen=True, slots=True)
class Expanded:
    """The legal actions of a state were listed for the first time."""

    trace: tuple[Action, ...]
    actions: int
    """How many there are, `stop` left out."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A state was evaluated."""

    trace: tuple[Action, ...]
    evaluation: Evaluation
    count: int
    """Evaluations so far, this one included."""


@dataclass(frozen=True, slots=True)
class Improved:
    """A state verified and is faster than all before it."""

    trace: tuple[Action, ...]
    evaluation: Evaluation
    count: int


@dataclass(frozen=True, slots=True)
class Refused:
    """An action that was proposed does not apply; it was skipped."""

    trace: tuple[Action, ...]
    action: Action
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The search ended; the last event."""

    result: SearchResult


Event = Expanded | Evaluated | Improved | Refused | Done
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""


class Agent(Protocol):
    """A search over any problem. Frozen: its parameters are its fields."""

    def solve(
        self,
        problem: Problem[Any],
        budget: Budget,
        rng: np.random.Generator,
        on_event: Listener = ignore,
        clock: Clock = time.monotonic,
    ) -> SearchResult:
        """Search until the budget is spent or nothing is left; Ctrl-C gives the best so far."""
        ...


def make_agent(name: str, **parameters: Any) -> Agent:
    """Build the agent called `name`. Raises `ValueError` for an unknown name."""
    agent: Agent = factory("agent", AGENTS, name)(**parameters)
    return agent


def make_proposer(name: str, **parameters: Any) -> Proposer:
    """Build the proposer called `name`. Raises `ValueError` for an unknown name."""
    proposer: Proposer = factory("proposer", PROPOSERS, name)(**parameters)
    return proposer


def own_proposer(name: str) -> str | None:
    """The proposer that the agent called `name` has unless it is given another; None if it takes none."""
    kind = type(getattr(make_agent(name), "proposer", None))
    return next((known for known, path in PROPOSERS.items() if path == f"{kind.__module__}:{kind.__name__}"), None)


def factory(what: str, table: Mapping[str, str], name: str) -> Callable[..., Any]:
    """The entry of a table of `module:factory`, imported. Raises `ValueError` for an unknown name."""
    if name not in table:
        raise ValueError(f"no {what} is called {name}; there are {', '.join(table)}")
    module, _, attribute = table[name].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


@dataclass(frozen=True, slots=True)
class Node(Generic[S]):
    """A state as a search reached it."""

    state: S
    key: str
    trace: tuple[Action, ...] = ()
    potential: float = 0.0
    """Sum of the proposer's scores along the trace; under a cost model, the predicted gain over the root."""
    parent: Node[S] | None = None

    def lineage(self) -> Iterator[Node[S]]:
        """Yield the node, its parent, and so on to the root."""
        node: Node[S] | None = self
        while node is not None:
            yield node
            node = node.parent


class Search(Generic[S]):
    """The ledger of one search: the only thing in it that changes.

    A state that failed is never a parent (`fertile`). The root always is, since there is nowhere else to
    start from: one that runs into the time limit may have fast descendants.

    While a batch is measured a search may go on (`measure`, `pipeline`). It sees no result before the batch is done,
    so that what it decides never depends on how long anything takes.
    """

    def __init__(
        self, problem: Problem[S], budget: Budget, rng: np.random.Generator, on_event: Listener, clock: Clock
    ) -> None:
        self.problem = problem
        self.budget = budget
        self.rng = rng
        self.root = Node(problem.root, problem.key(problem.root))
        self.evaluations: dict[str, Evaluation] = {}
        self.best: Node[S] | None = None
        self.measured: list[Node[S]] = []
        self._listen = on_event
        self._abandoned = False
        self._waiting: frozenset[str] = frozenset()
        self._clock = clock
        self._started = clock()
        self._legal: dict[str, tuple[Action, ...]] = {}
        self._nodes = {self.root.key: self.root}
        self._curve: list[float | None] = []

    @property
    def spent(self) -> Ended | None:
        """Which part of the budget is spent, or None."""
        budget = self.budget
        if self._abandoned:
            return Ended.INTERRUPTED
        if len(self.evaluations) >= budget.evaluations:
            return Ended.EVALUATIONS
        if budget.expansions is not None and len(self._legal) >= budget.expansions:
            return Ended.EXPANSIONS
        if budget.seconds is not None and self._clock() - self._started >= budget.seconds:
            return Ended.SECONDS
        return None

    def actions(self, node: Node[S]) -> tuple[Action, ...]:
        """The legal actions without `stop`; the first time is an expansion, and none beyond the budget."""
        known = self._legal.get(node.key)
        if known is None:
            if self.spent:
                return ()
            known = tuple(action for action in self.problem.legal(node.state) if action != STOP)
            self._legal[node.key] = known
            self._emit(Expanded(node.trace, len(known)))
        return known

    def expanded(self, node: Node[S]) -> bool:
        """Whether the legal actions of the node were listed."""
        return node.key in self._legal

    def child(self, node: Node[S], action: Action, gain: float = 0.0) -> Node[S]:
        """The node that a legal action leads to; `gain` adds to its potential.

        One key has one node, the first that was reached: states of equal key may differ in their names, so
        that the actions of one need not apply to the other.
        """
        state = self.problem.apply(node.state, action)
        key = self.problem.key(state)
        if key not in self._nodes:
            self._nodes[key] = Node(state, key, (*node.trace, action), node.potential + gain, node)
        return self._nodes[key]

    def refuse(self, node: Node[S], action: Action, reason: str) -> None:
        """Note that a proposed action does not apply."""
        self._emit(Refused(node.trace, action, reason))

    def fertile(self, node: Node[S]) -> bool:
        """Whether the node may be a parent: it has not failed, or is the root."""
        evaluation = self.evaluations.get(node.key)
        return node.key == self.root.key or evaluation is None or evaluation.status.verified

    def fresh(self, node: Node[S]) -> bool:
        """Whether the node was neither evaluated nor sent to be."""
        return node.key not in self.evaluations and node.key not in self._waiting

    def value(self, node: Node[S]) -> float | None:
        """The measured logarithm of the speedup, or None where there is none."""
        evaluation = self.evaluations.get(node.key)
        return evaluation.log_speedup if evaluation else None

    def measure(self, nodes: Iterable[Node[S]], meanwhile: Callable[[], T] | None = None) -> T | None:
        """Evaluate, in one batch, those whose key is new, as far as the budget goes.

        `meanwhile` is called while that lasts, and its result returned; not if the budget is spent, or will be by
        this batch. On a machine without a core to spare it is called first.
        """
        batch = list({node.key: node for node in nodes if self.fresh(node)}.values())
        batch = batch[: self.budget.evaluations - len(self.evaluations)]
        if self.spent or len(self.evaluations) + len(batch) >= self.budget.evaluations:
            meanwhile = None
        self._waiting = frozenset(node.key for node in batch)
        records, found = self._evaluated([node.state for node in batch], meanwhile)
        self._waiting = frozenset()
        for node, evaluation in zip(batch, records, strict=True):
            self._record(node, evaluation)
        return found

    def _evaluated(self, states: list[S], meanwhile: Callable[[], T] | None) -> tuple[list[Evaluation], T | None]:
        if meanwhile is None or not states or not spare_core(getattr(self.problem, "threads", 1)):
            found = meanwhile() if meanwhile else None
            return self.problem.evaluate(states) if states else [], found
        return alongside(lambda: self.problem.evaluate(states), meanwhile, self._abandon)

    def _abandon(self) -> None:
        """What still runs beside an evaluation that failed or was interrupted finds the budget spent, and is silent."""
        self._abandoned = True

    def _emit(self, event: Event) -> None:
        if not self._abandoned:
            self._listen(event)

    def _record(self, node: Node[S], evaluation: Evaluation) -> None:
        best = self.value(self.best) if self.best else None
        self.evaluations[node.key] = evaluation
        count = len(self.evaluations)
        self._emit(Evaluated(node.trace, evaluation, count))
        value = evaluation.log_speedup
        if value is not None:
            self.measured.append(node)
            if best is None or value > best:
                self.best = node
                self._emit(Improved(node.trace, evaluation, count))
        self._curve.append(self.evaluations[self.best.key].speedup if self.best else None)

    def result(self, ended: Ended) -> SearchResult:
        """Close the ledger."""
        return SearchResult(
            task=self.problem.task,
            actions=self.best.trace if self.best else (),
            evaluation=self.evaluations[self.best.key] if self.best else None,
            root=self.evaluations.get(self.root.key),
            curve=tuple(self._curve),
            counts=Counts(len(self.evaluations), len(self._legal), len(self._nodes), self._clock() - self._started),
            ended=ended,
        )


def pipeline(
    search: Search[S],
    choose: Callable[[], list[Node[S]]],
    learn: Callable[[list[Node[S]]], None] = lambda measured: None,
) -> None:
    """Measure the root, then batch after batch, each chosen while the one before it is measured.

    `learn` is told of each batch when its results are in. Ends where nothing is chosen although all results are in.
    """
    batch = [search.root]
    while batch:
        upcoming = search.measure(batch, choose)
        learn(batch)
        batch = upcoming or ([] if search.spent else choose())
        if search.spent is Ended.SECONDS:
            return


def new_ones(search: Search[S], make: Callable[[], Node[S]], count: int) -> list[Node[S]]:
    """Make nodes until `count` of them are new; fewer if the budget is spent, or `STALE` in a row were not new."""
    found: dict[str, Node[S]] = {}
    stale = 0
    while len(found) < count and stale < STALE and not search.spent:
        node = make()
        known = node.key in found or not search.fresh(node)
        stale = stale + 1 if known else 0
        if not known:
            found[node.key] = node
    return list(found.values())


def conduct(search: Search[S], explore: Callable[[Search[S]], None], on_event: Listener) -> SearchResult:
    """Explore until that returns, and report; Ctrl-C gives the best so far.

    `explore` measures the root before anything else.
    """
    try:
        explore(search)
        ended = search.spent or Ended.EXHAUSTED
    except KeyboardInterrupt:
        ended = Ended.INTERRUPTED
    result = search.result(ended)
    on_event(Done(result))
    return result


class Explorer(ABC):
    """A search that is what it does with a ledger; its parameters are the fields of a frozen dataclass."""

    __slots__ = ()

    def solve(
        self,
        problem: Problem[Any],
        budget: Budget,
        rng: np.random.Generator,
        on_event: Listener = ignore,
        clock: Clock = time.monotonic,
    ) -> SearchResult:
        """Search until the budget is spent, or nothing new is found."""
        return conduct(Search(problem, budget, rng, on_event, clock), self._explore, on_event)

    @abstractmethod
    def _explore(self, search: Search[Any]) -> None:
        """Measure the root; then expand and measure until the budget is spent, or nothing new is found."""


def by_value(search: Search[S], nodes: Sequence[Node[S]]) -> list[Node[S]]:
    """Order measured nodes, the fastest first."""
    return sorted(nodes, key=lambda node: -(search.value(node) or 0.0))
