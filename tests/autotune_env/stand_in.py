"""A backend that measures nothing: what a configuration does is written in its parameters."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

from envs.autotune_env.kernels.results import Built, Failed, Measured
from envs.autotune_env.space import Status

NAME = "tests.autotune_env.stand_in"

Key = tuple[int, int]

FATES: dict[Key, str] = {
    (32, 16): "refused",
    (256, 16): "wrong",
    (64, 16): "crashes",
    (64, 32): "hangs",
    (128, 16): "raises",
    (128, 32): "compiler dies",
}
"""What becomes of a configuration of gemm/c, by block_m and tile_m, when pack_a is 1."""


def fate(configuration) -> str:
    return FATES.get((configuration["block_m"], configuration["tile_m"]), "") if configuration["pack_a"] else ""


def expected(configurations) -> Counter:
    kinds = {
        "": Status.CORRECT,
        "refused": Status.COMPILE,
        "compiler dies": Status.COMPILE,
        "wrong": Status.CORRECTNESS,
        "hangs": Status.TIMEOUT,
        "crashes": Status.RUNTIME,
        "raises": Status.RUNTIME,
    }
    return Counter(kinds[fate(configuration)] for configuration in configurations)


def describe():
    return {"device": "NVIDIA Stand-in 9000", "target": "none", "compiler": "none 1.0"}


def build(task, configuration):
    if fate(configuration) == "refused":
        return Failed(Status.COMPILE, "kernel.c:3: error: no", 0.25)
    if fate(configuration) == "compiler dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return Built(b"code", 0.5)


def measure(task, configuration, code, runs):
    assert code == b"code"
    match fate(configuration):
        case "wrong":
            return Failed(Status.CORRECTNESS, "1 of 4 elements of the output are wrong", 0.01)
        case "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hangs":
            time.sleep(60)
        case "raises":
            raise RuntimeError("cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS")
    time.sleep(task.kernel.constants["size_k"] * 1e-6)
    return Measured(tuple(configuration["block_m"] * (1 + 0.01 * run) for run in range(runs)), 0.02, 0.03)
