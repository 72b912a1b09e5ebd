"""Whether a program is well-formed: a table of named rules, each with a sentence for what it refuses.

Rules run in stages (what is declared, what it means, what can be proved), a stage only if those before found
nothing, so that a rule may rely on them. A program that passes has a meaning: every name is known, every
type fits, no subscript leaves its tensor, nothing is read before it is written, and the kinds of its loops
are promises that hold.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from envs.leir_env import limits
from envs.leir_env.ir import (
    INDEX_NAME,
    TENSOR_NAME,
    Access,
    Call,
    Equation,
    Expr,
    Kind,
    Loop,
    Program,
    Role,
    Scope,
    Tensor,
    subexpressions,
)
from envs.leir_env.legality import parallel_refusal, starts
from envs.leir_env.ops import OPS, RESERVED
from envs.leir_env.parser import MAX_NESTING, ParseError, Spans, parse_located
from envs.leir_env.printer import show_equation, show_expression, show_loop, show_tensor
from envs.leir_env.proofs import out_of_bounds, undefined
from envs.leir_env.tree import Node, Path, declarations, expressions, indices, walk
from envs.leir_env.types import type_problems


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a program."""

    code: str
    """The rule that it breaks, a key of RULES."""
    sentence: str
    """Names the thing, the rule and the number."""
    path: Path = ()
    """The statement it stands in; the empty path is the header."""
    token: str = ""
    """A word of that statement, for pointing at."""


class VerifyError(ValueError):
    """A program that is not well-formed. `problems` lists why."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{problem.code}: {problem.sentence}" for problem in problems))


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rule: what it demands, and the function that yields what breaks it."""

    demand: str
    check: Callable[[Program, str], Iterator[tuple[str, Path, str]]]
    """Takes the program and the target; yields sentence, path and token."""
    stage: int


RULES: dict[str, Rule] = {}
"""Every rule by its code, in the order in which they run."""

_Found = Iterator[tuple[str, Path, str]]
_Check = Callable[[Program, str], _Found]


def _rule(stage: int, demand: str) -> Callable[[_Check], _Check]:
    def register(check: _Check) -> _Check:
        RULES[check.__name__.strip("_")] = Rule(demand, check, stage)
        return check

    return register


@functools.lru_cache(maxsize=8192)
def verify(program: Program, target: str = "llvm") -> tuple[Problem, ...]:
    """Return what is wrong with `program` on a target (llvm or cuda); nothing if it is well-formed."""
    for stage in sorted({rule.stage for rule in RULES.values()}):
        found = tuple(
            Problem(code, *problem)
            for code, rule in RULES.items()
            if rule.stage == stage
            for problem in rule.check(program, target)
        )
        if found:
            return found
    return ()


def check(program: Program, target: str = "llvm") -> Program:
    """Return `program` if it is well-formed. Raises `VerifyError` otherwise."""
    problems = verify(program, target)
    if problems:
        raise VerifyError(problems)
    return program


def load(text: str, target: str = "llvm") -> Program:
    """Return the well-formed program that `text` spells. Raises `ParseError`, which points at the place."""
    program, spans = parse_located(text)
    problems = verify(program, target)
    if problems:
        raise located(program, spans, problems)
    return program


def located(program: Program, spans: Spans, problems: tuple[Problem, ...]) -> ParseError:
    """Return the first of some problems as an error that points into the text."""
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    line, column = _place(program, spans, first)
    return ParseError(f"{first.sentence}{more}", line, column, spans.source)


def _place(program: Program, spans: Spans, problem: Problem) -> tuple[int, int]:
    lines = spans.source.splitlines()
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(problem.token)}(?![A-Za-z0-9])")
    if problem.path:
        order = {node.path: position for position, node in enumerate(walk(program))}
        line, column = spans.positions[order[problem.path]]
        match = word.search(lines[line - 1], column - 1) if problem.token else None
        return line, match.start() + 1 if match else column
    for line, text in enumerate(lines, 1):
        if problem.token and (match := word.search(text)):
            return line, match.start() + 1
    return 1, 1


def _loops(program: Program) -> Iterator[tuple[Node, Loop]]:
    return ((node, node.statement) for node in walk(program) if isinstance(node.statement, Loop))


def _equations(program: Program) -> Iterator[tuple[Node, Equation]]:
    return ((node, node.statement) for node in walk(program) if isinstance(node.statement, Equation))


def _declared(program: Program) -> Iterator[tuple[Tensor, Path, tuple[Loop, ...]]]:
    """Every declaration, the path of the loop whose block makes it, and the loops around it."""
    for tensor in program.tensors:
        yield tensor, (), ()
    for node, loop in _loops(program):
        for tensor in loop.block.tensors:
            yield tensor, node.path, (*node.loops, loop)


@_rule(1, "index names are words like io, not reserved, with one extent each, and no loop hides another")
def _index(program: Program, _: str) -> _Found:
    extents: dict[str, int] = {}
    for node, loop in _loops(program):
        name = loop.index
        if not INDEX_NAME.fullmatch(name) or name in RESERVED or re.fullmatch(r"e[0-9]+", name):
            yield f"{name} is not an index name (a lower-case word, not reserved)", node.path, name
        known = extents.setdefault(name, loop.extent)
        if known != loop.extent:
            yield f"index {name} has two extents, {known} and {loop.extent}", node.path, name
        if any(outer.index == name for outer in node.loops):
            yield f"loop {name} stands inside another loop over {name}", node.path, name
        if not loop.block.body:
            yield f"loop {name} has no statement", node.path, name


@_rule(1, "tensor names are capitalised words, none of L P U V, each declared once")
def _tensor(program: Program, _: str) -> _Found:
    seen: set[str] = set()
    for tensor, path, _loops_around in _declared(program):
        name = tensor.name
        if not TENSOR_NAME.fullmatch(name) or name in ("L", "P", "U", "V"):
            yield f"{name} is not a tensor name (a capitalised word, none of L P U V)", path, name
        if name in seen:
            yield f"{name} is declared twice", path, name
        seen.add(name)
        if path and tensor.role is not Role.TEMPORARY:
            yield f"{name} is an {tensor.role}; inside a loop only temporaries are declared", path, name
        if tensor.role is not Role.TEMPORARY and tensor.scope is not Scope.GLOBAL:
            yield f"{show_tensor(tensor)}: an {tensor.role} is global", path, name
    if not program.outputs:
        yield "the program has no output", (), ""


@_rule(1, "extents, tensors, arithmetic and the program itself stay within the limits")
def _size(program: Program, _: str) -> _Found:
    count = sum(1 for _ in _equations(program))
    if count > limits.MAX_EQUATIONS:
        yield f"the program has {count:,} equations; the limit is {limits.MAX_EQUATIONS:,}", (), ""
    for node, loop in _loops(program):
        if not 1 <= loop.extent <= limits.MAX_EXTENT:
            yield (
                f"index {loop.index} has extent {loop.extent:,}; an extent is 1 to {limits.MAX_EXTENT:,}",
                node.path,
                loop.index,
            )
        if len(node.loops) == MAX_NESTING:
            yield f"loops are nested more than {MAX_NESTING} deep", node.path, loop.index
    total = 0
    for tensor, path, _around in _declared(program):
        total += tensor.nbytes
        if any(extent < 1 for extent in tensor.shape):
            yield f"{show_tensor(tensor)}: every extent is at least 1", path, tensor.name
        if tensor.role is Role.TEMPORARY and tensor.nbytes > limits.MAX_TEMPORARY_BYTES:
            yield (
                f"{show_tensor(tensor)} takes {tensor.nbytes:,} bytes; "
                f"the limit of a temporary is {limits.MAX_TEMPORARY_BYTES:,}",
                path,
                tensor.name,
            )
    if total > limits.MAX_PROGRAM_BYTES:
        yield f"all tensors take {total:,} bytes; the limit is {limits.MAX_PROGRAM_BYTES:,}", (), ""
    flops = sum(flops_of(equation) * math.prod(node.extents.values()) for node, equation in _equations(program))
    if flops > limits.MAX_FLOPS:
        yield f"one run takes {flops:.3g} operations; the limit is {limits.MAX_FLOPS:.3g}", (), ""


@functools.lru_cache(maxsize=16384)
def flops_of(equation: Equation) -> int:
    """Return the operations of one execution by the table in `ops`, at least one; subscripts are free."""
    accumulation = 0 if equation.assign == "=" else OPS[equation.assign.op].flops
    return max(1, accumulation + sum(_flops(e) for e in (equation.value, *equation.guard)))


def _flops(expr: Expr) -> int:
    return OPS[expr.op].flops + sum(map(_flops, expr.args)) if isinstance(expr, Call) else 0


@_rule(2, "a tensor is used in the block that declares it, with one subscript for each dimension")
def _scope(program: Program, _: str) -> _Found:
    where = declarations(program)
    for node, equation in _equations(program):
        visible = {loop.index for loop in node.loops}
        for access in _accesses(equation):
            name = access.tensor
            if name not in where:
                yield f"{show_equation(equation)}: {name} is not declared", node.path, name
                continue
            tensor, path = where[name]
            if node.path[: len(path)] != path:
                yield f"{show_equation(equation)}: {name} is declared in another block", node.path, name
            elif len(access.subscripts) != len(tensor.shape):
                yield (
                    f"{show_expression(access)} has {len(access.subscripts)} subscripts, "
                    f"but {name} has {len(tensor.shape)} dimensions",
                    node.path,
                    name,
                )
        for name in sorted(_indices(equation) - visible):
            yield f"{show_equation(equation)}: no loop here runs over {name}", node.path, name


@functools.lru_cache(maxsize=16384)
def _accesses(equation: Equation) -> tuple[Access, ...]:
    every = (node for expr in expressions(equation) for node in subexpressions(expr))
    return tuple(dict.fromkeys(node for node in every if isinstance(node, Access)))


@functools.lru_cache(maxsize=16384)
def _indices(equation: Equation) -> frozenset[str]:
    return frozenset().union(*map(indices, expressions(equation)))


@_rule(2, "inputs and parameters are only read")
def _role(program: Program, _: str) -> _Found:
    given = {tensor.name: tensor.role for tensor in program.inputs}
    for node, equation in _equations(program):
        name = equation.target.tensor
        if name in given:
            yield f"{show_equation(equation)} writes the {given[name]} {name}", node.path, name


@_rule(2, "dtypes agree: literals and indices adapt, anything else needs a cast")
def _type(program: Program, _: str) -> _Found:
    dtypes = {name: tensor.dtype for name, (tensor, _) in declarations(program).items()}
    for node, equation in _equations(program):
        used = dict.fromkeys(access.tensor for access in _accesses(equation))
        known = tuple((name, dtypes[name]) for name in used if name in dtypes)
        for problem in type_problems(equation, known):
            yield problem.sentence, node.path, problem.token


@_rule(2, "vector loops have a vector width and hold no blocks, parallel loops don't nest, copies are few")
def _kind(program: Program, _: str) -> _Found:
    widths = ", ".join(map(str, limits.VECTOR_WIDTHS))
    for node, loop in _loops(program):
        head, around = show_loop(loop), {outer.kind: outer for outer in node.loops}
        if loop.kind is Kind.VECTOR and loop.extent not in limits.VECTOR_WIDTHS:
            yield f"{head} has extent {loop.extent}; a vector loop has one of {widths}", node.path, loop.index
        if loop.kind in (Kind.PARALLEL, Kind.BOUND, Kind.VECTOR) and Kind.VECTOR in around:
            yield f"{head} stands inside {show_loop(around[Kind.VECTOR])}", node.path, loop.index
        if loop.kind is Kind.PARALLEL and Kind.PARALLEL in around:
            outer = show_loop(around[Kind.PARALLEL])
            yield f"{head} stands inside {outer}; parallel loops don't nest", node.path, loop.index
        if loop.block.tensors and (loop.kind is Kind.VECTOR or Kind.VECTOR in around):
            name = loop.block.tensors[0].name
            yield f"{name} is declared inside a vector loop, which would not make it private", node.path, name
    for position, statement in enumerate(program.body):
        nest = [node for node, _ in _equations(program) if node.path[0] == position]
        copies = sum(_copies(node.loops) for node in nest)
        if isinstance(statement, Loop) and copies > max(limits.MAX_UNROLLED, len(nest)):
            limit = limits.MAX_UNROLLED
            sentence = f"unrolling makes {copies:,} copies of equations; the limit of a nest is {limit:,}"
            yield sentence, (position,), statement.index


def _copies(loops: tuple[Loop, ...]) -> int:
    """How often an equation stands in the generated code."""
    return math.prod(loop.extent for loop in loops if loop.kind is Kind.UNROLLED)


@_rule(2, "bound loops suit a GPU: blocks outermost, then threads, within the limits of each axis")
def _axis(program: Program, target: str) -> _Found:
    bound = [(node, loop) for node, loop in _loops(program) if loop.axis]
    if bound and target != "cuda":
        node, loop = bound[0]
        yield (
            f"{show_loop(loop)} is bound to a GPU axis, which the target {target} lacks",
            node.path,
            loop.index,
        )
        return
    for node, loop in bound:
        head, outer = show_loop(loop), node.loops
        limit = limits.MAX_BLOCKS.get(str(loop.axis)) or limits.MAX_THREADS[str(loop.axis)]
        if loop.extent > limit:
            yield (
                f"{head} has extent {loop.extent:,}; the limit of {loop.axis} is {limit:,}",
                node.path,
                loop.index,
            )
        if any(other.axis is loop.axis for other in outer):
            yield f"{head} stands inside another loop bound to {loop.axis}", node.path, loop.index
        if any(other.kind is Kind.PARALLEL for other in outer):
            yield f"{head} stands inside a parallel loop, which runs on the CPU", node.path, loop.index
        if loop.axis and loop.axis.is_block:
            chain = all(other.axis and other.axis.is_block and len(other.block.body) == 1 for other in outer)
            if not chain:
                sentence = "the block loops of a kernel are its outermost loops, one directly inside the other"
                yield f"{head}: {sentence}", node.path, loop.index
    for node, loop in _loops(program):
        if loop.kind is Kind.PARALLEL and any(other.axis for other in node.loops):
            yield f"{show_loop(loop)} stands inside a bound loop", node.path, loop.index
    for position in sorted({node.path[0] for node, _ in bound}):
        widest: dict[str, int] = {}
        for node, loop in bound:
            if node.path[0] == position and loop.axis and not loop.axis.is_block:
                widest[loop.axis] = max(widest.get(loop.axis, 1), loop.extent)
        threads = math.prod(widest.values())
        if threads > limits.MAX_THREADS_PER_BLOCK:
            shape = " x ".join(f"{axis} {extent}" for axis, extent in sorted(widest.items()))
            limit = limits.MAX_THREADS_PER_BLOCK
            yield f"a block has {threads:,} threads ({shape}); the limit is {limit:,}", (position,), ""


@_rule(2, "shared tensors stand inside the block loops and outside the thread loops, local ones inside both")
def _storage(program: Program, _: str) -> _Found:
    bound = {node.path[0] for node, loop in _loops(program) if loop.axis}
    threaded = {node.path[0] for node, loop in _loops(program) if loop.axis and not loop.axis.is_block}
    kernels = {node.path[0]: 0 for node, _ in _loops(program)}
    for tensor, path, loops in _declared(program):
        in_block = any(loop.axis and loop.axis.is_block for loop in loops)
        in_thread = any(loop.axis and not loop.axis.is_block for loop in loops)
        text = show_tensor(tensor)
        if tensor.scope is Scope.SHARED:
            if not in_block or in_thread:
                place = "inside the block loops and outside the thread loops"
                yield f"{text}: a shared tensor is declared {place}", path, tensor.name
            elif path:
                kernels[path[0]] += tensor.nbytes
        elif path and path[0] in threaded and not in_thread:
            if any(_is_threaded(loop) for loop in loops[-1:]):
                yield f"{text} stands outside the thread loops that use it; make it shared", path, tensor.name
        elif not path and tensor.scope is Scope.LOCAL and bound:
            yield (
                f"{text}: a local tensor of a GPU program is declared inside a thread loop",
                path,
                tensor.name,
            )
    for position, nbytes in kernels.items():
        if nbytes > limits.MAX_SHARED_BYTES:
            limit = limits.MAX_SHARED_BYTES
            yield f"a block has {nbytes:,} bytes of shared tensors; the limit is {limit:,}", (position,), ""


def _is_threaded(loop: Loop) -> bool:
    """Whether a thread loop stands below."""
    inner = [child for child in loop.block.body if isinstance(child, Loop)]
    return any((child.axis and not child.axis.is_block) or _is_threaded(child) for child in inner)


@_rule(3, "every subscript stays within its tensor for every iteration")
def _bounds(program: Program, _: str) -> _Found:
    shapes = {name: tensor.shape for name, (tensor, _) in declarations(program).items()}
    for node, equation in _equations(program):
        known = tuple((access.tensor, shapes[access.tensor]) for access in _accesses(equation))
        extents = node.extents
        loops = tuple((name, extents[name]) for name in sorted(_indices(equation)))
        for sentence, name in out_of_bounds(equation, loops, known):
            yield sentence, node.path, name


@_rule(4, "nothing is read before it is written, and every element of an output is written")
def _defined(program: Program, _: str) -> _Found:
    yield from undefined(program, frozenset(starts(program)))


@_rule(4, "parallel, vector and bound loops carry no dependence")
def _promise(program: Program, _: str) -> _Found:
    for node, loop in _loops(program):
        if loop.kind in (Kind.PARALLEL, Kind.VECTOR, Kind.BOUND):
            sentence = parallel_refusal(program, node.path)
            if sentence is not None:
                yield f"{show_loop(loop)} is not safe: {sentence}", node.path, loop.index
