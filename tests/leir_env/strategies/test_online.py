"""Online reductions: what they become, what they keep, and what they must not touch."""

import numpy as np
import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.build import build
from envs.leir_env.generate import random_inputs
from envs.leir_env.interp import run
from envs.leir_env.ir import DType, Program, Tensor
from envs.leir_env.parser import parse
from envs.leir_env.patterns import PATTERNS
from envs.leir_env.printer import show
from envs.leir_env.strategies import REGISTRY, Exactness
from envs.leir_env.tree import declarations
from envs.leir_env.verify import verify
from envs.leir_env.workloads import load

MAX = "normal_loop_max_to_prefix_max"
SUM = "normal_loop_summation_on_exp_to_prefix_summation_on_exp"
MATMUL = "normal_matmul_to_prefix_matmul_based_on_online_softmax"
SOFTMAX, FLASH = "online_softmax", "flashattention_wo_tiling"
ONLINE = (MAX, SUM, SOFTMAX, MATMUL, FLASH)

ROWS = (
    "i:4 j:6\nA:f64[i,j] -> C:f64[i,j] E:f64[i]; D:f64[i]\n"
    "L_i,j D[i] max= A[i,j]\n"
    "L_i,j E[i] += exp(A[i,j]-D[i])\n"
    "L_i,j C[i,j] = exp(A[i,j]-D[i])/E[i]\n"
)
VALUES = (
    "i,k,m:4\nA:f64[i,k] B:f64[k,m] -> C:f64[i,m]; D:f64[i,k] E,F:f64[i]\n"
    "L_i,k E[i] max= A[i,k]\n"
    "L_i,k F[i] += exp(A[i,k]-E[i])\n"
    "L_i,k D[i,k] = exp(A[i,k]-E[i])/F[i]\n"
    "L_i,m,k C[i,m] += D[i,k] B[k,m]\n"
)


def apply(text: str | Program, *actions: str) -> Program:
    program = text if isinstance(text, Program) else parse(text)
    assert verify(program) == ()
    for action in actions:
        program = strategies.apply(program, parse_action(action)).program
    assert verify(program) == (), show(program)
    return program


def refused(text: str | Program, action: str) -> strategies.Refusal:
    program = text if isinstance(text, Program) else parse(text)
    assert verify(program) == (), verify(program)
    found = strategies.refusal(program, parse_action(action))
    assert found is not None, show(apply(program, action))
    return found


def agree(before: Program, after: Program, inputs: dict[str, np.ndarray]) -> None:
    """Equal over the reals: in float64 to rounding, nan and infinities in the same places."""
    with np.errstate(all="ignore"):
        expected, found = run(before, inputs, DType.F64), run(after, inputs, DType.F64)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-11, atol=1e-11)


def masked(program: Program, seed: int, share: float = 0.4) -> dict[str, np.ndarray]:
    """Inputs whose scores are -inf in places, a whole row and the beginning of another among them."""
    rng = np.random.default_rng(seed)
    inputs = random_inputs(program, rng)
    scores = inputs["A"]
    scores[rng.random(scores.shape) < share] = -np.inf
    scores[0] = -np.inf
    scores[-1, : scores.shape[1] // 2] = -np.inf
    return inputs


def test_the_maximum_gets_an_explicit_start_and_update_and_stays_bitwise_the_same() -> None:
    after = apply(ROWS, f"{MAX}(D)")
    assert "L_i [\n  D[i] = -inf\n  L_j D[i] = max(D[i],A[i,j])\n]\n" in show(after)
    outcome = strategies.apply(parse(ROWS), parse_action(f"{MAX}(D)"))
    assert outcome.exactness is Exactness.EXACT
    inputs = masked(parse(ROWS), 0)
    with np.errstate(all="ignore"):
        before, found = run(parse(ROWS), inputs), run(after, inputs)
    assert all(before[name].tobytes() == found[name].tobytes() for name in before)


def test_the_sum_of_exponentials_runs_in_the_loop_of_the_maximum() -> None:
    after = apply(ROWS, f"{SUM}(E)")
    assert (
        "L_i [\n  D[i] = -inf\n  E[i] = 0\n  L_j [\n    F:f64.l\n    F = D[i]\n    D[i] = max(D[i],A[i,j])\n"
        "    E[i] = select(F==(-inf),0,E[i]*exp(F-D[i]))+exp(A[i,j]-D[i])\n  ]\n]\n"
    ) in show(after)
    assert after == apply(ROWS, f"{MAX}(D)", f"{SUM}(E)")


def test_online_softmax_takes_two_passes_and_keeps_its_statistics_in_scalars() -> None:
    text = ROWS.replace("C:f64[i,j] E:f64[i]; D:f64[i]", "C:f64[i,j]; D,E:f64[i]")
    after = apply(text, f"{SOFTMAX}(C)")
    assert show(after) == (
        "i:4 j:6\nA:f64[i,j] -> C:f64[i,j]\nL_i [\n  D,E:f64.l\n  D = -inf\n  E = 0\n  L_j [\n    F:f64.l\n"
        "    F = D\n    D = max(D,A[i,j])\n    E = select(F==(-inf),0,E*exp(F-D))+exp(A[i,j]-D)\n  ]\n"
        "  L_j C[i,j] = exp(A[i,j]-D)/E\n]\n"
    )
    assert after == apply(text, f"{SUM}(E)", f"{SOFTMAX}(C)")
    assert refused(after, f"{SOFTMAX}(C)").code == "no_effect"


def test_the_product_is_carried_as_one_running_value_for_each_element() -> None:
    direct = apply(VALUES, f"{FLASH}(C)")
    assert show(direct) == (
        "i,m,k:4\nA:f64[i,k] B:f64[k,m] -> C:f64[i,m]\nL_i [\n  E,F:f64.l\n  E = -inf\n  F = 0\n"
        "  L_m C[i,m] = 0\n  L_k [\n    G,H,J:f64.l\n    G = E\n    E = max(E,A[i,k])\n    H = exp(G-E)\n"
        "    J = exp(A[i,k]-E)\n    F = select(G==(-inf),0,F H)+J\n"
        "    L_m C[i,m] = select(G==(-inf),0,C[i,m] H)+J B[k,m]\n  ]\n  L_m C[i,m] = C[i,m]/F\n]\n"
    )
    assert direct == apply(VALUES, f"{SUM}(F)", f"{MATMUL}(C)")
    inputs = masked(parse(VALUES), 1)
    agree(parse(VALUES), apply(VALUES, f"{SOFTMAX}(D)", f"{MATMUL}(C)"), inputs)
    agree(parse(VALUES), direct, inputs)


@pytest.mark.parametrize("workload", ["attention", "causal_attention"])
def test_shipped_attention_becomes_one_pass_without_a_score_matrix(workload: str) -> None:
    before = load(workload).program
    after = apply(before, f"{FLASH}(D)")
    assert len(after.body) == 1
    assert all(tensor.role != "temporary" for tensor in after.tensors)


@pytest.mark.parametrize(
    "workload, output", [("softmax", "B"), ("logsoftmax", "B"), ("gemm_gelu_softmax", "D"), ("attention", "H")]
)
def test_shipped_softmaxes_go_online_as_they_are(workload: str, output: str) -> None:
    apply(load(workload).program, f"{SOFTMAX}({output})")


@pytest.mark.parametrize("pattern", ["softmax_rows", "image_softmax", "column_log_softmax", "log_sum_exp"])
@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_offer_keeps_values_ties_and_masks(pattern: str, dtype: str, size: int) -> None:
    sizes = {name: size for name in PATTERNS[pattern].defaults if name != "dtype"}
    before = parse(PATTERNS[pattern].text(**sizes, dtype=dtype))
    rng = np.random.default_rng(size)
    offers = [action for action in strategies.legal(before) if action.name in ONLINE]
    assert {MAX, SUM, SOFTMAX} <= {action.name for action in offers}
    for action in offers:
        after = strategies.apply(before, action).program
        assert verify(after) == ()
        inputs = random_inputs(before, rng)
        agree(before, after, inputs)
        agree(before, after, {name: np.round(value) for name, value in inputs.items()})
        agree(before, after, {name: 30 * value for name, value in inputs.items()})
        agree(before, after, masked(before, size))


@pytest.mark.parametrize("pattern", ["attention_rows", "masked_average", "online_weights"])
def test_every_step_on_the_way_to_flash_attention_keeps_the_values(pattern: str) -> None:
    before = parse(PATTERNS[pattern].text(**{n: 5 for n in PATTERNS[pattern].defaults if n != "dtype"}, dtype="f64"))
    reached = {before}
    for _ in range(3):
        for program in tuple(reached):
            for action in strategies.legal(program):
                if action.name in ONLINE:
                    after = strategies.apply(program, action).program
                    inputs = random_inputs(before, np.random.default_rng(len(reached)))
                    agree(before, after, inputs)
                    assert sum(t.nbytes for t in after.tensors) <= sum(t.nbytes for t in program.tensors)
                    reached.add(after)
    assert len(reached) > (1 if pattern == "online_weights" else 4)


def test_a_causal_mask_and_a_row_without_any_key_end_as_before() -> None:
    before = parse(PATTERNS["masked_average"].text(m=6, d=3, dtype="f64"))
    after = apply(before, f"{FLASH}(G)")
    inputs = masked(before, 3)
    agree(before, after, inputs)
    with np.errstate(all="ignore"):
        assert np.isnan(run(after, inputs)["C"][0]).all()


def test_large_scores_do_not_overflow() -> None:
    before = parse(PATTERNS["attention_rows"].text(m=3, n=7, d=4, dtype="f32"))
    after = apply(before, f"{FLASH}(D)")
    inputs = {name: 200 * value for name, value in random_inputs(before, np.random.default_rng(0)).items()}
    assert np.isfinite(run(after, inputs)["D"]).all()
    np.testing.assert_allclose(run(after, inputs)["D"], run(before, inputs, DType.F64)["D"], rtol=1e-4)


SPLIT = (
    "io,jo:2 ii,ji:4\nA:f32[7,6] -> C:f32[7]; D,E:f32[7]\n"
    "L_io,ii,jo,ji D[4io+ii] max= A[4io+ii,4jo+ji] if 4io+ii<7 and 4jo+ji<6\n"
    "L_io,ii,jo,ji E[4io+ii] += exp(A[4io+ii,4jo+ji]-D[4io+ii]) if 4io+ii<7 and 4jo+ji<6\n"
    "L_io,ii C[4io+ii] = log(E[4io+ii])+D[4io+ii] if 4io+ii<7\n"
)


def test_tails_of_rows_and_steps_keep_their_guards() -> None:
    after = apply(SPLIT, f"{SUM}(E)")
    assert "D[4io+ii] = -inf if 4io+ii<7\n" in show(after)
    assert "E[4io+ii] = 0 if 4io+ii<7\n" in show(after)
    agree(parse(SPLIT), after, random_inputs(parse(SPLIT), np.random.default_rng(0)))


def test_a_sum_over_fewer_terms_than_the_maximum_adds_nothing_for_the_others() -> None:
    text = ROWS.replace("exp(A[i,j]-D[i])\n", "exp(A[i,j]-D[i]) if j<=i\n", 1)
    after = apply(text, f"{SUM}(E)")
    assert "+select(j<=i,exp(A[i,j]-D[i]),0)\n" in show(after)
    agree(parse(text), after, random_inputs(parse(text), np.random.default_rng(0)))


def test_a_sum_over_more_terms_than_the_maximum_is_refused() -> None:
    text = ROWS.replace("max= A[i,j]\n", "max= A[i,j] if j<=i\n")
    assert refused(text, f"{SUM}(E)").code == "structure"


def test_rows_may_be_parallel_and_the_product_vectorised() -> None:
    text = VALUES.replace("L_i,", "P_i L_").replace("L_m,k C", "V_m L_k C")
    after = apply(text, f"{FLASH}(C)")
    assert show(after).count("P_i") == 1 and "V_m C[i,m] = 0" in show(after)
    agree(parse(text), after, random_inputs(parse(text), np.random.default_rng(0)))


@pytest.mark.parametrize(
    "text, action, code",
    [
        # The kind of a loop that would carry the running value, or hold it.
        (ROWS.replace("L_i,j D[i]", "L_i U_j D[i]"), f"{MAX}(D)", "kind"),
        (ROWS.replace("L_i,j D[i]", "V_i L_j D[i]"), f"{MAX}(D)", "kind"),
        (ROWS.replace("L_i,j D[i]", "P_i L_j D[i]"), f"{SUM}(E)", "structure"),
        # The maximum is not complete in one run of its loop, or not all of it is computed there.
        (ROWS.replace("L_i,j D[i]", "L_j,i D[i]"), f"{MAX}(D)", "structure"),
        (ROWS.replace("D[i] max= A[i,j]\n", "D[i] max= A[i,j]\nL_i D[i] max= 1\n"), f"{MAX}(D)", "structure"),
        (ROWS.replace("L_i,j D[i] max= A[i,j]", "L_i,k D[i] max= A[i,2k]").replace("j:6", "k:3 j:6"),
         f"{SUM}(E)", "structure"),
        # Exponents that are not the maximum's term less the maximum.
        (ROWS.replace("+= exp(A[i,j]-D[i])", "+= exp(D[i]-A[i,j])"), f"{SUM}(E)", "structure"),
        (ROWS.replace("+= exp(A[i,j]-D[i])", "+= exp(A[i,j]-2.0*D[i])"), f"{SUM}(E)", "structure"),
        (ROWS.replace("+= exp(A[i,j]-D[i])", "+= exp(-2.0*(A[i,j]-D[i]))"), f"{SUM}(E)", "structure"),
        (ROWS.replace("+= exp(A[i,j]-D[i])", "+= exp(A[i,j]+1.0-D[i])"), f"{SUM}(E)", "structure"),
        (ROWS.replace("+= exp(A[i,j]-D[i])", "+= exp(A[i,5-j]-D[i])"), f"{SUM}(E)", "structure"),
        (ROWS.replace("+= exp(A[i,j]-D[i])", "+= exp(A[i,j]-D[3-i])"), f"{SUM}(E)", "structure"),
        # Terms that depend on the maximum in another way.
        (ROWS.replace("+= exp(A[i,j]-D[i])", "+= exp(A[i,j]-D[i])*D[i]"), f"{SUM}(E)", "structure"),
        (ROWS.replace("+= exp(A[i,j]-D[i])", "+= exp(A[i,j]-D[i])+1.0"), f"{SUM}(E)", "structure"),
        (ROWS.replace("+= exp(A[i,j]-D[i])", "+= exp(exp(A[i,j]-D[i]))"), f"{SUM}(E)", "structure"),
        (ROWS.replace("E[i] += exp(A[i,j]-D[i])", "E[i] max= exp(A[i,j]-D[i])"), f"{SUM}(E)", "structure"),
        # Something in between that the sum reads or that reads the sum.
        ("i:4 j:6\nB:f64[i,j] -> C:f64[i]; A:f64[i,j] D,E:f64[i]\nL_i,j A[i,j] = B[i,j]\n"
         "L_i,j D[i] max= A[i,j]\nL_i,j A[i,j] = 0\nL_i,j E[i] += exp(A[i,j]-D[i])\nL_i C[i] = E[i]+D[i]\n",
         f"{SUM}(E)", "dependence"),
        ("i:4 j:6\nB:f64[i,j] -> C:f64[i]; A:f64[i,j] D,E:f64[i]\nL_i,j A[i,j] = B[i,j]\n"
         "L_i [\n  D[i] = -inf\n  L_j [\n    D[i] = max(D[i],A[i,j])\n    A[i,j] = 0\n  ]\n]\n"
         "L_i,j E[i] += exp(A[i,j]-D[i])\nL_i C[i] = E[i]+D[i]\n",
         f"{SUM}(E)", "dependence"),
        # The whole maximum is needed, not that of a row.
        ("i:4 j:6\nA:f64[i,j] -> E:f64[i]; D:f64\nL_i,j D max= A[i,j]\nL_i,j E[i] += exp(A[i,j]-D)\n",
         f"{SUM}(E)", "structure"),
        ("i:4 j:6\nA:f64[i,j] -> E:f64; D:f64[i]\nL_i,j D[i] max= A[i,j]\nL_i,j E += exp(A[i,j]-D[i])\n",
         f"{SUM}(E)", "structure"),
        ("i:4 j:6\nA:f64[i,j] -> E:f64[i]; D:f64\nL_i [\n  D = -inf\n  L_j D = max(D,A[i,j])\n]\n"
         "L_i,j E[i] += exp(A[i,j]-D)\n",
         f"{SUM}(E)", "structure"),
        # Weights of other rows.
        (VALUES.replace("D[i,k] B[k,m]", "D[k,i] B[k,m]"), f"{FLASH}(C)", "structure"),
        (VALUES.replace("D[i,k] B[k,m]", "D[i,k]*D[i,k]*B[k,m]"), f"{FLASH}(C)", "structure"),
        (VALUES.replace("/F[i]", "/F[3-i]"), f"{FLASH}(C)", "dependence"),
        (VALUES, f"{MATMUL}(C)", "structure"),
        (VALUES, f"{FLASH}(F)", "structure"),
    ],
)  # fmt: skip
def test_what_would_change_the_result_is_refused(text: str, action: str, code: str) -> None:
    assert refused(text, action).code == code


def test_private_statistics_belong_to_the_row_that_the_weights_name() -> None:
    text = (
        "i,k,m:4\nA:f64[i,k] B:f64[k,m] -> C:f64[i,m]; D:f64[i,k]\n"
        "L_i [\n  E,F:f64\n  E = -inf\n  F = 0\n  L_k [\n    G:f64\n    G = E\n    E = max(E,A[i,k])\n"
        "    F = select(G==(-inf),0,F*exp(G-E))+exp(A[i,k]-E)\n  ]\n  L_k D[i,k] = exp(A[i,k]-E)/F\n]\n"
        "L_i,m,k C[i,m] += D[i,k] B[k,m]\n"
    )
    agree(parse(text), apply(text, f"{MATMUL}(C)"), masked(parse(text), 0))
    crossed = text.replace("exp(A[i,k]-E)/F", "exp(A[k,i]-E)/F")
    assert refused(crossed, f"{MATMUL}(C)").code == "structure"
    early = text.replace("  ]\n  L_k D[i,k] = exp(A[i,k]-E)/F\n", "    D[i,k] = exp(A[i,k]-E)/F\n  ]\n")
    assert refused(early, f"{MATMUL}(C)").code == "dependence"


def test_weights_that_are_read_elsewhere_are_kept() -> None:
    text = VALUES.replace("C:f64[i,m]; D:f64[i,k] E", "C:f64[i,m] D:f64[i,k]; E")
    after = apply(text, f"{FLASH}(C)")
    assert "L_i,k D[i,k] = exp(A[i,k]-E[i])/F[i]" in show(after)
    agree(parse(text), after, masked(parse(text), 2))


def test_thread_bound_rows_keep_a_valid_kernel() -> None:
    text = ROWS.replace("L_i,", "B^tx_i L_")
    program = parse(text)
    assert verify(program, "cuda") == ()
    for action in (f"{SUM}(E)", f"{SOFTMAX}(C)"):
        after = strategies.apply(program, parse_action(action)).program
        assert verify(after, "cuda") == (), show(after)


def test_programs_without_a_maximum_offer_nothing() -> None:
    program = load("matmul_256").program
    assert not [a for a in strategies.legal(program) if a.name in ONLINE]
    for name in ONLINE:
        assert list(REGISTRY[name].candidates(program)) == []


@pytest.mark.parametrize("dtype, bound", [("f32", 1e-5), ("f16", 1e-2)])
def test_the_kernels_compute_it_masks_included(dtype: str, bound: float) -> None:
    for pattern, action in (("softmax_rows", f"{SOFTMAX}(C)"), ("masked_average", f"{FLASH}(G)")):
        sizes = {name: 7 for name in PATTERNS[pattern].defaults if name != "dtype"}
        before = parse(PATTERNS[pattern].text(**sizes, dtype=dtype))
        inputs = masked(before, 5)
        with np.errstate(all="ignore"):
            expected = run(before, inputs, DType.F64)["C"]
        found = build(apply(before, action)).run(inputs)["C"].astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=bound, atol=bound)


def test_exponentials_by_name_are_followed_to_their_definitions() -> None:
    text = (
        "i,k:4 m:3\nA:f64[i,k] B:f64[k,m] -> C:f64[i,m]; D,E:f64[i] F,G:f64[i,k]\n"
        "L_i,k D[i] max= A[i,k]\n"
        "L_i,k F[i,k] = exp(A[i,k]-D[i])\n"
        "L_i,k E[i] += F[i,k]\n"
        "L_i,k G[i,k] = F[i,k]/E[i]\n"
        "L_i,m,k C[i,m] += G[i,k] B[k,m]\n"
    )
    after = apply(text, f"{FLASH}(C)")
    assert "F[i,k]" not in show(after) and len(after.body) == 1
    agree(parse(text), after, masked(parse(text), 4))
    agree(parse(text), apply(text, f"{SUM}(E)", f"{MATMUL}(C)"), masked(parse(text), 5))


def test_definitions_in_a_circle_are_left_alone() -> None:
    text = (
        "t:3 i,k:4\nA:f64[i,k] -> C:f64[i]; D:f64[i] F,G:f64[i,k]\n"
        "L_i,k D[i] max= A[i,k]\n"
        "L_i,k F[i,k] = A[i,k]\n"
        "L_t [\n  L_i,k G[i,k] = F[i,k]\n  L_i,k F[i,k] = G[i,k]*2.0\n]\n"
        "L_i,k C[i] += F[i,k]*G[i,k]\n"
    )
    assert refused(text, f"{SUM}(C)").code == "structure"


@pytest.mark.parametrize(
    "weight",
    [
        "exp(A[i,k]-E[i])/(2.0*F[i])",
        "exp(A[i,k]-E[i])/(F[i]*2.0)",
        "-exp(A[i,k]-E[i])/F[i]",
        "0.5/(F[i]/exp(A[i,k]-E[i]))",
    ],
)
def test_a_division_moves_after_the_loop_however_it_is_written(weight: str) -> None:
    text = VALUES.replace("exp(A[i,k]-E[i])/F[i]", weight)
    after = apply(text, f"{FLASH}(C)")
    assert "L_m C[i,m] = C[i,m]/F" in show(after)
    agree(parse(text), after, masked(parse(text), 6))


def test_definitions_go_with_the_loop_that_declares_them() -> None:
    text = (
        "i:5 k:3 d:4\nA:f64[i,k] B:f64[k,d] -> C:f64[i,d]\n"
        "L_i [\n  J:f64.l[k] F,G:f64.l\n  F = -inf\n  G = 0\n"
        "  L_k [\n    K:f64.l\n    K = F\n    F = max(F,A[i,k])\n"
        "    G = select(K==(-inf),0,G*exp(K-F))+exp(A[i,k]-F)\n  ]\n"
        "  L_k [\n    H:f64.l\n    H = exp(A[i,k]-F)/G\n    J[k] = H\n  ]\n"
        "  L_d,k C[i,d] += J[k] B[k,d]\n]\n"
    )
    after = apply(text, f"{MATMUL}(C)")
    assert verify(after) == () and "H" not in {tensor.name for tensor in declared(after)}
    inputs = random_inputs(after, np.random.default_rng(0))
    np.testing.assert_allclose(run(after, inputs)["C"], run(parse(text), inputs)["C"], rtol=1e-12)


def declared(program: Program) -> list[Tensor]:
    """Every tensor of a program, wherever it is declared."""
    return [tensor for tensor, _ in declarations(program).values()]
