"""The live oracle answers through Kernel Tuner, and whatever a configuration does is an answer."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("kernel_tuner")

from envs.autotune_env import readers
from envs.autotune_env.domain import SpaceError
from envs.autotune_env.kernels import find
from envs.autotune_env.live import Live
from envs.autotune_env.space import Status

RNG = np.random.default_rng(0)

SOURCE = """
#if what == 0
#elif what == 1
#error no
#elif what == 2
static int never[1];
#endif
extern "C" float probe(float* output, const float* a, const float* b) {
#if what == 3
    *(volatile int*)0 = 1;
#elif what == 4
    for (volatile int i = 0;; ++i) { }
#endif
    for (int n = 0; n < size_n; ++n)
        for (int m = 0; m < size_m; ++m) {
            output[n * size_m + m] = what == 2 ? 1.0f : 0.0f;
            for (int k = 0; k < size_k; ++k) output[n * size_m + m] += a[k * size_m + m] * b[k * size_n + n];
        }
    return 0.25f * (twice + 1);
}
"""
"""A product of matrices that is right, does not compile, is wrong, crashes, or hangs."""

FATES = {0: Status.CORRECT, 1: Status.COMPILE, 2: Status.CORRECTNESS, 3: Status.RUNTIME, 4: Status.TIMEOUT}


def probe(folder: Path):
    (folder / "probe.c").write_text(SOURCE)
    return dataclasses.replace(
        find("gemm/c"),
        application="probe",
        values={"what": tuple(FATES), "twice": (0, 1)},
        constants={"size_m": 8, "size_n": 4, "size_k": 3},
        restrictions=("twice == 0 or what == 0",),
        folder=folder,
    )


def test_every_end_of_a_configuration_is_an_answer(tmp_path):
    cache = tmp_path / "probe.json"
    with Live(probe(tmp_path), cache, device="here", runs=3, limit=5.0) as live:
        outcomes = [live.evaluate(row, RNG) for row in range(len(live.domain))]
        for row, outcome in enumerate(outcomes):
            what = live.domain.value_of(row)["what"]
            assert outcome.status is FATES[what], (what, outcome)
            assert outcome.seconds > 0
            assert math.isnan(outcome.loss) == (outcome.status is not Status.CORRECT)
        assert [live.evaluate(row, RNG) for row in range(len(live.domain))] == outcomes
    right = [outcome.loss for outcome in outcomes if outcome.status is Status.CORRECT]
    assert right == [0.25, 0.5]
    space = readers.read(cache)
    assert len(space) == len(outcomes) and space.device == "here"
    assert sorted(space.values[space.correct]) == right
    with Live(probe(tmp_path), cache, device="here", limit=1e-9) as live:  # nothing is run again
        assert [live.evaluate(row, RNG) for row in range(len(live.domain))] == outcomes
    with pytest.raises(SpaceError, match="cache of another device"):
        Live(probe(tmp_path), cache, device="there")


def test_kernels_of_the_project_are_measured_through_kernel_tuner(tmp_path):
    for name, constants in (("hotspot/c", {"width": 64, "height": 64}), ("gemm/c", {"size_m": 32, "size_k": 64})):
        cache = tmp_path / f"{name.replace('/', '-')}.json"
        with Live(find(name, **constants), cache, runs=3) as live:
            outcome = live.evaluate(1, RNG)
            assert outcome.status is Status.CORRECT
            rate = live.kernel.work is not None
            assert (outcome.loss < 0) == rate
        replayed = readers.read(cache)
        assert replayed.higher_is_better == rate
        assert replayed.losses[0] == pytest.approx(outcome.loss)
        assert replayed.seconds[0] == pytest.approx(outcome.seconds, rel=1e-5)
