"""Recording measures every configuration once, survives any end, and what it writes can be read and replayed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

from envs.autotune_env import compact, readers, recorder, suite
from envs.autotune_env.cachefile import CacheFile, entry, header
from envs.autotune_env.domain import SpaceError
from envs.autotune_env.kernels import KERNELS, find
from envs.autotune_env.kernels.results import Failed, Measured
from envs.autotune_env.record import record_spaces
from envs.autotune_env.recorder import BACKENDS, Backend, Plan, RecordError, describe, record, short
from envs.autotune_env.score import scale
from envs.autotune_env.space import Status
from tests.autotune_env import stand_in

VERSIONS = stand_in.describe()


@pytest.fixture(params=[True, False], ids=["together", "in turns"])
def plan(request, monkeypatch):
    monkeypatch.setitem(BACKENDS, "c", Backend(stand_in.NAME, request.param, 2**32, "nothing"))
    return Plan("gemm", "c", sample=40, runs=4, limit=0.5, workers=2)


def configurations(plan):
    domain = plan.task().kernel.domain()
    return [domain.value_of(row) for row in plan.rows(domain)]


def test_every_end_of_a_configuration_is_recorded_as_what_it_was(plan, tmp_path):
    space = record(plan, tmp_path / "gemm.json", VERSIONS)
    wanted = stand_in.expected(configurations(plan))
    assert set(wanted) == {Status.CORRECT, Status.COMPILE, Status.CORRECTNESS, Status.TIMEOUT, Status.RUNTIME}
    assert Counter(map(Status, space.status.tolist())) == wanted
    assert space.name == "gemm/Stand-in-9000" and space.device == VERSIONS["device"] and len(space) == 40
    block = np.array([space.domain.value_of(row)["block_m"] for row in range(40)])
    correct = space.correct
    np.testing.assert_allclose(space.values[correct], block[correct] * 1.015, rtol=1e-6)
    assert space.samples.shape == (40, 4)
    assert space.seconds.min() > 0


def test_the_same_seed_draws_the_same_configurations(plan):
    assert configurations(plan) == configurations(plan)
    assert configurations(plan) != configurations(Plan("gemm", "c", sample=40, seed=1))


def test_what_is_recorded_is_not_measured_again(plan, tmp_path):
    cache = tmp_path / "gemm.json"
    heard = []
    first = record(plan, cache, VERSIONS, report=lambda done, line: heard.append(done))
    assert heard == list(range(1, 41))
    content = cache.read_bytes()
    again = record(plan, cache, VERSIONS, report=lambda done, line: heard.append(line))
    assert len(heard) == 40 and cache.read_bytes() == content
    assert compact.dump(first) == compact.dump(again)


def test_a_larger_sample_goes_on_from_a_smaller_one(plan, tmp_path):
    cache = tmp_path / "gemm.json"
    record(plan, cache, VERSIONS)
    larger = Plan("gemm", "c", sample=60, runs=4, limit=0.5, workers=2)
    heard = []
    assert len(record(larger, cache, VERSIONS, report=lambda done, line: heard.append(done))) == 60
    assert heard == list(range(41, 61))


def test_a_deadline_leaves_what_there_is(plan, tmp_path):
    heard = []

    def report(done, line):
        heard.append(done)
        clock.append(0.0 if done < 7 else 10.0)

    clock = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder.time, "monotonic", lambda: clock[-1])
        space = record(plan, tmp_path / "gemm.json", VERSIONS, deadline=5.0, report=report)
    assert heard == list(range(1, 8)) and len(space) == 7
    assert "7 of" in space.source["recorded"] and "part" in space.source["recorded"]


def test_a_whole_space_states_its_restrictions(plan, tmp_path):
    small = Plan("gemm", "c", runs=2, limit=0.5, workers=2, constants={"size_m": 32, "size_n": 16, "size_k": 64})
    space = record(small, tmp_path / "gemm.json", VERSIONS)
    domain = small.task().kernel.domain()
    assert len(space) == len(domain) and space.domain.restrictions == domain.restrictions
    np.testing.assert_array_equal(space.domain.configurations, domain.configurations)
    assert "all" in space.source["recorded"]


def test_a_rate_is_the_work_over_the_mean_time(monkeypatch):
    kernel = find("hotspot/cuda", width=100, height=50)
    configuration = kernel.domain().value_of(0)
    values = entry(kernel, configuration, Measured((1.0, 3.0), 0.1, 0.2), 0.5)
    steps = configuration["temporal_tiling_factor"]
    assert values["GFLOP/s"] == pytest.approx(15 * 5000 * steps / 2e-3 / 1e9)
    assert values["time"] == 2.0 and values["compile_time"] == 500.0


def test_the_cache_is_one_that_kernel_tuner_reads(plan, tmp_path):
    util = pytest.importorskip("kernel_tuner.util")
    cache = tmp_path / "gemm.json"
    space = record(plan, cache, VERSIONS)
    found = util.read_cache(str(cache), open_cache=False)
    assert found["device_name"] == VERSIONS["device"] and len(found["cache"]) == 40
    failed = sum("__error__" in values for values in found["cache"].values())
    assert failed == sum(space.failures.values())
    assert json.loads(cache.read_text())["cache"].keys() == found["cache"].keys()


def test_our_reader_takes_the_cache_for_the_same_space(plan, tmp_path):
    cache = tmp_path / "gemm.json"
    space = record(plan, cache, VERSIONS)
    other = readers.read(cache)
    np.testing.assert_array_equal(space.values, other.values)
    np.testing.assert_array_equal(space.samples, other.samples)


def made(tmp_path, count=3):
    kernel = find("gemm/c")
    domain = kernel.domain()
    path = tmp_path / "cache.json"
    head = header(kernel, domain, "device")
    file = CacheFile(path, head)
    for row in range(count):
        configuration = domain.value_of(row)
        file.append(domain.label(row), entry(kernel, configuration, Measured((1.0, 2.0), 0.1, 0.1), 0.1))
    return file, path, head


def test_an_open_cache_is_whole_after_every_entry(tmp_path):
    file, path, _ = made(tmp_path)
    assert len(readers.read(path)) == 3
    file.close()
    file.close()
    assert len(json.loads(path.read_text())["cache"]) == 3


def test_a_cut_line_is_dropped_and_nothing_else(tmp_path):
    _, path, head = made(tmp_path)
    content = path.read_bytes()
    first = content.index(b"\n", content.index(b'"cache"'))
    for length in (*range(first, len(content), 11), len(content)):
        path.write_bytes(content[:length])
        with CacheFile(path, head) as file:
            kept = len(file.entries)
        whole = content[:length].count(b'"invalidity": "correct"}')
        assert kept == whole
        assert len(json.loads(path.read_text())["cache"]) == whole


def test_a_cut_header_is_written_anew(tmp_path):
    _, path, head = made(tmp_path, 0)
    content = path.read_bytes()
    for length in range(0, len(content), 13):
        path.write_bytes(content[:length])
        CacheFile(path, head)
        assert path.read_bytes() == content


def test_the_cache_of_something_else_is_left_alone(tmp_path):
    file, path, head = made(tmp_path)
    file.close()
    content = path.read_bytes()
    with pytest.raises(SpaceError, match="cache of another device, kernel, or set of parameters"):
        CacheFile(path, {**head, "device_name": "another"})
    assert path.read_bytes() == content


def test_a_failure_keeps_a_short_reason(tmp_path):
    kernel = find("gemm/c")
    values = entry(kernel, kernel.domain().value_of(0), Failed(Status.COMPILE, "x" * 10_000, 0.5), 0.5)
    assert len(values["reason"]) == 400 and values["__error__"] == "CompilationFailedConfig"


KILLED = """
import sys
from pathlib import Path
from envs.autotune_env.recorder import BACKENDS, Backend, Plan, record
from tests.autotune_env import stand_in
BACKENDS["c"] = Backend(stand_in.NAME, True, 2**32, "nothing")
plan = Plan("gemm", "c", runs=4, limit=0.5, workers=1, constants={"size_k": 8192})
record(plan, Path(sys.argv[1]), stand_in.describe(), report=lambda done, line: print(done, flush=True))
"""


def test_a_recording_that_is_killed_goes_on(tmp_path, monkeypatch):
    cache = tmp_path / "gemm.json"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(cache)], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) >= 5:
                break
        os.kill(process.pid, signal.SIGKILL)
    before = len(readers.read(cache))
    assert before >= 5
    monkeypatch.setitem(BACKENDS, "c", Backend(stand_in.NAME, True, 2**32, "nothing"))
    more = Plan("gemm", "c", sample=before + 2, runs=4, limit=0.5, constants={"size_k": 8192})
    heard = []
    assert len(record(more, cache, VERSIONS, report=lambda done, line: heard.append(done))) == before + 2
    assert heard == [before + 1, before + 2]


def test_a_real_recording_can_be_scored(tmp_path):
    constants = {"instants": 1024, "measures": 16, "channels": 8, "max_shift": 16}
    plan = Plan("dedispersion", "c", sample=12, runs=3, constants=constants)
    space = record(plan, tmp_path / "dedispersion.json", describe("c"))
    assert space.correct.all() and len(space) == 12
    assert "g++" in space.source["compiler"] and "fastest of 4" in space.source["timing"]
    assert scale(space).end > 0
    path = tmp_path / "space.npz"
    path.write_bytes(compact.dump(space))
    np.testing.assert_array_equal(compact.load(path).samples, space.samples)


def invoke(*arguments):
    return CliRunner().invoke(record_spaces, [*map(str, arguments)], prog_name="record")


def test_the_command_writes_a_cache_and_a_space(plan, tmp_path):
    out = tmp_path / "mine.npz"
    answer = invoke("gemm", "--out", out, "--sample", 10, "--runs", 3, "--limit", 0.5, "--workers", 1, "--json")
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)["spaces"]["gemm/Stand-in-9000"]
    assert told["recorded"] == told["wanted"] == 10
    assert len(compact.load(out)) == 10 and len(readers.read(out.with_suffix(".json"))) == 10


def test_the_command_writes_a_folder_of_spaces(plan, tmp_path):
    answer = invoke("gemm", "--out", tmp_path, "--sample", 3, "--limit", 0.5, "--device", "mine", "--workers", 1)
    assert answer.exit_code == 0, answer.output
    assert compact.load(tmp_path / "gemm" / "mine.npz").name == "gemm/mine"


def test_an_application_that_can_not_be_recorded_does_not_stop_the_next(plan, tmp_path):
    odd = tmp_path / "hotspot" / "mine.json"
    odd.parent.mkdir()
    odd.write_text("something else")
    arguments = ("hotspot", "gemm", "--out", tmp_path, "--sample", 3, "--limit", 0.5, "--device", "mine")
    answer = invoke(*arguments)
    assert answer.exit_code == 1 and "hotspot/mine.json: it is the cache of another" in answer.stderr
    assert len(compact.load(tmp_path / "gemm" / "mine.npz")) == 3 and odd.read_text() == "something else"
    assert invoke("hotspot", *arguments[2:]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--out", "x"), "name an application, or --all: convolution, hotspot, dedispersion, gemm"),
        (("--all", "--out", "x.npz"), "x.npz is one file, for one application: name a folder"),
        (("gemm", "--out", "x", "--backend", "cuda", "--threads", 2), "--threads is for --backend c"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, sentence):
    answer = invoke(*arguments)
    assert answer.exit_code == 2 and sentence in answer.output


def test_a_backend_that_does_not_work_says_what_it_needs(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RecordError, match=r"the backend c does not work here \(FileNotFoundError: .*; it needs g\+\+"):
        describe("c")
    answer = invoke("gemm", "--out", "x")
    assert answer.exit_code == 3 and "it needs g++" in answer.output


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("AMD EPYC", "EPYC"),
        ("Intel(R) Xeon(R) Platinum 8488C", "Xeon-Platinum-8488C"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "Ryzen-9-7950X"),
        ("11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz", "11th-Gen-Core-i7-1165G7"),
        ("CPU", "unknown"),
    ],
)
def test_devices_have_short_names(device, name):
    assert short(device) == name


@pytest.mark.parametrize("name", suite.names())
def test_a_space_that_ships_is_that_of_its_kernel(name):
    space = suite.load(name)
    backend = space.source["made by"].rpartition(" ")[2]
    kernel = KERNELS[f"{space.application}/{backend}"]
    wanted = kernel.domain()
    assert space.domain.restrictions == kernel.restrictions
    assert space.domain.parameters == wanted.parameters and space.domain.constants == wanted.constants
    np.testing.assert_array_equal(space.domain.configurations, wanted.configurations)
    assert space.objective == kernel.objective and space.samples.shape[1] >= 7
    assert space.source["licence"] == "Apache-2.0" and space.source["compiler"]
