"""Dedispersion: radio waves of low frequency arrive late after their way through space; undo it for many guesses.

Brute force: for each dispersion measure, every channel is shifted by its delay, and all channels are summed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.autotune_env.kernels.definition import MAX_THREADS, Array, Configuration, Geometry, Kernel

BAND = (1420.0, 1720.0)
"""The lowest and the highest frequency, in MHz: around the hydrogen line."""


def inputs(constants: Configuration) -> dict[str, Array]:
    """Samples of 8 bits, and the delay of each channel in samples for one step of the dispersion measure.

    Delays go with the inverse square of the frequency; the last measure delays the lowest channel by `max_shift`.
    """
    rng = np.random.default_rng(0)
    channels, last = constants["channels"], constants["measures"] - 1
    samples = rng.integers(0, 256, (channels, constants["instants"] + constants["max_shift"]), np.uint8)
    frequencies = np.linspace(*BAND, channels)
    lag = frequencies**-2 - BAND[1] ** -2
    return {"samples": samples, "delay": (lag / lag.max() * constants["max_shift"] / last).astype(np.float32)}


def answer(arrays: Mapping[str, Array], configuration: Configuration) -> Array:
    """The sums over channels: whole numbers below 2**24, so that they are exact."""
    instants, measures = configuration["instants"], configuration["measures"]
    result = np.zeros((measures, instants), np.float32)
    shifts = (np.arange(measures, dtype=np.float32)[:, None] * arrays["delay"]).astype(np.int64)
    for channel, row in enumerate(arrays["samples"].astype(np.float32)):
        for measure, shift in enumerate(shifts[:, channel]):
            result[measure] += row[shift : shift + instants]
    return result


CUDA = Kernel(
    application="dedispersion",
    backend="cuda",
    values={
        "block_size_x": (16, 32, 64, 128, 256),
        "block_size_y": (1, 2, 4, 8, 16),
        "tile_size_x": (1, 2, 4),
        "tile_size_y": (1, 2, 4, 8),
        "tile_stride_x": (0, 1),
        "tile_stride_y": (0, 1),
        "loop_unroll_factor_channel": (1, 4, 8),
    },
    constants={"instants": 8192, "measures": 1024, "channels": 256, "max_shift": 2048},
    restrictions=(
        f"128 <= block_size_x * block_size_y <= {MAX_THREADS}",
        "tile_size_x > 1 or tile_stride_x == 0",
        "tile_size_y > 1 or tile_stride_y == 0",
        "tile_size_x * tile_size_y * loop_unroll_factor_channel <= 32",
        "channels % loop_unroll_factor_channel == 0",
    ),
    inputs=inputs,
    shape=("measures", "instants"),
    answer=answer,
    geometry=Geometry(
        extent=("instants", "measures"),
        threads=("block_size_x", "block_size_y"),
        divisors=(("block_size_x", "tile_size_x"), ("block_size_y", "tile_size_y")),
    ),
    constant_memory="delay",
)

OPENCL = CUDA.on("opencl", instants=2048, measures=64, channels=64, max_shift=512)

C = Kernel(
    application="dedispersion",
    backend="c",
    values={
        "tile_times": (32, 64, 128, 256, 512, 1024),
        "tile_measures": (1, 2, 4, 8, 16),
        "tile_channels": (1, 2, 4, 8),
        "times_outer": (0, 1),
    },
    constants={"instants": 2048, "measures": 64, "channels": 64, "max_shift": 512, "threads": 1},
    restrictions=(
        "instants % tile_times == 0",
        "measures % tile_measures == 0",
        "channels % tile_channels == 0",
    ),
    inputs=inputs,
    shape=("measures", "instants"),
    answer=answer,
)
