"""The product of two matrices, tiled as in CLBlast: blocks, vectors, and what goes through shared memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.autotune_env.kernels.definition import MAX_SHARED, Array, Configuration, Geometry, Kernel, exact


def inputs(constants: Configuration) -> dict[str, Array]:
    """Both factors with k first: their product sums over rows."""
    rng = np.random.default_rng(0)
    a = exact(rng, constants["size_k"], constants["size_m"])
    return {"a": a, "b": exact(rng, constants["size_k"], constants["size_n"])}


def answer(arrays: Mapping[str, Array], configuration: Configuration) -> Array:
    """The product; sums of at most 2**14 products are exact."""
    return np.ascontiguousarray(arrays["b"].T @ arrays["a"])


CUDA = Kernel(
    application="gemm",
    backend="cuda",
    values={
        "MWG": (32, 64, 128),
        "NWG": (32, 64, 128),
        "KWG": (16, 32),
        "MDIMC": (8, 16, 32),
        "NDIMC": (8, 16, 32),
        "KWI": (2, 8),
        "VWM": (1, 2, 4),
        "VWN": (1, 4),
        "SA": (0, 1),
        "SB": (0, 1),
    },
    constants={"size_m": 2048, "size_n": 2048, "size_k": 2048},
    restrictions=(
        "128 <= MDIMC * NDIMC <= 256",
        "MWG % (MDIMC * VWM) == 0",
        "NWG % (NDIMC * VWN) == 0",
        "32 <= (MWG // MDIMC) * (NWG // NDIMC) <= 64",
        f"(SA * KWG * MWG + SB * KWG * NWG) * 4 <= {MAX_SHARED}",
        "KWI == 8 or SA == 1 or SB == 1",
        "size_m % MWG == 0",
        "size_n % NWG == 0",
        "size_k % KWG == 0",
    ),
    inputs=inputs,
    shape=("size_n", "size_m"),
    answer=answer,
    geometry=Geometry(extent=("size_m", "size_n"), threads=("MDIMC", "NDIMC"), divisors=(("MWG",), ("NWG",))),
)

OPENCL = CUDA.on("opencl", size_m=256, size_n=256, size_k=256)

C = Kernel(
    application="gemm",
    backend="c",
    values={
        "block_m": (32, 64, 128, 256),
        "block_n": (16, 64),
        "block_k": (64, 256),
        "tile_m": (8, 16, 32),
        "tile_n": (2, 4, 8),
        "unroll_k": (1, 4),
        "pack_a": (0, 1),
    },
    constants={"size_m": 256, "size_n": 64, "size_k": 256, "threads": 1},
    restrictions=(
        "size_m % block_m == 0",
        "size_n % block_n == 0",
        "size_k % block_k == 0",
        "block_m % tile_m == 0",
        "block_n % tile_n == 0",
        "64 <= tile_m * tile_n <= 128",
    ),
    inputs=inputs,
    shape=("size_n", "size_m"),
    answer=answer,
)
