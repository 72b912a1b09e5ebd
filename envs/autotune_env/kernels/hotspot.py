"""Heat on a chip: an explicit five-point stencil with a source term, several steps at a time (temporal tiling).

Known from the Rodinia benchmark suite. A run advances the grid by as many steps as the temporal tile has, so that
configurations are compared by the rate of their useful work.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.autotune_env.kernels.definition import MAX_SHARED, MAX_THREADS, Array, Configuration, Geometry, Kernel

OPERATIONS = 15
"""Floating-point operations to advance one cell by one step."""

ROWS = 16
"""Rows that the reference computes at a time, so that they stay in the cache."""

TOLERANCE = 1e-5
"""8 steps round by at most 5e-7 of the largest temperature each; a wrong neighbour is off by some 1e-2 of it."""


def inputs(constants: Configuration) -> dict[str, Array]:
    """Temperatures in kelvin and the power that each cell dissipates."""
    rng = np.random.default_rng(0)
    shape = constants["height"], constants["width"]
    temperature = rng.uniform(300, 350, shape).astype(np.float32)
    return {"temperature": temperature, "power": rng.uniform(0, 4, shape).astype(np.float32)}


def answer(arrays: Mapping[str, Array], configuration: Configuration) -> Array:
    """The temperatures after all steps, in double precision."""
    power = arrays["power"]
    now = np.pad(arrays["temperature"].astype(np.float64), 1, mode="edge")
    for _ in range(configuration["temporal_tiling_factor"]):
        then = np.empty_like(now)
        for top in range(0, len(power), ROWS):
            heat = power[top : top + ROWS]
            bottom = top + len(heat)
            north, here, south = (now[top + row : bottom + row, 1:-1] for row in range(3))
            west, east = now[top + 1 : bottom + 1, :-2], now[top + 1 : bottom + 1, 2:]
            flow = (north + south - 2 * here) / 8 + (west + east - 2 * here) / 16
            then[top + 1 : bottom + 1, 1:-1] = here + flow + heat / 2 + (300 - here) / 32
        now = then
        now[0], now[-1] = now[1], now[-2]
        now[:, 0], now[:, -1] = now[:, 1], now[:, -2]
    return now[1:-1, 1:-1].astype(np.float32)


def work(configuration: Configuration) -> float:
    """Useful floating-point operations of a run."""
    cells = configuration["height"] * configuration["width"]
    return float(OPERATIONS * cells * configuration["temporal_tiling_factor"])


CUDA = Kernel(
    application="hotspot",
    backend="cuda",
    values={
        "block_size_x": (16, 32, 64, 128, 256),
        "block_size_y": (1, 2, 4, 8, 16),
        "tile_size_x": (1, 2, 4),
        "tile_size_y": (1, 2, 4),
        "temporal_tiling_factor": (1, 2, 4, 6, 8),
        "loop_unroll_factor_t": (1, 2),
        "sh_power": (0, 1),
    },
    constants={"width": 4096, "height": 4096},
    restrictions=(
        f"128 <= block_size_x * block_size_y <= {MAX_THREADS}",
        "temporal_tiling_factor % loop_unroll_factor_t == 0",
        "tile_size_x * tile_size_y <= 4",
        "(block_size_x*tile_size_x + 2*temporal_tiling_factor) * (block_size_y*tile_size_y + 2*temporal_tiling_factor)"
        f" * (2 + sh_power) * 4 <= {MAX_SHARED}",
    ),
    inputs=inputs,
    shape=("height", "width"),
    answer=answer,
    answer_depends=("temporal_tiling_factor",),
    tolerance=TOLERANCE,
    geometry=Geometry(
        extent=("width", "height"),
        threads=("block_size_x", "block_size_y"),
        divisors=(("block_size_x", "tile_size_x"), ("block_size_y", "tile_size_y")),
    ),
    work=work,
)

OPENCL = CUDA.on("opencl", width=512, height=512)

C = Kernel(
    application="hotspot",
    backend="c",
    values={
        "tile_x": (32, 64, 128, 256, 512),
        "tile_y": (8, 16, 32, 64),
        "temporal_tiling_factor": (1, 2, 4, 6),
        "loop_unroll_factor_t": (1, 2),
        "local_power": (0, 1),
    },
    constants={"width": 512, "height": 512, "threads": 1},
    restrictions=(
        "width % tile_x == 0",
        "height % tile_y == 0",
        "temporal_tiling_factor % loop_unroll_factor_t == 0",
        "(tile_x + 2*temporal_tiling_factor) * (tile_y + 2*temporal_tiling_factor) * (2 + local_power) * 4 <= 262144",
    ),
    inputs=inputs,
    shape=("height", "width"),
    answer=answer,
    answer_depends=("temporal_tiling_factor",),
    tolerance=TOLERANCE,
    work=work,
)
