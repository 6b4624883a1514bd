"""Every test of this folder that takes `url` runs on both databases."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.postgres_server import own_schema


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def module_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    """The address of a store for all tests of a file, of a server for example."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('store') / 'jobs.db'}"
        return
    with own_schema(request.getfixturevalue("postgres_server")) as url:
        yield url
