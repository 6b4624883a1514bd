"""What type checkers know of supervisors, registries, tables and pools; checked, never run."""

from typing import Any, assert_type

from perdure import Retry, process, telemetry, with_retry
from perdure.base.result import Err, Exited, Ok
from perdure.otp import (
    BRUTAL_KILL,
    Agent,
    Application,
    ChildSpec,
    DynamicSupervisor,
    PartitionSupervisor,
    Pool,
    Registry,
    Supervisor,
    Table,
    TaskSupervisor,
    child,
    tree,
)
from perdure.otp.pool import PoolWorker
from perdure.otp.supervision.loop import ChildInfo, Counts
from perdure.otp.tree import Tree
from perdure.process import Pid


async def worker(number: int) -> None: ...


async def specs() -> None:
    assert_type(child(worker, 1, id="one", restart="transient", shutdown="5s"), ChildSpec)
    assert_type(child(worker, 1, shutdown=BRUTAL_KILL, significant=False), ChildSpec)
    assert_type(Supervisor.child([child(worker, 1)], name="inner"), ChildSpec)
    assert_type(DynamicSupervisor.child(name="jobs"), ChildSpec)
    assert_type(Agent.child(dict, name="kv"), ChildSpec)


async def supervisors_are_handles(pid: Pid) -> None:
    started = await Supervisor.start_link([child(worker, 1)], strategy="rest_for_one")
    assert_type(started, Supervisor)
    assert_type(started.pid, Pid)
    assert_type(await started.which_children(), list[ChildInfo])
    assert_type(await Supervisor.which_children("app"), list[ChildInfo])
    assert_type(await Supervisor.count_children(pid), Counts)
    assert_type(await started.start_child(child(worker, 2)), Any)
    assert_type(await started.stop(), None)
    async with Supervisor([]) as sup:
        assert_type(sup, Supervisor)
    async with TaskSupervisor(max_children=3) as tasks:
        assert_type(tasks, TaskSupervisor)
        assert_type(tasks.children(), list[Pid])
    async with DynamicSupervisor() as jobs:
        assert_type(jobs, DynamicSupervisor)
        assert_type(await jobs.terminate_child(pid), None)


async def partitions() -> None:
    counters = await PartitionSupervisor.start_link(child(worker), name="counters", partitions=2)
    assert_type(counters, PartitionSupervisor)
    assert_type(counters.lookup("key"), Pid)
    assert_type(await counters.resize(1), int)


async def registries_and_tables(pid: Pid) -> None:
    registry = await Registry.start_link(keys="unique", name="rooms")
    assert_type(registry, Registry)
    assert_type(registry.lookup("lobby"), list[tuple[Pid, Any]])
    assert_type(Registry.whereis("rooms", "lobby"), Pid | None)
    async with registry.lock("lobby"):
        pass
    table = Table(name="hits", kind="ordered_set", access="public")
    assert_type(table.lookup("a"), list[Any])
    assert_type(table.insert_new("a", 1), bool)
    assert_type(table.update_counter("a"), int)
    assert_type(table.owner, Pid)


async def pools() -> None:
    async with await Pool.start_link(worker, size=2, restart_delay="1s") as pool:
        assert_type(pool, Pool)
        assert_type(pool.workers(), list[PoolWorker])


class App(Application):
    async def start(self) -> Supervisor:
        return await Supervisor.start_link([])


async def applications() -> None:
    async with App() as app:
        assert_type(app, App)
        assert_type(await app.wait(), BaseException | None)


async def fetch() -> Ok[int] | Err[str]:
    return Ok(1)


async def results(result: Ok[int] | Err[str] | Exited[ValueError]) -> None:
    match result:
        case Ok(value):
            assert_type(value, int)
        case Err(error):
            assert_type(error, str)
        case Exited(reason):
            assert_type(reason, ValueError)
    assert_type(Ok("x"), Ok[str])
    assert_type(Err(1), Err[int])
    assert_type(await with_retry(fetch), Ok[int] | Err[str])
    assert_type(Retry(attempts=3).delay(1), float)


async def pictures(pid: Pid) -> None:
    assert_type(tree(), Tree)
    assert_type(tree(pid).json(), str)
    assert_type(process.info(pid).links, frozenset[Pid])
    with telemetry.span(("app", "fetch"), url="x") as span:
        assert_type(span.update(result=1), None)
    telemetry.attach("log", ("app", "fetch"), print)
