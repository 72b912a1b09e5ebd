"""The live oracle: Kernel Tuner compiles, checks and times one configuration at a time, in a disposable process.

What fails is an answer: a compiler error or a wrong output, which would end a session of Kernel Tuner itself, is a
status, and so is a run past the time limit or the death of the process. Answers are appended to a Kernel Tuner cache,
which at once is a recording to replay.
"""

from __future__ import annotations

import contextlib
import functools
import math
import pickle
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from envs.autotune_env.cachefile import CacheFile, Entry, entry, header
from envs.autotune_env.domain import Domain
from envs.autotune_env.kernels.definition import Array, Configuration, Kernel, mistakes
from envs.autotune_env.kernels.native import OPTIONS
from envs.autotune_env.kernels.results import Failed, Measured
from envs.autotune_env.oracle import Outcome
from envs.autotune_env.readers import KERNEL_TUNER_FAILURES
from envs.autotune_env.space import Status
from envs.common.workers import Pool, Raised, Returned, TimedOut

LANGUAGES = {"c": "C", "cuda": "CUDA", "opencl": "OpenCL"}
"""Kernel Tuner's names of the backends."""

COMPILER_OPTIONS: dict[str, list[str]] = {"c": list(OPTIONS), "cuda": ["-std=c++17"], "opencl": []}

EXCEPTIONS = {
    "WrongOutput": Status.CORRECTNESS,
    "CalledProcessError": Status.COMPILE,
    "CompileError": Status.COMPILE,
    "CompileException": Status.COMPILE,
}
"""What the exceptions that come out of Kernel Tuner mean; any other is a failure to run."""

BUILD_FAILURE = "BUILD_PROGRAM_FAILURE"
"""What a message says where OpenCL's compiler refuses: its exceptions have no type of their own."""

MEMORY = 2**46
"""Bytes of addresses that a process may map; a CUDA context reserves terabytes."""

STATUS = {status.label: status for status in Status}


class WrongOutput(Exception):
    """An output differs from the answer."""


class Live:
    """Answers for the configurations of a kernel by running them; a context manager, to end its process.

    The process is kept as long as all goes well, and replaced after any failure. What the cache knows already is
    not run again. Raises `SpaceError` where the cache is of something else.
    """

    def __init__(self, kernel: Kernel, cache: Path, *, device: str = "", runs: int = 7, limit: float = 60.0) -> None:
        self.kernel: Final = kernel
        self.limit: Final = limit
        """Seconds for one configuration, compiler included."""
        self.runs: Final = runs
        self.file: Final = CacheFile(cache, header(kernel, kernel.domain(), device))
        self._domain: Final = kernel.domain()
        self._pool: Final = Pool(1, "envs.autotune_env.live:prepare", recycle=10**9)
        self._pickled: Final = pickle.dumps(kernel)

    @property
    def domain(self) -> Domain:
        """What may be asked."""
        return self._domain

    def evaluate(self, row: int, rng: np.random.Generator) -> Outcome:
        """Try one configuration, or look up what the cache says about it."""
        label = self.domain.label(row)
        if label not in self.file.entries:
            configuration = {name: int(value) for name, value in self.domain.value_of(row).items()}
            result, compiling = self._ask(configuration)
            self.file.append(label, entry(self.kernel, configuration, result, compiling))
        return self._outcome(self.file.entries[label])

    def _ask(self, configuration: Configuration) -> tuple[Measured | Failed, float]:
        """Have a worker try a configuration; also the seconds to compile."""
        start = time.monotonic()
        arguments = (self._pickled, configuration, self.runs)
        outcome = self._pool.call("envs.autotune_env.live:tune", *arguments, timeout=self.limit, memory=MEMORY)
        if isinstance(outcome, Returned):
            answer: tuple[Measured | Failed, float] = outcome.value
            return answer
        self._pool.workers[0].renew()
        seconds = time.monotonic() - start
        status, reason = Status.RUNTIME, f"the process died: {outcome}"
        if isinstance(outcome, TimedOut):
            status, reason = Status.TIMEOUT, f"it ran past {self.limit:g} s"
        elif isinstance(outcome, Raised):
            refused = BUILD_FAILURE in outcome.message
            status = Status.COMPILE if refused else EXCEPTIONS.get(outcome.type, Status.RUNTIME)
            reason = f"{outcome.type}: {outcome.message}"
        return Failed(status, reason, seconds), seconds if status is Status.COMPILE else 0.0

    def _outcome(self, values: Entry) -> Outcome:
        status = STATUS[values["invalidity"]]
        benchmark = sum(values["times"]) if status is Status.CORRECT else values["benchmark_time"]
        seconds = (values["compile_time"] + values["verification_time"] + benchmark) * 1e-3
        if status is not Status.CORRECT:
            return Outcome(status, math.nan, seconds)
        objective = float(values[self.kernel.objective])
        return Outcome(status, objective if self.kernel.work is None else -objective, seconds)

    def close(self) -> None:
        """End the process and close the cache."""
        self._pool.close()
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def prepare() -> None:
    """Import what every worker needs. Raises ImportError where Kernel Tuner is not installed."""
    import kernel_tuner  # noqa: F401


def tune(pickled: bytes, configuration: Configuration, runs: int) -> tuple[Measured | Failed, float]:
    """Try one configuration in this process; also the seconds to compile.

    Raises what Kernel Tuner raises, and `WrongOutput`.
    """
    import kernel_tuner

    kernel, arrays = _loaded(pickled)
    expected = _answer(pickled, tuple(configuration[name] for name in kernel.answer_depends))
    constant = kernel.constant_memory if kernel.backend == "cuda" else None
    passed = kernel.passed(arrays)

    def verify(answer: Any, result: list[Array], atol: float) -> bool:
        count = mistakes(result[0], expected, kernel.tolerance)
        if count:
            raise WrongOutput(f"{count:,} of {expected.size:,} elements of the output are wrong")
        return True

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # Kernel Tuner leaves files where it is
        results, _ = kernel_tuner.tune_kernel(
            kernel.application,
            kernel.source,
            arguments=[kernel.output(), *passed],
            tune_params={name: [value] for name, value in configuration.items()},
            answer=[expected, *([None] * len(passed))],
            verify=verify,
            lang=LANGUAGES[kernel.backend],
            cmem_args={constant: arrays[constant]} if constant else None,
            compiler_options=COMPILER_OPTIONS[kernel.backend],
            iterations=runs,
            quiet=True,
            **_launch(kernel),
        )
    return _result(results)


def _launch(kernel: Kernel) -> dict[str, Any]:
    """How Kernel Tuner launches it; C functions take care of themselves."""
    if kernel.geometry is None:
        return {"problem_size": 1}
    geometry = kernel.geometry
    names = dict(zip(("grid_div_x", "grid_div_y"), map(list, geometry.divisors), strict=True))
    size = tuple(kernel.constants[name] for name in geometry.extent)
    return {"problem_size": size, "block_size_names": [*geometry.threads, "block_size_z"], **names}


def _result(results: list[Mapping[str, Any]]) -> tuple[Measured | Failed, float]:
    if not results:
        return Failed(Status.CONSTRAINTS, "Kernel Tuner does not take the configuration", 1e-3), 0.0
    found = results[0]
    compiling = float(found.get("compile_time") or 0.0) * 1e-3
    if "__error__" in found:
        name = str(found["__error__"])
        return Failed(KERNEL_TUNER_FAILURES[name], name, max(compiling, 1e-3)), compiling
    verifying, benchmark = (float(found.get(name) or 0.0) * 1e-3 for name in ("verification_time", "benchmark_time"))
    return Measured(tuple(map(float, found["times"])), verifying, benchmark), compiling


@functools.lru_cache(maxsize=1)
def _loaded(pickled: bytes) -> tuple[Kernel, Mapping[str, Array]]:
    kernel: Kernel = pickle.loads(pickled)
    return kernel, kernel.inputs(kernel.constants)


@functools.lru_cache(maxsize=16)
def _answer(pickled: bytes, values: tuple[int, ...]) -> Array:
    kernel, arrays = _loaded(pickled)
    chosen = dict(zip(kernel.answer_depends, values, strict=True))
    return kernel.answer(arrays, {**kernel.constants, **chosen})
