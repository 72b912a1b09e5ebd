"""Keep tests out of the user's cache: store, references and measurement lock go to a temporary folder.

With CI set, hypothesis draws the same examples every time.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEIRGYM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
