"""What a program must compute: float64 references of the root, and bounds from the root's own error.

A candidate's output may differ from the float64 reference by a multiple of the error that the root makes in
its declared precision, adding in its own order; never by a fixed loose bound. The multiple grows with what
the trace declares to have done to floating-point arithmetic. Largest and root mean square error must both
hold, over all elements, and non-finite values may stand only where the root has the same kind.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.common.evaluation import PROTOCOL, Check
from envs.leir_env.inputs import DISTRIBUTIONS, draw
from envs.leir_env.interp import Array, numpy_dtype, run
from envs.leir_env.ir import DType, Loop, Program, Role
from envs.leir_env.key import key
from envs.leir_env.strategies.base import Exactness
from envs.leir_env.tree import walk

FACTOR = {Exactness.EXACT: 4.0, Exactness.REASSOCIATES: 16.0, Exactness.APPROXIMATE: 64.0}
"""Allowed error as a multiple of the root's own. Exact strategies still see fused multiply-adds."""

FLOOR_ULPS = 4.0
"""Allowed own error where the root happens to make none: so many ulps of the largest value, and one more for
each doubling of the longest reduction."""

HEAVY_ITERATIONS = 2**28
"""Programs with more iterations are run on fewer input sets: the interpreter takes a second for each set."""

SLOW_SECONDS = 0.5
"""References that take longer are kept on disk."""

CHUNK = 2**20
"""Elements compared at once."""


class OracleError(ValueError):
    """A root program whose results can't tell a right candidate from a wrong one."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One output of the root on one input set."""

    values: Array
    """In float64 (exact for integers), in the output's shape."""
    finite: bool
    """All values are."""
    max_error: float
    """The root's own largest error against `values`, floor included."""
    rms_error: float


@dataclass(frozen=True, slots=True)
class Reference:
    """What the root computes on one input set."""

    name: str
    outputs: tuple[Expected, ...]
    """In header order."""


class Oracle:
    """The references of one root program, computed on demand, once for each input set and seed.

    `cache` is the folder that keeps slow ones.
    """

    def __init__(self, program: Program, seed: int = 0, cache: Path | None = None) -> None:
        self.program = program
        self.seed = seed
        self._cache = cache
        self._references: dict[str, Reference | None] = {}

    @property
    def sets(self) -> tuple[str, ...]:
        """The names of the input sets, heaviest evidence first; fewer where the program is heavy.

        A set on which the root overflows in its own precision is not used. Raises `OracleError` if none
        is left.
        """
        names = list(DISTRIBUTIONS)[: 3 if iterations(self.program) > HEAVY_ITERATIONS else None]
        admitted = tuple(name for name in names if self._compute(name) is not None)
        if not admitted:
            raise OracleError(f"the root overflows in its own precision on every input set: {', '.join(names)}")
        return admitted

    def reference(self, name: str) -> Reference:
        """What the root computes on the input set `name`, one of `sets`."""
        reference = self._compute(name)
        if reference is None:
            raise OracleError(f"the root overflows in its own precision on the input set {name}")
        return reference

    def judge(self, name: str, outputs: tuple[Array, ...], exactness: Exactness) -> tuple[Check, ...]:
        """Compare a candidate's outputs on one input set, in header order; one check for each.

        That they equal the root's bit for bit is not known here.
        """
        reference = self.reference(name)
        if len(outputs) != len(reference.outputs):
            return (Check(f"{name}/*", math.inf, math.inf, False),)
        checks = []
        for tensor, expected, output in zip(self.program.outputs, reference.outputs, outputs, strict=True):
            largest, rms = math.inf, math.inf
            if output.shape == tensor.shape and output.dtype == numpy_dtype(tensor.dtype):
                largest, rms = errors(output, expected.values, expected.finite)
            checks.append(
                Check(
                    f"{name}/{tensor.name}",
                    _multiple(largest, FACTOR[exactness] * expected.max_error),
                    _multiple(rms, FACTOR[exactness] * expected.rms_error),
                    bitwise=False,
                )
            )
        return tuple(checks)

    def _compute(self, name: str) -> Reference | None:
        if name not in self._references:
            path = self._cache and self._cache / f"{self._identity(name)}.npz"
            if path is not None and path.exists():
                self._references[name] = _load(path)
            else:
                started = time.perf_counter()
                self._references[name] = reference = _reference(self.program, name, self.seed)
                if path is not None and time.perf_counter() - started > SLOW_SECONDS:
                    _save(path, reference)
        return self._references[name]

    def _identity(self, name: str) -> str:
        parts = (key(self.program), name, str(self.seed), PROTOCOL, str(FLOOR_ULPS))
        return hashlib.sha256("/".join(parts).encode()).hexdigest()[:32]


def _reference(program: Program, name: str, seed: int) -> Reference | None:
    """Run the root in float64 and in its own precision; None if only the latter overflows."""
    inputs = draw(program, name, seed)
    exact = run(program, inputs, DType.F64)
    own = run(program, inputs)
    outputs = []
    for tensor in program.outputs:
        values = exact[tensor.name]
        values = values.astype(np.float64) if values.dtype.kind == "f" else values
        finite = bool(np.all(np.isfinite(values)))
        largest, rms = errors(own[tensor.name], values, finite)
        if not math.isfinite(largest):
            return None
        floor = floor_error(program, tensor.dtype)
        scale = np.abs(values[np.isfinite(values)].astype(np.float64))
        outputs.append(
            Expected(
                values,
                finite,
                max(largest, floor * float(np.max(scale, initial=0.0))),
                max(rms, floor * float(np.sqrt(np.mean(scale**2))) if scale.size else 0.0),
            )
        )
    return Reference(name, tuple(outputs))


def errors(output: Array, expected: Array, finite: bool) -> tuple[float, float]:
    """Return the largest and the root mean square difference of two arrays of one shape.

    Both are infinite where a value is not finite and the expected one is not of the same kind. `finite`
    says that all expected values are.
    """
    largest, squares = 0.0, 0.0
    for mine, wanted in _chunks(output.reshape(-1), expected.reshape(-1)):
        if mine.dtype.kind in "iub" and wanted.dtype.kind in "iub" and np.array_equal(mine, wanted):
            continue
        mine = mine.astype(np.float64)
        if not finite:
            special = ~np.isfinite(wanted)
            if not np.array_equal(mine[special], wanted[special], equal_nan=True):
                return math.inf, math.inf
            mine, wanted = mine[~special], wanted[~special]
        difference = np.abs(mine - wanted)
        most = float(np.max(difference, initial=0.0))
        if not most < math.inf:
            return math.inf, math.inf
        largest = max(largest, most)
        squares += float(np.sum(np.square(difference)))  # not np.dot: BLAS threads wait for a busy core
    return largest, math.sqrt(squares / max(output.size, 1))


def _chunks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    for start in range(0, arrays[0].size, CHUNK):
        yield tuple(array[start : start + CHUNK] for array in arrays)


def _multiple(error: float, bound: float) -> float:
    if error == 0:
        return 0.0
    return error / bound if bound > 0 else math.inf


def digest(output: Array) -> str:
    """Return the SHA-256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(output).view(np.uint8).data).hexdigest()


def floor_error(program: Program, dtype: DType) -> float:
    """The error of its own that any root is granted, relative to the largest value."""
    return (FLOOR_ULPS + math.log2(reduction_length(program))) * ulp(dtype)


def tolerance(program: Program, dtype: DType) -> float:
    """How far two orders of summation may lie apart, relative to the largest value, without any root."""
    return FACTOR[Exactness.REASSOCIATES] * floor_error(program, dtype)


def ulp(dtype: DType) -> float:
    """The relative spacing of numbers of this dtype; 0 for integers and booleans."""
    if not dtype.is_float:
        return 0.0
    return {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-23, DType.F64: 2.0**-52}[dtype]


def iterations(program: Program) -> int:
    """How often the equations of a program run, together."""
    return sum(
        math.prod(loop.extent for loop in node.loops) for node in walk(program) if not isinstance(node.statement, Loop)
    )


def reduction_length(program: Program) -> int:
    """The most terms that one element accumulates in one nest."""
    longest = 1
    for node in walk(program):
        if not isinstance(node.statement, Loop) and node.statement.assign != "=":
            target = {getattr(s, "name", None) for s in node.statement.target.subscripts}
            longest = max(longest, math.prod(loop.extent for loop in node.loops if loop.index not in target))
    return longest


# Admission: can these references tell right from wrong?


def admit(program: Program, oracle: Oracle | None = None) -> tuple[str, ...]:
    """Say why a root program is unfit to be a task, or return nothing.

    Answers that need no work (zeros, ones, the mean, a copied input, a permuted reference, the answer for
    another seed) must fail on some input set, and the output must depend on every input.
    """
    oracle = oracle or Oracle(program)
    try:
        names = oracle.sets
    except OracleError as error:
        return (str(error),)
    other = Oracle(program, oracle.seed + 1)
    reasons = []
    for position, tensor in enumerate(program.outputs):
        answers = {name: _answers(program, oracle, other, name, position) for name in names if other._compute(name)}
        for probe in sorted({probe for found in answers.values() for probe in found}):
            if all(
                _passes(oracle.reference(name).outputs[position], found[probe])
                for name, found in answers.items()
                if probe in found
            ):
                reasons.append(f"output {tensor.name}: the answer {probe!r} passes on every input set")
    return (*reasons, *_independent(program, oracle))


def _answers(program: Program, oracle: Oracle, other: Oracle, name: str, output: int) -> dict[str, Array]:
    """Answers to one output on one input set that no work went into, in the output's dtype."""
    tensor = program.outputs[output]
    expected = oracle.reference(name).outputs[output].values
    known = expected[np.isfinite(expected)]
    answers: dict[str, Any] = {
        "zeros": np.zeros(tensor.shape),
        "ones": np.ones(tensor.shape),
        "another seed": other.reference(name).outputs[output].values,
    }
    if tensor.size > 1:  # the mean of a single element is that element
        answers["mean"] = np.full(tensor.shape, known.mean() if known.size else 0.0)
        answers["permuted"] = np.roll(expected.reshape(-1), 1).reshape(tensor.shape)
    inputs = draw(program, name, oracle.seed)
    for source in program.inputs:
        if source.shape == tensor.shape:
            answers[f"input {source.name}"] = inputs[source.name]
    with np.errstate(all="ignore"):
        return {probe: np.asarray(a).astype(numpy_dtype(tensor.dtype)) for probe, a in answers.items()}


def _passes(expected: Expected, output: Array) -> bool:
    largest, rms = errors(output, expected.values, expected.finite)
    factor = FACTOR[Exactness.REASSOCIATES]
    return _multiple(largest, factor * expected.max_error) <= 1 and _multiple(rms, factor * expected.rms_error) <= 1


def _independent(program: Program, oracle: Oracle) -> Iterator[str]:
    """Name the inputs on which no output depends, beyond the tolerance."""
    for source in program.inputs:
        if not any(_depends(program, oracle, name, source.name) for name in oracle.sets):
            yield f"no output depends on {source.role} {source.name}"


def _depends(program: Program, oracle: Oracle, name: str, source: str) -> bool:
    inputs = draw(program, name, oracle.seed)
    changed = run(program, {**inputs, source: draw(program, name, oracle.seed + 1)[source]}, DType.F64)
    return any(
        not _passes(expected, changed[tensor.name])
        for tensor, expected in zip(program.outputs, oracle.reference(name).outputs, strict=True)
    )


def interface_problem(program: Program, root: Program) -> str:
    """Say where inputs and outputs of `program` differ from the root's, in order and type, or nothing."""
    for role in (Role.INPUT, Role.PARAMETER, Role.OUTPUT):
        mine, wanted = program.with_role(role), root.with_role(role)
        if len(mine) != len(wanted):
            return f"the program has {len(mine)} {role}s, the root {len(wanted)}"
        for a, b in zip(mine, wanted, strict=True):
            if (a.dtype, a.shape) != (b.dtype, b.shape):
                return (
                    f"{role} {a.name} is {a.dtype}[{_extents(a.shape)}], and {b.dtype}[{_extents(b.shape)}] in the root"
                )
    return ""


def _extents(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def _save(path: Path, reference: Reference | None) -> None:
    """Write a reference whole: to a temporary file, then by renaming it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    outputs = reference.outputs if reference else ()
    bounds = [(o.finite, o.max_error, o.rms_error) for o in outputs]
    head = json.dumps({"name": reference and reference.name, "bounds": bounds})
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        arrays: dict[str, Any] = {f"o{n}": o.values for n, o in enumerate(outputs)}
        np.savez(file, head=np.array(head), **arrays)
    os.replace(file.name, path)


def _load(path: Path) -> Reference | None:
    with np.load(path) as data:
        head = json.loads(str(data["head"]))
        if head["name"] is None:
            return None
        return Reference(
            head["name"],
            tuple(Expected(data[f"o{n}"], *bounds) for n, bounds in enumerate(head["bounds"])),
        )
