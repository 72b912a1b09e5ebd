"""How often each strategy applies to the shipped workloads, and whether what it makes is right when built and run.

Programs that are not heavy are taken in every float dtype. For each program and strategy some of the offered
actions, drawn at random, are applied; what comes out is built, run on the oracle's input sets and compared with
the float64 reference. What only a GPU could run is compared under the interpreter. Timing is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from envs.common.actions import STOP, Action
from envs.common.evaluation import Status
from envs.leir_env import strategies
from envs.leir_env.evaluate import Evaluator
from envs.leir_env.generate import random_inputs
from envs.leir_env.harness import Limits
from envs.leir_env.ir import Block, Cast, DType, Equation, Expr, Loop, Program, Statement, children, with_children
from envs.leir_env.oracle import OracleError, iterations
from envs.leir_env.strategies import REGISTRY, Exactness, Outcome
from envs.leir_env.walks import fault
from envs.leir_env.workloads import load, names

DTYPES = (DType.F32, DType.F64, DType.F16)

LIGHT_ITERATIONS = 2**25
"""A heavier program is verified in its own dtype only: the interpreter emulates f16."""

HEAVY_ITERATIONS = 2**27
"""From here on a program is not run at all: a smaller one of its family is."""

INTERPRETED_ITERATIONS = 2**22
"""What only a GPU could run is interpreted, if it is light."""

SAMPLES = 2
"""Actions tried for each program and strategy."""


@dataclass(slots=True)
class Row:
    """What is known of one strategy."""

    applies: set[str] = field(default_factory=set)
    """Workloads on whose root it is offered."""
    verified: Counter[str] = field(default_factory=Counter)
    """Programs that passed the oracle, by dtype."""
    wrong: list[str] = field(default_factory=list)
    """Workload, dtype, action and verdict of the others."""
    refused: Counter[str] = field(default_factory=Counter)
    """Candidates that were refused, by code."""


def retyped(program: Program, dtype: DType) -> Program:
    """The same program with every float tensor, and every cast to a float, in `dtype`."""

    def expression(expr: Expr) -> Expr:
        parts = tuple(map(expression, children(expr)))
        new = with_children(expr, parts) if parts else expr
        return replace(new, dtype=dtype) if isinstance(new, Cast) and new.dtype.is_float else new

    def block(old: Block) -> Block:
        tensors = tuple(replace(t, dtype=dtype) if t.dtype.is_float else t for t in old.tensors)
        return Block(tuple(map(statement, old.body)), tensors)

    def statement(old: Statement) -> Statement:
        if isinstance(old, Loop):
            return replace(old, block=block(old.block))
        return Equation(old.target, old.assign, expression(old.value), tuple(map(expression, old.guard)))

    return Program(block(program.block))


def census(
    suites: Sequence[str], seed: int = 0, report: Callable[[int, str], None] = lambda done, line: None
) -> dict[str, Row]:
    """Examine the workloads of `suites`; `report` is told how many are done."""
    rows = {name: Row() for name in REGISTRY}
    done = 0
    for workload in (load(name) for suite in suites for name in names(suite)):
        own = next(tensor.dtype for tensor in workload.program.tensors if tensor.dtype.is_float)
        _offers(workload.name, workload.program, rows)
        for dtype in DTYPES:
            work = iterations(workload.program)
            if work <= LIGHT_ITERATIONS or (dtype is own and work < HEAVY_ITERATIONS):
                _examine(workload.name, retyped(workload.program, dtype), dtype, rows, seed)
            done += 1
            report(done, f"{workload.name} {dtype}")
    return rows


def _offers(workload: str, program: Program, rows: dict[str, Row]) -> None:
    """Count what applies and what is refused."""
    for name, strategy in REGISTRY.items():
        for sites, args in strategy.candidates(program):
            refusal = strategies.refusal(program, Action(name, sites, args), strategy.targets[0], approximate=True)
            if refusal is None:
                rows[name].applies.add(workload)
            else:
                rows[name].refused[refusal.code] += 1


def _examine(name: str, program: Program, dtype: DType, rows: dict[str, Row], seed: int) -> None:
    """Build and check some of what each strategy offers on one program."""
    chosen = list(_samples(program, np.random.default_rng(seed)))
    outcomes = [strategies.apply(program, action) for action in chosen]
    runnable = [n for n, action in enumerate(chosen) if "llvm" in REGISTRY[action.name].targets]
    for n in set(range(len(chosen))) - set(runnable):
        _interpret(name, program, dtype, chosen[n], outcomes[n], rows)
    evaluator = Evaluator(program)
    limits = Limits(seconds=120.0)
    for exactness in Exactness:
        batch = [n for n in runnable if outcomes[n].exactness is exactness]
        try:
            checked = evaluator.harness.check([outcomes[n].program for n in batch], exactness, evaluator.oracle, limits)
            for position, verdict, _ in checked:
                action = chosen[batch[position]]
                if verdict.status is Status.OK:
                    rows[action.name].verified[str(dtype)] += 1
                else:
                    rows[action.name].wrong.append(f"{name} {dtype} {action}: {verdict.status}: {verdict.detail}")
        except OracleError:  # In this dtype the root itself overflows: there is nothing to compare with.
            return


def _interpret(
    name: str, program: Program, dtype: DType, action: Action, outcome: Outcome, rows: dict[str, Row]
) -> None:
    """Compare, under the interpreter, what only a GPU could run."""
    if iterations(program) > INTERPRETED_ITERATIONS:
        return
    problem = fault(program, outcome, random_inputs(program, np.random.default_rng(0)), "cuda")
    if problem:
        rows[action.name].wrong.append(f"{name} {dtype} {action}: {problem}")
    else:
        rows[action.name].verified[str(dtype)] += 1


def _samples(program: Program, rng: np.random.Generator) -> Iterator[Action]:
    offered: dict[str, list[Action]] = {}
    for target in ("llvm", "cuda"):
        for action in strategies.legal(program, target, True):
            if action != STOP and REGISTRY[action.name].targets[0] == target:
                offered.setdefault(action.name, []).append(action)
    for actions in offered.values():
        for n in rng.permutation(len(actions))[:SAMPLES]:
            yield actions[n]
