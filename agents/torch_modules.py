"""PyTorch modules that programs come from: loading them, and racing against them."""

from __future__ import annotations

import importlib
import importlib.util
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envs.common import timing
from envs.common.evaluation import Timing
from envs.common.workers import Pool, Returned
from envs.leir_env.inputs import draw
from envs.leir_env.ir import DType, Program, Role
from envs.leir_env.workloads import Reference

RACE_RULES = timing.Rules(pairs=20, most=200, width=0.01, seconds=2.0)
RACE_SECONDS = 120.0
RACE_MEMORY = 8 * 2**30

_FILE = re.compile(r".+\.py:[A-Za-z_]\w*")
_INPUT = re.compile(r"[\s,]*([a-z0-9]+)\[([0-9]+(?:\s*,\s*[0-9]+)*)?\][\s,]*")


class ModuleError(ValueError):
    """A module that can't be loaded, or inputs that can't be read; the message names what and why."""


def is_file(what: str) -> bool:
    """Whether `what` has the form `file.py:Class`."""
    return _FILE.fullmatch(what) is not None


def parse_inputs(text: str) -> tuple[tuple[DType, tuple[int, ...]], ...]:
    """Read `f32[8,64] i64[8]`. Raises `ModuleError` saying what was expected."""
    found = []
    position = 0
    while position < len(text):
        match = _INPUT.match(text, position)
        if match is None:
            raise ModuleError(f"inputs are written as f32[8,64] i64[8]; got {text[position:][:40]!r}")
        name, extents = match.groups()
        if name not in set(DType):
            raise ModuleError(f"a dtype is one of {', '.join(DType)}, not {name}")
        found.append((DType(name), tuple(int(extent) for extent in (extents or "").split(",") if extent)))
        position = match.end()
    return tuple(found)


def load(reference: Reference) -> tuple[Any, tuple[Any, ...]]:
    """Return the module in evaluation mode, and example inputs. Raises `ModuleError`.

    The target is `package.module:Class` or `file.py:Class`. Constructor arguments and inputs that the
    reference does not name come from the file's `get_init_inputs()` and `get_inputs()` (the convention of
    KernelBench); inputs that it names are drawn at random.
    """
    import torch

    shapes = parse_inputs(reference.inputs)
    torch.manual_seed(0)
    try:
        source, name = _source(reference.target)
        if not hasattr(source, name):
            raise ModuleError(f"{source.__file__} defines no {name}")
        positional: Sequence[Any] = ()
        if not reference.arguments and hasattr(source, "get_init_inputs"):
            positional = source.get_init_inputs()
        module = getattr(source, name)(*positional, **dict(reference.arguments)).eval()
        examples = () if shapes else tuple(getattr(source, "get_inputs", tuple)())
    except ModuleError:
        raise
    except Exception as error:  # The user's own code may raise anything.
        raise ModuleError(f"{reference.target}: {type(error).__name__}: {str(error)[:300]}") from error
    if not shapes and not examples:
        raise ModuleError(f"{source.__file__} has no get_inputs(); give --inputs, as in --inputs 'f32[8,64]'")
    return module, examples or tuple(_sample(dtype, shape) for dtype, shape in shapes)


def _source(target: str) -> tuple[Any, str]:
    """The Python module that defines the class, and the name of the class."""
    place, _, name = target.rpartition(":")
    if not is_file(target):
        return importlib.import_module(place), name
    if not Path(place).is_file():
        raise ModuleError(f"there is no file {place}")
    return _execute(Path(place)), name


def _execute(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    return source


def _sample(dtype: DType, shape: tuple[int, ...]) -> Any:
    import torch

    kinds = {
        DType.F16: torch.float16,
        DType.BF16: torch.bfloat16,
        DType.F32: torch.float32,
        DType.F64: torch.float64,
        DType.I8: torch.int8,
        DType.I32: torch.int32,
        DType.I64: torch.int64,
        DType.BOOL: torch.bool,
    }
    kind = kinds[dtype]
    return torch.randn(shape).to(kind) if kind.is_floating_point else torch.randint(0, 2, shape).to(kind)


def race(program: Program, reference: Reference, threads: int) -> Timing | str:
    """Time a verified program against the module it came from, interleaved, in a process of its own.

    Returns why there is no figure where there is none.
    """
    pool = Pool(prepare="torch", environment={"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)})
    try:
        outcome = pool.call(
            f"{__name__}:run_race", program, reference, threads, timeout=RACE_SECONDS, memory=RACE_MEMORY
        )
    finally:
        pool.close()
    return outcome.value if isinstance(outcome, Returned) else f"not measured: {outcome}"


def run_race(program: Program, reference: Reference, threads: int) -> Timing:
    """Worker side of `race`."""
    import torch

    from envs.leir_env.build import build, empty, tensor

    torch.set_num_threads(threads)
    module, examples = load(reference)
    values = draw(program, "normal", 0)
    given = [t for t in program.inputs if t.role is Role.INPUT]
    if len(given) == len(examples):
        examples = tuple(
            torch.from_numpy(np.ascontiguousarray(values[t.name])).reshape(e.shape).to(e.dtype)
            for t, e in zip(given, examples, strict=True)
        )
    kernel = build(program)
    arguments = [tensor(values[t.name], t) for t in program.inputs] + [empty(t) for t in program.outputs]
    with torch.inference_mode():
        ours, theirs = _interleaved(lambda: kernel(*arguments), lambda: module(*examples))
    plural = "" if threads == 1 else "s"
    return timing.summarise(ours, theirs, f"torch {torch.__version__} eager, {threads} thread{plural}")


def _interleaved(ours: Any, theirs: Any) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(0)
    blocks = [(run, timing.repetitions(min(_seconds(run, 1) for _ in range(3)), RACE_RULES)) for run in (ours, theirs)]
    samples: tuple[list[float], list[float]] = ([], [])
    started = time.perf_counter()
    while not samples[0] or not timing.enough(*samples, time.perf_counter() - started, RACE_RULES):
        for which in (0, 1) if timing.order(1, rng)[0] else (1, 0):
            samples[which].append(_seconds(*blocks[which]))
    return samples


def _seconds(run: Any, repetitions: int) -> float:
    started = time.perf_counter()
    for _ in range(repetitions):
        run()
    return (time.perf_counter() - started) / repetitions
