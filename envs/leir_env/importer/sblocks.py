"""Relax after `LegalizeOps` to stages: each SBlock becomes one equation over its own loops.

A stage is an equation whose tensor no other stage writes. The result reads as TVM left it, with unit
loops, broadcasts and reshapes; `tidy` makes a program of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir, relax, s_tir, tirx

from envs.leir_env.importer.relax import AXIS, RUNNING
from envs.leir_env.importer.stages import Graph, Stage
from envs.leir_env.ir import Access, Assign, Call, Cast, Const, DType, Equation, Expr, Index, Role, Tensor

Array = npt.NDArray[Any]

DTYPES = {
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "float64": DType.F64,
    "int8": DType.I8,
    "int32": DType.I32,
    "int64": DType.I64,
    "bool": DType.BOOL,
}
"""TVM's (and NumPy's) dtype names."""

_BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "FloorDiv": "floordiv",
    "FloorMod": "mod",
    "Min": "min",
    "Max": "max",
    "EQ": "eq",
    "NE": "ne",
    "LT": "lt",
    "LE": "le",
    "GT": "gt",
    "GE": "ge",
    "And": "and",
    "Or": "or",
}
_CALLS = {
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "tanh": "tanh",
    "erf": "erf",
    "sigmoid": "sigmoid",
    "sin": "sin",
    "cos": "cos",
    "floor": "floor",
    "fabs": "abs",
    "abs": "abs",
    "pow": "pow",
    "if_then_else": "select",
}
_ON_BOOL = {"BitwiseAnd": "and", "BitwiseOr": "or"}
_ACCUMULATIONS = {
    "add": Assign.ADD,
    "mul": Assign.MUL,
    "max": Assign.MAX,
    "min": Assign.MIN,
    "or": Assign.MAX,
}
_EXTREMES = {float(np.finfo(dtype).max) for dtype in (np.float16, np.float32, np.float64)}
"""TVM writes the largest finite number where infinity is meant."""


class NoEquation(ValueError):
    """TVM's form of an operator is not one equation for each block; `operator` is the PrimFunc's name."""

    def __init__(self, operator: str, reason: str) -> None:
        self.operator = operator
        super().__init__(f"operator {operator}: {reason}")


@dataclass(slots=True)
class _Importer:
    tensors: dict[str, Tensor] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    bound: dict[Any, Any] = field(default_factory=dict)
    """What a Relax variable stands for: the name of a tensor, or a tuple of such."""

    def declare(
        self, operator: str, dtype: str, shape: tuple[int, ...], role: Role = Role.TEMPORARY, base: str = ""
    ) -> str:
        if dtype not in DTYPES:
            raise NoEquation(operator, f"LEIR has no dtype {dtype}")
        name = f"T{len(self.tensors)}{base}"
        self.tensors[name] = Tensor(name, DTYPES[dtype], shape, role=role)
        return name

    def value(self, node: Any) -> Any:
        """The tensor that a Relax expression stands for."""
        match node:
            case ir.GenericConst():
                return self.constant(np.asarray(node.value.numpy()))
            case relax.Tuple():
                return tuple(self.value(element) for element in node.fields)
            case relax.TupleGetItem():
                return self.value(node.tuple_value)[node.index]
            case relax.Call() if getattr(node.op, "name", "") == "relax.call_tir":
                return self.call(node)
            case relax.Call():
                name = str(getattr(node.op, "name", "") or getattr(node.op, "global_symbol", "of an unknown kind"))
                raise NoEquation(name.removeprefix("relax."), "TVM has no loop form of this operator")
        return self.bound[node]

    def constant(self, data: Array) -> str:
        """A scalar or an arithmetic progression is written as an equation, anything else is a parameter."""
        closed = _closed_form(data)
        role = Role.PARAMETER if closed is None else Role.TEMPORARY
        name = self.declare("constant", str(data.dtype), data.shape, role, "constant")
        if closed is None:
            self.constants[name] = data
        else:
            loops = tuple((f"s{axis}", extent) for axis, extent in enumerate(data.shape))
            target = Access(name, tuple(Index(index) for index, _ in loops))
            self.stages.append(Stage(loops, Equation(target, Assign.SET, closed)))
        return name

    def call(self, node: Any) -> Any:
        function = self.functions(node.args[0])
        arguments = [self.value(argument) for argument in node.args[1].fields]
        buffers = dict(zip(function.params, arguments, strict=False))
        operator, made = node.args[0].name_hint, function.params[len(arguments) :]
        results = [self.declare(operator, str(param.ty.dtype), _shape(param)) for param in made]
        buffers.update(zip(made, results, strict=True))
        _Body(self, operator, buffers).statement(function.body, ())
        if RUNNING in function.attrs:
            self.stages[-1] = _recurrence(self.stages[-1], str(function.attrs[RUNNING]), int(function.attrs[AXIS]))
        return results[0] if len(results) == 1 else tuple(results)

    functions: Callable[[Any], Any] = lambda _: None


@dataclass(slots=True)
class _Body:
    """The walk over one PrimFunc."""

    importer: _Importer
    operator: str
    buffers: dict[Any, str]
    indices: dict[Any, Expr] = field(default_factory=dict)

    def statement(self, node: Any, loops: tuple[tuple[str, int], ...]) -> None:
        match node:
            case tirx.SeqStmt():
                for child in node:
                    self.statement(child, loops)
            case tirx.For() if isinstance(node.extent, tirx.IntImm):
                name = f"s{len(loops)}"
                self.indices[node.loop_var] = Index(name)
                self.statement(node.body, (*loops, (name, int(node.extent))))
            case s_tir.SBlockRealize() if not node.block.iter_vars:
                for buffer in node.block.alloc_buffers:
                    self.buffers[buffer] = self.importer.declare(self.operator, str(buffer.ty.dtype), _shape(buffer))
                self.statement(node.block.body, loops)
            case s_tir.SBlockRealize():
                for variable, value in zip(node.block.iter_vars, node.iter_values, strict=True):
                    self.indices[variable.var] = self.expression(value)
                self.block(node, loops)
            case _:
                raise NoEquation(self.operator, f"{type(node).__name__} in its loop form")

    def block(self, node: Any, loops: tuple[tuple[str, int], ...]) -> None:
        store = node.block.body
        if type(store).__name__ != "BufferStore":
            raise NoEquation(self.operator, "a block of several statements in its loop form")
        target = Access(self.buffers[store.buffer], tuple(self.expression(index) for index in store.indices))
        value = self.expression(store.value)
        assign = Assign.SET
        if node.block.init is not None:
            assign, value = self.accumulation(target, value)
        predicate = self.expression(node.predicate)
        guard = () if predicate == Const(True) else (predicate,)
        self.importer.stages.append(Stage(loops, Equation(target, assign, value, guard)))

    def accumulation(self, target: Access, value: Expr) -> tuple[Assign, Expr]:
        match value:
            case Call(op, (left, right)) if op in _ACCUMULATIONS and target in (left, right):
                return _ACCUMULATIONS[op], right if left == target else left
        raise NoEquation(self.operator, "a reduction that is not a sum, product, maximum or minimum")

    def expression(self, node: Any) -> Expr:
        kind = type(node).__name__
        if kind == "TensorLoad":
            return Access(self.buffers[node.source], tuple(self.expression(index) for index in node.indices))
        if kind in _BINARY:
            return Call(_BINARY[kind], (self.expression(node.a), self.expression(node.b)))
        match kind:
            case "Var":
                return self.indices[node]
            case "IntImm":
                return Const(bool(node.value) if str(node.ty.dtype) == "bool" else int(node.value))
            case "FloatImm":
                value = float(node.value)
                if math.isnan(value):
                    raise NoEquation(self.operator, "LEIR has no constant nan")
                return Const(value if abs(value) not in _EXTREMES else math.copysign(math.inf, value))
            case "Cast":
                return self.cast(str(node.ty.dtype), self.expression(node.value))
            case "Not":
                return Call("not", (self.expression(node.a),))
            case "BitwiseNot" if str(node.ty.dtype) == "bool":
                return Call("not", (self.expression(node.a),))
            case "BitwiseAnd" | "BitwiseOr" if str(node.ty.dtype) == "bool":
                return Call(_ON_BOOL[kind], (self.expression(node.a), self.expression(node.b)))
            case "Select":
                parts = (node.condition, node.true_value, node.false_value)
                return Call("select", tuple(self.expression(part) for part in parts))
            case "Call" if _function(node) == "isnan":
                tested = self.expression(node.args[0])
                return Call("ne", (tested, tested))
            case "Call" if _function(node) in _CALLS:
                return Call(_CALLS[_function(node)], tuple(self.expression(argument) for argument in node.args))
            case "Call":
                raise NoEquation(self.operator, f"LEIR has no function {_function(node)}")
        raise NoEquation(self.operator, f"{kind} in its loop form")

    def cast(self, dtype: str, value: Expr) -> Expr:
        if dtype not in DTYPES:
            raise NoEquation(self.operator, f"LEIR has no dtype {dtype}")
        return Cast(DTYPES[dtype], value)


def stages(module: Any) -> tuple[Graph, dict[str, Array]]:
    """Return the stages of `main` and the values of its constants that became parameters.

    The inputs and parameters of the graph are those of `main`, in order; the outputs are fresh tensors.
    Raises `NoEquation`.
    """
    main = module["main"]
    importer = _Importer(functions=lambda variable: module[variable])
    inputs = int(main.attrs["num_input"])
    for position, parameter in enumerate(main.params):
        role = Role.INPUT if position < inputs else Role.PARAMETER
        shape = tuple(int(extent) for extent in parameter.ty.shape)
        importer.bound[parameter] = importer.declare("", str(parameter.ty.dtype), shape, role)
    for block in main.body.blocks:
        for binding in block.bindings:
            importer.bound[binding.var] = importer.value(binding.value)
    for name in _flatten(importer.value(main.body.body)):
        importer.stages.append(_output(importer, name))
    return Graph(importer.tensors, tuple(importer.stages)), importer.constants


def _output(importer: _Importer, name: str) -> Stage:
    tensor = importer.tensors[name]
    output = importer.declare("", "bool", tensor.shape, Role.OUTPUT)
    importer.tensors[output] = Tensor(output, tensor.dtype, tensor.shape, role=Role.OUTPUT)
    loops = tuple((f"s{axis}", extent) for axis, extent in enumerate(tensor.shape))
    at = tuple(Index(index) for index, _ in loops)
    return Stage(loops, Equation(Access(output, at), Assign.SET, Access(name, at)))


def _recurrence(copy: Stage, operator: str, axis: int) -> Stage:
    """`C[j] = select(j>=1,C[j-1],0)+A[j]` for a copy `C[j] = A[j]` that stands for it."""
    target = copy.equation.target
    place = target.subscripts[axis]
    before = list(target.subscripts)
    before[axis] = Call("sub", (place, Const(1)))
    start = Const({"add": 0.0, "mul": 1.0}[operator])
    previous = Call("select", (Call("ge", (place, Const(1))), Access(target.tensor, tuple(before)), start))
    return Stage(copy.loops, Equation(target, Assign.SET, Call(operator, (previous, copy.equation.value))))


def _flatten(value: Any) -> Iterator[str]:
    if isinstance(value, tuple):
        for element in value:
            yield from _flatten(element)
    else:
        yield value


def _function(call: Any) -> str:
    """`exp` for a call of `tirx.exp`."""
    return str(call.op.name).rpartition(".")[2]


def _shape(buffer: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in buffer.ty.shape)


def _closed_form(data: Array) -> Expr | None:
    """The expression of a constant whose elements are an affine function of their position, or None."""
    if data.size == 0:
        return None
    base = data.flat[0].item()
    if (data == base).all():
        return Const(base)
    if data.dtype.kind != "i":
        return None
    value: Expr = Const(base)
    total = np.full(data.shape, base, np.int64)
    for axis, extent in enumerate(data.shape):
        if extent > 1:
            step = int(data[tuple(int(a == axis) for a in range(data.ndim))]) - base
            total = total + step * np.arange(extent).reshape([-1 if a == axis else 1 for a in range(data.ndim)])
            value = Call("add", (value, Call("mul", (Const(step), Index(f"s{axis}")))))
    return value if (total == data).all() else None
