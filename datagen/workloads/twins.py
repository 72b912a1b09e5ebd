"""The same operator on two inputs whose results meet: 17 workloads, and a product with its softmax."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from datagen.workloads.definition import Definition, Sizes, function, sizes
from datagen.workloads.parts import Twin

BATCHES = sizes(b=(2, 128, 128), m=(3, 128, 256), k=(5, 256, 512), n=(4, 512, 512))


def _mapped(call: Callable[[Tensor], Tensor]) -> Definition:
    """The product of two mapped batches of matrices."""
    return Definition("twin_map", "f[b,m,k] f[b,k,n]", BATCHES, function(lambda a, b: call(a) @ call(b)))


def _products(inputs: str, extents: Sizes) -> Definition:
    """Two products with the same right-hand side."""
    return Definition("twin_product", inputs, extents, function(lambda a, b, c: a @ b + c @ b))


def _conv1d(padding: int) -> Definition:
    return Definition(
        "twin_convolution",
        "f[n,c,l] f[n,c,l]",
        sizes(n=(2, 16, 64), c=(2, 3, 3), l=(9, 512, 4096), out=(4, 64, 64)),
        lambda c, out: Twin(nn.Conv1d(c, out, 3, padding=padding, bias=False)),
    )


def _conv2d(padding: int) -> Definition:
    return Definition(
        "twin_convolution",
        "f[n,c,h,w] f[n,c,h,w]",
        sizes(n=(2, 16, 12), c=(2, 3, 3), h=(8, 256, 256), w=(7, 128, 256), out=(4, 64, 64)),
        lambda c, out: Twin(nn.Conv2d(c, out, (5, 3), padding=padding, bias=False)),
    )


def _conv3d(padding: int) -> Definition:
    return Definition(
        "twin_convolution",
        "f[n,c,d,h,w] f[n,c,d,h,w]",
        sizes(n=(2, 4, 2), c=(2, 3, 3), d=(5, 16, 32), h=(7, 128, 128), w=(8, 128, 128), out=(3, 64, 64)),
        lambda c, out: Twin(nn.Conv3d(c, out, (3, 5, 7), padding=padding, bias=False)),
    )


TWINS: dict[str, Definition] = {
    "matmul_and_softmax": Definition(
        "gemm_softmax",
        "f[m,k] f[k,n]",
        sizes(m=(3, 64, 1024), k=(5, 128, 1024), n=(7, 32, 1024)),
        function(lambda a, b: torch.softmax(a @ b, 1)),
    ),
    "add_add": Definition(
        "twin_map",
        "f[b,m,k] f[b,k,n] f[k] f[n]",
        sizes(b=(2, 256, 128), m=(3, 128, 512), k=(5, 256, 512), n=(4, 768, 768)),
        function(lambda a, b, c, d: (a + c) @ (b + d)),
    ),
    "exp_exp": _mapped(torch.exp),
    "log_log": _mapped(torch.log),
    "abs_abs": _mapped(torch.abs),
    "sqrt_sqrt": _mapped(torch.sqrt),
    "log_log_add": Definition(
        "twin_map", "f[b,m,k] f[b,m,k]", BATCHES, function(lambda a, b: torch.log(a) + torch.log(b))
    ),
    "matmul3d_matmul3d": _products(
        "f[b,m,k] f[k,n] f[b,m,k]", sizes(b=(2, 16, 32), m=(3, 1024, 2048), k=(5, 512, 1024), n=(4, 768, 1024))
    ),
    "matmul4d_matmul4d": _products(
        "f[b,h,m,k] f[k,n] f[b,h,m,k]",
        sizes(b=(2, 4, 2), h=(3, 256, 256), m=(4, 512, 512), k=(5, 256, 384), n=(6, 128, 256)),
    ),
    "bmm_bmm": _products(
        "f[b,m,k] f[b,k,n] f[b,m,k]", sizes(b=(2, 128, 128), m=(3, 64, 256), k=(5, 256, 512), n=(4, 512, 512))
    ),
    "gemm_gemm": Definition(
        "twin_product",
        "f[m,k] f[m,k]",
        sizes(m=(3, 128, 512), k=(5, 1024, 4096), n=(4, 512, 4096)),
        lambda k, n: Twin(nn.Linear(k, n)),
    ),
    "conv1d_conv1d": _conv1d(0),
    "conv2d_conv2d": _conv2d(0),
    "conv3d_conv3d": _conv3d(0),
    "conv1d_conv1d_padding": _conv1d(2),
    "conv2d_conv2d_padding": _conv2d(2),
    "conv3d_conv3d_padding": _conv3d(1),
}
"""Every twin by name."""
