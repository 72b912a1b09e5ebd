"""The OpenCL backend: the CUDA sources on whatever platform there is, PoCL on a processor."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner

from envs.autotune_env import readers
from envs.autotune_env.kernels import APPLICATIONS, KERNELS, find
from envs.autotune_env.kernels.definition import Kernel
from envs.autotune_env.kernels.results import Built, Failed, Measured, Task
from envs.autotune_env.record import record_spaces
from envs.autotune_env.space import Status
from envs.autotune_env.tune import tune_kernel
from tests.autotune_env.test_kernels import SMALL, drawn

applications = pytest.mark.parametrize("application", APPLICATIONS)


@pytest.fixture(scope="module")
def opencl():
    pyopencl = pytest.importorskip("pyopencl")
    try:
        pyopencl.get_platforms()[0].get_devices()
    except (pyopencl.LogicError, IndexError) as error:
        pytest.skip(f"there is no OpenCL platform: {error}")
    from envs.autotune_env.kernels import opencl

    return opencl


@applications
def test_opencl_and_cuda_have_one_source_and_the_same_parameters(application):
    cuda, other = (KERNELS[f"{application}/{backend}"] for backend in ("cuda", "opencl"))
    assert cuda.source.partition("#line 1\n")[2] == other.source.partition("#line 1\n")[2]
    assert cuda.values == other.values and cuda.restrictions == other.restrictions


@applications
def test_a_kernel_computes_what_numpy_does_on_the_platform(opencl, application):
    task = Task(f"{application}/opencl", tuple(sorted(SMALL[application].items())))
    for configuration in drawn(task.kernel, 1, seed=3):
        built = opencl.build(task, configuration)
        assert isinstance(built, Built) and built.seconds > 0, built
        found = opencl.measure(task, configuration, built.code, 3)
        assert isinstance(found, Measured) and len(found.runs) == 3 and min(found.runs) > 0, found


def test_a_wrong_output_and_a_source_that_is_refused_are_failures(opencl, monkeypatch):
    task = Task("gemm/opencl", tuple(sorted(SMALL["gemm"].items())))
    configuration = drawn(task.kernel, 1)[0]
    right = Kernel.source.fget(task.kernel)
    monkeypatch.setattr(Kernel, "source", right.replace("sum[n][w][m][v];", "1.0f;"))
    built = opencl.build(task, configuration)
    found = opencl.measure(task, configuration, built.code, 3)
    assert isinstance(found, Failed) and found.status is Status.CORRECTNESS
    monkeypatch.setattr(Kernel, "source", "this is no C")
    refused = opencl.build(task, configuration)
    assert isinstance(refused, Failed) and refused.status is Status.COMPILE and "error" in refused.reason


def test_a_space_is_recorded(opencl, tmp_path):
    out = tmp_path / "space.npz"
    arguments = ["convolution", "--backend", "opencl", "--sample", "2", "--runs", "3", "--out", str(out), "--json"]
    done = CliRunner().invoke(record_spaces, arguments)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["spaces"].values()
    assert found["recorded"] == 2


def test_a_kernel_is_tuned_live_through_kernel_tuner(opencl, tmp_path):
    pytest.importorskip("kernel_tuner")
    out = tmp_path / "cache.json"
    arguments = ["dedispersion", "--backend", "opencl", "--budget", "3", "--runs", "3", "--out", str(out)]
    done = CliRunner().invoke(tune_kernel, [*arguments, "--optimizer", "random", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["failures"] == {}
    assert np.all(readers.read(out).values > 0)


def test_kernel_tuner_s_build_failure_is_a_failure_to_compile(opencl, tmp_path):
    pytest.importorskip("kernel_tuner")
    from envs.autotune_env.live import Live

    (tmp_path / "gemm.cu").write_text("this is no C")
    kernel = dataclasses.replace(find("gemm/opencl", **SMALL["gemm"]), folder=tmp_path)
    with Live(kernel, tmp_path / "cache.json", runs=2) as live:
        assert live.evaluate(0, np.random.default_rng(0)).status is Status.COMPILE
