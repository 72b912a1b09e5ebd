"""The performance score: by hand on small spaces, against the published package on recorded runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.autotune_env import suite
from envs.autotune_env.curves import isotonic, isotonic_curve, monotone_cubic
from envs.autotune_env.domain import NOWHERE, Domain, Parameter, SpaceError, moves
from envs.autotune_env.optimizers import OPTIMIZERS, make_optimizer
from envs.autotune_env.score import (
    POINTS,
    Run,
    aggregate,
    combined_curve,
    cutoff,
    random_search,
    run_score,
    scale,
    score,
    seconds_per_evaluation,
    standardised_curve,
    step_curve,
)
from envs.autotune_env.simulate import assess, repeat, simulate
from envs.autotune_env.space import Space, Status
from envs.autotune_env.synthetic import synthetic
from tests.autotune_env.official import official

numbers = st.lists(st.floats(-50, 50), min_size=1, max_size=25)


@settings(deadline=None)
@given(numbers, st.data())
def test_isotonic_regression_is_the_nearest_monotone_sequence(values, data):
    y = np.array(values)
    weight = np.array(data.draw(st.lists(st.integers(1, 5), min_size=len(y), max_size=len(y))), float)
    fitted = isotonic(y, weight)
    assert np.all(np.diff(fitted) >= 0)
    # Minimax: the value at i is the greatest, over beginnings, of the least mean of a stretch that contains i.
    for i in range(len(y)):
        stretches = [
            [np.average(y[a : b + 1], weights=weight[a : b + 1]) for b in range(i, len(y))] for a in range(i + 1)
        ]
        assert fitted[i] == pytest.approx(max(min(means) for means in stretches), abs=1e-6)


def test_isotonic_curves_pool_equal_places_and_are_constant_beyond_the_ends():
    x, y = np.array([2.0, 1.0, 2.0, 4.0]), np.array([5.0, 9.0, 3.0, 1.0])
    curve = isotonic_curve(x, y, np.array([0.0, 1.0, 1.5, 2.0, 3.0, 9.0]), increasing=False)
    assert curve.tolist() == [9.0, 9.0, 6.5, 4.0, 2.5, 1.0]


def test_monotone_data_stay_monotone_between_the_points():
    rng = np.random.default_rng(0)
    for _ in range(50):
        x = np.cumsum(rng.integers(1, 9, 6)).astype(float)
        y = np.sort(rng.random(6))[::-1]
        curve = monotone_cubic(x, y, np.linspace(x[0], x[-1], 300))
        assert np.all(np.diff(curve) <= 1e-12)
        np.testing.assert_allclose(monotone_cubic(x, y, x), y)


def test_curves_agree_with_scipy_and_scikit_learn():
    interpolate = pytest.importorskip("scipy.interpolate")
    regression = pytest.importorskip("sklearn.isotonic")
    rng = np.random.default_rng(1)
    for n in range(2, 40):
        x, y = np.cumsum(rng.integers(1, 5, n)).astype(float), rng.integers(0, 6, n).astype(float)
        at = np.linspace(x[0], x[-1], 90)
        np.testing.assert_allclose(monotone_cubic(x, y, at), interpolate.PchipInterpolator(x, y)(at), atol=1e-12)
        x, y, at = rng.integers(0, 20, n).astype(float), rng.random(n), np.linspace(-2, 23, 90)
        for increasing in (True, False):
            model = regression.IsotonicRegression(increasing=increasing, out_of_bounds="clip").fit(x, y)
            np.testing.assert_allclose(isotonic_curve(x, y, at, increasing), model.predict(at), atol=1e-12)


def line(values, failed=0, cost=1.0, name="line/made") -> Space:
    """A space of one parameter: these values in milliseconds, then as many failures; each costs `cost` seconds."""
    count = len(values) + failed
    domain = Domain((Parameter("x", tuple(range(count))),), np.arange(count, dtype=np.uint16)[:, None])
    status = np.array([Status.CORRECT] * len(values) + [Status.RUNTIME] * failed, np.int8)
    costs = np.zeros((count, 4), np.float32)
    costs[:, 0] = cost
    return Space(name, domain, status, np.array([*values, *[np.nan] * failed], float), costs)


def test_the_expected_best_of_random_search_is_a_rank():
    ranked = np.arange(1.0, 100.0)  # 99 losses
    # One draw stands on average in the middle, three at three quarters of the way, counted from the worst.
    assert random_search(ranked, np.array([1.0]))[0] == ranked[98 - 50]
    assert random_search(ranked, np.array([3.0]))[0] == ranked[98 - 75]
    assert random_search(ranked, np.array([1e9]))[0] == 1.0


def test_the_expected_best_of_random_search_is_what_draws_give():
    rng = np.random.default_rng(0)
    ranked = np.arange(1.0, 1000.0)
    for draws in (1, 3, 10, 50):
        places = [rng.permutation(999)[:draws].min() for _ in range(4000)]
        assert random_search(ranked, np.array([float(draws)]))[0] == pytest.approx(1 + np.mean(places), rel=0.05, abs=2)


def test_the_cut_off_is_where_random_search_comes_so_far():
    ranked = np.arange(1.0, 100.0)  # median 50, optimum 1
    # 95 % of the way is 3.45: the first value at least as good, 3, is place 96 from the worst, of 99.
    assert cutoff(ranked, 0.95) == math.ceil(96 / (100 - 96))
    assert cutoff(ranked, 0.01) == math.ceil(50 / (100 - 50))


def test_a_cut_off_at_the_optimum_is_stepped_back():
    ranked = np.array([1.0] + [10.0] * 8)
    assert cutoff(ranked, 0.95) == math.ceil(7 / (10 - 7))


def test_cut_offs_that_are_too_close_are_moved_apart():
    values = [1.0, *np.linspace(1.001, 1.006, 6), *[10.0] * 8, *[20.0] * 6]
    ranked = np.array(values)
    assert cutoff(ranked, 0.01) == cutoff(ranked, 0.95) == math.ceil(14 / (22 - 14))
    assert scale(line(values)).evaluations == (1, 3)


def test_an_evaluation_of_random_search_carries_its_share_of_failures():
    assert seconds_per_evaluation(line([1, 2, 3], failed=1, cost=2.0)) == 2.0 + 0.25 * 2.0


def test_a_space_without_anything_to_find_has_no_scale():
    with pytest.raises(SpaceError, match="flat/made: every configuration is as good as the best"):
        scale(line([2.0] * 50, name="flat/made"))


def test_a_budget_before_the_range_or_beyond_the_optimum_has_no_scale(space):
    with pytest.raises(SpaceError, match=r"a budget of 0\.1 s ends before the range begins"):
        scale(space, 0.1)
    with pytest.raises(SpaceError, match="random search is expected to reach the optimum after"):
        scale(space, 1e7)


def test_the_optimum_at_once_scores_1_and_the_baseline_0(space):
    measure = scale(space)
    best = Run(np.array([1e-3]), measure.ranked[:1])
    assert run_score(measure, best) == pytest.approx(1)
    assert score(measure, [best] * 5).mean == pytest.approx(1)
    assert np.allclose(measure.standardise(measure.baseline), 0)


def test_a_step_curve_knows_only_what_was_finished(space):
    measure = scale(space)
    losses = measure.ranked
    middle = (measure.begin + measure.end) / 2
    run = Run(np.array([measure.begin / 2, middle, 2 * measure.end]), np.array([losses[900], losses[10], losses[0]]))
    curve = step_curve(measure, run)
    assert set(curve[measure.times < middle]) == {losses[900]}
    assert set(curve[measure.times >= middle]) == {losses[10]}


def test_a_run_is_given_its_first_success_from_the_begin_and_the_worst_if_it_has_none(space):
    measure = scale(space)
    late = Run(np.array([1.0, measure.end / 2]), np.array([np.nan, measure.ranked[5]]))
    assert set(step_curve(measure, late)) == {measure.ranked[5]}
    never = Run(np.array([1.0]), np.array([np.nan]))
    assert set(step_curve(measure, never)) == {measure.ranked[-1]}
    assert set(combined_curve(measure, [never])) == {measure.ranked[-1]}


def test_a_combined_curve_is_held_where_half_of_the_runs_are_over(space):
    measure = scale(space)
    begin, end, losses = measure.begin, measure.end, measure.ranked[[1000, 500]]
    runs = [Run(np.array([begin, part * end]), losses) for part in (0.5, 0.5, 0.6)]
    alone = Run(np.array([begin, 0.5 * end, 0.95 * end]), measure.ranked[[1000, 500, 0]])
    curve = combined_curve(measure, [*runs, alone])
    assert len(set(curve[measure.times > 0.6 * end])) == 1 < len(set(curve))
    assert curve[-1] > measure.ranked[100]


def test_runs_without_a_success_in_time_count_as_what_they_had_or_the_worst(space):
    measure = scale(space)
    worst = measure.standardise(np.full(POINTS, measure.ranked[-1])).mean()
    for late in (Run(np.array([9 * measure.end]), measure.ranked[:1]), Run(np.array([]), np.array([]))):
        assert score(measure, [late]).mean == pytest.approx(worst)
    early = Run(np.array([0.1, 0.2]) * measure.begin, measure.ranked[[700, 30]])
    assert score(measure, [early]).mean == pytest.approx(run_score(measure, early))
    good = Run(np.array([measure.begin]), measure.ranked[:1])
    assert worst < score(measure, [late, good, good]).mean < 1


@pytest.mark.parametrize(
    ("seconds", "losses"), [([2.0, 1.0], [1.0, 1.0]), ([1.0], [1.0, 2.0]), ([np.nan], [1.0]), ([[1.0]], [[1.0]])]
)
def test_what_is_no_run_is_refused(seconds, losses):
    with pytest.raises(ValueError):
        Run(np.array(seconds), np.array(losses))


@dataclass(frozen=True)
class HillClimb:
    """Steps to random neighbours that are better; starts again where it is stuck."""

    patience: int = 15

    def start(self, domain, rng):
        return _Climber(self.patience, moves(domain), rng)


class _Climber:
    def __init__(self, patience, table, rng):
        self.patience, self.table, self.rng = patience, table, rng
        self.forget()

    def forget(self):
        self.row, self.loss, self.age = NOWHERE, math.inf, 0

    def ask(self):
        if self.row == NOWHERE or self.age > self.patience:
            self.forget()
            return int(self.rng.integers(len(self.table)))
        near = self.table[self.row]
        return int(self.rng.choice(near[near >= 0]))

    def tell(self, row, outcome, spent):
        self.age += 1
        if self.row == NOWHERE or outcome.loss < self.loss:
            self.row, self.age = row, 0
            self.loss = math.inf if math.isnan(outcome.loss) else outcome.loss


def test_random_search_scores_0_and_hill_climbing_more():
    for device in ("north", "east"):
        measure = scale(synthetic(device))
        random = score(measure, repeat(make_optimizer("random"), measure, 200))
        climbing = score(measure, repeat(HillClimb(), measure, 50))
        assert abs(random.mean) < 0.15 < 0.3 < climbing.mean < 1
        assert random.low < random.mean < random.high and climbing.low < climbing.mean < climbing.high


def test_a_seed_repeats_every_run_and_the_score():
    measure = scale(synthetic("south", 3))
    first, again, other = (repeat(HillClimb(), measure, 4, seed) for seed in (7, 7, 8))
    for left, right in zip(first, again, strict=True):
        np.testing.assert_array_equal(left.seconds, right.seconds)
        np.testing.assert_array_equal(left.losses, right.losses)
    assert score(measure, first) == score(measure, again) != score(measure, other)


def test_a_run_costs_what_the_record_says_and_a_decision_each(space):
    budget = 300.0
    run = simulate(make_optimizer("random"), space, budget, np.random.default_rng(0))
    rows = np.random.default_rng(0).permutation(len(space))[: len(run.seconds)]
    np.testing.assert_allclose(run.seconds, np.cumsum(space.seconds[rows] + 1e-3))
    np.testing.assert_array_equal(run.losses, space.losses[rows])
    assert run.seconds[-2] < budget <= run.seconds[-1]


@dataclass(frozen=True)
class Stuck:
    """Proposes the same row for ever: one that is known, or none at all."""

    row: int

    def start(self, domain, rng):
        return self

    def ask(self):
        return self.row

    def tell(self, row, outcome, spent):
        pass


@pytest.mark.parametrize("row", [NOWHERE, 0])
def test_an_optimiser_that_is_stuck_ends_nevertheless(row):
    small = line(np.arange(1.0, 90.0), cost=0.05)
    run = simulate(Stuck(row), small, 3.0, np.random.default_rng(0))
    assert len(run.seconds) == (0 if row == NOWHERE else len(run.losses))
    assert np.all(run.seconds <= 3.0 + 0.051)


def test_random_search_ends_when_everything_was_tried():
    small = line(np.arange(1.0, 30.0))
    run = simulate(make_optimizer("random"), small, 1e6, np.random.default_rng(0))
    assert sorted(run.losses) == list(small.losses)


def test_scores_over_spaces_are_the_mean_of_their_curves():
    spaces = [synthetic(device) for device in ("north", "south", "east")]
    report = assess(make_optimizer("random"), spaces, 10)
    assert report.total.mean == pytest.approx(np.mean([one.mean for one in report.spaces.values()]))
    groups = [(scale(space), repeat(make_optimizer("random"), scale(space), 10)) for space in spaces]
    curves = [standardised_curve(*group) for group in groups]
    assert report.total.spread == pytest.approx(np.mean(curves, axis=0).std())
    assert aggregate(groups) == report.total
    assert np.shape(curves) == (3, POINTS)


def test_a_score_needs_spaces_and_runs(space):
    for groups in ([], [(scale(space), [])]):
        with pytest.raises(ValueError, match="a score needs a space, and a run on each space"):
            aggregate(groups)


@pytest.mark.parametrize("name", ["random", "annealing"])
def test_a_score_lies_within_its_interval(name):
    for space in map(suite.load, suite.names()):
        found = score(scale(space), repeat(make_optimizer(name), scale(space), 20))
        assert found.low <= found.mean <= found.high


def test_an_unknown_optimiser_is_refused():
    with pytest.raises(ValueError, match=f"no optimiser is called magic; there are {', '.join(OPTIMIZERS)}"):
        make_optimizer("magic")


def test_more_is_better_scores_as_its_mirror_image(space):
    inverse = np.where(space.correct, 1 / space.values, np.nan)
    rate = Space(
        "rate/made",
        space.domain,
        space.status,
        inverse,
        space.costs,
        objective="1/s",
        unit="1/s",
        higher_is_better=True,
    )
    mirrored = Space("loss/made", space.domain, space.status, 2 - inverse, space.costs)
    left, right = scale(rate), scale(mirrored)
    assert left.evaluations == right.evaluations
    np.testing.assert_allclose(left.baseline, right.baseline - 2, atol=1e-12)
    scores = [score(measure, repeat(make_optimizer("random"), measure, 5)).mean for measure in (left, right)]
    assert scores[0] == pytest.approx(scores[1])


# ---- against the published package, where it is installed


@pytest.fixture(scope="module")
def package():
    pytest.importorskip("autotuning_methodology")


def compare(space, optimizer, folder, repeats=100):
    measure = scale(space)
    # The package refuses runs with fewer than two evaluations within the range.
    least, most = 0.9 * measure.begin, 1.1 * measure.end
    runs = [
        run
        for run in repeat(optimizer, measure, repeats)
        if np.count_nonzero((least <= run.seconds) & (run.seconds <= most)) > 1
    ]
    theirs = official(space, runs, folder)
    assert theirs["evaluations"] == measure.evaluations
    np.testing.assert_allclose(measure.times, theirs["times"], rtol=1e-9)
    np.testing.assert_allclose(measure.baseline, theirs["baseline"], rtol=1e-9)
    whole = score(measure, runs).mean
    bagged = standardised_curve(measure, runs, np.random.default_rng(0)).mean()
    assert whole == pytest.approx(theirs["score"], abs=0.03)
    assert bagged == pytest.approx(theirs["score"], abs=0.03)


@pytest.mark.parametrize("device", ["north", "south", "east"])
@pytest.mark.parametrize("optimizer", [make_optimizer("random"), HillClimb()], ids=["random", "climb"])
def test_cut_offs_baseline_and_score_are_those_of_the_package(package, tmp_path, device, optimizer):
    compare(synthetic(device, 2), optimizer, tmp_path)


@pytest.mark.parametrize("name", ["convolution/EPYC", "dedispersion/EPYC"])
def test_random_search_is_below_0_on_small_spaces_and_the_package_agrees(package, tmp_path, name):
    space = suite.load(name)
    compare(space, make_optimizer("random"), tmp_path)
    assert score(scale(space), repeat(make_optimizer("random"), scale(space), 500)).mean < 0


@pytest.mark.parametrize("name", ["convolution_A100", "convolution_MI250X", "dedispersion_A4000", "pnpoly_RTX3090"])
def test_the_package_agrees_on_public_spaces(package, public, tmp_path, name):
    compare(suite.load(public / f"{name}.json.gz"), HillClimb(), tmp_path)
