"""The plain mapping to a GPU: every nest becomes a kernel, and the values stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from envs.leir_env import workloads
from envs.leir_env.build import cuda_source
from envs.leir_env.gpu_schedule import gpu_schedule
from envs.leir_env.inputs import draw
from envs.leir_env.interp import run
from envs.leir_env.parser import parse
from envs.leir_env.patterns import PATTERNS
from envs.leir_env.printer import show
from envs.leir_env.tree import loops_below
from envs.leir_env.verify import verify


@pytest.mark.parametrize("name", [*PATTERNS, *workloads.names("basic")])
def test_every_nest_of_a_shipped_workload_becomes_a_kernel(name):
    mapped = gpu_schedule(workloads.load(name).program)
    assert verify(mapped, "cuda") == ()
    assert all(any(loop.axis for loop in loops_below(nest)) for nest in mapped.body)
    assert cuda_source(mapped).count("__global__") >= 2 * len(mapped.body)


@pytest.mark.parametrize("name", PATTERNS)
def test_the_values_stay_the_same(name):
    program = parse(PATTERNS[name].draw(np.random.default_rng(len(name))))
    inputs = draw(program, "normal", 0)
    mapped, wanted = run(gpu_schedule(program), inputs), run(program, inputs)
    assert all(np.array_equal(mapped[key], wanted[key], equal_nan=True) for key in wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("i:8 j:16\nA:f32[i,j] -> C:f32[i,j]\nL_i,j C[i,j] = A[i,j]\n", "B^bx_i B^tx_j C[i,j] = A[i,j]"),
        ("i:8\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\n", "B^tx_i C[i] = A[i]"),
        ("i:8000\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\n", "B^bx_i C[i] = A[i]"),
        ("i:8 j:16\nA:f32[i,j] -> C:f32[i]\nL_i,j C[i] += A[i,j]\n", "B^bx_i L_j C[i] += A[i,j]"),
        ("i:8 j:16\nA:f32[i,j] -> C:f32[j]\nL_i,j C[j] += A[i,j]\n", "L_i B^tx_j C[j] += A[i,j]"),
        ("i:8\nA:f32[i] -> C:f32\nL_i C += A[i]\n", "B^tx_t L_i C += A[i]"),
        ("-> C:f32\nC = 1\n", "B^tx_t C = 1"),
        ("i:8\nA:f32[i] -> C:f32[i]\nB^bx_i C[i] = A[i]\n", "B^bx_i C[i] = A[i]"),
    ],
)
def test_blocks_go_outermost_and_threads_innermost(text, wanted):
    mapped = gpu_schedule(parse(text))
    assert show(mapped).splitlines()[-1] == wanted and verify(mapped, "cuda") == ()


def test_temporaries_of_a_nest_move_to_where_its_threads_have_them():
    text = "i:8 j:4\nA:f32[i,j] -> C:f32\nL_i [\n  D:f32[j]\n  L_j D[j] = A[i,j]\n  L_j C += D[j]\n]\n"
    mapped = gpu_schedule(parse(text))
    assert verify(mapped, "cuda") == () and "D:f32.l[j]" in show(mapped) and "B^tx_t L_i [" in show(mapped)
    assert "__global__" in cuda_source(mapped)
