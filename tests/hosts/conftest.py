"""The program that all cases of a run share: OS processes take their time to start."""

from collections.abc import Iterator

import pytest

from tests.support.hosts import Program


@pytest.fixture(scope="session")
def program() -> Iterator[Program]:
    program = Program()
    yield program
    program.close()
