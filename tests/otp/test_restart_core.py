"""The restart core: how a child is related to its supervisor, and how servers are started by it."""

import asyncio
from typing import Any

import pytest

from perdure import process
from perdure.base.restart import Backoff
from perdure.base.retry import Retry
from perdure.errors import StartError
from perdure.otp import IGNORE, Agent, GenServer, Pool
from perdure.otp.supervision.spec import ChildSpec, child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process import Pid, sleep
from perdure.testing import simulated
from tests.support.processes import living, wait_forever


class Fragile(GenServer):
    def handle_call(self, request: Any, frm: Any) -> Any:
        return request

    def handle_cast(self, request: Any) -> None:
        raise RuntimeError(request)


async def child_of(supervisor: Supervisor) -> Pid:
    [info] = await supervisor.which_children()
    assert isinstance(info.pid, Pid)
    return info.pid


# One relation


@pytest.mark.parametrize(
    "spec",
    [
        child(wait_forever),
        Fragile.child(),
        Agent.child(dict),
        ChildSpec("started", lambda: Agent.start_link(dict)),
    ],
    ids=["process", "server", "agent", "function"],
)
@simulated
async def test_a_child_is_linked_once_and_not_monitored(spec: ChildSpec) -> None:
    async with Supervisor([spec]) as supervisor:
        pid = await child_of(supervisor)
        assert list(process.info(pid).links).count(supervisor.pid) == 1
        watched = supervisor.pid.target.relations.monitors.values()
        assert list(watched) == [process.self_pid()]  # its own parent


@simulated
async def test_a_process_under_two_supervisors_is_restarted_by_both() -> None:
    shared = process.spawn(wait_forever)
    starts: list[str] = []

    def start(name: str) -> Any:
        starts.append(name)
        return shared if process.alive(shared) else process.spawn_linked(wait_forever)

    one = await Supervisor.start_link([ChildSpec("one", lambda: start("one"))])
    two = await Supervisor.start_link([ChildSpec("two", lambda: start("two"))])
    process.kill(shared)
    await sleep(1)
    assert sorted(starts) == ["one", "one", "two", "two"]
    assert await child_of(one) is not await child_of(two)


@simulated
async def test_a_killed_supervisor_leaves_no_server_that_still_starts() -> None:
    class Slow(GenServer):
        async def init(self) -> None:
            await wait_forever()

    starting = asyncio.ensure_future(Supervisor.start([Slow.child()], name="sup"))
    await sleep(1)
    process.kill("sup")
    with pytest.raises(Exception, match="killed"):
        await starting
    await sleep(1)
    assert len(living()) == 1


# Servers


@simulated
async def test_a_server_is_back_in_the_same_turn_of_the_loop() -> None:
    async with Supervisor([Fragile.child(name="fragile")]):
        before = process.pid_of("fragile")
        GenServer.cast("fragile", "crash")
        await asyncio.sleep(0)
        assert process.pid_of("fragile") is not before
        assert await GenServer.call("fragile", 7) == 7


@simulated
async def test_a_server_that_has_nothing_to_run_is_no_child_that_runs() -> None:
    class Idle(GenServer):
        def init(self) -> Any:
            return IGNORE

    async with Supervisor([Idle.child()]) as supervisor:
        [info] = await supervisor.which_children()
        assert info.pid is None


@simulated
async def test_a_server_with_a_start_of_its_own_is_started_by_it() -> None:
    started: list[str] = []

    class Own(Fragile):
        @classmethod
        async def start_link(cls, *args: Any, **options: Any) -> Any:
            started.append(cls.__name__)
            return await super().start_link(*args, **options)

    async with Supervisor([Own.child()]):
        assert started == ["Own"]


# Pools answer as supervisors do


@simulated
async def test_a_pool_can_be_asked_for_its_children() -> None:
    async with await Pool.start_link(idle_worker, size=2) as pool:
        children = await Supervisor.which_children(pool.pid)
        assert [info.id for info in children] == [2, 1]


async def idle_worker(_: int) -> None:
    await wait_forever()


@simulated
async def test_a_pool_that_is_stopped_at_once_leaves_no_worker() -> None:
    pool = await Pool.start_link(idle_worker, size=3)
    await pool.stop()
    assert len(living()) == 1


# The backoff


def test_a_backoff_grows_and_gives_up_after_its_starts() -> None:
    backoff = Backoff(Retry(initial_delay=1, factor=2), max_starts=3, stable_after=10)

    assert backoff.after_failure(1, 0.0) == (1.0, 1)
    assert backoff.after_failure(2, 9.9) == (2.0, 2)
    assert backoff.after_failure(3, 9.9) is None


def test_a_backoff_forgets_the_starts_of_what_has_run_long_enough() -> None:
    backoff = Backoff(Retry(initial_delay=1, factor=2), max_starts=3, stable_after=10)

    assert backoff.after_failure(3, 10.0) == (1.0, 0)


# A start that is broken off


@simulated
async def test_what_a_broken_start_began_is_stopped_in_its_place_and_with_its_time() -> None:
    ended: list[str] = []

    async def ends_slowly(name: str, seconds: float) -> None:
        try:
            await wait_forever()
        finally:
            await sleep(seconds)
            ended.append(name)

    async def begin_and_hang() -> Pid:
        process.spawn_linked(ends_slowly, "begun", 8)
        await wait_forever()
        raise AssertionError

    children = [child(ends_slowly, "first", 0), ChildSpec("second", begin_and_hang, shutdown=9)]
    starting = asyncio.ensure_future(Supervisor.start(children, name="sup"))
    await sleep(1)
    await Supervisor.stop("sup")
    with pytest.raises(StartError):
        await starting
    assert ended == ["begun", "first"]
