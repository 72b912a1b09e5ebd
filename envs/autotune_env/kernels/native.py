"""The C backend: kernels compiled with g++ and OpenMP, run in this process. Call it in a disposable worker."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
import tempfile
import time
from pathlib import Path

from envs.autotune_env.kernels.definition import Configuration, mistakes
from envs.autotune_env.kernels.reference import answer, inputs
from envs.autotune_env.kernels.results import Built, Failed, Measured, Task, Versions, wrong
from envs.autotune_env.space import Status

COMPILER = "g++"

OPTIONS = ("-O3", "-march=native", "-fopenmp", "-fPIC")

WARM_UP = 2
"""Runs before those that are timed."""

REPEATS = 4
"""Each sample is the fastest of so many runs in a row: other programs run on the same processor."""


def describe() -> Versions:
    """The processor and the compiler. Raises OSError where there is no compiler."""
    answer = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    return {
        "device": _processor(),
        "target": "",
        "compiler": answer.stdout.splitlines()[0],
        "options": " ".join(OPTIONS),
        "timing": f"wall clock; a sample is the fastest of {REPEATS} runs in a row, after {WARM_UP} others",
    }


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", listed.read_text(), re.MULTILINE) if listed.is_file() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def build(task: Task, configuration: Configuration) -> Built | Failed:
    """Compile a configuration to a shared library."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        source.write_text(task.kernel.text(configuration))
        start = time.perf_counter()
        command = [COMPILER, *OPTIONS, "-shared", str(source), "-o", str(library)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        if answer.returncode:
            return Failed(Status.COMPILE, answer.stderr.strip(), seconds)
        return Built(library.read_bytes(), seconds)


def measure(task: Task, configuration: Configuration, code: bytes, runs: int) -> Measured | Failed:
    """Run a library once on a poisoned output, compare, then time it. What it times are its own milliseconds."""
    kernel = task.kernel
    arrays = inputs(task)
    expected = answer(task, configuration)
    output = kernel.output()
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        library = ctypes.CDLL(
            file.name
        )  # for good: OpenMP's threads outlive a call, and unloading takes their code away
    function = library[kernel.application]
    function.restype = ctypes.c_float
    arguments = [ctypes.c_void_p(array.ctypes.data) for array in (output, *arrays.values())]
    start = time.perf_counter()
    function(*arguments)
    count = mistakes(output, expected, kernel.tolerance)
    verified = time.perf_counter()
    if count:
        return wrong(count, output.size, verified - start)
    for _ in range(WARM_UP):
        function(*arguments)
    times = tuple(min(function(*arguments) for _ in range(REPEATS)) for _ in range(runs))
    return Measured(times, verified - start, time.perf_counter() - verified)
