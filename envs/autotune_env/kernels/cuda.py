"""The CUDA backend: kernels compiled with NVRTC, checked and timed on the device. Call it in a disposable worker.

Needs cuda-bindings and NVRTC; neither Kernel Tuner nor a C++ compiler. A launch that the device refuses is a value;
an error that breaks the context is an exception, after which the worker must be replaced.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from envs.autotune_env.kernels.definition import Array, Configuration, bound
from envs.autotune_env.kernels.driver import CompileError, CudaError, Device, compile_cubin, compiler_version
from envs.autotune_env.kernels.results import Built, Failed, Measured, Task, Versions, wrong
from envs.autotune_env.space import Status

WARM_UP = 10
"""Runs before those that are timed: clocks rise, and the queue gets ahead of the device."""

COMPARERS = 1024, 1
"""Blocks that compare an output; each thread strides over what there is."""

POISON = 0x7FC00000
"""A word that is not a number in single precision."""


def describe() -> Versions:
    """The device and the versions. Raises `CudaError` or ImportError where something is missing."""
    device = _device()
    tools = {
        "compiler": compiler_version(),
        "driver": device.version,
        "timing": f"CUDA events, runs back to back after {WARM_UP} others",
    }
    return {"device": device.name, "target": device.target, **tools}


def build(task: Task, configuration: Configuration) -> Built | Failed:
    """Compile a configuration to a cubin."""
    start = time.perf_counter()
    try:
        cubin = compile_cubin(task.kernel.text(configuration), task.target)
    except CompileError as error:
        return Failed(Status.COMPILE, str(error), time.perf_counter() - start)
    return Built(cubin, time.perf_counter() - start)


def measure(task: Task, configuration: Configuration, code: bytes, runs: int) -> Measured | Failed:
    """Run a cubin once on a poisoned output, compare on the device, then time it with events."""
    bench = _bench(task)
    device = bench.device
    answer, allowed = bench.answer(configuration)
    start = time.perf_counter()
    try:
        module = device.load(code)
        run = bench.launcher(module, configuration)
        count = bench.mistakes(run, answer, allowed)
    except CudaError as error:
        device.synchronise()  # raises again where the context is broken
        return Failed(Status.RUNTIME, str(error), time.perf_counter() - start)
    verified = time.perf_counter()
    if count:
        return wrong(count, bench.size, verified - start)
    times = device.time(run, WARM_UP + runs)[WARM_UP:]
    done = time.perf_counter()
    device.call("cuModuleUnload", module)
    return Measured(times, verified - start, done - verified)


@functools.lru_cache(maxsize=1)
def _device() -> Device:
    return Device()


@functools.lru_cache(maxsize=1)
def _bench(task: Task) -> Bench:
    return Bench(task, _device())


class Bench:
    """The arguments of one kernel on the device, and the answers that were needed so far."""

    def __init__(self, task: Task, device: Device) -> None:
        self.kernel, self.device = task.kernel, device
        self.arrays: Mapping[str, Array] = self.kernel.inputs(self.kernel.constants)
        self.size = self.kernel.output().size
        self.output = device.allocate(4 * self.size)
        self.inputs = {name: device.upload(array) for name, array in self.arrays.items()}
        self.answers: dict[tuple[int, ...], tuple[int, float]] = {}
        self.wrong = device.allocate(4)
        comparison = Path(__file__).with_name("compare.cu").read_text(encoding="utf-8")
        self.module = device.load(compile_cubin(comparison, device.target))
        self.compare = device.call("cuModuleGetFunction", self.module, b"compare")

    def launcher(self, module: Any, configuration: Configuration) -> Callable[[], None]:
        """What queues a run of a module; constant memory is filled here."""
        device, geometry, constant = self.device, self.kernel.geometry, self.kernel.constant_memory
        assert geometry is not None
        if constant:
            place, size = device.call("cuModuleGetGlobal", module, constant.encode())
            device.call("cuMemcpyDtoD", place, self.inputs[constant], size)
        function = device.call("cuModuleGetFunction", module, self.kernel.application.encode())
        passed = [self.output, *(pointer for name, pointer in self.inputs.items() if name != constant)]
        shape = geometry.grid(configuration), geometry.block(configuration)
        return device.launcher(function, *shape, [np.uint64(pointer) for pointer in passed])

    def mistakes(self, run: Callable[[], None], answer: int, allowed: float) -> int:
        """Run on a poisoned output; how many elements are further than allowed from the answer."""
        device = self.device
        device.fill(self.output, POISON, self.size)
        run()
        device.fill(self.wrong, 0, 1)
        pointers = [np.uint64(pointer) for pointer in (self.wrong, self.output, answer)]
        arguments: list[np.generic] = [*pointers, np.float32(allowed), np.uint32(self.size)]
        device.launcher(self.compare, COMPARERS, (256, 1), arguments)()
        count = np.zeros(1, np.uint32)
        device.download(count, self.wrong)
        return int(count[0])

    def answer(self, configuration: Configuration) -> tuple[int, float]:
        """Where the expected output is on the device, and the error that is allowed."""
        kernel = self.kernel
        key = tuple(configuration[name] for name in kernel.answer_depends)
        if key not in self.answers:
            expected = kernel.answer(self.arrays, configuration)
            pointer = self.device.upload(np.ascontiguousarray(expected, np.float32))
            self.answers[key] = pointer, bound(expected, kernel.tolerance)
        return self.answers[key]
