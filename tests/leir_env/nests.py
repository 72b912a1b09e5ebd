"""Small random nests, and what brute force says about them: every instance, every element it touches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from envs.leir_env.affine import evaluate
from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Const,
    DType,
    Equation,
    Expr,
    Kind,
    Loop,
    Program,
    Role,
    Statement,
    Tensor,
    children,
)
from envs.leir_env.parser import parse
from envs.leir_env.tree import Path, indices

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


NAMES = ("i", "j", "k")
FORMS = (
    "i",
    "j",
    "k",
    "i+1",
    "j+1",
    "2i+j",
    "3i+j",
    "i-j",
    "i+j",
    "0",
    "1",
    "k//2",
    "k%2",
    "i%2",
    "2i+k%2",
    "k//2+2*(k%2)",
    "k//2%2",
    "j//3",
    "2-k",
    "max(i,j)",
    "min(i,1)",
)
GUARDS = ("i<2", "i!=j", "i+j<3", "j>=1", "k==1", "i<1 or k>1", "not i==j", "k%2==0")


def _expression(text: str) -> Expr:
    loops = " ".join(f"{name}:2" for name in NAMES)
    head = " ".join(f"L_{name}" for name in NAMES)
    statement: Any = parse(f"{loops}\n-> Z:f32\n{head} Z = {text}\n").body[0]
    while isinstance(statement, Loop):
        (statement,) = statement.block.body
    value: Expr = statement.value
    return value


POOL = {text: _expression(text) for text in FORMS + GUARDS}


def pool(texts: tuple[str, ...], scope: tuple[str, ...]) -> list[Expr]:
    return [POOL[text] for text in texts if indices(POOL[text]) <= set(scope)]


@st.composite
def equations(draw: st.DrawFn, scope: tuple[str, ...], tensors: tuple[str, ...], number: int) -> Equation:
    def access() -> Access:
        name = draw(st.sampled_from(tensors))
        rank = 2 if name == "B" else 1
        subscript = st.sampled_from(pool(FORMS, scope))
        return Access(name, tuple(draw(subscript) for _ in range(rank)))

    value: Expr = Call("add", (access(), Const(number)))
    conditions = pool(GUARDS, scope)
    if conditions and draw(st.booleans()):
        value = Call("select", (draw(st.sampled_from(conditions)), value, access()))
    guard = (draw(st.sampled_from(conditions)),) if conditions and draw(st.integers(0, 3)) == 0 else ()
    assign = draw(st.sampled_from([Assign.SET, Assign.SET, Assign.ADD, Assign.ADD, Assign.MAX]))
    return Equation(access(), assign, value, guard)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Small nests over i, j, k with tensors A (1-d), B (2-d) in the header and T, private to some block."""
    extents = {name: draw(st.integers(1, 4)) for name in NAMES}
    counter = itertools.count(1)
    declared: list[str] = []

    def block(scope: tuple[str, ...], tensors: tuple[str, ...], room: int) -> Block:
        own: tuple[Tensor, ...] = ()
        if scope and not declared and draw(st.integers(0, 2)) == 0:
            declared.append("T")
            own, tensors = (Tensor("T", DType.F32, (9,)),), (*tensors, "T")
        size = draw(st.integers(1, room))
        return Block(tuple(statement(scope, tensors) for _ in range(size)), own)

    def statement(scope: tuple[str, ...], tensors: tuple[str, ...]) -> Statement:
        free = [name for name in NAMES if name not in scope]
        if free and draw(st.integers(0, 3)) > len(scope):
            name = draw(st.sampled_from(free))
            return Loop(Kind.SERIAL, name, extents[name], block((*scope, name), tensors, 2))
        return draw(equations(scope, tensors, next(counter)))

    body = block((), ("A", "B"), 2).body
    header = (
        Tensor("A", DType.F32, (16,), role=Role.OUTPUT),
        Tensor("B", DType.F32, (16, 16), role=Role.OUTPUT),
    )
    return Program(Block(body, header))


@dataclass(frozen=True)
class Instance:
    """One execution of an equation: the elements it touches, with the assignment for its target."""

    equation: Equation
    point: tuple[tuple[str, int], ...]
    path: Path
    touched: tuple[tuple[tuple[Any, ...], Assign | None], ...]


def instances(program: Program) -> Iterator[Instance]:
    """Every execution in order, private tensors told apart by the loops around their block."""

    def visit(
        body: tuple[Statement, ...], path: Path, point: dict[str, int], private: dict[str, Any]
    ) -> Iterator[Instance]:
        for position, statement in enumerate(body):
            here = (*path, position)
            if isinstance(statement, Loop):
                for value in range(statement.extent):
                    inner = {**point, statement.index: value}
                    mine = {t.name: tuple(sorted(inner.items())) for t in statement.block.tensors}
                    yield from visit(statement.block.body, here, inner, {**private, **mine})
            elif all(evaluate(condition, point) for condition in statement.guard):
                touched = [(element(statement.target, point, private), statement.assign)]
                touched += [(e, None) for e in elements(statement.value, point, private)]
                yield Instance(statement, tuple(sorted(point.items())), here, tuple(touched))

    yield from visit(program.body, (), {}, {})


def element(access: Access, point: Mapping[str, int], private: Mapping[str, Any]) -> tuple[Any, ...]:
    subscripts = tuple(evaluate(subscript, point) for subscript in access.subscripts)
    return access.tensor, private.get(access.tensor), subscripts


def elements(expr: Expr, point: Mapping[str, int], private: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    if isinstance(expr, Call) and expr.op == "select":
        yield from elements(expr.args[1 if evaluate(expr.args[0], point) else 2], point, private)
    elif isinstance(expr, Access):
        yield element(expr, point, private)
    else:
        for child in children(expr):
            yield from elements(child, point, private)


def conflicts(first: Instance, second: Instance) -> set[tuple[str, str]]:
    """Tensor and kind of every dependence from one instance to a later one."""
    found = set()
    for place, one in first.touched:
        for other, two in second.touched:
            if place == other and (one is not None or two is not None):
                if one is two and one is not Assign.SET:
                    found.add((place[0], "reduction"))
                else:
                    kind = "output" if one is not None and two is not None else "flow" if one is not None else "anti"
                    found.add((place[0], kind))
    return found


def execute(program: Program, place: Path | None = None, permute: Any = None) -> dict[Any, float]:
    """Run on numbers that tell every element apart; the loop at `place` runs in another order."""
    memory: dict[Any, float] = {}

    def value(expr: Expr, point: dict[str, int], private: dict[str, Any]) -> float:
        if isinstance(expr, Access):
            where = element(expr, point, private)
            return memory.get(where, hash(where) % 1000)
        if isinstance(expr, Const):
            return float(expr.value)
        assert isinstance(expr, Call)
        if expr.op == "select":
            return value(expr.args[1 if evaluate(expr.args[0], point) else 2], point, private)
        return (value(expr.args[0], point, private) + 3 * value(expr.args[1], point, private)) % 1009

    def visit(body: tuple[Statement, ...], path: Path, point: dict[str, int], private: dict[str, Any]) -> None:
        for position, statement in enumerate(body):
            here = (*path, position)
            if isinstance(statement, Loop):
                values = list(range(statement.extent))
                for n in permute(values) if here == place else values:
                    inner = {**point, statement.index: n}
                    mine = {t.name: tuple(sorted(inner.items())) for t in statement.block.tensors}
                    visit(statement.block.body, here, inner, {**private, **mine})
            elif all(evaluate(condition, point) for condition in statement.guard):
                where = element(statement.target, point, private)
                new = value(statement.value, point, private)
                old = memory.get(where, hash(where) % 1000)
                memory[where] = {"=": new, "+=": old + new, "max=": max(old, new)}[statement.assign]

    visit(program.body, (), {}, {})
    return {where: number for where, number in memory.items() if where[0] in ("A", "B")}


@st.composite
def rearranged(draw: st.DrawFn, program: Program) -> Program:
    """The same equations in another order: bodies permuted, loops exchanged, split up or fused."""

    def block(old: Block) -> Block:
        body = [statement(child) for child in old.body]
        choice = draw(st.integers(0, 3))
        if choice == 0 and len(body) > 1:
            body = draw(st.permutations(body))
        if choice == 1 and len(body) > 1:
            one, two = body[0], body[1]
            if isinstance(one, Loop) and isinstance(two, Loop) and one.index == two.index:
                both = Block(one.block.body + two.block.body, one.block.tensors + two.block.tensors)
                body[:2] = [replace(one, block=both)]
        return Block(tuple(body), old.tensors)

    def statement(old: Statement) -> Statement:
        if isinstance(old, Equation):
            return old
        new = replace(old, block=block(old.block))
        match new.block.body:
            case (Loop() as inner,) if draw(st.booleans()) and not new.block.tensors:
                return replace(inner, block=Block((replace(new, block=inner.block),)))
        return new

    def fission(old: Block) -> Block:
        body: list[Statement] = []
        for child in old.body:
            if (
                isinstance(child, Loop)
                and len(child.block.body) > 1
                and not child.block.tensors
                and draw(st.booleans())
            ):
                body += [replace(child, block=Block((part,))) for part in child.block.body]
            else:
                body.append(child)
        return Block(tuple(body), old.tensors)

    return Program(fission(block(program.block)))
