"""`leirgym compare`: agents side by side on LEIR workloads, at equal evaluations."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from agents.base import AGENTS
from agents.compare import Comparison, Run, Task, run
from agents.compare_report import page, tables
from agents.executors import Executor, ExecutorError, open_executor
from agents.llm.formatter import Form
from agents.llm.options import Model, model_options
from agents.rl.faces import face_for
from agents.rl.network import PolicyError, load
from envs.common import timing
from envs.common.console import Answer, BadInput, Missing, verb
from envs.common.evaluation import Timing
from envs.common.locks import Turns
from envs.common.progress import progress
from envs.common.settings import settings
from envs.common.store import Store
from envs.common.workers import Pool, Returned
from envs.leir_env.cli import open_store, read_workload, store_option, thread_count, threads_option
from envs.leir_env.env import IN_MEMORY
from envs.leir_env.evaluate import Evaluator
from envs.leir_env.problem import LeirProblem, LeirState
from envs.leir_env.torch_baseline import against_reference
from envs.leir_env.workloads import Workload

DEFAULT = "default schedule"

TUNING_SECONDS = 1800.0
TUNING_MEMORY = 8 * 2**30


@verb("compare")
@click.argument("workloads", nargs=-1, required=True)
@click.option("--agents", default="random,greedy,beam,mcts", show_default=True, help="Agents, with commas between.")
@click.option("--budget", type=click.IntRange(min=1), default=64, show_default=True, help="Evaluations of each run.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each agent.")
@click.option(
    "--metaschedule",
    "trials",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Compare with TVM's MetaSchedule after so many trials as well.",
)
@click.option(
    "--executor",
    "where",
    default="local",
    show_default=True,
    help="Where runs take place: local, ray (the cores of this machine) or ray:ADDRESS.",
)
@click.option(
    "--policy",
    type=click.Path(dir_okay=False, resolve_path=True, path_type=Path),
    help="Trained policy of the agent ppo, a file.",
)
@threads_option
@store_option
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a report to this file.")
@model_options
def compare(
    workloads: Sequence[str],
    agents: str,
    budget: int,
    seeds: int,
    trials: int,
    where: str,
    policy: Path | None,
    threads: int | None,
    store: Path | None,
    html: Path | None,
    proposer: str | None,
    language: Model,
) -> Answer:
    """Run every agent on every one of WORKLOADS, and compare what they find.

    All runs share a store: a program that two agents meet is measured once, so that both get the same figure. On a
    Ray cluster runs take place side by side, but timings one at a time on each machine; its machines share the store.
    """
    chosen = tuple(dict.fromkeys(name.strip() for name in agents.split(",")))
    unknown = [name for name in chosen if name not in AGENTS]
    if unknown:
        raise BadInput(f"no agent is called {unknown[0]}; there are {', '.join(AGENTS)}")
    if html is not None and importlib.util.find_spec("matplotlib") is None:
        raise Missing("the report needs matplotlib: pip install 'leirgym[plot]'")
    if html is not None and not html.parent.is_dir():
        raise BadInput(f"--html {html}: there is no folder {html.parent}")
    language.check(chosen, proposer)
    if language.form is Form.REWRITE:
        raise BadInput("--form rewrite goes with optimize: a program that a model wrote has no trace of actions")
    if language.token_budget is not None and where != "local":
        raise BadInput(f"--token-budget counts within one process: not with --executor {where}")
    loaded = [read_workload(what) for what in dict.fromkeys(workloads)]
    if ("ppo" in chosen) != (policy is not None):
        raise BadInput("the agent ppo and --policy FILE go together")
    if policy is not None:
        _check(policy, loaded)
    make = functools.partial(_parameters, language, proposer, policy)
    made = {agent: make(agent) for agent in chosen}
    kept, count = open_store(store, Store), thread_count(threads)
    try:
        executor = open_executor(where)
    except ValueError as error:
        raise BadInput(f"--executor: {error}") from error
    except ExecutorError as error:
        raise Missing(str(error)) from error
    # Elsewhere, each run makes its own: connections to models and files do not travel.
    parameters = made.__getitem__ if where == "local" else make
    file = kept.path if kept.path == IN_MEMORY else os.path.abspath(kept.path)
    benches = [Bench(workload, file, count, trials, parameters) for workload in loaded]
    tasks = [Task(w.name, agent, seed, budget) for w in loaded for agent in chosen for seed in range(seeds)]
    runs: list[Run] = []
    notes = []
    with (
        contextlib.closing(executor),
        progress("compare", len(tasks)) as show,
        contextlib.suppress(KeyboardInterrupt),
    ):
        for done in _runs(benches, tasks, executor):
            runs.append(done)
            show(len(runs), f"{done.agent} on {done.workload}: {_best(done)}")
    if len(runs) < len(tasks):
        notes.append(f"interrupted after {len(runs)} of {len(tasks)} runs")
    found = Comparison(tuple(runs))
    if html is not None and runs:
        html.write_text(page(found, f"{len(loaded)} workloads, {budget} evaluations a run"), encoding="utf-8")
    return Answer(tables(found) if runs else "", found.to_json(), notes=notes)


def _parameters(language: Model, proposer: str | None, policy: Path | None, agent: str) -> dict[str, Any]:
    """What to make an agent with."""
    return {"model": policy} if agent == "ppo" else language.parameters(agent, proposer)


def _check(policy: Path, workloads: Sequence[Workload]) -> None:
    """Refuse a policy that can't act on the workloads."""
    try:
        loaded = load(policy)
        for workload in workloads:
            face_for(loaded, LeirProblem(workload))
    except PolicyError as error:
        raise BadInput(f"--policy: {error}") from error


def _runs(benches: Sequence[Bench], tasks: Sequence[Task], executor: Executor) -> Iterator[Run]:
    """Yield the runs in the order of the tasks, which go workload by workload."""
    asked = [(bench, executor.submit(bench.play, task)) for bench in benches for task in tasks if bench.of(task)]
    for bench, promises in itertools.groupby(asked, key=operator.itemgetter(0)):
        with contextlib.closing(bench):
            for _, promise in promises:
                yield promise.result()


class Bench:
    """A workload on which agents run; opened by its first run, and shared by those in the same process.

    What travels to another process is how to open it. `parameters` gives those of an agent.
    """

    def __init__(
        self,
        workload: Workload,
        store: str,
        threads: int,
        trials: int,
        parameters: Callable[[str], dict[str, Any]],
    ) -> None:
        self._given = (workload, store, threads, trials, parameters)
        self._workload, self._store, self._threads, self._trials, self._parameters = self._given
        self._opened: tuple[LeirProblem, _Final] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Bench, self._given

    def of(self, task: Task) -> bool:
        """Whether a task is about this workload."""
        return task.workload == self._workload.name

    def play(self, task: Task) -> Run:
        """Take one run."""
        if self._opened is None:
            store = Store(self._store)
            problem = LeirProblem(self._workload, store=store, threads=self._threads)
            self._opened = problem, _Final(problem, store, self._threads, self._trials)
        problem, final = self._opened
        return run(task, problem, final, self._parameters(task.agent))

    def close(self) -> None:
        """End the workers."""
        if self._opened is not None:
            problem, final = self._opened
            problem.close()
            final.close()
            self._opened = None


class _Final:
    """Times winners again, each program once; the store keeps the speedup over the default schedule."""

    def __init__(self, problem: LeirProblem, store: Store, threads: int, trials: int) -> None:
        self._problem, self._threads, self._trials = problem, threads, trials
        self._known: dict[str, dict[str, float]] = {}
        self._turns = Turns(settings().lock)
        self._judge = Evaluator(
            problem.root.program,
            threads=threads,
            store=store,
            pool=problem.evaluator.harness.pool,
            baseline=problem.baseline,
            rules=timing.Rules(),
        )
        self._tuner = Pool(
            1,
            "agents.metaschedule",
            blocked=("torch",),
            environment={"TVM_NUM_THREADS": str(threads)},
        )

    def close(self) -> None:
        """End the tuner's worker."""
        self._tuner.close()

    def __call__(self, winner: LeirState) -> dict[str, float]:
        """Its speedups by what they are over; none where it does not verify this time."""
        key = self._problem.key(winner)
        if key not in self._known:
            self._known[key] = self._measured(winner)
        return self._known[key]

    def _measured(self, winner: LeirState) -> dict[str, float]:
        (evaluation,) = self._judge.evaluate([winner.program], winner.exactness)
        if not evaluation.speedup:
            return {}
        found = {DEFAULT: evaluation.speedup}
        if evaluation.speedup_over_root:
            found["root"] = evaluation.speedup_over_root
        with self._turns.alone():
            race = against_reference(winner.program, self._problem.workload.reference, self._threads)
            tuned = self._against_metaschedule(winner) if self._trials else None
        if isinstance(race, Timing):
            found["torch"] = race.ratio
        if tuned is not None:
            found[tuned.baseline_name] = tuned.ratio
        return found

    def _against_metaschedule(self, winner: LeirState) -> Timing | None:
        """The winner against what TVM's tuner makes of the root; None, and a line that says why, without it."""
        outcome = self._tuner.call(
            "agents.metaschedule:race",
            self._problem.root.program,
            winner.program,
            self._trials,
            self._threads,
            0,
            timing.Rules(),
            timeout=TUNING_SECONDS,
            memory=TUNING_MEMORY,
        )
        if isinstance(outcome, Returned) and isinstance(outcome.value, Timing):
            return outcome.value
        reason = outcome.value if isinstance(outcome, Returned) else outcome
        click.echo(f"MetaSchedule on {self._problem.workload.name}: {reason}", err=True)
        return None


def _best(done: Run) -> str:
    return ", ".join(f"{ratio:.2f}x over {name}" for name, ratio in done.speedups.items()) or "nothing verified"
