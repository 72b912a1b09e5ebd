"""Public recordings: they read whole, satisfy their published rules, and have the cut-offs that are known of them."""

from __future__ import annotations

import numpy as np
import pytest

from envs.autotune_env import readers
from envs.autotune_env.records import Labels
from envs.autotune_env.score import scale

KNOWN = {
    # configurations, failures, evaluations and seconds to the cut-off, as the published package computes them
    "convolution_A100": (4362, 161, 1050, 2524),
    "convolution_A4000": (4362, 161, 323, 782),
    "convolution_MI250X": (4362, 0, 51, 83),
    "dedispersion_A100": (11130, 0, 795, 2527),
    "dedispersion_A4000": (11130, 0, 265, 1666),
    "dedispersion_MI250X": (11130, 0, 371, 1723),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_public_space_is_complete_and_has_the_known_cut_off(public, name):
    rules = readers.restrictions_of(public / f"{name.partition('_')[0]}_T1.json")
    space = readers.read(public / f"{name}.json.gz", Labels(name.replace("_", "/"), restrictions=rules))
    configurations, failed, evaluations, seconds = KNOWN[name]
    assert (len(space), sum(space.failures.values())) == (configurations, failed)
    assert scale(space).evaluations[1] == evaluations
    assert scale(space).end == pytest.approx(seconds, abs=0.5)
    assert space.samples is not None and space.samples.shape == (configurations, 32)


@pytest.mark.parametrize("name", ["convolution_A100", "dedispersion_A100"])
def test_both_formats_of_a_public_space_say_the_same(public, name):
    cache, t4 = (readers.read(public / f"{name}{suffix}.json.gz") for suffix in ("", "_T4"))
    assert cache.domain.parameters == t4.domain.parameters and cache.domain.constants == t4.domain.constants
    np.testing.assert_array_equal(cache.domain.configurations, t4.domain.configurations)
    np.testing.assert_array_equal(cache.status, t4.status)
    np.testing.assert_array_equal(cache.values, t4.values)
    np.testing.assert_array_equal(cache.samples, t4.samples)
    np.testing.assert_allclose(cache.seconds, t4.seconds, rtol=1e-3)
    assert scale(cache).end == pytest.approx(scale(t4).end, rel=1e-6)


@pytest.mark.parametrize(("name", "configurations"), [("gemm_RTX3090", 17956), ("pnpoly_RTX3090", 4092)])
def test_older_public_caches_read(public, name, configurations):
    assert len(readers.read(public / f"{name}.json.gz")) == configurations
