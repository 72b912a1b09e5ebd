"""Random walks of legal actions, every step of which must keep what the program computes.

A walk starts at a generated program or at a pattern of random size. After each action the program must verify,
survive its text, and equal the one before under the interpreter: bit for bit where the action is exact, otherwise
in float64 (where fast functions are the exact ones). The last program of a walk for a CPU is built and run.
Walks are numbered: the same number gives the same walk, so that a log says what is left to do and what to look at.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from envs.common.actions import STOP, Action
from envs.common.workers import Pool, Returned
from envs.leir_env import strategies
from envs.leir_env.fuzz import MEMORY, SECONDS, agree
from envs.leir_env.generate import random_inputs, random_program
from envs.leir_env.interp import Array, run
from envs.leir_env.ir import DType, Program
from envs.leir_env.key import key
from envs.leir_env.parser import parse
from envs.leir_env.patterns import PATTERNS
from envs.leir_env.printer import show
from envs.leir_env.strategies import Exactness, Outcome
from envs.leir_env.verify import verify

LENGTH = 8
"""Actions of a walk, at most."""

CLOSE = 1e-10
"""Relative and absolute difference in float64 that another order of operations may make."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What became of one walk."""

    number: int
    actions: tuple[str, ...]
    failure: str = ""
    """What is wrong, with the programs; empty if nothing."""


@dataclass(slots=True)
class Tally:
    """What became of many."""

    walks: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    """By strategy."""
    failures: list[Walk] = field(default_factory=list)

    def add(self, walk: Walk) -> None:
        self.walks += 1
        self.actions.update(action.partition("(")[0] for action in walk.actions)
        if walk.failure:
            self.failures.append(walk)


def start(number: int, rng: np.random.Generator) -> Program:
    """The program that a walk starts at: generated, or every second time a pattern of random size."""
    if number % 2:
        return random_program(rng)
    names = tuple(PATTERNS)
    return parse(PATTERNS[names[number // 2 % len(names)]].draw(rng))


def target(number: int) -> str:
    """Every eighth walk is one for a GPU, on which loops can be bound."""
    return "cuda" if number % 8 == 7 else "llvm"


def walk(number: int, seed: int = 0) -> Iterator[tuple[Program, Action, Outcome]]:
    """Yield program, action and outcome step by step; every strategy on offer is as likely as another."""
    rng = np.random.default_rng((seed, number))
    program = start(number, rng)
    for _ in range(LENGTH):
        offered = [action for action in strategies.legal(program, target(number), True) if action != STOP]
        if not offered:
            return
        names = sorted({action.name for action in offered})
        name = names[int(rng.integers(len(names)))]
        actions = [action for action in offered if action.name == name]
        action = actions[int(rng.integers(len(actions)))]
        outcome = strategies.apply(program, action)
        yield program, action, outcome
        program = outcome.program


def fault(before: Program, outcome: Outcome, inputs: dict[str, Array], target: str = "llvm") -> str:
    """Say what is wrong with the program that an action made, or nothing."""
    after = outcome.program
    problems = verify(after, target)
    if problems:
        return str(problems[0])
    if parse(show(after)) != after:
        return "its text reads as another program"
    if key(after) == key(before):
        return "it is the same program"
    if outcome.exactness is Exactness.EXACT:
        return _difference(run(before, inputs), run(after, inputs), 0.0)
    return _difference(run(before, inputs, DType.F64), run(after, inputs, DType.F64), CLOSE)


def _difference(expected: dict[str, Array], found: dict[str, Array], tolerance: float) -> str:
    for name, values in expected.items():
        same = (
            values.tobytes() == found[name].tobytes()
            if not tolerance
            else np.allclose(values, found[name], rtol=tolerance, atol=tolerance, equal_nan=True)
        )
        if not same:
            return f"output {name} differs"
    return ""


def check(number: int, seed: int, pool: Pool) -> Walk:
    """Take one walk and check every step."""
    taken: list[str] = []
    inputs: dict[str, Array] = {}
    program: Program | None = None
    try:
        for before, action, outcome in walk(number, seed):
            inputs = inputs or random_inputs(before, np.random.default_rng((seed, number)))
            taken.append(str(action))
            problem = fault(before, outcome, inputs, target(number))
            program = outcome.program
            if problem:
                return Walk(number, tuple(taken), f"{problem}:\n{show(before)}{action}\n{show(program)}")
    except Exception as error:  # noqa: BLE001 - what is looked for: any exception is a bug
        where = f"after\n{show(program)}" if program else "at its start"
        return Walk(number, tuple(taken), f"{error!r} {where}")
    runs = program is not None and target(number) == "llvm"
    return Walk(number, tuple(taken), _built(program, inputs, pool) if program and runs else "")


def _built(program: Program, inputs: dict[str, Array], pool: Pool) -> str:
    outcome = pool.call("envs.leir_env.fuzz:built", program, inputs, timeout=SECONDS, memory=MEMORY)
    if not isinstance(outcome, Returned):
        return f"{outcome} when built:\n{show(program)}"
    return "" if agree(program, inputs, outcome.value) else f"built, it differs from the interpreter:\n{show(program)}"


def walks(
    count: int, seed: int, log: Path | None, report: Callable[[int, str], None] = lambda done, line: None
) -> Tally:
    """Take walks until they add up to `count` actions; those in `log` are not taken again."""
    tally = Tally()
    for done in _logged(log):
        tally.add(done)
    with Pool(1, prepare="envs.leir_env.build") as pool:
        while tally.actions.total() < count:
            found = check(tally.walks, seed, pool)
            tally.add(found)
            if log is not None:
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(found)) + "\n")
            report(min(tally.actions.total(), count), f"{tally.walks} walks, {len(tally.failures)} failures")
    return tally


def _logged(log: Path | None) -> Iterator[Walk]:
    """The walks of a log; a line that was cut off is the last, and its walk is taken again."""
    if log is None or not log.exists():
        return
    lines = log.read_text(encoding="utf-8").splitlines()
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            log.write_text("".join(f"{kept}\n" for kept in lines[: lines.index(line)]), encoding="utf-8")
            return
        yield Walk(record["number"], tuple(record["actions"]), record["failure"])
