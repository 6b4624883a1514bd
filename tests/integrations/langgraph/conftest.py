"""Tests of LangGraph run on both databases, where LangGraph is installed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.client import Client


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as opened:
        yield opened
