"""Candidate programs to evaluations: screened, built, checked against the oracle, timed, remembered.

Candidates are built and checked together, in disposable workers; then each is timed alone, with nothing else
of ours running on the machine. Whatever a candidate does is a status of its record. Results that are too good
are audited before they count.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from envs.common import timing
from envs.common.evaluation import PROTOCOL, Check, Evaluation, Status, Timing
from envs.common.locks import Turns
from envs.common.settings import settings
from envs.common.store import Key, Store
from envs.common.workers import Crashed, Outcome, OutOfMemory, Pool, Raised, Returned, TimedOut, Worker
from envs.leir_env.ir import Program
from envs.leir_env.jobs import CheckReport, Job, TimeReport
from envs.leir_env.oracle import Oracle, digest, interface_problem
from envs.leir_env.printer import key
from envs.leir_env.roofline import floor_seconds, roofline_seconds
from envs.leir_env.strategies.base import Exactness
from envs.leir_env.verify import verify

SEMANTICS = "1"
"""Version of what programs mean and how they are lowered; a fix in either makes old records stale."""

RULES = timing.Rules(seconds=0.1)
"""Sized so that a core evaluates ten candidates a second."""

TIMED_SETS = ("normal", "ramp")
"""Input sets that are timed: plain values, without denormals."""

SUSPICIOUS_SPEEDUP = 10.0
"""A speedup over the default schedule beyond which a result is audited."""

SUSPICIOUS_ROOFLINE = 0.9
"""So is a time that the root's arithmetic at peak would use this much of."""

CONFIRMED = 0.5
"""An audit confirms a result if it finds at least this much of the speedup."""

ROOT_PATIENCE = 6.0
"""The root is often slow, and is measured once: it gets so many times the limit of a candidate."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one candidate may use."""

    seconds: float = 20.0
    """For building and checking, and again for timing."""
    memory: int = 4 * 2**30
    """Bytes, beyond those of an idle worker."""


class EvaluatorError(RuntimeError):
    """The baseline itself does not pass, so that nothing can be compared with it."""


Audit = Callable[[Program, Exactness], str]
"""A further check of a suspicious candidate, for example its trace replayed on odd sizes: says what is wrong, or ''."""


class Evaluator:
    """Evaluates candidates for one root program on this machine.

    `baseline` (the default schedule; the root if None) is what speedups are over. Results are kept in `store`
    by everything they depend on, failures too; without a store, in memory. Workers come from `pool`, by
    default one that all evaluators of this process share.
    """

    def __init__(
        self,
        root: Program,
        target: str = "llvm",
        *,
        threads: int | None = None,
        store: Store | None = None,
        pool: Pool | None = None,
        baseline: Program | None = None,
        rules: timing.Rules = RULES,
        limits: Limits = Limits(),
        audit: Audit | None = None,
        seed: int = 0,
    ) -> None:
        if target != "llvm":
            raise ValueError(f"candidates are run on target llvm; {target} is compiled only")
        configured = settings()
        self.root = root
        self.baseline = baseline or root
        self.baseline_name = "default_schedule" if baseline else "root"
        self.target = target
        self.threads = threads or configured.threads
        self.store = store or Store(":memory:")
        self.pool = pool or shared_pool(self.threads)
        self.rules, self.limits, self.audit = rules, limits, audit
        self.oracle = Oracle(root, seed, configured.cache / "references")
        self._turns = Turns(configured.lock)
        self._facts: _RootFacts | None = None

    def evaluate(
        self, programs: Sequence[Program], exactness: Exactness = Exactness.REASSOCIATES, *, fresh: bool = False
    ) -> list[Evaluation]:
        """Return one record for each program, in order. Never raises for anything a candidate does.

        `exactness` is the worst that their traces declare. A record in the store is returned as it is, unless
        `fresh` asks for an evaluation from scratch, which is not stored. Raises `OracleError` for a root that
        can't be checked and `EvaluatorError` for a baseline that fails.
        """
        keys = [self.key(program, exactness) for program in programs]
        found: dict[Key, Evaluation] = {}
        new: dict[Key, Program] = {}
        for k, program in zip(keys, programs, strict=True):
            stored = None if fresh else self.store.get(k)
            if stored is not None:
                found[k] = stored
            else:
                new.setdefault(k, program)
        for k, evaluation in self._evaluate(new, exactness):
            found[k] = evaluation if fresh else self.store.put(k, evaluation)
        return [found[k] for k in keys]

    def key(self, program: Program, exactness: Exactness) -> Key:
        """Name everything that the evaluation of `program` depends on."""
        return Key(
            task=key(self.root),
            program=key(program),
            baseline=key(self.baseline),
            exactness=exactness.name,
            target=self.target,
            device=device(),
            toolchain=toolchain(),
            protocol=f"{PROTOCOL} seed={self.oracle.seed} {self.rules} {self.limits}",
            threads=self.threads,
            semantics=SEMANTICS,
        )

    def close(self) -> None:
        """End the workers. A later evaluation starts new ones."""
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _evaluate(
        self, programs: dict[Key, Program], exactness: Exactness
    ) -> Iterator[tuple[Key, Evaluation]]:
        """Evaluate new candidates: those that fail first, then those that are timed."""
        sound: list[tuple[Key, Program]] = []
        for k, program in programs.items():
            problem = self._screen(program)
            if problem:
                yield k, self._record(k, Status.REJECTED, problem)
            else:
                sound.append((k, program))
        if not sound:
            return
        facts = self._root_facts()
        passed: list[_Passed] = []
        for position, outcome, worker in self._check([program for _, program in sound], self.oracle):
            k, program = sound[position]
            verdict = self._judge(outcome, worker, self.oracle, exactness, facts.digests)
            if verdict.status is Status.OK:
                passed.append(_Passed(k, program, exactness, worker, verdict))
            else:
                yield k, self._record(k, verdict.status, verdict.detail, verdict.checks, verdict.seconds)
        for candidate in passed:
            yield candidate.key, self._timed(candidate, facts)

    def _screen(self, program: Program) -> str:
        """Say why a program is not even built, or nothing."""
        problem = interface_problem(program, self.root)
        if problem:
            return f"interface: {problem}"
        problems = verify(program, self.target)
        return f"{problems[0].code}: {problems[0].sentence}" if problems else ""

    def _check(
        self, programs: Sequence[Program], oracle: Oracle, workers: Sequence[Worker] | None = None
    ) -> Iterator[tuple[int, Outcome, Worker]]:
        """Build and run candidates in parallel."""
        sets = oracle.sets
        jobs = [(self._job(program, oracle, sets),) for program in programs]
        batch = self.pool.map(
            "envs.leir_env.measure:check", jobs, timeout=self.limits.seconds, memory=self.limits.memory
        )
        with self._turns.together(), contextlib.closing(batch):
            yield from batch

    def _job(self, program: Program, oracle: Oracle, sets: tuple[str, ...]) -> Job:
        return Job(program, self.root, self.baseline, self.target, oracle.seed, sets, self.rules.hopeless)

    def _judge(
        self,
        outcome: Outcome,
        worker: Worker,
        oracle: Oracle,
        exactness: Exactness,
        root_digests: dict[str, str],
    ) -> _Verdict:
        """Compare what came out of a candidate with the oracle."""
        if not isinstance(outcome, Returned):
            return _Verdict(*_failure(outcome))
        report: CheckReport = outcome.value
        if report.build_error:
            return _Verdict(Status.BUILD_FAILED, report.build_error)
        if report.damage:
            worker.renew()
            return _Verdict(Status.WRONG, report.damage)
        started = time.perf_counter()
        checks = _judged(oracle, report.outputs, exactness, root_digests)
        seconds = {**report.seconds, "judge": time.perf_counter() - started}
        failed = next((check for check in checks if not check.passed), None)
        if failed is not None or not checks:
            detail = _difference(failed) if failed else "no output was checked"
            return _Verdict(Status.WRONG, detail, checks, seconds)
        return _Verdict(Status.OK, "", checks, seconds)

    def _timed(self, candidate: _Passed, facts: _RootFacts) -> Evaluation:
        """Time a candidate that passed, and audit it if the result is too good."""
        measured = self._measure(candidate, self.oracle)
        if isinstance(measured, _Verdict):
            verdict = measured
            return self._record(candidate.key, verdict.status, verdict.detail, verdict.checks, verdict.seconds)
        seconds = {**candidate.verdict.seconds, "time": measured.seconds}
        result, audited = measured.timing, False
        suspicion = self._suspicion(result)
        if suspicion:
            confirmed = self._audit(candidate, result)
            if isinstance(confirmed, str):
                detail = f"{suspicion}; the audit does not confirm it: {confirmed}"
                return self._record(candidate.key, Status.SUSPECT, detail, candidate.verdict.checks, seconds)
            result, audited = confirmed, True
        slow = timing.is_hopeless(result.candidate, result.baseline, self.rules)
        return replace(
            self._record(candidate.key, Status.WRONG, "", candidate.verdict.checks, seconds),
            status=Status.SLOWER if slow else Status.OK,
            timing=result,
            root_ratio=facts.ratio,
            audited=audited,
        )

    def _measure(self, candidate: _Passed, oracle: Oracle) -> _Measured | _Verdict:
        """Time one candidate alone, in the worker that has it built, and check the timed runs."""
        sets = tuple(name for name in TIMED_SETS if name in oracle.sets) or oracle.sets[:1]
        job = self._job(candidate.program, oracle, sets)
        with self._turns.alone():
            started = time.perf_counter()
            outcome = candidate.worker.call(
                "envs.leir_env.measure:measure",
                job,
                self.rules,
                timeout=self.limits.seconds,
                memory=self.limits.memory,
            )
            took = time.perf_counter() - started
        if not isinstance(outcome, Returned):
            return _Verdict(*_failure(outcome))
        report: TimeReport = outcome.value
        if report.damage:
            candidate.worker.renew()
            return _Verdict(Status.WRONG, report.damage)
        checks = _judged(oracle, report.outputs, candidate.exactness, {})
        failed = next((check for check in checks if not check.passed), None)
        if failed is not None:
            return _Verdict(Status.WRONG, f"when timed, {_difference(failed)}", checks)
        problem = timing.invalid(report.candidate, floor_seconds(self.root, self.threads))
        if problem:
            return _Verdict(Status.INVALID_TIME, problem)
        return _Measured(timing.summarise(report.candidate, report.baseline, self.baseline_name), took)

    def _suspicion(self, result: Timing) -> str:
        """Say why a result is hard to believe, or nothing."""
        if result.ratio > SUSPICIOUS_SPEEDUP:
            return f"{result.ratio:.1f} times as fast as the {self.baseline_name}"
        median = float(np.median(result.candidate))
        bound = roofline_seconds(self.root, self.threads)
        if bound > SUSPICIOUS_ROOFLINE * median:
            return f"{median:.3g} s is {bound / median:.0%} of what the root's arithmetic takes at peak"
        return ""

    def _audit(self, candidate: _Passed, result: Timing) -> Timing | str:
        """Check and time again in a fresh process with new seeds: the new timing, or what is wrong."""
        oracle = Oracle(self.root, int(np.random.default_rng().integers(1, 2**31)))
        for worker in self.pool.workers:
            worker.renew()
        ((_, outcome, worker),) = self._check([candidate.program], oracle)
        verdict = self._judge(outcome, worker, oracle, candidate.exactness, {})
        if verdict.status is not Status.OK:
            return verdict.detail
        measured = self._measure(replace(candidate, worker=worker), oracle)
        if isinstance(measured, _Verdict):
            return measured.detail
        if measured.timing.ratio < CONFIRMED * result.ratio:
            return f"it is {measured.timing.ratio:.2f} times as fast this time"
        problem = self.audit(candidate.program, candidate.exactness) if self.audit else ""
        return problem or measured.timing

    def _root_facts(self) -> _RootFacts:
        """Measure the root against the baseline, once a task; check the baseline, once a process."""
        if self._facts is None:
            k = self.key(self.root, Exactness.EXACT)
            stored = self.store.fact("root", k)
            measured = None if stored else self._measure_root(k)
            if measured is not None:
                stored = self.store.put_fact("root", k, {"ratio": measured.ratio, "digests": measured.digests})
            self._facts = _RootFacts(**stored)
        return self._facts

    def _measure_root(self, k: Key) -> _RootFacts:
        patient = replace(self.limits, seconds=ROOT_PATIENCE * self.limits.seconds)
        limits, self.limits = self.limits, patient
        try:
            outcomes = {n: (o, w) for n, o, w in self._check([self.baseline, self.root], self.oracle)}
            judged = [
                self._judge(*outcomes[n], self.oracle, Exactness.REASSOCIATES, {}) for n in range(2)
            ]
            if judged[0].status is not Status.OK:
                raise EvaluatorError(f"the {self.baseline_name} does not pass: {judged[0].detail}")
            if judged[1].status is not Status.OK:
                return _RootFacts(None, {})
            outcome, worker = outcomes[1]
            assert isinstance(outcome, Returned)
            digests = {
                f"{name}/{tensor.name}": digest(output)
                for name, outputs in outcome.value.outputs.items()
                for tensor, output in zip(self.root.outputs, outputs, strict=True)
            }
            if key(self.root) == key(self.baseline):
                return _RootFacts(1.0, digests)
            measured = self._measure(_Passed(k, self.root, Exactness.EXACT, worker, judged[1]), self.oracle)
            ratio = None if isinstance(measured, _Verdict) else 1 / measured.timing.ratio
            return _RootFacts(ratio, digests)
        finally:
            self.limits = limits

    def _record(
        self,
        k: Key,
        status: Status,
        detail: str,
        checks: tuple[Check, ...] = (),
        seconds: dict[str, float] | None = None,
    ) -> Evaluation:
        environment = {
            "target": k.target,
            "device": k.device,
            "toolchain": k.toolchain,
            "protocol": k.protocol,
            "semantics": k.semantics,
            "threads": str(k.threads),
            "cache": "warm",
        }
        return Evaluation(k.program, status, detail, checks, seconds=seconds or {}, environment=environment)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What checking says about a candidate."""

    status: Status
    detail: str = ""
    checks: tuple[Check, ...] = ()
    seconds: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class _Passed:
    """A candidate to be timed, and the worker that has it built."""

    key: Key
    program: Program
    exactness: Exactness
    worker: Worker
    verdict: _Verdict


@dataclass(frozen=True, slots=True)
class _Measured:
    timing: Timing
    seconds: float


@dataclass(frozen=True, slots=True)
class _RootFacts:
    """Facts about a task."""

    ratio: float | None
    """Time of the root over that of the baseline; None if the root can't be timed."""
    digests: dict[str, str]
    """Of the compiled root's outputs, by name of check."""
