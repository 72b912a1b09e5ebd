"""The few calls of the CUDA driver and of NVRTC that recording takes, over cuda-bindings, with errors that say what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envs.autotune_env.kernels.definition import Array

ORDINAL = 0
"""The first of the visible devices."""


class CudaError(RuntimeError):
    """A call of the driver or of NVRTC failed; the message names the call and the error."""


class CompileError(RuntimeError):
    """The compiler refused a source; the message is its log."""


def compile_cubin(source: str, target: str) -> bytes:
    """Compile CUDA C++ for a target such as `sm_90`. Raises `CompileError`."""
    from cuda.bindings import nvrtc

    program = _nvrtc(nvrtc.nvrtcCreateProgram, source.encode(), b"kernel.cu", 0, None, None)
    try:
        options = [f"--gpu-architecture={target}".encode(), b"--std=c++17"]
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_nvrtc(nvrtc.nvrtcGetProgramLogSize, program))
            _nvrtc(nvrtc.nvrtcGetProgramLog, program, log)
            raise CompileError(log.decode(errors="replace").rstrip("\0\n"))
        cubin = bytearray(_nvrtc(nvrtc.nvrtcGetCUBINSize, program))
        _nvrtc(nvrtc.nvrtcGetCUBIN, program, cubin)
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def compiler_version() -> str:
    """The version of NVRTC."""
    from cuda.bindings import nvrtc

    major, minor = _nvrtc(nvrtc.nvrtcVersion)
    return f"NVRTC {major}.{minor}"


def _nvrtc(function: Callable[..., Any], *arguments: Any) -> Any:
    from cuda.bindings import nvrtc

    code, *values = function(*arguments)
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CudaError(f"{function.__name__}: {code.name}")
    return values[0] if len(values) == 1 else tuple(values)


class Device:
    """The device, with a context of this process. Pointers are plain numbers; nothing is freed before the end."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        self.call("cuInit", 0)
        self.handle = self.call("cuDeviceGet", ORDINAL)
        self.call("cuCtxSetCurrent", self.call("cuDevicePrimaryCtxRetain", self.handle))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver. Raises `CudaError`."""
        code, *values = getattr(self.driver, name)(*arguments)
        if code != self.driver.CUresult.CUDA_SUCCESS:
            raise CudaError(f"{name}: {code.name}")
        return values[0] if len(values) == 1 else tuple(values)

    @property
    def name(self) -> str:
        """What the driver calls it."""
        text: bytes = self.call("cuDeviceGetName", 256, self.handle)
        return text.partition(b"\0")[0].decode()

    @property
    def target(self) -> str:
        """What to compile for: `sm_90`."""
        attribute = self.driver.CUdevice_attribute
        major = self.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self.handle)
        minor = self.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self.handle)
        return f"sm_{major}{minor}"

    @property
    def version(self) -> str:
        """The version of CUDA that the driver speaks."""
        number = self.call("cuDriverGetVersion")
        return f"CUDA driver {number // 1000}.{number % 1000 // 10}"

    def load(self, cubin: bytes) -> Any:
        """A module of a compiled source."""
        image = np.frombuffer(cubin, np.uint8)
        return self.call("cuModuleLoadData", image.ctypes.data)

    def allocate(self, size: int) -> int:
        """Memory of so many bytes."""
        return int(self.call("cuMemAlloc", size))

    def upload(self, array: Array) -> int:
        """A copy of an array in the device's memory."""
        pointer = self.allocate(array.nbytes)
        self.call("cuMemcpyHtoD", pointer, array.ctypes.data, array.nbytes)
        return pointer

    def download(self, array: Array, pointer: int) -> None:
        """Fill an array from the device's memory."""
        self.call("cuMemcpyDtoH", array.ctypes.data, pointer, array.nbytes)

    def fill(self, pointer: int, pattern: int, words: int) -> None:
        """Set words of 32 bits."""
        self.call("cuMemsetD32", pointer, pattern, words)

    def launcher(
        self, function: Any, grid: tuple[int, int], block: tuple[int, int], arguments: Sequence[np.generic]
    ) -> Callable[[], None]:
        """What queues a kernel when called; its arguments are NumPy scalars of the types that it declares."""
        holders = [np.array([argument]) for argument in arguments]
        pointers = np.array([holder.ctypes.data for holder in holders], np.uint64)
        address = pointers.ctypes.data
        keep = pointers, holders

        def launch() -> None:
            assert keep
            self.call("cuLaunchKernel", function, *grid, 1, *block, 1, 0, 0, address, 0)

        return launch

    def synchronise(self) -> None:
        """Wait for everything that is queued."""
        self.call("cuCtxSynchronize")

    def time(self, run: Callable[[], None], runs: int) -> tuple[float, ...]:
        """Milliseconds of each of so many runs, all queued before the first is waited for."""
        events = [(self.call("cuEventCreate", 0), self.call("cuEventCreate", 0)) for _ in range(runs)]
        for start, end in events:
            self.call("cuEventRecord", start, 0)
            run()
            self.call("cuEventRecord", end, 0)
        self.synchronise()
        times = tuple(float(self.call("cuEventElapsedTime", start, end)) for start, end in events)
        for event in (event for pair in events for event in pair):
            self.call("cuEventDestroy", event)
        return times
