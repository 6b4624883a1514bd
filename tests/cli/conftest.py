import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.fixture
def private() -> Generator[Path]:
    """Give a folder with a short path, since that of a socket may have only 100 characters."""
    with tempfile.TemporaryDirectory(prefix="p") as folder:
        yield Path(folder)
