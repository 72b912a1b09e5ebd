"""Keep tests out of the user's cache: store, references and measurement lock go to a temporary folder."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEIRGYM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
