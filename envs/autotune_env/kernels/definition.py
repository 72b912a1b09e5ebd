"""What a tunable kernel is: its source, what may be tuned, its arguments, and what it should compute.

A kernel is a value. Tunable parameters and constants become macros before its source; its arguments are arrays, the
output first. Where sums are exact in every order, because the inputs are small multiples of a power of two, the
output must agree with NumPy in every bit; the tolerance of the others is stated.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from envs.autotune_env.domain import Domain, Parameter, SpaceError
from envs.autotune_env.restrictions import enumerate_configurations, parse

Array = npt.NDArray[Any]
Configuration = Mapping[str, int]
"""A value of each tunable parameter and of each constant."""

Answer = Callable[[Mapping[str, Array], Configuration], Array]

SUFFIXES = {"cuda": ".cu", "opencl": ".cu", "c": ".c"}
"""The backends, and how their sources are called."""

PRELUDES = {"cuda": "cuda.h", "opencl": "opencl.h"}
"""What stands before a source that is shared: the words that differ."""

MAX_THREADS = 1024
"""In a block, on every GPU since 2010."""

MAX_SHARED = 48 * 1024
"""Bytes of shared memory that a block has without asking for more."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a GPU kernel is launched; each pair is x, y."""

    extent: tuple[str, str]
    """The constants that say how much there is to do."""
    threads: tuple[str, str]
    """The parameters that say how many threads a block has."""
    divisors: tuple[tuple[str, ...], tuple[str, ...]]
    """The parameters whose product is how much of it a block does."""

    def block(self, configuration: Configuration) -> tuple[int, int]:
        """Threads in a block."""
        x, y = (configuration[name] for name in self.threads)
        return x, y

    def grid(self, configuration: Configuration) -> tuple[int, int]:
        """Blocks in the grid: enough to cover the extent."""
        x, y = (
            -(-configuration[extent] // math.prod(configuration[name] for name in divisors))
            for extent, divisors in zip(self.extent, self.divisors, strict=True)
        )
        return x, y


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A tunable kernel. Raises `SpaceError` when made with restrictions that nothing satisfies."""

    application: str
    """Also the name of its function, and of its source without the suffix."""
    backend: str
    """One of `SUFFIXES`."""
    values: Mapping[str, tuple[int, ...]]
    """What each tunable parameter may be."""
    constants: Mapping[str, int]
    """The size of the problem, and whatever else is fixed."""
    restrictions: tuple[str, ...]
    inputs: Callable[[Configuration], dict[str, Array]]
    """The arguments that are read, in the order of the function, from the constants."""
    shape: tuple[str, str]
    """The constants that are the shape of the output, an array of float32."""
    answer: Answer
    """What the output should be, from the inputs and a configuration."""
    answer_depends: tuple[str, ...] = ()
    """The parameters that the answer depends on."""
    tolerance: float = 0.0
    """The largest error allowed, as a share of the largest magnitude of the answer. 0: equal in every element."""
    geometry: Geometry | None = None
    """Of a GPU kernel."""
    constant_memory: str | None = None
    """The input that a GPU kernel has in constant memory, under its own name; in OpenCL, as its last argument."""
    work: Callable[[Configuration], float] | None = None
    """Floating-point operations of a run, where a run of one configuration does more than that of another."""
    folder: Path = Path(__file__).parent
    """Where the source is."""

    @property
    def objective(self) -> str:
        """What is tuned: the time of a run, or the rate of its work."""
        return "time" if self.work is None else "GFLOP/s"

    @property
    def name(self) -> str:
        """`application/backend`."""
        return f"{self.application}/{self.backend}"

    @property
    def source(self) -> str:
        """The text of the source file, and what its backend has before it."""
        text = (self.folder / f"{self.application}{SUFFIXES[self.backend]}").read_text(encoding="utf-8")
        prelude = PRELUDES.get(self.backend)
        before = (Path(__file__).parent / prelude).read_text(encoding="utf-8") if prelude else ""
        return f"{before}#line 1\n{text}" if before else text

    def text(self, configuration: Configuration) -> str:
        """What the compiler gets for a configuration."""
        macros = "".join(f"#define {name} {value}\n" for name, value in configuration.items())
        return f"{macros}#line 1\n{self.source}"

    def domain(self) -> Domain:
        """Everything that may be tried."""
        configurations = enumerate_configurations(self.values, self.constants, [parse(r) for r in self.restrictions])
        if not len(configurations):
            raise SpaceError(f"{self.name}: no configuration satisfies the restrictions")
        parameters = tuple(Parameter(name, values) for name, values in self.values.items())
        return Domain(parameters, configurations, dict(self.constants), (), self.restrictions)

    def sized(self, **constants: int) -> Kernel:
        """The same with other constants. Raises `SpaceError` for a name that is none."""
        strange = sorted(set(constants) - set(self.constants))
        if strange:
            raise SpaceError(f"{self.name} has no constant {strange[0]}; it has {', '.join(self.constants)}")
        return dataclasses.replace(self, constants={**self.constants, **constants})

    def output(self) -> npt.NDArray[np.float32]:
        """A fresh output array, poisoned with NaN."""
        rows, columns = (self.constants[name] for name in self.shape)
        return np.full((rows, columns), np.nan, np.float32)

    def on(self, backend: str, **constants: int) -> Kernel:
        """The same source for another backend that shares it, at another size."""
        return dataclasses.replace(self.sized(**constants), backend=backend)

    def passed(self, arrays: Mapping[str, Array]) -> list[Array]:
        """The arguments that a kernel gets after its output, from `inputs`."""
        constant = self.constant_memory
        first = [array for name, array in arrays.items() if name != constant]
        return [*first, arrays[constant]] if constant and self.backend == "opencl" else first

    def objective_of(self, milliseconds: float, configuration: Configuration) -> float:
        """The objective of a run that takes so long."""
        return milliseconds if self.work is None else self.work(configuration) / milliseconds * 1e-6


def bound(answer: Array, tolerance: float) -> float:
    """The largest absolute error that an output may have."""
    return tolerance * float(np.abs(answer).max())


def mistakes(output: Array, answer: Array, tolerance: float) -> int:
    """How many elements of an output are wrong; what is not a number is."""
    with np.errstate(invalid="ignore"):
        return int(np.count_nonzero(~(np.abs(output - answer) <= bound(answer, tolerance))))


def exact(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    """Random multiples of 1/32 in [-31/32, 31/32].

    Single precision sums 2**14 products of two of them exactly, in any order: the sum is a multiple of 2**-10 below
    2**14, which 24 bits hold.
    """
    return (rng.integers(-31, 32, shape) / 32).astype(np.float32)
