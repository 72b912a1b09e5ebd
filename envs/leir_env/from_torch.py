"""PyTorch modules to LEIR programs: `torch.export`, Relax, one equation for each block.

The module is exported in float64 where that is possible, so that constants keep all their digits, and
the dtypes it was written in are put back. Operators that TVM imports in a poor form (unstable, opaque,
quadratic) are first written out by `importer.forms`. The program is then run against the module.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from envs.leir_env.importer.export import default_dtype, export_of, quiet, silent
from envs.leir_env.importer.relax import ImportProblem, first_line, operator_name, source_of, to_relax, user_line
from envs.leir_env.ir import DType, Program

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from envs.leir_env.suite_tables import Reference

AGREEMENT = {DType.F64: 1e-9, DType.F32: 1e-4, DType.F16: 2e-2, DType.BF16: 1e-1}
"""Largest accepted difference of the program in float64 from the module, relative to the largest element,
by the dtype that the module could be run in."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A program and what belongs to it."""

    program: Program
    parameters: Mapping[str, npt.NDArray[Any]]
    """Values of the program's parameters by tensor name, in their dtypes."""
    origins: Mapping[str, str]
    """For each parameter of the program, its path in the module, such as `encoder.0.weight`."""


def from_torch(module: nn.Module, example_inputs: tuple[Tensor, ...], compare: bool = True) -> Imported:
    """Return the LEIR program of a module in evaluation mode, for inputs of these shapes and dtypes.

    The program is verified. With `compare` both are run and must agree; without, the values of the inputs are
    not read and may be anything, which is for modules known to import well and shapes too large to run.
    Raises `ImportProblem`.
    """
    inputs = _checked(module, example_inputs)
    # Not the tensors themselves: one that is passed twice would be exported as one input.
    inputs = tuple(tensor.detach().clone() if compare else tensor.new_empty(tensor.shape) for tensor in inputs)
    working = _with_parameters(module)
    floats = {t.dtype for t in (*inputs, *working.parameters()) if t.is_floating_point()}
    if len(floats) == 1:
        import torch
        from torch import Tensor

        widen = Tensor.double if compare else functools.partial(torch.empty_like, dtype=torch.float64)
        wide = tuple(widen(t) if t.is_floating_point() else t for t in inputs)
        dtypes = {DType.F64: _dtype(floats.pop())}
        # A module that names dtypes itself may not run in float64.
        with contextlib.suppress(ImportProblem):
            return _translated(copy.deepcopy(working).double(), wide, dtypes, compare)
    return _translated(working, inputs, {}, compare)


def program_of(reference: Reference) -> Program:
    """Return the program of the module that a reference names, imported without running either.

    Raises `ImportProblem`.
    """
    torch = require_torch()
    from envs.leir_env.torch_files import parse_inputs

    target, _, name = reference.target.partition(":")
    try:
        module = getattr(importlib.import_module(target), name)(**dict(reference.arguments))
    except (ValueError, RuntimeError) as error:  # extents that do not go together, or need too much memory
        raise ImportProblem(first_line(error)) from None
    inputs = tuple(torch.empty(shape, dtype=_torch(dtype)) for dtype, shape in parse_inputs(reference.inputs))
    return from_torch(module.eval(), inputs, compare=False).program


def _checked(module: Any, example_inputs: Any) -> tuple[Tensor, ...]:
    torch = require_torch()
    if not isinstance(module, torch.nn.Module):
        hint = "; pass an instance, not the class" if isinstance(module, type) else ""
        raise ImportProblem(f"expected an nn.Module, got {type(module).__name__}{hint}")
    if not isinstance(example_inputs, tuple | list):
        raise ImportProblem(f"example inputs are a tuple of tensors, got {type(example_inputs).__name__}")
    for position, tensor in enumerate(example_inputs):
        if not isinstance(tensor, torch.Tensor):
            raise ImportProblem(
                f"input {position} is of type {type(tensor).__name__}: inputs are tensors; fix other arguments "
                "in the module's constructor"
            )
        _dtype(tensor.dtype)
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or 0 in tensor.shape:
            raise ImportProblem(
                f"input {position} is a {tensor.layout} tensor of shape {list(tensor.shape)} on "
                f"{tensor.device}: pass a dense CPU tensor with at least one element"
            )
    return tuple(example_inputs)


def require_torch() -> Any:
    """Return the torch module. Raises `ImportProblem` naming the extra where it isn't installed."""
    try:
        import torch
    except ImportError:
        raise ImportProblem("PyTorch is not installed: pip install 'leirgym[torch]'") from None
    return torch


def _with_parameters(module: nn.Module) -> nn.Module:
    """A copy whose buffers are parameters too, so that they stay inputs of the program."""
    from torch import nn

    working = copy.deepcopy(module)
    for part in working.modules():
        for name, buffer in list(part._buffers.items()):
            if buffer is not None:
                del part._buffers[name]
                part.register_parameter(name, nn.Parameter(buffer, requires_grad=False))
    return working


def _translated(
    module: nn.Module, inputs: tuple[Tensor, ...], dtypes: Mapping[DType, DType], compare: bool
) -> Imported:
    import torch

    from envs.leir_env.importer import sblocks, tidy

    with quiet(), torch.no_grad(), default_dtype(torch.float64 if dtypes else torch.get_default_dtype()):
        expected = _outputs(module, inputs) if compare else None
        exported = export_of(module, inputs)
        try:
            with silent():
                graph, constants = sblocks.stages(to_relax(exported))
        except sblocks.NoEquation as problem:
            raise ImportProblem(f"{problem}{_place_of(problem.operator, exported)}") from None
    program, names = tidy.program(graph, dtypes)
    tensors = list(graph.tensors)[len(inputs) :]
    given = dict(zip(tensors, exported.named_parameters(), strict=False))
    origins = {t: path for t, (path, _) in given.items()} | dict.fromkeys(constants, "constant")
    values = {t: _array(parameter) for t, (_, parameter) in given.items()} | constants
    parameters = {names[tensor]: value for tensor, value in values.items() if tensor in names}
    _refuse_malformed(program)
    if expected is not None:
        _compare(program, inputs, parameters, expected, AGREEMENT[DType.F64] if dtypes else _coarsest(program))
    by_name = {tensor.name: tensor for tensor in program.inputs}
    return Imported(
        program,
        {name: value.astype(_numpy(by_name[name].dtype)) for name, value in parameters.items()},
        {names[tensor]: path for tensor, path in origins.items() if tensor in names},
    )


def _outputs(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What the module returns for the inputs, as a tuple of tensors."""
    import torch
    from torch.utils._pytree import tree_leaves

    try:
        result = module(*(tensor.clone() for tensor in inputs))
    except Exception as error:  # noqa: BLE001 - the user's own code runs here
        shapes = " ".join(f"{_dtype(t.dtype)}{list(t.shape)}" for t in inputs).replace(", ", ",")
        raise ImportProblem(
            f"{type(module).__name__} fails on inputs {shapes or '(none)'}: {first_line(error)}{user_line(error)}"
        ) from None
    results = tuple(tree_leaves(result))
    for tensor in results:
        if not isinstance(tensor, torch.Tensor):
            raise ImportProblem(f"{type(module).__name__} returns {type(tensor).__name__}: a program returns tensors")
    return results


def _refuse_malformed(program: Program) -> None:
    from envs.leir_env.verify import verify

    problems = verify(program)
    if problems:
        raise ImportProblem(f"the imported program is not well-formed: {problems[0].sentence}")


def _compare(
    program: Program,
    inputs: tuple[Tensor, ...],
    values: Mapping[str, Any],
    expected: tuple[Tensor, ...],
    tolerance: float,
) -> None:
    """Run the program in float64 beside the module: a mistake of the importer is an error."""
    from envs.leir_env.interp import InterpreterError, run

    names = [tensor.name for tensor in program.inputs if tensor.name not in values]
    arrays = {name: _array(tensor) for name, tensor in zip(names, inputs, strict=True)}
    try:
        results = run(program, {**arrays, **values}, DType.F64)
    except InterpreterError as problem:
        raise ImportProblem(f"the imported program does not run: {problem}; please report it") from None
    for tensor, wanted in zip(program.outputs, expected, strict=True):
        got, reference = results[tensor.name].astype(float), wanted.double().numpy()
        finite = np.isfinite(reference)
        scale = max(1.0, float(np.abs(reference[finite]).max(initial=0)))
        same = (got == reference) | (np.isnan(got) & np.isnan(reference))
        error = float(np.abs(np.where(same, 0, got - reference)).max(initial=0)) / scale
        if not error <= tolerance:
            raise ImportProblem(
                f"output {tensor.name} of the imported program differs from the module by {error:.1e} of its "
                "largest element: the importer gets this module wrong, please report it"
            )


def _coarsest(program: Program) -> float:
    return max(AGREEMENT[dtype] for dtype in {t.dtype for t in program.tensors} | {DType.F64} if dtype.is_float)


def _dtype(dtype: Any) -> DType:
    from envs.leir_env.importer.sblocks import DTYPES

    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ImportProblem(f"LEIR has no dtype {name}; it has {', '.join(DTYPES)}")
    return DTYPES[name]


def _torch(dtype: DType) -> torch.dtype:
    import torch

    from envs.leir_env.importer.sblocks import DTYPES

    found: torch.dtype = getattr(torch, next(name for name, known in DTYPES.items() if known is dtype))
    return found


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    """The values as a NumPy array; NumPy has no bfloat16, so that becomes float32."""
    plain = tensor.detach().float() if tensor.dtype.is_floating_point and tensor.itemsize == 2 else tensor.detach()
    array: npt.NDArray[Any] = plain.numpy()
    return array


def _numpy(dtype: DType) -> np.dtype[Any]:
    from envs.leir_env.importer.sblocks import DTYPES

    name: Any = next(name for name, known in DTYPES.items() if known is dtype)
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype(name)
    return found


_TVM_NAMES = {"_to_copy": "cast"}
"""TVM's names of operators, where they contain no name of PyTorch's."""


def _place_of(operator: str, exported: torch.export.ExportedProgram) -> str:
    """The source of the first node that TVM's name of an operator (`tir_round`, `argsort1`) may stand for."""
    names = ((_TVM_NAMES.get(name := operator_name(node), name.strip("_")), node) for node in exported.graph.nodes)
    return next((source_of(node) for name, node in names if name and name in operator), "")


__all__ = ["AGREEMENT", "ImportProblem", "Imported", "from_torch", "program_of", "require_torch"]
