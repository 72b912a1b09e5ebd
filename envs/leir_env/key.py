"""The key of a program: its identity up to the names of indices and tensors.

Each top-level nest has a form, cached by the nest, in which its loops are numbered from the outside in and its
tensors by first use; a key digests the forms and which tensor of the program each number stands for.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping

from envs.leir_env.ir import Access, Cast, Const, Equation, Expr, Index, Program, Statement, Tensor, children


@functools.lru_cache(maxsize=8192)
def key(program: Program) -> str:
    """Return 128 bits of SHA-256, in hexadecimal: equal for alpha-equivalent programs, and only for these.

    The order of inputs, parameters and outputs counts; temporaries go by first use.
    """
    declared = {tensor.name: tensor for tensor in program.tensors}
    numbers = {tensor.name: n for n, tensor in enumerate(program.inputs + program.outputs)}
    parts: list[str] = []
    for statement in program.body:
        form, names = _form(statement)
        parts.append(f"{form} {[numbers.setdefault(name, len(numbers)) for name in names]}")
    for name in declared:
        numbers.setdefault(name, len(numbers))
    order = sorted(declared, key=numbers.__getitem__)
    header = [_typed(declared[name]) for name in order]
    return hashlib.sha256("\n".join((*header, *parts)).encode()).hexdigest()[:32]


def _typed(tensor: Tensor) -> str:
    return f"{tensor.role} {tensor.dtype}{tensor.scope}{list(tensor.shape)}"


@functools.lru_cache(maxsize=16384)
def _form(statement: Statement) -> tuple[str, tuple[str, ...]]:
    """A nest without names, and the names of the tensors from outside it in order of first use."""
    writer = _Writer()
    writer.statement(statement, {})
    return "".join(writer.parts), tuple(writer.outside)


class _Writer:
    """Spells a nest in prefix form; loops and private tensors are numbered as they are met."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.outside: dict[str, int] = {}
        self.private: dict[str, str] = {}
        self.loops = 0

    def statement(self, statement: Statement, indices: Mapping[str, str]) -> None:
        if isinstance(statement, Equation):
            self.parts.append(statement.assign)
            for expr in (statement.target, statement.value, *statement.guard):
                self.expression(expr, indices)
            self.parts.append(";")
            return
        name = f"i{self.loops}"
        self.loops += 1
        inner = {**indices, statement.index: name}
        self.parts.append(f"{statement.kind}{statement.axis or ''}{statement.extent}[")
        mine = {tensor.name: tensor for tensor in statement.block.tensors}
        self.private.update(dict.fromkeys(mine, ""))
        for child in statement.block.body:
            self.statement(child, inner)
        declared = sorted(f"{self.private.pop(name)}{_typed(tensor)}" for name, tensor in mine.items())
        self.parts.append(f"{''.join(declared)}]")

    def expression(self, expr: Expr, indices: Mapping[str, str]) -> None:
        match expr:
            case Index(name):
                self.parts.append(indices[name])
                return
            case Const(value):
                self.parts.append(repr(value))
                return
            case Access(name):
                self.parts.append(self.tensor(name))
            case Cast(dtype):
                self.parts.append(dtype)
            case _:
                self.parts.append(expr.op)
        self.parts.append("(")
        for child in children(expr):
            self.expression(child, indices)
            self.parts.append(",")
        self.parts.append(")")

    def tensor(self, name: str) -> str:
        if name not in self.private:
            return f"T{self.outside.setdefault(name, len(self.outside))}"
        if not self.private[name]:
            self.private[name] = f"P{self.loops}.{len(self.parts)}"
        return self.private[name]
