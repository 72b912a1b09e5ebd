"""PyTorch modules by name: `file.py:Class` of a user, and the references of shipped workloads."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.leir_env.from_torch import require_torch
from envs.leir_env.importer.relax import ImportProblem, first_line, user_line
from envs.leir_env.ir import DType
from envs.leir_env.workloads import Reference

if TYPE_CHECKING:
    from torch import Tensor, nn

_FILE = re.compile(r".+\.py(:.*)?")
_INPUT = re.compile(r"([a-z]+[0-9]*)(?:\[([0-9]+(?:,[0-9]+)*)?\])?")
MAX_INPUT_BYTES = 2**31

Signature = tuple[tuple[DType, tuple[int, ...]], ...]
"""Dtype and shape of each input."""


def is_file(what: str) -> bool:
    """Is this meant as `file.py:Class`, rather than as LEIR or the name of a workload?"""
    return _FILE.fullmatch(what) is not None


def parse_inputs(text: str) -> Signature:
    """Read dtypes and shapes as LEIR declares them: `f32[16,64] i64[16]`. Raises `ImportProblem`."""
    found = []
    for word in text.split():
        match = _INPUT.fullmatch(word)
        if match is None or match[1] not in set(DType):
            raise ImportProblem(
                f"expected inputs like 'f32[16,64] i64[16]', got {word[:40]!r}; dtypes are {', '.join(DType)}"
            )
        shape = tuple(int(extent) for extent in (match[2] or "").split(",") if extent)
        size = DType(match[1]).itemsize
        for extent in shape:
            size *= extent
        if not 0 < size <= MAX_INPUT_BYTES:
            raise ImportProblem(f"input {word[:40]} has {size:,} bytes; it may have 1 to {MAX_INPUT_BYTES:,}")
        found.append((DType(match[1]), shape))
    return tuple(found)


def sample(inputs: Signature, seed: int = 0) -> tuple[Tensor, ...]:
    """Return tensors of these dtypes and shapes: normal floats, zeros and ones otherwise."""
    torch = require_torch()
    generator = torch.Generator().manual_seed(seed)
    names = {DType.F16: "float16", DType.BF16: "bfloat16", DType.F32: "float32", DType.F64: "float64"}
    names |= {DType.I8: "int8", DType.I32: "int32", DType.I64: "int64", DType.BOOL: "bool"}

    def draw(dtype: DType, shape: tuple[int, ...]) -> Any:
        kind = getattr(torch, names[dtype])
        if dtype.is_float:
            return torch.randn(shape, generator=generator, dtype=torch.float32).to(kind)
        return torch.randint(0, 2, shape, generator=generator).to(kind)

    return tuple(draw(dtype, shape) for dtype, shape in inputs)


def load_module(what: str, inputs: str | None = None) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the module that `file.py:Class` names, in evaluation mode, and example inputs for it.

    Constructor arguments come from `get_init_inputs()` of the class or the file, if there is one; weights are
    drawn with seed 0. Inputs come from `inputs` (`f32[16,64] i64[16]`) or else from `get_inputs()` or
    `example_inputs` of the class or the file. (KernelBench, arXiv 2502.10517, names both functions so.)
    Raises `ImportProblem`.
    """
    torch = require_torch()
    file, _, name = what.rpartition(":")
    path = Path(file)
    if path.suffix != ".py" or not name.isidentifier():
        raise ImportProblem(f"expected file.py:Class, got {what[:80]!r}")
    if not path.is_file():
        raise ImportProblem(f"no file {path}")
    source = _execute(path)
    kind = getattr(source, name, None)
    modules = [n for n, v in vars(source).items() if _is_module_class(v) and v.__module__ == source.__name__]
    if not isinstance(kind, type) or not _is_module_class(kind):
        reason = "is not an nn.Module class" if kind is not None else "is not defined"
        raise ImportProblem(f"{name} {reason} in {path.name}; it has {', '.join(modules) or 'none'}")
    torch.manual_seed(0)
    module = _constructed(kind, source).eval()
    if inputs is not None:
        return module, sample(parse_inputs(inputs))
    for holder in (module, source):
        if hasattr(holder, "get_inputs"):
            return module, _tensors(_called("get_inputs()", holder.get_inputs))
        if hasattr(holder, "example_inputs"):
            return module, _tensors(holder.example_inputs)
    raise ImportProblem(f"{path.name} has no get_inputs(); say the inputs, such as --inputs 'f32[16,64]'")


def instantiate(reference: Reference) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the module of a reference in evaluation mode, weights drawn with seed 0, and example inputs.

    Raises `ImportProblem` for a user's file.
    """
    if is_file(reference.target):
        return load_module(reference.target, reference.inputs or None)
    torch = require_torch()
    module, _, name = reference.target.partition(":")
    torch.manual_seed(0)
    made = getattr(importlib.import_module(module), name)(**dict(reference.arguments))
    return made.eval(), sample(parse_inputs(reference.inputs))


def _execute(path: Path) -> Any:
    """Run a user's file as a module of its own; what stands beside it can be imported."""
    spec = importlib.util.spec_from_file_location(f"user_file_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    loader = spec.loader
    source = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = source  # dataclasses look up the module of their class
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        _called(path.name, lambda: loader.exec_module(source))
    finally:
        sys.path.remove(folder)
    return source


def _constructed(kind: type, source: Any) -> Any:
    """An instance, made with the arguments that `get_init_inputs()` gives."""
    give = getattr(kind, "get_init_inputs", getattr(source, "get_init_inputs", None))
    required = _required(kind)
    if required and give is None:
        raise ImportProblem(
            f"{kind.__name__} needs the constructor argument{'s' * (len(required) > 1)} {', '.join(required)}: "
            "give defaults, or define get_init_inputs()"
        )
    arguments = () if give is None else tuple(_called("get_init_inputs()", give))
    return _called(f"{kind.__name__}()", lambda: kind(*arguments))


def _called(what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here
        raise ImportProblem(f"{what}: {type(error).__name__}: {first_line(error)}{user_line(error)}") from None


def _is_module_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, require_torch().nn.Module)


def _required(kind: type) -> list[str]:
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _tensors(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, Iterable) and not hasattr(value, "shape") else (value,)
