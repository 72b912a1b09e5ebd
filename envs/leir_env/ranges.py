"""The range of an integer expression over the loops around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from envs.leir_env.ir import Call, Const, Expr, Index

Bounds = tuple[int, int]
"""The least and the greatest value."""


def bounds(expr: Expr, extents: Mapping[str, int]) -> Bounds | None:
    """Least and greatest value of an integer expression of loop indices; None where nothing is known."""
    match expr:
        case Const(number) if type(number) is int:
            return number, number
        case Index(name):
            return 0, extents[name] - 1
        case Call("select", (_, *args)) | Call(_, args):
            found = [bounds(arg, extents) for arg in args]
            known = [pair for pair in found if pair is not None]
            if len(known) == len(found) and expr.op in _BOUNDS:
                return _BOUNDS[expr.op](*known)
    return None


def _corners(operator: Callable[[int, int], int]) -> Callable[[Bounds, Bounds], Bounds]:
    """Of an operator monotone in each argument."""

    def combine(left: Bounds, right: Bounds) -> Bounds:
        found = [operator(a, b) for a in left for b in right]
        return min(found), max(found)

    return combine


def _quotient(left: Bounds, right: Bounds) -> Bounds | None:
    return _corners(int.__floordiv__)(left, right) if right[0] > 0 else None


def _remainder(left: Bounds, right: Bounds) -> Bounds | None:
    if right[0] <= 0:
        return None
    return left if left[0] >= 0 and left[1] < right[0] else (0, right[1] - 1)


def _magnitude(arg: Bounds) -> Bounds:
    low, high = sorted(map(abs, arg))
    return (0 if arg[0] <= 0 <= arg[1] else low), high


_BOUNDS: Mapping[str, Callable[..., Bounds | None]] = {
    "add": _corners(int.__add__),
    "sub": _corners(int.__sub__),
    "mul": _corners(int.__mul__),
    "min": _corners(min),
    "max": _corners(max),
    "floordiv": _quotient,
    "mod": _remainder,
    "abs": _magnitude,
    "neg": lambda arg: (-arg[1], -arg[0]),
    "select": lambda yes, no: (min(yes[0], no[0]), max(yes[1], no[1])),
}
