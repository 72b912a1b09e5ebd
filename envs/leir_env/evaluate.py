"""Candidate programs to evaluations: screened, built, checked against the oracle, timed, remembered.

Candidates are built and checked together, in disposable workers; then each is timed alone, with nothing else
of ours running on the machine. Whatever a candidate does is a status of its record. Results that are too good
are audited before they count.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
import platform
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from envs.common import timing
from envs.common.evaluation import PROTOCOL, Evaluation, Status, Timing
from envs.common.locks import Turns
from envs.common.settings import settings
from envs.common.store import Key, Store
from envs.common.workers import Pool, Worker
from envs.leir_env.harness import Harness, Limits, Verdict
from envs.leir_env.ir import Program
from envs.leir_env.key import key
from envs.leir_env.oracle import Oracle, admit, interface_problem
from envs.leir_env.roofline import roofline_seconds
from envs.leir_env.strategies.base import Exactness
from envs.leir_env.verify import verify

SEMANTICS = "2"
"""Version of what programs mean and how they are lowered; a fix in either makes old records stale."""

RULES = timing.Rules(width=0.03, seconds=0.05)
"""For searches: a core evaluates ten candidates a second. Final results take `timing.Rules()`."""

SUSPICIOUS_SPEEDUP = 10.0
"""A speedup over the default schedule beyond which a result is audited."""

SUSPICIOUS_ROOFLINE = 0.9
"""So is a time of which the root's arithmetic at peak would use this much."""

CONFIRMED = 0.5
"""An audit confirms a result if it finds at least this much of the speedup."""

SHORTEST = 20e-6
"""Seconds of the baseline below which a task measures mostly the cost of a call, some microseconds."""

PATIENCE = 60.0
"""Runs of the baseline by which a candidate's seconds are extended."""

ROOT_PATIENCE = 6.0
"""The root is often slow, and is measured once: it gets so many times a candidate's seconds."""

Audit = Callable[[Program, Exactness], str]
"""A further check of a suspicious candidate, such as its trace on odd sizes; returns what is wrong, or ''."""


_program_key = functools.lru_cache(maxsize=8192)(key)


class EvaluatorError(RuntimeError):
    """The baseline itself does not pass, so that nothing can be compared with it."""


@dataclass(frozen=True, slots=True)
class RootFacts:
    """What is measured once for a task."""

    ratio: float | None
    """Time of the root over that of the baseline; None if the root can't be timed."""
    digests: Mapping[str, str]
    """Of the compiled root's outputs, by name of check."""
    seconds: float
    """Time of one run of the baseline, roughly."""


class Evaluator:
    """Evaluates candidates for one root program on this machine.

    `baseline` (the default schedule; the root if None) is what speedups are over. Results are kept in `store`
    by everything they depend on, failures too; without a store, in memory. Workers come from `pool`, by
    default one that the evaluators of this process share.
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
        limits: Limits | None = None,
        audit: Audit | None = None,
        seed: int = 0,
    ) -> None:
        if target != "llvm":
            raise ValueError(f"candidates are run on target llvm; {target} is compiled only")
        configured = settings()
        self.root = root
        self.store = Store(":memory:") if store is None else store
        self.limits = limits or Limits()
        self.audit = audit
        self.oracle = Oracle(root, seed, configured.cache / "references")
        threads = threads or configured.threads
        self.harness = Harness(
            root,
            baseline or root,
            "default schedule" if baseline else "root",
            target,
            threads,
            pool or shared_pool(threads, configured.workers),
            Turns(configured.lock),
            rules,
        )
        # Audits use a seed that nobody knows beforehand.
        self._auditor = Oracle(root, int(np.random.default_rng().integers(1, 2**31)))
        self._facts: RootFacts | None = None
        self._key = Key(
            task=key(root),
            program="",
            baseline=key(self.harness.baseline),
            exactness="",
            target=target,
            device=device(),
            toolchain=toolchain(),
            protocol=f"{PROTOCOL}; seed {seed}; {rules}; {self.limits}",
            threads=threads,
            semantics=SEMANTICS,
        )

    def evaluate(
        self,
        programs: Sequence[Program],
        exactness: Exactness = Exactness.REASSOCIATES,
        *,
        fresh: bool = False,
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
            if stored is None:
                new.setdefault(k, program)
            else:
                found[k] = stored
        with contextlib.closing(self._evaluate(new, exactness)) as records:
            for k, evaluation in records:
                found[k] = evaluation if fresh else self.store.put(k, evaluation)
        return [found[k] for k in keys]

    def key(self, program: Program, exactness: Exactness) -> Key:
        """Name everything that the evaluation of `program` depends on."""
        return replace(self._key, program=_program_key(program), exactness=exactness.name)

    def facts(self) -> RootFacts:
        """Compare the root with the baseline, once for a task: the store remembers."""
        if self._facts is None:
            k = self.key(self.root, Exactness.EXACT)
            stored = self.store.fact("root", k)
            if stored is None:
                measured = self._measure_root()
                stored = self.store.put_fact("root", k, asdict(measured))
            self._facts = RootFacts(**stored)
        return self._facts

    def admit(self) -> tuple[str, ...]:
        """Say why the root is unfit to be a task, or return nothing: the oracle's, or that it is tiny."""
        reasons = admit(self.root, self.oracle)
        seconds = math.inf if reasons else self.facts().seconds
        if seconds < SHORTEST:
            return (f"a run takes {seconds * 1e6:.1f} us; below {SHORTEST * 1e6:.0f} us that is mostly the call",)
        return reasons

    def close(self) -> None:
        """End the workers. A later evaluation starts new ones."""
        self.harness.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _evaluate(
        self, programs: Mapping[Key, Program], exactness: Exactness
    ) -> Generator[tuple[Key, Evaluation], None, None]:
        """Evaluate new candidates: first those that fail, then those that are timed."""
        sound: list[tuple[Key, Program]] = []
        for k, program in programs.items():
            problem = self._screen(program)
            if problem:
                yield k, self._record(k, Verdict(Status.REJECTED, problem))
            else:
                sound.append((k, program))
        if not sound:
            return
        passed: list[tuple[Key, Program, Verdict, Worker]] = []
        candidates = [program for _, program in sound]
        checked = self.harness.check(candidates, exactness, self.oracle, self._allowance())
        with contextlib.closing(checked):
            for position, verdict, worker in checked:
                k, program = sound[position]
                if verdict.status is Status.OK:
                    passed.append((k, program, verdict, worker))
                else:
                    yield k, self._record(k, verdict)
        for k, program, verdict, worker in passed:
            yield k, self._timed(k, program, exactness, verdict, worker)

    def _screen(self, program: Program) -> str:
        """Say why a program is not even built, or nothing."""
        problem = interface_problem(program, self.root)
        if problem:
            return f"interface: {problem}"
        problems = verify(program, self.harness.target)
        return f"{problems[0].code}: {problems[0].sentence}" if problems else ""

    def _timed(
        self,
        k: Key,
        program: Program,
        exactness: Exactness,
        verdict: Verdict,
        worker: Worker,
    ) -> Evaluation:
        """Time a candidate that passed, and audit it if the result is too good."""
        timed = self.harness.time(program, exactness, self.oracle, self._allowance(), worker)
        if timed.timing is None:
            return self._record(k, timed)
        result, audited = timed.timing, False
        suspicion = self._suspicion(result)
        if suspicion:
            confirmed = self._audit(program, exactness, result)
            if isinstance(confirmed, str):
                detail = f"{suspicion}; the audit does not confirm it: {confirmed}"
                return self._record(k, Verdict(Status.SUSPECT, detail, verdict.checks))
            result, audited = confirmed, True
        facts = self.facts()
        hopeless = timing.is_hopeless(result.candidate, result.baseline, self.harness.rules)
        return Evaluation(
            k.program,
            Status.SLOWER if hopeless else Status.OK,
            checks=tuple(
                replace(check, bitwise=verdict.digests[check.name] == facts.digests.get(check.name))
                for check in verdict.checks
            ),
            timing=result,
            root_ratio=facts.ratio,
            seconds={**verdict.seconds, **timed.seconds},
            environment=_environment(k),
            audited=audited,
        )

    def _record(self, k: Key, verdict: Verdict) -> Evaluation:
        """The record of a candidate that failed."""
        return Evaluation(
            k.program,
            verdict.status,
            verdict.detail,
            verdict.checks,
            seconds=dict(verdict.seconds),
            environment=_environment(k),
        )

    def _suspicion(self, result: Timing) -> str:
        """Say why a result is hard to believe, or nothing."""
        if result.ratio > SUSPICIOUS_SPEEDUP:
            return f"{result.ratio:.1f} times as fast as the {result.baseline_name}"
        median = float(np.median(result.candidate))
        bound = roofline_seconds(self.root, self.harness.threads)
        if bound > SUSPICIOUS_ROOFLINE * median:
            return f"{median:.3g} s, and the root's arithmetic at peak takes {bound:.3g} s"
        return ""

    def _audit(self, program: Program, exactness: Exactness, result: Timing) -> Timing | str:
        """Check and time again in a fresh process on secret inputs: the new timing, or what is wrong."""
        self.harness.pool.workers[0].renew()
        limits = self._allowance()
        ((_, verdict, worker),) = self.harness.check([program], exactness, self._auditor, limits)
        if verdict.status is Status.OK:
            verdict = self.harness.time(program, exactness, self._auditor, limits, worker)
        if verdict.timing is None:
            return verdict.detail
        if verdict.timing.ratio < CONFIRMED * result.ratio:
            return f"it is {verdict.timing.ratio:.2f} times as fast this time"
        return (self.audit(program, exactness) if self.audit else "") or verdict.timing

    def _allowance(self) -> Limits:
        """What a candidate may use: more time where the baseline takes long."""
        return replace(self.limits, seconds=self.limits.seconds + PATIENCE * self.facts().seconds)

    def _measure_root(self) -> RootFacts:
        harness, exactness = self.harness, Exactness.REASSOCIATES
        limits = replace(self.limits, seconds=ROOT_PATIENCE * self.limits.seconds)
        pair = [harness.baseline, self.root]
        found = {n: (v, w) for n, v, w in harness.check(pair, exactness, self.oracle, limits)}
        (baseline, _), (root, worker) = found[0], found[1]
        seconds = baseline.seconds.get("run", math.inf)
        if baseline.status is not Status.OK:
            raise EvaluatorError(f"the {harness.baseline_name} is {baseline.status}: {baseline.detail}")
        if root.status is not Status.OK:
            return RootFacts(None, {}, seconds)
        timed = harness.time(self.root, exactness, self.oracle, limits, worker).timing
        if timed is None:
            return RootFacts(None, root.digests, seconds)
        ratio = 1.0 if self._key.task == self._key.baseline else 1 / timed.ratio
        return RootFacts(ratio, root.digests, seconds)


@functools.cache
def shared_pool(threads: int, workers: int) -> Pool:
    """The pool that the evaluators of this process share; its server starts at the first call."""
    return Pool(
        workers,
        "envs.leir_env.measure:prepare",
        # TVM would import torch if it could, at three times the cost.
        blocked=("torch",),
        environment={"TVM_NUM_THREADS": str(threads)},
    )


@functools.cache
def device() -> str:
    """Name the processor, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@functools.cache
def toolchain() -> str:
    """Name the compiler and its version."""
    return f"tvm {importlib.metadata.version('apache-tvm')}"


def _environment(k: Key) -> dict[str, str]:
    return {
        "target": k.target,
        "device": k.device,
        "toolchain": k.toolchain,
        "protocol": k.protocol,
        "semantics": k.semantics,
        "threads": str(k.threads),
        "cache": "warm",
    }
