"""The contract of every agent, on a problem small enough to know by heart."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from agents import base
from agents.base import (
    AGENTS,
    Budget,
    Done,
    Ended,
    Evaluated,
    Event,
    Expanded,
    Improved,
    Refused,
    Search,
    SearchResult,
    ignore,
    make_agent,
)
from agents.frontier import REACH, Beam, Frontier, greedy, spread
from agents.mcts import MCTS, _Tree
from agents.proposers import CostModel, Heuristic, Uniform
from agents.traces import Annealing, Genetic
from agents.tree import Chain, TreeSearch
from envs.common.actions import parse_action
from envs.common.evaluation import Evaluation, Status
from tests.common.toy_problem import Dials, ToyProblem, valley

PROPOSERS = {"uniform": Uniform(), "heuristic": Heuristic(), "cost": CostModel()}

AGENT_UNDER_TEST = {name: make_agent(name) for name in AGENTS} | {
    f"beam-{name}": Beam(width=2, batch=3, proposer=proposer) for name, proposer in PROPOSERS.items()
}

every_agent = pytest.mark.parametrize("agent", AGENT_UNDER_TEST.values(), ids=AGENT_UNDER_TEST)


def solve(agent, problem=None, budget=None, seed=0) -> tuple[SearchResult, list[Event]]:
    events: list[Event] = []
    result = agent.solve(problem or ToyProblem(), budget or Budget(20), np.random.default_rng(seed), events.append)
    return result, events


def evaluated(events: list[Event]) -> list[Evaluated]:
    return [event for event in events if isinstance(event, Evaluated)]


@every_agent
@pytest.mark.parametrize("evaluations", [1, 2, 7, 20])
def test_evaluations_never_pass_the_budget(agent, evaluations):
    problem = ToyProblem()
    result, events = solve(agent, problem, Budget(evaluations))
    assert problem.evaluations == result.counts.evaluations == len(evaluated(events)) == evaluations
    assert result.ended is Ended.EVALUATIONS


@every_agent
@pytest.mark.parametrize("expansions", [0, 1, 5])
def test_expansions_never_pass_the_budget(agent, expansions):
    result, events = solve(agent, budget=Budget(10_000, expansions=expansions))
    assert result.counts.expansions == sum(isinstance(event, Expanded) for event in events) == expansions
    assert result.ended is Ended.EXPANSIONS


@every_agent
def test_the_clock_ends_a_search(agent):
    ticks = itertools.count()
    result = agent.solve(
        ToyProblem(), Budget(seconds=5), np.random.default_rng(0), lambda event: None, lambda: next(ticks)
    )
    assert result.ended is Ended.SECONDS


@every_agent
def test_a_seed_repeats_a_search(agent):
    assert [str(event) for event in _timeless(solve(agent, seed=3)[1])] == [
        str(event) for event in _timeless(solve(agent, seed=3)[1])
    ]


def _timeless(events: list[Event]) -> list[Event]:
    done = events[-1]
    assert isinstance(done, Done)
    return [*events[:-1], Done(replace(done.result, counts=replace(done.result.counts, seconds=0.0)))]


@every_agent
def test_the_best_never_gets_worse_and_is_what_the_result_says(agent):
    result, events = solve(agent)
    speedups = [event.evaluation.speedup for event in evaluated(events)]
    assert list(result.curve) == [max(speedups[: n + 1]) for n in range(len(speedups))]
    assert result.evaluation is not None and result.evaluation.speedup == max(speedups)
    improved = [event for event in events if isinstance(event, Improved)]
    assert improved[-1].trace == result.actions
    assert events[-1] == Done(result)


@every_agent
def test_the_root_is_evaluated_first(agent):
    result, events = solve(agent)
    first = evaluated(events)[0]
    assert (first.trace, first.count, first.evaluation) == ((), 1, result.root)


@every_agent
def test_no_key_is_evaluated_twice(agent):
    _, events = solve(agent, budget=Budget(10_000))
    keys = Counter(event.evaluation.key for event in evaluated(events))
    assert set(keys.values()) == {1}


class Strict(ToyProblem):
    """Notes every application; the toy raises on an illegal one."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.applied: list[Dials] = []

    def apply(self, state, action):
        self.applied.append(state)
        return super().apply(state, action)


@every_agent
def test_only_legal_actions_are_applied_and_the_trace_replays(agent):
    problem = Strict()
    result, _ = solve(agent, problem, Budget(40))
    state = problem.root
    for action in result.actions:
        assert action in problem.legal(state)
        state = problem.apply(state, action)
    assert result.evaluation is not None and problem.key(state) == result.evaluation.key


@every_agent
def test_a_search_of_everything_ends_exhausted_at_the_optimum(agent):
    result, _ = solve(agent, ToyProblem(top=3), Budget(10_000))
    assert result.ended is Ended.EXHAUSTED
    assert result.evaluation is not None
    if isinstance(agent, Beam):
        assert result.evaluation.speedup == pytest.approx(4.0)


class Interrupted(ToyProblem):
    """Ctrl-C during the third batch."""

    def evaluate(self, states):
        self.batches = getattr(self, "batches", 0) + 1
        if self.batches == 3:
            raise KeyboardInterrupt
        return super().evaluate(states)


@every_agent
def test_an_interrupt_gives_the_best_so_far(agent):
    result, events = solve(agent, Interrupted())
    assert result.ended == "interrupted"
    assert result.evaluation is not None
    assert result.evaluation.speedup == max(event.evaluation.speedup for event in evaluated(events))


@every_agent
def test_an_interrupt_before_the_root_is_known_gives_nothing(agent):
    problem = Interrupted()
    problem.batches = 2
    result, _ = solve(agent, problem)
    assert (result.evaluation, result.root, result.actions, result.curve) == (None, None, (), ())


FAILURES = {
    (0, 0, 1): Status.WRONG,
    (0, 1, 1): Status.CRASHED,
    (1, 1, 1): Status.TIMEOUT,
    (0, 0, 2): Status.BUILD_FAILED,
}


@every_agent
def test_failures_are_survived_and_never_parents(agent):
    problem = Strict(failures=FAILURES)
    _, events = solve(agent, problem, Budget(60))
    failed: set[str] = set()
    for event in evaluated(events):
        if not event.evaluation.status.verified:
            failed.add(event.evaluation.key)
    assert failed
    replayed = ToyProblem()
    known: set[str] = set()
    for event in events:
        if isinstance(event, Expanded):
            state = replayed.root
            for action in event.trace:
                state = replayed.apply(state, action)
            assert replayed.key(state) not in known
        if isinstance(event, Evaluated) and not event.evaluation.status.verified:
            known.add(event.evaluation.key)


@every_agent
def test_a_root_that_fails_is_still_where_the_search_starts(agent):
    result, _ = solve(agent, ToyProblem(failures={(0, 0, 0): Status.TIMEOUT}), Budget(20))
    assert result.root is not None and result.root.status is Status.TIMEOUT
    assert result.curve[0] is None
    assert result.evaluation is not None and result.actions


@every_agent
def test_nothing_verified_is_no_speedup(agent):
    class Hopeless(ToyProblem):
        def _evaluate(self, state) -> Evaluation:
            return Evaluation(self.key(state), Status.WRONG, "hopeless")

    result, _ = solve(agent, Hopeless(), Budget(10))
    assert result.evaluation is None and set(result.curve) == {None}


def traces(name: str, evaluations: int = 12, **parameters) -> list[tuple[str, ...]]:
    """What an agent measures, in order, with nothing but the order of the menu to go by."""
    agent = make_agent(name, proposer=Menu(), **parameters)
    _, events = solve(agent, ToyProblem(landscape=lambda state: 0.1 * sum(state)), Budget(evaluations))
    return [tuple(action.sites[0] for action in event.trace) for event in evaluated(events)]


class Menu:
    """Prefers actions in the order of the menu, and cares for nothing else."""

    def rank(self, problem, state, actions, rng):
        return [-1e-6 * n for n in range(len(actions))]


def test_breadth_first_measures_level_by_level():
    lengths = [len(trace) for trace in traces("bfs", branch=2, evaluations=15)]
    assert lengths == sorted(lengths) and lengths[-1] >= 3


def test_depth_first_goes_down_before_it_comes_back():
    lengths = [len(trace) for trace in traces("dfs", branch=2, depth=4, evaluations=7)]
    assert lengths[:3] == [0, 1, 2] and max(lengths) == 4


def test_a_chain_takes_one_step_after_another():
    lengths = [len(trace) for trace in traces("chain", depth=5, evaluations=6)]
    assert lengths == list(range(6))


def test_best_first_expands_the_fastest():
    problem = ToyProblem(landscape=lambda state: 1.0 * state[0] - state[1] - state[2])
    _, events = solve(make_agent("best-first", branch=3, proposer=Menu()), problem, Budget(8))
    expanded = [event.trace for event in events if isinstance(event, Expanded)]
    assert len(expanded) > 3
    assert expanded == [(parse_action("turn(a; up)"),) * n for n in range(len(expanded))]


@pytest.mark.parametrize("agent", ["beam", "best-first", "mcts", "annealing", "genetic"])
def test_every_guided_search_finds_the_top_of_a_hill(agent):
    result, _ = solve(make_agent(agent), ToyProblem(), Budget(60))
    assert result.evaluation is not None and result.evaluation.speedup == pytest.approx(4.0)


@pytest.mark.parametrize("agent", ["mcts", "annealing", "genetic"])
def test_these_searches_cross_a_valley(agent):
    result, _ = solve(make_agent(agent), ToyProblem(landscape=valley), Budget(120))
    assert result.evaluation is not None and result.evaluation.speedup > 2.0


def test_annealing_cools_down_and_takes_worse_states_while_hot():
    annealing = Annealing(hot=1.0, cold=0.01)
    assert annealing.temperature(0.0) == 1.0 and annealing.temperature(1.0) == pytest.approx(0.01)
    assert annealing.temperature(0.5) == pytest.approx(0.1)
    search = Search(
        ToyProblem(landscape=lambda state: -float(sum(state))), Budget(9), np.random.default_rng(0), ignore, lambda: 0.0
    )
    worse = search.child(search.root, parse_action("turn(a; up)"))
    search.measure([search.root, worse])
    accepted = [
        sum(annealing._accepts(search, search.root, worse, heat) for _ in range(200)) for heat in (9.0, 1.0, 0.1)
    ]
    assert accepted[0] > accepted[1] > accepted[2]


def test_a_virtual_loss_sends_the_next_simulation_elsewhere():
    problem = ToyProblem(landscape=lambda state: 0.0)
    search = Search(problem, Budget(9), np.random.default_rng(0), ignore, lambda: 0.0)
    search.measure([search.root])
    tree = _Tree(search, MCTS(rollout=0, proposer=Menu()))
    start = search.child(search.root, parse_action("turn(a; up)"))
    edges = [edge for edge in tree._edges(start) if edge.node is not search.root]
    first = max(edges, key=tree._promise(edges))
    first.pending += 1
    assert max(edges, key=tree._promise(edges)) is not first


PIPELINED = ("random", "greedy", "beam", "mcts", "genetic", "ppo")


class Slow(ToyProblem):
    """Measures for as long as it is told to; results and the order of calls stay the same."""

    pause = 0.0

    def evaluate(self, states):
        time.sleep(self.pause)
        return super().evaluate(states)


@pytest.mark.parametrize("agent", PIPELINED)
@pytest.mark.parametrize("spare", [True, False])
def test_what_a_search_decides_does_not_depend_on_how_long_anything_takes(agent, spare, monkeypatch):
    expected = solve(make_agent(agent), Slow(), Budget(24), seed=5)[1]
    problem = Slow()
    problem.pause = 0.004
    monkeypatch.setattr(base, "spare_core", lambda threads: spare)
    assert list(map(str, _timeless(solve(make_agent(agent), problem, Budget(24), seed=5)[1]))) == list(
        map(str, _timeless(expected))
    )


@pytest.mark.parametrize("agent", PIPELINED)
def test_an_interrupted_evaluation_stops_the_search_beside_it(agent, monkeypatch):
    monkeypatch.setattr(base, "spare_core", lambda threads: True)

    class Interrupted(ToyProblem):
        def evaluate(self, states):
            if self.evaluations > 4:
                time.sleep(0.01)
                raise KeyboardInterrupt
            return super().evaluate(states)

    result, events = solve(make_agent(agent), Interrupted(), Budget(1000))
    assert result.ended is Ended.INTERRUPTED and result.evaluation is not None
    assert events[-1] == Done(result)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("search")]


@pytest.mark.parametrize("spare", [True, False])
def test_what_goes_wrong_beside_an_evaluation_is_raised(spare, monkeypatch):
    monkeypatch.setattr(base, "spare_core", lambda threads: spare)

    class Lost(ToyProblem):
        def legal(self, state):
            raise LookupError("no menu")

    with pytest.raises(LookupError, match="no menu"):
        solve(make_agent("beam"), Lost())


def test_greedy_is_a_beam_of_one():
    assert greedy() == Beam(width=1)
    assert make_agent("greedy") == make_agent("beam", width=1)


@pytest.mark.parametrize("agent", ["greedy", "beam"])
def test_the_root_stays_when_every_child_is_slower(agent):
    result, _ = solve(make_agent(agent), ToyProblem(landscape=lambda state: -sum(state)), Budget(20))
    assert result.actions == () and result.evaluation == result.root


@pytest.mark.parametrize("agent", ["greedy", "beam"])
def test_lookahead_crosses_a_valley_in_the_first_round(agent):
    result, _ = solve(make_agent(agent, batch=1, expansions=99), ToyProblem(landscape=valley), Budget(2))
    assert result.evaluation is not None and result.evaluation.speedup == pytest.approx(4.0)
    assert len(result.actions) == 9


@pytest.mark.parametrize("agent", ["beam", "mcts"])
@pytest.mark.parametrize("expansions", [1, 3])
def test_a_round_expands_no_more_than_it_may_and_the_rest_waits_for_later_rounds(agent, expansions):
    result, events = solve(make_agent(agent, expansions=expansions), ToyProblem(landscape=valley), Budget(30))
    assert result.evaluation is not None and result.evaluation.speedup == pytest.approx(4.0)
    kinds = [type(event) for event in events if isinstance(event, Expanded | Evaluated)]
    most = max(len(list(run)) for kind, run in itertools.groupby(kinds) if kind is Expanded)
    assert most <= 2 * expansions  # beam: by the lookahead and by variation each


@pytest.mark.parametrize("agent", ["greedy", "beam", "mcts"])
def test_few_expansions_in_a_round_do_not_end_a_search_early(agent):
    few, many = (solve(make_agent(agent, expansions=n), ToyProblem(), Budget(99))[0] for n in (1, 99))
    assert few.ended is many.ended is Ended.EXHAUSTED
    assert few.counts.evaluations >= many.counts.evaluations - 1


def test_a_chain_with_more_successors_than_it_tries_comes_to_an_end():
    result, _ = solve(make_agent("chain", branch=1, depth=2), ToyProblem(), Budget(99))
    assert result.ended is Ended.EXHAUSTED and result.counts.evaluations == 35


@pytest.mark.parametrize("agent", ["chain", "best-first", "bfs", "dfs"])
def test_a_plan_is_one_step_however_long_it_is(agent):
    class Planned(ToyProblem):
        def plans(self, state):
            return (tuple(parse_action(f"turn({dial}; up)") for dial in "abcabc"),) if state == (0, 0, 0) else ()

    _, events = solve(make_agent(agent, depth=2), Planned(), Budget(99))
    assert any(isinstance(event, Evaluated) and len(event.trace) > 6 for event in events)


def test_a_lookahead_under_noise_comes_to_an_end():
    endless = ToyProblem(top=1000)
    search = Search(endless, Budget(9), np.random.default_rng(0), ignore, lambda: 0.0)
    Frontier(search, Uniform(), 6).look_ahead([search.root], 2, 1000, 3)
    assert max(len(node.trace) for node in search._nodes.values()) <= REACH


class Optimist(ToyProblem):
    """A model that overestimates, threefold, everything but the way to the top."""

    def estimate(self, state):
        return self.landscape(state) + (3.0 if max(state) == 4 else 0.0)


def test_measurements_overrule_a_model_that_is_wrong():
    result, _ = solve(make_agent("beam"), Optimist(), Budget(34))
    assert result.evaluation is not None and result.evaluation.speedup > 3.5


def test_a_refused_action_of_a_varied_trace_is_skipped_and_told():
    _, events = solve(make_agent("beam", depth=9, batch=2), ToyProblem(), Budget(30), seed=1)
    refused = [event for event in events if isinstance(event, Refused)]
    assert refused
    problem = ToyProblem()
    for event in refused:
        state = problem.root
        for action in event.trace:
            state = problem.apply(state, action)
        assert event.reason == problem.refusal(state, event.action) is not None


@pytest.mark.parametrize("proposer", PROPOSERS.values(), ids=PROPOSERS)
def test_a_proposer_scores_every_action(proposer):
    problem = ToyProblem()
    actions = problem.legal((1, 2, 3))[1:]
    scores = proposer.rank(problem, (1, 2, 3), actions, np.random.default_rng(0))
    assert len(scores) == len(actions) and all(map(math.isfinite, scores))
    assert list(proposer.rank(problem, (1, 2, 3), (), np.random.default_rng(0))) == []


def test_the_cost_model_prefers_the_better_child_and_the_heuristic_the_likelier():
    problem, rng = ToyProblem(), np.random.default_rng(0)
    actions = problem.legal((4, 1, 1))[1:]
    best = actions[int(np.argmax(CostModel().rank(problem, (4, 1, 1), actions, rng)))]
    assert str(best) == "turn(b; up)"
    likely = actions[int(np.argmax(Heuristic().rank(problem, (4, 1, 1), actions, rng)))]
    assert likely.args == ("up",)


def test_the_cost_model_applies_only_its_shortlist():
    problem = Strict()
    scores = CostModel(shortlist=2).rank(problem, (1, 2, 3), problem.legal((1, 2, 3))[1:], np.random.default_rng(0))
    assert len(problem.applied) == sum(map(math.isfinite, scores)) == 2


def test_spread_takes_few_of_a_group_first_and_fills_up():
    assert spread("aaabc", 3, str, 1) == ["a", "b", "c"]
    assert spread("aaab", 4, str, 1) == ["a", "b", "a", "a"]
    assert spread("aab", 1, str, 1) == ["a"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Budget(0), "at least 1 evaluation"),
        (lambda: Budget(seconds=-1.0), "isn't negative"),
        (lambda: Beam(width=0), "at least 1, got 0"),
        (lambda: make_agent("oracle"), "no agent is called oracle; there are random, greedy, beam"),
        (lambda: TreeSearch(branch=0), "branch and depth are at least 1, got 0 and 12"),
        (lambda: Chain(depth=0), "branch and depth are at least 1, got 16 and 0"),
        (lambda: MCTS(batch=0), "branch, depth, batch and expansions are at least 1, got 0"),
        (lambda: MCTS(scale=0.0), "scale and temperature are positive, got 0.0"),
        (lambda: Annealing(chains=0), "chains, depth and branch are at least 1, got 0"),
        (lambda: Annealing(hot=0.01), "temperatures fall from hot to cold > 0, got 0.01 and 0.02"),
        (lambda: Genetic(offspring=0), "offspring, depth and branch are at least 1, got 0"),
        (lambda: Genetic(crossover=2), "crossover is a probability, got 2"),
    ],
)
def test_impossible_parameters_are_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def measure_best(frontier: Frontier[Dials]) -> None:
    chosen = frontier.choose(1)
    assert len(chosen) == 1
    frontier.search.measure(chosen)
    frontier.learn(chosen)


def test_a_failure_warns_of_its_relatives():
    up = {name: parse_action(f"turn({name}; up)") for name in "abc"}
    problem = ToyProblem(failures={(0, 2, 2): Status.CRASHED})
    search = Search(problem, Budget(10), np.random.default_rng(0), ignore, lambda: 0.0)
    search.measure([search.root])
    frontier = Frontier(search, CostModel(), 6)
    bad = frontier.follow(search.root, (up["a"], up["a"], up["b"], up["b"]))
    sibling = frontier.follow(search.root, (up["a"], up["a"], up["b"], up["c"]))
    stranger = frontier.follow(search.root, (up["a"], up["a"], up["a"]))
    before = {node.key: frontier.predict(node) for node in (bad, sibling, stranger)}
    frontier._enter(bad)
    measure_best(frontier)
    root = search.value(search.root)
    for node, odds in ((sibling, 1 / 2), (stranger, 1 / 2)):
        assert frontier.predict(node) == pytest.approx(root + odds * (before[node.key] - root))
    frontier._enter(stranger)
    measure_best(frontier)
    assert frontier._odds(sibling) == 1 / 2 < frontier._odds(frontier.follow(search.root, (up["a"],) * 2)) == 2 / 3


def test_the_way_to_the_best_is_measured_at_its_middle():
    _, events = solve(make_agent("beam", batch=2, expansions=99), ToyProblem(), Budget(3))
    traces = [event.trace for event in evaluated(events)]
    assert len(traces[1]) == 9
    assert len(traces[2]) >= 1
    _, events = solve(make_agent("beam", batch=2), ToyProblem(), Budget(7))
    lengths = [len(event.trace) for event in evaluated(events)]
    assert 4 in lengths or 5 in lengths
