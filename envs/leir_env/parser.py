"""Text to `Program`, with errors that name line, column and what was expected.

The text may come from a model: its length is limited before anything else is done, and nothing is
evaluated. `parse` checks syntax and scoping of indices; `load` also runs `verify`.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lark

from envs.leir_env.ir import (
    MAX_EXPRESSION_DEPTH,
    Access,
    Assign,
    Axis,
    Block,
    Call,
    Cast,
    Const,
    DType,
    Equation,
    Expr,
    ExpressionTooDeep,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Scope,
    Statement,
    Tensor,
)
from envs.leir_env.ops import INFIX, OPS, RESERVED

MAX_CHARACTERS = 200_000
MAX_NESTING = 60
"""Brackets within brackets; the parse tree is walked recursively."""


LOOPS = ("L", "P", "U", "V")
"""Kinds of loops that are no tensor names; the `B` of a bound loop is told by its axis."""

SHOWN = 80
"""Characters of a long line that an error shows on either side of the place."""


class ParseError(ValueError):
    """Malformed LEIR text. `line` and `column` count from 1."""

    def __init__(self, message: str, line: int = 0, column: int = 0, source: str = "") -> None:
        self.message, self.line, self.column = message, line, column
        lines = source.splitlines()
        whole = lines[line - 1] if 0 < line <= len(lines) else ""
        start = max(0, column - 1 - SHOWN) if len(whole) > 2 * SHOWN else 0
        shown = whole[start : start + 2 * SHOWN]
        where = f"line {line}, column {column}: " if line else ""
        pointer = f"\n  {shown}\n  {' ' * (column - 1 - start)}^" if shown else ""
        super().__init__(f"{where}{message}{pointer}")


@dataclass(frozen=True, slots=True)
class Spans:
    """Where the statements of a text stand: line and column in pre-order of the tree."""

    source: str
    positions: tuple[tuple[int, int], ...]


def parse(text: str) -> Program:
    """Return the program that `text` spells. Raises `ParseError`."""
    return parse_located(text)[0]


def parse_located(text: str) -> tuple[Program, Spans]:
    """Parse, and say where each statement stands."""
    _check_size(text)
    source = text if text.endswith("\n") else text + "\n"
    try:
        builder = _Builder()
        program = builder.program(_grammar().parse(source))
    except lark.exceptions.UnexpectedInput as error:
        raise _syntax_error(error, source) from None
    except _Located as error:
        raise ParseError(error.message, error.line, error.column, source) from None
    return program, Spans(source, tuple(builder.positions))


def read(path: str | Path) -> Program:
    """Parse a `.leir` file."""
    return parse(Path(path).read_text(encoding="utf-8"))


def _check_size(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise ParseError(f"the text has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
    depth = 0
    for match in re.finditer(r"[\[({\])}]", text):
        depth += 1 if match[0] in "[({" else -1
        if depth > MAX_NESTING:
            line = text.count("\n", 0, match.start()) + 1
            column = match.start() - text.rfind("\n", 0, match.start())
            raise ParseError(f"brackets are nested more than {MAX_NESTING} deep", line, column, text)


@functools.cache
def _grammar() -> lark.Lark:
    grammar = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    return lark.Lark(grammar, parser="lalr", propagate_positions=False, maybe_placeholders=False)


_EXPECTED = {
    "LOOPS": "a loop (L_i)",
    "TENSOR": "a tensor",
    "ELEMENT": "a tensor element",
    "ELEMENTS": "a tensor element",
    "DTYPE": "a dtype",
    "NAME": "an index",
    "INT": "an integer",
    "FLOAT": "a number",
    "ASSIGN": "an assignment (= += *= max= min=)",
    "_NL": "the end of the line",
    "_OPEN": "'[' and a new line",
    "_CLOSE": "']'",
    "FUNCTION": "a function",
    "CAST": "a cast",
    "COMPARE": "a comparison",
    "$END": "the end of the text",
}


def _syntax_error(error: lark.exceptions.UnexpectedInput, source: str) -> ParseError:
    line, column, hint = max(error.line, 1), max(error.column, 1), ""
    if isinstance(error, lark.exceptions.UnexpectedToken):
        found = "the end of the line" if error.token.type in ("_NL", "$END") else f"{error.token.value!s:.40}"
        names = error.accepts or error.expected
        if error.token.type == "$END":
            line, column = source.count("\n"), len(source.splitlines()[-1]) + 1 if source.strip() else 1
    else:
        start = error.pos_in_stream or 0
        found, names = repr(source[start : start + 1]), getattr(error, "allowed", None) or set()
        if source[start : start + 1] == "_":
            before = source[start - 1 : start]
            hint = "; loops are written L_i,j" if before in LOOPS else "; an element is written A[i,j]"
    terminals = {term.name: term.pattern for term in _grammar().terminals}
    words = sorted(
        {_EXPECTED.get(name) or (f"'{terminals[name].value}'" if name in terminals else name.lower()) for name in names}
    )
    expected = ", ".join(words[:8]) + (" ..." if len(words) > 8 else "")
    return ParseError(f"found {found}, expected {expected}{hint}", line, column, source)


class _Located(Exception):
    """A semantic error at a place."""

    def __init__(self, message: str, line: int, column: int) -> None:
        self.message, self.line, self.column = message, line, column


def _at(token: lark.Token) -> tuple[int, int]:
    return token.line or 0, token.column or 0


_HEADS = re.compile(r"([LPVUB])(?:\^([bt][xyz]))?_([a-z0-9,]+)")
_NAME = re.compile(r"[a-z][a-z0-9]*")
_PLAIN = re.compile(r"([0-9]*)([a-z][a-z0-9]*)?")


class _Builder:
    """Walks the parse tree once; knows the index domains and which loops are open."""

    def __init__(self) -> None:
        self.extents: dict[str, int] = {}
        self.open: list[str] = []
        self.used: set[str] = set()
        self.positions: list[tuple[int, int]] = []
        self.depth = 0

    def program(self, tree: lark.Tree[lark.Token]) -> Program:
        parts = {child.data: child for child in _trees(tree)}
        tokens: dict[str, lark.Token] = {}
        if "domains" in parts:
            for domain in _trees(parts["domains"]):
                *names, extent = (child for child in domain.children if isinstance(child, lark.Token))
                for name in names:
                    if name in self.extents:
                        raise _Located(f"index {name} has two extents", *_at(name))
                    if name in RESERVED or re.fullmatch(r"e[0-9]+", name):
                        raise _Located(f"{name} is a reserved word, not an index name", *_at(name))
                    self.extents[str(name)] = _integer(extent)
                    tokens[str(name)] = name
        tensors = self.header(parts["header"])
        body = self.statements(parts["body"])
        for unused, token in tokens.items():
            if unused not in self.used:
                raise _Located(f"index {unused} is declared but no loop runs over it", *_at(token))
        return Program(Block(body, tensors))

    def header(self, tree: lark.Tree[lark.Token]) -> tuple[Tensor, ...]:
        groups = list(_trees(tree))
        tokens = [child for child in tree.children if isinstance(child, lark.Token)]
        roles = [Role.INPUT, Role.PARAMETER, Role.OUTPUT, Role.TEMPORARY]
        marks = {str(token) for token in tokens}
        if "|" not in marks:
            roles.remove(Role.PARAMETER)
        return tuple(
            tensor for role, group in zip(roles, groups, strict=False) for tensor in self.declarations(group, role)
        )

    def declarations(self, tree: lark.Tree[lark.Token], role: Role) -> Iterator[Tensor]:
        for group in _trees(tree):
            names = [t for t in group.children if isinstance(t, lark.Token) and t.type == "TENSOR"]
            (dtype,) = [t for t in group.children if isinstance(t, lark.Token) and t.type == "DTYPE"]
            base, _, scope = dtype.partition(".")
            shape = tuple(self.extent(t) for s in _trees(group) for t in s.children)
            for name in names:
                if name in LOOPS:
                    raise _Located(f"{name} is a loop kind, not a tensor name", *_at(name))
                yield Tensor(str(name), DType(base), shape, Scope(f".{scope}" if scope else ""), role)

    def extent(self, token: Any) -> int:
        if token.type == "INT":
            return _integer(token)
        if token not in self.extents:
            raise _Located(f"unknown index {token}{_similar(token, self.extents)}", *_at(token))
        self.used.add(str(token))
        return self.extents[str(token)]

    def statements(self, tree: lark.Tree[lark.Token]) -> tuple[Statement, ...]:
        return tuple(self.statement(child) for child in _trees(tree))

    def statement(self, tree: lark.Tree[lark.Token]) -> Statement:
        (inner,) = _trees(tree)
        run = next((child for child in tree.children if isinstance(child, lark.Token)), None)
        if run is None and inner.data == "block":
            raise ParseError("a block needs a loop before it")
        heads = [] if run is None else list(self.heads(run))
        block = self.block(inner) if inner.data == "block" else Block((self.equation(inner),))
        for kind, axis, name in reversed(heads):
            block = Block((Loop(kind, name, self.extents[name], block, axis),))
            self.open.pop()
        return block.body[0]

    def heads(self, run: lark.Token) -> Iterator[tuple[Kind, Axis | None, str]]:
        """Open the loops of a run of loop heads: `P_i,j V_k`."""
        line, column = _at(run)
        for heads in _HEADS.finditer(run):
            kind, axis, _ = heads.groups()
            for match in _NAME.finditer(run, *heads.span(3)):
                place = heads if match.start() == heads.start(3) else match
                self.enter(match[0], (line, column + place.start()))
                yield Kind(kind), Axis(axis) if axis else None, match[0]

    def enter(self, name: str, place: tuple[int, int]) -> None:
        """Open one loop."""
        if name not in self.extents:
            raise _Located(f"unknown index {name}{_similar(name, self.extents)}", *place)
        if name in self.open:
            raise _Located(f"loop {name} stands inside another loop over {name}", *place)
        if len(self.open) >= MAX_NESTING:
            raise _Located(f"loops are nested more than {MAX_NESTING} deep", *place)
        self.open.append(name)
        self.used.add(name)
        self.positions.append(place)

    def block(self, tree: lark.Tree[lark.Token]) -> Block:
        parts = {child.data: child for child in _trees(tree)}
        tensors = tuple(self.declarations(parts["locals"], Role.TEMPORARY)) if "locals" in parts else ()
        return Block(self.statements(parts["body"]), tensors)

    def equation(self, tree: lark.Tree[lark.Token]) -> Equation:
        target, assign, value, *guards = tree.children
        assert isinstance(assign, lark.Token)
        first = target.children[0]  # type: ignore[union-attr]
        self.positions.append((first.line or 0, first.column or 0))  # type: ignore[union-attr]
        access = self.expression(target)
        assert isinstance(access, Access)
        guard = tuple(g for tree in guards for g in conjuncts(self.expression(tree.children[0])))  # type: ignore[union-attr]
        return Equation(access, Assign(str(assign)), self.expression(value), guard)

    def expression(self, tree: Any) -> Expr:
        try:
            return self._expression(tree)
        except ExpressionTooDeep as error:
            raise _Located(str(error), *self.positions[-1]) from None

    def _expression(self, tree: Any) -> Expr:
        self.depth += 1
        if self.depth > MAX_EXPRESSION_DEPTH:
            raise ExpressionTooDeep(f"an expression is nested more than {MAX_EXPRESSION_DEPTH} deep")
        found = self._node(tree)
        self.depth -= 1
        return found

    def _node(self, tree: Any) -> Expr:
        parts = tree.children
        match tree.data:
            case "infix":
                # A left-deep chain is walked in a loop: its length is not limited by the stack.
                chain = []
                while getattr(tree, "data", "") == "infix":
                    left, symbol, right = tree.children
                    chain.append((INFIX[symbol].name, right))
                    tree = left
                value = self._expression(tree)
                for op, right in reversed(chain):
                    value = Call(op, (value, self._expression(right)))
                return value
            case "product":
                factors = []
                while getattr(tree, "data", "") == "product":
                    left, right = tree.children
                    factors.append(right)
                    tree = left
                value = self._expression(tree)
                for factor in reversed(factors):
                    value = Call("mul", (value, self._expression(factor)))
                return value
            case "negate":
                value = self._expression(parts[1])
                if isinstance(value, Const) and not isinstance(value.value, bool):
                    return Const(-value.value)
                return Call("neg", (value,))
            case "logical_not":
                return Call("not", (self._expression(parts[0]),))
            case "integer":
                return Const(_integer(parts[0]))
            case "real":
                return Const(float(parts[0]))
            case "infinity":
                return Const(float("inf"))
            case "true" | "false":
                return Const(tree.data == "true")
            case "index":
                return self.index(str(parts[0]), parts[0])
            case "scalar":
                return Access(str(parts[0]))
            case "element":
                name, _, subscripts = parts[0].partition("[")
                items = subscripts[:-1].split(",")
                return Access(name, tuple(self.plain(item, parts[0]) for item in items))
            case "elements":
                return Access(str(parts[0][:-1]), tuple(self._expression(part) for part in parts[1:]))
            case "cast":
                return Cast(DType(str(parts[0][:-1])), self._expression(parts[1]))
            case "call":
                name = parts[0][:-1]
                if name not in OPS or OPS[name].symbol:
                    raise _Located(f"unknown function {name}{_similar(name, OPS)}", *_at(parts[0]))
                if OPS[name].arity != len(parts) - 1:
                    raise _Located(f"{name} takes {OPS[name].arity} arguments, got {len(parts) - 1}", *_at(parts[0]))
                return Call(name, tuple(self._expression(part) for part in parts[1:]))
        raise AssertionError(f"no such grammar rule: {tree.data}")

    def plain(self, item: str, token: lark.Token) -> Expr:
        """A subscript that is an integer, an index, or a multiple of one."""
        match = _PLAIN.fullmatch(item)
        assert match is not None
        factor, name = match.groups()
        if not name:
            return Const(_integer(token, factor))
        index = self.index(name, token)
        return Call("mul", (Const(_integer(token, factor)), index)) if factor else index

    def index(self, name: str, token: lark.Token) -> Index:
        if name not in self.open:
            reason = "no loop here runs over it" if name in self.extents else "unknown index"
            raise _Located(f"{name}: {reason}{_similar(name, self.open)}", *_at(token))
        return Index(name)


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """Split a condition at its top-level `and`s."""
    if isinstance(expr, Call) and expr.op == "and":
        return conjuncts(expr.args[0]) + conjuncts(expr.args[1])
    return (expr,)


def _trees(tree: lark.Tree[lark.Token]) -> Iterator[lark.Tree[lark.Token]]:
    return (child for child in tree.children if isinstance(child, lark.Tree))


def _integer(token: lark.Token, digits: str | None = None) -> int:
    digits = str(token) if digits is None else digits
    if len(digits) > 18:
        raise _Located(f"integer {digits:.24} has more than 18 digits", *_at(token))
    return int(digits)


def _similar(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
