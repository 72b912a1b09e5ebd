"""Spaces that the tests share, and the public ones, where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.autotune_env.synthetic import synthetic

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "data" / "spaces"
"""Public recordings (MIT), beside the repository where somebody put them."""


@pytest.fixture(scope="session")
def space():
    return synthetic()


@pytest.fixture(scope="session")
def public():
    if not PUBLIC.is_dir():
        pytest.skip(f"there are no public spaces at {PUBLIC}")
    return PUBLIC
