"""A recorded space as a problem: the agents run on it, traces replay, and nothing leaks before it is evaluated."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from agents.base import AGENTS, Budget, make_agent
from envs.autotune_env.domain import Domain, Parameter
from envs.autotune_env.problem import Configuration, TuningProblem, middle
from envs.autotune_env.space import Space
from envs.autotune_env.space import Status as Recorded
from envs.autotune_env.synthetic import synthetic
from envs.common import trace as traces
from envs.common.actions import STOP, Action, parse_action
from envs.common.evaluation import Evaluation, Status


@pytest.fixture(scope="module")
def problem(space):
    return TuningProblem(space)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_searches_a_space_within_its_budget(problem, name):
    result = make_agent(name).solve(problem, Budget(60, seconds=20), np.random.default_rng(0))
    assert 1 <= result.counts.evaluations <= 60
    assert result.evaluation is not None and result.root is not None and result.evaluation.speedup is not None
    assert result.evaluation.speedup >= (result.root.speedup or 0)
    trace = traces.record(problem, result.actions, [result.evaluation])
    assert traces.parse(traces.show(trace)) == trace
    assert traces.verify(trace, problem, measure=True) == ()


@pytest.mark.parametrize("name", ["random", "greedy", "beam"])
def test_searches_find_better_configurations_than_they_began_with(problem, name):
    result = make_agent(name).solve(problem, Budget(120), np.random.default_rng(1))
    assert result.evaluation.speedup > 1.5 * result.root.speedup


def walk(problem, steps, seed=0):
    rng = np.random.default_rng(seed)
    state = problem.root
    for _ in range(steps):
        yield state
        actions = problem.legal(state)[1:]
        state = problem.apply(state, actions[rng.integers(len(actions))])


def test_legal_actions_are_exactly_those_that_are_not_refused(problem):
    every = [
        Action("set", (), (parameter.name, str(value)))
        for parameter in problem.domain.parameters
        for value in parameter.values
    ]
    for state in itertools.islice(walk(problem, 30), 30):
        legal = problem.legal(state)
        assert legal[0] == STOP
        assert list(legal[1:]) == [action for action in every if problem.refusal(state, action) is None]
        for action in legal[1:]:
            changed = problem.domain.value_of(problem.apply(state, action).row)
            before = problem.domain.value_of(state.row)
            assert {n: v for n, v in changed.items() if before[n] != v} == {
                action.args[0]: next(v for v in changed.values() if str(v) == action.args[1])
            }
            assert parse_action(str(action)) == action


def test_a_refusal_names_the_rule(problem):
    state = Configuration(problem.domain.row([problem.domain.parameters[0].values.index(256), 2, 0, 0, 0, 0, 0]))
    refusal = problem.refusal(state, parse_action("set(; block_size_y, 16)"))
    assert refusal is not None and "does not hold for block_size_x=256, block_size_y=16" in refusal
    assert problem.refusal(state, parse_action("set(; block_size_y, 4)")) == "no_effect: block_size_y is 4 already"
    assert "unknown_action" in str(problem.refusal(state, parse_action("set(; block_size_y, 5)")))
    with pytest.raises(ValueError, match="block_size_y is 4 already"):
        problem.apply(state, parse_action("set(; block_size_y, 4)"))
    assert problem.apply(state, STOP) == state


def test_a_key_is_one_configuration(problem):
    keys = {problem.key(Configuration(row)) for row in range(len(problem.domain))}
    assert len(keys) == len(problem.domain)


def test_a_speedup_is_over_the_median_configuration(space, problem):
    measured = np.flatnonzero(space.correct)
    records = problem.evaluate([Configuration(int(row)) for row in measured])
    speedups = np.array([record.speedup for record in records])
    median = space.values[problem.baseline]
    np.testing.assert_allclose(speedups, median / space.values[measured])
    assert abs((speedups > 1).mean() - 0.5) < 0.01
    for row, record in list(zip(measured, records, strict=True))[:50]:
        assert record.timing.low <= record.timing.ratio <= record.timing.high
        assert record.speedup_over_root == pytest.approx(space.values[problem.root.row] / space.values[row])


def test_samples_are_seconds(space, problem):
    row = int(np.flatnonzero(space.correct)[7])
    [record] = problem.evaluate([Configuration(row)])
    np.testing.assert_allclose(record.timing.candidate, space.samples[row].astype(float) * 1e-3)
    assert record.timing.baseline_name == "median configuration"
    assert sum(record.seconds.values()) == pytest.approx(space.seconds[row])
    assert Evaluation.from_json(record.to_json()) == record


def test_failures_are_evaluations(space):
    expected = {Recorded.COMPILE: Status.BUILD_FAILED, Recorded.RUNTIME: Status.CRASHED}
    problem = TuningProblem(space)
    for recorded, status in expected.items():
        [record] = problem.evaluate([Configuration(int(np.flatnonzero(space.status == recorded)[0]))])
        assert record.status is status and record.speedup is None and recorded.label in record.detail


def test_rates_are_turned_into_times(space):
    inverse = np.where(space.correct, 1 / space.values, np.nan)
    rate = TuningProblem(
        Space(
            "r/s", space.domain, space.status, inverse, space.costs, objective="1/s", unit="1/s", higher_is_better=True
        )
    )
    time = TuningProblem(Space("t/s", space.domain, space.status, space.values, space.costs))
    for row in np.flatnonzero(space.correct)[::300].tolist():
        (left,), (right,) = rate.evaluate([Configuration(row)]), time.evaluate([Configuration(row)])
        assert math.log(left.speedup) == pytest.approx(math.log(right.speedup), abs=0.01)


def test_nothing_is_told_before_it_is_evaluated(space):
    other = Space(
        space.name,
        space.domain,
        space.status[::-1].copy(),
        space.values[::-1].copy(),
        space.costs,
        space.samples[::-1].copy(),
    )
    left, right = TuningProblem(space), TuningProblem(other)
    for state in walk(left, 20):
        assert left.legal(state) == right.legal(state) and left.show(state) == right.show(state)
        assert left.estimate(state) == right.estimate(state) == 0
        assert left.prior(state, left.legal(state)) == right.prior(state, left.legal(state))
        assert left.plans(state) == ()


def test_a_search_starts_in_the_middle_or_where_it_is_told():
    domain = synthetic().domain
    indices = domain.configurations[middle(domain)]
    assert np.all(np.abs(indices - (np.array(domain.sizes) - 1) / 2) <= 1)
    assert TuningProblem(synthetic(), start=5).root == Configuration(5)


def test_values_that_an_action_can_not_spell_go_by_their_index():
    domain = Domain((Parameter("mode", ("a b", "float4 *", "plain")),), np.arange(3, dtype=np.uint16)[:, None])
    space = Space("m/n", domain, np.zeros(3, np.int8), np.array([1.0, 2.0, 3.0]), np.ones((3, 4), np.float32))
    problem = TuningProblem(space, start=0)
    texts = [str(action) for action in problem.legal(problem.root)[1:]]
    assert texts == ["set(; mode, value.1)", "set(; mode, plain)"]
    assert problem.apply(problem.root, parse_action(texts[0])) == Configuration(1)
