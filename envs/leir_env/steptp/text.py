"""The flat form of Step-TP as text: trees by `steptp.lark`, what is given beside it, and errors that point.

Lines of this form are long, so an error shows what stands around it. Text may come from a model: its length and
its nesting are limited first, and nothing is evaluated.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

import lark

from envs.leir_env.ir import DType, Role, Tensor
from envs.leir_env.parser import MAX_CHARACTERS, MAX_NESTING, ParseError

Tree = lark.Tree[lark.Token]
Node = Tree | lark.Token

SHOWN = 60
"""Characters shown on either side of an error."""

_EXPECTED = {
    "NAME": "a tensor or a loop",
    "WORD": "a word",
    "INT": "an integer",
    "FLOAT": "a number",
    "FUNCTION": "a function",
    "COMPARE": "a comparison",
    "$END": "the end of the text",
}

_ROLES = {
    "inputs": Role.INPUT,
    "parameters": Role.PARAMETER,
    "outputs": Role.OUTPUT,
    "temporaries": Role.TEMPORARY,
}


def parse_program(text: str) -> Tree:
    """Return the tree of a program. Raises `ParseError`."""
    return _parse(text, "program")


def parse_signature(text: str, written: Iterable[str]) -> tuple[Tensor, ...]:
    """Return the tensors that are given beside a program. Raises `ParseError`.

    Without an arrow, those that the program writes are its outputs.
    """
    try:
        return _signature(text, written)
    except ParseError as found:
        raise ParseError(f"in the shapes, {found.message}", found.line, found.column) from None


def _signature(text: str, written: Iterable[str]) -> tuple[Tensor, ...]:
    groups = {_ROLES[group.data]: group for group in trees(_parse(text, "signature"))}
    found: dict[str, Tensor] = {}
    for role, group in groups.items():
        for declaration in trees(group):
            *names, dtype = [token for token in tokens(declaration) if token.type != "INT"]
            shape = tuple(integer(token, text) for token in tokens(declaration) if token.type == "INT")
            for name in names:
                if name in found:
                    raise error(f"{name} is given twice", text, position(name))
                made = role is Role.INPUT and Role.OUTPUT not in groups and name in written
                found[str(name)] = Tensor(str(name), read_dtype(dtype, text), shape, role=Role.OUTPUT if made else role)
    return tuple(sorted(found.values(), key=lambda tensor: list(Role).index(tensor.role)))


def _parse(text: str, start: str) -> Tree:
    if len(text) > MAX_CHARACTERS:
        raise ParseError(f"the text has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
    depth = 0
    for match in re.finditer(r"[\[({\])}]", text):
        depth += 1 if match[0] in "[({" else -1
        if depth > MAX_NESTING:
            raise error(f"brackets are nested more than {MAX_NESTING} deep", text, match.start())
    try:
        return _grammar().parse(text, start=start)
    except lark.exceptions.UnexpectedToken as found:
        end = found.token.type == "$END"
        what = "the end of the text" if end else f"{found.token.value!s:.40}"
        at = len(text) if end else found.pos_in_stream or 0
        raise _unexpected(what, found.accepts or found.expected, text, at) from None
    except lark.exceptions.UnexpectedCharacters as found:
        at = found.pos_in_stream or 0
        raise _unexpected(repr(text[at]), found.allowed or (), text, at) from None


@functools.cache
def _grammar() -> lark.Lark:
    grammar = Path(__file__).with_name("steptp.lark").read_text(encoding="utf-8")
    return lark.Lark(grammar, parser="lalr", start=["program", "signature"], maybe_placeholders=False)


def _unexpected(found: str, names: Iterable[str], text: str, at: int) -> ParseError:
    terminals = {term.name: term.pattern.value for term in _grammar().terminals}
    words = sorted({_EXPECTED.get(name) or f"'{terminals[name]}'" for name in names})
    expected = ", ".join(words[:8]) + (" ..." if len(words) > 8 else "")
    return error(f"found {found}, expected {expected}", text, at)


def error(message: str, text: str, at: int) -> ParseError:
    """An error at a position of the text, with what stands around it."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    first = max(start, at - SHOWN)
    shown = text[first : min(len(text) if end < 0 else end, at + SHOWN)].replace("\t", " ")
    pointer = f"\n  {shown}\n  {' ' * (at - first)}^" if shown else ""
    return ParseError(message + pointer, text.count("\n", 0, at) + 1, at - start + 1)


def position(node: Node) -> int:
    """Where a node begins in the text."""
    while isinstance(node, lark.Tree):
        node = node.children[0]
    return node.start_pos or 0


def trees(tree: Tree) -> list[Tree]:
    """The children that are no tokens."""
    return [child for child in tree.children if isinstance(child, lark.Tree)]


def tokens(tree: Tree) -> list[lark.Token]:
    """The children that are tokens."""
    return [child for child in tree.children if isinstance(child, lark.Token)]


def integer(token: lark.Token, text: str) -> int:
    """The value of a token of digits."""
    if len(token) > 18:
        raise error(f"integer {token:.24} has more than 18 digits", text, position(token))
    return int(token)


def read_dtype(token: lark.Token, text: str) -> DType:
    """The dtype that a word names."""
    if token not in list(DType):
        raise error(f"{token:.40} is no dtype of LEIR; there are {', '.join(DType)}", text, position(token))
    return DType(str(token))
