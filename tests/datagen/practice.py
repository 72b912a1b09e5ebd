"""Modules from common practice, as users write them; `MODULES` has each with inputs of a small size."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from datagen.workloads.parts import Function


class ResNetBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.main(x) + self.shortcut(x))


class MobileNetBlock(nn.Module):
    def __init__(self, channels, expansion):
        super().__init__()
        hidden = channels * expansion
        self.block = nn.Sequential(
            nn.Conv2d(channels, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return x + self.block(x)


class SwiGLU(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class RotaryAttention(nn.Module):
    def __init__(self, width, heads, tokens):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        angles = torch.outer(torch.arange(tokens), 10000.0 ** (-torch.arange(0, self.size, 2) / self.size))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def rotate(self, x):
        even, odd = x[..., ::2], x[..., 1::2]
        turned = (even * self.cos - odd * self.sin, even * self.sin + odd * self.cos)
        return torch.stack(turned, -1).flatten(-2)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return y.transpose(1, 2).reshape(b, t, -1)


class AlibiAttention(nn.Module):
    def __init__(self, heads, tokens):
        super().__init__()
        slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
        distance = torch.arange(tokens)[None, :] - torch.arange(tokens)[:, None]
        self.register_buffer("bias", slopes[:, None, None] * distance)

    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + self.bias
        return torch.softmax(scores, -1) @ v


class SqueezeExcite(nn.Module):
    def __init__(self, channels, reduced):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, reduced, 1), nn.Conv2d(reduced, channels, 1)

    def forward(self, x):
        weights = F.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.up(F.relu(self.down(weights))))


class UNetBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.conv = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x, skip):
        return F.silu(self.norm(self.conv(torch.cat((skip, self.up(x)), 1))))


class PatchEmbedding(nn.Module):
    def __init__(self, channels, width, patch, patches):
        super().__init__()
        self.project = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, patches + 1, width))

    def forward(self, x):
        y = self.project(x).flatten(2).transpose(1, 2)
        return torch.cat((self.token.expand(y.shape[0], -1, -1), y), 1) + self.position


class LayerScale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.scale = nn.Parameter(1e-2 * torch.ones(width))

    def forward(self, x):
        return x + self.scale * self.linear(self.norm(x))


class ResidualRMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)

    def forward(self, x, residual):
        total = x + residual
        return self.norm(total), total


class CausalConv(nn.Module):
    def __init__(self, channels, kernel, dilation):
        super().__init__()
        self.pad = (kernel - 1) * dilation
        self.conv = nn.Conv1d(channels, channels, kernel, dilation=dilation)

    def forward(self, x):
        return self.conv(F.pad(x, (self.pad, 0)))


class DenseExperts(nn.Module):
    """Every expert computes every token; the gate weighs them."""

    def __init__(self, width, hidden, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, hidden))
        self.down = nn.Parameter(torch.randn(experts, hidden, width))

    def forward(self, x):
        weights = torch.softmax(self.gate(x), -1)
        hidden = F.gelu(torch.einsum("td,edh->teh", x, self.up))
        return torch.einsum("te,teh,ehd->td", weights, hidden, self.down)


class TopExperts(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)

    def forward(self, x):
        values, places = self.gate(x).topk(2, -1)
        return torch.softmax(values, -1), places


class BagOfWords(nn.Module):
    """An embedding bag over tokens that never change."""

    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.register_buffer("tokens", torch.tensor([[1, 3, 2], [0, 2, 2]]))

    def forward(self, x):
        return x + self.table(self.tokens).mean(1)


class ClampedLookup(nn.Module):
    """Relative positions, shifted and cut off at both ends."""

    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, places):
        return self.table((10 * places - 3).clamp(0, self.table.num_embeddings - 1))


def focal_loss(logits, targets):
    loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return ((1 - torch.exp(-loss)) ** 2 * loss).mean()


def dice_loss(logits, targets):
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * targets).sum() + 1) / (p.sum() + targets.sum() + 1)


def info_nce(x, y):
    scores = F.normalize(x, dim=1) @ F.normalize(y, dim=1).T / 0.07
    return F.cross_entropy(scores, torch.arange(x.shape[0]))


def masked_attention(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


MODULES = {
    "resnet_block": (lambda: ResNetBlock(3, 4, 2), "f32[1,3,8,8]"),
    "mobilenet_block": (lambda: MobileNetBlock(3, 2), "f32[1,3,6,5]"),
    "encoder_layer": (lambda: nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), "f32[2,5,12]"),
    "encoder_layer_prenorm": (
        lambda: nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, norm_first=True, activation="gelu"),
        "f32[2,5,12]",
    ),
    "decoder_layer": (lambda: nn.TransformerDecoderLayer(12, 3, 20, batch_first=True), "f32[2,5,12] f32[2,4,12]"),
    "swiglu": (lambda: SwiGLU(8, 12), "f32[3,8]"),
    "rotary_attention": (lambda: RotaryAttention(12, 3, 5), "f32[2,5,12]"),
    "group_norm_silu": (lambda: nn.Sequential(nn.GroupNorm(2, 6), nn.SiLU(), nn.Conv2d(6, 4, 1)), "f32[2,6,4,3]"),
    "lstm_cell": (lambda: nn.LSTMCell(7, 5), "f32[3,7]"),
    "lstm": (lambda: nn.LSTM(4, 3, batch_first=True), "f32[2,5,4]"),
    "clamped_lookup": (lambda: ClampedLookup(6, 3), "i64[2,5]"),
    "gru_cell": (lambda: nn.GRUCell(7, 5), "f32[3,7] f32[3,5]"),
    "embedding_bag": (lambda: BagOfWords(6, 5), "f32[2,5]"),
    "depthwise_separable": (
        lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Conv2d(3, 5, 1)),
        "f32[2,3,6,5]",
    ),
    "cross_entropy": (lambda: nn.CrossEntropyLoss(), "f32[5,7] i64[5]"),
    "label_smoothing": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), "f32[5,7] i64[5]"),
    "info_nce": (lambda: Function(info_nce), "f32[5,7] f32[5,7]"),
    "squeeze_excite": (lambda: SqueezeExcite(6, 2), "f32[2,6,4,3]"),
    "unet_block": (lambda: UNetBlock(4), "f32[1,8,3,2] f32[1,4,6,4]"),
    "patch_embedding": (lambda: PatchEmbedding(3, 8, 4, 6), "f32[2,3,8,12]"),
    "layer_scale": (lambda: LayerScale(7), "f32[3,7]"),
    "glu": (lambda: nn.GLU(), "f32[3,8]"),
    "alibi_attention": (lambda: AlibiAttention(2, 5), "f32[1,2,5,4] f32[1,2,5,4] f32[1,2,5,4]"),
    "masked_attention": (
        lambda: Function(masked_attention),
        "f32[1,2,5,4] f32[1,2,6,4] f32[1,2,6,4] f32[5,6]",
    ),
    "multihead_attention": (
        lambda: nn.MultiheadAttention(12, 3, batch_first=True),
        "f32[2,5,12] f32[2,6,12] f32[2,6,12]",
    ),
    "focal_loss": (lambda: Function(focal_loss), "f32[3,5] f32[3,5]"),
    "dice_loss": (lambda: Function(dice_loss), "f32[3,5] f32[3,5]"),
    "bce_with_logits": (lambda: nn.BCEWithLogitsLoss(), "f32[3,5] f32[3,5]"),
    "triplet_loss": (lambda: nn.TripletMarginLoss(), "f32[3,7] f32[3,7] f32[3,7]"),
    "kl_divergence": (
        lambda: Function(lambda p, q: F.kl_div(p.log_softmax(1), q.softmax(1), reduction="batchmean")),
        "f32[3,7] f32[3,7]",
    ),
    "cosine_similarity": (lambda: nn.CosineSimilarity(), "f32[3,7] f32[3,7]"),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), "f32[1,8,3,4]"),
    "upsample_bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), "f32[1,2,3,4]"),
    "upsample_nearest": (lambda: nn.Upsample(scale_factor=2), "f32[1,2,3,4]"),
    "dense_experts": (lambda: DenseExperts(6, 8, 3), "f32[5,6]"),
    "residual_rms_norm": (lambda: ResidualRMSNorm(7), "f32[3,7] f32[3,7]"),
    "causal_conv": (lambda: CausalConv(3, 3, 2), "f32[2,3,9]"),
    "weight_normed_linear": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(7, 5)), "f32[3,7]"),
    "mlp_mixer": (
        lambda: nn.Sequential(Function(lambda x: x.transpose(1, 2)), nn.Linear(5, 5), nn.GELU(), nn.LayerNorm(5)),
        "f32[2,5,6]",
    ),
    "batch_norm_1d": (lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Mish()), "f32[4,6]"),
    "local_response_norm": (lambda: nn.LocalResponseNorm(3), "f32[1,5,3,4]"),
    "exponential_average": (lambda: Function(lambda x: x.cumsum(1) / torch.arange(1, 8)), "f32[3,7]"),
    "pairwise_distance": (
        lambda: Function(lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).sqrt()),
        "f32[4,3] f32[5,3]",
    ),
}
"""A maker for each module, and its inputs as LEIR declares them."""

UNSUPPORTED = {
    "top_experts": (lambda: TopExperts(6, 4), "f32[5,6]", "topk"),
    "sort": (lambda: Function(lambda x: x.sort(1).values), "f32[3,5]", "sort"),
    "median": (lambda: Function(lambda x: x.median(1).values), "f32[3,5]", "median"),
    "inverse": (lambda: Function(torch.linalg.inv), "f32[3,3]", "linalg_inv"),
    "fourier_transform": (lambda: Function(lambda x: torch.fft.rfft(x).abs()), "f32[3,8]", "fft"),
    "dropout_noise": (lambda: Function(lambda x: x + torch.randn_like(x)), "f32[3,5]", "randn"),
}
"""Modules that can't be imported, with the operator that the error must name."""
