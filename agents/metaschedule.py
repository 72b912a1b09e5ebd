"""TVM's own tuner, MetaSchedule, as something to compare with: the same root program, the same number of trials.

The root is handed over in schedulable form, one SBlock for each equation. Builder and runner work in this process,
which is meant to be a worker of its own; the kernel that wins is timed against ours, interleaved.
After Shao et al., "Tensor Program Optimization with Probabilistic Programs", NeurIPS 2022.
"""

from __future__ import annotations

import functools
import logging
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from envs.common import timing
from envs.common.evaluation import Timing
from envs.leir_env.build import PASSES, build, host_target
from envs.leir_env.inputs import draw
from envs.leir_env.interp import run
from envs.leir_env.ir import Assign, Const, DType, Equation, Kind, Loop, Program, identity
from envs.leir_env.lower_expr import Environment, accumulated, cast, element, subscripts, value
from envs.leir_env.lower_ops import NAMES
from envs.leir_env.tree import declarations, indices

NAME = "MetaSchedule"
_PLAIN = "plain"
"""A target without the rewritings that suit our lowering for a CPU."""


def schedulable(program: Program) -> tirx.PrimFunc:
    """The program as a function of SBlocks. Raises ValueError where it is no chain of perfect serial nests."""
    tensors = {name: tensor for name, (tensor, _) in declarations(program).items()}
    buffers = {name: tirx.decl_buffer(t.shape, NAMES[t.dtype], name) for name, t in tensors.items()}
    body = [_nest(statement, tensors, buffers, number) for number, statement in enumerate(program.body)]
    private = [buffers[name] for name in tensors if name not in _interface(program)]
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(body) if len(body) > 1 else body[0], alloc_buffers=private)
    function = tirx.PrimFunc([buffers[name] for name in _interface(program)], s_tir.SBlockRealize([], True, root))
    return function.with_attr({"global_symbol": "main", "s_tir": True, "tirx.noalias": True})


def _interface(program: Program) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in (*program.inputs, *program.outputs))


def _nest(statement: Any, tensors: Mapping[str, Any], buffers: Mapping[str, tirx.Var], number: int) -> tirx.Stmt:
    loops: list[Loop] = []
    while isinstance(statement, Loop):
        if len(statement.block.body) != 1 or statement.block.tensors or statement.kind is not Kind.SERIAL:
            raise ValueError(f"loop {statement.index} is not part of a perfect serial nest")
        loops.append(statement)
        (statement,) = statement.block.body
    assert isinstance(statement, Equation)
    outer = {loop.index: tirx.Var(loop.index, "int32") for loop in loops}
    spatial = frozenset().union(*map(indices, statement.target.subscripts))
    kinds = [tirx.IterVar.DataPar if loop.index in spatial else tirx.IterVar.CommReduce for loop in loops]
    variables = [
        tirx.IterVar(tvm.ir.Range(0, loop.extent), tirx.Var(f"v{loop.index}", "int32"), kind)
        for loop, kind in zip(loops, kinds, strict=True)
    ]
    inner = {loop.index: variable.var for loop, variable in zip(loops, variables, strict=True)}
    env = Environment(_PLAIN, tensors, buffers, inner, {loop.index: loop.extent for loop in loops})
    block = _block(statement, env, variables, f"block{number}")
    realised: tirx.Stmt = s_tir.SBlockRealize([outer[loop.index] for loop in loops], True, block)
    for loop in reversed(loops):
        realised = tirx.For(outer[loop.index], 0, loop.extent, tirx.ForKind.SERIAL, realised)
    return realised


def _block(equation: Equation, env: Environment, variables: list[tirx.IterVar], name: str) -> s_tir.SBlock:
    dtype: DType = env.tensors[equation.target.tensor].dtype
    where = subscripts(equation.target, env)
    target = env.buffers[equation.target.tensor]
    result = value(equation.value, dtype, env)
    init = None
    if equation.assign is not Assign.SET:
        result = accumulated(equation, element(equation.target, env), result, dtype, env.target)
        start = value(Const(identity(equation.assign, dtype)), dtype, env)
        init = tirx.BufferStore(target, cast(start, dtype), where)
    if equation.guard:
        raise ValueError("a guarded equation has no schedulable form here")
    store = tirx.BufferStore(target, cast(result, dtype), where)
    bare = s_tir.SBlock(variables, [], [], name, store, init)
    reads, writes, *_ = s_tir.analysis.get_sblock_access_region(
        bare, {buffer: buffer for buffer in env.buffers.values()}
    )
    return s_tir.SBlock(variables, reads, writes, name, store, init)


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
    try:
        import xgboost  # noqa: F401
    except ImportError:
        return "random"
    return "xgb"


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
