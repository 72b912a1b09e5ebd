"""An exported PyTorch program to Relax loops, through TVM's importer where that is right.

TVM 0.27 computes products and convolutions in float32 whatever their dtype, flattens embeddings, gives
integer tensors integer scalars, and lacks some reductions and running sums: these have their own converters here.
"""

from __future__ import annotations

import os
import re
import traceback
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ImportProblem(ValueError):
    """A module that can't be imported; the message says what, where and what to do."""


def to_relax(exported: torch.export.ExportedProgram) -> Any:
    """Return the legalised Relax module. Errors name the node."""
    import torch
    from tvm import relax, transform
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    _promote(exported)
    current: list[Any] = [None]
    importer = ExportedProgramImporter()
    table = importer.convert_map | {
        "convolution.default": _convolution(importer),
        "matmul.default": _matmul(importer),
        "mm.default": _matmul(importer),
        "bmm.default": _matmul(importer),
        "embedding.default": _embedding(importer),
        "select.int": _select(importer),
        "amax.default": _reduction(importer, relax.op.max),
        "amin.default": _reduction(importer, relax.op.min),
        "prod.dim_int": _reduction(importer, relax.op.prod),
        "cumsum.default": _running(importer, "add"),
        "cumprod.default": _running(importer, "mul"),
    }

    def tracked(convert: Any) -> Any:
        def call(node: Any) -> Any:
            current[0] = node
            return convert(node)

        return call

    importer.convert_map = {name: tracked(convert) for name, convert in table.items()}
    for node in exported.graph.nodes:
        if node.op == "call_function" and node.target.__name__ not in importer.convert_map:
            raise ImportProblem(
                f"operator {node.target} (node {node.name}) is not supported; write it out in elementary "
                f"operators{source_of(node)}"
            )
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise ImportProblem(
                f"operator {node.target} (node {node.name}) draws random numbers, but a program is a function of "
                f"its inputs{source_of(node)}"
            )
    try:
        module = importer.from_exported_program(exported, True, True, False, None)
    except Exception as error:  # noqa: BLE001 - the compiler's errors have no common base
        node = current[0]
        raise ImportProblem(
            f"operator {node.target} (node {node.name}) can't be imported: {first_line(error)}{source_of(node)}"
        ) from None
    steps = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.LegalizeOps(),
    ]
    try:
        return transform.Sequential(steps)(module)
    except Exception as error:  # noqa: BLE001 - the compiler's errors have no common base
        raise ImportProblem(f"TVM can't write the module as loops: {first_line(error)}") from None


_ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div", "pow"})


def _promote(exported: torch.export.ExportedProgram) -> None:
    """Cast integer operands of arithmetic whose result is a float; TVM would cast the float scalar."""
    import torch

    for node in list(exported.graph.nodes):
        result = node.meta.get("val")
        if operator_name(node) not in _ARITHMETIC or not result.is_floating_point():
            continue
        for operand in node.all_input_nodes:
            if not operand.meta["val"].is_floating_point():
                with exported.graph.inserting_before(node):
                    options = {"dtype": result.dtype}
                    cast = exported.graph.call_function(torch.ops.aten._to_copy.default, (operand,), options)
                cast.meta = {**node.meta, "val": operand.meta["val"].to(result.dtype)}
                node.replace_input_with(operand, cast)


def _matmul(importer: Any) -> Any:
    """A converter for products; TVM's own always returns float32."""
    from tvm import relax

    def convert(node: Any) -> Any:
        return importer.block_builder.emit(relax.op.matmul(*(importer.env[tensor] for tensor in node.args)))

    return convert


def _convolution(importer: Any) -> Any:
    """A converter for convolutions of one to three dimensions; TVM's own always returns float32."""
    from tvm import relax

    def convert(node: Any) -> Any:
        x, weight, bias, strides, padding, dilation, transposed, output_padding, groups = node.args
        name = f"conv{len(strides)}d" + ("_transpose" if transposed else "")
        options = {"output_padding": output_padding} if transposed else {}
        result = importer.block_builder.emit(
            getattr(relax.op.nn, name)(
                importer.env[x],
                importer.env[weight],
                strides=strides,
                padding=padding * 2,
                dilation=dilation,
                groups=groups,
                **options,
            )
        )
        if bias is None:
            return result
        shape = [1, -1, *[1] * len(strides)]
        broadcast = importer.block_builder.emit(relax.op.reshape(importer.env[bias], shape))
        return importer.block_builder.emit(relax.op.add(result, broadcast))

    return convert


def _embedding(importer: Any) -> Any:
    """A converter for embeddings; TVM's own flattens the indices. Like PyTorch, LEIR demands them within bounds."""
    from tvm import te

    def lookup(table: Any, indices: Any) -> Any:
        rank = len(indices.shape)
        shape = (*indices.shape, *table.shape[1:])
        return te.compute(shape, lambda *at: table(indices(*at[:rank]), *at[rank:]))

    def convert(node: Any) -> Any:
        table, indices = (importer.env[tensor] for tensor in node.args[:2])
        return importer.block_builder.emit_te(lookup, table, indices, primfunc_name_hint="embedding")

    return convert


def _select(importer: Any) -> Any:
    """A converter for one position along a dimension; TVM's own gathers by an index tensor."""
    from tvm import relax

    def convert(node: Any) -> Any:
        source, dim, position = node.args
        x = importer.env[source]
        axis = dim % len(x.ty.shape)
        start = position % int(x.ty.shape[axis])
        cut = relax.op.strided_slice(x, [axis], [start], [start + 1])
        return importer.block_builder.emit(relax.op.squeeze(importer.block_builder.emit(cut), [axis]))

    return convert


def _reduction(importer: Any, operator: Any) -> Any:
    """A converter for `operator(x, dims, keepdim)`."""

    def convert(node: Any) -> Any:
        dims = node.args[1] if len(node.args) > 1 else None
        keepdim = len(node.args) > 2 and node.args[2]
        return importer.block_builder.emit(operator(importer.env[node.args[0]], dims or None, keepdim))

    return convert


RUNNING, AXIS = "leir.running", "leir.axis"
"""Attributes of a PrimFunc that stands for a running sum or product: the operator, and the dimension."""


def _running(importer: Any, operator: str) -> Any:
    """A converter for running sums and products; TVM has only an opaque form. A copy stands for the recurrence."""
    from tvm import te

    def copy(x: Any) -> Any:
        return te.compute(x.shape, lambda *at: x(*at))

    def convert(node: Any) -> Any:
        from tvm import relax

        x, dtype = importer.env[node.args[0]], str(node.meta["val"].dtype).removeprefix("torch.")
        rank = len(x.ty.shape)
        if str(x.ty.dtype) != dtype:
            x = importer.block_builder.emit(relax.op.astype(x, dtype))
        attributes = {RUNNING: operator, AXIS: node.args[1] % rank}
        return importer.block_builder.emit_te(copy, x, primfunc_name_hint="running", primfunc_attrs=attributes)

    return convert


_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>[0-9]+)')


def operator_name(node: Any) -> str:
    """`dropout` for a node of `aten.dropout.default`."""
    return node.target.__name__.partition(".")[0] if node.op == "call_function" else ""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def source_of(node: Any) -> str:
    """The last line of the user's code that a node came from, or nothing."""
    trace = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    places = [(_FRAME.match(line), code) for line, code in pairwise(trace)]
    return _last([(match["file"], match["line"], code) for match, code in places if match])


def user_line(error: BaseException) -> str:
    """The last line of the user's code that an error passed through, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    return _last([(frame.filename, str(frame.lineno), frame.line or "") for frame in frames])


def _last(places: list[tuple[str, str, str]]) -> str:
    """Show the last place outside PyTorch, this package and Python's import system."""
    import torch

    ours = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
    theirs = [place for place in places if not place[0].startswith((*ours, "<frozen"))]
    if not theirs:
        return ""
    file, line, code = theirs[-1]
    return f", at {Path(file).name}:{line}: {code[:100]}"
