"""The statistics behind a speedup, on samples that are made up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.common import timing
from envs.common.timing import Rules

RULES = Rules()


def samples(seconds, count, spread=0.02, seed=0):
    return seconds * np.random.default_rng(seed).lognormal(0, spread, count)


def test_the_ratio_is_of_medians_so_that_outliers_do_not_count():
    candidate, baseline = samples(1e-3, 41), samples(2e-3, 41, seed=1)
    candidate[:10] *= 50
    assert timing.ratio(candidate, baseline) == pytest.approx(2, rel=0.05)


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says():
    hits = 0
    for seed in range(200):
        low, high = timing.interval(samples(1e-3, 30, 0.1, seed), samples(2e-3, 30, 0.1, seed + 1000))
        hits += low <= 2 <= high
    assert 175 <= hits <= 200


def test_the_interval_is_the_same_each_time():
    pair = samples(1e-3, 25), samples(2e-3, 25, seed=1)
    assert timing.interval(*pair) == timing.interval(*pair)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=60), st.floats(0.01, 100))
def test_the_ratio_lies_within_its_interval_when_pairs_are_proportional(candidate, factor):
    baseline = [factor * sample for sample in candidate]
    low, high = timing.interval(candidate, baseline)
    assert low <= high
    record = timing.summarise(candidate, baseline, "b")
    assert record.ratio == pytest.approx(factor)


def test_fewer_than_twenty_pairs_are_never_enough_for_a_speedup():
    for count in range(1, RULES.pairs):
        assert not timing.enough(samples(1e-3, count, 0.0001), samples(2e-3, count, 0.0001), 0.0, RULES)


def test_a_slow_program_needs_only_a_few_pairs():
    assert timing.enough(samples(0.1, 5), samples(0.2, 5, seed=1), RULES.patience, RULES)
    assert not timing.enough(samples(0.1, 4), samples(0.2, 4, seed=1), RULES.patience, RULES)


def test_a_narrow_interval_is_enough_and_a_wide_one_is_not():
    assert timing.enough(samples(1e-3, 20, 0.001), samples(2e-3, 20, 0.001, 1), 0.0, RULES)
    assert not timing.enough(samples(1e-3, 20, 0.5), samples(2e-3, 20, 0.5, 1), 0.0, RULES)


def test_time_and_pairs_run_out():
    wide = samples(1e-3, 20, 0.5), samples(2e-3, 20, 0.5, 1)
    assert timing.enough(*wide, max(RULES.seconds, RULES.patience), RULES)
    assert timing.enough(samples(1e-3, 200, 0.9), samples(2e-3, 200, 0.9, 1), 0.0, RULES)


def test_a_candidate_five_times_slower_is_dropped_after_a_glimpse():
    assert not timing.enough([5e-3] * 2, [1e-3] * 2, 0.0, RULES)
    assert timing.enough([5e-3] * 3, [1e-3] * 3, 0.0, RULES)
    assert timing.enough([5.0], [1e-3], 5.0, RULES)


def test_a_candidate_that_was_only_disturbed_is_not_dropped():
    assert not timing.enough([5e-3, 5e-3, 1.1e-3], [1e-3] * 3, 0.0, RULES)


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ([], "no sample"),
        ([1e-3, 0.0], "not a time"),
        ([1e-3, -1e-3], "not a time"),
        ([1e-3, float("nan")], "not a time"),
        ([1e-3, 1e-7], "below the roofline floor"),
        ([1e-3] * 20, "real ones scatter"),
    ],
)
def test_impossible_samples_are_refused(candidate, reason):
    assert reason in timing.invalid(candidate, floor=1e-6)


def test_honest_samples_are_valid():
    assert timing.invalid(samples(1e-3, 20), floor=1e-6) == ""


def test_repetitions_fill_a_block():
    assert timing.repetitions(1e-3, RULES) == 1
    assert timing.repetitions(1e-6, RULES) in (100, 101)
    assert timing.repetitions(0.0, RULES) >= 1


def test_the_order_within_pairs_is_random_and_seeded():
    order = timing.order(1000, np.random.default_rng(0))
    assert 400 < order.sum() < 600
    assert np.array_equal(order, timing.order(1000, np.random.default_rng(0)))


class Machine:
    """A clock, and kernels that take their seconds on it, on a machine that is noisy and gets slower and slower."""

    def __init__(self, slowing, noise=0.02):
        self.now = 0.0
        self.slowing = slowing
        self.noise = noise
        self.rng = np.random.default_rng(0)

    def kernel(self, seconds):
        def run():
            took = seconds * (1 + self.slowing * self.now) * self.rng.lognormal(0, self.noise)
            self.now += took
            return took

        return run


def test_drift_of_the_machine_does_not_touch_the_ratio():
    machine = Machine(slowing=30.0)
    candidate, baseline = timing.interleave(
        machine.kernel(1e-3), machine.kernel(2e-3), RULES, np.random.default_rng(0), lambda: machine.now
    )
    assert baseline[-1] > 1.5 * baseline[0]
    assert timing.ratio(candidate, baseline) == pytest.approx(2, rel=0.1)


def test_a_steady_machine_stops_at_the_fewest_pairs_and_a_noisy_one_at_the_budget():
    steady, noisy = Machine(0), Machine(0, noise=0.7)
    one = timing.interleave(
        steady.kernel(1e-3), steady.kernel(1e-3), RULES, np.random.default_rng(0), lambda: steady.now
    )
    assert len(one[0]) == len(one[1]) == RULES.pairs
    two = timing.interleave(noisy.kernel(1e-3), noisy.kernel(1e-3), RULES, np.random.default_rng(0), lambda: noisy.now)
    assert len(two[0]) > RULES.pairs
