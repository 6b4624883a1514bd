"""What the tests of the dashboard share."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from perdure import App
from tests.support.page_app import page_app


@pytest.fixture
async def app(tmp_path: Path) -> AsyncGenerator[App]:
    """The app with a job of every kind, without a worker."""
    made = page_app(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with made:
        yield made
