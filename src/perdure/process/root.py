"""The root process: either `main` of `perdure.run`, or a task of asyncio that was adopted."""

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.process.process import Process
from perdure.process.tasklike import WAITING

if TYPE_CHECKING:
    from perdure.process.runtime import Runtime


class AdoptedProcess(Process):
    """An asyncio task that is the root process while it is inside `async with Runtime()`.

    asyncio goes on to drive it; the kernel only gives it an identity, a mailbox and relations.
    """

    __slots__ = ("_interrupts", "task")

    def __init__(self, runtime: "Runtime", task: asyncio.Task[Any]) -> None:
        coro: Any = task.get_coro()
        super().__init__(runtime, _adopted, (), coro, None, {})
        self.task = task
        self.state = WAITING
        self._interrupts = 0

    def runs_now(self) -> bool:
        return asyncio.current_task() is self.task

    def interrupt(self) -> None:
        self._interrupts += 1
        self.task.cancel()

    def absorb(self, error: BaseException | None) -> bool:
        """Take back our own interrupts; tell whether they were all there were.

        If somebody else cancelled the task too, that cancellation must go on.
        """
        remaining = 0
        for _ in range(self._interrupts):
            remaining = self.task.uncancel()
        return remaining == 0 or not isinstance(error, asyncio.CancelledError)


async def _adopted() -> None:
    """Stand for the code of an adopted task in listings."""
