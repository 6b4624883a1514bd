"""Every test of this folder that takes `url` runs on both databases."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.base import telemetry
from perdure.base.telemetry import Event, Values
from perdure.store.db_thread import BATCH
from tests.support.unwritable import Database, SqliteFile, WritableAgain


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WritableAgain]:
    """An empty store that can be made read-only."""
    if request.param == "sqlite":
        found: WritableAgain = SqliteFile(tmp_path / "jobs.db")
    else:
        found = Database(request.getfixturevalue("postgres_url"))
    yield found
    found.close()


@pytest.fixture
def failures() -> Iterator[list[int]]:
    """Grows with each transaction that failed."""
    found: list[int] = []

    def note(_event: Event, numbers: Values, _facts: Values, _config: object) -> None:
        found.extend([1] * numbers["failed"])

    telemetry.attach("failures", BATCH, note)
    yield found
    telemetry.detach("failures")
