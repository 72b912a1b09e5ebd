"""The interpreter against NumPy, and its strictness."""

import numpy as np
import pytest

from envs.leir_env.interp import InterpreterError, run
from envs.leir_env.ir import DType
from envs.leir_env.parser import parse

rng = np.random.default_rng(0)


def test_softmax_means_what_numpy_computes() -> None:
    program = parse(
        "i:5 j:7\nA:f64[i,j] -> C:f64[i,j]; D,E:f64[i]\n"
        "L_i [\n  L_j D[i] max= A[i,j]\n  L_j E[i] += exp(A[i,j]-D[i])\n  L_j C[i,j] = exp(A[i,j]-D[i])/E[i]\n]\n"
    )
    a = rng.normal(size=(5, 7))
    e = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(run(program, {"A": a})["C"], e / e.sum(1, keepdims=True), rtol=1e-15)


def test_a_tiled_matmul_with_a_private_accumulator_is_a_matmul() -> None:
    program = parse(
        "io:3 jo:2 k:5 ii:4 ji:8\nA:f64[12,k] B:f64[k,16] -> C:f64[12,16]\n"
        "P_io L_jo [\n  D:f64.l[ii,ji]\n  L_k,ii V_ji D[ii,ji] += A[4io+ii,k] B[k,8jo+ji]\n"
        "  L_ii V_ji C[4io+ii,8jo+ji] = D[ii,ji]\n]\n"
    )
    a, b = rng.normal(size=(12, 5)), rng.normal(size=(5, 16))
    np.testing.assert_allclose(run(program, {"A": a, "B": b})["C"], a @ b, rtol=1e-13)


def test_a_recurrence_runs_in_order() -> None:
    program = parse("i:6\nA:f64[i] -> C:f64[i]\nL_i C[i] = select(i>=1,C[i-1],0.0)+A[i]\n")
    a = rng.normal(size=6)
    np.testing.assert_allclose(run(program, {"A": a})["C"], np.cumsum(a))


def test_a_position_of_the_maximum_is_the_last_one_that_reaches_it() -> None:
    program = parse(
        "i:2 j:4\nA:f32[i,j] -> C:i64[i]; D:f32[i]\nL_i,j D[i] max= A[i,j]\nL_i,j C[i] = select(A[i,j]>=D[i],j,C[i])\n"
    )
    a = np.asarray([[1, 3, 3, 0], [5, 2, 1, 0]], np.float32)
    assert run(program, {"A": a})["C"].tolist() == [2, 0]


def test_guards_leave_elements_alone_and_unwritten_ones_are_poison() -> None:
    program = parse("i:4\nA:f32[i] -> C,D:f32[i]\nL_i C[i] = A[i] if i<2\nL_i D[i] += A[i] if i<2 and i>=1\n")
    out = run(program, {"A": np.ones(4, np.float32)})
    assert out["C"][:2].tolist() == [1, 1] and np.isnan(out["C"][2:]).all()
    assert out["D"].tolist() == [0, 1, 0, 0]


def test_only_the_chosen_arm_of_a_select_is_read() -> None:
    program = parse("i:6\nA:f32[4] -> C:f32[i]\nL_i C[i] = select(i>=1 and i<5,A[i-1],0.0)\n")
    assert run(program, {"A": np.arange(4, dtype=np.float32)})["C"].tolist() == [0, 0, 1, 2, 3, 0]


def test_a_read_out_of_bounds_is_an_error_that_names_it() -> None:
    program = parse("i:6\nA:f32[4] -> C:f32[i]\nL_i C[i] = A[i-1]\n")
    with pytest.raises(InterpreterError, match="A: subscript 1 is -1, but the extent there is 4"):
        run(program, {"A": np.zeros(4, np.float32)})


def test_an_input_of_the_wrong_shape_is_an_error() -> None:
    program = parse("i:6\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\n")
    with pytest.raises(InterpreterError, match=r"input A has shape \(5,\), expected \(6,\)"):
        run(program, {"A": np.zeros(5, np.float32)})


@pytest.mark.parametrize(("assign", "start"), [("+=", 0.0), ("*=", 1.0), ("max=", -np.inf), ("min=", np.inf)])
def test_a_reduction_over_nothing_is_its_identity(assign: str, start: float) -> None:
    program = parse(f"i:3\nA:f32[i] -> C:f32\nL_i C {assign} A[i] if i<0\n")
    assert run(program, {"A": np.ones(3, np.float32)})["C"] == np.float32(start)


def test_integer_reductions_start_from_the_extremes_of_their_type() -> None:
    program = parse("i:3\nA:i8[i] -> C,D:i8\nL_i C max= A[i] if i<0\nL_i D min= A[i] if i<0\n")
    out = run(program, {"A": np.ones(3, np.int8)})
    assert (out["C"], out["D"]) == (-128, 127)


def test_sums_run_in_program_order() -> None:
    values = np.asarray([1.0, 1e8, -1e8, 1.0] * 8, np.float32)
    program = parse("i:32\nA:f32[i] -> C:f32\nL_i C += A[i]\n")
    expected = np.float32(0)
    for value in values:
        expected = np.float32(expected + value)
    assert run(program, {"A": values})["C"] == expected


def test_literals_take_the_dtype_of_what_they_meet() -> None:
    program = parse("i:4\nA:f16[i] -> C:f16[i] D:f16[i]\nL_i C[i] = A[i]*0.1+i\nL_i D[i] = tanh(0.5)\n")
    a = np.asarray([1, 2, 3, 4], np.float16)
    out = run(program, {"A": a})
    assert out["C"].tolist() == (a * np.float16(0.1) + np.arange(4).astype(np.float16)).tolist()
    assert out["D"][0] == np.tanh(np.float16(0.5))


def test_a_float64_run_computes_every_float_in_double() -> None:
    program = parse("i:4\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]/3.0\n")
    a = np.asarray([1, 2, 3, 4], np.float32)
    out = run(program, {"A": a}, DType.F64)["C"]
    assert out.dtype == np.float64 and out.tolist() == (a.astype(np.float64) / 3).tolist()


def test_indirect_subscripts_gather() -> None:
    program = parse("i:3\nA:f32[5] G:i64[i] -> C:f32[i]\nL_i C[i] = A[G[i]]\n")
    out = run(program, {"A": np.arange(5, dtype=np.float32), "G": np.asarray([4, 0, 2])})
    assert out["C"].tolist() == [4, 0, 2]


@pytest.mark.parametrize(
    ("back", "expected"),
    [
        ("B[i,j-1]", lambda a: np.cumsum(a, axis=1)),
        ("B[i-1,j]", lambda a: np.cumsum(a, axis=0)),
        ("B[i-1,j-1]", lambda a: diagonal_sums(a)),
    ],
)
def test_recurrences_run_in_order_along_the_axes_that_they_read_back(back, expected):
    inside = "i>=1 and j>=1" if "i-1,j-1" in back else "j>=1" if "j-1" in back else "i>=1"
    program = parse(f"i:6 j:5\nA:f64[i,j] -> B:f64[i,j]\nL_i,j B[i,j] = select({inside},{back},0.0)+A[i,j]\n")
    values = np.random.default_rng(0).normal(size=(6, 5))
    np.testing.assert_allclose(run(program, {"A": values})["B"], expected(values), rtol=1e-13)


def diagonal_sums(values):
    found = values.copy()
    for i in range(1, len(values)):
        found[i, 1:] += found[i - 1, :-1]
    return found
