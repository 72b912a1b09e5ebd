"""The laws that every registered strategy obeys, on generated programs and on the shipped suite."""

import functools
import re
from collections.abc import Iterator

import numpy as np
import pytest

from envs.common.actions import STOP, Action, parse_action
from envs.leir_env import strategies, walks
from envs.leir_env.generate import random_inputs
from envs.leir_env.interp import run
from envs.leir_env.ir import DType, Program
from envs.leir_env.key import key
from envs.leir_env.parser import parse
from envs.leir_env.patterns import PATTERNS
from envs.leir_env.printer import show
from envs.leir_env.strategies import REGISTRY, Exactness
from envs.leir_env.verify import verify
from envs.leir_env.workloads import LIGHT, load, names

SEEDS = range(160)
ENOUGH = 12
TOP_UP = 8
"""Rounds over all patterns for a strategy that the walks met less than `ENOUGH` times."""
CODES = {
    "unknown_strategy",
    "unknown_site",
    "wrong_parameter",
    "no_effect",
    "structure",
    "dependence",
    "domain",
    "approximate",
    "extent",
    "kind",
    "scope",
    "size",
}


@functools.cache
def applied() -> dict[str, list[tuple[Program, Action, strategies.Outcome, int]]]:
    """Random legal actions along random walks, by strategy: program before, action, outcome, input seed."""
    found: dict[str, list[tuple[Program, Action, strategies.Outcome, int]]] = {name: [] for name in REGISTRY}
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        program = walks.start(seed, rng)
        target = "cuda" if seed % 16 > 13 else "llvm"
        for _ in range(4):
            by_strategy: dict[str, list[Action]] = {}
            for action in strategies.legal(program, target, approximate=True):
                if action != STOP and REGISTRY[action.name].targets[0] == target:
                    by_strategy.setdefault(action.name, []).append(action)
            rarest = sorted(by_strategy, key=lambda name: len(found[name]))[:3]
            if not rarest:
                break
            actions = by_strategy[rarest[int(rng.integers(len(rarest)))]]
            action = actions[int(rng.integers(len(actions)))]
            outcome = strategies.apply(program, action)
            found[action.name].append((program, action, outcome, seed))
            program = outcome.program
    for name, cases in found.items():
        for seed in range(TOP_UP):
            if len(cases) < ENOUGH:
                cases += _straight_from_patterns(name, seed)
    return found


def _straight_from_patterns(name: str, seed: int) -> Iterator[tuple[Program, Action, strategies.Outcome, int]]:
    """One application of a rare strategy to each pattern, in a random size, that offers it."""
    strategy = REGISTRY[name]
    for pattern in PATTERNS.values():
        rng = np.random.default_rng((seed, 1))
        program = parse(pattern.draw(rng))
        offered = [
            Action(name, site, args)
            for site, args in strategy.candidates(program)
            if strategy.why_not(program, site, args) is None
        ]
        if offered:
            action = offered[int(rng.integers(len(offered)))]
            yield program, action, strategies.apply(program, action), seed


every_strategy = pytest.mark.parametrize("name", REGISTRY)


@every_strategy
def test_generated_programs_exercise_the_strategy(name: str) -> None:
    assert len(applied()[name]) >= 8


@every_strategy
def test_the_result_is_well_formed_and_round_trips(name: str) -> None:
    for before, action, outcome, _ in applied()[name]:
        problems = verify(outcome.program, REGISTRY[name].targets[0])
        assert problems == (), f"{show(before)}\n{action}\n{show(outcome.program)}"
        assert parse(show(outcome.program)) == outcome.program


@every_strategy
def test_the_result_computes_the_same_values(name: str) -> None:
    for before, action, outcome, seed in applied()[name]:
        inputs = random_inputs(before, np.random.default_rng(seed))
        expected, found = run(before, inputs), run(outcome.program, inputs)
        context = f"{show(before)}\n{action}\n{show(outcome.program)}"
        for output in expected:
            if outcome.exactness is Exactness.EXACT:
                assert found[output].tobytes() == expected[output].tobytes(), context
        if outcome.exactness is not Exactness.EXACT:
            exact, double = run(before, inputs, DType.F64), run(outcome.program, inputs, DType.F64)
            for output in expected:
                np.testing.assert_allclose(double[output], exact[output], rtol=1e-11, atol=1e-11, err_msg=context)


@every_strategy
def test_the_result_is_another_program(name: str) -> None:
    for before, action, outcome, _ in applied()[name]:
        assert key(outcome.program) != key(before), f"{show(before)}\n{action}"


@every_strategy
def test_applying_is_deterministic_and_leaves_the_input_alone(name: str) -> None:
    for before, action, outcome, _ in applied()[name][:10]:
        text = show(before)
        assert strategies.apply(before, action) == outcome
        assert show(before) == text


@every_strategy
def test_the_action_text_round_trips(name: str) -> None:
    for _, action, _, _ in applied()[name]:
        assert parse_action(str(action)) == action


@every_strategy
def test_the_rationale_names_every_parameter(name: str) -> None:
    for before, action, _, _ in applied()[name]:
        text = strategies.rationale(before, action)
        assert text.endswith(".") and len(text) > 40
        for value in action.args:
            assert value in text, f"{action}: {text}"


@every_strategy
def test_the_menu_is_what_trying_everything_finds(name: str) -> None:
    strategy = REGISTRY[name]
    for before, _, _, _ in applied()[name][:12]:
        menu = strategies.legal(before, strategy.targets[0], approximate=True)
        offered = [action for action in menu if action.name == name]
        accepted = [
            Action(name, site, args)
            for site, args in strategy.candidates(before)
            if strategies.refusal(before, Action(name, site, args), approximate=True) is None
        ]
        assert sorted(map(str, offered)) == sorted(map(str, accepted))
        assert len(set(offered)) == len(offered)


@every_strategy
def test_a_refusal_has_a_code_and_a_sentence(name: str) -> None:
    strategy = REGISTRY[name]
    refused = 0
    for before, _, _, _ in applied()[name][:12]:
        for site, args in strategy.candidates(before):
            refusal = strategies.refusal(before, Action(name, site, args), approximate=True)
            if refusal is not None:
                refused += 1
                assert refusal.code in CODES
                assert 15 < len(refusal.sentence) < 400 and "\n" not in refusal.sentence
        wrong = strategies.refusal(
            before, Action(name, ("nothing",) * len(strategy.site_kinds), ("x",)), approximate=True
        )
        assert wrong is not None and wrong.code == "unknown_site"


@every_strategy
def test_the_docstring_states_requirements_and_a_rewriting(name: str) -> None:
    text = type(REGISTRY[name]).__doc__ or ""
    assert re.search(r"\n    Requires:\n        1\. ", text)
    assert re.search(r"\n    Rewrite:\n", text) and "->" in text


@pytest.mark.parametrize(
    "text, there, back",
    [
        ("i:12\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]\n", "loop_split(i; 4)", "loop_fusion(io, ii)"),
        (
            "i:12 j:5\nA:f32[i,j] -> C:f32[i,j]\nL_i,j C[i,j] = A[i,j]\n",
            "loop_reorder(i, j)",
            "loop_reorder(j, i)",
        ),
        (
            "i:12\nA:f32[i] -> C,D:f32[i]\nL_i C[i] = A[i]\nL_i D[i] = C[i]+1.0\n",
            "operator_fusion(i, i.2; 1)",
            "operator_fission(i; 2)",
        ),
        (
            "i:12 j:5\nA:f32[i,j] B:f32[i] -> C:f32[i,j]\nL_i,j C[i,j] = A[i,j]*exp(B[i])\n",
            "expression_splitting(C; 2)",
            "compute_inline(D)",
        ),
        (
            "i:12\nA,B:f32[i] -> C,D:f32[i]\nL_i C[i] = A[i]\nL_i D[i] = B[i]\n",
            "expression_reorder(i, i.2)",
            "expression_reorder(i, i.2)",
        ),
        (
            "i:12\nA:f32[i] -> C:f32[i]; D:f32[i]\nL_i D[i] = sigmoid(A[i])+0.5\nL_i C[i] = A[i]\n",
            "multiplicative_split(C, D)",
            "cancellation(C; 1)",
        ),
        (
            "i:3 j:4\nA:f32[i,j] -> C:f32[i,j]; D:f32[i] E:f32\n"
            "L_i,j D[i] max= A[i,j]\nL_i E max= D[i]\nL_i,j C[i,j] = exp(A[i,j]-E)\n",
            "exponential_split(C, D)",
            "powsimp(C; 1)",
        ),
        (
            "i:12\nA,B,D:f32[i] -> C:f32[i]\nL_i C[i] = A[i]*(B[i]+D[i])\n",
            "expand_factorization(C; 1)",
            "factorization(C; 1)",
        ),
        (
            "i:12\nA,B:f32[i] -> C:f32[i]\nL_i C[i] = (A[i]+B[i])/(abs(A[i])+1)\n",
            "apart(C; 1)",
            "together(C; 1)",
        ),
        (
            "i:12\nA,B:f32[i] -> C:f32[i]\nL_i C[i] = log(A[i]*A[i]+1)+log(B[i]*B[i]+1)\n",
            "logsimp(C; 1)",
            "expand_log(C; 1)",
        ),
        (
            "i:6 j:5\nA:f32[i,j] -> C:f32[i]; D:f32[j,i]\nL_i,j D[j,i] = exp(A[i,j])\nL_i,j C[i] += D[j,i]\n",
            "set_storage_layout(D; swap_1_2)",
            "set_storage_layout(D; swap_1_2)",
        ),
        (
            "m:6 p:3\nA:f32[13] -> C:f32[m]\nL_m,p C[m] max= A[2m+p]\n",
            "precompute_indices(C; 1)",
            "compute_inline(D)",
        ),
    ],
)
def test_inverse_pairs_return_to_the_same_key(text: str, there: str, back: str) -> None:
    before = parse(text)
    after = strategies.apply(before, parse_action(there)).program
    assert key(strategies.apply(after, parse_action(back)).program) == key(before)


@pytest.mark.parametrize("workload", names(*LIGHT))
def test_every_action_on_a_shipped_workload_gives_a_well_formed_program(workload: str) -> None:
    program = load(workload).program
    actions = strategies.legal(program)
    chosen = np.random.default_rng(0).permutation(len(actions))[:25]
    for number in chosen:
        after = strategies.apply(program, actions[number]).program
        assert verify(after) == (), f"{actions[number]}\n{show(after)}"


def test_unknown_actions_are_refused_with_a_hint() -> None:
    program = load("softmax").program
    refusal = strategies.refusal(program, parse_action("loop_splt(i; 4)"))
    assert refusal is not None and refusal.code == "unknown_strategy" and "loop_split" in refusal.sentence
    refusal = strategies.refusal(program, parse_action("loop_split(q; 4)"))
    assert refusal is not None and refusal.code == "unknown_site"
    refusal = strategies.refusal(program, parse_action("loop_split(i; 0)"))
    assert refusal is not None and refusal.code == "wrong_parameter"
    refusal = strategies.refusal(program, parse_action("loop_vectorization(i; 9)"))
    assert refusal is not None and refusal.code == "wrong_parameter"
    with pytest.raises(ValueError, match="no loop q"):
        strategies.apply(program, parse_action("loop_split(q; 4)"))


def test_inlining_says_at_how_many_places_it_computes_the_expression() -> None:
    program = parse("i:4\nA:f32[i] -> C:f32[i]; D:f32[i]\nL_i D[i] = exp(A[i])\nL_i C[i] = D[i]*D[i]+D[i]\n")
    assert "computed at 3 places" in strategies.rationale(program, Action("compute_inline", ("D",), ()))


def test_unrolling_counts_what_stands_beside_the_loop() -> None:
    nests = "U_j [\n  L_i F[j,i] = A[j,i]\n  L_i G[j,i] = A[j,i]\n]\n"
    program = parse(f"i:20 j:8\nA:f32[j,i] -> F,G:f32[j,i]\n{nests}")
    first, second = (action for action in strategies.legal(program) if action.name == "loop_unrolling")
    refusal = strategies.refusal(strategies.apply(program, first).program, second)
    assert refusal is not None and refusal.code == "size"
