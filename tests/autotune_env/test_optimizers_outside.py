"""Optimisers from elsewhere on our spaces, and ours elsewhere: Kernel Tuner, pyATF, policies, search agents."""

from __future__ import annotations

import random
import shutil
import threading
import warnings

import gymnasium
import numpy as np
import pytest

import leirgym  # noqa: F401 (registers the environments)
from agents.base import Budget, make_agent
from envs.autotune_env.choices import flat
from envs.autotune_env.domain import SpaceError
from envs.autotune_env.optimizers import make_optimizer
from envs.autotune_env.optimizers.inverted import inverted
from envs.autotune_env.optimizers.policies import AgentOptimizer, PolicyOptimizer
from envs.autotune_env.score import scale
from envs.autotune_env.simulate import repeat, simulate
from envs.autotune_env.synthetic import synthetic

SEARCHES = ["random_sample", "genetic_algorithm", "simulated_annealing", "greedy_ils", "firefly_algorithm", "mls"]


def greedy(problem, rng):
    """An agent of `agents/` that searches until it is stopped."""
    return make_agent("beam").solve(problem, Budget(10**6), rng)


def first_untried(observation, mask):
    """A policy that goes through the configurations in order."""
    return int(np.argmax(mask))


@pytest.mark.parametrize("strategy", SEARCHES)
def test_a_strategy_of_kernel_tuner_runs_on_our_environment(strategy, space):
    pytest.importorskip("kernel_tuner")
    measure = scale(space)
    optimizer = make_optimizer(f"kernel-tuner:{strategy}")
    first, second = (repeat(optimizer, measure, 1, seed=5)[0] for _ in range(2))
    np.testing.assert_array_equal(first.losses, second.losses)
    assert len(set(first.losses[~np.isnan(first.losses)])) > 50


def test_options_reach_the_strategy_and_unknown_ones_are_refused(space):
    pytest.importorskip("kernel_tuner")
    measure = scale(space)
    small = make_optimizer("kernel-tuner", strategy="genetic_algorithm", popsize=4)
    large = make_optimizer("kernel-tuner", strategy="genetic_algorithm", popsize=40)
    assert repeat(small, measure, 1)[0].losses.tolist() != repeat(large, measure, 1)[0].losses.tolist()
    with pytest.raises(ValueError, match=r"a strategy of Kernel Tuner is one of .*'magic'"):
        make_optimizer("kernel-tuner:magic")


def test_an_optalg_runs_on_our_environment_and_no_thread_is_left(space):
    wrapper = pytest.importorskip("kernel_tuner.strategies.wrapper")
    spent = []

    class Walk(wrapper.OptAlg):
        """A walk over Hamming neighbours."""

        def __call__(self, func, searchspace):
            x = searchspace.get_random_sample(1)[0]
            while func.budget_spent_fraction < 1:
                f = func(x)
                spent.append(func.budget_spent_fraction)
                x = searchspace.get_random_neighbor(x, neighbor_method="Hamming")
            return x, f

    threads = threading.active_count()
    run = simulate(make_optimizer("kernel-tuner", strategy=Walk()), space, 300.0, np.random.default_rng(0))
    assert len(run.losses) > 20 and 0 < spent[0] < 0.2 and spent == sorted(spent) and spent[-1] > 0.8
    assert threading.active_count() == threads


@pytest.mark.parametrize("technique", ["differential_evolution", "pattern_search", "simulated_annealing", "torczon"])
def test_a_technique_of_pyatf_repeats_and_leaves_chance_alone(technique, space):
    pytest.importorskip("pyatf")
    module = __import__(f"pyatf.search_techniques.{technique}", fromlist=["random"])
    measure = scale(space)
    state = random.getstate()
    first, second = (repeat(make_optimizer(f"pyatf:{technique}"), measure, 1, seed=2)[0] for _ in range(2))
    np.testing.assert_array_equal(first.losses, second.losses)
    assert random.getstate() == state and module.random is random


def test_our_differential_evolution_does_as_pyatf_does(space):
    pytest.importorskip("pyatf")
    measure = scale(space)
    ours, theirs = (
        np.mean([np.nanmin(run.losses) for run in repeat(make_optimizer(name), measure, 20)])
        for name in ("evolution", "pyatf")
    )
    assert ours == pytest.approx(theirs, rel=0.1)


def test_a_policy_of_the_environment_is_an_optimizer(space):
    """What a policy sees as an optimiser is what the environment shows it."""
    seen = []

    def policy(observation, mask):
        seen.append(observation)
        return first_untried(observation, mask)

    measure = scale(space)
    simulate(PolicyOptimizer(policy, "number"), space, measure.end, np.random.default_rng(0))
    env = gymnasium.make("KernelTuner-Flat-v0", space=space).unwrapped
    observation, info = env.reset(seed=0)
    for ours in seen[:40]:
        assert ours["status"] == observation["status"]
        for part in ("configuration", "best", "progress"):
            np.testing.assert_allclose(ours[part], observation[part], atol=1e-6)
        observation, _, _, _, info = env.step(first_untried(observation, info["action_mask"]))


@pytest.mark.parametrize("actions", ["values", "number", "move"])
def test_any_form_of_action_tunes(actions, space):
    rng = np.random.default_rng(0)

    def policy(observation, mask):
        if isinstance(mask, tuple):
            return [int(rng.choice(np.flatnonzero(one))) for one in mask]
        return int(rng.choice(np.flatnonzero(flat(mask))))

    run = simulate(PolicyOptimizer(policy, actions), space, 300.0, np.random.default_rng(1))
    assert len(run.losses) > 20


def test_a_policy_may_read_text(space):
    texts = []

    def policy(observation, mask):
        texts.append(observation)
        return first_untried(observation, mask)

    simulate(PolicyOptimizer(policy, "number", "text"), space, 100.0, np.random.default_rng(0))
    assert "block_size_x" in texts[-1] and "tried" in texts[-1]


def test_a_policy_that_repeats_itself_is_helped_on(space):
    run = simulate(PolicyOptimizer(lambda *_: 7, "number"), space, 50.0, np.random.default_rng(0))
    assert len(run.losses) > 5


@pytest.mark.parametrize("agent", ["greedy", "mcts", "annealing", "random"])
def test_a_search_agent_is_an_optimizer(agent, space):
    optimizer = AgentOptimizer(lambda problem, rng: make_agent(agent).solve(problem, Budget(10**6), rng))
    threads = threading.active_count()
    first, second = (simulate(optimizer, space, 400.0, np.random.default_rng(1)) for _ in range(2))
    np.testing.assert_array_equal(first.losses, second.losses)
    assert len(set(first.losses.tolist())) > 20 and threading.active_count() == threads


def test_what_inverted_code_raises_is_raised_by_the_search():
    def code(evaluate):
        assert evaluate(4) == 2.5
        raise SpaceError("no more")

    search = inverted(code)
    assert next(search) == 4
    with pytest.raises(SpaceError, match="no more"):
        search.send(2.5)


KERNEL = """
#include <chrono>
extern "C" float add(float *c, float *a, float *b, int n) {
    auto begin = std::chrono::steady_clock::now();
    for (int block = 0; block < n; block += BLOCK)
        for (int i = block; i < block + BLOCK && i < n; i += STEP)
            for (int j = i; j < i + STEP; j++) c[j] = a[j] + b[j];
    return std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - begin).count();
}
"""


@pytest.mark.parametrize(
    "optimizer",
    [
        make_optimizer("annealing"),
        PolicyOptimizer(first_untried, "number"),
        AgentOptimizer(greedy),
    ],
    ids=["annealing", "policy", "agent"],
)
def test_ours_tunes_a_real_kernel_inside_kernel_tuner(optimizer, tmp_path, monkeypatch):
    interface = pytest.importorskip("kernel_tuner")
    if not shutil.which("g++"):
        pytest.skip("there is no g++")
    from envs.autotune_env.optimizers.kernel_tuner import as_strategy

    monkeypatch.chdir(tmp_path)
    a, b = (np.random.default_rng(seed).random(4096, np.float32) for seed in (0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results, environment = interface.tune_kernel(
            "add",
            KERNEL,
            4096,
            [np.zeros_like(a), a, b, np.int32(len(a))],
            {"BLOCK": [64, 256, 1024], "STEP": [1, 4, 16]},
            restrictions=["BLOCK >= STEP * 16"],
            lang="C",
            compiler="g++",
            answer=[a + b, None, None, None],
            strategy=as_strategy(optimizer),
            strategy_options={"max_fevals": 4},
            iterations=3,
            quiet=True,
        )
    assert len({(one["BLOCK"], one["STEP"]) for one in results}) == 4
    assert environment["best_config"]["time"] == min(one["time"] for one in results)


def test_ours_inside_kernel_tuner_finds_what_it_finds_here():
    """The same optimiser and seed ask for the same configurations on both sides."""
    wrapper = pytest.importorskip("kernel_tuner.strategies.wrapper")
    from envs.autotune_env.optimizers.kernel_tuner import as_strategy, searchspace

    space = synthetic()
    strategy = as_strategy(make_optimizer("genetic"), seed=3).optimizer
    assert isinstance(strategy, wrapper.OptAlg)
    domain = space.domain
    asked = []

    class Stop(Exception):
        pass

    class Cost:
        budget_spent_fraction = 0.0

        def __call__(self, values):
            chosen = dict(zip([p.name for p in domain.parameters], values, strict=True))
            row = domain.row([p.values.index(chosen[p.name]) for p in domain.parameters])
            asked.append(row)
            if len(asked) == 60:
                raise Stop
            return float(space.losses[row]) if space.correct[row] else 1.7976931348623157e308

    with pytest.raises(Stop):
        strategy(Cost(), searchspace(domain))
    tuner = make_optimizer("genetic").start(domain, np.random.default_rng(3))
    from envs.autotune_env.oracle import replay

    oracle, ours = replay(space), []
    for _ in range(60):
        ours.append(tuner.ask())
        tuner.tell(ours[-1], oracle.evaluate(ours[-1], None), 0.0)
    assert ours == asked
