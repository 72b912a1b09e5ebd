"""Recording: measure the project's own kernels on this machine, and make tuning spaces of them.

Configurations are compiled by workers, and run one at a time in a disposable process: every output is compared with
NumPy's, then timed. What fails is an entry like any other. Entries are appended to a Kernel Tuner cache, so that an
interrupted recording goes on where it stopped; at the end the compact file is written beside it. The order is random
and seeded, so that a part of a space is a fair sample of it.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.autotune_env import readers
from envs.autotune_env.cachefile import CacheFile, entry, header
from envs.autotune_env.domain import Domain
from envs.autotune_env.kernels.definition import Configuration
from envs.autotune_env.kernels.results import Failed, Measured, Task, Versions
from envs.autotune_env.records import Labels
from envs.autotune_env.space import Space, Status
from envs.common.workers import Crashed, Outcome, Pool, Raised, Returned, TimedOut

Report = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Backend:
    """Where the functions of a backend are, and how it is recorded."""

    module: str
    """With `describe`, `build` and `measure`."""
    together: bool
    """Whether the compilers may work while something is timed: not where both need the same processor."""
    memory: int
    """Bytes that the process which runs the kernels may map; a CUDA context reserves terabytes of addresses."""
    needs: str
    """How to get what it takes."""


BACKENDS = {
    "cuda": Backend("envs.autotune_env.kernels.cuda", True, 2**46, "an NVIDIA GPU, and pip install 'leirgym[gpu,ptx]'"),
    "opencl": Backend(
        "envs.autotune_env.kernels.opencl", False, 2**46, "an OpenCL platform, and pip install 'leirgym[opencl]'"
    ),
    "c": Backend("envs.autotune_env.kernels.native", False, 2**32, "g++"),
}

COMPILER_MEMORY = 2**35
COMPILER_SECONDS = 120.0

DEAD_SECONDS = 1.0
"""That a compiler which died is taken to have worked."""

BATCH = 16
"""Configurations that are compiled before they are timed, where the two take turns."""

DESCRIBE_SECONDS = 120.0
"""A driver may take long to start."""


class RecordError(RuntimeError):
    """The backend does not work on this machine."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to record, and how."""

    application: str
    backend: str
    sample: int | None = None
    """So many configurations, drawn at random; all of them if None."""
    seed: int = 0
    """Of the order, and so of the sample."""
    runs: int = 16
    """Samples of each configuration."""
    limit: float = 60.0
    """Seconds after which a run counts as a time-out. The reference is computed in the first."""
    workers: int = 1
    """Compilers at work."""
    constants: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Those that differ from the kernel's table."""

    def task(self, target: str = "") -> Task:
        """What the workers get."""
        return Task(f"{self.application}/{self.backend}", tuple(sorted(self.constants.items())), target)

    def rows(self, domain: Domain) -> list[int]:
        """What is recorded, in order."""
        order = np.random.default_rng(self.seed).permutation(len(domain))
        return [int(row) for row in order[: self.sample]]


def record(
    plan: Plan,
    cache: Path,
    versions: Versions,
    deadline: float = float("inf"),
    report: Report = lambda done, line: None,
    device: str = "",
) -> Space:
    """Record a space into a cache file until all is done, or the monotonic clock reads `deadline`.

    Returns what is recorded so far, earlier runs included. Raises `SpaceError` where the cache is of something else,
    or nothing worked.
    """
    kernel = plan.task().kernel
    domain = kernel.domain()
    rows = plan.rows(domain)
    with CacheFile(cache, header(kernel, domain, versions["device"])) as file:
        todo = [row for row in rows if domain.label(row) not in file.entries]
        done = len(rows) - len(todo)
        if todo:
            with Bench(plan, versions["target"]) as bench:
                for row, configuration, result, compiling in bench.results(domain, todo, deadline):
                    values = entry(kernel, configuration, result, compiling)
                    file.append(domain.label(row), values)
                    done += 1
                    report(done, _line(values, kernel.objective))
        entries = dict(file.entries)
    return _space(plan, cache, versions, entries, device)


def _line(values: Mapping[str, Any], objective: str) -> str:
    value = values[objective]
    if isinstance(value, str):
        return f"{values['invalidity']}: {values['reason'][:60]}"
    return f"{value:.4g} {'ms' if objective == 'time' else objective}"


def _space(plan: Plan, cache: Path, versions: Versions, entries: Mapping[str, Any], device: str) -> Space:
    """The space of a cache that this module wrote."""
    kernel = plan.task().kernel
    domain = kernel.domain()
    whole = len(entries) == len(domain)
    source = {
        "made by": f"leirgym record {plan.application} --backend {plan.backend}",
        "licence": "Apache-2.0",
        "date": max(values["timestamp"] for values in entries.values())[:10] if entries else "",
        "recorded": f"{len(entries):,} of {len(domain):,} configurations, {'all' if whole else 'a random part'}",
        "protocol": f"{plan.runs} samples of each; every output compared with NumPy's",
        "order": f"random, seed {plan.seed}",
        **versions,
    }
    labels = Labels(
        name=f"{plan.application}/{device or short(versions['device'])}",
        device=versions["device"],
        higher_is_better=kernel.work is not None,
        restrictions=kernel.restrictions if whole else None,
        source={name: text for name, text in source.items() if text},
    )
    return readers.read(cache, labels)


VENDORS = r"\b(NVIDIA|AMD|Intel|GeForce|Processor|CPU|GPU|SXM\d?|\d+-Core)\b|\(R\)|\(TM\)|@.*"


def short(device: str) -> str:
    """A device's name as the second part of a space's: `NVIDIA H200` is `H200`."""
    return "-".join(re.sub(VENDORS, " ", device).replace("/", " ").split()) or "unknown"


class Bench:
    """The processes of a recording: compilers, and one in which kernels run."""

    def __init__(self, plan: Plan, target: str) -> None:
        self.plan, self.backend, self.task = plan, BACKENDS[plan.backend], plan.task(target)
        module = self.backend.module
        self.compilers = Pool(plan.workers, module, recycle=10**9)
        self.runner = Pool(1, module, recycle=10**9, environment={"OMP_PROC_BIND": "false"})

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.compilers.close()
        self.runner.close()

    def results(
        self, domain: Domain, rows: Sequence[int], deadline: float
    ) -> Iterator[tuple[int, Configuration, Measured | Failed, float]]:
        """Row, configuration, result and seconds to compile, as they end, until the deadline."""
        for row, outcome in self._builds(domain, rows):
            if time.monotonic() >= deadline:
                return
            configuration = _numbers(domain, row)
            built = _value(outcome, Status.COMPILE, DEAD_SECONDS)
            result = built if isinstance(built, Failed) else self._run(configuration, built.code)
            yield row, configuration, result, built.seconds

    def _builds(self, domain: Domain, rows: Sequence[int]) -> Iterator[tuple[int, Outcome]]:
        """Compile all; where compiling and timing take turns, a batch at a time."""
        size = len(rows) if self.backend.together else BATCH
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            jobs = ((self.task, _numbers(domain, row)) for row in batch)
            function = f"{self.backend.module}:build"
            found = self.compilers.map(function, jobs, timeout=COMPILER_SECONDS, memory=COMPILER_MEMORY)
            pairs = ((batch[position], outcome) for position, outcome, _ in found)
            yield from pairs if self.backend.together else list(pairs)

    def _run(self, configuration: Configuration, code: bytes) -> Measured | Failed:
        function = f"{self.backend.module}:measure"
        arguments = (self.task, configuration, code, self.plan.runs)
        start = time.monotonic()
        outcome = self.runner.call(function, *arguments, timeout=self.plan.limit, memory=self.backend.memory)
        if not isinstance(outcome, Returned):
            self.runner.workers[0].renew()
        result: Measured | Failed = _value(outcome, Status.RUNTIME, time.monotonic() - start)
        return result


def _numbers(domain: Domain, row: int) -> Configuration:
    return {name: int(value) for name, value in domain.value_of(row).items()}


def _value(outcome: Outcome, status: Status, seconds: float) -> Any:
    """What a worker returned; `Failed`, after so many seconds, where it did not."""
    match outcome:
        case Returned(value):
            return value
        case TimedOut(limit):
            return Failed(Status.TIMEOUT, f"it ran past {limit:g} s", limit)
        case Raised(kind, message):
            return Failed(status, f"{kind}: {message}", seconds)
        case Crashed():
            return Failed(status, f"the process died: {outcome}", seconds)
    return Failed(status, "it wanted too much memory", seconds)


def describe(backend: str) -> Versions:
    """The device and the tools of a backend. Raises `RecordError` that says what is missing."""
    chosen = BACKENDS[backend]
    with Pool(1, chosen.module) as pool:
        outcome = pool.call(f"{chosen.module}:describe", timeout=DESCRIBE_SECONDS, memory=chosen.memory)
    if isinstance(outcome, Returned):
        versions: Versions = outcome.value
        return versions
    reason = f"{outcome.type}: {outcome.message.splitlines()[0]}" if isinstance(outcome, Raised) else str(outcome)
    raise RecordError(f"the backend {backend} does not work here ({reason}); it needs {chosen.needs}")
