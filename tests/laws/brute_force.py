"""A reference executor that shares nothing with the analysis of programs.

It runs them on whole numbers, where every order of a sum gives one value, and watches which elements the iterations of
a loop touch.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from envs.leir_env.ir import Access, Assign, Block, Call, Const, Equation, Expr, Index, Program, Statement
from envs.leir_env.tree import Path

Cell = tuple[str, int, tuple[int, ...]]
"""A tensor, which of its lives, and the element."""


class Undefined(Exception):
    """An element was read that nothing had written."""


@dataclass
class Run:
    """One execution: its memory, and the loop (by path) whose iterations run shuffled and watched, if any."""

    memory: dict[Cell, int]
    watched: Path | None = None
    shuffle: random.Random = field(default_factory=lambda: random.Random(0))
    lives: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    iteration: tuple[int, int] | None = None
    reads: dict[Cell, set[int]] = field(default_factory=dict)
    writes: dict[Cell, set[int]] = field(default_factory=dict)
    conflict: bool = False

    def block(self, block: Block, path: Path, point: Mapping[str, int], life: Mapping[str, int]) -> None:
        life = {**life, **{tensor.name: next(self.lives) for tensor in block.tensors}}
        for tensor in block.tensors:
            self.start(block, tensor.name, tensor.shape, life)
        for position, statement in enumerate(block.body):
            self.statement(statement, (*path, position), point, life)

    def start(self, block: Block, name: str, shape: tuple[int, ...], life: Mapping[str, int]) -> None:
        first = next((e.assign for s in block.body for e in equations(s) if e.target.tensor == name), None)
        if first in IDENTITIES:
            for place in itertools.product(*map(range, shape)):
                self.memory[name, life[name], place] = IDENTITIES[first]

    def statement(self, statement: Statement, path: Path, point: Mapping[str, int], life: Mapping[str, int]) -> None:
        if isinstance(statement, Equation):
            if all(self.value(condition, point, life) for condition in statement.guard):
                self.equation(statement, point, life)
            return
        values = list(range(statement.extent))
        if path != self.watched:
            for value in values:
                self.block(statement.block, path, {**point, statement.index: value}, life)
            return
        self.shuffle.shuffle(values)
        self.reads, self.writes = {}, {}
        for value in values:
            self.iteration = (len(path), value)
            self.block(statement.block, path, {**point, statement.index: value}, life)
        self.iteration = None
        for cell, writers in self.writes.items():
            self.conflict = self.conflict or len(writers | self.reads.get(cell, set())) > 1

    def equation(self, equation: Equation, point: Mapping[str, int], life: Mapping[str, int]) -> None:
        value = self.value(equation.value, point, life)
        cell = self.cell(equation.target, point, life)
        if equation.assign is not Assign.SET:
            value = OPERATORS[equation.assign.op](self.read(cell), value)
        if self.iteration:
            self.writes.setdefault(cell, set()).add(self.iteration[1])
        self.memory[cell] = value

    def cell(self, access: Access, point: Mapping[str, int], life: Mapping[str, int]) -> Cell:
        return access.tensor, life[access.tensor], tuple(self.value(s, point, life) for s in access.subscripts)

    def read(self, cell: Cell) -> int:
        if self.iteration:
            self.reads.setdefault(cell, set()).add(self.iteration[1])
        if cell not in self.memory:
            raise Undefined(cell)
        return self.memory[cell]

    def value(self, expr: Expr, point: Mapping[str, int], life: Mapping[str, int]) -> int:
        match expr:
            case Const(value):
                return int(value)
            case Index(name):
                return point[name]
            case Access():
                return self.read(self.cell(expr, point, life))
            case Call("select", (condition, yes, no)):
                return self.value(yes if self.value(condition, point, life) else no, point, life)
            case Call(op, args):
                return OPERATORS[op](*(self.value(arg, point, life) for arg in args))
        raise AssertionError(f"not in these programs: {expr}")


OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "floordiv", "mod")},
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": operator.not_,
    "max": max,
    "min": min,
}
IDENTITIES = {Assign.ADD: 0, Assign.MUL: 1, Assign.MAX: -(2**63), Assign.MIN: 2**63 - 1}


def equations(statement: Statement) -> Iterator[Equation]:
    if isinstance(statement, Equation):
        yield statement
    else:
        for child in statement.block.body:
            yield from equations(child)


def execute(
    program: Program, seed: int, watched: Path | None = None, filled: bool = False
) -> tuple[dict[str, Any] | None, bool]:
    """Run on inputs drawn from a seed; return the outputs (None if something undefined was read) and any conflict.

    Places are drawn so that they are all alike for one seed and all different for another. `filled` is for programs
    without inputs: the outputs hold drawn values at the start.
    """
    rng = random.Random(seed)
    memory: dict[Cell, int] = {}
    for tensor in program.tensors if filled else program.inputs:
        for number, place in enumerate(itertools.product(*map(range, tensor.shape))):
            places = tensor.name == "M"
            value = ((number + seed) % 3 if seed % 2 else seed % 3) if places else rng.randrange(-999, 1000)
            memory[tensor.name, 0, place] = value
    machine = Run(memory, watched, rng)
    life = {tensor.name: 0 for tensor in program.tensors}
    for tensor in () if filled else program.tensors:
        machine.start(program.block, tensor.name, tensor.shape, life)
    try:
        for position, statement in enumerate(program.body):
            machine.statement(statement, (position,), {}, life)
    except Undefined:
        return None, machine.conflict
    outputs = {tensor.name for tensor in program.outputs}
    return {str(cell): value for cell, value in machine.memory.items() if cell[0] in outputs}, machine.conflict


SEEDS = range(4)


def same(before: Program, after: Program) -> bool:
    """Do both give the same outputs on every input?"""
    filled = not before.inputs
    return all(execute(before, seed, filled=filled) == execute(after, seed, filled=filled) for seed in SEEDS)


def parallel(program: Program, path: Path) -> bool:
    """Do the iterations of a loop touch nothing that another one writes, and give the same in any order?"""
    filled = not program.inputs
    for seed in SEEDS:
        outputs, conflict = execute(program, seed, path, filled)
        if conflict or outputs != execute(program, seed, filled=filled)[0]:
            return False
    return True
