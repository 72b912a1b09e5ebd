"""`leirgym optimize`: search for a faster program."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from agents.base import AGENTS, Budget, Ended, Evaluated, Event, Improved, SearchResult, make_agent
from agents.llm.formatter import Form
from agents.llm.options import Model, model_options
from agents.llm.rewriting import Rewritings, written
from agents.report import Report
from agents.rl.options import check_policy, policy_option
from envs.common import trace as traces
from envs.common.console import Answer, BadInput, Exit, Missing, verb
from envs.common.doctor import versions
from envs.common.evaluation import Evaluation, Timing
from envs.common.moves import shorten
from envs.common.problem import Problem
from envs.common.progress import Report as Show
from envs.common.progress import progress
from envs.common.store import Key, Store
from envs.leir_env import workloads
from envs.leir_env.cli import (
    inputs_option,
    open_store,
    read_workload,
    reading,
    store_option,
    target_option,
    thread_count,
    threads_option,
)
from envs.leir_env.evaluate import EvaluatorError
from envs.leir_env.ir import Program
from envs.leir_env.oracle import OracleError
from envs.leir_env.problem import LeirProblem, LeirState
from envs.leir_env.torch_baseline import against_reference
from envs.leir_env.torch_files import instantiate, is_file
from envs.leir_env.workloads import Reference, Workload

MEASURED_STEPS = 16
"""The longest trace of which every step is measured for the report."""

RECORDED = ("python", "leirgym", "apache-tvm", "numpy")
"""Versions that a trace file names."""


class CountingStore(Store):
    """A store that counts the evaluations it had."""

    hits = 0

    def get(self, key: Key) -> Evaluation | None:
        found = super().get(key)
        self.hits += found is not None
        return found


@verb("optimize")
@click.argument("workload")
@inputs_option
@click.option("--agent", type=click.Choice(tuple(AGENTS)), default="beam", show_default=True, help="The search.")
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Evaluations, the first for WORKLOAD itself.",
)
@click.option("--seconds", type=click.FloatRange(min=0), help="Wall time after which no evaluation begins.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the search.")
@target_option
@threads_option
@store_option
@click.option("--fast-math", is_flag=True, help="Allow elementary functions a few units in the last place off.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the trace to this file (JSON).")
@policy_option
@model_options
def optimize(
    workload: str,
    inputs: str | None,
    agent: str,
    budget: int,
    seconds: float | None,
    seed: int,
    target: str,
    threads: int | None,
    store: Path | None,
    fast_math: bool,
    out: Path | None,
    policy: Path | None,
    proposer: str | None,
    language: Model,
) -> Answer:
    """Search for a faster program than WORKLOAD, every candidate built, verified and timed.

    WORKLOAD is a shipped name, leir://suite/name?n=64, a .leir file, LEIR text, - for LEIR text on standard
    input, or file.py:Class for a PyTorch module. Ctrl-C prints the best so far; a run that was killed resumes
    from the measurements in its store.
    """
    if target != "llvm":
        raise Missing(f"{target} candidates can't be run; leirgym show --cuda prints the generated source")
    if out is not None and not out.parent.is_dir():
        raise BadInput(f"--out {out}: there is no folder {out.parent}")
    language.check([agent], proposer)
    parameters = {"model": policy} if agent == "ppo" else language.parameters(agent, proposer)
    kept, count = open_store(store, CountingStore), thread_count(threads)
    given = _workload(workload, inputs or "")
    opened = LeirProblem(given, target, kept, count, approximate=fast_math)
    check_policy(policy, [agent], [opened])
    problem = Rewritings(opened) if language.form is Form.REWRITE else opened
    with contextlib.closing(opened), _judging():
        with progress(agent, budget) as show:
            watch = Watch(show)
            result = make_agent(agent, **parameters).solve(
                problem, Budget(budget, seconds=seconds), np.random.default_rng(seed), watch
            )
        stored = kept.hits
        trace = _trace(problem, result, target, watch.evaluations)
        final = traces.replay(trace, problem)[-1]
        report = Report(
            given.name,
            result,
            trace,
            agent,
            seed,
            problem.show(problem.root),
            problem.show(final),
            stored,
            _race(result, final.program, given.reference, count),
        )
    notes = ["interrupted: this is the best so far"] if result.ended is Ended.INTERRUPTED else []
    if out is not None and written(trace.actions):
        notes.append(f"{out} was not written: a program that a model wrote has no trace of actions")
    elif out is not None:
        with reading(str(out)):
            out.write_text(traces.show(trace))
    return Answer(report.text(), report.to_json(), _code(result), notes)


class Watch:
    """Shows a search's progress, and keeps its evaluations."""

    def __init__(self, show: Show) -> None:
        self.evaluations: list[Evaluation] = []
        self._show = show
        self._best = "nothing verified yet"

    def __call__(self, event: Event) -> None:
        """Listen to an event."""
        match event:
            case Improved(evaluation=evaluation):
                self._best = f"best {evaluation.speedup:.3g}x"
            case Evaluated(trace, evaluation, count):
                self.evaluations.append(evaluation)
                last = f"{evaluation.speedup:.3g}x" if evaluation.speedup else str(evaluation.status)
                self._show(count, f"{self._best}; {last} after {trace[-1] if trace else 'nothing'}")


def _workload(what: str, inputs: str) -> Workload:
    """What is to be optimised; a PyTorch module is imported."""
    if not is_file(what):
        if inputs:
            raise BadInput(f"--inputs goes with file.py:Class, not with {shorten(what)}")
        return read_workload(what)
    if importlib.util.find_spec("torch") is None:
        raise Missing("PyTorch is not installed: pip install 'leirgym[torch]'")
    from envs.leir_env.from_torch import ImportProblem, from_torch

    reference = Reference(what, (), inputs)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no result
            program = from_torch(*instantiate(reference)).program
    except ImportProblem as error:
        raise BadInput(f"{shorten(what)}: {error}") from error
    return replace(workloads.load(program), name=what.rpartition(":")[2], reference=reference)


@contextlib.contextmanager
def _judging() -> Iterator[None]:
    """A root that can't be checked or timed is the user's to know."""
    try:
        yield
    except (OracleError, EvaluatorError) as error:
        raise BadInput(str(error)) from error


def _trace(problem: Problem[LeirState], result: SearchResult, target: str, known: Sequence[Evaluation]) -> traces.Trace:
    """The best trace without idle actions; the steps of a short one are measured too, unless the user is in a hurry."""
    installed = versions()
    environment = {name: installed[name] for name in RECORDED}
    trace = traces.minimise(traces.record(problem, result.actions, known, target, environment), problem)
    if result.ended is not Ended.INTERRUPTED and len(trace.actions) <= MEASURED_STEPS:
        with contextlib.suppress(KeyboardInterrupt):
            measured = problem.evaluate(traces.replay(trace, problem))
            trace = traces.record(problem, trace.actions, measured, target, environment)
    # A program of the user's own has no name that anyone could load; its text says it all.
    shipped = problem.task.startswith(f"{workloads.SCHEME}://")
    return trace if shipped else replace(trace, task=problem.show(problem.root))


def _race(result: SearchResult, program: Program, reference: Reference | None, threads: int) -> Timing | str:
    """The result against PyTorch, or why there is no such figure."""
    if result.evaluation is None or result.ended is Ended.INTERRUPTED:
        return "not measured"
    with contextlib.suppress(KeyboardInterrupt):
        return against_reference(program, reference, threads)
    return "interrupted"


def _code(result: SearchResult) -> Exit:
    if result.evaluation is not None:
        return Exit.OK
    return Exit.INTERRUPTED if result.ended is Ended.INTERRUPTED else Exit.NEGATIVE
