"""A convolution or product followed by a chain of operators: 69 of KernelBench level 2 (arXiv 2502.10517).

Names state the chain. Where one step makes another pointless (the maximum of one element, the mean of what
has none) the definition gives it something to do, and `remark` says so.
"""

# mypy: disable-error-code="misc"
from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datagen.workloads.definition import Definition, Sizes, Triple, sizes
from datagen.workloads.parts import (
    Minus,
    Plus,
    Residual,
    Step,
    Times,
    chain,
    clamp,
    leaky,
    least,
    logsumexp,
    mean,
    minus,
    over,
    pooled,
    softmax,
    split,
    times,
    total,
)

Steps = Callable[..., tuple[Step, ...]]
"""The steps after the first, for a number of channels or features, and of groups where it takes two."""


def _conv2d(family: str, steps: Steps, remark: str = "", bias: bool = True) -> Definition:
    return Definition(
        f"conv2d_{family}",
        "f[n,c,h,w]",
        _sizes(steps, n=(2, 128, 64), c=(2, 3, 3), h=(11, 32, 128), w=(10, 32, 128), out=(6, 16, 64), groups=(2, 8, 8)),
        lambda c, out, groups=1: chain(nn.Conv2d(c, out, 3, bias=bias), *_given(steps, out, groups)),
        remark,
    )


def _conv3d(family: str, steps: Steps, remark: str = "", padding: int = 0, bias: bool = True) -> Definition:
    shape: dict[str, Triple] = {"n": (2, 128, 12), "c": (2, 3, 3), "d": (6, 16, 32), "h": (8, 32, 64), "w": (7, 32, 64)}
    return Definition(
        f"conv3d_{family}",
        "f[n,c,d,h,w]",
        _sizes(steps, **shape, out=(6, 16, 32), groups=(2, 8, 8)),
        lambda c, out, groups=1: chain(nn.Conv3d(c, out, 3, padding=padding, bias=bias), *_given(steps, out, groups)),
        remark,
    )


def _gemm(family: str, k: int, n: int, steps: Steps, remark: str = "", groups: int = 8, small: int = 12) -> Definition:
    """A linear layer from k to n features, and steps."""
    return Definition(
        f"gemm_{family}",
        "f[m,k]",
        _sizes(steps, m=(4, 128, 1024), k=(5, k, 4 * k), n=(small, n, 4 * n), groups=(3, groups, groups)),
        lambda k, n, groups=1: chain(nn.Linear(k, n), *_given(steps, n, groups)),
        remark,
    )


def _sizes(steps: Steps, groups: Triple, **extents: Triple) -> Sizes:
    return sizes(**extents, **({"groups": groups} if "g" in inspect.signature(steps).parameters else {}))


def _given(steps: Steps, channels: int, groups: int) -> tuple[Step, ...]:
    return steps(**{name: {"c": channels, "g": groups}[name] for name in inspect.signature(steps).parameters})


NO_BIAS = "The convolution has no bias: the mean of a channel, which the norm takes away, would take it away."

CONV2D: dict[str, Definition] = {
    "conv2d_relu_biasadd": _conv2d("map", lambda c: (F.relu, Plus(c, 1, 1))),
    "conv2d_mish_mish": _conv2d("map", lambda: (F.mish, F.mish)),
    "conv2d_relu_hardswish": _conv2d("map", lambda: (F.relu, F.hardswish)),
    "conv2d_hardswish_relu": _conv2d("map", lambda: (F.hardswish, F.relu)),
    "conv2d_divide_leakyrelu": _conv2d("map", lambda: (over(2), leaky(0.01))),
    "conv2d_subtract_subtract_mish": _conv2d("map", lambda: (minus(0.5), minus(0.2), F.mish)),
    "conv2d_multiply_leakyrelu_gelu": _conv2d("map", lambda c: (Times(c, 1, 1), leaky(0.01), F.gelu)),
    "conv2d_min_add_multiply": _conv2d("map", lambda c: (lambda x: x.clamp(max=0.5), Plus(c, 1, 1), times(2))),
    "conv2d_scaling_min": _conv2d("reduction", lambda: (times(2), least)),
    "conv2d_min_tanh_tanh": _conv2d("reduction", lambda: (least, torch.tanh, torch.tanh)),
    "conv2d_gelu_globalavgpool": _conv2d("pooling", lambda: (F.gelu, mean(2, 3))),
    "conv2d_avgpool_sigmoid_sum": _conv2d("pooling", lambda: (nn.AvgPool2d(4), torch.sigmoid, total(1, 2, 3))),
    "conv2d_tanh_scaling_biasadd_max": _conv2d(
        "pooling", lambda c: (torch.tanh, times(2), Plus(c, 1, 1), nn.MaxPool2d(4))
    ),
    "conv2d_subtract_tanh_subtract_avgpool": _conv2d(
        "pooling", lambda: (minus(0.5), torch.tanh, minus(0.2), nn.AvgPool2d(2))
    ),
    "conv2d_subtract_hardswish_maxpool_mish": _conv2d(
        "pooling", lambda: (minus(0.5), F.hardswish, nn.MaxPool2d(2), F.mish)
    ),
    "conv2d_batchnorm_scaling": _conv2d("norm", lambda c: (nn.BatchNorm2d(c), times(2))),
    "conv2d_activation_batchnorm": _conv2d("norm", lambda c: (F.mish, nn.BatchNorm2d(c))),
    "conv2d_instancenorm_divide": _conv2d("norm", lambda c: (nn.InstanceNorm2d(c), over(2)), NO_BIAS, bias=False),
    "conv2d_add_scale_sigmoid_groupnorm": _conv2d(
        "norm", lambda c, g: (Plus(c, 1, 1), Times(c, 1, 1), torch.sigmoid, nn.GroupNorm(g, c))
    ),
    "conv2d_groupnorm_scale_maxpool_clamp": _conv2d(
        "norm", lambda c, g: (nn.GroupNorm(g, c), Times(c, 1, 1), nn.MaxPool2d(4), clamp(0, 1))
    ),
    "conv2d_groupnorm_tanh_hardswish_residualadd_logsumexp": _conv2d(
        "norm", lambda c, g: (Residual(nn.GroupNorm(g, c), torch.tanh, F.hardswish), logsumexp)
    ),
}

CONV3D: dict[str, Definition] = {
    "conv3d_mish_tanh": _conv3d("map", lambda: (F.mish, torch.tanh)),
    "conv3d_scaling_tanh_multiply_sigmoid": _conv3d(
        "map", lambda c: (Times(c, 1, 1, 1), torch.tanh, Times(c, 1, 1, 1), torch.sigmoid)
    ),
    "conv3d_relu_leakyrelu_gelu_sigmoid_biasadd": _conv3d(
        "map", lambda c: (F.relu, leaky(0.01), F.gelu, torch.sigmoid, Plus(c, 1, 1, 1))
    ),
    "conv3d_leakyrelu_sum_clamp_gelu": _conv3d("map", lambda c: (leaky(0.2), Plus(c, 1, 1, 1), clamp(-1, 1), F.gelu)),
    "conv3d_min_softmax": _conv3d("softmax", lambda: (lambda x: x.amin(2), softmax)),
    "conv3d_hardswish_relu_softmax_mean": _conv3d(
        "softmax", lambda: (F.hardswish, F.relu, softmax, lambda x: x.mean((2, 3, 4)))
    ),
    "conv3d_softmax_maxpool_maxpool": _conv3d("softmax", lambda: (softmax, nn.MaxPool3d(2), nn.MaxPool3d(2))),
    "conv3d_max_logsumexp_relu": _conv3d("pooling", lambda: (nn.MaxPool3d(2), logsumexp, F.relu), padding=1),
    "conv3d_divide_max_globalavgpool_biasadd_sum": _conv3d(
        "pooling", lambda c: (over(2), nn.MaxPool3d(2), mean(2, 3, 4), Plus(c, 1, 1, 1), total(1))
    ),
    "conv3d_groupnorm_mean": _conv3d(
        "norm",
        lambda c, g: (nn.GroupNorm(g, c), lambda x: x.mean((1, 2, 3, 4))),
        "Each group has mean zero, so the scales of a group must differ for the output to depend on the input.",
    ),
    "conv3d_groupnorm_min_clamp": _conv3d(
        "norm",
        lambda c, g: (nn.GroupNorm(g, c), lambda x: x.clamp(max=0.5), clamp(0, 1)),
        "The minimum is with 0.5: with 0, what the clamp to [0, 1] leaves is 0 everywhere.",
    ),
    "conv3d_multiply_instancenorm_clamp_multiply_max": _conv3d(
        "norm",
        lambda c: (
            Times(c, 1, 1, 1),
            nn.InstanceNorm3d(c),
            clamp(-1, 1),
            Times(c, 1, 1, 1),
            lambda x: x.amax(1),
        ),
        NO_BIAS,
        bias=False,
    ),
}


class NormalisedProduct(nn.Module):
    """`(norm(x W^T + b) + y) y`, the norm of each row for itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = F.instance_norm(self.linear(x)[:, None, None])[:, 0, 0]
        return (z + y) * y


GEMM: dict[str, Definition] = {
    "matmul_mish_mish": _gemm("map", 10, 20, lambda: (F.mish, F.mish)),
    "matmul_swish_scaling": _gemm("map", 1024, 512, lambda: (F.silu, times(2))),
    "matmul_scaling_residualadd": _gemm("map", 64, 128, lambda: (Residual(times(0.5)),)),
    "matmul_min_subtract": _gemm("map", 10, 5, lambda: (lambda x: x.clamp(max=2), minus(2))),
    "matmul_divide_gelu": _gemm("map", 512, 1024, lambda: (over(10), F.gelu)),
    "matmul_subtract_multiply_relu": _gemm("map", 10, 5, lambda: (minus(2), times(1.5), F.relu)),
    "matmul_add_swish_tanh_gelu_hardtanh": _gemm(
        "map", 1024, 512, lambda c: (Plus(c), F.silu, torch.tanh, F.gelu, F.hardtanh)
    ),
    "gemm_multiply_leakyrelu": _gemm("map", 1024, 512, lambda: (times(2), leaky(0.1))),
    "gemm_relu_divide": _gemm("map", 1024, 512, lambda: (F.relu, over(2))),
    "gemm_add_relu": _gemm("map", 1024, 512, lambda c: (Plus(c), F.relu)),
    "gemm_scaling_hardtanh_gelu": _gemm("map", 1024, 512, lambda: (times(0.5), clamp(-2, 2), F.gelu)),
    "gemm_sigmoid_scaling_residualadd": _gemm("map", 1024, 512, lambda: (Residual(torch.sigmoid, times(2)),)),
    "gemm_swish_divide_clamp_tanh_clamp": _gemm(
        "map", 1024, 512, lambda: (F.silu, over(2), clamp(-1, 1), torch.tanh, clamp(-1, 1))
    ),
    "matmul_gelu_softmax": _gemm("softmax", 100, 10, lambda: (F.gelu, softmax)),
    "matmul_mean_softmax": _gemm(
        "softmax",
        100,
        50,
        lambda: (split(2), lambda x: x.mean(2), softmax),
        "The mean is over pairs of features: the softmax of a mean over all of them is 1.",
    ),
    "gemm_divide_sum_scaling": _gemm("reduction", 10, 20, lambda: (over(2), total(1), times(1.5))),
    "matmul_sigmoid_sum": _gemm("reduction", 10, 20, lambda: (torch.sigmoid, total(1))),
    "matmul_sum_max_avgpool_logsumexp_logsumexp": _gemm(
        "reduction",
        512,
        1024,
        lambda: (
            split(2, 2, 2, 2),
            lambda x: x.sum(5).amax(4).mean(3),
            lambda x: torch.logsumexp(x, 2),
            logsumexp,
        ),
        "Each reduction has a dimension of its own: what follows a sum over all features changes nothing.",
        small=48,
    ),
    "gemm_subtract_globalavgpool_logsumexp_gelu_residualadd": Definition(
        "gemm_reduction",
        "f[m,k]",
        sizes(m=(4, 128, 1024), k=(5, 1024, 4096), n=(12, 512, 2048)),
        lambda k, n: Residual(nn.Linear(k, n), Minus(n), split(4), lambda x: x.mean(2), logsumexp, F.gelu),
        "The mean is over groups of four: of one number, the logsumexp is the number.",
    ),
    "gemm_sigmoid_sum_logsumexp": _gemm(
        "reduction", 10, 20, lambda: (torch.sigmoid, lambda x: x.sum(1), lambda x: torch.logsumexp(x, 0))
    ),
    "gemm_logsumexp_leakyrelu_leakyrelu_gelu_gelu": _gemm(
        "reduction", 1024, 512, lambda: (logsumexp, leaky(0.01), leaky(0.01), F.gelu, F.gelu)
    ),
    "matmul_scale_residualadd_clamp_logsumexp_mish": _gemm(
        "reduction",
        512,
        1024,
        lambda: (times(2), lambda x: x + x, clamp(-10, 10), logsumexp, lambda x: x * F.mish(x)),
    ),
    "gemm_max_subtract_gelu": _gemm(
        "reduction",
        512,
        1024,
        lambda: (split(4), lambda x: x.amax(2), lambda x: x - x.mean(1, keepdim=True), F.gelu),
        "The maximum is over groups of four: of one number, what its own mean leaves is 0.",
    ),
    "matmul_maxpool_sum_scale": _gemm(
        "pooling", 10, 5, lambda: (pooled(nn.MaxPool1d(2)), lambda x: x.sum(1), times(0.5))
    ),
    "matmul_avgpool_gelu_scale_max": _gemm(
        "pooling", 512, 256, lambda: (pooled(nn.AvgPool1d(4)), F.gelu, times(2), lambda x: x.amax(1))
    ),
    "gemm_scale_batchnorm": _gemm("norm", 1024, 512, lambda c: (Times(c), nn.BatchNorm1d(c))),
    "gemm_batchnorm_scaling_softmax": _gemm("norm", 1024, 512, lambda c: (nn.BatchNorm1d(c), Times(1), softmax)),
    "matmul_batchnorm_biasadd_divide_swish": _gemm(
        "norm", 1024, 512, lambda c: (nn.BatchNorm1d(c), Plus(1), over(2), F.silu)
    ),
    "gemm_groupnorm_hardtanh": _gemm("norm", 1024, 512, lambda c, g: (nn.GroupNorm(g, c), clamp(-2, 2))),
    "gemm_groupnorm_min_biasadd": _gemm("norm", 512, 256, lambda c, g: (nn.GroupNorm(g, c), least, Plus(c))),
    "matmul_swish_sum_groupnorm": _gemm(
        "norm", 512, 1024, lambda c, g: (F.silu, Plus(c), nn.GroupNorm(g, c)), groups=32
    ),
    "matmul_groupnorm_leakyrelu_sum": _gemm(
        "norm", 512, 256, lambda c, g: (nn.GroupNorm(g, c), leaky(0.01), lambda x: x + x)
    ),
    "gemm_groupnorm_swish_multiply_swish": _gemm(
        "norm", 512, 1024, lambda c, g: (nn.GroupNorm(g, c), F.silu, Times(c), F.silu), groups=16
    ),
    "gemm_biasadd_hardtanh_mish_groupnorm": _gemm(
        "norm", 512, 1024, lambda c, g: (Plus(c), F.hardtanh, F.mish, nn.GroupNorm(g, c)), groups=32
    ),
    "bmm_instancenorm_sum_residualadd_multiply": Definition(
        "gemm_norm",
        "f[m,k] f[m,n]",
        sizes(m=(4, 128, 1024), k=(5, 64, 1024), n=(7, 128, 4096)),
        lambda k, n: NormalisedProduct(k, n),
    ),
    "gemm_batchnorm_gelu_groupnorm_mean_relu": _gemm(
        "norm", 512, 1024, lambda c, g: (nn.BatchNorm1d(c), F.gelu, nn.GroupNorm(g, c), mean(1), F.relu)
    ),
}
