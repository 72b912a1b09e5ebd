"""`leirgym compare`: agents side by side on LEIR workloads, at equal evaluations."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from agents.arena import Bench
from agents.base import AGENTS, PROPOSERS, own_proposer
from agents.compare import Comparison, Run, Task, named
from agents.compare_report import page, tables
from agents.executors import Executor, ExecutorError, Promise, open_executor
from agents.llm.formatter import Form
from agents.llm.options import Model, model_options, takes_proposer
from agents.rl.options import check_policy, policy_option
from agents.saved import SavedRuns
from envs.common.console import Answer, BadInput, Exit, Missing, verb
from envs.common.progress import progress
from envs.common.store import Store
from envs.leir_env import workloads as shipped
from envs.leir_env.cli import open_store, read_workload, store_option, thread_count, threads_option
from envs.leir_env.env import IN_MEMORY
from envs.leir_env.evaluate import EvaluatorError
from envs.leir_env.oracle import OracleError
from envs.leir_env.problem import LeirProblem


@verb("compare")
@click.argument("workloads", nargs=-1, required=True)
@click.option(
    "--agents",
    default="random,greedy,beam,mcts",
    show_default=True,
    help="Agents, with commas between; or all (llm with --model, ppo with --policy).",
)
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
    help="Where runs take place: local, local:N (N processes that share out the cores), ray or ray:ADDRESS.",
)
@click.option("--proposers", help="Run the guided agents with each of these, with commas between.")
@policy_option
@threads_option
@store_option
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep runs in this file (JSON lines); those that are there are shown, and not taken again.",
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a report to this file.")
@model_options
def compare(
    workloads: Sequence[str],
    agents: str,
    budget: int,
    seeds: int,
    trials: int,
    where: str,
    proposers: str | None,
    policy: Path | None,
    threads: int | None,
    store: Path | None,
    save: Path | None,
    html: Path | None,
    proposer: str | None,
    language: Model,
) -> Answer:
    """Run every agent on every one of WORKLOADS, and compare what they find.

    A workload may be a suite. A comparison that is stopped goes on with the same command if it has --save.

    All runs share a store: a program that two agents meet is measured once, so that both get the same figure. With
    local:N runs take place side by side, each process on cores of its own; on a Ray cluster too, but timings one at a
    time on each machine, and its machines share the store. Exit code 1 where a workload can't be judged; the others
    are compared all the same.
    """
    chosen = _chosen(agents, language.model is not None, policy is not None)
    if html is not None and importlib.util.find_spec("matplotlib") is None:
        raise Missing("the report needs matplotlib: pip install 'leirgym[plot]'")
    if html is not None and not html.parent.is_dir():
        raise BadInput(f"--html {html}: there is no folder {html.parent}")
    if proposers is not None and proposer is not None:
        raise BadInput("--proposer and --proposers exclude each other")
    # A run is named by what guided it however that was said, so that saved ones are not taken for others.
    guides = _named(proposers or proposer)
    for guide in guides or (None,):
        language.check(chosen, guide)
    if language.form is Form.REWRITE:
        raise BadInput("--form rewrite goes with optimize: a program that a model wrote has no trace of actions")
    if language.token_budget is not None and where != "local":
        raise BadInput(f"--token-budget counts within one process: not with --executor {where}")
    loaded = [read_workload(what) for what in _names(workloads)]
    check_policy(policy, chosen, [LeirProblem(workload) for workload in loaded] if policy else [])
    chosen = _guided(chosen, guides)
    make = functools.partial(_parameters, language, policy)
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
    try:
        saved = SavedRuns(save)
    except OSError as error:
        raise BadInput(f"--save {save}: {error.strerror or error}") from error
    except ValueError as error:
        raise BadInput(f"--save {save}: {error}") from error
    asked = [Task(w.name, agent, seed, budget) for w in loaded for agent in chosen for seed in range(seeds)]
    tasks = [task for task in asked if task not in saved]
    taken = 0
    failed: dict[str, str] = {}
    with (
        contextlib.closing(executor),
        progress("compare", len(tasks)) as show,
        contextlib.suppress(KeyboardInterrupt),
    ):
        for task, done in _runs(benches, tasks, executor):
            taken += 1
            if isinstance(done, Run):
                saved.add(task, done)
                show(taken, f"{done.agent} on {done.workload}: {_best(done)}")
            else:
                failed[task.workload] = done
    notes = [f"{workload}: {sentence}" for workload, sentence in failed.items()]
    if taken < len(tasks):
        notes.append(f"interrupted after {taken} of {len(tasks)} runs")
    found = Comparison(saved.runs)
    if html is not None and found.runs:
        most = max(run.evaluations for run in found.runs)
        html.write_text(page(found, f"{len(found.workloads)} workloads, {most} evaluations a run"), encoding="utf-8")
    code = Exit.NEGATIVE if failed else Exit.OK
    return Answer(tables(found) if found.runs else "", found.to_json(), code, notes)


def _parameters(language: Model, policy: Path | None, agent: str) -> dict[str, Any]:
    """What to make an agent with."""
    name, proposer = named(agent)
    return {"model": policy} if name == "ppo" else language.parameters(name, proposer)


def _chosen(agents: str, model: bool, policy: bool) -> tuple[str, ...]:
    """The agents that are asked for; those that need a model or a policy are among all of them if they have it."""
    if agents == "all":
        return tuple(name for name in AGENTS if {"llm": model, "ppo": policy}.get(name, True))
    chosen = tuple(dict.fromkeys(name.strip() for name in agents.split(",")))
    for name in chosen:
        if name not in AGENTS:
            raise BadInput(f"no agent is called {name}; there are {', '.join(AGENTS)}, or all")
    return chosen


def _named(proposers: str | None) -> tuple[str, ...]:
    """The proposers that are asked for."""
    names = tuple(dict.fromkeys(name.strip() for name in proposers.split(","))) if proposers else ()
    for name in names:
        if name not in PROPOSERS:
            raise BadInput(f"no proposer is called {name}; there are {', '.join(PROPOSERS)}")
    return names


def _guided(agents: Sequence[str], proposers: Sequence[str]) -> tuple[str, ...]:
    """Every agent that takes a proposer with each of `proposers`, if there are any; the others as they are.

    With its own proposer an agent goes by its plain name.
    """
    ways = {agent: proposers if takes_proposer(agent) else () for agent in agents}
    return tuple(
        f"{agent}/{way}" if way and way != own_proposer(agent) else agent
        for agent in agents
        for way in ways[agent] or ("",)
    )


def _names(workloads: Sequence[str]) -> tuple[str, ...]:
    """What loads each workload: suites by their members."""
    suites = shipped.suites()
    found = (shipped.names(what) if what in suites else (what,) for what in workloads)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(found)))


def _runs(benches: Sequence[Bench], tasks: Sequence[Task], executor: Executor) -> Iterator[tuple[Task, Run | str]]:
    """Yield the runs in the order of the tasks, which go workload by workload; after Ctrl-C, those that are done.

    Where a workload can't be judged there is a sentence that says why, for each of its tasks.
    """
    asked = [(bench, task, executor.submit(bench.play, task)) for bench in benches for task in tasks if bench.of(task)]
    count = 0
    try:
        for bench, promises in itertools.groupby(asked, key=operator.itemgetter(0)):
            unfit = ""
            with contextlib.closing(bench):
                for _, task, promise in promises:
                    done = unfit or _outcome(promise)
                    unfit = done if isinstance(done, str) else ""
                    count += 1
                    yield task, done
    except KeyboardInterrupt:
        yield from ((task, _outcome(promise)) for _, task, promise in asked[count:] if promise.done())


def _outcome(promise: Promise[Run]) -> Run | str:
    """The run, or why its workload can't be judged."""
    try:
        return promise.result()
    except (OracleError, EvaluatorError) as error:
        return str(error)


def _best(done: Run) -> str:
    return ", ".join(f"{ratio:.2f}x over {name}" for name, ratio in done.speedups.items()) or "nothing verified"
