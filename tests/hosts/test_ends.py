"""Cancel, exit signals and kill across hosts."""

import pytest

from perdure import process
from perdure.errors import Killed, NoProcess, Shutdown
from perdure.process import Exit, LinkDown
from tests.support import work
from tests.support.hosts import event_of, on_every_host


@on_every_host
async def test_a_cancel_arrives_with_sender_reason_and_deadline(host: str) -> None:
    pid = process.spawn_monitored(work.cancelled_by, host=host)
    process.cancel(pid, "20s", "enough")
    assert (await event_of(Exit)).result.value == (process.self_pid(), "enough", True)


@on_every_host
async def test_a_cancel_kills_at_its_deadline(host: str) -> None:
    pid = process.spawn_monitored(work.wait_for_ever, host=host)
    process.cancel(pid, "10ms")
    assert isinstance((await event_of(Exit)).result.error, Killed)


@on_every_host
async def test_a_kill_ends_a_process(host: str) -> None:
    pid = process.spawn_monitored(work.wait_for_ever, host=host)
    process.kill(pid)
    assert isinstance((await event_of(Exit)).result.error, Killed)
    with pytest.raises(NoProcess):
        process.kill(pid)


@on_every_host
async def test_an_exit_signal_ends_a_process_with_its_reason(host: str) -> None:
    pid = process.spawn_monitored(work.wait_for_ever, host=host)
    process.exit(work.Odd(3, "please"), pid)
    error = (await event_of(Exit)).result.error
    assert isinstance(error, work.Odd)
    assert (error.number, error.why, str(error)) == (3, "please", "3: please")


@on_every_host
async def test_a_shutdown_passes_over_a_link_unchanged(host: str) -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(work.wait_for_ever, host=host)
    process.exit(Shutdown("planned"), pid)
    event = await event_of(LinkDown)
    assert isinstance(event.error, Shutdown)
    assert event.error.detail == "planned"


@on_every_host
async def test_an_end_by_exit_is_normal(host: str) -> None:
    process.spawn_monitored(work.leave, host=host)
    assert (await event_of(Exit)).result.ok


@on_every_host
async def test_an_exception_keeps_its_class_its_fields_and_its_story(host: str) -> None:
    process.spawn_monitored(work.fail_oddly, host=host)
    error = (await event_of(Exit)).result.error
    assert type(error) is work.Odd
    assert (error.number, error.why, str(error)) == (7, "it had to be", "7: it had to be")
    if host == "os-host":
        assert "fail_oddly" in error.__notes__[0]
    else:
        assert error.__traceback__ is not None
