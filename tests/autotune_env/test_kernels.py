"""The project's own kernels compute what NumPy does, in every configuration that is tried."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from envs.autotune_env.domain import SpaceError
from envs.autotune_env.kernels import APPLICATIONS, KERNELS, find, native
from envs.autotune_env.kernels.definition import MAX_SHARED, MAX_THREADS, Kernel, mistakes
from envs.autotune_env.kernels.results import Built, Failed, Measured, Task
from envs.autotune_env.space import Status
from tests.autotune_env.emulate import emulate

SMALL = {
    "convolution": {"width": 150, "height": 70},
    "hotspot": {"width": 150, "height": 70},
    "dedispersion": {"instants": 150, "measures": 37, "channels": 16, "max_shift": 40},
    "gemm": {"size_m": 128, "size_n": 256, "size_k": 64},
}
"""Sizes that the blocks of most configurations don't divide, where that is allowed."""

SMALL_C = {
    "convolution": {"width": 128, "height": 64},
    "hotspot": {"width": 128, "height": 64},
    "dedispersion": {"instants": 256, "measures": 32, "channels": 16, "max_shift": 40},
    "gemm": {"size_m": 64, "size_n": 64, "size_k": 128},
}

applications = pytest.mark.parametrize("application", APPLICATIONS)


def drawn(kernel: Kernel, count: int, seed: int = 0):
    """Some configurations of a kernel."""
    domain = kernel.domain()
    rows = np.random.default_rng(seed).choice(len(domain), count, replace=False)
    return [{name: int(value) for name, value in domain.value_of(int(row)).items()} for row in rows]


@pytest.mark.parametrize("name", KERNELS)
def test_every_space_is_large_enough_to_search_and_small_enough_to_record(name):
    assert 200 <= len(KERNELS[name].domain()) <= 1500


@pytest.mark.parametrize("name", KERNELS)
def test_every_value_of_a_parameter_occurs(name):
    assert all(mask.all() for mask in KERNELS[name].domain().occurring())


@pytest.mark.parametrize("name", KERNELS)
def test_no_parameter_is_called_what_a_cache_calls_its_own(name):
    own = {"time", "times", "timestamp", "compile_time", "verification_time", "benchmark_time", "invalidity", "reason"}
    assert not own & {*KERNELS[name].values, *KERNELS[name].constants}


def test_both_backends_agree_on_the_definition():
    for application in APPLICATIONS:
        assert KERNELS[f"{application}/c"].answer is KERNELS[f"{application}/cuda"].answer


@applications
def test_the_reference_is_the_formula(application):
    kernel = find(f"{application}/cuda", **TINY[application])
    configuration = drawn(kernel, 1)[0]
    arrays = kernel.inputs(kernel.constants)
    answer = kernel.answer(arrays, configuration)
    expected = FORMULAS[application](arrays, configuration)
    assert answer.shape == expected.shape == kernel.output().shape
    if kernel.tolerance:
        np.testing.assert_allclose(answer, expected, rtol=1e-6)
    else:
        np.testing.assert_array_equal(answer, expected)  # in double precision: no sum was rounded


TINY = {
    "convolution": {"width": 9, "height": 7, "filter_width": 5, "filter_height": 3},
    "hotspot": {"width": 6, "height": 5},
    "dedispersion": {"instants": 12, "measures": 5, "channels": 8, "max_shift": 6},
    "gemm": {"size_m": 64, "size_n": 64, "size_k": 32},
}


def convolved(arrays, at):
    image, weights = (arrays[name].astype(np.float64) for name in ("image", "filter"))
    high, wide = weights.shape
    return np.array(
        [[(image[y : y + high, x : x + wide] * weights).sum() for x in range(at["width"])] for y in range(at["height"])]
    )


def heated(arrays, at):
    now, power = (arrays[name].astype(np.float64) for name in ("temperature", "power"))
    last_row, last_column = now.shape[0] - 1, now.shape[1] - 1
    for _ in range(at["temporal_tiling_factor"]):
        then = now.copy()
        for (y, x), here in np.ndenumerate(then):
            north, south = then[max(y - 1, 0), x], then[min(y + 1, last_row), x]
            west, east = then[y, max(x - 1, 0)], then[y, min(x + 1, last_column)]
            now[y, x] = here + 0.125 * (north + south - 2 * here) + 0.0625 * (west + east - 2 * here)
            now[y, x] += 0.5 * power[y, x] + 0.03125 * (300 - here)
    return now


def dedispersed(arrays, at):
    samples, delay = arrays["samples"], arrays["delay"]
    sums = np.zeros((at["measures"], at["instants"]))
    for (d, t), _ in np.ndenumerate(sums):
        shifts = [int(np.float32(d) * lag) for lag in delay]
        sums[d, t] = sum(int(samples[c, t + shift]) for c, shift in enumerate(shifts))
    return sums


def multiplied(arrays, at):
    return arrays["b"].astype(np.float64).T @ arrays["a"].astype(np.float64)


FORMULAS = {"convolution": convolved, "hotspot": heated, "dedispersion": dedispersed, "gemm": multiplied}


def test_no_shift_of_dedispersion_leaves_the_samples():
    for name in ("dedispersion/cuda", "dedispersion/c"):
        constants = KERNELS[name].constants
        delay = KERNELS[name].inputs(constants)["delay"]
        shifts = (np.float32(constants["measures"] - 1) * delay).astype(np.int64)
        assert shifts.min() >= 0 and constants["max_shift"] - 1 <= shifts.max() <= constants["max_shift"]


def test_exact_inputs_stay_exact_at_full_size():
    for name, terms in (("convolution/cuda", 15 * 15), ("gemm/cuda", 2048), ("gemm/c", 256)):
        for array in KERNELS[name].inputs(KERNELS[name].constants).values():
            assert np.array_equal(array * 32, np.round(array * 32)) and np.abs(array).max() < 1
        assert terms <= 2**14
    assert 255 * KERNELS["dedispersion/cuda"].constants["channels"] < 2**24


@applications
@pytest.mark.parametrize("descending", [False, True])
def test_cuda_kernels_compute_what_numpy_does(application, descending, tmp_path):
    kernel = find(f"{application}/cuda", **SMALL[application])
    arrays = kernel.inputs(kernel.constants)
    for configuration in drawn(kernel, 3, seed=5):
        output = emulate(kernel, configuration, tmp_path, descending)
        assert mistakes(output, kernel.answer(arrays, configuration), kernel.tolerance) == 0, configuration


BARRIERS = {
    "convolution": ({"use_shared": 1}, "    __syncthreads();\n", ""),
    "hotspot": ({"temporal_tiling_factor": 4}, "        __syncthreads();\n    }\n}", "    }\n}"),
    "gemm": ({"SA": 1, "SB": 1, "KWG": 16}, "        __syncthreads();\n#endif\n    }", "#endif\n    }"),
}


@pytest.mark.parametrize("application", BARRIERS)
def test_a_missing_barrier_is_noticed(application, tmp_path, monkeypatch):
    kernel = find(f"{application}/cuda", **SMALL[application])
    chosen, line, without = BARRIERS[application]
    source = kernel.source
    assert line in source
    monkeypatch.setattr(Kernel, "source", source.replace(line, without))
    configuration = next(c for c in drawn(kernel, 200) if chosen.items() <= c.items())
    output = emulate(kernel, configuration, tmp_path, False)
    assert mistakes(output, kernel.answer(kernel.inputs(kernel.constants), configuration), kernel.tolerance)


@applications
def test_c_kernels_compute_what_numpy_does(application):
    task = Task(f"{application}/c", tuple(SMALL_C[application].items()))
    for configuration in drawn(task.kernel, 4, seed=2):
        built = native.build(task, configuration)
        assert isinstance(built, Built)
        result = native.measure(task, configuration, built.code, 2)
        assert isinstance(result, Measured), (configuration, result)
        assert len(result.runs) == 2 and min(result.runs) >= 0 and result.verification > 0


def test_two_threads_compute_what_one_does():
    for application in APPLICATIONS:
        task = Task(f"{application}/c", (*SMALL_C[application].items(), ("threads", 2)))
        configuration = drawn(task.kernel, 1, seed=3)[0]
        built = native.build(task, configuration)
        assert isinstance(built, Built)
        assert isinstance(native.measure(task, configuration, built.code, 2), Measured)


def test_a_wrong_output_is_a_failure(monkeypatch):
    source = KERNELS["gemm/c"].source
    monkeypatch.setattr(Kernel, "source", source.replace("of_b[j] * of_a[i]", "of_b[j] + of_a[i]"))
    task = Task("gemm/c", tuple(SMALL_C["gemm"].items()))
    configuration = drawn(task.kernel, 1)[0]
    result = native.measure(task, configuration, native.build(task, configuration).code, 2)
    assert isinstance(result, Failed) and result.status is Status.CORRECTNESS
    assert re.fullmatch(r"[\d,]+ of 4,096 elements of the output are wrong", result.reason)


def test_an_output_that_is_not_written_is_wrong():
    kernel = KERNELS["gemm/c"]
    answer = np.zeros(kernel.output().shape, np.float32)
    assert mistakes(kernel.output(), answer, 1.0) == answer.size


def test_a_source_that_does_not_compile_is_a_failure(monkeypatch):
    monkeypatch.setattr(Kernel, "source", "this is no C")
    task = Task("gemm/c")
    failed = native.build(task, drawn(task.kernel, 1)[0])
    assert isinstance(failed, Failed) and failed.status is Status.COMPILE and "error" in failed.reason
    assert failed.seconds > 0


@applications
def test_blocks_cover_the_output_and_fit_the_device(application):
    kernel = KERNELS[f"{application}/cuda"]
    for configuration in drawn(kernel, 50):
        assert np.prod(kernel.geometry.block(configuration)) <= MAX_THREADS
        for blocks, extent, names in zip(
            kernel.geometry.grid(configuration), kernel.geometry.extent, kernel.geometry.divisors, strict=True
        ):
            width = int(np.prod([configuration[name] for name in names]))
            assert (blocks - 1) * width < kernel.constants[extent] <= blocks * width


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@applications
def test_cuda_kernels_compile_within_the_shared_memory_of_a_block(application, tmp_path):
    kernel = KERNELS[f"{application}/cuda"]
    for configuration in drawn(kernel, 2, seed=7):
        source = tmp_path / "kernel.cu"
        source.write_text(kernel.text(configuration))
        command = ["nvcc", "-cubin", "-arch=sm_90", "-Xptxas", "-v", str(source), "-o", os.devnull]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        shared = re.search(r"(\d+) bytes smem", answer.stderr)
        assert int(shared[1] if shared else 0) <= MAX_SHARED


def test_an_unknown_kernel_or_constant_is_named():
    with pytest.raises(SpaceError, match=r"no kernel is called 'fft/c'; there are: convolution/cuda"):
        find("fft/c")
    with pytest.raises(SpaceError, match="gemm/c has no constant depth; it has size_m, size_n, size_k, threads"):
        find("gemm/c", depth=3)
    with pytest.raises(SpaceError, match="no configuration satisfies the restrictions"):
        find("gemm/c", size_m=31).domain()
