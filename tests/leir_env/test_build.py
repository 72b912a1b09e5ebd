"""What is compiled: registers and fused multiply-adds on a CPU, kernels and barriers in CUDA."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.target import codegen

from envs.leir_env.build import BuildError, build, cuda_source, host_target
from envs.leir_env.interp import run
from envs.leir_env.parser import parse

PACKED = """io,ji:16 jo,ii:4 k:64
A:f32[{m},k] B:f32[k,{n}] -> C:f32[{m},{n}]
L_jo [
  E:f32.l[k,ji]
  L_k V_ji E[k,ji] = B[k,16jo+ji] if 16jo+ji<{n}
  L_io [
    D:f32.l[ii,ji]
    L_k U_ii V_ji D[ii,ji] += A[4io+ii,k] E[k,ji] if 4io+ii<{m}
    U_ii V_ji C[4io+ii,16jo+ji] = D[ii,ji] if 4io+ii<{m} and 16jo+ji<{n}
  ]
]
"""


def test_a_kernel_runs_on_arrays_by_name_and_refuses_a_wrong_shape() -> None:
    kernel = build(parse("i:4\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]*2.0\n"))
    np.testing.assert_array_equal(kernel.run({"A": np.arange(4.0)})["C"], [0, 2, 4, 6])
    with pytest.raises(ValueError, match=r"input A has shape \(5,\), expected \(4,\)"):
        kernel.run({"A": np.arange(5.0)})


def test_unaligned_and_strided_arrays_are_copied() -> None:
    kernel = build(parse("i:16\nA:f32[i] -> C:f32[i]\nV_i C[i] = A[i]\n"))
    base = np.arange(64, dtype=np.float32)
    for view in (base[1:17], base[3:35:2]):
        np.testing.assert_array_equal(kernel.run({"A": view})["C"], view)


def test_the_target_names_this_cpu() -> None:
    assert host_target().attrs["mcpu"] == codegen.llvm_get_system_cpu()


@pytest.mark.skipif(not codegen.llvm_cpu_has_features("fma", host_target()), reason="this CPU has no fma")
@pytest.mark.parametrize(("m", "n"), [(64, 64), (62, 61)])
def test_a_tiled_matmul_multiplies_and_adds_in_vector_registers_also_with_tails(m: int, n: int) -> None:
    assembly = build(parse(PACKED.format(m=m, n=n))).source("asm").lower()
    assert assembly.count("vfmadd") >= 8
    # No lane runs alone, and the accumulators are no memory.
    assert not any(f"vfmadd{order}ss" in assembly for order in ("132", "213", "231"))


def test_an_access_out_of_bounds_is_a_located_error() -> None:
    with pytest.raises(BuildError, match=r"equation C: subscript 1 of A\[i\+1\] runs from 1 to 8") as caught:
        build(parse("i:8\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i+1]\n"))
    assert caught.value.code == "out_of_bounds"


MATMUL = """io,jo,ko:16 ii,ji,ki:32
A:f32[512,512] B:f32[512,512] -> C:f32[512,512]
B^by_io B^bx_jo [
  S,T:f32.s[32,32]
  B^ty_ii B^tx_ji [
    D:f32.l
    L_ko [
      S[ii,ji] = A[32io+ii,32ko+ji]
      T[ii,ji] = B[32ko+ii,32jo+ji]
      L_ki D += S[ii,ki] T[ki,ji]
    ]
    C[32io+ii,32jo+ji] = D
  ]
]
"""

SOFTMAX = """i:16 jo:4 t:256
A:f32[16,1024] -> C:f32[16,1024]; D,E:f32[16]
B^bx_i [
  S:f32.s[t]
  B^tx_t L_jo S[t] max= A[i,256jo+t]
  L_t D[i] max= S[t]
  B^tx_t L_jo C[i,256jo+t] = exp(A[i,256jo+t]-D[i])
]
B^bx_i L_jo,t E[i] += C[i,256jo+t]
B^bx_i B^tx_t L_jo C[i,256jo+t] = C[i,256jo+t]/E[i]
"""


def test_a_bound_matmul_becomes_one_kernel_with_shared_tiles_and_barriers() -> None:
    source = cuda_source(parse(MATMUL))
    assert source.count("__global__") == 2  # declaration and definition
    assert source.count("__shared__") == 2 and source.count("__syncthreads()") == 2
    assert "blockIdx.y" in source and "threadIdx.y" in source


def test_each_top_level_nest_is_a_kernel_and_global_temporaries_pass_between_them() -> None:
    source = cuda_source(parse(SOFTMAX))
    assert source.count("__global__") == 6
    # The maximum is taken by one thread; the others wait for it.
    kernel = source.split("main_kernel(")[2]
    assert kernel.index("threadIdx.x) == 0") < kernel.index("expf(")
    assert "__syncthreads()" in kernel[kernel.index("threadIdx.x) == 0") : kernel.index("expf(")]


def test_loops_of_one_axis_with_different_extents_are_guarded() -> None:
    text = (
        "i:16 t:64 u:32\nA:f32[i,t] -> C:f32[i,t]\nB^bx_i [\n  S:f32.s[t]\n  B^tx_t S[t] = A[i,t]\n"
        "  B^tx_u C[i,u] = S[63-u]\n  B^tx_u C[i,32+u] = S[31-u]\n]\n"
    )
    source = cuda_source(parse(text))
    assert "__launch_bounds__(64)" in source and source.count("threadIdx.x) < 32") >= 1


def test_an_initial_value_that_can_not_sink_is_a_kernel_of_its_own() -> None:
    source = cuda_source(parse("i:16 j:300\nA:f32[i,j] -> C:f32[j]\nL_i B^bx_j C[j] += A[i,j]\nB^bx_j C[j] += 1.0\n"))
    assert source.count("__global__") == 6


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("i:8\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\n", "unbound", "loop i stands at the top"),
        ("-> C:f32\nC = 1.0\n", "unbound", "the equation of C"),
        (
            "i:8\nA:f32[i] -> C:f32[i]\nB^tx_i [\n  D:f32\n  D = A[i]\n  C[i] = D\n]\n",
            "scope",
            "D is declared inside a kernel",
        ),
        (
            "i:4 t:8\nA:f32[i,t] -> C:f32[i,t]\nB^bx_i [\n  S:f32.l[t]\n  B^tx_t S[t] = A[i,t]\n"
            "  B^tx_t C[i,t] = S[t]\n]\n",
            "declared_outside",
            "local tensor S is written inside bound loop t",
        ),
        (
            "i:16 t:64\nA:f32[i,t] -> C:f32[i,t] D:f32[i]\nB^tx_t [\n  B^bx_i C[i,t] = A[i,t]\n"
            "  B^bx_i D[i] = C[15-i,t] if t==0\n]\n",
            "grid_exchange",
            "tensor C passes from one block to another",
        ),
        ("i,j:4\nA:f32[i,j] -> C:f32[i,j]\nB^tx_i B^tx_j C[i,j] = A[i,j]\n", "axis_bound_twice", "loop j"),
    ],
)
def test_what_a_gpu_cannot_express_is_a_located_error(text: str, code: str, words: str) -> None:
    with pytest.raises(BuildError, match=words) as caught:
        cuda_source(parse(text))
    assert caught.value.code == code


def test_what_the_optimiser_breaks_is_built_without_it():
    program = parse(
        "i2:4 i:8\nA:f64[8] -> C:f64[i]; D:f64[i]\n"
        "V_i2 D[i2+4] = max(min(A[i2+4],A[i2+4]),A[i2+3])\n"
        "V_i2 D[i2] = max(min(A[i2],A[i2]),select(i2>=1,A[i2-1],0.5))\nV_i C[i] = abs(D[i])\n"
    )
    values = np.linspace(-2, 2, 8)
    np.testing.assert_array_equal(build(program).run({"A": values})["C"], run(program, {"A": values})["C"])
