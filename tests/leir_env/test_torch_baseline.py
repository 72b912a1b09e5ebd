"""A program and the module it came from are timed together, and only if they agree."""

import pytest

from envs.common import timing
from envs.leir_env.parser import parse
from envs.leir_env.torch_baseline import Module, TorchBaselineError, against_torch, torch_pool

torch = pytest.importorskip("torch")

QUICK = timing.Rules(pairs=5, width=10.0, seconds=0.01)
LINEAR = """i:8 j:16 k:12
A:f32[i,k] | W:f32[j,k] B:f32[j] -> C:f32[i,j]; D:f32[i,j]
L_i L_j L_k D_{i,j} += A_{i,k} W_{j,k}
L_i L_j C_{i,j} = D_{i,j}+B_j
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
    assert result.baseline_name == "torch"
    assert len(result.candidate) == len(result.baseline) >= 5
    assert result.low <= result.ratio <= result.high


def test_a_program_that_computes_something_else_gets_no_figure(race):
    with pytest.raises(TorchBaselineError, match="output C: the module's differs by"):
        race(LINEAR.replace("+B_j", "-B_j"))


def test_a_module_with_other_parameters_gets_no_figure(race):
    with pytest.raises(TorchBaselineError, match="parameters"):
        race(LINEAR, features=17)
