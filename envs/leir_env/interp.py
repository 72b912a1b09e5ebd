"""The meaning of LEIR, in NumPy: slow, obvious, and what everything else is tested against.

One equation is evaluated at a time over as much of its iteration space as its meaning allows, in
chunks. Accumulations run strictly in program order, so that two programs that add in the same order
agree bit for bit; in float64, where the result serves as a reference, contractions use `einsum`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
    Loop,
    Program,
    Statement,
    Tensor,
    identity,
    subexpressions,
)
from envs.leir_env.ops import OPS
from envs.leir_env.tree import accesses, equations, reads

Array = npt.NDArray[Any]

CHUNK = 2**22
"""Elements of the iteration space evaluated at once."""

_BOOL, _INT, _FLOAT = np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.float64)


class InterpreterError(ValueError):
    """A program that `verify` would refuse was run: an element out of bounds, or an input that does not fit."""


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of a LEIR dtype (bfloat16 comes from ml_dtypes)."""
    if dtype is DType.BF16:
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    names = {"f": "float", "i": "int"}
    return np.dtype("bool" if dtype is DType.BOOL else names[dtype[0]] + dtype[1:])


def run(program: Program, inputs: Mapping[str, Array], dtype: DType | None = None) -> dict[str, Array]:
    """Execute `program` and return its outputs by name.

    `inputs` holds every input and parameter by name, in its declared shape. With `dtype`, every float
    tensor and cast is computed in it instead of in its own. Elements that nothing wrote are poison
    (nan, or the smallest integer). Raises `InterpreterError`.
    """
    machine = _Machine(dtype)
    for tensor in program.inputs:
        value = np.asarray(inputs[tensor.name])
        if value.shape != tensor.shape:
            raise InterpreterError(f"input {tensor.name} has shape {value.shape}, expected {tensor.shape}")
        machine.buffers[tensor.name] = value.astype(machine.dtype(tensor.dtype))
    with np.errstate(all="ignore"):
        machine.block(program.block, {})
    return {tensor.name: machine.buffers[tensor.name] for tensor in program.outputs}


@dataclass(frozen=True, slots=True)
class _Grid:
    """The part of an iteration space evaluated at once: outer indices are fixed, `axes` are ranges."""

    fixed: Mapping[str, int]
    axes: tuple[tuple[str, int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for _, start, stop in self.axes)

    def index(self, name: str) -> Any:
        for position, (axis, start, stop) in enumerate(self.axes):
            if axis == name:
                shape = [1] * len(self.axes)
                shape[position] = -1
                return np.arange(start, stop).reshape(shape)
        return self.fixed[name]

    def chunks(self) -> Iterator[_Grid]:
        """Split along the outermost axes until a piece has at most CHUNK elements."""
        if math.prod(self.shape) <= CHUNK or not self.axes:
            yield self
            return
        position = next(n for n, length in enumerate(self.shape) if length > 1)
        name, start, stop = self.axes[position]
        rest = math.prod(self.shape) // (stop - start)
        step = max(1, CHUNK // rest)
        for low in range(start, stop, step):
            axis = (name, low, min(low + step, stop))
            piece = _Grid(self.fixed, (*self.axes[:position], axis, *self.axes[position + 1 :]))
            yield from piece.chunks()


class _Machine:
    """The buffers of one run."""

    def __init__(self, override: DType | None) -> None:
        self.override = override
        self.buffers: dict[str, Array] = {}
        self.types: dict[Expr, np.dtype[Any] | None] = {}

    def dtype(self, dtype: DType) -> np.dtype[Any]:
        return numpy_dtype(self.override if self.override and dtype.is_float else dtype)

    def block(self, block: Block, indices: Mapping[str, int]) -> None:
        first: dict[str, Assign] = {}
        for statement in block.body if block.tensors else ():
            for equation in equations(statement):
                first.setdefault(equation.target.tensor, equation.assign)
        for tensor in block.tensors:
            if tensor.role in ("output", "temporary"):
                self.allocate(tensor, first.get(tensor.name, Assign.SET))
        for statement in block.body:
            self.statement(statement, indices)

    def allocate(self, tensor: Tensor, first: Assign) -> None:
        if first is Assign.SET:
            poison: Any = np.nan if tensor.dtype.is_float else np.iinfo(np.int8).min
            fill = tensor.dtype is not DType.BOOL and poison
        else:
            fill = identity(first, tensor.dtype)
        self.buffers[tensor.name] = np.full(tensor.shape, fill, self.dtype(tensor.dtype))

    def statement(self, statement: Statement, indices: Mapping[str, int]) -> None:
        loops: list[Loop] = []
        inner = statement
        while isinstance(inner, Loop) and len(inner.block.body) == 1 and not inner.block.tensors:
            loops.append(inner)
            inner = inner.block.body[0]
        if isinstance(inner, Equation):
            self.nest(tuple(loops), inner, indices)
            return
        assert isinstance(statement, Loop)
        for value in range(statement.extent):
            self.block(statement.block, {**indices, statement.index: value})

    def nest(self, loops: tuple[Loop, ...], equation: Equation, indices: Mapping[str, int]) -> None:
        """Run one equation under perfectly nested loops; loops that may carry a value run one by one."""
        serial = _serial(loops, equation)
        axes = tuple((loop.index, 0, loop.extent) for loop in loops if loop not in serial)
        for point in np.ndindex(*(loop.extent for loop in serial)):
            fixed = {**indices, **{loop.index: value for loop, value in zip(serial, point, strict=True)}}
            grid = _Grid(fixed, axes)
            if self.override and self.contraction(equation, grid):
                continue
            for chunk in _reductions_first(equation, grid).chunks():
                self.equation(equation, chunk)

    def contraction(self, equation: Equation, grid: _Grid) -> bool:
        """Run a sum of products of plainly indexed elements by `einsum`; False if it is not one."""
        names = [name for name, _, _ in grid.axes]
        factors = _factors(equation.value)
        if (
            equation.assign is not Assign.ADD
            or equation.guard
            or len(factors) < 2
            or not all(_plain(access, names) for access in (equation.target, *factors))
            or not set(names) <= {s.name for a in factors for s in a.subscripts if isinstance(s, Index)}
            or len(set(equation.target.subscripts)) != len(equation.target.subscripts)
        ):
            return False
        letters = {name: chr(ord("a") + n) for n, name in enumerate(names)}
        specs = [
            "".join(letters[s.name] for s in access.subscripts if isinstance(s, Index))
            for access in (*factors, equation.target)
        ]
        extents = dict(zip(names, grid.shape, strict=True))
        window = {
            access: self.buffers[access.tensor][_corner(access, extents)] for access in (*factors, equation.target)
        }
        value = np.einsum(
            f"{','.join(specs[:-1])}->{specs[-1]}", *(window[access] for access in factors), optimize=True
        )
        window[equation.target] += value
        return True

    def equation(self, equation: Equation, grid: _Grid) -> None:
        mask: Any = True
        for condition in equation.guard:
            mask = np.logical_and(mask, self.evaluate(condition, grid, mask, _BOOL))
        if not np.any(mask):
            return
        target = self.buffers[equation.target.tensor]
        value = self.evaluate(equation.value, grid, mask, target.dtype).astype(target.dtype)
        subscripts = self.subscripts(equation.target, grid, mask)
        if mask is True and equation.assign is not Assign.SET and _reducible(equation.target, grid):
            self.reduce(equation, grid, value, target)
            return
        where = np.broadcast_to(mask, grid.shape)
        places = tuple(np.broadcast_to(s, grid.shape)[where] for s in subscripts)
        values = np.broadcast_to(value, grid.shape)[where]
        if equation.assign is Assign.SET:
            if places:
                target[places] = values
            else:
                target[()] = values[-1]
        else:
            _accumulate_at(OPS[equation.assign.op].numpy, target, places, values)

    def reduce(self, equation: Equation, grid: _Grid, value: Any, target: Array) -> None:
        """Accumulate over the axes that the target does not have, which come first in the grid."""
        ranges = {name: slice(start, stop) for name, start, stop in grid.axes}
        kept = _kept(equation.target, grid)
        window = tuple(
            ranges[s.name] if isinstance(s, Index) and s.name in ranges else int(self.scalar(s, grid))
            for s in equation.target.subscripts
        )
        total = target[window]
        terms = np.broadcast_to(value, grid.shape)
        rows = terms.reshape(-1, *terms.shape[len(grid.axes) - len(kept) :])
        operator: Any = OPS[equation.assign.op].numpy
        if total.size < 64 and target.dtype.kind in "fiu":
            total = operator.accumulate(np.concatenate([np.asarray(total)[None], rows]), axis=0)[-1]
        else:
            for row in rows:
                total = operator(total, row)
        target[window] = total

    def scalar(self, subscript: Expr, grid: _Grid) -> Any:
        return np.asarray(self.evaluate(subscript, grid, True, _INT)).reshape(())

    def subscripts(self, access: Access, grid: _Grid, mask: Any) -> tuple[Any, ...]:
        """Integer arrays for each dimension, checked wherever `mask` holds and harmless elsewhere."""
        shape = self.buffers[access.tensor].shape
        found = []
        for position, (subscript, extent) in enumerate(zip(access.subscripts, shape, strict=True)):
            value = self.evaluate(subscript, grid, mask, _INT)
            inside = np.logical_and(np.greater_equal(value, 0), np.less(value, extent))
            if not np.all(np.logical_or(inside, np.logical_not(mask))):
                bad = np.asarray(value)[~inside].flat[0] if np.ndim(value) else value
                raise InterpreterError(
                    f"{access.tensor}: subscript {position + 1} is {bad}, but the extent there is {extent}"
                )
            found.append(np.where(inside, value, 0) if mask is not True else value)
        return tuple(found)

    def evaluate(self, expr: Expr, grid: _Grid, mask: Any, context: np.dtype[Any]) -> Any:
        """Return the values of `expr` wherever `mask` holds; weak literals and indices are of type `context`."""
        match expr:
            case Const(value):
                return np.asarray(value).astype(context)
            case Index(name):
                return np.asarray(grid.index(name)).astype(context)
            case Access(name):
                return self.buffers[name][self.subscripts(expr, grid, mask)]
            case Cast(dtype, value):
                return self.evaluate(value, grid, mask, self.own(value)).astype(self.dtype(dtype))
            case Call("select", (condition, then, other)):
                chosen = self.evaluate(condition, grid, mask, _BOOL)
                kind = self.type(expr) or context
                yes = self.evaluate(then, grid, np.logical_and(mask, chosen), kind)
                no = self.evaluate(other, grid, np.logical_and(mask, np.logical_not(chosen)), kind)
                return np.where(chosen, yes, no)
            case Call(op, args):
                kind = self.own(*args) if OPS[op].typing == "compare" else self.type(expr) or context
                return OPS[op].numpy(*(self.evaluate(arg, grid, mask, kind) for arg in args))
        raise AssertionError(f"no such expression: {expr}")

    def type(self, expr: Expr) -> np.dtype[Any] | None:
        """The dtype of an expression, or None if it is weak: it takes the dtype of what it meets."""
        if expr not in self.types:
            self.types[expr] = self._type(expr)
        return self.types[expr]

    def _type(self, expr: Expr) -> np.dtype[Any] | None:
        match expr:
            case Const(value):
                return _BOOL if isinstance(value, bool) else None
            case Access(name):
                return self.buffers[name].dtype
            case Cast(dtype):
                return self.dtype(dtype)
            case Call(op, args):
                if OPS[op].typing in ("compare", "logic"):
                    return _BOOL
                operands = args[1:] if op == "select" else args
                return next((found for arg in operands if (found := self.type(arg)) is not None), None)
        return None

    def own(self, *exprs: Expr) -> np.dtype[Any]:
        """The dtype that expressions have among themselves: weak ones are int64, or float64 if any holds a float."""
        strong = next((found for expr in exprs if (found := self.type(expr)) is not None), None)
        if strong is not None:
            return strong
        leaves = (node for expr in exprs for node in subexpressions(expr))
        return _FLOAT if any(isinstance(n, Const) and isinstance(n.value, float) for n in leaves) else _INT


def _serial(loops: tuple[Loop, ...], equation: Equation) -> tuple[Loop, ...]:
    """The loops that must run one iteration after another: those over which the target is read back."""
    own = equation.target
    back = [access for access in reads(equation) if access.tensor == own.tensor]
    if not back:
        return ()
    if any(True for access in (own, *back) for s in access.subscripts for _ in accesses(s)):
        return loops
    # Where every read names the same index as the target, iterations of its loop have nothing to do with each other.
    kept = {
        s.name
        for position, s in enumerate(own.subscripts)
        if isinstance(s, Index) and all(access.subscripts[position] == s for access in back)
    }
    return tuple(loop for loop in loops if loop.index not in kept)


def _corner(access: Access, extents: Mapping[str, int]) -> tuple[Any, ...]:
    """The part of a plainly indexed tensor that the loops run over, as a view even of a scalar."""
    return (*(slice(extents[s.name]) for s in access.subscripts if isinstance(s, Index)), ...)


def _factors(value: Expr) -> list[Access]:
    """The elements of a pure product, or nothing."""
    if isinstance(value, Access):
        return [value]
    if isinstance(value, Call) and value.op == "mul":
        left, right = (_factors(arg) for arg in value.args)
        return left + right if left and right else []
    return []


def _plain(access: Access, names: list[str]) -> bool:
    return all(isinstance(s, Index) and s.name in names for s in access.subscripts)


def _kept(target: Access, grid: _Grid) -> list[str]:
    """The axes of the grid that index the target, in the order of its dimensions."""
    names = [name for name, _, _ in grid.axes]
    return [s.name for s in target.subscripts if isinstance(s, Index) and s.name in names]


def _reducible(target: Access, grid: _Grid) -> bool:
    """Is each subscript a distinct axis of the grid, or constant over it?"""
    names = [name for name, _, _ in grid.axes]
    axes = _kept(target, grid)
    others = [s for s in target.subscripts if not (isinstance(s, Index) and s.name in names)]
    return len(set(axes)) == len(axes) and all(_constant(s, names) for s in others)


def _reductions_first(equation: Equation, grid: _Grid) -> _Grid:
    """Reorder the axes so that accumulated ones come first; each element still sees its terms in order."""
    if equation.assign is Assign.SET or equation.guard or not _reducible(equation.target, grid):
        return grid
    axis = {name: (name, start, stop) for name, start, stop in grid.axes}
    kept = _kept(equation.target, grid)
    return _Grid(grid.fixed, tuple(axis[name] for name in (*(n for n in axis if n not in kept), *kept)))


def _constant(subscript: Expr, names: list[str]) -> bool:
    match subscript:
        case Const():
            return True
        case Index(name):
            return name not in names
        case Call(_, args):
            return all(_constant(arg, names) for arg in args)
    return False


def _accumulate_at(operator: Any, target: Array, places: tuple[Array, ...], values: Array) -> None:
    if target.dtype.kind in "fiu" and places:
        operator.at(target, places, values)
        return
    for position, value in enumerate(values):
        place = tuple(axis[position] for axis in places)
        target[place] = operator(target[place], value)
