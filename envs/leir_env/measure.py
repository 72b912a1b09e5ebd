"""Worker side: build a candidate, run it on drawn inputs in guarded buffers, and time it.

Runs in disposable workers (`envs.common.workers`), which import it once. Nothing here knows what the right
answer is: outputs go back to the parent, which does.
"""

from __future__ import annotations

import functools
import math
import resource
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm

from envs.common import timing
from envs.common.collector import no_collection
from envs.leir_env.build import BuildError, Kernel, build
from envs.leir_env.inputs import draw
from envs.leir_env.interp import Array, numpy_dtype
from envs.leir_env.ir import DType, Program, Tensor
from envs.leir_env.jobs import CheckReport, Job, TimeReport
from envs.leir_env.parser import parse

GUARD_BYTES = 4096
"""Before and after each buffer, filled with a pattern that must survive."""

ALIGNMENT = 64
"""Bytes; generated code assumes it and does not check."""

PATTERN = 0xA5

ATTEMPTS = 4
"""At a block that nothing interrupts."""

SLOW_SECONDS = 0.05
"""Longer runs need no second input set when timed; faster ones are never worth saving."""

VERY_SLOW_SECONDS = 1.0
"""A candidate that takes longer, and is hopeless, is run once to be checked and once to be timed."""


class Buffer:
    """A tensor in aligned memory between two guards, seen by NumPy and by TVM."""

    def __init__(self, tensor: Tensor) -> None:
        raw = np.full(tensor.nbytes + 2 * GUARD_BYTES + 2 * ALIGNMENT, PATTERN, np.uint8)
        start = GUARD_BYTES + (-raw.ctypes.data - GUARD_BYTES) % ALIGNMENT
        stop = start + tensor.nbytes
        self.bytes = raw[start:stop]
        self.array: Array = self.bytes.view(numpy_dtype(tensor.dtype)).reshape(tensor.shape)
        self.guards = (raw[:start], raw[stop:])
        if tensor.dtype is DType.BF16:  # NumPy can't hand this type over
            words = tvm.runtime.from_dlpack(self.array.view(np.uint16))
            self.tensor = words._create_view(tensor.shape, "bfloat16")
        else:
            self.tensor = tvm.runtime.from_dlpack(self.array)

    def intact(self) -> bool:
        """Do both guards still hold their pattern?"""
        return all(bool(np.all(guard == PATTERN)) for guard in self.guards)

    def poison(self, rng: np.random.Generator | None) -> None:
        """Fill with a random finite value, or with nan (integers: the smallest) without a generator."""
        kind = self.array.dtype.kind
        if kind == "b":
            self.array.fill(rng is not None and rng.random() < 0.5)
        elif kind == "i":
            limits = np.iinfo(self.array.dtype)
            self.array.fill(limits.min if rng is None else rng.integers(limits.min, limits.max))
        else:
            self.array.fill(np.nan if rng is None else rng.uniform(-60, 60))


class Bench:
    """The buffers of one input set: inputs with checksums, outputs to be poisoned."""

    def __init__(self, root: Program, name: str, seed: int) -> None:
        self.name = name
        self.inputs = tuple(Buffer(tensor) for tensor in root.inputs)
        self.outputs = tuple(Buffer(tensor) for tensor in root.outputs)
        for buffer, values in zip(self.inputs, draw(root, name, seed).values(), strict=True):
            buffer.array[...] = values
        self.names = tuple(tensor.name for tensor in (*root.inputs, *root.outputs))
        self.sums = tuple(zlib.crc32(buffer.bytes.data) for buffer in self.inputs)
        self.arguments = tuple(buffer.tensor for buffer in (*self.inputs, *self.outputs))

    def run(self, kernel: Kernel, rng: np.random.Generator | None) -> float:
        """Poison the outputs and run once; return the seconds."""
        for buffer in self.outputs:
            buffer.poison(rng)
        started = time.perf_counter()
        kernel.function(*self.arguments)
        return time.perf_counter() - started

    def results(self) -> tuple[Array, ...]:
        """Copies of the outputs."""
        return tuple(buffer.array.copy() for buffer in self.outputs)

    def holds(self, results: Sequence[Array]) -> bool:
        """Are the outputs these, bit for bit?"""
        return all(
            np.array_equal(buffer.bytes, result.reshape(-1).view(np.uint8))
            for buffer, result in zip(self.outputs, results, strict=True)
        )

    def damage(self) -> str:
        """Say which guard or input was overwritten, or nothing."""
        for name, buffer in zip(self.names, (*self.inputs, *self.outputs), strict=True):
            if not buffer.intact():
                return f"{name} was written out of bounds"
        for name, buffer, checksum in zip(self.names, self.inputs, self.sums, strict=False):
            if zlib.crc32(buffer.bytes.data) != checksum:
                return f"input {name} was overwritten"
        return ""


@functools.lru_cache(maxsize=8)
def _bench(root: Program, name: str, seed: int) -> Bench:
    return Bench(root, name, seed)


@functools.lru_cache(maxsize=256)
def _kernel(program: Program, target: str) -> Kernel:
    return build(program, target)


def prepare() -> None:
    """Warm up the compiler in the server that workers are forked from; no kernel runs there."""
    build(parse("i:16\nA:f32[i] -> B:f32[i]\nL_i B[i] = exp(A[i])\n"), "llvm")
    _kernel.cache_clear()


def check(job: Job) -> CheckReport:
    """Build a candidate and run it on every input set."""
    started = time.perf_counter()
    try:
        kernel = _kernel(job.program, job.target)
    except BuildError as error:
        return CheckReport(build_error=str(error))
    built = time.perf_counter()
    rng = np.random.default_rng()
    outputs: dict[str, tuple[Array, ...]] = {}
    fastest = math.inf
    wanted = len(job.sets)
    for position, name in enumerate(job.sets):
        if position >= wanted:
            break
        bench = _bench(job.root, name, job.seed)
        took = bench.run(kernel, rng if position % 2 else None)
        outputs[name] = bench.results()
        damage = bench.damage()
        if damage:
            return CheckReport(damage=damage)
        fastest = min(fastest, took)
        if took > SLOW_SECONDS and took > job.hopeless * _baseline_seconds(job):
            wanted = 1 if took > VERY_SLOW_SECONDS else 2
    if wanted == len(job.sets):
        # Other inputs ran since: whatever the candidate left behind or did not write differs now.
        bench = _bench(job.root, job.sets[0], job.seed)
        bench.run(kernel, rng)
        if not bench.holds(outputs[job.sets[0]]):
            return CheckReport(damage=f"two runs on the input set {job.sets[0]} differ")
    seconds = {"build": built - started, "check": time.perf_counter() - built, "run": fastest}
    return CheckReport(outputs, seconds=seconds)


def _baseline_seconds(job: Job) -> float:
    bench = _bench(job.root, job.sets[0], job.seed)
    return _rough_seconds(job.baseline, job.target, bench)


@functools.lru_cache(maxsize=8)
def _rough_seconds(program: Program, target: str, bench: Bench) -> float:
    """The time of one run, measured once."""
    return bench.run(_kernel(program, target), None)


def measure(job: Job, rules: timing.Rules) -> TimeReport:
    """Time a candidate that passed, interleaved with the baseline, on the input sets in random turns.

    After each block the outputs must be, bit for bit, those of the first run, which go back to be checked.
    """
    rng = np.random.default_rng()
    kernels = (_kernel(job.program, job.target), _kernel(job.baseline, job.target))
    slots: list[_Slot] = []
    for name in job.sets:
        slots.append(_warm_up(_bench(job.root, name, job.seed), kernels, rng))
        if max(slots[0].seconds) > SLOW_SECONDS:
            break
    candidate, baseline = slots[0].seconds
    if candidate > VERY_SLOW_SECONDS and candidate > rules.hopeless * baseline:
        bench, (outputs, _) = slots[0].bench, slots[0].results
        return TimeReport((candidate,), (baseline,), {bench.name: outputs}, bench.damage())
    damage: list[str] = []

    def block(which: int) -> Callable[[], float]:
        repeats = timing.repetitions(min(slot.seconds[which] for slot in slots), rules)

        def run() -> float:
            slot = slots[rng.integers(len(slots))]
            seconds = _block(kernels[which], slot.bench, repeats, rng)
            if not slot.bench.holds(slot.results[which]):
                damage.append(f"a timed run on the input set {slot.bench.name} differs from the first")
            return seconds

        return run

    with no_collection():
        samples = timing.interleave(block(0), block(1), rules, rng, time.perf_counter)
    damage += filter(None, (slot.bench.damage() for slot in slots))
    found = {slot.bench.name: slot.results[0] for slot in slots}
    return TimeReport(*samples, found, damage[0] if damage else "")


@dataclass(frozen=True, slots=True)
class _Slot:
    """An input set, and what candidate and baseline made of it in their first runs."""

    bench: Bench
    results: tuple[tuple[Array, ...], ...]
    seconds: tuple[float, ...]


def _warm_up(bench: Bench, kernels: tuple[Kernel, ...], rng: np.random.Generator) -> _Slot:
    runs = [(bench.run(kernel, rng), bench.results()) for kernel in kernels]
    return _Slot(bench, tuple(results for _, results in runs), tuple(seconds for seconds, _ in runs))


def _block(kernel: Kernel, bench: Bench, repeats: int, rng: np.random.Generator) -> float:
    """Poison the outputs, run `repeats` times, return the mean seconds.

    A block that another process interrupted is run again, a few times: on a busy machine most samples would
    otherwise be times of that other process.
    """
    for buffer in bench.outputs:
        buffer.poison(rng)
    function, arguments = kernel.function, bench.arguments
    for _ in range(ATTEMPTS):
        switches = _interruptions()
        started = time.perf_counter()
        for _ in range(repeats):
            function(*arguments)
        seconds = time.perf_counter() - started
        if _interruptions() == switches:
            break
    return seconds / repeats


def _interruptions() -> int:
    """How often the system took the processor away from this thread (elsewhere than on Linux: process)."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nivcsw
