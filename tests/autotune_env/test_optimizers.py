"""The optimisers and what they are built on: views, neighbourhoods, models, trees, the driver."""

from __future__ import annotations

import itertools
import math
from random import Random

import numpy as np
import pytest

from envs.autotune_env.domain import NOWHERE, Domain, Parameter
from envs.autotune_env.optimizers import OPTIMIZERS, installed, make_optimizer
from envs.autotune_env.optimizers.models import Memory
from envs.autotune_env.optimizers.neighbours import neighbourhoods
from envs.autotune_env.optimizers.search import FAILED, PATIENCE, Driver, Searcher, View, accepts
from envs.autotune_env.optimizers.tree import tree
from envs.autotune_env.oracle import Outcome
from envs.autotune_env.score import scale, score
from envs.autotune_env.simulate import begin, repeat
from envs.autotune_env.space import Status

OWN = [name for name in OPTIMIZERS if name not in ("pyatf", "kernel-tuner")]
GUIDED = [name for name in OWN if name != "random"]


@pytest.fixture(scope="module")
def small():
    """Two parameters of three and four values, without the corner (2, 3) and without (1, 1)."""
    rows = [pair for pair in itertools.product(range(3), range(4)) if pair not in ((2, 3), (1, 1))]
    return Domain((Parameter("a", (1, 2, 4)), Parameter("b", (1, 2, 3, 4))), np.array(rows, np.uint16))


def succeed(loss):
    return Outcome(Status.CORRECT, loss, 1.0)


FAILURE = Outcome(Status.COMPILE, math.nan, 1.0)


@pytest.mark.parametrize("name", installed())
def test_a_seed_repeats_a_run_bit_for_bit(name, space):
    measure = scale(space)
    first, second, other = (repeat(make_optimizer(name), measure, 1, seed)[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.losses, second.losses)
    np.testing.assert_array_equal(first.seconds, second.seconds)
    assert first.losses.tolist() != other.losses.tolist()


@pytest.mark.parametrize("name", OWN)
def test_an_optimizer_never_leaves_the_domain_and_finds_the_optimum_of_a_small_one(name, small):
    tuner = make_optimizer(name).start(small, np.random.default_rng(0))
    asked = []
    for _ in range(len(small)):
        row = tuner.ask()
        asked.append(row)
        tuner.tell(row, succeed(1.0 + row), len(asked) / len(small))
    assert sorted(asked) == list(range(len(small)))  # everything once: nothing known was asked again


@pytest.mark.parametrize("name", OWN)
def test_an_optimizer_survives_a_space_where_nothing_succeeds(name, small):
    tuner = make_optimizer(name).start(small, np.random.default_rng(0))
    for count in range(3 * len(small)):
        tuner.tell(tuner.ask(), FAILURE, count / 30)


@pytest.mark.parametrize("name", GUIDED)
def test_an_optimizer_works_where_more_is_better(name, small):
    tuner = make_optimizer(name).start(small, np.random.default_rng(0))
    for count in range(len(small)):
        row = tuner.ask()
        tuner.tell(row, succeed(-1.0 - row) if row % 3 else FAILURE, count / len(small))


def test_guided_optimizers_beat_random_search(space):
    measure = scale(space)
    scores = {name: score(measure, repeat(make_optimizer(name), measure, 20)).mean for name in OWN}
    better = ("genetic", "annealing", "hybrid-vndx", "tabu-grey-wolf", "genetic-tuned")
    assert all(scores[name] > scores["random"] for name in better), scores


def test_an_unknown_optimizer_or_variant_is_named():
    with pytest.raises(ValueError, match="no optimiser is called magic; there are random"):
        make_optimizer("magic")
    with pytest.raises(ValueError, match="optimiser genetic has no variants"):
        make_optimizer("genetic:big")
    with pytest.raises(ValueError, match="a crossover is one of single_point"):
        make_optimizer("genetic", crossover="none")
    with pytest.raises(ValueError, match="population of 4 or more"):
        make_optimizer("evolution", population=3)


def test_neighbourhoods_are_what_they_are_called(small):
    near = neighbourhoods(small)

    def of(row, kind):
        return {small.configurations[other].tolist().__repr__() for other in near.of(row, kind)}

    corner = small.row((0, 0))
    assert of(corner, "hamming") == {"[0, 1]", "[0, 2]", "[0, 3]", "[1, 0]", "[2, 0]"}
    assert of(corner, "step") == {"[0, 1]", "[1, 0]"}
    assert of(corner, "adjacent") == {"[0, 1]", "[1, 0]"}
    assert of(small.row((0, 2)), "adjacent") == {"[0, 1]", "[0, 3]", "[1, 2]", "[1, 3]"}
    with pytest.raises(ValueError, match="one of hamming, step, adjacent"):
        near.of(0, "far")
    with pytest.raises(ValueError, match="read-only"):
        near.of(0, "hamming")[0] = 5


def test_repair_goes_to_a_nearest_configuration(small):
    view = View(small, Random(0))
    assert view.repair((0, 2)) == small.row((0, 2))
    assert {view.repair((2, 3)) for _ in range(50)} == {small.row((1, 3)), small.row((2, 2))}
    assert {view.repair((5, 0)) for _ in range(5)} == {small.row((2, 0))}
    assert view.row((2, 3)) == NOWHERE


def test_every_point_of_the_cube_means_a_configuration_and_every_configuration_has_a_point(small):
    points = tree(small)
    rng = Random(0)
    drawn = [points.row((1 - rng.random(), 1 - rng.random())) for _ in range(2000)]
    assert set(drawn) == set(range(len(small)))
    # a = 4 has three values of b, each with a third of a third of the cube.
    assert np.mean([row == small.row((2, 0)) for row in drawn]) == pytest.approx(1 / 9, abs=0.03)
    assert points.row((1.0, 1.0)) == len(small) - 1 and points.row((5e-324, 5e-324)) == 0


def test_the_nearest_model_is_the_mean_of_the_nearest(small):
    memory = Memory(small)
    losses = {small.row((0, 0)): 1.0, small.row((0, 1)): 3.0, small.row((2, 2)): FAILED}
    memory.update(losses)
    assert memory.nearest([small.row((0, 3))], 2) == [2.0]
    assert memory.nearest([small.row((2, 2))], 1) == [3.0]  # a failure counts as the worst success
    assert memory.nearest([0, 1], 50) == [pytest.approx(7 / 3)] * 2
    assert Memory(small).nearest([0], 3) == [FAILED]


def test_the_additive_model_ranks_as_effects_do(small):
    memory = Memory(small)
    memory.update({row: math.exp(a + 2 * b) for row, (a, b) in enumerate(small.configurations.tolist())})
    expected = memory.additive(range(len(small)))
    truth = small.configurations @ np.array([1, 2])
    assert np.corrcoef(expected, truth)[0, 1] > 0.95
    turned = Memory(small)
    turned.update({row: -math.exp(-a - 2 * b) for row, (a, b) in enumerate(small.configurations.tolist())})
    assert np.corrcoef(turned.additive(range(len(small))), truth)[0, 1] > 0.95


def test_memory_grows(space):
    memory = Memory(space.domain)
    losses = {row: float(row + 1) for row in range(500)}
    memory.update(losses)
    assert memory.nearest([7], 1) == [8.0]


class Loop(Searcher):
    """Yields the same row for ever."""

    def search(self, view):
        while True:
            yield 3


class Short(Searcher):
    """Is done after one row."""

    def search(self, view):
        yield 5


@pytest.mark.parametrize("optimizer", [Loop(), Short()])
def test_a_search_that_stands_still_does_not_stop_the_session(optimizer, small):
    tuner = optimizer.start(small, np.random.default_rng(0))
    asked = []
    for count in range(len(small)):
        asked.append(tuner.ask())
        tuner.tell(asked[-1], succeed(2.0), count / 10)
    assert sorted(asked) == list(range(len(small)))


def test_what_is_known_is_told_at_once(small):
    heard = []

    class Twice(Searcher):
        def search(self, view):
            for row in (1, 2, 1, 2, 4):
                loss = yield row
                heard.append((row, loss))

    tuner = Twice().start(small, np.random.default_rng(0))
    for row in (1, 2, 4):
        assert tuner.ask() == row
        tuner.tell(row, FAILURE if row == 2 else succeed(float(row)), 0.5)
    assert heard == [(1, 1.0), (2, FAILED), (1, 1.0), (2, FAILED), (4, 4.0)]


def test_a_bored_search_hears_of_its_own_row_only(small):
    heard = []

    class Loyal(Searcher):
        def search(self, view):
            while True:
                heard.append((yield 3))

    tuner = Loyal().start(small, np.random.default_rng(0))
    for loss in (7.0, 1.0, 1.0):
        tuner.tell(tuner.ask(), succeed(loss), 0.1)
    assert isinstance(tuner, Driver) and tuner.bored
    assert set(heard) == {7.0} and len(heard) > PATIENCE


def test_the_elite_keeps_the_best(small):
    view = View(small, Random(0))
    for row, loss in enumerate((5.0, 1.0, FAILED, 3.0, 2.0)):
        view.record(row, loss)
    assert view.elite(3) == [1, 4, 3] and view.best == 1
    assert view.fresh() >= 5


def test_metropolis_is_relative_and_never_takes_a_failure():
    rng = Random(0)
    assert accepts(rng, 1.0, 2.0, 0.0) and accepts(rng, FAILED, FAILED, 0.1)
    assert not accepts(rng, 2.0, 1.0, 0.0) and not accepts(rng, FAILED, 1.0, 1e9)
    for unit in (1.0, 1e-6, -1.0):
        worse = unit * (1.1 if unit > 0 else 0.9)
        share = np.mean([accepts(rng, worse, unit, 0.1) for _ in range(4000)])
        assert share == pytest.approx(math.exp(-1), abs=0.03)


def test_revisits_cost_nothing_on_the_clock(space):
    measure = scale(space)
    for name in ("annealing", "genetic"):
        (run,) = repeat(make_optimizer(name), measure, 1)
        session = begin(space, "mean", 1e12, np.random.default_rng(0))
        assert len(run.seconds) <= len(space)
        assert np.all(np.diff(run.seconds) >= 0.9 * space.seconds.min())
        assert session.clock == 0


def test_failures_before_any_success_say_nothing_about_values(small):
    memory = Memory(small)
    memory.update({0: FAILED, 1: FAILED})
    assert memory.additive(range(len(small))) == [0.0] * len(small)
    memory.update({0: FAILED, 1: FAILED, 2: 2.0, 5: 8.0, 6: FAILED})
    expected = memory.additive([2, 5, 6])
    assert expected[0] < expected[1]
