"""`leirgym tune` tunes real kernels on this machine."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from envs.autotune_env import readers
from envs.autotune_env.domain import NOWHERE
from envs.autotune_env.optimizers import make_optimizer
from envs.autotune_env.oracle import replay
from envs.autotune_env.tune import tune, tune_kernel


def run(*arguments):
    return CliRunner().invoke(tune_kernel, [str(argument) for argument in arguments])


def test_a_session_tries_as_many_configurations_as_its_budget(space):
    heard = []
    seen = tune(make_optimizer("genetic"), replay(space), 30, np.random.default_rng(0), lambda n, _: heard.append(n))
    assert len(seen) == 30 and heard == list(range(1, 31))
    assert len(tune(make_optimizer("random"), replay(space), 10**9, np.random.default_rng(0))) == len(space)


@pytest.mark.parametrize("row", [NOWHERE, 0])
def test_an_optimiser_that_is_stuck_ends_the_session(space, row):
    class Stuck:
        def start(self, domain, rng):
            return self

        def ask(self):
            return row

        def tell(self, *_):
            pass

    assert len(tune(Stuck(), replay(space), 30, np.random.default_rng(0))) == (row != NOWHERE)


def test_thirty_evaluations_tune_a_c_kernel_live(tmp_path):
    pytest.importorskip("kernel_tuner")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    out = tmp_path / "cache.json"
    arguments = ("convolution", "--optimizer", "genetic", "--budget", 30, "--runs", 3, "--out", out)
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["tried"] == data["measured_now"] == 30 and data["failures"] == {}
    space = readers.read(out)
    assert len(space) == 30 and space.values.min() == data["best"]["value"] <= data["median"]
    row = int(np.argmin(space.values))
    assert data["best"]["configuration"].items() <= space.domain.value_of(row).items()
    again = json.loads(run(*arguments, "--json").stdout)
    assert again["measured_now"] == 0 and again["best"] == data["best"]
    other = run("gemm", *arguments[1:])
    assert other.exit_code == 2 and "it is the cache of another device, kernel, or set of parameters" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--optimizer", "magic", "--out", "x.json"), "--optimizer: no optimiser is called magic"),
        (("--out", "x.npz"), "x.npz: a Kernel Tuner cache is a .json file"),
        (("--backend", "cuda", "--threads", "2", "--out", "x.json"), "--threads is for --backend c"),
    ],
)
def test_what_can_not_be_tuned_is_a_usage_error(arguments, message):
    done = run("gemm", *arguments)
    assert done.exit_code == 2 and message in done.stderr, done.output


def test_tuning_without_kernel_tuner_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = run("gemm", "--out", tmp_path / "x.json")
    assert done.exit_code == 3 and "pip install 'leirgym[tune]'" in done.stderr
    assert not (tmp_path / "x.json").exists()
