"""The stores that the engine's tests run on."""

from pathlib import Path

import pytest


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The address of an empty store."""
    return f"sqlite:///{tmp_path / 'jobs.db'}"
