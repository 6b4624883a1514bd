"""What type checkers must know of tasks and streams; checked by them, never run."""

from collections.abc import AsyncIterator
from typing import Any, assert_type

from perdure.otp import Exited, Ok
from perdure.otp.stream import AsyncStream, async_stream
from perdure.otp.supervision.spec import BRUTAL_KILL, ChildSpec
from perdure.otp.task import Task, join_many, poll_many
from perdure.otp.task_supervisor import TaskSupervisor
from perdure.process import Pid


async def size(path: str, *, limit: int = 0) -> int:
    return len(path) + limit


async def names() -> AsyncIterator[str]:
    yield "a"


async def tasks() -> None:
    task = Task.create(size, "x", limit=3)
    assert_type(task, Task[int])
    assert_type(task.pid, Pid | None)
    assert_type(await task, int)
    assert_type(await task.join(timeout="1s"), int)
    assert_type(await task.poll(1), Ok[int] | Exited[BaseException | None] | None)
    assert_type(await task.shutdown(BRUTAL_KILL), Ok[int] | Exited[BaseException | None] | None)
    assert_type(task.ignore(), Ok[int] | Exited[BaseException | None] | None)
    assert_type(Task.completed("x"), Task[str])
    assert_type(Task.start(size, "x"), Pid)
    assert_type(Task.start_link(size, "x"), Pid)
    assert_type(Task.child(size, "x"), ChildSpec)


async def many(found: list[Task[int]]) -> None:
    assert_type(await join_many(found), list[int])
    pairs = await poll_many(found, limit=1, on_timeout="kill_task")
    assert_type(pairs, list[tuple[Task[int], Ok[int] | Exited[BaseException | None] | None]])


async def streams() -> None:
    stream = async_stream(["a"], size, ordered=False, timeout="2s")
    assert_type(stream, AsyncStream[int])
    assert_type(await stream.to_list(), list[Ok[int] | Exited[Any]])
    assert_type(await stream.take(1), list[Ok[int] | Exited[Any]])
    async with async_stream(names(), size) as results:
        async for result in results:
            match result:
                case Ok(value):
                    assert_type(value, int)
                case Exited():
                    pass


async def supervised(supervisor: TaskSupervisor) -> None:
    assert_type(supervisor.create(size, "x"), Task[int])
    assert_type(TaskSupervisor.create_nolink("name", size, "x"), Task[int])
    assert_type(supervisor.start_child(size, "x", restart="transient"), Pid)
    assert_type(supervisor.children(), list[Pid])
    assert_type(supervisor.async_stream(["a"], size), AsyncStream[int])
    assert_type(TaskSupervisor.child(name="x"), ChildSpec)
