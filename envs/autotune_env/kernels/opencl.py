"""The OpenCL backend: the CUDA sources, built for the first device there is, checked and timed there.

Needs PyOpenCL and a platform; PoCL makes one of a processor. Call it in a disposable worker.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

from envs.autotune_env.kernels.definition import Configuration, mistakes
from envs.autotune_env.kernels.reference import answer, inputs
from envs.autotune_env.kernels.results import Built, Failed, Measured, Task, Versions, wrong
from envs.autotune_env.space import Status

WARM_UP = 2
"""Runs before those that are timed."""


def describe() -> Versions:
    """The device and the versions. Raises ImportError without PyOpenCL, its error without a platform."""
    device = _device()
    return {
        "device": device.name,
        "target": "",
        "compiler": device.platform.version.strip(),
        "driver": device.driver_version,
        "timing": f"OpenCL events, after {WARM_UP} other runs",
    }


def build(task: Task, configuration: Configuration) -> Built | Failed:
    """Build a configuration; what comes of it is its text, for a driver may compile again for the size of a block."""
    import pyopencl

    text = task.kernel.text(configuration)
    context = pyopencl.Context([_device()])
    start = time.perf_counter()
    try:
        pyopencl.Program(context, text).build(cache_dir=False)
    except pyopencl.RuntimeError as error:
        return Failed(Status.COMPILE, str(error).strip(), time.perf_counter() - start)
    return Built(text.encode(), time.perf_counter() - start)


def measure(task: Task, configuration: Configuration, code: bytes, runs: int) -> Measured | Failed:
    """Run a program once on a poisoned output, compare, then time it with events."""
    import pyopencl

    kernel, bench = task.kernel, _bench(task)
    expected = answer(task, configuration)
    assert kernel.geometry is not None
    block = kernel.geometry.block(configuration)
    wanted = tuple(count * threads for count, threads in zip(kernel.geometry.grid(configuration), block, strict=True))
    result = kernel.output()
    start = time.perf_counter()
    try:
        program = pyopencl.Program(bench.context, code.decode()).build(cache_dir=False)
        function = getattr(program, kernel.application)
        function.set_args(*bench.buffers)
        pyopencl.enqueue_copy(bench.queue, bench.buffers[0], result)
        pyopencl.enqueue_nd_range_kernel(bench.queue, function, wanted, block)
        pyopencl.enqueue_copy(bench.queue, result, bench.buffers[0])
    except (pyopencl.RuntimeError, pyopencl.LogicError) as error:
        return Failed(Status.RUNTIME, str(error), time.perf_counter() - start)
    count = mistakes(result, expected, kernel.tolerance)
    verified = time.perf_counter()
    if count:
        return wrong(count, result.size, verified - start)
    events = [pyopencl.enqueue_nd_range_kernel(bench.queue, function, wanted, block) for _ in range(WARM_UP + runs)]
    bench.queue.finish()
    times = tuple((event.profile.end - event.profile.start) * 1e-6 for event in events[WARM_UP:])
    return Measured(times, verified - start, time.perf_counter() - verified)


@functools.lru_cache(maxsize=1)
def _device() -> Any:
    """The first device of the first platform."""
    import pyopencl

    return pyopencl.get_platforms()[0].get_devices()[0]


@dataclass(frozen=True, slots=True)
class Bench:
    """The arguments of a kernel on the device: the output, then what it reads."""

    context: Any
    queue: Any
    buffers: list[Any]


@functools.lru_cache(maxsize=1)
def _bench(task: Task) -> Bench:
    import pyopencl

    kernel = task.kernel
    context = pyopencl.Context([_device()])
    queue = pyopencl.CommandQueue(context, properties=pyopencl.command_queue_properties.PROFILING_ENABLE)
    flags = pyopencl.mem_flags.READ_WRITE | pyopencl.mem_flags.COPY_HOST_PTR
    arrays = [kernel.output(), *kernel.passed(inputs(task))]
    return Bench(context, queue, [pyopencl.Buffer(context, flags, hostbuf=array) for array in arrays])
