"""`Program` to canonical text. The only place that formats LEIR.

Canonical: index domains in order of first loop, those of one extent together; neighbouring loops of one
kind share its letter; a dimension is printed by the name of the index that runs over exactly that
dimension where one does, by its number otherwise; products by juxtaposition wherever that parses back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envs.leir_env.ir import (
    Access,
    Block,
    Call,
    Cast,
    Const,
    Equation,
    Expr,
    Index,
    Loop,
    Program,
    Role,
    Statement,
    Tensor,
    subexpressions,
)
from envs.leir_env.ops import OPS

_UNARY = OPS["neg"].precedence
_GUARD = OPS["and"].precedence + 1


def show(program: Program) -> str:
    """Return the canonical text, ending in a newline."""
    return _Printer(program).text()


def show_expression(expr: Expr) -> str:
    """Return one expression as it stands in an equation."""
    return _expression(expr, 0)


def show_equation(equation: Equation) -> str:
    """Return one equation, with its guard."""
    text = f"{_expression(equation.target, 0)} {equation.assign} {_expression(equation.value, 0)}"
    if equation.guard:
        text += " if " + " and ".join(_expression(condition, _GUARD) for condition in equation.guard)
    return text


def show_loop(loop: Loop) -> str:
    """Return the head of a loop: `L_i`, `B^tx_i`."""
    axis = f"^{loop.axis}" if loop.axis else ""
    return f"{loop.kind}{axis}_{loop.index}"


def show_loops(loops: Sequence[Loop]) -> str:
    """Return the heads of nested loops, outermost first; neighbours of one kind share theirs: `P_i L_j,k V_l`."""
    heads: list[str] = []
    for outer, loop in zip((None, *loops), loops, strict=False):
        if outer is not None and outer.kind is loop.kind and not loop.axis:
            heads[-1] += f",{loop.index}"
        else:
            heads.append(show_loop(loop))
    return " ".join(heads)


def show_tensor(tensor: Tensor) -> str:
    """Return a declaration with its extents as numbers: `A:f32[16,64]`."""
    return tensor.name + _typed(tensor, tuple(map(str, tensor.shape)))


class _Printer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.extents: dict[str, int] = {}
        self.declared = dict[str, Tensor]()
        self.dimensions: dict[str, list[str]] = {}
        self._declare(program.block)
        for statement in program.body:
            self._collect(statement)

    def text(self) -> str:
        body = "".join(self._statement(s, "") for s in self.program.body)
        same: dict[int, list[str]] = {}
        for name, extent in self.extents.items():
            same.setdefault(extent, []).append(name)
        domains = " ".join(f"{','.join(names)}:{extent}" for extent, names in same.items())
        roles = {role: self._tensors(self.program.with_role(role)) for role in Role}
        left = roles[Role.INPUT]
        if roles[Role.PARAMETER]:
            left += f" | {roles[Role.PARAMETER]}"
        head = f"{left} -> {roles[Role.OUTPUT]}".strip()
        if roles[Role.TEMPORARY]:
            head += f"; {roles[Role.TEMPORARY]}"
        return (f"{domains}\n" if domains else "") + head + "\n" + body

    def _declare(self, block: Block) -> None:
        for tensor in block.tensors:
            self.declared[tensor.name] = tensor
            self.dimensions[tensor.name] = [str(extent) for extent in tensor.shape]

    def _collect(self, statement: Statement) -> None:
        if isinstance(statement, Loop):
            known = self.extents.setdefault(statement.index, statement.extent)
            if known != statement.extent:
                raise ValueError(f"index {statement.index} has extents {known} and {statement.extent}")
            self._declare(statement.block)
            for child in statement.block.body:
                self._collect(child)
            return
        for expr in (statement.target, statement.value, *statement.guard):
            for node in subexpressions(expr):
                if isinstance(node, Access) and node.tensor in self.declared:
                    self._name_dimensions(node)

    def _name_dimensions(self, access: Access) -> None:
        names = self.dimensions[access.tensor]
        shape = self.declared[access.tensor].shape
        for position, (subscript, extent) in enumerate(zip(access.subscripts, shape, strict=False)):
            if (
                isinstance(subscript, Index)
                and names[position].isdigit()
                and self.extents.get(subscript.name) == extent
            ):
                names[position] = subscript.name

    def _tensors(self, tensors: Iterable[Tensor]) -> str:
        groups: list[tuple[list[str], str]] = []
        for tensor in tensors:
            typed = _typed(tensor, tuple(self.dimensions[tensor.name]))
            if groups and groups[-1][1] == typed:
                groups[-1][0].append(tensor.name)
            else:
                groups.append(([tensor.name], typed))
        return " ".join(",".join(names) + typed for names, typed in groups)

    def _statement(self, statement: Statement, indent: str) -> str:
        heads: list[Loop] = []
        while isinstance(statement, Loop):
            heads.append(statement)
            block = statement.block
            if block.tensors or len(block.body) != 1:
                inner = indent + "  "
                head = f"{inner}{self._tensors(block.tensors)}\n" if block.tensors else ""
                body = "".join(self._statement(child, inner) for child in block.body)
                return f"{indent}{show_loops(heads)} [\n{head}{body}{indent}]\n"
            statement = block.body[0]
        run = f"{show_loops(heads)} " if heads else ""
        return f"{indent}{run}{show_equation(statement)}\n"


def _typed(tensor: Tensor, dimensions: tuple[str, ...]) -> str:
    shape = f"[{','.join(dimensions)}]" if dimensions else ""
    return f":{tensor.dtype}{tensor.scope}{shape}"


def _expression(expr: Expr, outer: int, right: bool = False) -> str:
    """Print, in parentheses when `outer` binds tighter than the expression's own operator.

    `right`: as a right operand, where a leading minus is set in parentheses too.
    """
    match expr:
        case Index(name):
            return name
        case Const(value):
            text = _constant(value)
            return f"({text})" if text[0] == "-" and right else text
        case Access(name, subscripts):
            return name + _subscripts(subscripts)
        case Cast(dtype, value):
            return f"{dtype}({_expression(value, 0)})"
    op = OPS[expr.op]
    if not op.symbol:
        return f"{op.name}({','.join(_expression(arg, 0) for arg in expr.args)})"
    if op.arity == 1:
        argument = _expression(expr.args[0], op.precedence)
        text = f"not {argument}" if op.name == "not" else f"-{argument}"
        return f"({text})" if outer > op.precedence or (right and op.name == "neg") else text
    left_operand, right_operand = expr.args
    # All infix operators associate to the left; a comparison does not chain.
    left_text = _expression(left_operand, op.precedence + (op.typing == "compare"))
    right_text = _expression(right_operand, op.precedence + 1, right=True)
    text = left_text + _infix(op.symbol, left_operand, right_operand, right_text) + right_text
    return f"({text})" if outer > op.precedence else text


def _infix(symbol: str, left: Expr, right: Expr, right_text: str) -> str:
    if symbol.isalpha():
        return f" {symbol} "
    if symbol != "*":
        return symbol
    if isinstance(left, Const) and type(left.value) is int and isinstance(right, Index):
        return ""  # 32io
    plain = isinstance(left, Access) or (isinstance(left, Call) and left.op == "mul")
    return " " if plain and right_text[0].isupper() else "*"


def _subscripts(subscripts: tuple[Expr, ...]) -> str:
    if not subscripts:
        return ""
    return f"[{','.join(_expression(subscript, 0) for subscript in subscripts)}]"


def _constant(value: int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


__all__ = ["show", "show_equation", "show_expression", "show_loop", "show_loops", "show_tensor"]
