"""Modules as users write them, for the tests of the importer."""

import torch
from torch import nn
from torch.nn import functional as F


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 24, bias=False)
        self.up = nn.Linear(16, 24, bias=False)
        self.down = nn.Linear(24, 16, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class ResidualBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)

    def forward(self, x):
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


class CausalAttention(nn.Module):
    """The minGPT spelling: one projection for query, key and value, and a mask in a buffer."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)).view(1, 1, 6, 6))

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (y.view(batch, tokens, 2, width // 2).transpose(1, 2) for y in self.project(x).split(width, 2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / (width // 2) ** 0.5)
        scores = scores.masked_fill(self.mask[:, :, :tokens, :tokens] == 0, float("-inf"))
        y = F.softmax(scores, -1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(batch, tokens, width))


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens):
        return self.head(self.table(tokens))


class Function(nn.Module):
    """A module around a function of tensors."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


class Branching(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x
