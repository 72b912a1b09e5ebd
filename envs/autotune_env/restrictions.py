"""Restrictions on parameters, as Kernel Tuner writes them: expressions such as `block_size_x*block_size_y <= 1024`.

They are read with `ast` and evaluated on whole arrays; nothing is ever executed. All configurations that satisfy
a list of restrictions are enumerated parameter by parameter, each restriction applied as soon as its names are bound.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Column = Any
"""A number, a text, or an array of them: one value for each configuration."""

MAX_CHARACTERS = 2_000


class RestrictionError(ValueError):
    """Text that is not a restriction, or names what is no parameter."""


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: lambda base, exponent: np.power(np.asarray(base, np.float64), exponent),
}

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: lambda value: ~_truth(value),
}

_CALLS: dict[str, Callable[..., Any]] = {"min": np.minimum, "max": np.maximum}


@dataclass(frozen=True, slots=True)
class Restriction:
    """An expression over parameters that a configuration must satisfy."""

    text: str
    names: frozenset[str]
    """The parameters it speaks of."""
    tree: ast.expr

    def holds(self, columns: Mapping[str, Column], count: int) -> npt.NDArray[np.bool_]:
        """Whether it holds for each of `count` configurations, given the values of the parameters.

        Raises `RestrictionError` for arithmetic that the values don't allow.
        """
        try:
            with np.errstate(all="ignore"):
                return np.broadcast_to(_truth(_value(self.tree, columns)), (count,))
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            raise RestrictionError(f"{self.text!r} can't be evaluated: {error}") from None


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Restriction:
    """Read a restriction. Raises `RestrictionError` naming what it can't contain."""
    if len(text) > MAX_CHARACTERS:
        raise RestrictionError(f"a restriction has at most {MAX_CHARACTERS:,} characters, got {len(text):,}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RestrictionError(f"{text[:80]!r} is not an expression: {error}") from None
    names = frozenset(_names(tree, text))
    return Restriction(text.strip(), names, tree)


def _names(node: ast.expr, text: str) -> set[str]:
    """The names under a node, every node checked to be of a known kind."""
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.Constant(value=bool() | int() | float() | str()):
            return set()
        case ast.BoolOp(values=parts):
            return set[str]().union(*(_names(part, text) for part in parts))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _names(operand, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _names(left, text) | _names(right, text)
        case ast.Compare(
            left=left, ops=[ast.In() | ast.NotIn()], comparators=[ast.Tuple(elts=right) | ast.List(elts=right)]
        ):
            return _names(left, text).union(*(_names(part, text) for part in right))
        case ast.Compare(left=left, ops=ops, comparators=right) if all(type(op) in _COMPARE for op in ops):
            return _names(left, text).union(*(_names(part, text) for part in right))
        case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
            return _names(argument, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and args:
            return set[str]().union(*(_names(part, text) for part in args))
    raise RestrictionError(f"{text[:80]!r}: {ast.unparse(node)[:40]!r} has no meaning in a restriction")


def _truth(value: Column) -> npt.NDArray[np.bool_]:
    return np.asarray(value).astype(np.bool_)


def _value(node: ast.expr, columns: Mapping[str, Column]) -> Column:
    match node:
        case ast.Name(id=name):
            return columns[name]
        case ast.Constant(value=value):
            return value
        case ast.BoolOp(op=op, values=parts):
            combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return functools.reduce(combine, (_truth(_value(part, columns)) for part in parts))
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_value(operand, columns))
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, columns), _value(right, columns))
        case ast.Compare(
            left=left, ops=[ast.In() | ast.NotIn() as link], comparators=[ast.Tuple(elts=parts) | ast.List(elts=parts)]
        ):
            value = _value(left, columns)
            equal = (_truth(value == _value(part, columns)) for part in parts)
            among = functools.reduce(np.logical_or, equal, np.array(False))
            return among if isinstance(link, ast.In) else ~among
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            values = [_value(part, columns) for part in (left, *comparators)]
            pairs = zip(ops, values, values[1:], strict=False)
            return functools.reduce(np.logical_and, (_COMPARE[type(link)](a, b) for link, a, b in pairs))
        case ast.Call(func=ast.Name(id="abs"), args=[argument]):
            return np.abs(_value(argument, columns))
        case ast.Call(func=ast.Name(id=name), args=args):
            return functools.reduce(_CALLS[name], (_value(part, columns) for part in args))
    raise AssertionError(f"{ast.dump(node)} was let through by parse")


def enumerate_configurations(
    values: Mapping[str, Sequence[Any]], constants: Mapping[str, Any], restrictions: Sequence[Restriction]
) -> npt.NDArray[np.uint16]:
    """All allowed configurations, as indices into the values of each parameter, in lexicographic order.

    Returns an array (N, D) for the D parameters of `values`. Raises `RestrictionError` for a name that is neither
    a parameter nor a constant.
    """
    known = set(values) | set(constants)
    for restriction in restrictions:
        strange = restriction.names - known
        if strange:
            raise RestrictionError(f"{restriction.text!r} names {min(strange)}, which is no parameter")
    columns: dict[str, Column] = dict(constants)
    indices = np.zeros((1, 0), np.uint16)
    pending = list(restrictions)
    for name, choices in values.items():
        column = np.tile(np.arange(len(choices), dtype=np.uint16), len(indices))
        indices = np.column_stack([np.repeat(indices, len(choices), axis=0), column])
        columns = {other: _repeat(old, len(choices)) for other, old in columns.items()}
        numbers = all(isinstance(choice, int | float) for choice in choices)
        columns[name] = np.array(choices, None if numbers else object)[column]
        bound = [restriction for restriction in pending if restriction.names <= columns.keys()]
        pending = [restriction for restriction in pending if restriction not in bound]
        for restriction in bound:
            kept = restriction.holds(columns, len(indices))
            indices = indices[kept]
            columns = {other: _select(old, kept) for other, old in columns.items()}
    return indices


def _repeat(column: Column, count: int) -> Column:
    return np.repeat(column, count) if isinstance(column, np.ndarray) else column


def _select(column: Column, kept: npt.NDArray[np.bool_]) -> Column:
    return column[kept] if isinstance(column, np.ndarray) else column
