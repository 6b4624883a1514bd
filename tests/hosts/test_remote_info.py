"""A look at processes on other hosts: their workers are asked, and nobody waits for ever."""

import os

import pytest

import perdure
from perdure import process
from perdure.errors import CallTimeout, NoProcess
from perdure.otp import Supervisor, child, full_tree, tree
from perdure.process import Exit, ProcessHost, State
from tests.support import work
from tests.support.hosts import event_of, on_every_host, on_hosts_elsewhere


@on_every_host
async def test_the_full_picture_shows_what_waits_and_where(host: str) -> None:
    pid = process.spawn_monitored(work.until_listening, process.self_pid(), host=host)
    await process.inbox().receive()
    for number in range(3):
        process.send(pid, "not-heard", number)

    info = await process.full_info(pid)

    assert info.pid is pid
    assert info.parent is process.self_pid()
    assert info.mailbox == 3
    assert info.state in {State.PARKED, State.WAITING}
    assert any("in until_listening" in line for line in info.stack)
    assert info.monitored_by == (process.self_pid(),)
    process.send(pid, "end")
    await event_of(Exit)
    with pytest.raises(NoProcess):
        await process.full_info(pid)


@on_hosts_elsewhere
async def test_the_full_tree_shows_what_runs_on_workers(host: str) -> None:
    async with Supervisor([child(work.spawn_here, process.self_pid(), host=host, id="one")]):
        inner = (await process.inbox().receive()).payload

        node = (await full_tree()).find("one")
        assert node is not None
        assert node.state != "elsewhere"
        assert node.awaits is not None
        assert "in spawn_here" in node.awaits
        assert [below.pid for below in node.children] == [inner]
        assert node.children[0].label.endswith("wait_for_ever")

        near = tree().find("one")
        assert near is not None
        assert (near.state, near.children) == ("elsewhere", ())


@pytest.mark.parametrize("kind", ["threads", "os"])
def test_a_worker_that_gives_no_answer_is_shown_as_blocked(kind: str) -> None:
    async def main() -> None:
        me = process.self_pid()
        async with ProcessHost("h", kind=kind, workers=1):  # pyright: ignore[reportArgumentType]
            reader, writer = os.pipe()
            pid = process.spawn(work.block_until_written, me, os.getpid(), reader, host="h")
            await process.inbox().receive()
            with pytest.raises(CallTimeout, match="blocked"):
                await _look_until_it_blocks(pid)
            node = (await full_tree(timeout="50ms")).find(pid)
            assert node is not None
            assert node.state == "blocked"
            os.write(writer, b"x")
            assert (await process.full_info(pid, "30s")).state != State.READY
            process.kill(pid)
            os.close(writer)
            os.close(reader)

    perdure.run(main)


async def _look_until_it_blocks(pid: process.Pid) -> None:
    while True:
        await process.full_info(pid, "50ms")


def test_a_look_at_a_program_without_hosts_asks_nobody() -> None:
    async def main() -> None:
        assert str(await full_tree(timeout=0)).split(", age")[0] == str(tree()).split(", age")[0]

    perdure.run(main)
