"""LEIR-v0 keeps Gymnasium's contract and ours, in every mode."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import leirgym
from envs.common import trace
from envs.common.actions import Action, parse_action
from envs.common.reward import FAILURE_RETURN, REFUSAL_COST
from envs.leir_env import strategies, workloads
from envs.leir_env.env import LeirEnv, menu_of
from envs.leir_env.interp import run
from envs.leir_env.observe import FEATURES, features
from envs.leir_env.parser import MAX_CHARACTERS, ParseError, parse
from envs.leir_env.problem import LeirProblem
from envs.leir_env.strategies import REGISTRY, refusal
from envs.leir_env.verify import VerifyError

assert leirgym.VERBS

SOFTMAX = """\
i:8 j:32
A:f32[i,j] -> B:f32[i,j]; C,D:f32[i]
L_i,j C[i] max= A[i,j]
L_i,j D[i] += exp(A[i,j]-C[i])
L_i,j B[i,j] = exp(A[i,j]-C[i])/D[i]
"""

MATMUL = """\
i,j,k:16
A:f32[i,k] B:f32[k,j] -> C:f32[i,j]
L_i,j,k C[i,j] += A[i,k] B[k,j]
"""

SMALL = {
    "softmax": SOFTMAX,
    "matmul": MATMUL,
    "uneven matmul": MATMUL.replace("16", "15"),
    "batched matmul": "b:3 i:8 j:6 k:10\nA:f32[b,i,k] B:f32[b,k,j] -> C:f32[b,i,j]\n"
    "L_b,i,j,k C[b,i,j] += A[b,i,k] B[b,k,j]\n",
    "linear and relu": "i:8 j:12 k:16\nA:f32[i,k] | B:f32[j,k] C:f32[j] -> D:f32[i,j]; E:f32[i,j]\n"
    "L_i,j,k E[i,j] += A[i,k] B[j,k]\nL_i,j D[i,j] = max(E[i,j]+C[j],0.0)\n",
    "layernorm": "i:8 j:16\nA:f32[i,j] | B,C:f32[j] -> D:f32[i,j]; E,F:f32[i]\nL_i,j E[i] += A[i,j]\n"
    "L_i,j F[i] += (A[i,j]-E[i]/16.0)*(A[i,j]-E[i]/16.0)\n"
    "L_i,j D[i,j] = (A[i,j]-E[i]/16.0)*rsqrt(F[i]/16.0+1e-05) B[j]+C[j]\n",
    "convolution": "n:2 f:4 h,w:6 c,r,s:3\nA:f32[n,c,8,8] | B:f32[f,c,r,s] -> C:f32[n,f,h,w]\n"
    "L_n,f,h,w,c,r,s C[n,f,h,w] += A[n,c,h+r,w+s] B[f,c,r,s]\n",
    "pooling": "n:4 h,w:6 r,s:3\nA:f32[n,12,12] -> B:f32[n,h,w]\n"
    "L_n,h,w,r,s B[n,h,w] max= A[n,2h+r,2w+s] if 2h+r<12 and 2w+s<12\n",
    "attention": "i,j:8 k:4\nA:f32[i,k] B,C:f32[j,k] -> D:f32[i,k]; E:f32[i,j] F,G:f32[i] H:f32[i,j]\n"
    "L_i,j,k E[i,j] += A[i,k] B[j,k]\nL_i,j F[i] max= 0.5*E[i,j]\nL_i,j G[i] += exp(0.5*E[i,j]-F[i])\n"
    "L_i,j H[i,j] = exp(0.5*E[i,j]-F[i])/G[i]\nL_i,k,j D[i,k] += H[i,j] C[j,k]\n",
    "sum": "i:24 j:10\nA:f32[i,j] -> B:f32\nL_i,j B += A[i,j]\n",
}
"""Ten kinds of workload, so small that the interpreter takes no time."""


def make(**kwargs: Any) -> LeirEnv:
    env = gymnasium.make("LEIR-v0", **{"workload": SOFTMAX, "reward": "model", **kwargs}).unwrapped
    assert isinstance(env, LeirEnv)
    return env


def started(**kwargs: Any) -> LeirEnv:
    env = make(**kwargs)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("observation", ["text", "dict"])
@pytest.mark.parametrize("actions", ["menu", "text", "rewrite"])
def test_check_env_is_clean_with_the_model_reward(actions: str, observation: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(actions=actions, observation=observation))


@pytest.mark.parametrize("actions", ["menu", "text", "rewrite"])
def test_check_env_is_clean_with_the_measured_reward(actions: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = tmp_path_factory.getbasetemp() / "env.sqlite"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(reward="measured", actions=actions, observation="dict", store=str(store)))


def test_the_shipped_default_needs_no_argument_but_the_reward() -> None:
    observation, info = gymnasium.make("LEIR-v0", reward="model").reset(seed=0)
    assert info["task"].startswith("leir://")
    assert "max=" in observation


# The menu


def test_index_zero_stops() -> None:
    env = started()
    before = env.episode.state
    _, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated) == (0, True, False)
    assert env.episode.state == before
    assert info["actions"][0] == "stop()"


def test_an_index_keeps_its_strategy() -> None:
    menu = menu_of("llvm")
    for workload in (SOFTMAX, MATMUL):
        *_, info = make(workload=workload).reset()
        for text, index in info["legal"].items():
            assert index == 0 or menu.owner(index) == parse_action(text).name


def test_mask_texts_and_mapping_agree() -> None:
    env = started()
    *_, info = env.step(env._offer(env.episode.problem, env.episode.state).indices["loop_split(i; 4)"])
    mask, texts, legal = info["action_mask"], info["actions"], info["legal"]
    assert mask.dtype == np.int8 and mask.shape == (env.action_space.n,)
    assert {text: index for index, text in enumerate(texts) if text} == legal
    assert set(np.flatnonzero(mask)) == set(legal.values())
    assert np.array_equal(env.action_masks(), mask.astype(bool))
    assert mask[env.action_space.sample(mask)]


@pytest.mark.parametrize("name", ["softmax", "matmul", "convolution"])
def test_the_mask_equals_the_verdicts_of_refusal(name: str) -> None:
    env = started(workload=SMALL[name])
    rng = np.random.default_rng(1)
    for _ in range(4):
        offer = env._offer(env.episode.problem, env.episode.state)
        program = env.episode.state.program
        offered = {*offer.indices, *offer.overflow}
        for strategy in REGISTRY.values():
            for sites, args in strategy.candidates(program):
                action = Action(strategy.name, sites, args)
                assert (refusal(program, action, "llvm") is None) == (str(action) in offered), action
        env.step(rng.choice(np.flatnonzero(offer.mask)[1:]))


def test_an_index_without_an_action_is_refused() -> None:
    env = started()
    empty = int(np.flatnonzero(env.action_masks() == 0)[0])
    _, reward, *_, info = env.step(empty)
    assert reward == -REFUSAL_COST
    assert info["status"] == "refused"
    assert info["detail"].startswith("not_legal: loop_split has ")
    *_, info = env.step(10**9)
    assert info["detail"].startswith("unknown_index: the menu runs from 0 to ")


def test_the_menu_has_room_for_the_shipped_workloads() -> None:
    for name in workloads.names():
        offer = menu_of("llvm").offer(strategies.legal(workloads.load(name).program, approximate=True))
        assert offer.overflow == (), name


@pytest.mark.parametrize("name", SMALL)
def test_a_random_legal_policy_never_makes_a_wrong_program(name: str) -> None:
    problem = LeirProblem(SMALL[name], check=True)
    root = problem.root.program
    rng = np.random.default_rng(list(SMALL).index(name))
    inputs = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in root.inputs}
    expected = run(root, inputs)
    state = problem.root
    for _ in range(20):
        legal = problem.legal(state)[1:]
        if not legal or state.depth == 8:
            state = problem.root
            continue
        action = legal[rng.integers(len(legal))]
        state = problem.apply(state, action)
        outputs = run(state.program, inputs)
        for tensor in root.outputs:
            np.testing.assert_allclose(
                outputs[tensor.name], expected[tensor.name], rtol=1e-4, atol=1e-5, err_msg=str(action)
            )


# Text actions


def test_a_strategy_call_is_a_step() -> None:
    env = started(actions="text")
    observation, _, terminated, truncated, info = env.step("loop_split(j.3; 8)")
    assert (terminated, truncated) == (False, False)
    assert "L_i,jo,ji B[i,8jo+ji]" in observation
    assert info["status"] == "predicted" and info["detail"] == ""


def test_a_refused_call_says_why() -> None:
    env = started(actions="text")
    *_, info = env.step("loop_vectorization(i; 3)")
    assert info["detail"] == "wrong_parameter: width is one of 2, 4, 8, 16, 32, 64, not 3"
    *_, info = env.step("loop_splat(i; 3)")
    assert info["detail"] == "unknown_strategy: no strategy is called loop_splat; did you mean loop_split?"


@pytest.mark.parametrize(
    "text",
    ["", "\x00", "stop() stop()", "stop", "loop_split(i; 4) please", "loop_split(i; 99999999999999999999)", "🙂" * 50],
)
def test_garbage_is_refused_and_changes_nothing(text: str) -> None:
    env = started(actions="text")
    before = env.episode.state
    observation, reward, terminated, truncated, info = env.step(text)
    assert (info["status"], terminated, truncated) == ("refused", False, False)
    assert reward == -REFUSAL_COST
    assert env.episode.state is before
    assert observation == SOFTMAX


# Rewritten programs


FASTER = SOFTMAX.replace("L_i,j B", "P_i L_j B")


def test_a_correct_rewriting_passes_both_tests() -> None:
    env = started(actions="rewrite")
    observation, _, terminated, _, info = env.step(FASTER)
    assert observation == FASTER
    assert (info["status"], terminated) == ("predicted", False)
    assert info["executable_pass"] and info["equal_pass"]
    _, reward, terminated, _, _ = env.step("stop()")
    assert (reward, terminated) == (0, True)


def test_renaming_everything_is_a_correct_rewriting() -> None:
    env = started(actions="rewrite")
    text = SOFTMAX
    for old, new in (("A", "X"), ("B", "Y"), ("C", "M"), ("D", "S")):
        text = text.replace(old, new)
    _, reward, *_, info = env.step(text)
    assert info["equal_pass"] and reward == 0
    assert info["key"] == env.episode.problem.key(env.episode.problem.root)


@pytest.mark.parametrize(
    "change",
    [("exp(A[i,j]-C[i])/D[i]", "exp(A[i,j]-C[i])"), ("exp(A[i,j]-C[i])/D[i]", "0.0*D[i]"), ("-C[i])", "-C[i]-1e-3)")],
)
def test_a_wrong_rewriting_ends_the_episode_with_the_failing_return(change: tuple[str, str]) -> None:
    env = started(actions="rewrite")
    total = env.step("nonsense")[1]
    _, reward, terminated, truncated, info = env.step(SOFTMAX.replace(*change, 1))
    assert total + reward == pytest.approx(FAILURE_RETURN)
    assert (info["status"], terminated, truncated) == ("wrong", True, False)
    assert info["executable_pass"] and not info["equal_pass"]
    assert info["speedup"] is None
    assert "differs from the root" in info["detail"]


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "malformed: "),
        ("A:f32[8,32] -> B:f32[8,32]\n", "malformed: "),
        ("loop_split(i; 4)", "malformed: line 1, column 5: "),
        (SOFTMAX.replace("/D[i]", "/D[i,j]"), "malformed: line 5, "),
        (SOFTMAX.replace("D[i] +=", "D[i] =+"), "malformed: line 4, column 13: "),
        (SOFTMAX.replace("L_i,j C", "L_i P_j C"), "malformed: line 3, "),
        (SOFTMAX.replace("exp(A[i,j]-C[i])/D[i]", "A[i+1,j]"), "malformed: line 5, "),
        (MATMUL, "interface: the program has 2 inputs, the root 1"),
        (SOFTMAX.replace("j:32", "j:16"), "interface: input A is f32[8,16], and f32[8,32] in the root"),
        (SOFTMAX.replace("j:32", "j:32 z:99").replace("L_i,j C", "L_z,i,j C"), "size: "),
        ("[" * 10_000, "malformed: "),
        (" " * 10_000_000, f"size: a program has at most {MAX_CHARACTERS:,} characters, got 10,000,000"),
    ],
)
def test_a_text_that_is_no_program_for_this_task_is_refused(text: str, detail: str) -> None:
    env = started(actions="rewrite")
    _, reward, terminated, _, info = env.step(text)
    assert info["detail"].startswith(detail)
    assert (info["status"], reward, terminated) == ("refused", -REFUSAL_COST, False)
    assert not info["executable_pass"] and not info["equal_pass"]


# Episodes


def test_do_and_undo_earns_nothing() -> None:
    env = started(workload=MATMUL, actions="text")
    first = env.step("loop_reorder(j, k)")
    second = env.step("loop_reorder(k, j)")
    assert second[4]["key"] == env.episode.problem.key(env.episode.problem.root)
    assert first[1] != 0
    assert first[1] + second[1] == 0


def test_the_same_seed_and_actions_give_the_same_episode() -> None:
    def episode() -> list[Any]:
        env = make()
        observation, info = env.reset(seed=7)
        seen: list[Any] = [observation]
        while not env.episode.over:
            index = env.np_random.choice(np.flatnonzero(info["action_mask"])[1:])
            observation, reward, *_, info = env.step(index)
            seen.append((index, observation, reward, info["key"]))
        return seen

    assert episode() == episode()


def test_fork_and_parent_go_their_own_ways() -> None:
    env = started(actions="text")
    env.step("loop_split(j.3; 8)")
    twin = env.fork()
    assert twin.step("loop_vectorization(ji; 8)")[1] == env.fork().step("loop_vectorization(ji; 8)")[1]
    observation, *_ = env.step("loop_parallelization(i)")
    assert "V_ji" not in observation and "P_i" in observation
    assert "P_i" not in twin.episode.problem.show(twin.episode.state)


def test_restoring_a_snapshot_gives_the_same_rewards() -> None:
    env = started(actions="text")
    start = env.snapshot()
    actions = ("loop_split(j.3; 8)", "nonsense", "loop_vectorization(ji; 8)", "stop()")
    once = [env.step(action)[1] for action in actions]
    env.restore(start)
    assert [env.step(action)[1] for action in actions] == once


def test_another_workload_is_for_one_episode() -> None:
    env = make()
    observation, _ = env.reset(options={"workload": MATMUL})
    assert observation == MATMUL
    assert env.reset()[0] == SOFTMAX


def test_an_episode_has_a_trace_that_holds() -> None:
    env = started(actions="text")
    for action in ("loop_split(j.3; 8)", "nonsense", "loop_vectorization(ji; 8)", "stop()"):
        env.step(action)
    found = env.trace()
    assert [str(action) for action in found.actions] == [
        "loop_split(j.3; 8)",
        "loop_vectorization(ji; 8)",
        "stop()",
    ]
    assert trace.verify(trace.parse(trace.show(found)), LeirProblem(SOFTMAX)) == ()
    assert len(trace.minimise(found, LeirProblem(SOFTMAX)).actions) == 2


ALLOWED = {
    "action_mask",
    "actions",
    "legal",
    "overflow",
    "task",
    "key",
    "status",
    "detail",
    "evaluation",
    "speedup",
    "speedup_over_root",
    "baseline",
    "reward_terms",
    "executable_pass",
    "equal_pass",
}


@pytest.mark.parametrize("actions", ["menu", "text", "rewrite"])
def test_r10_info_holds_what_is_allowed_and_no_secret(actions: str) -> None:
    env = make(actions=actions)
    _, info = env.reset()
    assert info.keys() <= ALLOWED
    assert {"executable_pass"} <= info.keys() or actions != "rewrite"
    *_, info = env.step({"menu": 1, "text": "loop_split(i; 4)", "rewrite": SOFTMAX.replace("/D[i]", "")}[actions])
    assert info.keys() <= ALLOWED
    assert "seed" not in json.dumps(info, default=str)


def test_r10_a_measured_record_names_no_seed_and_shows_no_expected_value(measured: LeirEnv) -> None:
    *_, info = measured.step("loop_split(i; 4)")
    record = json.loads(info["evaluation"])
    assert record.keys() == {
        "key",
        "status",
        "detail",
        "checks",
        "timing",
        "root_ratio",
        "seconds",
        "audited",
    }
    assert "seed" not in info["evaluation"]
    assert {tuple(check) for check in record["checks"]} == {("name", "max_error", "rms_error", "bitwise")}


# Measured rewards


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "store.sqlite"


@pytest.fixture
def measured(store: Path) -> Iterator[LeirEnv]:
    env = started(reward="measured", actions="text", store=str(store))
    yield env
    env.close()


def test_a_measured_step_has_the_verdict_and_its_evidence(measured: LeirEnv) -> None:
    _, reward, *_, info = measured.step("loop_vectorization(j.3; 8)")
    record = json.loads(info["evaluation"])
    assert info["status"] in ("ok", "slower")
    assert info["speedup"] == pytest.approx(record["timing"]["ratio"])
    assert reward == pytest.approx(np.log(info["speedup_over_root"]))
    assert info["baseline"]["name"] == "default schedule"


def test_measured_rewards_are_remembered_by_the_store(measured: LeirEnv, store: Path) -> None:
    first = measured.step("loop_vectorization(j.3; 8)")
    again = started(reward="measured", actions="text", store=str(store))
    assert again.step("loop_vectorization(j.3; 8)")[1] == first[1]
    again.close()


def test_a_wrong_rewriting_fails_by_measurement_too(store: Path) -> None:
    env = started(reward="measured", actions="rewrite", store=str(store))
    _, reward, terminated, _, info = env.step(SOFTMAX.replace("exp(A[i,j]-C[i])/D[i]", "0.0*D[i]"))
    assert (reward, terminated, info["status"]) == (FAILURE_RETURN, True, "wrong")
    assert info["executable_pass"] and not info["equal_pass"]
    env.close()


def test_the_trace_of_a_measured_episode_carries_its_evidence(measured: LeirEnv) -> None:
    measured.step("loop_vectorization(j.3; 8)")
    found = measured.trace()
    assert found.evaluation is not None and found.evaluation.speedup is not None
    assert len(found.evaluations) == 2
    assert "toolchain" in found.environment


# Observations


def test_the_dictionary_observation_is_what_it_says() -> None:
    env = started(observation="dict", actions="text", max_steps=4)
    observation, *_ = env.step("loop_vectorization(j.3; 8)")
    assert observation["text"] == env.episode.problem.show(env.episode.state)
    values = dict(zip(FEATURES, observation["features"].tolist(), strict=True))
    assert values["equations"] == 2 and values["loops_vector"] == 1
    assert values["work_vector"] == pytest.approx(1 / 3)
    assert observation["progress"] == pytest.approx(0.25)
    assert observation["estimate"] == pytest.approx(np.log(env._info(env.episode, offer_of(env))["speedup"]))


def offer_of(env: LeirEnv) -> Any:
    return env._offer(env.episode.problem, env.episode.state)


def test_features_tell_strides_apart() -> None:
    good = "i,j:64\nA:f32[i,j] -> B:f32[i,j]\nL_i,j B[i,j] = A[i,j]\n"
    bad = good.replace("L_i,j", "L_j,i")
    stride = list(FEATURES).index("accesses_unit_stride")
    assert features(parse(good))[stride] == 1
    assert features(parse(bad))[stride] == 0


@pytest.mark.parametrize("name", SMALL)
def test_every_observation_is_in_its_space(name: str) -> None:
    env = started(workload=SMALL[name], observation="dict")
    rng = np.random.default_rng(0)
    for _ in range(3):
        observation, *_ = env.step(rng.choice(np.flatnonzero(env.action_masks())[1:]))
        assert observation in env.observation_space


# Many environments, many processes


def test_a_specification_survives_json() -> None:
    env = gymnasium.make("LEIR-v0", workload="softmax", reward="model", actions="text", max_steps=5)
    assert env.spec is not None
    again = EnvSpec.from_json(env.spec.to_json()).make()
    assert again.reset(seed=1)[0] == env.reset(seed=1)[0]
    assert again.unwrapped.max_steps == 5  # type: ignore[attr-defined]


FACTORY = functools.partial(
    gymnasium.make, "leirgym:LEIR-v0", workload=SOFTMAX, reward="model", observation="dict", max_steps=3
)


def test_synchronous_vector_environments_run() -> None:
    envs = SyncVectorEnv([FACTORY, functools.partial(FACTORY, workload=MATMUL)])
    _, infos = envs.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(8):
        actions = [rng.choice(np.flatnonzero(mask)) for mask in infos["action_mask"]]
        observations, rewards, *_, infos = envs.step(np.array(actions))
        assert observations["features"].shape == (2, len(FEATURES))
        assert np.all(np.isfinite(rewards))
    envs.close()


def test_asynchronous_vector_environments_run_in_spawned_processes() -> None:
    envs = AsyncVectorEnv([FACTORY] * 2, shared_memory=False, context="spawn")
    _, infos = envs.reset(seed=0)
    indices = [int(np.flatnonzero(mask)[1]) for mask in infos["action_mask"]]
    observations, rewards, *_, infos = envs.step(np.array(indices))
    assert rewards[0] == rewards[1]
    assert observations["text"][0] == observations["text"][1] != SOFTMAX
    envs.close()


def test_the_model_reward_loads_no_compiler_and_starts_no_worker() -> None:
    script = """
import sys, gymnasium, multiprocessing, subprocess
import leirgym
heavy = {"tvm", "lark", "islpy", "sympy", "rich", "torch", "envs.leir_env.env"} & set(sys.modules)
assert not heavy, heavy
subprocess.Popen = None
env = gymnasium.make("LEIR-v0", reward="model")
_, info = env.reset(seed=0)
env.step(list(info["legal"].values())[1])
heavy = {"tvm", "torch", "sympy", "envs.leir_env.evaluate", "envs.common.workers"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reward": "guess"}, "reward is one of measured, model, not 'guess'"),
        ({"actions": "speech"}, "actions is one of menu, text, rewrite, not 'speech'"),
        ({"observation": "graph"}, "observation is one of text, dict, not 'graph'"),
        ({"target": "vax"}, "target is one of llvm, cuda, not 'vax'"),
        ({"render_mode": "oil"}, "render_mode is one of ansi, human, html, not 'oil'"),
        ({"max_steps": 0}, "max_steps is at least 1, not 0"),
    ],
)
def test_an_argument_that_cannot_be_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LeirEnv(**{"reward": "model", **arguments})


def test_a_reset_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="reset option is one of workload, not 'task'"):
        make().reset(options={"task": "softmax"})


def test_a_workload_that_is_none_is_a_clear_error() -> None:
    with pytest.raises(workloads.WorkloadError, match=r"softmix.*did you mean softmax"):
        make(workload="softmix").reset()
    with pytest.raises(ParseError, match="line 3"):
        make(workload=SOFTMAX.replace("max=", "mix=")).reset()
    with pytest.raises(VerifyError, match="P_j"):
        make(workload=SOFTMAX.replace("L_i,j C", "L_i P_j C")).reset()
    with pytest.raises(ValueError, match="not int"):
        make(workload=3).reset()
