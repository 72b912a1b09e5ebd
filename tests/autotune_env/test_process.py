"""The Gaussian process: what it computes step by step is what the textbook says of all at once."""

from __future__ import annotations

import itertools
import math
from random import Random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.autotune_env.domain import Domain, Parameter
from envs.autotune_env.optimizers.process import Process, improvement
from envs.autotune_env.optimizers.search import FAILED, View

DOMAIN = Domain(
    (Parameter("a", (1, 2, 4, 8)), Parameter("b", (1, 2, 3)), Parameter("c", (0, 1))),
    np.array([row for row in itertools.product(range(4), range(3), range(2)) if row != (3, 2, 1)], np.uint16),
)
KERNEL = {"reach": 0.8, "jump": 0.2, "power": 2.0, "noise": 0.01}
LOSSES = st.lists(st.floats(0.1, 10) | st.just(FAILED), min_size=1, max_size=12)


def viewed(losses, seed=0):
    """A view in which as many different rows were tried."""
    view = View(DOMAIN, Random(seed))
    for row, loss in zip(view.samples(len(losses)), losses, strict=True):
        view.record(row, loss, 1.0)
    return view


def expected_improvements(view, caution=0.0):
    """Of every row, by the formulas, on dense matrices; minus infinity where it was tried."""
    rows, losses = list(view.losses), np.array(list(view.losses.values()))
    steps = np.abs(DOMAIN.configurations[:, None, :].astype(float) - DOMAIN.configurations[None]) / [3, 2, 1]
    kernel = np.exp(-(KERNEL["jump"] * (steps > 0) + (steps / KERNEL["reach"]) ** KERNEL["power"]).sum(axis=2))
    ranks = np.argsort(np.argsort(losses, kind="stable"), kind="stable")
    targets = np.array([NormalDist().inv_cdf((rank + 0.5) / len(rows)) for rank in ranks])
    if np.isinf(losses).any():
        targets[np.isinf(losses)] = targets[np.isinf(losses)].mean()
    solved = np.linalg.solve(kernel[np.ix_(rows, rows)] + KERNEL["noise"] * np.eye(len(rows)), kernel[rows])
    means, spreads = targets @ solved, np.sqrt(np.maximum(1 - (kernel[rows] * solved).sum(axis=0), 1e-8))
    scores = (targets.min() - means) / spreads - caution
    found = [
        s * (z * math.erfc(-z / 2**0.5) / 2 + math.exp(-z * z / 2) / math.tau**0.5)
        for s, z in zip(spreads, scores, strict=True)
    ]
    found = np.array(found)
    found[rows] = -math.inf
    return found


@settings(deadline=None, max_examples=60)
@given(LOSSES, st.integers(0, 99), st.sampled_from((0.0, 0.3)))
def test_the_row_chosen_has_the_greatest_expected_improvement(losses, seed, caution):
    view = viewed(losses, seed)
    process = Process(view, **KERNEL, fitted=False)
    found = expected_improvements(view, caution)
    assert found[process.choose(caution)] >= found.max() * 0.97  # scores are rounded to hundredths


@settings(deadline=None, max_examples=30)
@given(LOSSES, st.integers(0, 99))
def test_what_is_heard_bit_by_bit_or_at_once_makes_no_difference(losses, seed):
    whole = viewed(losses, seed)
    gradual, process = View(DOMAIN, Random(1)), None
    for row, loss in whole.losses.items():
        gradual.record(row, loss, 1.0)
        process = process or Process(gradual, **KERNEL, fitted=False)
        process.choose()
    found = expected_improvements(whole)
    assert found[process.choose()] >= found.max() * 0.97


@settings(deadline=None, max_examples=30)
@given(LOSSES, st.integers(0, 99), st.floats(0.01, 1000))
def test_the_unit_of_losses_does_not_matter(losses, seed, unit):
    choices = [
        Process(view, **KERNEL).choose(thrift=0.5)
        for view in (viewed(losses, seed), viewed([unit * loss for loss in losses], seed))
    ]
    assert choices[0] == choices[1]


@pytest.mark.parametrize("candidates", [5, 100])
@pytest.mark.parametrize("room", [4, 100])
def test_whatever_it_may_forget_every_row_is_chosen_once(room, candidates):
    view = View(DOMAIN, Random(0))
    process = Process(view, room=room, candidates=candidates)
    for count in range(len(DOMAIN)):
        row = process.choose()
        assert row not in view.losses
        view.record(row, FAILED if count % 5 == 1 else 1.0 + row, 1.0)
    assert 0 <= process.choose() < len(DOMAIN)


def test_parameters_without_effect_lose_their_weight():
    view = View(DOMAIN, Random(0))
    for row in view.samples(18):
        view.record(row, 2.0 ** view.indices(row)[0], 1.0)
    process = Process(view)
    process.choose()
    weights = process.weights
    assert weights[0] > 4 * max(weights[1:])


def test_the_thrifty_choose_what_is_expected_to_cost_less():
    chosen = {0.0: 0, 2.0: 0}
    for thrift, seed in itertools.product(chosen, range(20)):
        view = View(DOMAIN, Random(seed))
        for row in view.samples(5):
            view.record(row, 1.0 + view.rng.random(), 10.0 if view.indices(row)[2] else 1.0)
        chosen[thrift] += view.indices(Process(view).choose(thrift=thrift))[2]
    assert chosen[2.0] < chosen[0.0]


def test_rows_to_begin_with_differ_and_lie_apart():
    for seed in range(20):
        view = View(DOMAIN, Random(seed))
        first, second, *rest = Process(view).spread(5)
        assert len({first, second, *rest}) == 2 + len(rest)
        assert sum(a != b for a, b in zip(view.indices(first), view.indices(second), strict=True)) >= 2


def test_the_table_of_improvements_is_the_formula():
    scores = np.linspace(-5, 5, 101)
    exact = [math.log(z * math.erfc(-z / 2**0.5) / 2 + math.exp(-z * z / 2) / math.tau**0.5) for z in scores.tolist()]
    np.testing.assert_allclose(improvement(scores), exact, atol=1e-6)
    wide = improvement(np.linspace(-20, 20, 4001))
    assert np.all(np.isfinite(wide)) and np.all(np.diff(wide) >= 0)
