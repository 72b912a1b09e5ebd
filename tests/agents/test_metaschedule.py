"""MetaSchedule gets the root as it is, and its kernel is checked before it counts."""

import functools

import numpy as np
import pytest

from agents import metaschedule
from agents.metaschedule import compiled, race, schedulable
from envs.common import timing
from envs.leir_env.generate import random_inputs
from envs.leir_env.interp import run
from envs.leir_env.parser import parse

QUICK = timing.Rules(pairs=3, width=10.0, seconds=0.01)

MATMUL = parse("i:16 j:12 k:20\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i L_j L_k C_{i,j} += A_{i,k} B_{k,j}\n")
SOFTMAX = parse(
    "i:6 j:10\nA:f32[i,j] -> C:f32[i,j]; D,E:f32[i]\nL_i L_j D_i max= A_{i,j}\n"
    "L_i L_j E_i += exp(A_{i,j}-D_i)\nL_i L_j C_{i,j} = exp(A_{i,j}-D_i)/E_i\n"
)
POOL = parse(
    "i:4 j:9 k:4 p:3\nA:f32[i,7] -> B:f32[i,k]; C:f32[i,j]\nL_i L_j C_{i,j} = select(j>=1 and j<8,A_{i,j-1},-inf)\n"
    "L_i L_k L_p B_{i,k} max= C_{i,2k+p}\n"
)


@pytest.mark.parametrize("program", [MATMUL, SOFTMAX, POOL], ids=["matmul", "softmax", "pool"])
def test_the_schedulable_form_computes_what_the_program_computes(program):
    import tvm

    inputs = random_inputs(program, np.random.default_rng(0))
    kernel = compiled(tvm.IRModule({"main": schedulable(program)}))
    arrays = [tvm.runtime.tensor(np.ascontiguousarray(inputs[t.name])) for t in program.inputs]
    (output,) = [tvm.runtime.tensor(np.full(t.shape, np.nan, np.float32)) for t in program.outputs]
    kernel(*arrays, output)
    np.testing.assert_allclose(output.numpy(), run(program, inputs)[program.outputs[0].name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i:4\nA:f32[i] -> B:f32[i]\nL_i B_i = 0\nL_i B_i = A_i if i<3\n", "a guarded equation"),
        ("i:4 j:4\nA:f32[i,j] -> B:f32[i]\nP_i L_j B_i += A_{i,j}\n", "loop i is not part of a perfect serial nest"),
    ],
)
def test_what_has_no_schedulable_form_is_refused(text, expected):
    with pytest.raises(ValueError, match=expected):
        schedulable(parse(text))


def test_a_race_tunes_checks_and_times(monkeypatch):
    quick = functools.partial(metaschedule.tune, strategy="replay-trace")
    monkeypatch.setattr(metaschedule, "tune", quick)
    found = race(MATMUL, MATMUL, 2, 1, 0, QUICK)
    assert found.baseline_name == "MetaSchedule"
    assert len(found.candidate) >= 3 and found.ratio > 0


def test_a_tuned_kernel_that_is_wrong_is_no_baseline(monkeypatch):
    monkeypatch.setattr(metaschedule, "_tuned", lambda *given: lambda *tensors: None)
    assert "is wrong: output C is off by" in race(MATMUL, MATMUL, 2, 1, 0, QUICK)
