"""The classical fast matmul is reached by legal actions alone."""

import numpy as np

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.interp import run
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import Exactness
from envs.leir_env.verify import verify

WALK = (
    "loop_tiling(i, j; 4, 16)",
    "loop_reorder(io, jo)",
    "cache_read_write(C, io; local)",
    "loop_reorder(ii, k)",
    "loop_reorder(ji, ii)",
    "loop_unrolling(ii)",
    "loop_vectorization(ji; 16)",
    "loop_unrolling(ii.2)",
    "loop_vectorization(ji.2; 16)",
    "cache_read_write(B, jo; local)",
    "loop_vectorization(ji; 16)",
    "loop_parallelization(jo)",
)

FAST = """\
jo,ii:4 k:48 ji:16 io:8
A:f32[32,k] B:f32[k,64] -> C:f32[32,64]
P_jo [
  E:f32.l[k,ji]
  L_k V_ji E[k,ji] = B[k,16jo+ji]
  L_io [
    D:f32.l[ii,ji]
    L_k U_ii V_ji D[ii,ji] += A[4io+ii,k] E[k,ji]
    U_ii V_ji C[4io+ii,16jo+ji] = D[ii,ji]
  ]
]
"""


def test_the_tiled_packed_vectorised_parallel_matmul_is_reachable_and_exact() -> None:
    program = parse("i:32 j:64 k:48\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n")
    root, exactness = program, Exactness.EXACT
    for text in WALK:
        action = parse_action(text)
        assert action in strategies.legal(program), f"{text} on\n{show(program)}"
        outcome = strategies.apply(program, action)
        program, exactness = outcome.program, max(exactness, outcome.exactness)
        assert verify(program) == ()
    assert show(program) == FAST
    assert exactness is Exactness.EXACT
    rng = np.random.default_rng(0)
    inputs = {"A": rng.normal(size=(32, 48)).astype("f4"), "B": rng.normal(size=(48, 64)).astype("f4")}
    assert run(program, inputs)["C"].tobytes() == run(root, inputs)["C"].tobytes()
