"""Trained policies: they see outside the environment what they saw in it, and choose legal actions only."""

from __future__ import annotations

import importlib.util
import itertools
import json

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner

import leirgym
from agents.base import Budget, Ended, Evaluated, make_agent
from agents.cli import optimize
from agents.cli_compare import compare
from agents.rl.faces import face_for, vector
from agents.rl.network import Network, Policy, PolicyError, load, squash
from envs.common.actions import STOP
from envs.leir_env.env import menu_of
from envs.leir_env.observe import FEATURES
from envs.leir_env.problem import LeirProblem
from tests.agents.test_leir import MATMUL, Predicted
from tests.common.toy_problem import ToyProblem

assert leirgym.VERBS

SUM = "i,j:64\nA:f32[i,j] -> B:f32[i]\nL_i,j B[i] += A[i,j]\n"

MENU = menu_of("llvm")
WIDTH = len(FEATURES) + 2
ARGUMENTS = {"target": "llvm", "reward": "model", "observation": "dict", "max_steps": 5}

needs_sb3 = pytest.mark.skipif(importlib.util.find_spec("sb3_contrib") is None, reason="needs leirgym[rl]")


def network(*widths: int, seed: int = 0, sizes: tuple[int, ...] | None = None) -> Network:
    rng = np.random.default_rng(seed)
    layers = tuple(
        (rng.normal(size=(given, made)).astype(np.float32), rng.normal(size=made).astype(np.float32))
        for given, made in itertools.pairwise(widths)
    )
    return Network(layers, sizes or (widths[-1],))


def leir_policy(seed: int = 0, **changed) -> Policy:
    given = {"environment": "LEIR-v0", "arguments": ARGUMENTS, "blocks": MENU.blocks} | changed
    return Policy(network(WIDTH, 8, MENU.size, seed=seed), **given)


def preferring(name: str) -> Policy:
    """Takes the first action of a strategy as long as there is one, and stops after that."""
    weights, biases = np.zeros((WIDTH, MENU.size), np.float32), np.full(MENU.size, -10, np.float32)
    biases[0], biases[MENU.offsets[name]] = 0, 10
    return Policy(Network(((weights, biases),), (MENU.size,)), "LEIR-v0", ARGUMENTS, MENU.blocks)


def test_the_likeliest_choice_is_the_legal_one_with_the_highest_logit():
    made = network(4, 6, 30)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        seen, mask = rng.normal(size=4).astype(np.float32), rng.random(30) < 0.3
        mask[int(rng.integers(30))] = True
        (choice,) = made.choose(seen, mask, None)
        logits = made.logits(seen)
        assert mask[choice] and logits[choice] == pytest.approx(max(logits[mask]))
        assert mask[made.choose(seen, mask, rng)[0]]


def test_drawn_choices_follow_the_probabilities():
    made = Network(((np.zeros((1, 4), np.float32), np.log(np.array([1, 2, 5, 3], np.float32))),), (4,))
    mask, rng = np.array([True, True, False, True]), np.random.default_rng(0)
    drawn = np.bincount([made.choose(np.zeros(1, np.float32), mask, rng)[0] for _ in range(6000)], minlength=4)
    assert drawn[2] == 0
    assert drawn / 6000 == pytest.approx([1 / 6, 1 / 3, 0, 1 / 2], abs=0.03)


def test_several_choices_have_a_mask_each():
    made = network(3, 5, sizes=(2, 3))
    mask = np.array([False, True, True, False, True])
    chosen = {made.choose(np.ones(3, np.float32), mask, np.random.default_rng(seed)) for seed in range(200)}
    assert chosen == {(1, 0), (1, 2)}


@pytest.mark.parametrize(
    ("layers", "sizes", "message"),
    [
        ([(2, 3, 3), (4, 5, 5)], (5,), "a layer of 3 outputs meets one of 4 inputs"),
        ([(2, 3, 4)], (3,), "as many biases as outputs"),
        ([(2, 3, 3)], (4,), "one output for each of 4 choices"),
        ([], (4,), "one output for each of 4 choices"),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers, sizes, message):
    made = tuple((np.zeros((a, b), np.float32), np.zeros(c, np.float32)) for a, b, c in layers)
    with pytest.raises(PolicyError, match=message):
        Network(made, sizes)


def test_a_file_gives_back_what_was_saved(tmp_path):
    policy = leir_policy()
    policy.save(tmp_path / "policy.npz")
    twin = load(tmp_path / "policy.npz")
    assert (twin.environment, twin.arguments, twin.network.sizes) == ("LEIR-v0", ARGUMENTS, (MENU.size,))
    assert list(twin.blocks.items()) == list(MENU.blocks.items())
    for mine, theirs in zip(policy.network.layers, twin.network.layers, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_file_that_is_no_policy_is_refused_and_nothing_in_it_runs(tmp_path):
    path = tmp_path / "policy.npz"
    with pytest.raises(PolicyError, match=r"policy\.npz: No such file"):
        load(path)
    path.write_bytes(b"no archive")
    with pytest.raises(PolicyError, match="is no trained policy"):
        load(path)
    np.savez(path, about=np.array(json.dumps({"format": 0})))
    with pytest.raises(PolicyError, match="format 0"):
        load(path)
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (ran.touch, ())

    np.savez(path, about=np.array([Bomb()], dtype=object))
    with pytest.raises(PolicyError, match="is no trained policy"):
        load(path)
    assert not ran.exists()


@pytest.mark.parametrize("workload", ["softmax", MATMUL])
def test_a_face_shows_what_the_environment_shows(workload):
    env = gymnasium.make("LEIR-v0", workload=workload, disable_env_checker=True, **ARGUMENTS)
    rng = np.random.default_rng(0)
    for seed in range(3):
        seen, info = env.reset(seed=seed)
        problem, over, steps = env.unwrapped.episode.problem, False, 0
        face = face_for(leir_policy(), problem)
        state = problem.root
        while not over:
            numbers = {name: seen[name] for name in ("features", "estimate", "progress")}
            shown = face.see(problem, state, steps / ARGUMENTS["max_steps"])
            assert vector(shown) == pytest.approx(vector(numbers), abs=1e-6)
            offer = face.menu.offer(problem.legal(state))
            assert np.array_equal(offer.mask, info["action_mask"]) and offer.texts == info["actions"]
            index = int(rng.choice(np.flatnonzero(offer.mask)[1:]))
            state, steps = problem.apply(state, offer.actions[index]), steps + 1
            seen, _, terminated, truncated, info = env.step(index)
            over = terminated or truncated
    env.close()


def test_a_policy_is_an_agent_that_follows_its_likeliest_choices_first():
    problem = Predicted(MATMUL)
    result = make_agent("ppo", model=preferring("loop_parallelization")).solve(
        problem, Budget(2), np.random.default_rng(0)
    )
    assert result.counts.evaluations == 2 and result.actions
    assert {action.name for action in result.actions} == {"loop_parallelization"}
    first = next(action for action in problem.legal(problem.root) if action.name == "loop_parallelization")
    assert result.actions[0] == first


def test_a_policy_chooses_legal_actions_only_and_within_its_depth():
    problem = Predicted(MATMUL, check=True)
    traces = []

    def listen(event):
        if isinstance(event, Evaluated):
            traces.append(event.trace)

    result = make_agent("ppo", model=leir_policy(seed=3)).solve(problem, Budget(12), np.random.default_rng(0), listen)
    assert result.ended is Ended.EVALUATIONS and len(traces) == 12
    for trace in traces:
        state = problem.root
        for action in trace:
            assert action != STOP and problem.refusal(state, action) is None
            state = problem.apply(state, action)
    assert max(map(len, traces)) <= ARGUMENTS["max_steps"]


@pytest.mark.parametrize(
    ("policy", "problem", "message"),
    [
        (leir_policy(), ToyProblem(), "does not act on dials: it is not a LEIR program"),
        (leir_policy(), LeirProblem(MATMUL, target="cuda"), "it is for cuda, the policy for llvm"),
        (leir_policy(environment="KernelTuner-v0"), ToyProblem(), "plays in its environment only"),
        (leir_policy(blocks=dict(reversed(MENU.blocks.items()))), LeirProblem(MATMUL), "another menu"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_with_the_reason(policy, problem, message):
    with pytest.raises(PolicyError, match=message):
        make_agent("ppo", model=policy).solve(problem, Budget(4), np.random.default_rng(0))


def test_impossible_parameters_are_refused():
    for wrong in ({"depth": 0}, {"batch": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            make_agent("ppo", **wrong)


def test_optimize_follows_the_policy_of_a_file(tmp_path):
    path = tmp_path / "policy.npz"
    preferring("loop_parallelization").save(path)
    options = ["--agent", "ppo", "--budget", "2", "--store", str(tmp_path / "store.sqlite"), "--json"]
    result = CliRunner().invoke(optimize, [MATMUL, *options, "--policy", str(path)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["evaluations"] == 2 and len(found["curve"]) == 2
    for wrong in (options, ["--policy", str(path)]):
        result = CliRunner().invoke(optimize, [MATMUL, *wrong])
        assert result.exit_code == 2 and "the agent ppo and --policy FILE go together" in result.stderr


def test_compare_refuses_a_policy_that_does_not_fit(tmp_path):
    path = tmp_path / "policy.npz"
    leir_policy(blocks={"loop_split": 256}).save(path)
    result = CliRunner().invoke(compare, ["sum", "--agents", "ppo", "--policy", str(path)])
    assert result.exit_code == 2 and "another menu" in result.stderr


def test_squash_keeps_order_and_sign():
    values = np.array([-256.0, -1.0, 0.0, 0.5, 256.0])
    squashed = squash(values)
    assert list(squashed) == sorted(squashed) and np.array_equal(np.sign(squashed), np.sign(values))
    assert abs(squashed).max() < 6


@pytest.fixture(scope="module")
def trained():
    pytest.importorskip("sb3_contrib")
    from agents.rl.training import Course, Settings, train

    course = Course("LEIR-v0", ARGUMENTS, "workload", (SUM,))
    told = []
    policy = train(course, 96, 0, Settings(rollout=32, minibatch=16, epochs=2), lambda *news: told.append(news))
    return course, policy, told


@needs_sb3
def test_a_training_tells_its_steps_and_returns(trained):
    _, policy, told = trained
    assert [steps for steps, _, _ in told] == [32, 64, 96]
    assert all(np.isfinite(mean) for _, mean, _ in told)
    assert policy.environment == "LEIR-v0" and policy.arguments == ARGUMENTS
    before, after = told[0][2].network.layers[-1][1], policy.network.layers[-1][1]
    assert np.array_equal(before, np.zeros_like(before)) and not np.array_equal(before, after)


@needs_sb3
def test_what_a_policy_returns_can_be_repeated_and_replayed_as_an_agent(trained):
    from agents.rl.training import returns

    course, policy, _ = trained
    found = returns(policy, course, SUM)
    assert found == returns(policy, course, SUM)
    problem = Predicted(SUM)
    traces = []

    def listen(event):
        if isinstance(event, Evaluated):
            traces.append(event.trace)

    make_agent("ppo", model=policy, batch=1).solve(problem, Budget(2), np.random.default_rng(0), listen)
    state = problem.root
    for action in traces[1]:
        state = problem.apply(state, action)
    gained = problem.estimate(state) - problem.estimate(problem.root)
    assert gained == pytest.approx(found[0], abs=1e-6), "the agent's first walk is the greedy episode"


@needs_sb3
def test_the_copy_in_numpy_has_the_probabilities_of_the_trained_model():
    import torch
    from sb3_contrib import MaskablePPO

    from agents.rl.training import Course, MenuPolicy, policy_of

    course = Course("LEIR-v0", {**ARGUMENTS, "workload": MATMUL})
    env = course.make()
    model = MaskablePPO(MenuPolicy, env, n_steps=8, policy_kwargs={"blocks": MENU.blocks}, device="cpu")
    for parameter in model.policy.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    copy = policy_of(model, course).network
    seen, _ = env.reset(seed=0)
    mask = env.get_wrapper_attr("action_masks")()
    with torch.no_grad():
        theirs = model.policy.get_distribution(torch.from_numpy(seen)[None], mask[None]).distribution.probs[0].numpy()
    logits = np.where(mask, copy.logits(seen).astype(np.float64), -np.inf)
    ours = np.exp(logits - logits.max())
    assert ours / ours.sum() == pytest.approx(theirs, abs=1e-5)


@needs_sb3
def test_tuning_sessions_are_learnt_too():
    from agents.rl.training import Course, Settings, returns, train

    course = Course("KernelTuner-v0", {"space": "synthetic0/north", "budget": 20.0, "reward": "credit"})
    policy = train(course, 64, 0, Settings(rollout=32, minibatch=16, epochs=1))
    rng = np.random.default_rng(0)
    assert len(policy.network.sizes) == 7
    assert all(np.isfinite(returns(who, course, episodes=2, rng=rng)).all() for who in (policy, None))
    with pytest.raises(PolicyError, match="needs a generator"):
        returns(None, course)


@needs_sb3
def test_episodes_take_their_tasks_at_random_unless_reset_names_one():
    from agents.rl.training import Course

    spaces = ("synthetic0/north", "synthetic0/south")
    env = Course("KernelTuner-v0", {"space": spaces}, "space", spaces).make()

    def met(**given) -> list[str]:
        names = []
        for seed in range(12):
            env.reset(seed=seed, **given)
            names.append(env.unwrapped.space.name)
        return names

    assert set(met()) == set(spaces) and met() == met()
    assert set(met(options={"space": spaces[1]})) == {spaces[1]}


@needs_sb3
def test_only_dictionaries_can_be_read():
    from agents.rl.training import Course

    with pytest.raises(PolicyError, match="kind dict, not Text"):
        Course("LEIR-v0", {"workload": "sum", "reward": "model"}).make()
