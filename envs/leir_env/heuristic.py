"""Rules of thumb: how promising an action looks before anything is computed about its result."""

from __future__ import annotations

from collections.abc import Sequence

from envs.common.actions import STOP, Action
from envs.leir_env.ir import Assign, Loop, Program
from envs.leir_env.schedule import contiguous
from envs.leir_env.strategies import REGISTRY, Level
from envs.leir_env.tree import declarations, equations, loops_below, sites

_BASE = {
    "loop_tiling": 2.0,
    "loop_split": 0.7,
    "loop_reorder": 1.5,
    "loop_fusion": 0.1,
    "loop_unrolling": 1.0,
    "loop_parallelization": 2.0,
    "loop_vectorization": 3.0,
    "operator_fusion": 4.0,
    "operator_fission": 0.1,
    "compute_inline": 1.5,
    "compute_at": 3.0,
    "cache_read_write": 1.5,
    "set_storage_scope": 4.0,
    "reverse_compute_at": 2.0,
    "reduction_factorization": 2.0,
    "array_packing": 1.0,
    "double_buffer": 0.2,
    "layout_transformation": 0.3,
    "set_storage_layout": 0.3,
    "precompute_indices": 0.1,
    "loop_padding": 0.2,
    "common_subexpression_elimination": 2.0,
    "dead_code_elimination": 4.0,
    "expression_splitting": 0.4,
    "expression_reorder": 0.1,
    "tensor_concat_to_fuse_operators": 0.1,
    "tensor_split_to_decouple_operators": 0.1,
    "flashattention_wo_tiling": 1.0,
    "online_softmax": 1.0,
    "normal_matmul_to_prefix_matmul_based_on_online_softmax": 1.0,
    "normal_loop_max_to_prefix_max": 0.1,
    "normal_loop_summation_on_exp_to_prefix_summation_on_exp": 0.5,
    "partially_equivalent_then_correct": 0.5,
    "factorization": 0.5,
    "cancellation": 0.5,
    "fast_math": 1.0,
}
"""Weights where nothing more is known."""

_MATH = 0.1
"""Weight of the other strategies on the level of mathematics: most of them prepare for something."""

_STOP = 0.05


def prior(program: Program, actions: Sequence[Action]) -> list[float]:
    """Return a positive weight for each action."""
    return [_weight(program, action) for action in actions]


def _weight(program: Program, action: Action) -> float:
    if action == STOP:
        return _STOP
    refine = _REFINE.get(action.name)
    unknown = _MATH if REGISTRY[action.name].level is Level.MATH else 1.0
    return _BASE.get(action.name, unknown) * (refine(program, action) if refine else 1.0)


def _vectorised(program: Program, action: Action) -> float:
    """Contiguous loops in lanes of one or two registers."""
    node = sites(program)[action.sites[0]]
    assert isinstance(node.statement, Loop)
    extents = {**node.extents, **{loop.index: loop.extent for loop in loops_below(node.statement)}}
    score = contiguous(node.statement, node.statement.index, program, extents)
    width = {"16": 1.0, "8": 0.8, "32": 0.5}.get(action.args[0], 0.2)
    return width * (2.0 if score > 0 else 0.1)


def _parallelised(program: Program, action: Action) -> float:
    """Outermost loops first."""
    return 0.3 ** len(sites(program)[action.sites[0]].loops)


def _unrolled(program: Program, action: Action) -> float:
    """Short innermost loops that some accumulation does not run over."""
    node = sites(program)[action.sites[0]]
    assert isinstance(node.statement, Loop)
    depth = len(list(loops_below(node.statement)))
    return (2.0 if node.statement.extent <= 8 else 0.3) * (1.0 if depth <= 2 else 0.2)


def _tiled(program: Program, action: Action) -> float:
    """Register tiles: a few rows by one or two vectors."""
    rows, columns = (int(value) for value in action.args)
    return (2.0 if 4 <= rows <= 8 else 0.6) * (2.0 if columns in (8, 16, 32) else 0.6)


def _cached(program: Program, action: Action) -> float:
    """Accumulators first."""
    name, site = action.sites
    loop = sites(program)[site].statement
    accumulates = any(
        equation.target.tensor == name and equation.assign is not Assign.SET for equation in equations(loop)
    )
    return 2.0 if accumulates else 1.0


def _fused(program: Program, action: Action) -> float:
    return float(action.args[0])


def _factored(program: Program, action: Action) -> float:
    """Lanes; blocks are for more cores than one."""
    return 1.0 if action.args[1] == "lanes" else 0.1


def _stored(program: Program, action: Action) -> float:
    return 1.0 if declarations(program)[action.sites[0]][0].size > 1 else 0.5


def _computed(program: Program, action: Action) -> float:
    """Deeper in the consumer, less is stored at a time."""
    return 1.0 + 0.2 * len(sites(program)[action.sites[1]].loops)


_REFINE = {
    "loop_vectorization": _vectorised,
    "loop_parallelization": _parallelised,
    "loop_unrolling": _unrolled,
    "loop_tiling": _tiled,
    "cache_read_write": _cached,
    "operator_fusion": _fused,
    "set_storage_scope": _stored,
    "reduction_factorization": _factored,
    "compute_at": _computed,
}
