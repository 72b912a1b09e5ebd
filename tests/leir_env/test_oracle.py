"""The oracle lets every right answer pass and no cheap one."""

import dataclasses
import math

import numpy as np
import pytest

from envs.leir_env import oracle as oracle_module
from envs.leir_env.generate import random_program
from envs.leir_env.inputs import DISTRIBUTIONS, draw, index_extents, nonnegative
from envs.leir_env.interp import run
from envs.leir_env.ir import DType
from envs.leir_env.oracle import Oracle, OracleError, admit, errors, interface_problem, iterations
from envs.leir_env.parser import parse
from envs.leir_env.strategies.base import Exactness
from tests.leir_env.renaming import canonical

MATMUL = """i:24 j:20 k:28
A:f32[i,k] B:f32[k,j] -> C:f32[i,j]
L_i,j,k C[i,j] += A[i,k] B[k,j]
"""
SOFTMAX = """i:8 j:40
A:f32[i,j] -> C:f32[i,j]; D,E:f32[i]
L_i,j D[i] max= A[i,j]
L_i,j E[i] += exp(A[i,j]-D[i])
L_i,j C[i,j] = exp(A[i,j]-D[i])/E[i]
"""
LAYERNORM = """i:8 j:48
A:f32[i,j] | B,C:f32[j] -> D:f32[i,j]; E,F:f32[i]
L_i,j E[i] += A[i,j]
L_i,j F[i] += (A[i,j]-E[i]/48.0)*(A[i,j]-E[i]/48.0)
L_i,j D[i,j] = (A[i,j]-E[i]/48.0)*rsqrt(F[i]/48.0+1e-05) B[j]+C[j]
"""
MASKED = """i:8 j:16
A:f32[i,j] M:bool[i,j] -> C:f32[i,j]; D,E:f32[i] F:f32[i,j]
L_i,j F[i,j] = select(M[i,j],A[i,j],-inf)
L_i,j D[i] max= F[i,j]
L_i,j E[i] += exp(F[i,j]-D[i])
L_i,j C[i,j] = exp(F[i,j]-D[i])/E[i]
"""
GATHER = """i:16 j:8
A:f32[10,j] N:i64[i] -> C:f32[i,j]
L_i,j C[i,j] = A[N[i],j]
"""
BATCHNORM = """i:8 j:16
A:f32[i,j] | M,S:f32[j] -> C:f32[i,j]; D:f32[j]
L_j D[j] = S[j]+1e-05
L_i,j C[i,j] = (A[i,j]-M[j])*rsqrt(D[j])
"""
ARGMAX = """i:8 j:16
A:f32[i,j] -> N:i64[i]; D:f32[i]
L_i,j D[i] max= A[i,j]
L_i,j N[i] max= select(A[i,j]==D[i],-j,-16)
"""
GOOD = [MATMUL, SOFTMAX, LAYERNORM, MASKED, GATHER, BATCHNORM, ARGMAX]


def own_answer(program, name, seed=0):
    outputs = run(program, draw(program, name, seed))
    return tuple(outputs[tensor.name] for tensor in program.outputs)


def passes(oracle, name, outputs, exactness=Exactness.REASSOCIATES):
    return all(check.passed for check in oracle.judge(name, outputs, exactness))


@pytest.fixture(scope="module")
def softmax():
    return Oracle(parse(SOFTMAX))


@pytest.mark.parametrize("text", GOOD)
def test_the_root_passes_its_own_oracle_as_exact(text):
    program = parse(text)
    oracle = Oracle(program)
    assert oracle.sets == tuple(DISTRIBUTIONS)
    for name in oracle.sets:
        assert passes(oracle, name, own_answer(program, name), Exactness.EXACT)


@pytest.mark.parametrize("text", GOOD)
def test_ordinary_workloads_are_admitted(text):
    assert admit(parse(text)) == ()


def test_random_programs_pass_their_own_oracles():
    for seed in range(15):
        program = random_program(np.random.default_rng(seed))
        oracle = Oracle(program)
        for name in oracle.sets:
            assert passes(oracle, name, own_answer(program, name), Exactness.EXACT), (seed, name)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("L_i,j C[i,j] = A[i,j]-A[i,j]", "zeros"),
        ("L_i,j C[i,j] = A[i,j]-A[i,j]+1.0", "ones"),
        ("L_i,j C[i,j] = A[i,j]-A[i,j]+7.0", "mean"),
        ("L_i,j C[i,j] = A[i,j]-A[i,j]+7.0", "permuted"),
        ("L_i,j C[i,j] = A[i,j]-A[i,j]+7.0", "another seed"),
        ("L_i,j C[i,j] = A[i,j]", "input A"),
        ("L_i,j C[i,j] = A[i,j]+1e-30*A[j,i]", "input A"),
    ],
)
def test_a_task_that_a_cheap_answer_solves_is_not_admitted(body, answer):
    reasons = admit(parse(f"i,j:16\nA:f32[i,j] -> C:f32[i,j]\n{body}\n"))
    assert any(f"the answer {answer!r} passes" in reason for reason in reasons)


def test_a_task_whose_output_ignores_an_input_is_not_admitted():
    reasons = admit(parse("i:16\nA,B:f32[i] -> C:f32[i]\nL_i C[i] = exp(A[i])+0.0*B[i]\n"))
    assert reasons == ("no output depends on input B",)


def test_a_task_that_overflows_everywhere_is_not_admitted():
    program = parse("i:16\nA:f16[i] -> C:f16[i]\nL_i C[i] = A[i]+60000.0*3.0\n")
    assert "overflows" in admit(program)[0]
    with pytest.raises(OracleError, match="overflows in its own precision on every input set"):
        _ = Oracle(program).sets


def test_a_set_on_which_the_root_overflows_is_left_out():
    program = parse("i:16\nA:f16[i] -> C:f16[i]\nL_i C[i] = exp(A[i])\n")
    oracle = Oracle(program)
    assert "large" not in oracle.sets
    assert "normal" in oracle.sets
    with pytest.raises(OracleError, match="large"):
        oracle.reference("large")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda y: np.zeros_like(y),
        lambda y: np.full_like(y, y.mean()),
        lambda y: np.roll(y, 1),
        lambda y: y[::-1].copy(),
        lambda y: np.full_like(y, np.nan),
        lambda y: np.where(np.arange(y.size).reshape(y.shape) == 5, np.nan, y).astype(y.dtype),
        lambda y: np.where(np.arange(y.size).reshape(y.shape) == 5, np.inf, y).astype(y.dtype),
        lambda y: np.where(np.arange(y.size).reshape(y.shape) == 5, y + 1e-4, y).astype(y.dtype),
        lambda y: y.astype(np.float16).astype(y.dtype),
        lambda y: y * np.float32(1.0001),
        lambda y: y.astype(np.float64),
        lambda y: y[:, :-1],
        lambda y: y.reshape(-1),
        lambda y: y[:1],
    ],
)
def test_a_spoiled_output_never_passes_softmax(softmax, spoil):
    (right,) = own_answer(softmax.program, "normal")
    assert passes(softmax, "normal", (right,))
    assert not passes(softmax, "normal", (spoil(right),))


def test_a_missing_output_never_passes(softmax):
    assert not passes(softmax, "normal", ())
    (right,) = own_answer(softmax.program, "normal")
    assert not passes(softmax, "normal", (right, right))


def test_an_unstable_softmax_fails_on_large_values(softmax):
    program = parse(
        "i:8 j:40\nA:f32[i,j] -> C:f32[i,j]; E:f32[i]\nL_i,j E[i] += exp(A[i,j])\nL_i,j C[i,j] = exp(A[i,j])/E[i]\n"
    )
    assert passes(softmax, "normal", own_answer(program, "normal"))
    assert not passes(softmax, "large", own_answer(program, "large"))


def test_the_tolerance_depends_on_what_the_trace_declares():
    program = parse(MATMUL)
    oracle = Oracle(program)
    expected = oracle.reference("normal").outputs[0]
    noise = np.random.default_rng(0).uniform(-1, 1, expected.values.shape)
    noise[0, 0] = 1
    verdicts = [
        passes(
            oracle,
            "normal",
            ((expected.values + 8 * expected.max_error * noise * spread).astype("f4"),),
            exactness,
        )
        for exactness in Exactness
        for spread in [np.where(np.arange(noise.size).reshape(noise.shape) == 0, 1, 0.1)]
    ]
    assert verdicts == [False, True, True]


def test_both_the_largest_and_the_mean_error_must_hold():
    program = parse(MATMUL)
    oracle = Oracle(program)
    expected = oracle.reference("normal").outputs[0]
    everywhere = (expected.values + 14 * expected.max_error).astype("f4")
    (check,) = oracle.judge("normal", (everywhere,), Exactness.REASSOCIATES)
    assert check.max_error <= 1 < check.rms_error
    assert not check.passed


def test_non_finite_values_pass_only_where_the_root_has_the_same_kind():
    program = parse(MASKED)
    oracle = Oracle(program)
    assert not oracle.reference("zeros").outputs[0].finite
    (right,) = own_answer(program, "zeros")
    assert np.isnan(right).all()
    assert passes(oracle, "zeros", (right,))
    for wrong in (0.0, np.inf, -np.inf):
        assert not passes(oracle, "zeros", (np.full_like(right, wrong),))


def test_integer_outputs_must_be_equal():
    program = parse(ARGMAX)
    oracle = Oracle(program)
    (right,) = own_answer(program, "ties")
    assert passes(oracle, "ties", (right,))
    wrong = right.copy()
    wrong[3] -= 1
    assert not passes(oracle, "ties", (wrong,))


def test_errors_in_chunks_are_those_of_the_whole(monkeypatch):
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((37, 11))
    expected[3, 3] = np.nan
    output = expected + 1e-3 * rng.standard_normal(expected.shape)
    whole = errors(output, expected, False)
    monkeypatch.setattr(oracle_module, "CHUNK", 7)
    assert errors(output, expected, False) == pytest.approx(whole)
    output[30, 2] = np.nan
    assert errors(output, expected, False) == (math.inf, math.inf)


def test_large_integers_are_compared_exactly():
    expected = np.array([2**62 + 1])
    assert errors(expected.copy(), expected, True) == (0.0, 0.0)


def test_heavy_programs_run_on_fewer_sets(monkeypatch):
    program = parse(MATMUL)
    assert iterations(program) == 24 * 20 * 28
    monkeypatch.setattr(oracle_module, "HEAVY_ITERATIONS", 100)
    assert Oracle(program).sets == ("normal", "large", "ramp")


def test_slow_references_are_kept_on_disk_and_come_back_equal(tmp_path, monkeypatch):
    monkeypatch.setattr(oracle_module, "SLOW_SECONDS", 0.0)
    program = parse(MASKED)
    first = Oracle(program, 3, tmp_path)
    references = {name: first.reference(name) for name in first.sets}
    monkeypatch.setattr(oracle_module, "run", None)
    second = Oracle(program, 3, tmp_path)
    for name, reference in references.items():
        again = second.reference(name)
        for one, other in zip(reference.outputs, again.outputs, strict=True):
            assert np.array_equal(one.values, other.values, equal_nan=True)
            assert dataclasses.replace(one, values=0) == dataclasses.replace(other, values=0)
    with pytest.raises(TypeError):
        Oracle(program, 4, tmp_path).reference("normal")


def test_draws_depend_on_seed_and_position_and_not_on_names():
    program = parse(MATMUL)
    renamed = canonical(program)
    values = list(draw(program, "normal", 0).values())
    for mine, other in zip(values, draw(renamed, "normal", 0).values(), strict=True):
        assert np.array_equal(mine, other)
    assert not np.array_equal(values[0], draw(program, "normal", 1)["A"])
    assert not np.array_equal(values[0][:20, :20], values[1][:20, :20])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_respect_what_they_index_and_feed(name):
    gather, batchnorm, masked = parse(GATHER), parse(BATCHNORM), parse(MASKED)
    assert index_extents(gather) == {"N": 10}
    places = draw(gather, name, 0)["N"]
    assert places.dtype == np.int64
    assert 0 <= places.min() <= places.max() < 10
    assert nonnegative(batchnorm) == {"S"}
    assert draw(batchnorm, name, 0)["S"].min() >= 0
    assert draw(masked, name, 0)["M"].dtype == bool


def test_a_variance_computed_in_the_program_leaves_its_input_free():
    assert nonnegative(parse(LAYERNORM)) == frozenset()


def test_each_float_type_is_drawn_and_judged():
    for dtype in (DType.F16, DType.BF16, DType.F32, DType.F64):
        program = parse(MATMUL.replace("f32", dtype))
        oracle = Oracle(program)
        assert len(oracle.sets) >= 4
        for name in oracle.sets:
            assert passes(oracle, name, own_answer(program, name), Exactness.EXACT)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (("B:f32[k,j]", "B:f32[k,j] X:f32[k]"), "3 inputs, the root 2"),
        (("-> C:f32[i,j]", "-> C:f64[i,j]"), "C is f64[24,20], and f32[24,20]"),
        (("B:f32[k,j]", "| B:f32[k,j]"), "1 inputs, the root 2"),
    ],
)
def test_a_changed_interface_is_named(change, part):
    assert part in interface_problem(parse(MATMUL.replace(*change)), parse(MATMUL))
    assert interface_problem(canonical(parse(MATMUL)), parse(MATMUL)) == ""
