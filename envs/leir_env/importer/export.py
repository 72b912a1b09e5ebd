"""A module to an exported program: one path through it, in evaluation mode, in elementary operators."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from envs.leir_env.importer.relax import ImportProblem, first_line, operator_name, source_of, user_line

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_ONE_PATH = (
    "control flow or a shape depends on the values of a tensor, but a program has one path: use torch.where, or "
    "fix the choice in the constructor"
)


def export_of(module: nn.Module, inputs: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    """Return the exported module, its operators written out by `forms`. Raises `ImportProblem`."""
    import torch
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    from envs.leir_env.importer.forms import decompositions

    try:
        # It prints the graph of a module that it refuses.
        with contextlib.redirect_stderr(io.StringIO()):
            program = torch.export.export(module, inputs)
    except GuardOnDataDependentSymNode as error:
        raise ImportProblem(_ONE_PATH + user_line(error)) from None
    except Exception as error:  # noqa: BLE001 - the user's own code runs here
        raise ImportProblem(f"torch.export refuses the module: {first_line(error)}{user_line(error)}") from None
    _refuse_training(module, program)
    _refuse_dynamic_shapes(program)
    return program.run_decompositions(decompositions())


_TRAINING = {"dropout": 2, "batch_norm": 5, "feature_dropout": 2, "alpha_dropout": 2}
"""Operators with a flag that is set in training, and the position of the flag."""


def _refuse_training(module: nn.Module, exported: torch.export.ExportedProgram) -> None:
    if not any(part.training for part in module.modules()):
        return
    for node in exported.graph.nodes:
        name = operator_name(node)
        if name in _TRAINING and len(node.args) > _TRAINING[name] and node.args[_TRAINING[name]]:
            raise ImportProblem(f"{name} is in training mode{source_of(node)}; call module.eval() first")


def _refuse_dynamic_shapes(exported: torch.export.ExportedProgram) -> None:
    for node in exported.graph.nodes:
        shape = getattr(node.meta.get("val"), "shape", ())
        if not all(isinstance(extent, int) for extent in shape):
            raise ImportProblem(_ONE_PATH + source_of(node))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and logging: what matters arrives as an exception."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Drop what TVM's C++ writes to the standard error stream."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let PyTorch make tensors of `dtype` where nothing else is said."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
