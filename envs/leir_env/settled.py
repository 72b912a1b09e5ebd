"""What a reader may rely on: which elements are finished when it runs, and which values a maximum bounds.

Proofs by structure, and by program order alone: a writer that comes first in each iteration of the loops around
both, and runs over every element that can be read. What isn't proved is taken to be false.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from envs.leir_env.affine import affine, interval
from envs.leir_env.dependence import PRIME
from envs.leir_env.ir import Access, Assign, Call, Equation, Expr, Index, Program, children
from envs.leir_env.tree import Node, accesses, declarations, indices, substitute, walk


@functools.lru_cache(maxsize=1024)
def writers(program: Program) -> Mapping[str, tuple[Node, ...]]:
    """The equations that write each tensor, in program order."""
    found: dict[str, tuple[Node, ...]] = {}
    for node in walk(program):
        if isinstance(node.statement, Equation):
            name = node.statement.target.tensor
            found[name] = (*found.get(name, ()), node)
    return found


def is_finished(program: Program, access: Access, reader: Node) -> bool:
    """Is the element never written, or written by all who write its tensor before the equation at `reader` runs?"""
    shape = declarations(program)[access.tensor][0].shape
    return all(_complete(node, access, shape, reader) for node in writers(program).get(access.tensor, ()))


def common(first: Node, second: Node) -> int:
    """How many loops stand around both."""
    shared = 0
    for a, b in zip(first.path[:-1], second.path[:-1], strict=False):
        if a != b:
            break
        shared += 1
    return shared


def _complete(writer: Node, access: Access, shape: tuple[int, ...], reader: Node) -> bool:
    """Does the writer, in each iteration of the loops around both, first write all that `access` may read?

    In each dimension the subscript is either fixed by those loops, and the same for both, or runs over the
    whole extent in the writer's own loops.
    """
    equation = writer.statement
    assert isinstance(equation, Equation)
    if equation.guard or writer.path >= reader.path:
        return False
    own = {loop.index: loop.extent for loop in writer.loops[common(writer, reader) :]}
    for mine, theirs, extent in zip(equation.target.subscripts, access.subscripts, shape, strict=True):
        form = affine(mine)
        if form is None:
            return False
        moving = [(name, factor) for name, factor in form.terms if name in own]
        if not moving:
            if mine != theirs or any(True for _ in accesses(mine)):
                return False
            continue
        if len(moving) < len(form.terms) or form.constant:
            return False
        reach = 0
        for name, factor in sorted(moving, key=lambda term: term[1]):
            if not 0 < factor <= reach + 1:
                return False
            reach += factor * (own.pop(name) - 1)
        if reach < extent - 1:
            return False
    return True


def is_bounded(program: Program, value: Expr, bound: Access, reader: Node) -> bool:
    """Is `value` at most `bound` at the equation at `reader`, because the bound is a maximum over such values?"""
    writer = _maximum(program, bound.tensor)
    return writer is not None and _bindings(program, value, bound, writer, reader, reader.extents) is not None


def _maximum(program: Program, tensor: str) -> Node | None:
    """The equation that alone writes a tensor, as a maximum."""
    found = writers(program).get(tensor, ())
    alone = len(found) == 1 and isinstance(found[0].statement, Equation) and found[0].statement.assign is Assign.MAX
    return found[0] if alone else None


def partial_maximum(program: Program, tensor: str, value: Expr, bound: Access, reader: Node) -> Access | None:
    """The element of a tensor that lies between `value` and `bound`: a maximum over some of what `bound` is over."""
    writer = _maximum(program, tensor)
    if writer is None or tensor == bound.tensor:
        return None
    equation = writer.statement
    assert isinstance(equation, Equation)
    bindings: dict[str, Expr] = {loop.index: Index(loop.index) for loop in writer.loops[: common(writer, reader)]}
    if not _match(equation.value, value, bindings) or not indices(equation.target) <= bindings.keys():
        return None
    element = substitute(equation.target, bindings)
    assert isinstance(element, Access)
    if not is_bounded(program, value, element, reader):
        return None
    if is_bounded(program, element, bound, reader):
        return element
    # Or the bound is a maximum over the same values: then over each that the element is over.
    free = {f"{loop.index}{PRIME}": loop.extent for loop in writer.loops if loop.index not in indices(equation.target)}
    renamed: dict[str, Expr] = {name.removesuffix(PRIME): Index(name) for name in free}
    any_value = substitute(equation.value, {**bindings, **renamed})
    whole = _maximum(program, bound.tensor)
    extents = {**reader.extents, **free}
    covered = whole is not None and _bindings(program, any_value, bound, whole, reader, extents) is not None
    return element if covered else None


def _bindings(
    program: Program, value: Expr, bound: Access, writer: Node, reader: Node, extents: Mapping[str, int]
) -> Mapping[str, Expr] | None:
    """The instance of a maximum's equation that took `value`, as its indices at `reader`; None without a proof.

    `extents` are those of the indices in `value`.
    """
    equation = writer.statement
    assert isinstance(equation, Equation)
    if not is_finished(program, bound, reader):
        return None
    shared = common(writer, reader)
    bindings: dict[str, Expr] = {loop.index: Index(loop.index) for loop in writer.loops[:shared]}
    if not (_match(equation.value, value, bindings) and _match(equation.target, bound, bindings)):
        return None
    for loop in writer.loops[shared:]:
        reach = interval(bindings[loop.index], extents) if loop.index in bindings else (0, 0)
        if reach is None or reach[0] < 0 or reach[1] >= loop.extent:
            return None
    return bindings if all(_unchanged(program, a, writer, reader) for a in accesses(equation.value)) else None


def _match(pattern: Expr, expr: Expr, bindings: dict[str, Expr]) -> bool:
    """Does `expr` equal `pattern` once the indices of the pattern are replaced? Extends `bindings`."""
    if isinstance(pattern, Index):
        return bindings.setdefault(pattern.name, expr) == expr
    below, others = children(pattern), children(expr)
    if type(pattern) is not type(expr) or len(below) != len(others):
        return False
    same = {
        Access: lambda: pattern.tensor == expr.tensor,  # type: ignore[union-attr]
        Call: lambda: pattern.op == expr.op,  # type: ignore[union-attr]
    }
    if type(pattern) in same:
        return same[type(pattern)]() and all(_match(p, e, bindings) for p, e in zip(below, others, strict=True))
    return pattern == expr


def _unchanged(program: Program, access: Access, writer: Node, reader: Node) -> bool:
    """Does `reader` find what the equation at `writer` read through `access`?"""
    found = writers(program).get(access.tensor, ())
    return is_finished(program, access, writer) and all(
        common(node, writer) <= common(writer, reader) for node in found
    )


@functools.lru_cache(maxsize=4096)
def shifted(program: Program, reader: Node) -> frozenset[Expr]:
    """The differences in the equation at `reader` that are never positive: a value minus a maximum over it."""
    equation = reader.statement
    assert isinstance(equation, Equation)
    return frozenset(
        difference
        for difference in differences(equation.value)
        if is_bounded(program, difference.args[0], difference.args[1], reader)  # type: ignore[arg-type]
    )


@functools.lru_cache(maxsize=16384)
def differences(expr: Expr) -> tuple[Call, ...]:
    """The subexpressions that subtract a tensor element."""
    found: tuple[Call, ...] = ()
    if isinstance(expr, Call):
        if expr.op == "sub" and isinstance(expr.args[1], Access):
            found = (expr,)
        for arg in expr.args:
            found += differences(arg)
    return found


def attains_one(program: Program, node: Node) -> bool:
    """Is each element that the equation at `node` sums up a sum of `exp(x-m)` over all x that the maximum m is over?

    Then one term is 1, once the sum is whole.
    """
    equation = node.statement
    assert isinstance(equation, Equation)
    match equation.value:
        case Call("exp", (Call("sub", (value, Access() as bound)),)) if not equation.guard:
            pass
        case _:
            return False
    writer = _maximum(program, bound.tensor)
    if writer is None or not _is_fresh(program, writer, node):
        return False
    bindings = _bindings(program, value, bound, writer, node, node.extents)
    if bindings is None:
        return False
    assert isinstance(writer.statement, Equation)
    own = writer.loops[common(writer, node) :]
    images = [bindings.get(loop.index) for loop in own]
    summed = {loop.index for loop in node.loops[_home(program, node) :]} - indices(equation.target)
    kept = _plain(writer.statement.target)
    return len(set(images)) == len(images) and all(
        isinstance(image, Index)
        and node.extents[image.name] == loop.extent
        and (loop.index in kept or image.name in summed)
        for image, loop in zip(images, own, strict=True)
    )


def is_whole(program: Program, access: Access, reader: Node) -> bool:
    """Has the element all its terms when the equation at `reader` runs: does no loop around both add more?"""
    return is_finished(program, access, reader) and all(
        _is_fresh(program, node, reader) for node in writers(program).get(access.tensor, ())
    )


def _is_fresh(program: Program, writer: Node, reader: Node) -> bool:
    """Does each iteration of the loops around both have elements of its own?"""
    assert isinstance(writer.statement, Equation)
    shared = writer.loops[_home(program, writer) : common(writer, reader)]
    return {loop.index for loop in shared} <= _plain(writer.statement.target)


def _home(program: Program, writer: Node) -> int:
    """How many loops stand around the declaration of what an equation writes."""
    assert isinstance(writer.statement, Equation)
    return len(declarations(program)[writer.statement.target.tensor][1])


def _plain(access: Access) -> frozenset[str]:
    """The indices that are subscripts by themselves."""
    return frozenset(subscript.name for subscript in access.subscripts if isinstance(subscript, Index))
