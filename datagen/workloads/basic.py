"""PyTorch definitions of the suite `basic`; sizes and inputs stand in its table."""

# mypy: disable-error-code="misc"
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Matmul(nn.Module):
    """Matrix product, batched where the inputs are."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


class LinearReLU(nn.Module):
    """`max(x W^T + b, 0)`."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


class MLP(nn.Module):
    """Two linear layers with a rectifier between them."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, hidden)
        self.down = nn.Linear(hidden, features)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Softmax(nn.Module):
    """Softmax over the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, -1)


class LogSoftmax(nn.Module):
    """Logarithm of the softmax over the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(x, -1)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation over the last dimension with scale and shift."""


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (arXiv 1910.07467) with a scale."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class GELU(nn.GELU):
    """Gaussian error linear unit, exact form."""


class Conv2d(nn.Conv2d):
    """Two-dimensional convolution with bias; `groups` equal to the channels makes it depthwise."""


class Conv2dBatchNormReLU(nn.Module):
    """Convolution, batch normalisation with running statistics, rectifier."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class MaxPool2d(nn.MaxPool2d):
    """Maximum over windows."""


class Sum(nn.Module):
    """Sum over the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(-1)


class ArgMax(nn.Module):
    """Position of the first maximum in the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


class Attention(nn.Module):
    """Scaled dot-product attention, optionally causal."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)


class GemmGELUSoftmax(nn.Module):
    """Linear layer, GELU, softmax over the last dimension."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(F.gelu(self.linear(x)), -1)
