"""The project's own tunable kernels: four applications, each in CUDA, the same in OpenCL, and in C with OpenMP."""

from __future__ import annotations

from envs.autotune_env.domain import SpaceError
from envs.autotune_env.kernels import convolution, dedispersion, gemm, hotspot
from envs.autotune_env.kernels.definition import Kernel

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for module in (convolution, hotspot, dedispersion, gemm)
    for kernel in (module.CUDA, module.OPENCL, module.C)
}
"""By `application/backend`."""

APPLICATIONS = tuple(dict.fromkeys(kernel.application for kernel in KERNELS.values()))


def find(name: str, **constants: int) -> Kernel:
    """A kernel, with other constants where they are given. Raises `SpaceError` that lists what there is."""
    if name not in KERNELS:
        raise SpaceError(f"no kernel is called {name!r}; there are: {', '.join(KERNELS)}")
    return KERNELS[name].sized(**constants)
