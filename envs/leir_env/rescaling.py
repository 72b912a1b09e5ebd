"""Sums of terms that depend on a value still growing, and the factor that brings them up to date.

A sum of `f(x, m)` that needs the final `m` can run along with it where `f(x, n) = f(x, m) * g(m, n)`: when the
value grows from `m` to `n`, what has been summed so far is multiplied by `g(m, n)`. For `f(x, m) = exp(c*(x-m))*w`,
with a constant `c > 0` and `w` free of `m`, it is `g(m, n) = exp(c*(m-n))`; with `m` the maximum of the `x` so far
no exponent is ever positive. After Milakov and Gimelshein, "Online normalizer calculation for softmax"
(arXiv 1805.02867); the same rule gives the running output of FlashAttention (arXiv 2205.14135).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from envs.leir_env.ir import Access, Call, Cast, Const, Expr, Index, children, with_children
from envs.leir_env.tree import accesses, map_accesses


def mentions(expr: Expr, tensor: str) -> bool:
    """Does `expr` read `tensor`?"""
    return any(access.tensor == tensor for access in accesses(expr))


def replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """Replace every occurrence of a sub-expression."""
    if expr == old:
        return new
    below = children(expr)
    changed = tuple(replaced(child, old, new) for child in below)
    return expr if changed == below else with_children(expr, changed)


def factors(term: Expr) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """The factors of a product, those it is divided by apart; signs are left out."""
    match term:
        case Call("mul", (left, right)):
            (a, b), (c, d) = factors(left), factors(right)
            return a + c, b + d
        case Call("div", (left, right)):
            (a, b), (c, d) = factors(left), factors(right)
            return a + d, b + c
        case Call("neg", (value,)):
            return factors(value)
    return (term,), ()


def undivided(term: Expr, divisor: Expr) -> Expr:
    """Leave out the division by `divisor`, one of the factors that `term` is divided by."""
    match term:
        case Call("div", (left, right)) if divisor not in factors(left)[1]:
            rest = _without(right, divisor)
            return left if rest is None else Call("div", (left, rest))
        case Call("mul" | "div" as op, (left, right)):
            if divisor in factors(left)[1]:
                return Call(op, (undivided(left, divisor), right))
            return Call(op, (left, undivided(right, divisor)))
        case Call("neg", (value,)):
            return with_children(term, (undivided(value, divisor),))
    raise ValueError("the term is not divided by it")


def _without(product: Expr, factor: Expr) -> Expr | None:
    """Leave out one of the factors of a product; None if there is no other."""
    if product == factor:
        return None
    match product:
        case Call("mul" | "div" as op, (left, right)) if factor in factors(left)[0]:
            rest = _without(left, factor)
            if rest is not None:
                return Call(op, (rest, right))
            return right if op == "mul" else Call("div", (Const(1), right))
        case Call("mul", (left, right)):
            rest = _without(right, factor)
            return left if rest is None else Call("mul", (left, rest))
        case Call("div", (left, right)):
            return Call("div", (left, undivided(right, factor)))
        case Call("neg", (value,)):
            rest = _without(value, factor)
            return Const(-1) if rest is None else with_children(product, (rest,))
    raise ValueError("it is not a factor of the product")


@dataclass(frozen=True, slots=True)
class Decay:
    """A factor `exp(c*(x-m))`, with `c > 0`, that falls as `m` grows."""

    factor: Expr
    """The exponential."""
    maximum: Access
    """`m`, an element of a tensor."""
    above: Expr
    """What stands for `x` in the exponent, with its share of `c`."""
    below: Expr
    """What stands for `m`, with its share of `c`."""

    def rescaling(self, previous: Expr) -> Expr:
        """The factor for what was summed when `m` was `previous`."""
        (exponent,) = children(self.factor)
        return Call("exp", (_with_above(exponent, self.maximum.tensor, self.expected(previous)),))

    def expected(self, term: Expr) -> Expr:
        """What `above` must be, given that `m` is the maximum of `term`: then no exponent is positive."""
        return replaced(self.below, self.maximum, term)


def decay(term: Expr, tensor: str) -> Decay | None:
    """Find how `term` depends on `tensor`: by one factor that decays as its element grows, or not so (None)."""
    multiplied, divided = factors(term)
    found = [factor for factor in multiplied + divided if mentions(factor, tensor)]
    if len(found) != 1 or found[0] in divided:
        return None
    (factor,) = found
    exponential = _chosen(factor)
    if not isinstance(exponential, Call) or exponential.op != "exp":
        return None
    if mentions(replaced(factor, exponential, Const(0)), tensor):
        return None
    parts = _difference(exponential.args[0], tensor)
    if parts is None or mentions(parts[0], tensor):
        return None
    above, below, scale = parts
    slope = _slope(below, tensor)
    if slope is None or not 0 < slope * scale < math.inf:
        return None
    maximum = next(access for access in accesses(below) if access.tensor == tensor)
    return Decay(exponential, maximum, above, below)


def _chosen(factor: Expr) -> Expr:
    """The exponential in `select(c,exp(x),0)`, or the factor itself."""
    match factor:
        case Call("select", (_, value, Const(0)) | (_, Const(0), value)):
            return _chosen(value)
    return factor


def _difference(exponent: Expr, tensor: str) -> tuple[Expr, Expr, float] | None:
    """Take `exponent` for `scale * (above - below)`, where `below` is the side with `tensor`."""
    match exponent:
        case Call("sub", (left, right)):
            return (left, right, 1.0) if mentions(right, tensor) else (right, left, -1.0)
        case Call("neg", (value,)):
            factor = -1.0
        case Call("mul", (Const(number), value)) | Call("mul", (value, Const(number))):
            factor = float(number)
        case Call("div", (value, Const(number))) if number:
            factor = 1 / float(number)
        case _:
            return None
    parts = _difference(value, tensor)
    return None if parts is None else (parts[0], parts[1], factor * parts[2])


def _with_above(exponent: Expr, tensor: str, above: Expr) -> Expr:
    """Put another expression in place of the side that `tensor` is subtracted from, or that is subtracted from it."""
    match exponent:
        case Call("sub", (left, right)):
            return Call("sub", (above, right) if mentions(right, tensor) else (left, above))
    below = (_with_above(child, tensor, above) if mentions(child, tensor) else child for child in children(exponent))
    return with_children(exponent, tuple(below))


def _slope(expr: Expr, tensor: str) -> float | None:
    """The constant `k` where `expr` is `k` times an element of `tensor`."""
    match expr:
        case Access(name):
            return 1.0 if name == tensor else None
        case Call("mul", (Const(number), value)) | Call("mul", (value, Const(number))):
            factor = float(number)
        case Call("div", (value, Const(number))) if number:
            factor = 1 / float(number)
        case _:
            return None
    slope = _slope(value, tensor)
    return None if slope is None else factor * slope


def unify(expr: Expr, model: Expr, free: frozenset[str], found: dict[str, str]) -> bool:
    """Can the indices of `expr` in `free` be renamed, one to one, so that it reads as `model`?

    Adds to `found`, the renaming so far; other indices must agree as they are.
    """
    if isinstance(expr, Index) and isinstance(model, Index):
        if expr.name not in free:
            return expr == model
        if expr.name not in found and model.name not in found.values():
            found[expr.name] = model.name
        return found.get(expr.name) == model.name
    below, there = children(expr), children(model)
    if type(expr) is not type(model) or len(below) != len(there):
        return False
    return _head(expr) == _head(model) and all(unify(a, b, free, found) for a, b in zip(below, there, strict=True))


def _head(expr: Expr) -> object:
    match expr:
        case Access(tensor):
            return tensor
        case Call(op):
            return op
        case Cast(dtype):
            return dtype
    return expr


def blanked(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace every element of the named tensors by an expression."""
    return map_accesses(expr, lambda access: values.get(access.tensor, access))
