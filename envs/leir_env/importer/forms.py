"""How some PyTorch operators are to be written out before TVM sees them.

Each entry of the table is the operator in more elementary PyTorch, numerically stable and in the form in
which one would write its equations. Without an entry, PyTorch's own core decomposition applies.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

KEPT = (aten.matmul.default, aten.einsum.default)
"""Composite operators that TVM imports well and PyTorch would flatten to `bmm`."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition table for `ExportedProgram.run_decompositions`."""
    return dict(_decompositions())


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = torch.export.default_decompositions().materialize()
    return {operator: form for operator, form in table.items() if operator not in KEPT} | _TABLE


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (tensor.repeat_interleave(groups, -3) for tensor in (key, value))
    scores = torch.matmul(query, key.transpose(-2, -1)) * (scale or 1 / math.sqrt(query.shape[-1]))
    if is_causal:
        rows, columns = (torch.arange(extent) for extent in scores.shape[-2:])
        scores = torch.where(columns <= rows[:, None], scores, -math.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.matmul(torch.softmax(scores, -1), value)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _affine(torch.matmul(x, weight.t()), None, bias)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * c + alpha * torch.matmul(a, b)


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + torch.erf(math.sqrt(0.5) * x))


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    negative = alpha * scale * (torch.exp(input_scale * x) - 1)
    return torch.where(x > 0, scale * x, negative)


def _power(x: Tensor, exponent: float) -> Any:
    if exponent not in (2, 3, 4):
        return NotImplemented
    square = x * x
    return square if exponent == 2 else square * x if exponent == 3 else square * square


def _norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if ord not in (1, 2, math.inf) or dtype not in (None, x.dtype):
        return NotImplemented
    dims = list(range(x.dim())) if dim is None else dim
    if ord == 2:
        return torch.sqrt((x * x).sum(dims, keepdim=keepdim))
    return torch.abs(x).sum(dims, keepdim=keepdim) if ord == 1 else torch.abs(x).amax(dims, keepdim=keepdim)


def _logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """Of a slice of -inf alone this is nan, as its softmax is."""
    largest = x.amax(dim, keepdim=True)
    total = torch.log(torch.exp(x - largest).sum(dim, keepdim=True)) + largest
    return total if keepdim else total.squeeze(dim)


def _xlogy(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x == 0, 0.0, x * torch.log(y))


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    y = beta * x
    return (torch.relu(y) + torch.log(1 + torch.exp(-torch.abs(y)))) / beta


def _variance(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    dims = list(range(x.dim())) if dim is None else dim
    centred = x - x.mean(dims, keepdim=True)
    count = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    return (centred * centred).sum(dims, keepdim=keepdim) / count


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    def by_channel(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1, *[1] * (x.dim() - 2))

    y = (x - by_channel(mean)) * torch.rsqrt(by_channel(var) + eps)
    empty = x.new_empty(0)
    return _affine(y, *(None if t is None else by_channel(t) for t in (weight, bias))), empty, empty


def _batch_statistics_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = [0, *range(2, x.dim())]
    mean = x.mean(dims, keepdim=True)
    scale = torch.rsqrt(_variance(x, dims, correction=0, keepdim=True) + eps)
    ones = [1] * (x.dim() - 2)
    shaped = (None if t is None else t.reshape(-1, *ones) for t in (weight, bias))
    return _affine((x - mean) * scale, *shaped), mean.reshape(-1), scale.reshape(-1)


def _instance_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    _: bool,
) -> Tensor:
    if not use_input_stats and mean is not None and var is not None:
        return _batch_norm(x, weight, bias, mean, var, momentum, eps)[0]
    dims = list(range(2, x.dim()))
    centred = x - x.mean(dims, keepdim=True)
    y = centred * torch.rsqrt(_variance(x, dims, correction=0, keepdim=True) + eps)
    ones = [1] * (x.dim() - 2)
    return _affine(y, *(None if t is None else t.reshape(-1, *ones) for t in (weight, bias)))


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(-len(shape), 0))
    mean = x.mean(dims, keepdim=True)
    scale = torch.rsqrt(_variance(x, dims, correction=0, keepdim=True) + eps)
    return _affine((x - mean) * scale, weight, bias), mean, scale


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    channels: int,
    _: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    grouped = x.reshape(n, groups, channels // groups, *x.shape[2:])
    dims = list(range(2, grouped.dim()))
    mean = grouped.mean(dims, keepdim=True)
    scale = torch.rsqrt(_variance(grouped, dims, correction=0, keepdim=True) + eps)
    y = ((grouped - mean) * scale).reshape(x.shape)
    ones = [1] * (x.dim() - 2)
    shaped = (None if t is None else t.reshape(channels, *ones) for t in (weight, bias))
    return _affine(y, *shaped), mean.reshape(n, groups), scale.reshape(n, groups)


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _first(extreme: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    """The first position of an extreme: the least index whose element equals it."""

    def position(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        x, axis = (x.reshape(-1), 0) if dim is None else (x, dim % x.dim())
        length = x.shape[axis]
        index = torch.arange(length).reshape(length, *[1] * (x.dim() - 1 - axis))
        found = torch.where(x == extreme(x, axis), index, length).amin(axis, keepdim=keepdim)
        return found

    return position


_argmax = _first(lambda x, dim: x.amax(dim, keepdim=True))
_argmin = _first(lambda x, dim: x.amin(dim, keepdim=True))


def _max(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return x.amax(dim, keepdim=keepdim), _argmax(x, dim, keepdim)


def _min(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return x.amin(dim, keepdim=keepdim), _argmin(x, dim, keepdim)


def _any(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    dims = list(range(x.dim())) if dim is None else dim
    true = x if x.dtype == torch.bool else x != 0
    return true.to(torch.int8).amax(dims, keepdim=keepdim) > 0


def _roll(x: Tensor, shifts: list[int], dims: list[int] | None = None) -> Tensor:
    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        cut = -shift % x.shape[dim]
        if cut:
            x = torch.cat((x.narrow(dim, cut, x.shape[dim] - cut), x.narrow(dim, 0, cut)), dim)
    return x


def _upsample_nearest(x: Tensor, output_size: list[int] | None, scales: list[float] | None) -> Any:
    """Each element as often as the whole factor says; other factors are left to PyTorch's decomposition."""
    extents = x.shape[2:]
    wanted = output_size or [int(extent * scale) for extent, scale in zip(extents, scales or (), strict=True)]
    if any(new % old for new, old in zip(wanted, extents, strict=True)):
        return NotImplemented
    for dim, (new, old) in enumerate(zip(wanted, extents, strict=True), 2):
        x = x.repeat_interleave(new // old, dim)
    return x


_TABLE: dict[Any, Callable[..., Any]] = {
    aten.scaled_dot_product_attention.default: _attention,
    aten.linear.default: _linear,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
    aten.gelu.default: _gelu,
    aten.elu.default: _elu,
    aten.linalg_vector_norm.default: _norm,
    aten.pow.Tensor_Scalar: _power,
    aten.xlogy.Tensor: _xlogy,
    aten.silu.default: _silu,
    aten.softplus.default: _softplus,
    aten.var.correction: _variance,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_statistics_norm,
    aten.instance_norm.default: _instance_norm,
    aten.logsumexp.default: _logsumexp,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.any.default: _any,
    aten.any.dim: _any,
    aten.any.dims: _any,
    aten.roll.default: _roll,
    aten.upsample_nearest1d.vec: _upsample_nearest,
    aten.upsample_nearest2d.vec: _upsample_nearest,
    aten.upsample_nearest3d.vec: _upsample_nearest,
    aten.argmax.default: _argmax,
    aten.argmin.default: _argmin,
    aten.max.dim: _max,
    aten.min.dim: _min,
}
