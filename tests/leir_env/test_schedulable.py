"""The form that TVM schedules: it computes what our own kernels compute."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir

from envs.leir_env.build import BuildError, empty, host_target, tensor
from envs.leir_env.inputs import draw
from envs.leir_env.interp import run
from envs.leir_env.parser import parse
from envs.leir_env.patterns import PATTERNS
from envs.leir_env.schedulable import schedulable

PROGRAMS = {
    "imperfect": "i:5 j:7\nA:f32[i,j] -> C:f32[i,j]; D:f32[i]\n"
    "L_i [\n  L_j D[i] += A[i,j]\n  L_j C[i,j] = A[i,j]-D[i]\n]\n",
    "guarded": "i:5 j:7\nA:f32[i,j] -> C:f32[i]\nL_i,j C[i] += A[i,j] if i<=j\n",
    "set_first": "i:5 j:7\nA:f32[i,j] -> C:f32[i]\nL_i C[i] = 3\nL_i,j C[i] += A[i,j]\n",
    "twice": "i:5 j:7\nA:f32[i,j] -> C:f32[i]\nL_i,j C[i] += A[i,j]\nL_i,j C[i] += A[i,j]\n",
    "prefix": "i:5\nA:f32[i] -> C:f32[i]\nL_i C[i] = select(i<1,0,C[i-1])+A[i]\n",
    "scalar": "i:5\nA:f32[i] -> C:f32; D:f32\nL_i D max= A[i]\nC = D*2\n",
}


@pytest.mark.parametrize("name", [*PROGRAMS, *PATTERNS])
def test_it_computes_what_the_program_means(name):
    text = PROGRAMS[name] if name in PROGRAMS else PATTERNS[name].text()
    program = parse(text)
    try:
        function = schedulable(program)
    except BuildError as error:
        assert error.code == "scheduled" and name not in PROGRAMS
        return
    assert s_tir.analysis.verify_well_formed(function, assert_mode=False)
    kernel = tvm.compile(function, target=host_target()).mod["main"]
    inputs = draw(program, "normal", 0)
    outputs = {declared.name: empty(declared) for declared in program.outputs}
    kernel(*(tensor(inputs[declared.name], declared) for declared in program.inputs), *outputs.values())
    for key, wanted in run(program, inputs).items():
        np.testing.assert_allclose(outputs[key].numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_axes_are_spatial_or_reduce_and_only_the_first_accumulation_starts():
    script = schedulable(parse(PROGRAMS["twice"])).script()
    assert script.count('T.axis.remap("SR"') == 2 and script.count("T.init()") == 1
    assert "T.init()" not in schedulable(parse(PROGRAMS["set_first"])).script()


def test_most_patterns_are_schedulable():
    refused = []
    for name, pattern in PATTERNS.items():
        try:
            schedulable(parse(pattern.text()))
        except BuildError:
            refused.append(name)
    assert len(refused) < len(PATTERNS) / 4


@pytest.mark.parametrize("head", ["P_i", "V_i", "U_i"])
def test_a_scheduled_program_is_refused(head):
    with pytest.raises(BuildError, match="loop i is scheduled"):
        schedulable(parse(f"i:4\nA:f32[i] -> C:f32[i]\n{head} C[i] = A[i]\n"))
