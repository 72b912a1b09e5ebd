"""KernelTuner-v0 and its two sisters: episodes, clock, masks, rewards, observations, and many at once."""

from __future__ import annotations

import math
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import leirgym  # noqa: F401  (registers the environments)
from envs.autotune_env import compact
from envs.autotune_env.domain import Domain, Parameter, SpaceError
from envs.autotune_env.env import KernelTunerEnv
from envs.autotune_env.observe import MAX_CHARACTERS, PROGRESS, STATUSES
from envs.autotune_env.reward import REWARDS, area
from envs.autotune_env.score import run_score, scale, step_curve
from envs.autotune_env.session import DECISION_SECONDS, REFUSAL_SHARE
from envs.autotune_env.space import Space, Status
from envs.autotune_env.synthetic import synthetic
from envs.autotune_env.vector import KernelTunerVectorEnv

IDS = {"KernelTuner-v0": "values", "KernelTuner-Flat-v0": "number", "KernelTuner-Local-v0": "move"}

every_form = pytest.mark.parametrize("actions", IDS.values())


def legal(env, info):
    """An action at random that leads to a configuration."""
    if env.unwrapped.actions == "values":
        indices: list[int] = []
        for _ in env.unwrapped.domain.sizes:
            indices.append(int(env.np_random.choice(np.flatnonzero(env.unwrapped.conditional_mask(indices)))))
        return np.array(indices)
    return int(env.np_random.choice(np.flatnonzero(info["action_mask"])))


def episode(env, choose=legal, seed=0, most=100_000):
    """Play to the end; return everything that was seen."""
    observation, info = env.reset(seed=seed)
    steps = [(observation, 0.0, False, False, info)]
    while not (steps[-1][2] or steps[-1][3]) and len(steps) < most:
        steps.append(env.step(choose(env, steps[-1][-1])))
    return steps


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("observation", ["dict", "text"])
def test_the_environments_keep_gymnasiums_contract(name, observation, recwarn):
    env = gymnasium.make(name, space="synthetic0/north", observation=observation)
    check_env(env.unwrapped)
    assert env.unwrapped.actions == IDS[name]
    assert not [str(warning.message) for warning in recwarn]


@pytest.mark.parametrize("name", IDS)
def test_a_seed_repeats_an_episode_bit_for_bit(name):
    for noise in ("mean", "resample"):
        env = gymnasium.make(name, space="synthetic1/south", noise=noise)
        first, again = (episode(env, seed=5, most=300) for _ in range(2))
        assert len(first) == len(again)
        for left, right in zip(first, again, strict=True):
            assert left[1:4] == right[1:4]
            for part in left[0]:
                np.testing.assert_array_equal(left[0][part], right[0][part])


@every_form
@pytest.mark.parametrize("reward", ["score", "credit"])
@pytest.mark.parametrize("noise", ["mean", "resample"])
def test_the_return_is_the_score_of_the_run(actions, reward, noise):
    env = KernelTunerEnv("synthetic2/east", actions=actions, reward=reward, noise=noise)
    for seed in range(4):
        steps = episode(env, seed=seed)
        total = sum(step[1] for step in steps)
        if noise == "mean":
            assert total == pytest.approx(run_score(scale(env.space), env.run()), abs=1e-9)
        assert [step[2:4] for step in steps[-2:]] == [(False, False), (True, False)]
        assert env.session.clock >= scale(env.space).end


def test_both_rewards_give_the_same_return_under_noise():
    returns = []
    for reward in ("score", "credit"):
        env = KernelTunerEnv("synthetic2/east", actions="number", reward=reward, noise="resample")
        returns.append(sum(step[1] for step in episode(env, seed=3)))
    assert returns[0] == pytest.approx(returns[1], abs=1e-9)


def test_the_log_return_is_the_improvement_over_the_first_found():
    env = KernelTunerEnv("synthetic0/north", actions="number", reward="log")
    steps = episode(env, seed=1)
    found = [step[-1]["best"] for step in steps if step[-1]["best"] is not None]
    assert sum(step[1] for step in steps) == pytest.approx(math.log(found[0] / found[-1]))
    assert found[-1] < found[0]


def test_the_optimum_at_once_returns_1(space):
    env = KernelTunerEnv(space, actions="number")
    best = int(np.nanargmin(space.losses))
    rows = iter([best, *(row for row in range(len(space)) if row != best)])
    steps = episode(env, lambda env, info: next(rows))
    assert sum(step[1] for step in steps) == pytest.approx(1)


def test_finding_nothing_returns_what_the_worst_configuration_is_worth(space):
    for reward in ("score", "credit"):
        env = KernelTunerEnv(space, actions="number", reward=reward, budget=30.0)
        steps = episode(env, lambda env, info: -1)
        measure = scale(space, 30.0)
        worst = measure.standardise(np.full(len(measure.times), measure.ranked[-1])).mean()
        assert sum(step[1] for step in steps) == pytest.approx(worst) and worst < 0
        assert steps[-1][-1]["evaluations"] == 0 and steps[-1][-1]["best"] is None


def test_what_finishes_after_the_budget_does_not_count(space):
    env = KernelTunerEnv(space, actions="number", budget=12.0)
    env.reset(seed=0)
    best = int(np.nanargmin(space.losses))
    over, rows = False, iter(np.argsort(-np.where(space.correct, space.losses, -np.inf)).tolist())
    while not over:
        late = env.session.clock + DECISION_SECONDS + space.seconds[best] > 12.0
        row = best if late else next(rows)
        _, _, over, _, info = env.step(row)
    assert row == best and info["objective"] == space.values[best] < info["best"]
    assert env.session.best != best


@every_form
def test_an_agent_without_any_legal_idea_reaches_the_end(actions):
    env = KernelTunerEnv("synthetic0/north", actions=actions, budget=40.0)
    wrong = {"values": np.full(7, 99), "number": 10**6, "move": 10**6}[actions]
    steps = episode(env, lambda env, info: wrong)
    cost = DECISION_SECONDS + REFUSAL_SHARE * float(np.median(env.space.seconds))
    assert len(steps) - 1 == math.ceil(40.0 / cost - 1e-9)
    assert {step[-1]["status"] for step in steps[1:]} == {"constraints"}


def test_what_was_tried_before_costs_a_decision_and_answers_the_same():
    for noise in ("mean", "resample"):
        env = KernelTunerEnv("synthetic0/north", actions="number", noise=noise)
        env.reset(seed=0)
        first = env.step(1234)
        again = env.step(1234)
        assert again[-1]["status"] == "repeated" and again[-1]["objective"] == first[-1]["objective"]
        assert again[-1]["seconds"] == pytest.approx(first[-1]["seconds"] + DECISION_SECONDS)
        assert again[-1]["evaluations"] == 1
        assert again[0]["status"] == STATUSES.index("repeated")


def test_a_failure_is_an_observation_and_costs_its_time(space):
    env = KernelTunerEnv(space, actions="number")
    env.reset(seed=0)
    row = int(np.flatnonzero(space.status == Status.COMPILE)[0])
    observation, _, terminated, truncated, info = env.step(row)
    assert info["status"] == "compile" and info["objective"] is None
    assert not terminated and not truncated and env.observation_space.contains(observation)
    assert info["seconds"] == pytest.approx(space.seconds[row] + DECISION_SECONDS)


def tiny() -> Space:
    """Two parameters, 31 of 32 configurations, the last of which fails; each costs 4 s."""
    configurations = [[x, y] for x in range(16) for y in range(2) if (x, y) != (15, 1)]
    domain = Domain(
        (Parameter("x", tuple(range(1, 17))), Parameter("y", (0, 1))),
        np.array(configurations, np.uint16),
        restrictions=("x < 16 or y == 0",),
    )
    status = np.array([0] * 30 + [3], np.int8)
    values = np.append(np.arange(30.0, 0.0, -1), np.nan)
    return Space("tiny/made", domain, status, values, np.ones((31, 4), np.float32))


def test_a_finished_episode_and_one_that_never_began_need_a_reset(space):
    env = KernelTunerEnv(space, budget=10.0)
    for use in (env.action_masks, lambda: env.step(np.zeros(7, int))):
        with pytest.raises(gymnasium.error.ResetNeeded):
            use()
    episode(env, lambda env, info: np.full(7, 99))
    with pytest.raises(gymnasium.error.ResetNeeded, match="the episode is over"):
        env.step(np.zeros(7, int))


# ---- masks


def test_masked_samples_are_legal_where_masks_are_exact():
    for actions in ("number", "move"):
        env = KernelTunerEnv("synthetic0/north", actions=actions)
        _, info = env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(200):
            action = env.action_space.sample(info["action_mask"])
            assert env.action_masks()[action] and env.refusal(action) is None
            _, _, terminated, truncated, info = env.step(action)
            assert info["status"] != "constraints" and not truncated
            if terminated:
                break


@every_form
def test_a_mask_says_exactly_what_is_refused(actions):
    env = KernelTunerEnv(tiny(), actions=actions)
    env.reset(seed=2)
    if actions == "values":
        assert [mask.tolist() for mask in env.step(np.array([0, 0]))[-1]["action_mask"]] == [[1] * 16, [1, 1]]
        assert env.conditional_mask().tolist() == [1] * 16
        assert env.conditional_mask([15]).tolist() == [1, 0] and env.conditional_mask([1]).tolist() == [1, 1]
        assert env.action_masks().tolist() == [True] * 18
    else:
        for _ in range(5):
            mask = env.action_masks()
            for action in range(env.action_space.n):
                tried = actions == "number" and not env.session.untried[action]
                pointless = actions == "move" and action == 18 and env.session.best == env._current
                assert mask[action] == (env.refusal(action) is None and not tried and not pointless)
            env.step(int(np.flatnonzero(mask)[0]))


def test_a_refused_action_names_the_rule():
    env = KernelTunerEnv(tiny())
    env.reset(seed=0)
    assert env.refusal(np.array([15, 1])) == "restriction: x < 16 or y == 0 does not hold for x=16, y=1"
    local = KernelTunerEnv(tiny(), actions="move")
    local.reset(seed=0)
    local._current = 30
    assert local.refusal(17) == "restriction: x < 16 or y == 0 does not hold for x=16, y=1"
    assert local.refusal(15) == "no_effect: x is 16 already"
    assert local.refusal(18) == "nothing_found: there is no best configuration yet"
    assert local.refusal(20) == "unknown_index: moves run from 0 to 19, not to 20"
    assert local.refusal(19) is None
    flat = KernelTunerEnv(tiny(), actions="number")
    flat.reset(seed=0)
    assert flat.refusal(31) == "unknown_index: configurations run from 0 to 30, not to 31"


def test_moves_change_one_value_go_back_and_go_on():
    env = KernelTunerEnv(tiny(), actions="move")
    env.reset(seed=0)
    env._current = 0
    assert env.step(1)[-1]["row"] == 2  # x: 1 -> 2
    assert env.step(17)[-1]["row"] == 3  # y: 0 -> 1
    assert env.step(0)[-1]["row"] == 1  # x: 2 -> 1
    back = env.step(18)[-1]
    assert (back["row"], back["status"]) == (3, "repeated")
    assert env.step(19)[-1]["row"] in range(31)


@pytest.mark.parametrize(
    ("actions", "action"), [("values", np.zeros(2)), ("number", 1.5), ("number", "3"), ("move", None)]
)
def test_an_action_of_the_wrong_type_raises(actions, action):
    env = KernelTunerEnv(tiny(), actions=actions)
    env.reset(seed=0)
    with pytest.raises(TypeError):
        env.step(action)


def test_an_action_of_the_wrong_length_raises():
    env = KernelTunerEnv(tiny())
    env.reset(seed=0)
    with pytest.raises(ValueError):
        env.step(np.array([0, 0, 0]))


# ---- observations


def test_progress_tells_budget_last_and_best(space):
    env = KernelTunerEnv(space, actions="number")
    env.reset(seed=0)
    order = np.flatnonzero(space.correct)[[100, 400, 900]]
    for row in order.tolist():
        observation, *_ = env.step(row)
    values = space.values[order]
    progress = dict(zip(PROGRESS, observation["progress"], strict=True))
    assert progress["spent"] == pytest.approx(env.session.clock / scale(space).end)
    assert progress["tried"] == pytest.approx(3 / len(space))
    assert progress["last"] == pytest.approx(math.log(values[0] / values[2]), rel=1e-5)
    assert progress["best"] == pytest.approx(math.log(values[0] / values.min()), rel=1e-5)
    sizes = np.array(space.domain.sizes) - 1
    np.testing.assert_allclose(observation["configuration"] * sizes, space.domain.configurations[order[-1]], rtol=1e-6)


@pytest.mark.parametrize("observation", ["dict", "text"])
@every_form
def test_observations_tell_nothing_of_what_was_not_tried(observation, actions):
    """Two spaces that differ only in what was not tried look alike, at every step."""
    original = synthetic()
    rows = np.flatnonzero(original.correct)[:40]
    values = original.values * np.where(
        np.isin(np.arange(len(original)), rows), 1, 0.01 + 3 * (np.arange(len(original)) % 7)
    )
    other = Space(original.name, original.domain, original.status, values, original.costs, kernel="synthetic")
    seen = []
    for space in (original, other):
        env = KernelTunerEnv(space, actions=actions, observation=observation, budget=scale(original).end)
        found = [env.reset(seed=0)]
        if actions == "move":
            env._current = int(rows[0])
        for row in rows.tolist():
            if actions == "move":
                moves = np.flatnonzero(np.isin(env._choice.table[env._current], rows))
                action = int(moves[0]) if len(moves) else env._choice.back
            else:
                action = row if actions == "number" else space.domain.configurations[row].astype(int)
            step = env.step(action)
            found.append((step[0], step[-1]))
        seen.append(found)
    for (left, one), (right, two) in zip(*seen, strict=True):
        assert left == right if observation == "text" else all(np.array_equal(left[k], right[k]) for k in left)
        assert {k: v for k, v in one.items() if k != "action_mask"} == {
            k: v for k, v in two.items() if k != "action_mask"
        }


def test_a_text_names_the_task_the_budget_and_what_was_found():
    env = KernelTunerEnv(tiny(), observation="text", render_mode="ansi", budget=30.0)
    env.reset(seed=0)
    env.step(np.array([0, 1]))
    env.step(np.array([15, 0]))
    text, *_ = env.step(np.array([15, 1]))
    assert text.splitlines() == [
        "kernel tiny/made: time in ms, less is better",
        "x: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
        "y: 0 1",
        "rule: x < 16 or y == 0",
        "budget: 8.043 of 30 s spent; 2 of 31 configurations tried, 1 of them failed",
        "current: x=16, y=0",
        "last: refused, restriction: x < 16 or y == 0 does not hold for x=16, y=1",
        "best: 29 ms with x=1, y=1",
        "tried: 29 ms with x=1, y=1",
        "tried: runtime with x=16, y=0",
    ]
    assert env.render().splitlines()[0] == text.splitlines()[0]


def test_a_text_never_outgrows_its_space():
    values = tuple(f"value_{n}_ü" * 20 for n in range(300))
    domain = Domain((Parameter("mode", values),), np.arange(300, dtype=np.uint16)[:, None])
    space = Space("long/made", domain, np.zeros(300, np.int8), np.arange(1.0, 301), np.ones((300, 4), np.float32))
    env = KernelTunerEnv(space, observation="text", actions="number")
    text, _ = env.reset(seed=0)
    assert len(text) == MAX_CHARACTERS and env.observation_space.contains(text)


def test_noise_is_drawn_from_the_samples_and_the_reward_is_about_the_mean(space):
    env = KernelTunerEnv(space, actions="number", noise="resample", reward="log")
    rng = np.random.default_rng(0)
    seen = set()
    for seed in range(20):
        env.reset(seed=seed)
        row = int(rng.choice(np.flatnonzero(space.correct)))
        *_, info = env.step(row)
        assert np.float32(info["objective"]) in space.samples[row]
        seen.add(info["objective"] == pytest.approx(space.values[row], rel=1e-9))
    assert seen == {False}


# ---- several spaces


def test_an_episode_takes_one_of_several_spaces():
    env = KernelTunerEnv([f"synthetic0/{device}" for device in ("north", "south", "east")], actions="move")
    met = {env.reset(seed=seed)[1]["space"] for seed in range(20)}
    assert met == {"synthetic0/north", "synthetic0/south", "synthetic0/east"}
    assert env.reset(seed=0, options={"space": "synthetic0/east"})[1]["space"] == "synthetic0/east"
    with pytest.raises(ValueError, match=r"space is one of synthetic0/north, .* not 'synthetic0/west'"):
        env.reset(options={"space": "synthetic0/west"})
    with pytest.raises(ValueError, match="reset option is one of space, not 'sapce'"):
        env.reset(options={"sapce": 1})


def test_a_split_keeps_the_spaces_on_one_side(tmp_path):
    (tmp_path / "made").mkdir()
    for device, seed in (("A100", 1), ("A4000", 2), ("W6600", 3)):
        made = synthetic("north", seed)
        named = Space(f"made/{device}", made.domain, made.status, made.values, made.costs)
        (tmp_path / "made" / f"{device}.npz").write_bytes(compact.dump(named))
    train = KernelTunerEnv("made", split="train", folder=tmp_path)
    test = gymnasium.make("KernelTuner-Flat-v0", space="made", split="test", folder=tmp_path)
    assert list(train.spaces) == ["made/A100", "made/A4000"] and list(test.unwrapped.spaces) == ["made/W6600"]


def test_spaces_of_different_parameters_are_refused(space):
    with pytest.raises(SpaceError, match="synthetic0/north and tiny/made have different parameters"):
        KernelTunerEnv([space, tiny()])


def test_without_a_space_the_error_says_what_there_is():
    with pytest.raises(
        SpaceError, match=r"space= names a tuning space: .*synthetic<seed>/<north\|south\|east> is made"
    ):
        gymnasium.make("KernelTuner-v0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"actions": "text"}, "actions is one of values, number, move, not 'text'"),
        ({"observation": "image"}, "observation is one of dict, text, not 'image'"),
        ({"reward": "speed"}, "reward is one of score, credit, log, not 'speed'"),
        ({"noise": "some"}, "noise is one of mean, resample, not 'some'"),
        ({"render_mode": "rgb_array"}, "render_mode is one of ansi, human, not 'rgb_array'"),
        ({"budget": -1.0}, "a budget of -1 s ends before the range begins"),
        ({"space": tiny(), "noise": "resample"}, "the record kept no samples, so that noise can only be 'mean'"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_there_is(arguments, message):
    with pytest.raises(ValueError, match=message):
        KernelTunerEnv(**({"space": "synthetic0/north"} | arguments))


def test_making_an_environment_loads_no_kernel_tuner():
    code = """
import sys, gymnasium, leirgym
gymnasium.make("KernelTuner-v0", space="synthetic0/north").reset(seed=0)
print([name for name in ("kernel_tuner", "scipy", "pandas", "matplotlib", "tvm", "torch") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# ---- many at once


def draws(env: KernelTunerVectorEnv, rng: np.random.Generator):
    """Actions of all kinds: mostly legal, some out of range, some repeated."""
    count, domain = env.num_envs, env.spaces[0].domain
    if env.actions == "values":
        actions = domain.configurations[rng.integers(len(domain), size=count)].astype(np.int64)
        odd = rng.random(count) < 0.3
        actions[odd] = rng.integers(-1, 9, (int(odd.sum()), len(domain.sizes)))
        return actions
    most = len(domain) if env.actions == "number" else sum(domain.sizes) + 1  # no restart: its draw differs
    return np.where(rng.random(count) < 0.2, rng.integers(0, 30, count), rng.integers(-1, most, count))


@every_form
@pytest.mark.parametrize("reward", REWARDS)
def test_many_sessions_are_each_the_single_environment(actions, reward):
    spaces = ["synthetic0/north", "synthetic4/south", "synthetic4/east"]
    envs = KernelTunerVectorEnv(12, space=spaces, actions=actions, reward=reward, budget=60.0)
    singles = [KernelTunerEnv(spaces, actions=actions, reward=reward, budget=60.0) for _ in range(12)]
    observations, infos = envs.reset(seed=0)
    names = [space.name for space in envs.spaces]

    def restart(n):
        observation, _ = singles[n].reset(seed=n, options={"space": names[infos["space"][n]]})
        if actions == "move":
            singles[n]._current = int(infos["row"][n])
            observation = singles[n]._seen(singles[n].session, STATUSES.index("none"), None, None)[0]
        return observation

    def same(n, observation):
        assert observation.keys() == observations.keys()
        for part, value in observation.items():
            np.testing.assert_array_equal(observations[part][n], value, err_msg=part)

    for n in range(12):
        same(n, restart(n))
    rng = np.random.default_rng(1)
    over = np.zeros(12, bool)
    ends = 0
    for _ in range(260):
        actions_taken = draws(envs, rng)
        masks = envs.action_masks()
        prefixes = actions_taken[:, :3] if actions == "values" else np.zeros((12, 1), int)
        conditional = envs.conditional_masks(prefixes)
        for n in np.flatnonzero(~over):
            assert np.array_equal(masks[n], singles[n].action_masks())
            assert np.array_equal(conditional[n], singles[n].conditional_mask(prefixes[n]))
        observations, rewards, terminated, truncated, infos = envs.step(actions_taken)
        for n in range(12):
            if over[n]:
                same(n, restart(n))
                assert (rewards[n], terminated[n], truncated[n]) == (0.0, False, False)
                continue
            observation, reward_here, *ends_here, info = singles[n].step(actions_taken[n])
            same(n, observation)
            assert rewards[n] == pytest.approx(reward_here, abs=1e-12)
            assert [terminated[n], truncated[n]] == ends_here
            assert STATUSES[infos["status"][n]] == info["status"]
            for key in ("row", "objective", "best", "seconds", "evaluations"):
                expected = math.nan if info[key] is None else info[key]
                assert infos[key][n] == pytest.approx(expected, nan_ok=True), key
        over = terminated | truncated
        ends += int(over.sum())
    assert ends > 12


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("noise", ["mean", "resample"])
def test_make_vec_gives_the_native_environment_and_a_seed_repeats_it(name, noise):
    envs = gymnasium.make_vec(name, num_envs=64, space="synthetic0/north", noise=noise, budget=50.0)
    assert isinstance(envs.unwrapped, KernelTunerVectorEnv)
    assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.NEXT_STEP

    def play():
        rng = np.random.default_rng(0)
        seen = [envs.reset(seed=3)[0]]
        for _ in range(60):
            observation, reward, *_ = envs.step(draws(envs.unwrapped, rng))
            assert envs.observation_space.contains(
                {k: v.astype(envs.observation_space[k].dtype) for k, v in observation.items()}
            )
            seen.append((observation, reward.tolist()))
        return repr(seen)

    assert play() == play()


def test_noise_of_many_sessions_is_drawn_from_the_samples_and_remembered(space):
    envs = KernelTunerVectorEnv(50, space=space, actions="number", noise="resample")
    envs.reset(seed=0)
    rows = np.random.default_rng(0).choice(np.flatnonzero(space.correct), 50)
    *_, first = envs.step(rows)
    *_, again = envs.step(rows)
    assert all(np.float32(value) in space.samples[row] for value, row in zip(first["objective"], rows, strict=True))
    np.testing.assert_array_equal(first["objective"], again["objective"])
    assert set(again["status"]) == {STATUSES.index("repeated")}
    failed = int(np.flatnonzero(~space.correct)[0])
    *_, info = envs.step(np.full(50, failed))
    assert np.isnan(info["objective"]).all()


def test_points_are_counted_exactly_at_every_point_of_the_range(space):
    measure = scale(space)
    envs = KernelTunerVectorEnv(len(measure.times), space=space)
    envs.reset(seed=0)
    for toward in (-np.inf, measure.times, np.inf):
        envs._clock = np.nextafter(measure.times, toward)
        expected = [area(measure).reached(clock) for clock in envs._clock.tolist()]
        assert envs._reached().tolist() == expected


@pytest.mark.parametrize("name", IDS)
def test_gymnasiums_own_vector_environments_and_wrappers_take_it(name):
    envs = gymnasium.make_vec(name, num_envs=2, vectorization_mode="sync", space="synthetic0/north", budget=20.0)
    native = gymnasium.make_vec(name, num_envs=2, space="synthetic0/north", budget=20.0)
    for many in (envs, gymnasium.wrappers.vector.RecordEpisodeStatistics(native)):
        observation, _ = many.reset(seed=0)
        for _ in range(3):
            observation, *_ = many.step(many.action_space.sample())
        assert observation["progress"].shape == (2, 4)


def test_returns_of_many_sessions_are_scores():
    envs = KernelTunerVectorEnv(400, space="synthetic0/north", actions="number")
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    total, over = np.zeros(400), np.zeros(400, bool)
    while not over.all():
        masks = envs.action_masks()
        actions = np.argmax(rng.random(masks.shape, np.float32) * masks, axis=1)
        _, rewards, terminated, truncated, _ = envs.step(actions)
        total += np.where(over, 0.0, rewards)
        over |= terminated | truncated
    single = KernelTunerEnv("synthetic0/north", actions="number")
    returns = [sum(step[1] for step in episode(single, seed=seed)) for seed in range(40)]
    assert total.mean() == pytest.approx(np.mean(returns), abs=4 * np.std(returns) / math.sqrt(40))


def test_a_step_curve_is_what_the_return_weighs(space):
    env = KernelTunerEnv(space, actions="number")
    episode(env)
    measure = scale(space)
    curve = step_curve(measure, env.run())
    assert run_score(measure, env.run()) == pytest.approx(measure.standardise(curve).mean())
