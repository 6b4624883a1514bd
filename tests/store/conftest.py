"""Every test of this folder that takes `url` or `store` runs on both databases."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from perdure.store.open import open_store
from perdure.store.store import Store
from tests.support.set_clock import StoreClock


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = open_store(url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def clock(url: str) -> Iterator[StoreClock]:
    with StoreClock(url) as clock:
        yield clock


@pytest.fixture
async def timed(clock: StoreClock) -> AsyncIterator[Store]:
    """A store that goes by `clock`."""
    opened = await clock.open()
    yield opened
    await opened.close()


@pytest.fixture
async def other(url: str, store: Store) -> AsyncIterator[Store]:
    """A second store on the same database, as another process would have."""
    opened = open_store(url)
    await opened.open()
    yield opened
    await opened.close()
