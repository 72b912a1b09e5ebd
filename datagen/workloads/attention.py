"""Causal self-attention with one, some or all heads of keys and values, and what follows it: 33 workloads.

Multi-head (arXiv 1706.03762), multi-query (arXiv 1911.02150) and grouped-query attention (arXiv 2305.13245).
"""

# mypy: disable-error-code="misc"
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datagen.workloads.definition import Definition, Triple, sizes
from datagen.workloads.parts import Step, chain


class SelfAttention(nn.Module):
    """Causal attention of `heads` query heads over `groups` heads of keys and values, with its projections."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads = (heads, groups, groups)
        self.size = width // heads
        self.project = nn.Linear(width, sum(self.heads) * self.size)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(2, (-1, self.size)).transpose(1, 2).split(self.heads, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


HEADS: dict[str, Callable[[int, int], int]] = {
    "mha": lambda heads, groups: heads,
    "mqa": lambda heads, groups: 1,
    "gqa": lambda heads, groups: groups,
}
"""How many heads of keys and values each variant has."""

REDUCTIONS: dict[str, Step] = {
    "sum": lambda x: x.sum(1, keepdim=True),
    "max": lambda x: x.amax(1, keepdim=True),
    "mean": lambda x: x.mean(1, keepdim=True),
}
"""Over the tokens."""

ACTIVATIONS: dict[str, Step] = {"relu": torch.relu, "gelu": F.gelu, "tanh": torch.tanh}

COMMON = ("", "sum", "max", "mean", "gemm", "gemm_relu", "gemm_gelu", "gemm_tanh")
FOLLOWED_BY: dict[str, tuple[str, ...]] = {
    "mha": (*COMMON, "gemm_relu_sum", "gemm_tanh_max", "gemm_gelu_mean"),
    "mqa": (*COMMON, "gemm_relu_max", "gemm_tanh_mean", "gemm_gelu_sum"),
    "gqa": (*COMMON, "gemm_relu_mean", "gemm_tanh_sum", "gemm_gelu_max"),
}
"""What comes after the attention, step by step."""

EXTENTS: dict[str, Triple] = {"b": (2, 64, 8), "t": (3, 256, 1024), "width": (12, 128, 256), "heads": (4, 8, 8)}
GROUPS: dict[str, Triple] = {"groups": (2, 2, 2)}
FEATURES: dict[str, Triple] = {"out": (7, 64, 64)}


def _attention(kind: str, steps: tuple[str, ...]) -> Definition:
    def make(width: int, heads: int, groups: int = 1, out: int = 1) -> nn.Module:
        known = ACTIVATIONS | REDUCTIONS
        after = (nn.Linear(width, out, bias=False) if step == "gemm" else known[step] for step in steps)
        return chain(SelfAttention(width, heads, HEADS[kind](heads, groups)), *after)

    extents = EXTENTS | (GROUPS if kind == "gqa" else {}) | (FEATURES if "gemm" in steps else {})
    remark = "MinGPTCausalAttention in Step-TP." if (kind, steps) == ("mha", ()) else ""
    return Definition(kind, "f[b,t,width]", sizes(**extents), make, remark)


ATTENTIONS: dict[str, Definition] = {
    "_".join((kind, *steps)): _attention(kind, steps)
    for kind, endings in FOLLOWED_BY.items()
    for steps in (tuple(ending.split("_")) if ending else () for ending in endings)
}
"""Every variant by name: `gqa_gemm_gelu_max`."""
