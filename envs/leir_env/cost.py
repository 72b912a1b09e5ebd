"""An analytical cost model: deterministic, needs no device, and ranks candidates before they are built.

Each equation is charged for what one iteration of its innermost serial loop executes (operations, loads,
stores, the latency of its accumulation), with whatever does not depend on a loop hoisted out of it, and
for the cache lines it moves between levels. The reference machine is one core with 256-bit vectors.
After the usual roofline and reuse-distance arguments (Williams et al. 2009; Wolf and Lam 1991).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Cast,
    Const,
    DType,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Statement,
    Tensor,
    children,
)
from envs.leir_env.legality import touched
from envs.leir_env.ops import OPS
from envs.leir_env.traffic import Placed, Reference, moved_cycles, reference
from envs.leir_env.tree import equations


@dataclass(frozen=True, slots=True)
class Machine:
    """A core: bytes of a vector, vector registers, operations a cycle, and latencies in cycles."""

    hertz: float = 3.2e9
    vector_bytes: int = 32
    registers: int = 16
    arithmetic: float = 2.0
    loads: float = 2.0
    stores: float = 1.0
    issue: float = 5.0
    latency: float = 4.0
    forwarding: float = 8.0
    """Cycles from a store to a load of the same address."""
    spill: float = 2.5
    """Cycles for each register too many in one iteration."""
    loop: float = 1.0
    """Cycles of control in one iteration of a serial loop."""
    launch: float = 8000.0
    """Cycles to start a parallel loop."""
    allocation: float = 150.0
    """Cycles to allocate a temporary too large for the stack frame."""
    stack_bytes: int = 1024


CORE = Machine()

_SLOW: Mapping[str, float] = {"div": 5, "sqrt": 6, "rsqrt": 9, "floordiv": 20, "mod": 20, "select": 1.5, "floor": 2}
"""Cycles of one vector operation, where it is not pipelined like an addition."""

_FUNCTIONS: Mapping[str, float] = {
    **{"exp": 17, "log": 20, "tanh": 26, "erf": 30, "sigmoid": 22},
    **{"fast_exp": 12, "fast_tanh": 11, "fast_erf": 10, "fast_sigmoid": 16},
}
"""Cycles of one evaluation of an f32 polynomial, on a vector register or on a scalar alike."""

_CALLS: Mapping[str, float] = {"pow": 60, "sin": 40, "cos": 40}
"""Cycles for each element of a function of the mathematical library."""


def estimate(program: Program, threads: int = 1) -> float:
    """Return the predicted time of one run in seconds."""
    total = 0.0
    declared = {tensor.name: tensor for tensor in program.tensors}
    for statement in program.body:
        tensors = tuple([declared[name] for name in _names(statement) if name in declared])
        total += nest_cycles(statement, tensors, threads)
    return total / CORE.hertz


@functools.lru_cache(maxsize=16384)
def _names(statement: Statement) -> tuple[str, ...]:
    """The tensors that a nest mentions, in alphabetical order."""
    return tuple(sorted(touched(statement)))


@functools.lru_cache(maxsize=32768)
def nest_cycles(statement: Statement, tensors: tuple[Tensor, ...], threads: int = 1) -> float:
    """Predicted cycles of one top-level nest; `tensors` are those of the header that it uses."""
    known = {tensor.name: Placed(tensor) for tensor in tensors}
    return _statement(statement, (), known, threads)


def _statement(statement: Statement, loops: tuple[Loop, ...], known: dict[str, Placed], threads: int) -> float:
    """Cycles of all executions of `statement` under `loops`."""
    if isinstance(statement, Equation):
        executed, moved = _equation(statement, loops, known), moved_cycles(statement, loops, known)
        return max(executed, moved) + 0.25 * min(executed, moved)
    entered = (*loops, statement)
    if statement.block.tensors:
        home = frozenset(loop.index for loop in entered)
        known = {**known, **{tensor.name: Placed(tensor, home) for tensor in statement.block.tensors}}
    trips = math.prod([loop.extent for loop in entered])
    cycles = sum([_statement(child, entered, known, threads) for child in statement.block.body])
    for tensor in statement.block.tensors:
        if tensor.nbytes >= CORE.stack_bytes:
            cycles += trips * CORE.allocation
        cycles += trips * _start(tensor, statement.block)
    if statement.kind is Kind.SERIAL:
        cycles += trips * CORE.loop
    if statement.kind is Kind.PARALLEL:
        cycles = cycles / min(threads, statement.extent) + CORE.launch * trips / statement.extent * (threads > 1)
    return cycles


def _start(tensor: Tensor, block: Block) -> float:
    """Cycles to write the initial value of an implicitly started reduction."""
    first = next((e for s in block.body for e in equations(s) if e.target.tensor == tensor.name), None)
    if first is None or first.assign is Assign.SET or tensor.role is not Role.TEMPORARY:
        return 0.0
    return max(1.0, tensor.nbytes / CORE.vector_bytes)


def _equation(equation: Equation, loops: tuple[Loop, ...], known: Mapping[str, Placed]) -> float:
    """Cycles of the instructions of one equation, over all its iterations."""
    frame = _Frame.of(equation, loops, known)
    work = _Work()
    seen: dict[Expr, frozenset[str]] = {}
    for expr in (equation.value, *equation.guard):
        _charge(expr, frame, work, seen)
    target = reference(equation.target, known)
    copies, hoisted = frame.copies(target.indices), frame.hoisted(target.indices)
    vectors = frame.vectors(target.indices, target.dtype)
    lanes = frame.lane_cost(target)
    latency = 0.0
    kept = hoisted > 1 or frame.in_registers(target, known[target.tensor])
    if equation.assign is not Assign.SET:
        # x += a*b is one fused multiply-add.
        fused = equation.assign is Assign.ADD and isinstance(equation.value, Call) and equation.value.op == "mul"
        work.arithmetic += 0.0 if fused else frame.copies(None) * vectors
        if kept:
            quick = equation.assign in (Assign.MAX, Assign.MIN)
            latency = (CORE.latency / 4 if quick else CORE.latency) * frame.chain(target.indices)
            work.registers += copies * vectors
        else:
            work.loads += frame.copies(None) * lanes
            chain = frame.chain(target.indices)
            latency = (CORE.latency + CORE.forwarding) * chain if chain > 1 else 0.0
    if not kept:
        work.stores += frame.copies(None) * lanes
    elif not frame.in_registers(target, known[target.tensor]):
        work.loads += copies * lanes / hoisted
        work.stores += copies * lanes / hoisted
    spilled = max(0.0, work.registers + work.operands - CORE.registers)
    work.serial += spilled * CORE.spill
    issued = (work.arithmetic + work.loads + work.stores) / CORE.issue
    bound = max(work.arithmetic / CORE.arithmetic, work.loads / CORE.loads, work.stores / CORE.stores, latency, issued)
    guard = 1.0 if equation.guard else 0.0
    return frame.trips * (bound + work.serial + guard)


@dataclass(slots=True)
class _Work:
    """What one iteration of the innermost serial loop executes."""

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    serial: float = 0.0
    """Cycles of library calls and of operations that do not overlap."""
    registers: float = 0.0
    operands: float = 0.0


@dataclass(frozen=True, slots=True)
class _Frame:
    """The loops of an equation, by how they are executed."""

    known: Mapping[str, Placed]
    dtype: DType
    """Of the target; values on the way are taken to be as wide."""
    serial: tuple[Loop, ...]
    unrolled: tuple[Loop, ...]
    """Unrolled loops below the innermost serial one: their copies share what does not depend on them."""
    vector: Loop | None
    trips: float
    """Iterations of the innermost serial loop in all."""

    @classmethod
    def of(cls, equation: Equation, loops: tuple[Loop, ...], known: Mapping[str, Placed]) -> _Frame:
        serial: list[Loop] = []
        unrolled: list[Loop] = []
        vector, trips = None, 1
        for loop in loops:
            if loop.kind is Kind.UNROLLED:
                unrolled.append(loop)
            elif loop.kind is not Kind.VECTOR:
                # What is unrolled around a serial loop is iterations like any other.
                trips *= math.prod([outer.extent for outer in unrolled]) * loop.extent
                unrolled.clear()
                serial.append(loop)
            elif vector is None:
                vector = loop
        return cls(
            known, known[equation.target.tensor].tensor.dtype, tuple(serial), tuple(unrolled), vector, float(trips)
        )

    def copies(self, indices: frozenset[str] | None) -> int:
        """How many unrolled copies differ (all, for None)."""
        return math.prod([loop.extent for loop in self.unrolled if indices is None or loop.index in indices])

    def chain(self, indices: frozenset[str]) -> int:
        """How many dependent accumulations one iteration of the serial loop makes."""
        return math.prod([loop.extent for loop in self.unrolled if loop.index not in indices])

    def hoisted(self, indices: frozenset[str]) -> int:
        """Iterations over which a value that depends on `indices` stays the same, and in a register."""
        times = 1
        for loop in reversed(self.serial):
            if loop.index in indices:
                break
            times *= loop.extent
        return times

    def in_registers(self, access: Reference, placed: Placed) -> bool:
        """Is the tensor small and private, and are its elements told apart by unrolled and vector loops alone?"""
        if not placed.home or placed.tensor.nbytes >= CORE.stack_bytes:
            return False
        constant = {loop.index for loop in self.unrolled} | ({self.vector.index} if self.vector else set())
        return access.indices - placed.home <= constant

    def vectors(self, indices: frozenset[str], dtype: DType) -> int:
        """Vector registers (or scalars) that a value fills."""
        if self.vector is None or self.vector.index not in indices:
            return 1
        return max(1, math.ceil(self.vector.extent * dtype.itemsize / CORE.vector_bytes))

    def lane_cost(self, access: Reference) -> float:
        """Loads or stores that one execution of an access takes."""
        if self.vector is None or self.vector.index not in access.indices:
            return 1.0
        if access.stride(self.vector.index) == 1:
            return float(self.vectors(access.indices, access.dtype))
        return 2.0 * self.vector.extent


def _charge(expr: Expr, frame: _Frame, work: _Work, seen: dict[Expr, frozenset[str]]) -> frozenset[str]:
    """Charge for a value, once however often it occurs, and return the indices it depends on."""
    indices = seen.get(expr)
    if indices is None:
        indices = seen[expr] = _charged(expr, frame, work, seen)
    return indices


def _charged(expr: Expr, frame: _Frame, work: _Work, seen: dict[Expr, frozenset[str]]) -> frozenset[str]:
    if isinstance(expr, Index):
        return frozenset((expr.name,))
    if isinstance(expr, Const):
        return _NONE
    if isinstance(expr, Access):
        access = reference(expr, frame.known)
        cost = frame.copies(access.indices) * frame.lane_cost(access)
        hoisted = frame.hoisted(access.indices)
        if not frame.in_registers(access, frame.known[access.tensor]):
            work.loads += cost / hoisted
        if hoisted == 1:
            work.operands += frame.vectors(access.indices, access.dtype)
        return access.indices
    indices = _NONE.union(*[_charge(child, frame, work, seen) for child in children(expr)])
    times = frame.copies(indices) / frame.hoisted(indices)
    vectors = frame.vectors(indices, frame.dtype)
    if isinstance(expr, Cast):
        work.arithmetic += times * vectors
        return indices
    if expr.op in _FUNCTIONS:
        work.serial += times * vectors * _FUNCTIONS[expr.op]
    elif expr.op in _CALLS:
        lanes = frame.vector.extent if frame.vector and frame.vector.index in indices else 1
        work.serial += times * lanes * _CALLS[expr.op]
    elif expr.op in _SLOW:
        work.serial += times * vectors * _SLOW[expr.op]
    elif OPS[expr.op].typing != "integer":
        work.arithmetic += times * vectors
    return indices


_NONE: frozenset[str] = frozenset()
