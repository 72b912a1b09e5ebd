"""Random walks and the census notice a strategy that is wrong, and remember what they did."""

import dataclasses

import pytest

from envs.leir_env import census, walks
from envs.leir_env.ir import DType
from envs.leir_env.parser import parse
from envs.leir_env.strategies import REGISTRY, Exactness, Outcome, legal
from envs.leir_env.walks import fault
from tests.exploits.test_positive_controls import MISTAKES

SUM = parse("i:6 k:5\nA:f32[i,k] -> C:f32[i]\nL_i,k C[i] += A[i,k]\n")
INPUTS = walks.random_inputs(SUM, walks.np.random.default_rng(0))


@pytest.fixture
def mistaken(monkeypatch):
    """`loop_split` makes a mistake besides."""
    honest = REGISTRY["loop_split"].rewrite

    def rewrite(program, site, args):
        right = honest(program, site, args).program
        made = (MISTAKES[name](right) for name in ("drop a term", "shift a constant", "swap operators"))
        return Outcome(next(filter(None, made), right))

    monkeypatch.setattr(type(REGISTRY["loop_split"]), "rewrite", staticmethod(rewrite))
    legal.cache_clear()


def test_a_walk_is_the_same_every_time():
    assert [action for _, action, _ in walks.walk(7)] == [action for _, action, _ in walks.walk(7)]


def test_walks_go_on_where_the_log_ends_even_in_the_middle_of_a_line(tmp_path):
    log = tmp_path / "log.jsonl"
    whole = walks.walks(40, 3, None)
    walks.walks(20, 3, log)
    log.write_text(log.read_text()[:-9])
    assert walks.walks(40, 3, log) == whole
    assert len(log.read_text().splitlines()) == whole.walks
    assert whole.actions.total() >= 40 and not whole.failures


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (SUM, "it is the same program"),
        (parse("i:6 k:4\nA:f32[i,5] -> C:f32[i]\nL_i,k C[i] += A[i,k]\n"), "output C differs"),
        (parse("i:6 k:5\nA:f32[i,k] -> C:f32[i]\nL_i,k C[i] += A[i,4-k]\n"), "output C differs"),
        (parse("i:6 k:5\nA:f32[i,k] -> C:f32[i]\nL_i,k C[i] += A[i,k+1]\n"), "subscript"),
    ],
)
def test_a_step_that_changes_the_result_is_a_fault(after, expected):
    assert expected in fault(SUM, Outcome(after), INPUTS)


def test_another_order_of_a_sum_is_no_fault_where_the_strategy_says_so():
    backwards = parse("i:6 k:5\nA:f32[i,k] -> C:f32[i]\nL_i,k C[i] += A[i,4-k]\n")
    assert fault(SUM, Outcome(backwards, Exactness.REASSOCIATES), INPUTS) == ""


def test_walks_catch_a_strategy_that_is_wrong(mistaken):
    tally = walks.walks(60, 0, None)
    assert tally.failures
    assert any("loop_split(" in failure.actions[-1] for failure in tally.failures)


def test_the_census_counts_what_applies_and_verifies(monkeypatch):
    monkeypatch.setattr(census, "names", lambda suite: ("softmax_rows",))
    rows = census.census(["patterns"])
    assert rows["loop_split"].applies == {"softmax_rows"}
    assert rows["loop_split"].verified == {"f32": 2, "f64": 2, "f16": 2}
    assert rows["loop_vectorization"].refused["dependence"] > 0
    assert not any(row.wrong for row in rows.values())


def test_the_census_catches_a_strategy_that_is_wrong(monkeypatch, mistaken):
    monkeypatch.setattr(census, "names", lambda suite: ("softmax_rows",))
    monkeypatch.setattr(census, "DTYPES", (DType.F32,))
    row = census.census(["patterns"])["loop_split"]
    assert not row.verified
    assert all("softmax_rows f32 loop_split(" in line and "wrong" in line for line in row.wrong) and row.wrong


def test_retyping_changes_every_float_and_nothing_else():
    program = parse("i:4\nA:f32[i] N:i64[i] -> C:f32[i]; D:f32[i]\nL_i D[i] = f32(N[i])\nL_i C[i] = A[i]+D[i]\n")
    double = census.retyped(program, DType.F64)
    assert [tensor.dtype for tensor in double.tensors] == [DType.F64, DType.I64, DType.F64, DType.F64]
    assert census.retyped(double, DType.F32) == program
    assert dataclasses.replace(double) != program
