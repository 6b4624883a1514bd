"""To collect many tasks at once, with one limit for all."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, TypeVar

from perdure.base.duration import Duration, seconds
from perdure.base.result import Ok
from perdure.otp.collector import Ended
from perdure.otp.spec import BRUTAL_KILL
from perdure.otp.task import Task
from perdure.otp.wait import waited

T = TypeVar("T")

OnTimeout: TypeAlias = Literal["nothing", "ignore", "kill_task"]
_ON_TIMEOUT = ("nothing", "ignore", "kill_task")


async def join_many(tasks: Iterable[Task[T]], timeout: Duration = 5.0) -> list[T]:
    """Wait for all tasks, and give their values in order.

    Raises:
        TaskExit: One ended without a result: at once, without waiting for the others,
            which go on, and whose results are dropped.
        TaskTimeout: One has not ended in time, or its result was taken before.
        NotOwner: One belongs to another process.
    """
    limit = seconds(timeout)
    many = _checked(tasks)
    for task in many:
        if task.taken:
            raise task.too_late(None)
    await waited(many, len(many), limit, hasty=True)
    try:
        failed = next((task for task in many if task.failed), None)
        if failed is not None:
            failed.value()
        for task in many:
            if not task.ended:
                raise task.too_late(limit)
        return [task.value() for task in many]
    finally:
        for task in many:
            task.drop()


async def poll_many(
    tasks: Iterable[Task[T]],
    timeout: Duration = 5.0,
    limit: int | None = None,
    on_timeout: OnTimeout = "nothing",
) -> list[tuple[Task[T], Ok[T] | Ended | None]]:
    """Wait for tasks, and give each with its result, or None if it has none yet.

    Args:
        tasks: Which tasks.
        timeout: One limit for all.
        limit: Return as soon as so many have ended.
        on_timeout: What becomes of those that have not ended when the time is up:
            `"nothing"`, they go on; `"ignore"`, they go on alone; `"kill_task"`, they are killed.

    Raises:
        NotOwner: One belongs to another process.
        ValueError: An option is out of its range.
    """
    within = seconds(timeout)
    _check_options(limit, on_timeout)
    many = _checked(tasks)
    enough = len(many) if limit is None else min(limit, len(many))
    in_time = await waited([task for task in many if not task.taken], enough, within)
    results: dict[Task[T], Ok[T] | Ended | None] = {}
    for task in many:
        results[task] = task.result() if task.ended else None
    if not in_time:
        for task in many:
            if not task.taken:
                results[task] = await _end(task, on_timeout)
    return list(results.items())


async def _end(task: Task[T], how: OnTimeout) -> Ok[T] | Ended | None:
    match how:
        case "nothing":
            return None
        case "ignore":
            return task.ignore()
        case "kill_task":
            return await task.shutdown(BRUTAL_KILL)


def _checked(tasks: Iterable[Task[T]]) -> list[Task[T]]:
    many = list(tasks)
    for task in many:
        task.check_owner()
    if len(set(many)) < len(many):
        raise ValueError("a task is in the list twice, but gives its result once")
    return many


def _check_options(limit: Any, on_timeout: Any) -> None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ValueError(f"limit is a number of tasks, or None for all; not {limit!r}")
    if on_timeout not in _ON_TIMEOUT:
        raise ValueError(f"on_timeout is one of {', '.join(_ON_TIMEOUT)}; not {on_timeout!r}")
