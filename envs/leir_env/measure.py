"""Worker side: build a candidate, run it on drawn inputs in guarded buffers, and time it.

Runs in disposable workers (`envs.common.workers`), which import it once. Nothing here knows what the right
answer is: outputs go back to the parent, which does.
"""

from __future__ import annotations

import functools
import gc
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm

from envs.common import timing
from envs.leir_env.build import BuildError, Kernel, build
from envs.leir_env.inputs import draw
from envs.leir_env.interp import Array, numpy_dtype
from envs.leir_env.ir import DType, Program, Tensor
from envs.leir_env.parser import parse

GUARD_BYTES = 4096
"""Before and after each buffer, filled with a pattern that must survive."""

ALIGNMENT = 64
"""Bytes; generated code assumes it and does not check."""

PATTERN = 0xA5


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to know about a candidate; all of it may be known to everyone."""

    program: Program
    root: Program
    """Says what inputs are drawn."""
    baseline: Program
    target: str
    seed: int
    sets: tuple[str, ...]
    """Input sets to check, most telling first."""
    hopeless: float
    """Programs this many times slower than the baseline are checked on two sets only."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What came out of a candidate."""

    outputs: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)
    """By input set, in header order."""
    build_error: str = ""
    damage: str = ""
    """What the candidate did that no candidate may, in words: the worker is not to be trusted again."""
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimeReport:
    """Samples in seconds for one run, pair by pair, and what the timed runs computed."""

    candidate: tuple[float, ...]
    baseline: tuple[float, ...]
    outputs: Mapping[str, tuple[Array, ...]]
    damage: str = ""


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
        self.sums = tuple(zlib.crc32(buffer.bytes) for buffer in self.inputs)
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
            if zlib.crc32(buffer.bytes) != checksum:
                return f"input {name} was overwritten"
        return ""


@functools.lru_cache(maxsize=8)
def _bench(root: Program, name: str, seed: int) -> Bench:
    return Bench(root, name, seed)


@functools.lru_cache(maxsize=16)
def _kernel(program: Program, target: str) -> Kernel:
    return build(program, target)


def prepare() -> None:
    """Warm up the compiler in the server that workers are forked from; no kernel runs there."""
    build(parse("i:16\nA:f32[i] -> B:f32[i]\nL_i B_i = exp(A_i)\n"), "llvm")
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
    slow = False
    for position, name in enumerate(job.sets):
        if slow and position >= 2:
            break
        bench = _bench(job.root, name, job.seed)
        took = bench.run(kernel, rng if position % 2 else None)
        outputs[name] = bench.results()
        damage = bench.damage()
        if damage:
            return CheckReport(damage=damage)
        slow = slow or took > 0.05 and took > job.hopeless * _baseline_seconds(job)
    if not slow:
        # Other inputs ran since: whatever the candidate left behind or did not write differs now.
        bench = _bench(job.root, job.sets[0], job.seed)
        bench.run(kernel, rng)
        if not bench.holds(outputs[job.sets[0]]):
            return CheckReport(damage=f"two runs on the input set {job.sets[0]} differ")
    seconds = {"build": built - started, "check": time.perf_counter() - built}
    return CheckReport(outputs, seconds=seconds)


def _baseline_seconds(job: Job) -> float:
    bench = _bench(job.root, job.sets[0], job.seed)
    return _rough_seconds(job.baseline, job.target, bench)


@functools.lru_cache(maxsize=8)
def _rough_seconds(program: Program, target: str, bench: Bench) -> float:
    """The time of one run, measured once."""
    return bench.run(_kernel(program, target), None)


def measure(job: Job, rules: timing.Rules) -> TimeReport:
    """Time a candidate that passed, interleaved with the baseline, on the input sets in turn.

    After each block the outputs must be, bit for bit, those of the first run, which go back to be checked.
    """
    rng = np.random.default_rng()
    kernels = (_kernel(job.program, job.target), _kernel(job.baseline, job.target))
    benches = [_bench(job.root, name, job.seed) for name in job.sets]
    results: list[tuple[tuple[Array, ...], ...]] = []
    first: list[list[float]] = [[], []]
    for bench in benches:
        found = []
        for which, kernel in enumerate(kernels):
            first[which].append(bench.run(kernel, rng))
            found.append(bench.results())
        results.append(tuple(found))
    repeats = [timing.repetitions(min(seconds), rules) for seconds in first]
    samples: tuple[list[float], list[float]] = ([], [])
    order = timing.order(rules.most, rng)
    slots = rng.integers(0, len(benches), rules.most)
    damage = ""
    collecting = gc.isenabled()
    gc.disable()
    try:
        started = time.perf_counter()
        for pair in range(rules.most):
            slot = int(slots[pair])
            bench = benches[slot]
            for which in (0, 1) if order[pair] else (1, 0):
                samples[which].append(_block(kernels[which], bench, repeats[which], rng))
                if not bench.holds(results[slot][which]):
                    damage = damage or f"a timed run on the input set {bench.name} differs from the first"
            if _stop(samples, time.perf_counter() - started, rules):
                break
    finally:
        if collecting:
            gc.enable()
    damage = damage or next((found for bench in benches if (found := bench.damage())), "")
    outputs = {bench.name: found[0] for bench, found in zip(benches, results, strict=True)}
    return TimeReport(tuple(samples[0]), tuple(samples[1]), outputs, damage)


def _block(kernel: Kernel, bench: Bench, repeats: int, rng: np.random.Generator) -> float:
    """Poison the outputs, run `repeats` times, return the mean seconds."""
    for buffer in bench.outputs:
        buffer.poison(rng)
    function: Any = kernel.function
    arguments = bench.arguments
    started = time.perf_counter()
    for _ in range(repeats):
        function(*arguments)
    return (time.perf_counter() - started) / repeats


def _stop(samples: tuple[list[float], list[float]], spent: float, rules: timing.Rules) -> bool:
    count = len(samples[0])
    return (count == rules.glimpse or count % 10 == 0) and timing.enough(*samples, spent, rules)
