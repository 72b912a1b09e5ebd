"""TVM's own tuner, MetaSchedule, as something to compare with: the same root program, the same number of trials.

The root is handed over in schedulable form, one SBlock for each equation. Builder and runner work in this process,
which is meant to be a worker of its own; the kernel that wins is timed against ours, interleaved.
After Shao et al., "Tensor Program Optimization with Probabilistic Programs", NeurIPS 2022.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from envs.common import timing
from envs.common.evaluation import Timing
from envs.leir_env.build import PASSES, build, host_target
from envs.leir_env.inputs import draw
from envs.leir_env.interp import run
from envs.leir_env.ir import DType, Program
from envs.leir_env.lower_ops import NAMES
from envs.leir_env.schedulable import schedulable

NAME = "MetaSchedule"


def tune(program: Program, trials: int, threads: int = 1, seed: int = 0, strategy: str = "evolutionary") -> Any:
    """Tune the root for `trials` measured candidates; return TVM's best module, scheduled but not built.

    The learned cost model is used where xgboost is installed, else a random one. `strategy` is one of TVM's.
    """
    logging.disable(logging.INFO)
    target = tvm.target.Target({**_host(), "num-cores": threads})
    module = tvm.IRModule({"main": schedulable(program)})
    with tempfile.TemporaryDirectory() as folder:
        database = ms.tune_tir(
            module,
            target,
            work_dir=folder,
            max_trials_global=trials,
            num_trials_per_iter=min(trials, 16),
            builder=_Builder(folder),
            runner=_Runner(program),
            database="memory",
            cost_model=_cost_model(),
            strategy=strategy,
            num_tuning_cores=1,
            seed=seed + 1,
        )
        record = database.query(module, target, kind="record")
    if record is None:
        raise RuntimeError(f"none of {trials} candidates of MetaSchedule could be built and run")
    schedule = s_tir.Schedule(module)
    record.trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule.mod


def race(program: Program, winner: Program, trials: int, threads: int, seed: int, rules: timing.Rules) -> Timing | str:
    """Worker side: tune `program`, and time `winner` against what comes out, interleaved.

    The tuned kernel must be right; if not, the sentence says so.
    """
    tuned = _tuned(program, trials, threads, seed)
    values = draw(program, "normal", seed)
    inputs = [tvm.runtime.tensor(np.ascontiguousarray(values[tensor.name])) for tensor in program.inputs]
    outputs = [tvm.runtime.tensor(np.zeros(t.shape, NAMES[t.dtype])) for t in program.outputs]
    tuned(*inputs, *outputs)
    for tensor, output in zip(program.outputs, outputs, strict=True):
        expected = run(program, values, DType.F64)[tensor.name]
        error = float(np.max(np.abs(output.numpy() - expected), initial=0.0))
        if not error <= 1e-3 * max(1.0, float(np.max(np.abs(expected), initial=0.0))):
            return f"what MetaSchedule made is wrong: output {tensor.name} is off by {error:.3g}"
    kernel = build(winner).function
    arguments = (*inputs, *outputs)

    def block(function: Any) -> float:
        function(*arguments)
        started = time.perf_counter()
        function(*arguments)
        repeats = timing.repetitions(time.perf_counter() - started, rules)
        started = time.perf_counter()
        for _ in range(repeats):
            function(*arguments)
        return (time.perf_counter() - started) / repeats

    samples = timing.interleave(
        lambda: block(kernel), lambda: block(tuned), rules, np.random.default_rng(seed), time.perf_counter
    )
    return timing.summarise(*samples, NAME)


@functools.lru_cache(maxsize=8)
def _tuned(program: Program, trials: int, threads: int, seed: int) -> Any:
    """The tuned kernel; a worker tunes a program once."""
    return compiled(tune(program, trials, threads, seed))


def compiled(module: Any) -> Any:
    """Build a scheduled module with our passes; return its function."""
    with tvm.transform.PassContext(config=PASSES):
        return tvm.compile(_runnable(module), target=host_target()).mod["main"]


def _host() -> dict[str, Any]:
    return {str(key): value for key, value in host_target().export().items() if key in ("kind", "mcpu", "opt-level")}


def _cost_model() -> Any:
    return "xgb" if importlib.util.find_spec("xgboost") else "random"


def _runnable(module: Any) -> Any:
    return s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)


@derived_object
class _Builder(ms.builder.PyBuilder):  # type: ignore[misc]
    """Builds candidates one after another, in this process."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.count = 0

    def build(self, inputs: list[Any]) -> list[Any]:
        return [self._one(each) for each in inputs]

    def _one(self, given: Any) -> Any:
        self.count += 1
        own = self.folder / str(self.count)  # A callback deletes the artifact's folder.
        own.mkdir()
        path = own / "kernel.so"
        try:
            with tvm.transform.PassContext(config=PASSES):
                tvm.compile(_runnable(given.mod), target=given.target).export_library(str(path))
        except Exception as error:  # noqa: BLE001 - a candidate of the tuner's that does not build
            return ms.builder.BuilderResult(None, str(error)[:200])
        return ms.builder.BuilderResult(str(path), None)


@derived_object
class _Future(ms.runner.PyRunnerFuture):  # type: ignore[misc]
    """A result that is there already."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self._result


@derived_object
class _Runner(ms.runner.PyRunner):  # type: ignore[misc]
    """Times candidates one after another, in this process."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        values = draw(program, "normal", 0)
        self.arguments = [tvm.runtime.tensor(np.ascontiguousarray(values[tensor.name])) for tensor in program.inputs]
        self.arguments += [tvm.runtime.tensor(np.zeros(t.shape, NAMES[t.dtype])) for t in program.outputs]

    def run(self, inputs: list[Any]) -> list[Any]:
        return [_Future(self._one(each.artifact_path)) for each in inputs]

    def _one(self, path: str) -> Any:
        try:
            kernel = tvm.runtime.load_module(path)
            timed = kernel.time_evaluator("main", tvm.cpu(0), number=1, repeat=5, min_repeat_ms=5)(*self.arguments)
        except Exception as error:  # noqa: BLE001 - a candidate of the tuner's that does not run
            return ms.runner.RunnerResult(None, str(error)[:200])
        return ms.runner.RunnerResult(list(timed.results), None)
