"""Where runs of a comparison take place: a workload with its judge, opened once in a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from agents.compare import Run, Task, run
from envs.common import timing
from envs.common.evaluation import Timing
from envs.common.locks import Turns
from envs.common.settings import settings
from envs.common.store import Store
from envs.common.workers import Pool, Returned
from envs.leir_env.evaluate import Evaluator
from envs.leir_env.problem import LeirProblem, LeirState
from envs.leir_env.torch_baseline import against_reference, torch_pool
from envs.leir_env.workloads import Workload

DEFAULT = "default schedule"

TUNING_SECONDS = 1800.0
TUNING_MEMORY = 8 * 2**30


class Bench:
    """A workload on which agents run; opened by its first run, and shared by those in the same process.

    What travels to another process is how to open it; there it stays open until another workload arrives.
    `parameters` gives those of an agent.
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
        return _arrived, self._given

    def same(self, other: Bench) -> bool:
        """Whether runs on either are runs on the other; how agents are made is a matter of names."""
        return self._given[:-1] == other._given[:-1]

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


_ARRIVED: list[Bench] = []
"""The bench that came to this process last."""


def _arrived(workload: Workload, *given: Any) -> Bench:
    """A bench that came from another process: the last one again if it is about the same workload."""
    bench = Bench(workload, *given)
    last = _ARRIVED.pop() if _ARRIVED else None
    if last is not None and last.same(bench):
        bench = last
    elif last is not None:
        last.close()
    _ARRIVED.append(bench)
    return bench


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
        self._torch = torch_pool(threads)
        self._tuner = Pool(
            1,
            "agents.metaschedule",
            blocked=("torch",),
            environment={"TVM_NUM_THREADS": str(threads)},
        )

    def close(self) -> None:
        """End the workers of torch and of the tuner."""
        self._torch.close()
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
        race = against_reference(winner.program, self._problem.workload.reference, self._threads, self._torch)
        if isinstance(race, Timing):
            found["torch"] = race.ratio
        if self._trials:
            with self._turns.alone():
                tuned = self._against_metaschedule(winner)
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
