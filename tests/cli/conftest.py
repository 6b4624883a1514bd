import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.cli import CommandLine


@pytest.fixture
def private() -> Generator[Path]:
    """Give a folder with a short path, since that of a socket may have only 100 characters."""
    with tempfile.TemporaryDirectory(prefix="p") as folder:
        yield Path(folder)


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)
