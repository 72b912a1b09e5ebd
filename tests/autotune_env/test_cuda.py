"""The CUDA backend does the right calls in the right order; on a GPU, kernels compute what NumPy does there too."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np
import pytest

from envs.autotune_env.kernels import APPLICATIONS, cuda, find
from envs.autotune_env.kernels.driver import CompileError, CudaError, Device, compile_cubin
from envs.autotune_env.kernels.results import Built, Failed, Measured, Task
from envs.autotune_env.space import Status
from tests.autotune_env.test_kernels import SMALL, drawn

applications = pytest.mark.parametrize("application", APPLICATIONS)


@dataclass
class Pretended:
    """A device in host memory, whose kernel copies what it is told to."""

    writes: np.ndarray
    refuses: bool = False
    broken: bool = False
    target: str = "sm_90"
    calls: list[str] = field(default_factory=list)
    memory: list[np.ndarray] = field(default_factory=list)

    def call(self, name, *arguments):
        self.calls.append(name)
        match name:
            case "cuModuleGetFunction":
                return arguments[1].decode()
            case "cuModuleGetGlobal":
                return self.allocate(4096), 16
            case "cuMemcpyDtoD":
                target, source, size = arguments
                ctypes.memmove(target, source, size)

    def load(self, cubin):
        self.calls.append("load")
        return cubin

    def allocate(self, size):
        self.memory.append(np.zeros(size, np.uint8))
        return self.memory[-1].ctypes.data

    def upload(self, array):
        pointer = self.allocate(array.nbytes)
        ctypes.memmove(pointer, array.ctypes.data, array.nbytes)
        return pointer

    def download(self, array, pointer):
        ctypes.memmove(array.ctypes.data, pointer, array.nbytes)

    def fill(self, pointer, pattern, words):
        self.view(pointer, np.uint32, words)[...] = pattern

    def view(self, pointer, dtype, count):
        size = count * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(int(pointer)), dtype)

    def launcher(self, function, grid, block, arguments):
        def launch():
            self.calls.append(function)
            if function == "compare":
                wrong, output, answer, allowed, size = arguments
                difference = self.view(output, np.float32, int(size)) - self.view(answer, np.float32, int(size))
                self.view(wrong, np.uint32, 1)[0] += np.count_nonzero(~(np.abs(difference) <= allowed))
            elif self.refuses:
                raise CudaError("cuLaunchKernel: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
            else:
                self.view(arguments[0], np.float32, self.writes.size)[...] = self.writes.ravel()

        return launch

    def synchronise(self):
        if self.broken:
            raise CudaError("cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS")

    def time(self, run, runs):
        for _ in range(runs):
            run()
        return tuple(map(float, range(1, runs + 1)))


def pretend(monkeypatch, application, spoil=0, **how):
    """Measure one configuration on a pretended device that writes the answer, `spoil` elements of it wrong."""
    task = Task(f"{application}/cuda", tuple(SMALL[application].items()), "sm_90")
    configuration = drawn(task.kernel, 1)[0]
    writes = task.kernel.answer(task.kernel.inputs(task.kernel.constants), configuration).copy()
    writes.ravel()[:spoil] = np.nan
    device = Pretended(writes, **how)
    monkeypatch.setattr(cuda, "_device", lambda: device)
    monkeypatch.setattr(cuda, "compile_cubin", lambda source, target: source.encode())
    cuda._bench.cache_clear()
    return device, lambda: cuda.measure(task, configuration, b"cubin", 5)


@applications
def test_a_right_output_is_timed_after_the_warm_up(application, monkeypatch):
    device, measure = pretend(monkeypatch, application)
    result = measure()
    assert isinstance(result, Measured)
    assert result.runs == tuple(float(cuda.WARM_UP + run) for run in range(1, 6))
    assert device.calls.count(application) == 1 + cuda.WARM_UP + 5 and device.calls[-1] == "cuModuleUnload"
    assert ("cuModuleGetGlobal" in device.calls) == (find(f"{application}/cuda").constant_memory is not None)


@applications
def test_a_wrong_output_is_not_timed(application, monkeypatch):
    device, measure = pretend(monkeypatch, application, spoil=3)
    result = measure()
    assert isinstance(result, Failed) and result.status is Status.CORRECTNESS
    assert result.reason.startswith("3 of ") and device.calls.count(application) == 1


def test_an_output_of_the_run_before_does_not_count(monkeypatch):
    device, measure = pretend(monkeypatch, "gemm")
    assert isinstance(measure(), Measured)
    device.writes = device.writes[:-1]  # the kernel no longer writes the last row
    assert measure().reason.startswith("128 of ")


def test_a_launch_that_is_refused_is_a_failure(monkeypatch):
    _, measure = pretend(monkeypatch, "convolution", refuses=True)
    result = measure()
    assert isinstance(result, Failed) and result.status is Status.RUNTIME and "OUT_OF_RESOURCES" in result.reason


def test_a_broken_context_is_an_exception(monkeypatch):
    _, measure = pretend(monkeypatch, "convolution", refuses=True, broken=True)
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        measure()


def test_what_nvrtc_says_is_kept():
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(CompileError, match="identifier"):
        compile_cubin("__global__ void f() { nothing(); }", "sm_90")


@applications
def test_kernels_compute_on_the_device_what_numpy_does(application):
    pytest.importorskip("cuda.bindings.driver")
    try:
        target = Device().target
    except (CudaError, RuntimeError, OSError) as error:
        pytest.skip(f"there is no device: {error}")
    cuda._bench.cache_clear()
    task = Task(f"{application}/cuda", tuple(SMALL[application].items()), target)
    for configuration in drawn(task.kernel, 20, seed=1):
        built = cuda.build(task, configuration)
        assert isinstance(built, Built)
        result = cuda.measure(task, configuration, built.code, 3)
        assert isinstance(result, Measured) or "OUT_OF_RESOURCES" in result.reason, (configuration, result)
