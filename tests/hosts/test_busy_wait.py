"""Who looks for an answer of another OS process before sleeping, and for how long."""

import asyncio
import subprocess
import sys

import pytest

import perdure
from perdure import Settings, process
from perdure.base.machine import cores
from perdure.otp import Task
from perdure.process import ProcessHost
from perdure.process.loop import SpinLoop
from tests.support import work

several_cores = pytest.mark.skipif(cores() == 1, reason="on one core nobody looks")


class CountingLoop(SpinLoop):
    """Counts how often something is expected."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = 0
        self._expect = self.expect
        self.expect = self._count

    def _count(self) -> None:
        self.expected += 1
        self._expect()


def test_a_loop_expects_something_when_it_has_spoken_to_an_os_worker() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        async with ProcessHost("cpu", kind="os", workers=1):
            pid = process.spawn(work.answer_requests, host="cpu")
            await process.call(pid, 1)
            before = loop.expected
            await process.call(pid, 2)
            assert loop.expected > before

    perdure.run(main, loop_factory=CountingLoop)


@several_cores
def test_both_sides_look_for_as_long_as_the_settings_say() -> None:
    async def main() -> tuple[float, float]:
        async with ProcessHost("cpu", kind="os", workers=1):
            return await work.spin_time(), await Task.create(work.spin_time, host="cpu")

    assert perdure.run(main, settings=Settings(busy_wait="50us")) == (0.00005, 0.00005)
    assert perdure.run(main, settings=Settings(busy_wait=0)) == (0.0, 0.0)


_ON_ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import perdure
from tests.support import work
print(perdure.run(work.spin_time))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there a program can be pinned to a core")
def test_on_one_core_nobody_looks() -> None:
    told = subprocess.run(
        [sys.executable, "-c", _ON_ONE_CORE], capture_output=True, text=True, check=True
    )
    assert told.stdout == "0.0\n"
