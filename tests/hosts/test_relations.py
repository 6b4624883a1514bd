"""Links and monitors across hosts."""

from perdure import process
from perdure.errors import LinkedProcessDown, NoProcess
from perdure.process import Exit, LinkDown, ProcessHost
from tests.support import work
from tests.support.hosts import event_of, on_every_host, on_hosts_elsewhere


@on_every_host
async def test_each_monitor_is_told_once(host: str) -> None:
    pid = process.spawn(work.until_told, host=host)
    refs = {process.monitor(pid), process.monitor(pid)}
    process.send(pid, "end", "x")
    told = [await event_of(Exit), await event_of(Exit)]
    assert {ended.ref for ended in told} == refs
    assert {ended.result.value for ended in told} == {"x"}
    assert len(process.events()) == 0


@on_every_host
async def test_a_monitor_of_the_dead_is_told_at_once(host: str) -> None:
    pid = process.spawn_monitored(work.double, 1, host=host)
    await event_of(Exit)
    process.monitor(pid)
    assert isinstance((await event_of(Exit)).result.error, NoProcess)


@on_every_host
async def test_no_exit_comes_after_unmonitor(host: str) -> None:
    pid = process.spawn(work.until_told, host=host)
    ref = process.monitor(pid)
    kept = process.monitor(pid)
    process.unmonitor(ref)
    process.send(pid, "end", 1)
    assert (await event_of(Exit)).ref is kept
    assert len(process.events()) == 0


@on_every_host
async def test_a_failure_goes_over_a_link_to_one_who_traps(host: str) -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(work.fail, "boom", host=host)
    event = await event_of(LinkDown)
    assert event.sender is pid
    assert (type(event.error), event.error.args) == (ValueError, ("boom",))


@on_every_host
async def test_a_failure_kills_a_linked_process_of_another_loop(host: str) -> None:
    process.set_options(trap_links=True)
    cause = process.spawn_linked(work.fail_when_told, host=host)
    victim = process.spawn_monitored(work.link_to, cause, process.self_pid(), host=host)
    local = process.spawn_monitored(work.link_to, cause, process.self_pid())
    assert {(await process.inbox().receive()).payload for _ in range(2)} == {victim, local}
    process.send(cause, "now")
    ends = {
        ended.sender: ended.result.error for ended in [await event_of(Exit), await event_of(Exit)]
    }
    assert set(ends) == {victim, local}
    for error in ends.values():
        assert isinstance(error, LinkedProcessDown)
        assert error.pid is cause
        assert isinstance(error.root, ValueError)


@on_every_host
async def test_the_death_of_the_parent_kills_a_linked_child_elsewhere(host: str) -> None:
    parent = process.spawn(_parent_of, host, process.self_pid())
    child = (await process.inbox().receive()).payload
    process.monitor(child)
    process.kill(parent)
    ended = await event_of(Exit)
    assert ended.sender is child
    assert isinstance(ended.result.error, LinkedProcessDown)


async def _parent_of(host: str, to: process.Pid) -> None:
    process.send(to, "child", process.spawn_linked(work.wait_for_ever, host=host))
    await process.sleep(3600)


@on_every_host
async def test_a_normal_end_does_not_go_over_a_link(host: str) -> None:
    process.set_options(trap_links=True)
    process.spawn_linked_monitored(work.double, 1, host=host)
    assert (await event_of(Exit)).result.value == 2
    assert len(process.events()) == 0


@on_every_host
async def test_unlinked_processes_do_not_share_their_fate(host: str) -> None:
    pid = process.spawn_linked_monitored(work.fail_when_told, host=host)
    process.unlink(pid)
    process.send(pid, "now")
    assert isinstance((await event_of(Exit)).result.error, ValueError)


@on_every_host
async def test_a_worker_is_told_of_the_end_of_a_process_at_home(host: str) -> None:
    target = process.spawn(work.fail_when_told)
    process.spawn(work.monitor_and_tell, target, process.self_pid(), host=host)
    assert (await process.inbox().receive()).topic == "watching"
    process.send(target, "now")
    message = await process.inbox().receive()
    assert message.payload == [target, "ValueError"]
    assert message.payload[0] is target


@on_every_host
async def test_a_worker_is_told_of_the_end_of_a_process_on_each_host(host: str) -> None:
    for other in ("threads-host", "os-host"):
        target = process.spawn(work.fail_when_told, host=other)
        process.spawn(work.monitor_and_tell, target, process.self_pid(), host=host)
        assert (await process.inbox().receive()).topic == "watching"
        process.send(target, "now")
        message = await process.inbox().receive()
        assert message.payload == [target, "ValueError"]


@on_every_host
async def test_a_trapping_worker_gets_a_link_down(host: str) -> None:
    watcher = process.spawn(work.tell_events, process.self_pid(), host=host)
    assert (await process.inbox().receive()).topic == "ready"
    victim = process.spawn(_linked_and_failing, watcher)
    message = await process.inbox().receive()
    assert message.payload == ["LinkDown", victim]
    process.kill(watcher)


async def _linked_and_failing(pid: process.Pid) -> None:
    process.link(pid)
    process.fail("now")


@on_hosts_elsewhere
async def test_a_process_lives_on_when_a_host_ends_whose_processes_watched_it(host: str) -> None:
    far = process.spawn(work.echo, host=host)
    near = process.spawn(work.echo)
    me = process.self_pid()
    async with ProcessHost("watchers", kind="threads", workers=1):
        for each in (me, near, far):
            process.spawn(work.monitor_and_tell, each, me, host="watchers")
            await process.inbox().receive()  # it watches
    for each in (me, near, far):
        assert process.send(each, "still there")
    for _ in range(3):
        assert (await process.inbox().receive()).topic == "still there"
    for each in (near, far):
        process.kill(each)
