"""Trees of the published form to records of a `Program`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import lark

from envs.leir_env.affine import interval
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
    Scope,
    Statement,
    Tensor,
    identity,
)
from envs.leir_env.ops import FUNCTIONS, INFIX, OPS, RESERVED
from envs.leir_env.parser import MAX_NESTING, ParseError, conjuncts
from envs.leir_env.printer import show_expression
from envs.leir_env.steptp.dtypes import Typed, applied, fitted, negated, truth
from envs.leir_env.steptp.text import (
    Node,
    Tree,
    error,
    integer,
    parse_signature,
    position,
    read_dtype,
    trees,
)
from envs.leir_env.tree import nest
from envs.leir_env.types import Type, Weak

_INFIX = {**{symbol: op.name for symbol, op in INFIX.items()}, "&": "and", "|": "or", "**": "pow"}
"""Operators of LEIR by the symbols of the published form."""

_CALLS = {**{name: name for name in FUNCTIONS if name != "select"}, "if_then_else": "select"}
"""Operators of LEIR by its function names."""

_ACCUMULATIONS = {"add": Assign.ADD, "sub": Assign.ADD, "mul": Assign.MUL, "max": Assign.MAX, "min": Assign.MIN}
"""The assignment that `X = X op e` repeats; X starts from its identity."""

_LAST = ("div", "floordiv", "mod")
"""Operators that X starts from 1 for when it is their last operand."""

_SCOPES = {"g": Scope.GLOBAL, "s": Scope.SHARED, "l": Scope.LOCAL}


@dataclass(frozen=True, slots=True)
class _Start:
    """The identity that a tensor must hold before a stage, and the place of the equation that relies on it."""

    stage: int
    tensor: str
    assign: Assign
    position: int


class Reader:
    """Walks the tree of a program once; knows its tensors, and which loops are open."""

    def __init__(self, text: str, shapes: str, parsed: Tree, bound: bool) -> None:
        self.text, self.bound = text, bound
        targets = _first_targets(parsed)
        self.given = {tensor.name: tensor for tensor in parse_signature(shapes, targets)}
        made = {name: target for name, target in targets.items() if name not in self.given}
        self.dtypes = {name: tensor.dtype for name, tensor in self.given.items()}
        self.dtypes |= {name: read_dtype(_token(target, 1), text) for name, target in made.items()}
        scopes = {name: self.scope(target) for name, target in made.items()}
        self.scopes = {name: scope for name, scope in scopes.items() if scope is not Scope.GLOBAL}
        self.reach: dict[str, tuple[int, ...]] = {}
        """Extents of each temporary that the subscripts written so far need."""
        self.written: set[str] = set()
        self.names: dict[tuple[str, int], str] = {}
        """Index names by name in the text and extent: LEIR has one extent for each."""
        self.open: dict[str, Loop] = {}
        self.starts: list[_Start] = []
        self.stages: list[list[int]] = []
        """Where each statement stands: for each stage, in the order of the text."""

    def program(self, parsed: Tree) -> tuple[Program, list[int]]:
        """The program, and where each of its statements stands, in pre-order."""
        bodies = []
        for stage in trees(parsed):
            self.stages.append([])
            bodies.append(self.stage(stage))
        made = [Tensor(name, self.dtypes[name], shape) for name, shape in self.reach.items()]
        tensors = {tensor.name: tensor for tensor in (*self.given.values(), *made)}
        body: list[Statement] = []
        positions: list[int] = []
        for number, (statements, places) in enumerate(zip(bodies, self.stages, strict=True)):
            for start in (start for start in self.starts if start.stage == number):
                body.append(self.start(tensors[start.tensor], start.assign))
                positions += [start.position] * (1 + len(tensors[start.tensor].shape))
            body += statements
            positions += places
        return Program(Block(tuple(body), tuple(tensors.values()))), positions

    def start(self, tensor: Tensor, assign: Assign) -> Statement:
        """Write the identity of an accumulation to every element."""
        indices = [self.index(f"i{dimension}", extent) for dimension, extent in enumerate(tensor.shape)]
        loops = [Loop(Kind.SERIAL, *pair, Block(())) for pair in zip(indices, tensor.shape, strict=True)]
        target = Access(tensor.name, tuple(map(Index, indices)))
        return nest(loops, Block((Equation(target, Assign.SET, Const(identity(assign, tensor.dtype))),)))

    def stage(self, tree: Tree) -> tuple[Statement, ...]:
        children = trees(tree)
        loops = [self.loop(child) for child in children if child.data == "loop"]
        body: list[Statement] = []
        for child in children[len(loops) :]:
            body += self.stage(child) if child.data == "stage" else [self.equation(child)]
        if not loops:
            return tuple(body)
        for _ in loops:
            self.open.popitem()
        return (nest(loops, Block(tuple(body))),)

    def loop(self, tree: Tree) -> Loop:
        """Open a loop."""
        kind, extent, word, start = map(_leaf, tree.children)
        name = str(word)
        if kind not in list(Kind):
            raise self.error(f"{kind} is no kind of loop; there are {', '.join(Kind)}", tree)
        if name in RESERVED:
            raise self.error(f"{name} is a reserved word, not an index name", word)
        if start != "0":
            raise self.error(f"loop {name} starts at {start:.20}; a loop starts at 0", start)
        if name in self.open:
            raise self.error(f"loop {name} stands inside another loop over {name}", tree)
        if len(self.open) >= MAX_NESTING:
            raise self.error(f"loops are nested more than {MAX_NESTING} deep", tree)
        if kind == Kind.BOUND and name[:2] not in list(Axis):
            raise self.error(f"bound loop {name} names no axis: its name begins with one of {', '.join(Axis)}", word)
        size = integer(extent, self.text)
        index = self.index(name, size)
        axis = Axis(name[:2]) if kind == Kind.BOUND and self.bound else None
        own = Kind.SERIAL if kind == Kind.BOUND and not self.bound else Kind(str(kind))
        self.open[name] = Loop(own, index, size, Block(()), axis)
        self.stages[-1].append(position(tree))
        return self.open[name]

    def index(self, name: str, extent: int) -> str:
        """The index that stands for `name` where it has this extent."""
        if (name, extent) not in self.names:
            taken = RESERVED.union(self.names.values())
            base = "i" if re.fullmatch(r"e[0-9]*", name) else name
            candidates = (base if number == 1 else f"{base}{number}" for number in range(1, len(taken) + 2))
            self.names[name, extent] = next(candidate for candidate in candidates if candidate not in taken)
        return self.names[name, extent]

    def equation(self, tree: Tree) -> Equation:
        left, right = tree.children
        assert isinstance(left, lark.Tree)
        self.stages[-1].append(position(left))
        try:
            return self.assignment(left, right)
        except ExpressionTooDeep as found:
            raise self.error(str(found), left) from None

    def assignment(self, left: Tree, right: Node) -> Equation:
        """The equation, with what it accumulates and starts from made explicit."""
        target, _ = self.access(left, 0)
        value, kind = self.value(right, 0)
        name = target.tensor
        self.define(left, target)
        assign = _accumulation(target, value)
        if assign is None:
            start = _started(target, value)
        else:
            start, value, kind = assign, *_repeated(value, kind)
        if start is not None:
            if name in self.written:
                sentence = f"{name} has a value already, which is lost: a reduction starts from {start.op}'s identity"
                raise self.error(sentence, left)
            if assign is None:
                self.starts.append(_Start(len(self.stages) - 1, name, start, position(left)))
        self.written.add(name)
        return Equation(target, assign or Assign.SET, fitted(value, kind, self.dtypes[name]))

    def define(self, tree: Tree, target: Access) -> None:
        """Check dtype and subscripts of what an equation writes; a temporary is as large as they reach."""
        name = target.tensor
        if name in self.given:
            return
        dtype = read_dtype(_token(tree, 1), self.text)
        if dtype is not self.dtypes[name]:
            raise self.error(f"{name} is {dtype} here, but {self.dtypes[name]} where it is first written", tree)
        extents = {loop.index: loop.extent for loop in self.open.values()}
        sizes = []
        for subscript in target.subscripts:
            reach = interval(subscript, extents)
            if reach is None:
                raise self.error(
                    f"the extents of {name} don't follow from {show_expression(subscript)}: give them", tree
                )
            sizes.append(reach[1] + 1)
        known = self.reach.setdefault(name, tuple(sizes))
        if len(known) != len(sizes):
            raise self.error(
                f"{name} has {len(sizes)} subscripts here, but {len(known)} where it is first written", tree
            )
        self.reach[name] = tuple(map(max, known, sizes))

    def access(self, tree: Tree, depth: int) -> tuple[Access, DType]:
        name, word = str(_token(tree, 0)), _token(tree, 1)
        self.scope(tree)
        if name not in self.dtypes:
            raise self.error(f"{name} is neither given nor written: give its dtype and shape", tree)
        if name in self.given and word != self.dtypes[name]:
            raise self.error(f"{name} is {word} here, but given as {self.dtypes[name]}", word)
        return Access(name, tuple(self.value(part, depth + 1)[0] for part in tree.children[3:])), self.dtypes[name]

    def scope(self, tree: Tree) -> Scope:
        word = _token(tree, 2)
        if word not in _SCOPES:
            raise self.error(f"{word} is no scope; there are g (global), s (shared) and l (local)", word)
        return _SCOPES[word]

    def value(self, node: Node, depth: int) -> Typed:
        """An expression and its type; brackets and powers nest, everything else is a flat chain."""
        if depth > MAX_EXPRESSION_DEPTH:
            raise ExpressionTooDeep(f"an expression is nested more than {MAX_EXPRESSION_DEPTH} deep")
        if isinstance(node, lark.Token):
            return self.leaf(node)
        parts = node.children
        match node.data:
            case "tensor":
                return self.access(node, depth)
            case "call":
                name = str(parts[0])[:-1]
                if name not in _CALLS:
                    raise self.error(f"unknown function {name:.40}; there are {', '.join(sorted(_CALLS))}", node)
                op, args = _CALLS[name], parts[1:]
                if OPS[op].arity != len(args):
                    raise self.error(f"{name} takes {OPS[op].arity} arguments, got {len(args)}", node)
                return applied(op, *(self.value(arg, depth + 1) for arg in args))
            case "negation":
                value = self.value(parts[-1], depth + 1)
                return negated(value) if len(parts) % 2 == 0 else value
        operands = [self.value(part, depth + 1) for part in parts[::2]]
        ops = [_INFIX[str(symbol)] for symbol in parts[1::2]]
        if node.data == "comparison":
            links = [applied(op, *pair) for op, *pair in zip(ops, operands, operands[1:], strict=False)]
            operands, ops = links, ["and"] * (len(links) - 1)
        if node.data == "conjunction":
            operands = [(part, DType.BOOL) for operand in operands for part in conjuncts(truth(operand))]
            ops = ["and"] * (len(operands) - 1)
        total = operands[0]
        for op, operand in zip(ops, operands[1:], strict=True):
            total = applied(op, total, operand)
        return total

    def leaf(self, token: lark.Token) -> Typed:
        if token.type == "INT":
            return Const(integer(token, self.text)), Weak.WHOLE
        if token.type == "FLOAT":
            if math.isinf(float(token)):
                raise self.error(f"{token:.24} is beyond the largest float", token)
            return Const(float(token)), Weak.FRACTION
        if token == "inf":
            return Const(math.inf), Weak.FRACTION
        if token not in self.open:
            raise self.error(f"no loop here runs over {token:.40}", token)
        return Index(self.open[str(token)].index), Weak.WHOLE

    def error(self, message: str, node: Node) -> ParseError:
        return error(message, self.text, position(node))


def _leaf(node: Node) -> lark.Token:
    assert isinstance(node, lark.Token)
    return node


def _token(tree: Tree, number: int) -> lark.Token:
    return _leaf(tree.children[number])


def _first_targets(parsed: Tree) -> Mapping[str, Tree]:
    """What is written, in the order of the first writes, each with the tree of the first."""
    targets = [equation.children[0] for equation in parsed.find_data("equation")]
    found: dict[str, Tree] = {}
    for target in sorted(targets, key=position):
        assert isinstance(target, lark.Tree)
        found.setdefault(str(target.children[0]), target)
    return found


def _accumulation(target: Access, value: Expr) -> Assign | None:
    """The assignment of `X = X op e`."""
    match value:
        case Call(op, (first, _)) if first == target:
            return _ACCUMULATIONS.get(op)
    return None


def _repeated(value: Expr, kind: Type) -> Typed:
    """What each repetition of `X = X op e` accumulates."""
    assert isinstance(value, Call)
    rest = value.args[1]
    return negated((rest, kind)) if value.op == "sub" else (rest, kind)


def _started(target: Access, value: Expr) -> Assign | None:
    """The assignment from whose identity X starts: by the operator next to it where the text begins or ends with it."""
    value = _uncast(value)
    if not isinstance(value, Call):
        return None
    if value.op in _LAST and _uncast(value.args[1]) == target:
        return Assign.MUL
    first = _uncast(value.args[0])
    # Down the left operands, as long as none of them stands in brackets.
    while isinstance(first, Call) and 0 < OPS[value.op].precedence <= OPS[first.op].precedence:
        value, first = first, _uncast(first.args[0])
    return _ACCUMULATIONS.get(value.op) if first == target else None


def _uncast(value: Expr) -> Expr:
    return value.value if isinstance(value, Cast) else value
