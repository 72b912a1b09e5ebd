"""What an installation needs besides Python files is declared as package data."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]


def test_every_data_file_of_a_package_is_declared() -> None:
    found = {
        path
        for package in ("envs", "agents", "datagen", "training")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    declared = {
        path
        for package, patterns in DECLARED.items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    assert found and found == declared
