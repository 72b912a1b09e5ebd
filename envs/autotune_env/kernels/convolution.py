"""Two-dimensional convolution: a filter slides over an image, as in image processing and neural networks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.autotune_env.kernels.definition import MAX_SHARED, MAX_THREADS, Array, Configuration, Geometry, Kernel, exact

ROWS = 32
"""Rows that the reference computes at a time, so that they stay in the cache."""


def inputs(constants: Configuration) -> dict[str, Array]:
    """An image with a margin as wide as the filter, and the filter."""
    rng = np.random.default_rng(0)
    high, wide = constants["filter_height"], constants["filter_width"]
    image = exact(rng, constants["height"] + high - 1, constants["width"] + wide - 1)
    return {"image": image, "filter": exact(rng, high, wide)}


def answer(arrays: Mapping[str, Array], configuration: Configuration) -> Array:
    """The convolution; sums of at most 2**14 products are exact."""
    image, weights = arrays["image"], arrays["filter"]
    height, width = configuration["height"], configuration["width"]
    result = np.zeros((height, width), np.float32)
    for top in range(0, height, ROWS):
        rows = result[top : top + ROWS]
        for i, j in np.ndindex(weights.shape):
            rows += weights[i, j] * image[top + i : top + i + len(rows), j : j + width]
    return result


CUDA = Kernel(
    application="convolution",
    backend="cuda",
    values={
        "block_size_x": (16, 32, 48, 64, 128, 256),
        "block_size_y": (1, 2, 4, 8, 16),
        "tile_size_x": (1, 2, 3, 4),
        "tile_size_y": (1, 2, 3, 4),
        "use_shared": (0, 1),
        "use_padding": (0, 1),
        "read_only": (0, 1),
    },
    constants={"width": 4096, "height": 4096, "filter_width": 15, "filter_height": 15},
    restrictions=(
        f"32 <= block_size_x * block_size_y <= {MAX_THREADS}",
        "use_padding == 0 or (use_shared == 1 and block_size_x % 32 != 0)",
        "use_shared == 0 or read_only == 0",
        "use_shared == 0 or (block_size_x*tile_size_x + filter_width - 1 + 31*use_padding)"
        f" * (block_size_y*tile_size_y + filter_height - 1) * 4 <= {MAX_SHARED}",
    ),
    inputs=inputs,
    shape=("height", "width"),
    answer=answer,
    geometry=Geometry(
        extent=("width", "height"),
        threads=("block_size_x", "block_size_y"),
        divisors=(("block_size_x", "tile_size_x"), ("block_size_y", "tile_size_y")),
    ),
    constant_memory="filter",
)

OPENCL = CUDA.on("opencl", width=512, height=256, filter_width=7, filter_height=7)

C = Kernel(
    application="convolution",
    backend="c",
    values={
        "block_x": (64, 128, 256, 512),
        "block_y": (8, 64),
        "tile_x": (8, 16, 32, 64),
        "tile_y": (1, 2, 4, 8),
        "unroll_filter": (1, 7),
    },
    constants={"width": 512, "height": 256, "filter_width": 7, "filter_height": 7, "threads": 1},
    restrictions=(
        "width % block_x == 0",
        "height % block_y == 0",
        "block_x % tile_x == 0",
        "block_y % tile_y == 0",
        "tile_x * tile_y <= 128",
    ),
    inputs=inputs,
    shape=("height", "width"),
    answer=answer,
)
