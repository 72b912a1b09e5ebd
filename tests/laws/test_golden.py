"""One golden file for each strategy: a program, an action, and the program after it, to be read by people.

`python -m tests.laws.test_golden` writes them anew.
"""

from pathlib import Path

import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import REGISTRY
from envs.leir_env.verify import verify

FOLDER = Path(__file__).parents[1] / "golden" / "strategies"

MATMUL = "i:64 j:48 k:32\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i L_j L_k C_{i,j} += A_{i,k} B_{k,j}\n"
SCALED = "i:100\nA:f32[i] -> C:f32[i]; D:f32[i]\nL_i D_i = exp(A_i)\nL_i C_i = D_i/(D_i+1.0)\n"
ROWS = "i:16 j:64\nA:f32[i,j] -> C:f32[i,j]; D:f32[i]\nL_i L_j D_i += A_{i,j}\nL_i L_j C_{i,j} = A_{i,j}/D_i\n"
FUSED = "i:16 j:64\nA:f32[i,j] -> C:f32[i,j]; D:f32[i]\nL_i [\n  L_j D_i += A_{i,j}\n  L_j C_{i,j} = A_{i,j}/D_i\n]\n"

EXAMPLES = {
    "loop_split": (SCALED, "loop_split(i; 16)"),
    "loop_tiling": (MATMUL, "loop_tiling(i, j; 8, 16)"),
    "loop_reorder": (MATMUL, "loop_reorder(j, k)"),
    "loop_fusion": (MATMUL, "loop_fusion(i, j)"),
    "loop_unrolling": (MATMUL, "loop_unrolling(k)"),
    "loop_parallelization": (MATMUL, "loop_parallelization(i)"),
    "loop_vectorization": (MATMUL, "loop_vectorization(j; 16)"),
    "operator_fusion": (ROWS, "operator_fusion(i, i.2; 1)"),
    "operator_fission": (FUSED, "operator_fission(i; 2)"),
    "compute_inline": (SCALED, "compute_inline(D)"),
    "compute_at": (ROWS, "compute_at(D, i.2)"),
    "cache_read_write": (MATMUL, "cache_read_write(C, j; local)"),
    "set_storage_scope": (FUSED, "set_storage_scope(D; local)"),
}


def golden(name: str) -> str:
    text, action = EXAMPLES[name]
    before = parse(text)
    assert verify(before) == ()
    outcome = strategies.apply(before, parse_action(action))
    reason = strategies.rationale(before, parse_action(action))
    return f"{show(before)}\n{action}\n{reason}\n{outcome.exactness.name}\n\n{show(outcome.program)}"


def test_every_strategy_has_an_example() -> None:
    assert set(EXAMPLES) == set(REGISTRY)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_reads_as_its_golden_file(name: str) -> None:
    assert golden(name) == (FOLDER / f"{name}.txt").read_text()


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for example in EXAMPLES:
        (FOLDER / f"{example}.txt").write_text(golden(example))
