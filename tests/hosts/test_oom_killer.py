"""The system's own OOM killer, where the tests may limit the memory of an OS process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure import process
from perdure.errors import HostDown
from perdure.process import Exit, ProcessHost
from tests.support import work
from tests.support.hosts import event_of

_GROUPS = Path("/sys/fs/cgroup")
_LIMIT = 128 << 20  # bytes


def _limited_group() -> Path:
    """Make a control group with little memory, in the old or in the new hierarchy.

    Raises:
        OSError: This needs rights that tests seldom have.
    """
    old = _GROUPS / "memory"
    group = (old if old.is_dir() else _GROUPS) / f"perdure-test-{os.getpid()}"
    group.mkdir()
    try:
        limit = "memory.limit_in_bytes" if old.is_dir() else "memory.max"
        (group / limit).write_text(str(_LIMIT), "ascii")
    except OSError:
        group.rmdir()
        raise
    return group


@pytest.fixture
def group() -> Iterator[Path]:
    try:
        made = _limited_group()
    except OSError as error:
        pytest.skip(f"no control group with a limit of memory can be made here: {error}")
    yield made
    made.rmdir()  # refused as long as an OS process is in it


def test_a_kill_by_the_oom_killer_is_told_as_such_and_the_worker_is_replaced(group: Path) -> None:
    async def main() -> None:
        async with ProcessHost("cpu", kind="os", workers=1):
            hungry = process.spawn_monitored(work.outgrow, str(group), host="cpu")
            event = await event_of(Exit)
            error = event.result.error
            assert event.sender == hungry
            assert isinstance(error, HostDown)
            assert "(SIGKILL)" in error.cause
            assert error.cause.endswith("the system ran out of memory meanwhile")
            process.spawn_monitored(work.double, 7, host="cpu")
            assert (await event_of(Exit)).result.value == 14

    perdure.run(main)
