"""Settings come from the environment, are typed, and name the variable that is wrong."""

from pathlib import Path

import pytest

from envs.common.settings import SettingError, settings


def test_defaults_need_no_environment():
    found = settings({})
    assert found.threads == 1
    assert found.workers >= 1
    assert found.store.parent == found.cache == found.lock.parent


def test_variables_are_read():
    found = settings({"LEIRGYM_CACHE": "~/x", "LEIRGYM_THREADS": "3", "LEIRGYM_WORKERS": "5"})
    assert (found.cache, found.threads, found.workers) == (Path.home() / "x", 3, 5)


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", ""])
def test_a_wrong_number_names_its_variable(text):
    with pytest.raises(SettingError, match="LEIRGYM_THREADS"):
        settings({"LEIRGYM_THREADS": text})
