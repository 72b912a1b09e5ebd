"""Runs candidates in workers and judges what comes back: one verdict for each, whatever it did."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from envs.common import timing
from envs.common.evaluation import Check, Status, Timing
from envs.common.locks import Turns
from envs.common.workers import Crashed, Outcome, OutOfMemory, Pool, Raised, Returned, TimedOut, Worker
from envs.leir_env.interp import Array
from envs.leir_env.ir import Program
from envs.leir_env.jobs import CheckReport, Job, TimeReport
from envs.leir_env.oracle import Oracle, digest
from envs.leir_env.roofline import floor_seconds
from envs.leir_env.strategies.base import Exactness

TIMED_SETS = ("normal", "ramp")
"""Input sets that are timed: plain values, without denormals."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one candidate may use."""

    seconds: float = 20.0
    """For building and checking, and again for timing."""
    memory: int = 4 * 2**30
    """Bytes, beyond those of an idle worker."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about a candidate so far. OK: every check passed."""

    status: Status
    detail: str = ""
    checks: tuple[Check, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of its outputs, by name of check."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase."""
    timing: Timing | None = None


@dataclass(frozen=True, slots=True)
class Harness:
    """The machine's part of an evaluation, for one root and one baseline."""

    root: Program
    baseline: Program
    baseline_name: str
    target: str
    threads: int
    pool: Pool
    turns: Turns
    rules: timing.Rules

    def check(
        self, programs: Sequence[Program], exactness: Exactness, oracle: Oracle, limits: Limits
    ) -> Generator[tuple[int, Verdict, Worker], None, None]:
        """Build and check candidates in parallel; yield position, verdict, and the worker that built it."""
        jobs = [(self._job(program, oracle, oracle.sets),) for program in programs]
        batch = self.pool.map("envs.leir_env.measure:check", jobs, timeout=limits.seconds, memory=limits.memory)
        with self.turns.together(), contextlib.closing(batch):
            for position, outcome, worker in batch:
                yield position, _checked(outcome, worker, oracle, exactness), worker

    def time(self, program: Program, exactness: Exactness, oracle: Oracle, limits: Limits, worker: Worker) -> Verdict:
        """Time one candidate against the baseline, alone on the machine, and check the timed runs.

        An OK verdict has a timing.
        """
        sets = tuple(name for name in TIMED_SETS if name in oracle.sets) or oracle.sets[:1]
        with self.turns.alone():
            started = time.perf_counter()
            outcome = worker.call(
                "envs.leir_env.measure:measure",
                self._job(program, oracle, sets),
                self.rules,
                timeout=limits.seconds,
                memory=limits.memory,
            )
            took = time.perf_counter() - started
        if not isinstance(outcome, Returned):
            return _failure(outcome)
        report: TimeReport = outcome.value
        if report.damage:
            worker.renew()
            return Verdict(Status.WRONG, report.damage)
        verdict = _judged(report.outputs, oracle, exactness)
        if verdict.status is not Status.OK:
            return Verdict(Status.WRONG, f"when timed, {verdict.detail}", verdict.checks)
        problem = timing.invalid(report.candidate, floor_seconds(self.root, self.threads))
        if problem:
            return Verdict(Status.INVALID_TIME, problem)
        result = timing.summarise(report.candidate, report.baseline, self.baseline_name)
        return Verdict(Status.OK, seconds={"time": took}, timing=result)

    def _job(self, program: Program, oracle: Oracle, sets: tuple[str, ...]) -> Job:
        return Job(program, self.root, self.baseline, self.target, oracle.seed, sets, self.rules.hopeless)


def _checked(outcome: Outcome, worker: Worker, oracle: Oracle, exactness: Exactness) -> Verdict:
    """Judge the outcome of `measure.check`."""
    if not isinstance(outcome, Returned):
        return _failure(outcome)
    report: CheckReport = outcome.value
    if report.build_error:
        return Verdict(Status.BUILD_FAILED, report.build_error)
    if report.damage:
        worker.renew()
        return Verdict(Status.WRONG, report.damage)
    started = time.perf_counter()
    verdict = _judged(report.outputs, oracle, exactness)
    seconds = {**report.seconds, "judge": time.perf_counter() - started}
    return Verdict(verdict.status, verdict.detail, verdict.checks, verdict.digests, seconds)


def _judged(outputs: Mapping[str, tuple[Array, ...]], oracle: Oracle, exactness: Exactness) -> Verdict:
    """Compare outputs, by input set, with the oracle. Nothing to compare is not a pass."""
    checks = tuple(check for name, found in outputs.items() for check in oracle.judge(name, found, exactness))
    failed = next((check for check in checks if not check.passed), None)
    if failed is not None:
        return Verdict(Status.WRONG, _difference(failed), checks)
    if not checks:
        return Verdict(Status.WRONG, "no output was checked")
    digests = {
        f"{name}/{tensor.name}": digest(output)
        for name, found in outputs.items()
        for tensor, output in zip(oracle.program.outputs, found, strict=True)
    }
    return Verdict(Status.OK, "", checks, digests)


def _difference(check: Check) -> str:
    name, output = check.name.split("/")
    return (
        f"output {output} differs on the input set {name}: the largest error is {check.max_error:.3g} times"
        f" what is allowed, the root mean square error {check.rms_error:.3g} times"
    )


def _failure(outcome: Outcome) -> Verdict:
    """The verdict on a candidate whose worker did not answer."""
    match outcome:
        case TimedOut(seconds):
            return Verdict(Status.TIMEOUT, f"it was not done after {seconds:.1f} s")
        case OutOfMemory(limit):
            return Verdict(Status.OUT_OF_MEMORY, f"it asked for more than {limit / 2**20:,.0f} MiB")
        case Raised(kind, message):
            return Verdict(Status.CRASHED, f"it raised {kind}: {message.strip()[:300]}")
        case Crashed():
            return Verdict(Status.CRASHED, f"its process died: {outcome}")
    raise AssertionError(outcome)
