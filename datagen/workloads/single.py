"""The 83 single operators of Step-TP (arXiv 2605.25954), after KernelBench (arXiv 2502.10517)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datagen.workloads.definition import Definition, Sizes, function, sizes
from datagen.workloads.parts import RMSNorm, chain

ROWS = sizes(m=(3, 16, 64), n=(7, 16384, 65536))
IMAGES = sizes(n=(2, 16, 64), c=(6, 64, 64), h=(5, 256, 256), w=(4, 128, 128))
BLOCKS = sizes(b=(3, 16, 64), m=(5, 256, 512), n=(7, 256, 512))
SQUARE = sizes(n=(6, 1024, 2048))


def _map(call: Callable[[Tensor], Tensor], extents: Sizes = ROWS) -> Definition:
    return Definition("elementwise", "f[m,n]", extents, function(call))


MAPS = {
    "relu": _map(torch.relu),
    "leaky_relu": _map(lambda x: F.leaky_relu(x, 0.01)),
    "sigmoid": _map(torch.sigmoid),
    "tanh": _map(torch.tanh),
    "swish": _map(lambda x: x * torch.sigmoid(x)),
    "gelu": _map(F.gelu),
    "new_gelu": _map(lambda x: F.gelu(x, approximate="tanh"), sizes(m=(3, 1024, 4096), n=(7, 1024, 4096))),
    "selu": _map(F.selu),
    "hard_sigmoid": _map(F.hardsigmoid),
    "softplus": _map(F.softplus),
    "softsign": _map(F.softsign),
    "elu": _map(F.elu),
    "hard_tanh": _map(F.hardtanh),
    "matrix_scalar_multiplication": Definition(
        "elementwise", "f[m,n] f", sizes(m=(3, 1024, 4096), n=(7, 512, 4096)), function(lambda a, s: a * s)
    ),
}

SOFTMAXES = {
    "softmax": Definition("softmax", "f[m,n]", ROWS, function(lambda x: torch.softmax(x, 1))),
    "log_softmax": Definition("softmax", "f[m,n]", ROWS, function(lambda x: torch.log_softmax(x, 1))),
}

NORMALISATIONS = {
    "batch_norm": Definition("normalisation", "f[n,c,h,w]", IMAGES, lambda c: nn.BatchNorm2d(c)),
    "instance_norm": Definition("normalisation", "f[n,c,h,w]", IMAGES, lambda c: nn.InstanceNorm2d(c)),
    "group_norm": Definition(
        "normalisation",
        "f[n,c,h,w]",
        sizes(n=(2, 16, 64), c=(6, 64, 64), h=(5, 256, 256), w=(4, 128, 128), groups=(3, 8, 8)),
        lambda c, groups: nn.GroupNorm(groups, c),
    ),
    "rms_norm": Definition("normalisation", "f[n,c,h,w]", IMAGES, lambda: RMSNorm()),
    "layer_norm": Definition("normalisation", "f[n,c,h,w]", IMAGES, lambda c, h, w: nn.LayerNorm((c, h, w))),
    "frobenius_norm": Definition(
        "normalisation", "f[n,c,h,w]", IMAGES, function(lambda x: x / torch.linalg.vector_norm(x))
    ),
    "l1_norm": Definition("normalisation", "f[m,n]", ROWS, function(lambda x: x / x.abs().sum(1, keepdim=True))),
    "l2_norm": Definition(
        "normalisation", "f[m,n]", ROWS, function(lambda x: x / torch.linalg.vector_norm(x, dim=1, keepdim=True))
    ),
}


def _matmul(inputs: str, extents: Sizes, call: Callable[..., Tensor] = torch.matmul) -> Definition:
    return Definition("matmul", inputs, extents, function(call))


MNK = sizes(m=(3, 512, 2048), n=(4, 768, 2048), k=(5, 1024, 4096))

MATMULS = {
    "matmul_square": _matmul("f[n,n] f[n,n]", SQUARE),
    "matmul_standard": _matmul("f[m,k] f[k,n]", sizes(m=(3, 512, 2048), k=(5, 1024, 4096), n=(4, 768, 2048))),
    "matmul_batched": _matmul(
        "f[b,m,k] f[b,k,n]", sizes(b=(2, 64, 128), m=(3, 128, 256), k=(5, 256, 512), n=(4, 512, 512))
    ),
    "matmul_3d": _matmul(
        "f[b,m,k] f[k,n]", sizes(b=(2, 16, 32), m=(3, 1024, 2048), k=(5, 512, 1024), n=(4, 768, 1024))
    ),
    "matmul_4d": _matmul(
        "f[b,h,m,k] f[k,n]",
        sizes(b=(2, 8, 8), h=(3, 256, 256), m=(4, 512, 512), k=(5, 256, 256), n=(6, 128, 192)),
    ),
    "matmul_transposed_a": _matmul("f[k,m] f[k,n]", MNK, lambda a, b: a.T @ b),
    "matmul_transposed_b": _matmul("f[m,k] f[n,k]", MNK, lambda a, b: a @ b.T),
    "matmul_transposed_both": _matmul("f[k,m] f[n,k]", MNK, lambda a, b: a.T @ b.T),
    "matmul_large_k": _matmul("f[m,k] f[k,n]", sizes(m=(3, 512, 1024), k=(9, 256, 256), n=(8, 131072, 131072))),
    "matmul_small_k": _matmul("f[m,k] f[k,n]", sizes(m=(7, 1024, 4096), k=(9, 1024, 4096), n=(2, 32, 32))),
    "matmul_irregular": _matmul("f[m,k] f[k,n]", sizes(m=(7, 1017, 4107), k=(5, 987, 2187), n=(3, 642, 1542))),
    "matmul_tall_skinny": _matmul("f[m,k] f[k,m]", sizes(m=(7, 1024, 8192), k=(2, 16, 32))),
    "matmul_diagonal": _matmul("f[m] f[m,n]", sizes(m=(5, 512, 4096), n=(6, 1024, 4096)), lambda a, b: a[:, None] * b),
    "matmul_symmetric": _matmul("f[n,n] f[n,n]", sizes(n=(6, 512, 2048))),
    "matmul_upper_triangular": _matmul("f[n,n] f[n,n]", sizes(n=(6, 768, 2048)), lambda a, b: torch.triu(a @ b)),
    "matmul_lower_triangular": _matmul("f[n,n] f[n,n]", SQUARE, lambda a, b: torch.tril(a @ b)),
    "matvec": _matmul("f[m,k] f[k,1]", sizes(m=(4, 256, 256), k=(7, 131072, 262144))),
}

LENGTH = sizes(n=(2, 16, 64), c=(3, 64, 64), l=(12, 128, 4096))
PLANE = sizes(n=(2, 16, 64), c=(3, 32, 32), h=(9, 128, 256), w=(8, 128, 256))
SPACE = sizes(n=(2, 4, 2), c=(2, 32, 32), d=(7, 64, 64), h=(8, 64, 128), w=(9, 64, 96))


def _pool(inputs: str, extents: Sizes, make: Callable[[], nn.Module]) -> Definition:
    return Definition("pooling", inputs, extents, make)


POOLINGS = {
    "max_pool_1d": _pool("f[n,c,l]", LENGTH, lambda: nn.MaxPool1d(4, 2, 2, dilation=3)),
    "max_pool_2d": _pool("f[n,c,h,w]", PLANE, lambda: nn.MaxPool2d(2, 2, 1, dilation=3)),
    "max_pool_3d": _pool("f[n,c,d,h,w]", SPACE, lambda: nn.MaxPool3d(3, 2, 1)),
    "avg_pool_1d": _pool(
        "f[n,c,l]", sizes(n=(2, 16, 64), c=(3, 32, 64), l=(9, 128, 4096)), lambda: nn.AvgPool1d(4, 1, 2)
    ),
    "avg_pool_2d": _pool(
        "f[n,c,h,w]",
        sizes(n=(2, 16, 64), c=(3, 64, 64), h=(9, 256, 256), w=(8, 256, 256)),
        lambda: nn.AvgPool2d(3),
    ),
    "avg_pool_3d": _pool("f[n,c,d,h,w]", SPACE, lambda: nn.AvgPool3d(3, 2, 1)),
}


def _reduction(call: Callable[[Tensor], Tensor]) -> Definition:
    return Definition("reduction", "f[b,m,n]", BLOCKS, function(call))


REDUCTIONS = {
    "sum_reduction": _reduction(lambda x: x.sum(1, keepdim=True)),
    "mean_reduction": _reduction(lambda x: x.mean(1)),
    "max_reduction": _reduction(lambda x: x.max(1).values),
    "min_reduction": _reduction(lambda x: x.min(1).values),
    "product_reduction": _reduction(lambda x: x.prod(1)),
    "argmax_reduction": _reduction(lambda x: x.argmax(1)),
    "argmin_reduction": _reduction(lambda x: x.argmin(1)),
}


def _scan(call: Callable[..., Tensor], inputs: str = "f[m,n]", n: int = 4000) -> Definition:
    return Definition("scan", inputs, sizes(m=(3, 128, 512), n=(7, n, 4 * n)), function(call))


SCANS = {
    "cumsum": _scan(lambda x: x.cumsum(1)),
    "cumprod": _scan(lambda x: x.cumprod(1)),
    "cumsum_reverse": _scan(lambda x: x.flip(1).cumsum(1).flip(1)),
    "cumsum_exclusive": _scan(lambda x: F.pad(x[:, :-1], (1, 0)).cumsum(1), n=1000),
    "masked_cumsum": _scan(lambda x, mask: (x * mask).cumsum(1), "f[m,n] bool[m,n]"),
}


def _loss(inputs: str, call: Callable[..., Tensor], m: int = 128, n: int = 4096) -> Definition:
    return Definition("loss", inputs, sizes(m=(3, m, 4 * m), n=(7, n, 4 * n)), function(call))


LOSSES = {
    "mse_loss": _loss("f[m,n] f[m,n]", F.mse_loss),
    "huber_loss": _loss("f[m,n] f[m,n]", F.smooth_l1_loss),
    "hinge_loss": _loss("f[m,1] f[m,1]", lambda x, y: (1 - x * y).clamp(min=0).mean()),
    "cosine_similarity_loss": _loss("f[m,n] f[m,n]", lambda x, y: (1 - F.cosine_similarity(x, y, 1)).mean()),
    "cross_entropy_loss": _loss(
        "f[m,n] i64[m]", lambda x, y: -torch.log_softmax(x, 1).gather(1, y[:, None]).mean(), 1024, 10
    ),
    "kl_div_loss": _loss("f[m,n] f[m,n]", lambda p, q: F.kl_div(p.log(), q, reduction="batchmean")),
    "triplet_margin_loss": _loss("f[m,n] f[m,n] f[m,n]", F.triplet_margin_loss, n=1024),
}

CONV1D = sizes(n=(2, 16, 64), c=(2, 3, 3), l=(12, 512, 4096), out=(4, 64, 64))


def _conv2d(h: int, w: int, kernel: Any, batch: int = 16, **options: Any) -> Definition:
    extents = sizes(n=(2, batch, 4 * batch), c=(3, 3, 3), h=(9, h, h), w=(11, w, w), out=(4, 64, 64))
    return Definition(
        "convolution", "f[n,c,h,w]", extents, lambda c, out: nn.Conv2d(c, out, kernel, bias=False, **options)
    )


def _conv3d(shape: tuple[int, int, int], kernel: Any, batch: int = 16) -> Definition:
    d, h, w = shape
    extents = sizes(n=(2, batch, batch), c=(2, 3, 3), d=(6, d, d), h=(7, h, h), w=(8, w, w), out=(3, 64, 64))
    return Definition("convolution", "f[n,c,d,h,w]", extents, lambda c, out: nn.Conv3d(c, out, kernel, bias=False))


def _depthwise(h: int, w: int, kernel: Any) -> Definition:
    extents = sizes(n=(2, 16, 64), c=(3, 3, 64), h=(9, h, h), w=(11, w, w))
    return Definition("convolution", "f[n,c,h,w]", extents, lambda c: nn.Conv2d(c, c, kernel, groups=c, bias=False))


CONVOLUTIONS = {
    "conv1d": Definition("convolution", "f[n,c,l]", CONV1D, lambda c, out: nn.Conv1d(c, out, 3, bias=False)),
    "conv1d_dilated_strided": Definition(
        "convolution",
        "f[n,c,l]",
        sizes(n=(2, 16, 64), c=(2, 3, 3), l=(14, 256, 4096), out=(4, 64, 64)),
        lambda c, out: nn.Conv1d(c, out, 3, stride=3, dilation=4, bias=False),
    ),
    "conv2d_square": _conv2d(256, 256, 3),
    "conv2d_asymmetric_input": _conv2d(256, 128, 3),
    "conv2d_asymmetric_kernel": _conv2d(256, 256, (3, 5)),
    "conv2d_asymmetric": _conv2d(256, 128, (5, 3)),
    "conv2d_dilated_padded": _conv2d(256, 256, (3, 5), padding=(2, 1), dilation=(2, 2)),
    "conv3d_square": _conv3d((64, 64, 64), 3),
    "conv3d_asymmetric_input": _conv3d((16, 256, 256), 3, batch=8),
    "conv3d_asymmetric_kernel": _conv3d((64, 64, 64), (3, 5, 7)),
    "conv3d_asymmetric": _conv3d((256, 256, 10), (3, 5, 2), batch=8),
    "depthwise_square": _depthwise(256, 256, 3),
    "depthwise_asymmetric_input": _depthwise(128, 256, 3),
    "depthwise_asymmetric_kernel": _depthwise(256, 256, (3, 1)),
    "depthwise_asymmetric": _depthwise(128, 256, (3, 5)),
    "depthwise_separable": Definition(
        "convolution",
        "f[n,c,h,w]",
        sizes(n=(2, 16, 12), c=(3, 3, 64), h=(7, 256, 256), w=(8, 256, 256), out=(4, 64, 64)),
        lambda c, out: chain(nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False), nn.Conv2d(c, out, 1, bias=False)),
    ),
    "conv2d_pointwise": _conv2d(256, 256, 1),
}

SINGLE: dict[str, Definition] = {
    **MATMULS,
    **MAPS,
    **SOFTMAXES,
    **NORMALISATIONS,
    **POOLINGS,
    **REDUCTIONS,
    **SCANS,
    **LOSSES,
    **CONVOLUTIONS,
}
"""Every single operator by name."""
