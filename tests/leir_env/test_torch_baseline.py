"""A program and the module it came from are timed together, and only if they agree."""

import threading

import numpy as np
import pytest

from envs.common import timing
from envs.common.evaluation import Timing
from envs.common.locks import Turns
from envs.common.settings import settings
from envs.common.workers import Crashed, OutOfMemory, Pool, Raised, TimedOut
from envs.leir_env import torch_baseline
from envs.leir_env.parser import parse
from envs.leir_env.torch_baseline import Module, TorchBaselineError, against_reference, against_torch, torch_pool
from envs.leir_env.workloads import Reference

torch = pytest.importorskip("torch")

QUICK = timing.Rules(pairs=5, width=10.0, seconds=0.01)
LINEAR = """i:8 j:16 k:12
A:f32[i,k] | W:f32[j,k] B:f32[j] -> C:f32[i,j]; D:f32[i,j]
L_i,j,k D[i,j] += A[i,k] W[j,k]
L_i,j C[i,j] = D[i,j]+B[j]
"""


LOG = "i:64\nA:f32[i] -> B:f32[i]\nL_i B[i] = log(A[i])\n"
MODEL = """import torch

class Log(torch.nn.Module):
    def forward(self, x):
        return torch.log(x)

class Broken(torch.nn.Module):
    def __init__(self):
        raise RuntimeError("out of luck")
"""


def linear(features):
    return torch.nn.Linear(12, features), (torch.randn(8, 12),)


@pytest.fixture(scope="module")
def race():
    with torch_pool(1) as pool:

        def run(text, features=16):
            module = Module(f"{__name__}:linear", (features,))
            return against_torch(parse(text), module, rules=QUICK, pool=pool)

        yield run


def test_a_program_races_its_module_on_the_same_values(race):
    result = race(LINEAR)
    assert result.baseline_name == f"torch {torch.__version__}"
    assert len(result.candidate) == len(result.baseline) >= 5
    assert result.low <= result.ratio <= result.high


def test_a_program_that_computes_something_else_gets_no_figure(race):
    with pytest.raises(TorchBaselineError, match="output C: the module's differs by"):
        race(LINEAR.replace("+B[j]", "-B[j]"))


def test_a_module_with_other_parameters_gets_no_figure(race):
    with pytest.raises(TorchBaselineError, match="parameters"):
        race(LINEAR, features=17)


def test_a_users_module_races_also_where_both_give_nan(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    result = against_reference(parse(LOG), Reference(f"{file}:Log", (), "f32[64]"))
    assert isinstance(result, Timing), result


def test_a_race_that_cannot_be_made_is_a_sentence(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    told = against_reference(parse(LOG), Reference(f"{file}:Broken", (), "f32[64]"))
    assert str(told).startswith("not measured: Broken(): RuntimeError: out of luck, at model.py:9")
    assert against_reference(parse(LOG), None) == "no PyTorch definition is known"


def test_infinity_is_no_licence_to_differ():
    infinite = np.array([np.inf, *[1.0] * 63])
    other = np.array([np.inf, *[2.0] * 63])
    torch_baseline._compare(parse(LOG), [infinite], [infinite])
    with pytest.raises(TorchBaselineError, match="differs by 1, at a scale of 2"):
        torch_baseline._compare(parse(LOG), [infinite], [other])
    with pytest.raises(TorchBaselineError, match="differs by inf"):
        torch_baseline._compare(parse(LOG), [infinite], [-infinite])


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (TimedOut(300.0), "it took more than 300 s"),
        (OutOfMemory(2**34), "it wanted more than 16 GiB"),
        (Crashed(11), "its process died: SIGSEGV"),
        (Raised("ValueError", "no"), "ValueError: no"),
        (Raised("TorchBaselineError", "output C differs"), "output C differs"),
    ],
)
def test_each_way_to_fail_has_a_sentence(outcome, sentence):
    assert torch_baseline._failure(outcome) == sentence


def test_a_race_has_the_machine_to_itself(monkeypatch):
    held = []

    class Asked(Pool):
        def call(self, *given, **limits):
            waiting = threading.Thread(target=enter, daemon=True)
            waiting.start()
            waiting.join(0.1)
            held.append(waiting.is_alive())
            return TimedOut(1.0)

    def enter():
        with Turns(settings().lock).together():
            pass

    monkeypatch.setattr(torch_baseline, "torch_pool", lambda threads: Asked())
    assert "not measured" in str(against_reference(parse(LOG), Reference("file.py:Log", (), "f32[64]")))
    assert held == [True]
