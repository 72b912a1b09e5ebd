"""PyTorch as a baseline: a program and the module it came from, timed in turn in one process.

Worker side, in a pool that allows torch; `against_torch` and `against_reference` are the calls for the parent.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.common import timing
from envs.common.evaluation import Timing
from envs.common.locks import Turns
from envs.common.settings import settings
from envs.common.workers import Outcome, OutOfMemory, Pool, Raised, Returned, TimedOut, WorkerError
from envs.leir_env.interp import Array
from envs.leir_env.ir import Program, Role
from envs.leir_env.workloads import Reference

SECONDS = 300.0
"""For loading, compiling and timing."""

MEMORY = 16 * 2**30
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Module:
    """How a worker gets a PyTorch module."""

    loader: str
    """`package.module:function`; returns the module and a tuple of example inputs."""
    arguments: tuple[Any, ...] = ()
    """Of the loader."""


class TorchBaselineError(RuntimeError):
    """The module can't be timed beside the program, or computes something else."""


def against_torch(
    program: Program,
    module: Module,
    *,
    threads: int = 1,
    compiled: bool = False,
    rules: timing.Rules | None = None,
    pool: Pool | None = None,
) -> Timing:
    """Time a verified program against the module it was imported from, on the same inputs and parameters.

    Takes the lock of the machine: don't call it with that in hand.
    With `compiled`, against `torch.compile` of it. `pool` is a `torch_pool` to reuse, for several races. Raises
    `TorchBaselineError`, also if their outputs differ.
    """
    name = f"torch{'.compile' * compiled} {importlib.metadata.version('torch')}"
    alone = Turns(settings().lock).alone()
    with contextlib.nullcontext(pool) if pool else torch_pool(threads) as workers, alone:
        outcome = workers.call(
            "envs.leir_env.torch_baseline:race",
            program,
            module,
            threads,
            compiled,
            rules or timing.Rules(),
            timeout=SECONDS,
            memory=MEMORY,
        )
    if not isinstance(outcome, Returned):
        raise TorchBaselineError(_failure(outcome))
    candidate, baseline = outcome.value
    return timing.summarise(candidate, baseline, name)


def against_reference(
    program: Program, reference: Reference | None, threads: int = 1, pool: Pool | None = None
) -> Timing | str:
    """Time a verified program against the module that its workload names, or say why there is no such figure."""
    if reference is None:
        return "no PyTorch definition is known"
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    module = Module("envs.leir_env.torch_files:instantiate", (reference,))
    try:
        return against_torch(program, module, threads=threads, pool=pool)
    except (TorchBaselineError, WorkerError) as error:
        return f"not measured: {str(error).strip().splitlines()[-1]}"


def _failure(outcome: Outcome) -> str:
    match outcome:
        case TimedOut(seconds):
            return f"it took more than {seconds:g} s"
        case OutOfMemory(limit):
            return f"it wanted more than {limit / 2**30:g} GiB"
        case Raised("TorchBaselineError" | "ImportProblem", message):
            return message
        case Raised(kind, message):
            return f"{kind}: {message}"
    return f"its process died: {outcome}"


def torch_pool(threads: int) -> Pool:
    """A worker that may import torch; torch and TVM get `threads` threads each."""
    environment = {"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    return Pool(prepare="envs.leir_env.torch_baseline:prepare", environment=environment)


def prepare() -> None:
    """Import what a race needs, in the server that workers are forked from."""
    import torch  # noqa: F401

    from envs.leir_env import from_torch, measure  # noqa: F401


def race(
    program: Program, module: Module, threads: int, compiled: bool, rules: timing.Rules
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the samples of the program and of the module, pair by pair. Worker side."""
    import torch

    from envs.common.collector import no_collection
    from envs.leir_env.build import build
    from envs.leir_env.measure import Buffer

    torch.set_num_threads(threads)
    place, _, name = module.loader.partition(":")
    network, examples = getattr(importlib.import_module(place), name)(*module.arguments)
    network = network.eval()
    values = arguments_of(program, network, examples)
    inputs = [Buffer(tensor) for tensor in program.inputs]
    outputs = [Buffer(tensor) for tensor in program.outputs]
    for buffer, value in zip(inputs, values.values(), strict=True):
        buffer.array[...] = value
    kernel = build(program)
    handed = tuple(buffer.tensor for buffer in (*inputs, *outputs))
    given = tuple(
        _to_torch(values[tensor.name], example)
        for tensor, example in zip(program.with_role(Role.INPUT), examples, strict=True)
    )
    runner = torch.compile(network) if compiled else network
    with torch.inference_mode():
        kernel(*handed)
        theirs = runner(*given)
        theirs = theirs if isinstance(theirs, tuple | list) else (theirs,)
        _compare(program, [buffer.array for buffer in outputs], [t.double().numpy() for t in theirs])
        ours = _block(lambda: kernel(*handed), rules)
        module_block = _block(lambda: runner(*given), rules)
        with no_collection():
            return timing.interleave(ours, module_block, rules, np.random.default_rng(), time.perf_counter)


def arguments_of(program: Program, network: Any, examples: tuple[Any, ...]) -> Mapping[str, Array]:
    """Return a value for each input and parameter of the program: drawn ones, and the module's own."""
    from envs.leir_env.from_torch import from_torch
    from envs.leir_env.inputs import draw

    imported = from_torch(network, examples)
    own = program.with_role(Role.PARAMETER)
    theirs = imported.program.with_role(Role.PARAMETER)
    if [tensor.shape for tensor in own] != [tensor.shape for tensor in theirs]:
        raise TorchBaselineError(f"the module has {len(theirs)} parameters, the program {len(own)} of other shapes")
    values = draw(program, "normal", 0)
    values |= {a.name: imported.parameters[b.name] for a, b in zip(own, theirs, strict=True)}
    return values


def _to_torch(value: Array, example: Any) -> Any:
    import torch

    plain = value.astype(np.float32) if value.dtype.name == "bfloat16" else value
    return torch.from_numpy(np.ascontiguousarray(plain)).reshape(example.shape).to(example.dtype)


def _compare(program: Program, ours: list[Array], theirs: list[Array]) -> None:
    """Refuse to race programs that disagree by more than two orders of summation can; NaN equals NaN."""
    from envs.leir_env.oracle import tolerance

    for tensor, mine, other in zip(program.outputs, ours, theirs, strict=True):
        other = other.reshape(tensor.shape)
        mine = mine.astype(np.float64)
        same = (mine == other) | (np.isnan(mine) & np.isnan(other))
        difference = float(np.max(np.abs(mine[~same] - other[~same]), initial=0.0))
        scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
        if not difference <= tolerance(program, tensor.dtype) * scale:
            raise TorchBaselineError(
                f"output {tensor.name}: the module's differs by {difference:.3g}, at a scale of {scale:.3g}"
            )


def _block(run: Callable[[], Any], rules: timing.Rules) -> Callable[[], float]:
    def block(repeats: int) -> float:
        started = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - started) / repeats

    repeats = timing.repetitions(min(block(1) for _ in range(3)), rules)
    return lambda: block(repeats)
