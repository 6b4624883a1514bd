"""What a program learns of its machine."""

import subprocess
import sys

import pytest

from perdure.base.machine import cores

_COUNT_ON_ONE = """
import os
from perdure.base.machine import cores
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(cores())
"""


def test_there_is_a_core() -> None:
    assert cores() >= 1


@pytest.mark.skipif(sys.platform != "linux", reason="only there a program can be pinned to a core")
def test_only_the_cores_that_the_program_may_use_count() -> None:
    told = subprocess.run(
        [sys.executable, "-c", _COUNT_ON_ONE], capture_output=True, text=True, check=True
    )
    assert told.stdout == "1\n"
