"""Made-up spaces that behave like recorded ones: for tests, and for as much training as anybody likes.

A blocked kernel is imagined on a device with a warp, registers, shared memory and a cache: its time is work over
what the configuration can use of the device. Seed and device move the optimum; the same arguments always give the
same space. Nothing here was measured, and the name of the space says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from envs.autotune_env.domain import Domain, Parameter
from envs.autotune_env.restrictions import enumerate_configurations, parse
from envs.autotune_env.space import Space, Status

Floats = npt.NDArray[np.float64]

VALUES: dict[str, tuple[int, ...]] = {
    "block_size_x": (8, 16, 32, 48, 64, 96, 128, 256),
    "block_size_y": (1, 2, 4, 8, 16),
    "tile_size_x": (1, 2, 3, 4, 6),
    "tile_size_y": (1, 2, 4),
    "unroll": (1, 2, 4, 8),
    "use_shared": (0, 1),
    "use_padding": (0, 1),
}

CONSTANTS: dict[str, int] = {"filter_size": 15}

RESTRICTIONS = (
    "32 <= block_size_x * block_size_y <= 1024",
    "use_padding == 0 or (use_shared == 1 and block_size_x % 32 != 0)",
    "use_shared == 0 or (block_size_x*tile_size_x + filter_size - 1)"
    " * (block_size_y*tile_size_y + filter_size - 1) <= 12288",
    "tile_size_x % unroll == 0 or unroll % tile_size_x == 0",
)

SAMPLES = 32


@dataclass(frozen=True, slots=True)
class Device:
    """What the imagined kernel runs on."""

    warp: int = 32
    registers: int = 255
    """That a thread may use; a configuration that wants more cannot be launched."""
    sweet_spot: float = 192.0
    """Threads in a block that fill the device best."""
    cache: float = 0.5
    """How much of the work of shared memory the cache does, 0 to 1."""
    milliseconds: float = 1.0
    """Time of an ideal configuration."""


DEVICES = {
    "north": Device(),
    "south": Device(64, 255, 256.0, 0.2, 0.7),
    "east": Device(32, 160, 96.0, 0.8, 2.5),
}


def synthetic(device: str = "north", seed: int = 0, samples: int = SAMPLES) -> Space:
    """Make a space of some two thousand configurations, a few per cent of which fail."""
    properties = DEVICES[device]
    rng = np.random.default_rng([seed, list(DEVICES).index(device)])
    configurations = enumerate_configurations(VALUES, CONSTANTS, [parse(text) for text in RESTRICTIONS])
    columns = {
        name: np.array(values)[configurations[:, position]].astype(np.float64)
        for position, (name, values) in enumerate(VALUES.items())
    }
    registers = 20 + columns["tile_size_x"] * columns["tile_size_y"] * (6 + 1.5 * columns["unroll"])
    status = np.where(registers > properties.registers, Status.RUNTIME, Status.CORRECT)
    spilled = (columns["unroll"] == 8) & (columns["tile_size_x"] == 4) & (columns["use_shared"] == 1)
    status = np.where(spilled, Status.COMPILE, status).astype(np.int8)
    correct = status == Status.CORRECT
    times = properties.milliseconds * _slowdown(columns, properties, registers, rng)
    noise = rng.lognormal(0.0, 0.004, (len(times), samples))
    noise[:, 0] *= 1.03  # the first run finds cold caches
    runs = np.where(correct[:, None], times[:, None] * noise, np.nan).astype(np.float32)
    compiling = 0.6 + 0.05 * columns["unroll"] * columns["tile_size_x"] + rng.exponential(0.1, len(times))
    benchmark = np.where(correct, np.nansum(runs, axis=1) * 1e-3, 1e-3)
    costs = np.column_stack([compiling, np.where(correct, 0.2, 0.0), benchmark, np.full(len(times), 0.1)])
    return Space(
        name=f"synthetic{seed}/{device}",
        domain=Domain(
            tuple(Parameter(name, values) for name, values in VALUES.items()),
            configurations,
            CONSTANTS,
            (*VALUES, *CONSTANTS),
            RESTRICTIONS,
        ),
        status=status,
        values=np.where(correct, runs.astype(np.float64).sum(axis=1) / samples, np.nan),
        costs=np.where(status[:, None] == Status.COMPILE, [1.0, 0.0, 0.0, 0.1], costs).astype(np.float32),
        samples=runs,
        kernel="synthetic",
        device=device,
        problem_size="4096",
        source={"made by": f"synthetic({device!r}, seed={seed})"},
    )


def _slowdown(columns: dict[str, Floats], device: Device, registers: Floats, rng: np.random.Generator) -> Any:
    """How many times slower than ideal each configuration is."""
    threads = columns["block_size_x"] * columns["block_size_y"]
    wasted = np.ceil(threads / device.warp) * device.warp / threads
    fill = 1 + 0.25 * np.log2(threads / device.sweet_spot) ** 2
    reuse = columns["tile_size_x"] * columns["tile_size_y"]
    memory = 1 + 3 / reuse * np.where(columns["use_shared"] == 1, 1 - device.cache, 1.0)
    conflicts = (columns["use_shared"] == 1) & (columns["use_padding"] == 0) & (columns["block_size_x"] % 32 != 0)
    strided = 1 + 2.0 * (columns["block_size_x"] < device.warp)
    pressure = 1 + (registers / 96) ** 3 / 8
    loop = 1 + 0.4 / columns["unroll"]
    quirks = np.ones(len(threads))
    for first, second in (("block_size_x", "tile_size_x"), ("block_size_y", "unroll"), ("tile_size_y", "use_shared")):
        table = rng.lognormal(0.0, 0.15, (len(VALUES[first]), len(VALUES[second])))
        rows, cols = (np.searchsorted(VALUES[name], columns[name]) for name in (first, second))
        quirks *= table[rows, cols]
    return wasted * fill * memory * (1 + 0.6 * conflicts) * strided * pressure * loop * quirks
