"""MetaSchedule gets the root as it is, and its kernel is checked before it counts."""

import functools

from agents import metaschedule
from agents.metaschedule import race
from envs.common import timing
from envs.leir_env.parser import parse

QUICK = timing.Rules(pairs=3, width=10.0, seconds=0.01)

MATMUL = parse("i:16 j:12 k:20\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n")


def test_a_race_tunes_checks_and_times(monkeypatch):
    quick = functools.partial(metaschedule.tune, strategy="replay-trace")
    monkeypatch.setattr(metaschedule, "tune", quick)
    found = race(MATMUL, MATMUL, 2, 1, 0, QUICK)
    assert found.baseline_name == "MetaSchedule"
    assert len(found.candidate) >= 3 and found.ratio > 0


def test_a_tuned_kernel_that_is_wrong_is_no_baseline(monkeypatch):
    monkeypatch.setattr(metaschedule, "_tuned", lambda *given: lambda *tensors: None)
    assert "is wrong: output C is off by" in race(MATMUL, MATMUL, 2, 1, 0, QUICK)
