"""The dynamic supervisor: children that come and go, each for itself."""

import asyncio
from typing import Any

import pytest

from perdure import process
from perdure.errors import ChildError, MaxChildren, NoProcess, Shutdown, StartError
from perdure.otp.supervision.dynamic import DynamicLoop, DynamicSupervisor
from perdure.otp.supervision.spec import BRUTAL_KILL, IGNORE, ChildSpec, ChildType, child
from perdure.otp.supervision.supervisor import Supervisor, loop_inside
from perdure.process import Exit, Pid, sleep
from perdure.process.lifecycle import PLAIN, spawn_process
from perdure.testing import simulate, simulated
from tests.support.children import Family, refuse_to_stop
from tests.support.processes import crash, give, live_timers, living, now, wait_forever


@simulated
async def test_it_starts_empty() -> None:
    async with DynamicSupervisor() as sup:
        assert list(await sup.which_children()) == []
        assert await sup.count_children() == (0, 0, 0, 0)


@simulated
async def test_a_child_is_started_given_and_listed_without_an_id() -> None:
    async with DynamicSupervisor() as sup:
        pid = await sup.start_child(child(wait_forever))
        (info,) = await sup.which_children()
        assert (info.id, info.pid, info.type) == (None, pid, ChildType.WORKER)


@simulated
async def test_ids_need_not_differ() -> None:
    async with DynamicSupervisor() as sup:
        spec = child(wait_forever)
        pids = {await sup.start_child(spec) for _ in range(5)}
        assert len(pids) == 5
        assert (await sup.count_children()).active == 5


@simulated
async def test_a_handle_is_given_back() -> None:
    async with DynamicSupervisor() as sup:
        inner = await sup.start_child(Supervisor.child([], id="inner"))
        assert isinstance(inner, Supervisor)
        assert (await sup.count_children()).supervisors == 1


@simulated
async def test_a_start_that_is_ignored_keeps_nothing() -> None:
    async def nothing() -> Any:
        return IGNORE

    async with DynamicSupervisor() as sup:
        assert await sup.start_child(ChildSpec("n", nothing)) is IGNORE
        assert await sup.which_children() == []


@simulated
async def test_a_start_that_fails_is_told_and_keeps_nothing() -> None:
    family = Family()
    family.failing["a"] = 1
    async with DynamicSupervisor() as sup:
        with pytest.raises(StartError) as failed:
            await sup.start_child(family("a"))
        assert isinstance(failed.value.reason, ValueError)
        assert await sup.which_children() == []


@pytest.mark.parametrize(
    ("restart", "order", "stays"),
    [
        ("permanent", "crash", True),
        ("permanent", "return", True),
        ("transient", "crash", True),
        ("transient", "return", False),
        ("transient", "shutdown", False),
        ("temporary", "crash", False),
        ("temporary", "return", False),
    ],
)
def test_the_restart_rule_decides(restart: str, order: str, stays: bool) -> None:
    async def main() -> None:
        family = Family()
        async with DynamicSupervisor() as sup:
            await sup.start_child(family("bystander"))
            first = await sup.start_child(family("w", restart=restart))
            await family.tell("w", order)
            pids = [info.pid for info in await sup.which_children()]
            assert first not in pids
            assert len(pids) == 1 + stays
            assert family.alive() == ("bystander w" if stays else "bystander")

    simulate(main)


@simulated
async def test_a_restarted_child_is_known_by_its_new_pid() -> None:
    family = Family()
    async with DynamicSupervisor() as sup:
        old = await sup.start_child(family("w"))
        await family.tell("w", "crash")
        with pytest.raises(ChildError):
            await sup.terminate_child(old)
        await sup.terminate_child(family.pids["w"])
        assert await sup.which_children() == []


@simulated
async def test_a_restart_that_is_ignored_drops_the_child() -> None:
    starts: list[int] = []

    async def once() -> Any:
        starts.append(1)
        return process.spawn_linked(wait_forever) if len(starts) == 1 else IGNORE

    async with DynamicSupervisor() as sup:
        process.kill(await sup.start_child(ChildSpec("w", once)))
        await sleep(1)
        assert await sup.which_children() == []
        assert len(starts) == 2


@simulated
async def test_a_child_is_terminated_by_its_pid() -> None:
    family = Family()
    async with DynamicSupervisor() as sup:
        pid = await sup.start_child(family("w"))
        await sup.terminate_child(pid)
        assert family.entries() == "+w -w"
        with pytest.raises(ChildError) as refused:
            await sup.terminate_child(pid)
        assert refused.value.reason == "not_found"


@simulated
async def test_a_child_that_is_being_restarted_is_terminated_by_its_last_pid() -> None:
    family = Family()
    async with DynamicSupervisor(max_restarts=100) as sup:
        pid = await sup.start_child(family("w"))
        family.failing["w"] = 50
        process.send(pid, "crash")
        await sleep("5ms")
        (info,) = await sup.which_children()
        assert info.pid == "restarting"
        await sup.terminate_child(pid)
        assert await sup.which_children() == []
        tries = family.diary.count("!w")
        await family.rest()
        assert family.diary.count("!w") == tries


# Bounds


@simulated
async def test_it_has_no_more_children_than_it_may() -> None:
    async with DynamicSupervisor(max_children=2) as sup:
        first = await sup.start_child(child(wait_forever))
        await sup.start_child(child(wait_forever))
        with pytest.raises(MaxChildren):
            await sup.start_child(child(wait_forever))
        await sup.terminate_child(first)
        await sup.start_child(child(wait_forever))


@simulated
async def test_a_child_that_is_being_restarted_counts() -> None:
    family = Family()
    async with DynamicSupervisor(max_children=1, max_restarts=100) as sup:
        family.pids["w"] = await sup.start_child(family("w"))
        family.failing["w"] = 50
        process.send(family.pids["w"], "crash")
        await sleep("5ms")
        with pytest.raises(MaxChildren):
            await sup.start_child(child(wait_forever))


@simulated
async def test_too_many_restarts_end_it_and_all_its_children() -> None:
    process.set_options(trap_links=True)
    family = Family()
    sup = await DynamicSupervisor.start_link(max_restarts=1)
    process.monitor(sup.pid)
    for id in ("a", "b"):
        await sup.start_child(family(id))
    await family.tell("a", "crash")
    assert process.alive(sup.pid)
    await family.tell("b", "crash")
    event = await process.events().receive()
    assert isinstance(event, Exit)
    assert isinstance(event.result.error, Shutdown)
    assert family.alive() == ""


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "one_for_all"},
        {"max_children": -1},
        {"max_children": "many"},
        {"max_restarts": -1},
        {"max_seconds": 0},
    ],
)
def test_bad_options_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        DynamicSupervisor(**options)
    with pytest.raises((ValueError, TypeError)):
        DynamicSupervisor.child(**options)


@simulated
async def test_significant_children_are_refused() -> None:
    async with DynamicSupervisor() as sup:
        with pytest.raises(ValueError, match="significant"):
            await sup.start_child(child(give, restart="transient", significant=True))


# Stop


@simulated
async def test_all_children_are_stopped_at_once() -> None:
    async def slow(seconds: float) -> None:
        try:
            await wait_forever()
        finally:
            await sleep(seconds)

    async with DynamicSupervisor() as sup:
        for seconds in (1, 4, 2):
            await sup.start_child(child(slow, seconds))
        await sleep(1)
        began = now()
    assert now() - began == 4
    assert len(living()) == 1


@simulated
async def test_each_child_has_its_own_time_to_stop() -> None:
    ends: dict[Pid, float] = {}

    async def watch(pids: list[Pid]) -> None:
        for pid in pids:
            process.monitor(pid)
        for _ in pids:
            event = await process.events().receive()
            assert isinstance(event, Exit)
            ends[event.sender] = now()

    async with DynamicSupervisor() as sup:
        limits: list[Any] = [3, 1, BRUTAL_KILL, 2]
        pids = [await sup.start_child(child(refuse_to_stop, shutdown=limit)) for limit in limits]
        process.spawn(watch, pids)
        await sleep(10)
    await sleep(1)
    assert [round(ends[pid]) for pid in pids] == [13, 11, 10, 12]
    assert live_timers() == 0


@simulated
async def test_it_stops_when_its_parent_ends() -> None:
    family = Family()

    async def parent() -> None:
        sup = await DynamicSupervisor.start_link()
        await sup.start_child(family("a"))

    await process.run_process(parent)
    await family.rest()
    assert family.entries() == "+a -a"


@simulated
async def test_thousands_of_children_come_and_go() -> None:
    async with DynamicSupervisor() as sup:
        for _ in range(2000):
            await sup.start_child(child(wait_forever))
        for _ in range(2000):
            await sup.start_child(child(give, restart="temporary"))
        await sleep(1)
        assert (await sup.count_children()).active == 2000
    assert len(living()) == 1


# In a tree, by name


@simulated
async def test_it_is_a_child_named_by_its_name_or_its_class() -> None:
    spec = DynamicSupervisor.child(name="jobs")
    assert (spec.id, spec.type, spec.shutdown) == ("jobs", ChildType.SUPERVISOR, None)
    assert DynamicSupervisor.child().id == "DynamicSupervisor"
    async with Supervisor([spec]):
        pid = await DynamicSupervisor.start_child("jobs", child(wait_forever))
        assert [info.pid for info in await DynamicSupervisor.which_children("jobs")] == [pid]
        await DynamicSupervisor.terminate_child("jobs", pid)
        assert (await DynamicSupervisor.count_children("jobs")).specs == 0
        await DynamicSupervisor.stop("jobs")
        await sleep(1)
        assert process.whereis("jobs") is not None  # restarted, since it is permanent


@simulated
async def test_a_process_can_be_admitted_without_a_request() -> None:
    async with DynamicSupervisor() as sup:
        children: DynamicLoop = loop_inside(sup, DynamicLoop)
        spec = child(crash, restart="temporary")
        born = spawn_process(children.me.runtime, children.me, crash, (), PLAIN)
        children.admit(spec, born)
        assert (await sup.count_children()).specs in (0, 1)
        await sleep(1)
        assert await sup.which_children() == []
        assert process.alive(sup.pid)


@simulated
async def test_nobody_is_admitted_while_it_stops() -> None:
    ran: list[int] = []

    async def late() -> None:
        ran.append(1)
        await wait_forever()

    sup = await DynamicSupervisor.start_link()
    await sup.start_child(child(refuse_to_stop, shutdown=3))
    stopping = asyncio.ensure_future(sup.stop())
    await sleep(1)
    children: DynamicLoop = loop_inside(sup, DynamicLoop)
    with pytest.raises(NoProcess, match="stopping"):
        children.check_room()
    born = spawn_process(children.me.runtime, children.me, late, (), PLAIN)
    with pytest.raises(NoProcess, match="stopping"):
        children.admit(child(late), born)
    await stopping
    assert ran == []
    assert len(living()) == 1


@simulated
async def test_only_a_supervisor_of_the_right_kind_can_be_looked_into() -> None:
    async with Supervisor([]) as sup:
        with pytest.raises(TypeError):
            loop_inside(sup, DynamicLoop)
