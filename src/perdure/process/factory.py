"""Whose task is it: every asyncio task that a process starts belongs to that process."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.process.current import CURRENT
from perdure.process.death import adopt_task
from perdure.process.tasklike import RUNNING, WAITING

if TYPE_CHECKING:
    from perdure.process.process import Process

T = TypeVar("T")
Inner = Callable[..., "asyncio.Future[Any]"]


class TaskFactory:
    """The task factory of a loop on which runtimes live; one, however many they are."""

    def __init__(self, inner: Inner | None) -> None:
        self.inner = inner
        self.users = 0

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> "asyncio.Future[Any]":
        context = options.get("context")
        owner = CURRENT.get(None) if context is None else context.get(CURRENT)
        if _is_generator(coro):  # a wait of the kernel, which asyncio takes for none
            coro = _awaited(coro)
        if self.inner is None:
            task = asyncio.Task(coro, loop=loop, **options)
        else:
            task = self._by_inner(owner, loop, coro, options)
        if owner is not None and owner.pid.target is not None:
            adopt_task(owner, task)  # pyright: ignore[reportArgumentType]
        return task

    def _by_inner(
        self,
        owner: "Process | None",
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any],
        options: dict[str, Any],
    ) -> "asyncio.Future[Any]":
        assert self.inner is not None
        if owner is None or owner.state != RUNNING:
            return self.inner(loop, coro, **options)
        # An eager factory runs the task right here: meanwhile it is not the process that runs.
        owner.state = WAITING
        try:
            return self.inner(loop, coro, **options)
        finally:
            owner.state = RUNNING


def _is_generator(given: object) -> bool:
    return isinstance(given, GeneratorType)


async def _awaited(wait: Awaitable[T]) -> T:
    return await wait


def install(loop: asyncio.AbstractEventLoop) -> None:
    """See to it that the tasks of a loop belong to the processes that start them."""
    factory = loop.get_task_factory()
    if not isinstance(factory, TaskFactory):
        factory = TaskFactory(factory)
        loop.set_task_factory(factory)  # pyright: ignore[reportArgumentType]
    factory.users += 1


def uninstall(loop: asyncio.AbstractEventLoop) -> None:
    """Leave the loop as it was, when the last runtime leaves it."""
    factory = loop.get_task_factory()
    if isinstance(factory, TaskFactory):
        factory.users -= 1
        if factory.users == 0:
            loop.set_task_factory(factory.inner)
