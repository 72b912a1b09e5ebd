"""Modules to optimise: `leirgym optimize examples/modules.py:Attention`."""

import torch
from torch import nn

TOKENS, WIDTH, HEADS = 128, 128, 4


class Attention(nn.Module):
    """Multi-head self-attention with its four projections."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape

        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.view(batch, tokens, HEADS, width // HEADS).transpose(1, 2)

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))

    @staticmethod
    def get_inputs() -> tuple[torch.Tensor, ...]:
        return (torch.randn(1, TOKENS, WIDTH),)


class Softmax(nn.Module):
    """Softmax over the rows of a matrix."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)

    @staticmethod
    def get_inputs() -> tuple[torch.Tensor, ...]:
        return (torch.randn(512, 1024),)
