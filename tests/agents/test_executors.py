"""Executors: the same results wherever calls run, and a worker that dies costs nothing."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import pickle
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from agents import cli_compare
from agents.arena import Bench
from agents.cli_compare import compare
from agents.compare import Run, Task, run
from agents.executors import ExecutorError, Local, Processes, Ray, open_executor
from agents.saved import SavedRuns
from envs.common.locks import Turns, cores
from envs.common.settings import settings
from envs.common.store import Key, Store
from envs.leir_env.workloads import load
from tests.common.toy_problem import ToyProblem

TASKS = [Task("dials", agent, seed, 12) for agent in ("random", "beam", "mcts") for seed in (0, 1)]


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    executor = Ray(workers=2)
    yield executor
    executor.close()


def play(task: Task) -> Run:
    problem = ToyProblem()
    return run(task, problem, lambda state: {"baseline": problem.estimate(state)})


def timeless(found: Run) -> tuple[object, ...]:
    return found.agent, found.seed, found.curve, found.actions, found.after, found.speedups


def fail() -> None:
    raise KeyError("the call's own")


def hold(folder: Path) -> None:
    """Wait for a second worker, then take the machine four times, and note when."""
    (folder / f"worker{os.getpid()}").touch()
    until = time.monotonic() + 30
    while len(list(folder.glob("worker*"))) < 2:
        assert time.monotonic() < until, "there is one worker only"
        time.sleep(0.01)
    for _ in range(4):
        with Turns(settings().lock).alone():
            began = time.monotonic()
            time.sleep(0.03)
            with (folder / "log").open("a") as file:
                file.write(f"{began} {time.monotonic()}\n")


def cache() -> Path:
    return settings().cache


class Stored(ToyProblem):
    """Keeps evaluations in a store, notes each in a file, and is killed in the middle of the first attempt."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.store, self.log, self.killed = Store(folder / "store.sqlite"), folder / "log", folder / "killed"

    def evaluate(self, states):
        return [self._kept(state) for state in states]

    def _kept(self, state):
        where = Key("dials", self.key(state), "middle", "EXACT", "toy", "none", "none", "0", 1, "0")
        found = self.store.get(where)
        if found is None:
            found = self.store.put(where, super()._evaluate(state))
            with self.log.open("a") as file:
                file.write(f"{os.getpid()} {self.key(state)}\n")
            if len(self.store) == 6 and not self.killed.exists():
                self.killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return found


def play_stored(folder: Path, task: Task) -> Run:
    return run(task, Stored(folder), lambda state: {})


def test_local_calls_run_when_they_are_asked_for_and_in_turn():
    said: list[int] = []
    executor = Local()
    promises = [executor.submit(said.append, n) for n in range(3)]
    assert said == []
    for promise in promises:
        promise.result()
    assert said == [0, 1, 2]
    with pytest.raises(KeyError):
        executor.submit(fail).result()
    executor.close()


def test_executors_go_by_name():
    assert isinstance(open_executor("local"), Local)
    for name in ("slurm", "local:0", "local:", "local:two", "ray:"):
        with pytest.raises(ValueError, match=f"no executor is called {name}; there are local, local:N, ray"):
            open_executor(name)


def test_runs_on_a_cluster_come_out_as_they_do_here(cluster):
    here = [promise.result() for promise in [Local().submit(play, task) for task in TASKS]]
    there = [promise.result() for promise in [cluster.submit(play, task) for task in TASKS]]
    assert list(map(timeless, there)) == list(map(timeless, here))
    with pytest.raises(KeyError, match="the call's own"):
        cluster.submit(fail).result()


def test_workers_share_the_lock_of_their_machine(cluster, tmp_path):
    assert cluster.submit(cache).result() == settings().cache
    for promise in [cluster.submit(hold, tmp_path) for _ in range(2)]:
        promise.result()
    held = sorted(tuple(map(float, line.split())) for line in (tmp_path / "log").read_text().splitlines())
    assert len(held) == 8
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(held))


def test_a_killed_worker_loses_nothing(cluster, tmp_path):
    task = Task("dials", "beam", 0, 12)
    done = cluster.submit(play_stored, tmp_path, task)
    other = cluster.submit(play, TASKS[0])
    expected = play(task)
    assert timeless(done.result())[:4] == timeless(expected)[:4]
    assert timeless(other.result()) == timeless(play(TASKS[0]))
    workers, keys = zip(*(line.split() for line in (tmp_path / "log").read_text().splitlines()), strict=True)
    assert (tmp_path / "killed").exists() and len(set(workers)) == 2
    assert len(keys) == len(set(keys)) == 12, "what the killed worker measured is not measured again"


def test_a_call_that_no_worker_survives_is_an_error(cluster):
    del cluster  # the next one stays in it
    with pytest.raises(ExecutorError, match="could not finish"):
        Ray(retries=0).submit(os._exit, 1).result()


SUM = "i,j:64\nA:f32[i,j] -> B:f32[i]\nL_i,j B[i] += A[i,j]\n"


def compared(tmp_path: Path, where: str) -> dict:
    options = ["--agents", "greedy,random", "--budget", "3", "--executor", where, "--json"]
    result = CliRunner().invoke(compare, [SUM, *options, "--store", str(tmp_path / "store.sqlite")])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_compare_gives_the_same_figures_here_and_on_a_cluster(cluster, tmp_path):
    """The second comparison finds every measurement of the first in the store."""
    del cluster  # the command stays in it
    there, here = compared(tmp_path, "ray"), compared(tmp_path, "local")
    for mine, theirs in zip(here["runs"], there["runs"], strict=True):
        for name in ("workload", "agent", "seed", "evaluations", "curve", "actions", "after"):
            assert mine[name] == theirs[name]
        assert mine["speedups"]["default schedule"] == theirs["speedups"]["default schedule"]


def test_a_bench_travels_as_what_it_is_opened_from():
    bench = Bench(load(SUM), ":memory:", 1, 0, functools.partial(dict))
    twin = pickle.loads(pickle.dumps(bench))
    assert twin.of(Task("program", "greedy", 0, 3)) and not twin.of(Task("sum", "greedy", 0, 3))


def test_compare_names_what_is_wrong_with_an_executor_or_a_policy(tmp_path):
    junk = tmp_path / "junk.npz"
    junk.write_bytes(b"junk")
    for options, message in (
        (["--executor", "slurm"], "no executor is called slurm"),
        (["--agents", "ppo"], "the agent ppo and --policy FILE go together"),
        (["--policy", str(junk)], "the agent ppo and --policy FILE go together"),
        (["--agents", "ppo", "--policy", str(junk)], "junk.npz is no trained policy"),
        (["--executor", "ray", "--token-budget", "5", "--proposer", "llm", "--model", "chance"], "within one process"),
    ):
        result = CliRunner().invoke(cli_compare.compare, ["sum", *options])
        assert result.exit_code == 2 and message in result.stderr, result.stderr


def test_an_executor_that_is_not_there_is_an_error_that_says_so(monkeypatch):
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        port = taken.getsockname()[1]
        monkeypatch.setattr("ray.is_initialized", lambda: False)
        with pytest.raises(ExecutorError, match=f"no Ray cluster at 127.0.0.1:{port}: .*refused"):
            open_executor(f"ray:127.0.0.1:{port}")
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(compare, ["sum", "--executor", "ray"])
    assert result.exit_code == 3 and "pip install 'leirgym[ray]'" in result.stderr


needs_two_cores = pytest.mark.skipif(len(cores()) < 2, reason="processes are pinned to different cores")


@needs_two_cores
def test_processes_share_out_the_cores_and_run_as_here():
    executor = Processes(2)
    try:
        half = len(cores()) // 2
        shares = {promise.result() for promise in [executor.submit(where) for _ in range(8)]}
        assert shares == {cores()[:half], cores()[half:]}
        here = [promise.result() for promise in [Local().submit(play, task) for task in TASKS]]
        there = [promise.result() for promise in [executor.submit(play, task) for task in TASKS]]
        assert list(map(timeless, there)) == list(map(timeless, here))
        with pytest.raises(KeyError, match="the call's own"):
            executor.submit(fail).result()
    finally:
        executor.close()


def where() -> tuple[int, ...]:
    time.sleep(0.2)  # so that both take part
    return cores()


def test_more_processes_than_cores_are_refused():
    with pytest.raises(ExecutorError, match="want a core each"):
        Processes(len(cores()) + 1)


def test_a_bench_stays_open_until_another_workload_arrives():
    first = Bench(load(SUM), ":memory:", 1, 0, functools.partial(dict))
    other = Bench(load("sum"), ":memory:", 1, 0, functools.partial(dict))
    one, two, three = (pickle.loads(pickle.dumps(bench)) for bench in (first, first, other))
    assert one is two and one is not three


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--agents", "all", "--proposers", "oracle"], "no proposer is called oracle"),
        (["--proposers", "cost", "--proposer", "cost"], "exclude each other"),
        (["--agents", "random", "--proposers", "cost"], "none of these takes a --proposer"),
        (["--agents", "all", "--model", "chance", "--executor", "local:999"], "want a core each"),
        (["--agents", "beam,oracle"], "or all"),
    ],
)
def test_compare_names_what_is_wrong_with_its_agents(options, message):
    result = CliRunner().invoke(compare, ["sum", *options])
    assert result.exit_code in (2, 3) and message in result.stderr, result.stderr


def test_runs_that_are_saved_are_shown_and_not_taken_again(tmp_path):
    file = tmp_path / "runs.jsonl"
    tasks = [Task(load("sum").name, agent, 0, 8) for agent in ("random", "beam")]
    kept = SavedRuns(file)
    for task in tasks:
        kept.add(task, dataclasses.replace(play(Task("dials", task.agent, 0, 8)), workload=task.workload))
    result = CliRunner().invoke(
        compare, ["sum", "--agents", "random,beam", "--budget", "8", "--save", str(file), "--json"]
    )
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout.splitlines()[-1])
    assert set(shown["summary"]) == {"random", "beam"} and len(shown["runs"]) == 2
    assert SavedRuns(file).runs == kept.runs


def test_a_workload_that_can_not_be_judged_is_named_and_the_others_are_compared(tmp_path):
    overflows = tmp_path / "overflows.leir"
    overflows.write_text("i:16\nA:f16[i] -> C:f16[i]\nL_i C[i] = A[i]+60000.0*3.0\n")
    options = ["--agents", "random,greedy", "--budget", "2", "--store", str(tmp_path / "store.sqlite"), "--json"]
    result = CliRunner().invoke(compare, [str(overflows), SUM, *options])
    assert result.exit_code == 1
    assert result.stderr.count("overflows in its own precision on every input set") == 1, result.stderr
    runs = json.loads(result.stdout.splitlines()[-1])["runs"]
    assert [(run["workload"], run["agent"]) for run in runs] == [("text", "random"), ("text", "greedy")]


def test_a_line_of_a_saved_run_that_was_cut_is_dropped_and_any_other_is_an_error(tmp_path):
    file = tmp_path / "runs.jsonl"
    kept = SavedRuns(file)
    for seed in (0, 1):
        kept.add(Task("dials", "random", seed, 8), play(Task("dials", "random", seed, 8)))
    whole = file.read_text()
    file.write_text(whole[:-20])
    assert SavedRuns(file).runs == kept.runs[:1] and file.read_text() == whole.splitlines(keepends=True)[0]
    file.write_text("{}\n" + whole)
    result = CliRunner().invoke(compare, ["sum", "--save", str(file)])
    assert result.exit_code == 2 and "line 1 is no run of a comparison" in result.stderr


@pytest.mark.parametrize(("proposer", "agent"), [("heuristic", "greedy/heuristic"), ("cost", "greedy")])
def test_a_saved_run_tells_what_guided_it(tmp_path, proposer, agent):
    file = tmp_path / "runs.jsonl"
    options = ["--agents", "greedy", "--budget", "2", "--store", str(tmp_path / "store.sqlite"), "--save", str(file)]
    result = CliRunner().invoke(compare, [SUM, *options, "--proposer", proposer])
    assert result.exit_code == 0, result.output
    assert [run.agent for run in SavedRuns(file).runs] == [agent]


def test_an_agent_with_its_own_proposer_goes_by_its_plain_name():
    names = cli_compare._guided(("random", "beam", "mcts"), ("uniform", "cost"))
    assert names == ("random", "beam/uniform", "beam", "mcts/uniform", "mcts")
    assert cli_compare._guided(("random", "beam"), ()) == ("random", "beam")
