"""What can be asked of a running supervisor, and what it reports."""

import asyncio
import logging
from typing import Any

import pytest

from perdure import Settings, process, telemetry
from perdure.errors import CallExit, ChildError, NotRegistered, ProcError, StartError
from perdure.otp.agent import Agent
from perdure.otp.supervision.dynamic import DynamicSupervisor
from perdure.otp.supervision.partition import PartitionSupervisor
from perdure.otp.supervision.spec import IGNORE, ChildSpec, child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.otp.task_supervisor import TaskSupervisor
from perdure.process import Pid, sleep
from perdure.testing import simulate, simulated
from tests.support.children import Family, states
from tests.support.processes import records, wait_forever

# Look


@simulated
async def test_the_last_started_child_is_listed_first() -> None:
    family = Family()
    async with Supervisor([family("a"), family("b")]) as sup:
        await sup.start_child(family("c"))
        children = await sup.which_children()
        assert [info.id for info in children] == ["c", "b", "a"]
        assert [info.pid for info in children] == [family.pids[id] for id in "cba"]
        assert [info.type for info in children] == ["worker"] * 3


@simulated
async def test_children_are_counted_by_what_they_are_and_do() -> None:
    family = Family()
    children = [
        family("a"),
        family("b", restart="transient"),
        Supervisor.child([], id="inner"),
    ]
    async with Supervisor(children) as sup:
        await family.tell("b", "return")
        counts = await sup.count_children()
        assert (counts.specs, counts.active) == (3, 2)
        assert (counts.supervisors, counts.workers) == (1, 2)


@simulated
async def test_every_method_takes_a_name_or_a_pid_in_place_of_the_handle() -> None:
    family = Family()
    async with Supervisor([family("a")], name="App") as sup:
        for ref in ("App", sup.pid, sup):
            assert (await Supervisor.count_children(ref)).active == 1
            await Supervisor.terminate_child(ref, "a")
            await Supervisor.restart_child(ref, "a")
            await Supervisor.start_child(ref, family("b"))
            await Supervisor.terminate_child(ref, "b")
            await Supervisor.delete_child(ref, "b")
            assert states(await Supervisor.which_children(ref)) == {"a": "running"}


@simulated
async def test_a_supervisor_that_is_not_there_cannot_be_asked() -> None:
    with pytest.raises(NotRegistered):
        await Supervisor.which_children("nobody")
    async with Supervisor([]) as sup:
        pass
    with pytest.raises(CallExit):
        await sup.which_children()


@simulated
async def test_a_supervisor_that_was_not_started_says_so() -> None:
    with pytest.raises(ProcError, match="was not started"):
        await Supervisor([]).which_children()


@simulated
async def test_a_supervisor_cannot_be_entered_twice_at_once_but_again() -> None:
    sup = Supervisor([child(wait_forever)])
    async with sup:
        with pytest.raises(ProcError, match="runs already"):
            await sup.__aenter__()
        first = sup.pid
    async with sup:
        assert sup.pid is not first


# Start


@pytest.mark.parametrize(
    ("start", "start_link"),
    [
        (lambda: Supervisor.start([]), lambda: Supervisor.start_link([])),
        (DynamicSupervisor.start, DynamicSupervisor.start_link),
        (TaskSupervisor.start, TaskSupervisor.start_link),
        (
            lambda: PartitionSupervisor.start(child(wait_forever), name="p"),
            lambda: PartitionSupervisor.start_link(child(wait_forever), name="p"),
        ),
        (lambda: Agent.start(int), lambda: Agent.start_link(int)),
    ],
    ids=["supervisor", "dynamic", "task", "partition", "agent"],
)
@simulated
async def test_start_never_links_and_start_link_does(start: Any, start_link: Any) -> None:
    alone = await start()
    assert alone.pid not in process.info(process.self_pid()).links
    await alone.stop()
    linked = await start_link()
    assert linked.pid in process.info(process.self_pid()).links
    await linked.stop()


@simulated
async def test_a_supervisor_that_is_linked_to_nobody_outlives_its_starter() -> None:
    async def starter() -> Pid:
        return (await Supervisor.start([child(wait_forever)])).pid

    pid = await process.run_process(starter)
    await sleep(1)
    assert (await Supervisor.count_children(pid)).active == 1


@simulated
async def test_a_started_child_is_given_and_supervised() -> None:
    family = Family()
    async with Supervisor([]) as sup:
        assert await sup.start_child(family("a")) is family.pids["a"]
        await family.tell("a", "crash")
        assert family.entries() == "+a crash a -a +a"


@simulated
async def test_what_the_start_function_gave_is_given_back() -> None:
    async with Supervisor([]) as sup:
        inner = await sup.start_child(Supervisor.child([], id="inner"))
        assert isinstance(inner, Supervisor)
        assert (await sup.which_children())[0].pid is inner.pid


@simulated
async def test_a_start_that_is_ignored_is_told() -> None:
    async def nothing() -> Any:
        return IGNORE

    async with Supervisor([]) as sup:
        assert await sup.start_child(ChildSpec("n", nothing)) is IGNORE
        assert states(await sup.which_children()) == {"n": "none"}


@simulated
async def test_the_id_of_a_running_child_is_taken() -> None:
    family = Family()
    async with Supervisor([family("a")]) as sup:
        with pytest.raises(ChildError) as refused:
            await sup.start_child(family("a"))
        assert (refused.value.reason, refused.value.pid) == ("already_started", family.pids["a"])


@simulated
async def test_the_id_of_a_child_that_does_not_run_is_taken_too() -> None:
    family = Family()
    async with Supervisor([family("a")]) as sup:
        await sup.terminate_child("a")
        with pytest.raises(ChildError) as refused:
            await sup.start_child(family("a"))
        assert refused.value.reason == "already_present"


@simulated
async def test_a_child_that_does_not_start_is_not_added() -> None:
    family = Family()
    family.failing["a"] = 1
    async with Supervisor([]) as sup:
        with pytest.raises(StartError) as failed:
            await sup.start_child(family("a"))
        assert (failed.value.child, type(failed.value.reason)) == ("a", ValueError)
        assert await sup.which_children() == []
        await sup.start_child(family("a"))


@simulated
async def test_a_bad_spec_is_refused_at_the_call() -> None:
    async with Supervisor([]) as sup:
        with pytest.raises(TypeError, match="a child is"):
            await sup.start_child(42)  # pyright: ignore[reportArgumentType]


@simulated
async def test_a_significant_child_is_refused_where_it_means_nothing() -> None:
    async with Supervisor([]) as sup:
        with pytest.raises(ValueError, match="auto_shutdown"):
            await sup.start_child(child(wait_forever, restart="transient", significant=True))
        assert await sup.which_children() == []


# Terminate, restart, delete


@simulated
async def test_a_terminated_child_stays_known_and_is_not_restarted() -> None:
    family = Family()
    async with Supervisor([family("a"), family("b")], strategy="one_for_all") as sup:
        family.entries()
        await sup.terminate_child("a")
        assert family.entries() == "-a"
        assert states(await sup.which_children()) == {"a": "none", "b": "running"}


@simulated
async def test_a_terminated_temporary_child_is_forgotten() -> None:
    family = Family()
    async with Supervisor([family("a", restart="temporary")]) as sup:
        await sup.terminate_child("a")
        assert await sup.which_children() == []


@simulated
async def test_to_terminate_a_child_that_does_not_run_is_fine() -> None:
    family = Family()
    async with Supervisor([family("a")]) as sup:
        await sup.terminate_child("a")
        await sup.terminate_child("a")


@simulated
async def test_a_child_that_does_not_run_can_be_restarted() -> None:
    family = Family()
    async with Supervisor([family("a", restart="transient")]) as sup:
        await family.tell("a", "return")
        pid = await sup.restart_child("a")
        assert pid is family.pids["a"]
        assert process.alive(pid)


@simulated
async def test_a_restart_by_hand_that_fails_keeps_the_child_known() -> None:
    family = Family()
    async with Supervisor([family("a")]) as sup:
        await sup.terminate_child("a")
        family.failing["a"] = 1
        with pytest.raises(StartError):
            await sup.restart_child("a")
        assert states(await sup.which_children()) == {"a": "none"}


@simulated
async def test_a_child_that_does_not_run_can_be_deleted() -> None:
    family = Family()
    async with Supervisor([family("a")]) as sup:
        await sup.terminate_child("a")
        await sup.delete_child("a")
        assert await sup.which_children() == []
        await sup.start_child(family("a"))


@pytest.mark.parametrize("verb", ["restart_child", "delete_child"])
def test_a_running_child_is_neither_restarted_nor_deleted(verb: str) -> None:
    async def main() -> None:
        family = Family()
        async with Supervisor([family("a")]) as sup:
            with pytest.raises(ChildError) as refused:
                await getattr(sup, verb)("a")
            assert (refused.value.reason, refused.value.pid) == ("running", family.pids["a"])

    simulate(main)


@pytest.mark.parametrize("verb", ["restart_child", "delete_child"])
def test_a_child_that_is_being_restarted_is_left_alone(verb: str) -> None:
    async def main() -> None:
        family = Family()
        async with Supervisor([family("a")], max_restarts=100) as sup:
            family.failing["a"] = 50
            process.send(family.pids["a"], "crash")
            await sleep("5ms")
            with pytest.raises(ChildError) as refused:
                await getattr(sup, verb)("a")
            assert refused.value.reason == "restarting"

    simulate(main)


@pytest.mark.parametrize("verb", ["restart_child", "delete_child", "terminate_child"])
def test_an_unknown_child_is_not_found(verb: str) -> None:
    async def main() -> None:
        async with Supervisor([]) as sup:
            with pytest.raises(ChildError) as refused:
                await getattr(sup, verb)("a")
            assert refused.value.reason == "not_found"

    simulate(main)


@simulated
async def test_a_strategy_also_starts_children_that_were_terminated() -> None:
    family = Family()
    async with Supervisor([family("a"), family("b")], strategy="one_for_all") as sup:
        await sup.terminate_child("a")
        await family.tell("b", "crash")
        assert family.alive() == "a b"


@simulated
async def test_requests_of_many_callers_are_all_answered() -> None:
    family = Family()
    async with Supervisor([]) as sup:
        starts = [sup.start_child(family(f"w{n}")) for n in range(50)]
        pids = await asyncio.gather(*starts)
        assert len(set(pids)) == 50
        assert (await sup.count_children()).active == 50


# What does not concern it


def test_messages_are_ignored_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Supervisor([], name="App") as sup:
            process.send("App", "hello", 1)
            await sleep(1)
            assert process.info(sup.pid).mailbox == 0

    simulate(main)
    (report,) = records(caplog, logging.WARNING)
    assert "Supervisor App" in report
    assert "hello" in report


@simulated
async def test_a_request_that_it_does_not_know_is_refused_and_harms_nothing() -> None:
    async with Supervisor([]) as sup:
        answer = await process.call(sup.pid, "what is that?")
        assert "does not understand" in str(answer.error)
        assert await sup.which_children() == []


# Reports


def crashing_program(crashes: int, settings: Settings | None = None) -> None:
    async def main() -> None:
        process.set_options(trap_links=True)
        family = Family()
        await Supervisor.start_link([family("index")], name="App.Root", max_restarts=2)
        for _ in range(crashes):
            await sleep(1)
            await family.tell("index", "crash")

    simulate(main, settings=settings)


def test_a_restart_is_reported_with_all_that_one_must_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crashing_program(2)
    crash, report, _, second = records(caplog, logging.WARNING)
    assert "crashed: ValueError: index" in crash
    assert "supervised by: Supervisor App.Root" in crash
    assert "as 'index', permanent, restarted" in crash
    assert ", since 1970-01-01 00:00:0" in crash
    assert "Supervisor App.Root" in report
    assert "child: 'index', permanent worker" in report
    assert "why: ValueError: index" in report
    assert "since: 1970-01-01 00:00:0" in report
    assert "restarted 0 times before" in report
    assert "restarts of all children: 1 in the last 5s, 2 are allowed" in report
    assert "restarted once before" in second


def test_a_crash_is_logged_as_an_error_once(caplog: pytest.LogCaptureFixture) -> None:
    crashing_program(1)
    assert len(records(caplog, logging.ERROR)) == 1


def test_that_a_supervisor_gives_up_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    crashing_program(3)
    report = records(caplog, logging.ERROR)[-1]
    assert "Supervisor App.Root" in report
    assert "gives up" in report
    assert "3 in the last 5s, 2 are allowed" in report


def test_a_planned_end_that_is_restarted_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        family = Family()
        async with Supervisor([family("a")]):
            await family.tell("a", "shutdown")
            assert family.alive() == "a"

    simulate(main)
    assert records(caplog, logging.WARNING) == []


def test_reports_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    crashing_program(3, settings=Settings(report_crashes=False))
    assert records(caplog, logging.INFO) == []


def test_a_broken_log_handler_does_not_end_a_supervisor() -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("disk full")

    async def main() -> None:
        family = Family()
        async with Supervisor([family("a")]) as sup:
            process.send(sup.pid, "unknown")
            await family.tell("a", "crash")
            assert family.alive() == "a"

    broken, logger = Broken(), logging.getLogger("perdure.supervisor")
    logger.addHandler(broken)
    try:
        simulate(main)
    finally:
        logger.removeHandler(broken)


def test_restarts_are_told_by_telemetry() -> None:
    told: list[tuple[Any, ...]] = []

    def handler(event: Any, measurements: Any, metadata: Any, config: Any) -> None:
        told.append((event[-1], measurements["restarts"], metadata["child"]))
        assert isinstance(metadata["supervisor"], Pid)

    events = [("perdure", "supervisor", last) for last in ("restart", "restart_failed", "give_up")]
    telemetry.attach_many("test", events, handler)
    try:
        crashing_program(3)
    finally:
        telemetry.detach("test")
    assert told == [("restart", 1, "index"), ("restart", 2, "index"), ("give_up", 3, "index")]
